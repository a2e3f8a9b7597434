"""Take a step's writes back to the tree that the session knows."""

from __future__ import annotations

import os

from commands.git import unquote_path
from commands.sessions.steps import contents
from ledger.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.writer import Writer
    from projections.session import State


def take_back(writer: Writer, state: State, paths: tuple[str, ...]) -> None:
    """Give each path its content of the known tree again (work tree only).

    Raises:
        Refused: one of them cannot be given back; nothing was written then.
    """
    from ledger.files import write_whole

    entries = writer.known_entries(state)
    old = contents(writer, state, entries, paths)
    if old is None or any(entries.get(p, "100644").startswith(("120000", "160000")) for p in paths):
        raise Refused(
            f"the changes of {', '.join(paths[:5])} cannot be taken back by themselves; restore them, then resume"
        )
    root = os.path.realpath(writer.root)
    places = {path: os.path.join(root, os.fsdecode(unquote_path(path))) for path in paths}
    for path, full in places.items():
        if os.path.realpath(os.path.dirname(full)) != os.path.dirname(full):
            raise Refused(
                f"{path} lies behind a symbolic link now: take the change back by hand, then resume"
            )
    for path, full in places.items():
        content = old[path]
        if content is None:
            os.unlink(full)
        else:
            mode = os.stat(full).st_mode & 0o777 if os.path.exists(full) else 0o644
            os.makedirs(os.path.dirname(full), exist_ok=True)
            write_whole(full, content, mode=mode)
