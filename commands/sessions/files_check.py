"""What `doctor` asks about session files: do they say what the log says? And taking over one that does not."""

from __future__ import annotations

import os

from commands.context import Context
from commands.git import GitFailed
from commands.sessions.tree import top_level
from commands.sessions.view import foreign_change, read_view
from ledger.errors import GatebookError, MissingExecutor, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger
    from ledger.event import Origin

    Check = tuple[str, str, str, str]


def check_files(ledger: Ledger) -> list[Check]:
    """(name, ok|note|problem, found, mend) for each session's file in the work tree of the working directory."""
    try:
        root = top_level(os.getcwd())
    except (GitFailed, MissingExecutor):
        return []
    found: list[Check] = []
    for stream in ledger.store.reader().streams("session"):
        uuid = stream.partition("/")[2]
        name = f"session {uuid}"
        try:
            if read_view(root, uuid) is None:
                continue  # of another work tree, or not opened
            changed = foreign_change(ledger, root, uuid)
        except GatebookError as error:
            found.append((name, "problem", str(error), ""))
            continue
        if changed is None:
            found.append((name, "ok", "its file says what the log says", ""))
        else:
            mend = f"gatebook doctor --adopt .review-loop/sessions/{uuid}.md"
            found.append(
                (name, "problem", f"the section {changed!r} of its file is not what the log says", mend)
            )
    return found


def adopt(ledger: Ledger, path: str, origin: Origin) -> dict[str, object]:
    """Import a changed session file as an event; `Refused` for any other file."""
    from commands.sessions.opening import adopt as adopt_session

    if not path.endswith(".md") or os.path.basename(os.path.dirname(os.path.abspath(path))) != "sessions":
        raise Refused(
            f"{path}: not a file that can be adopted (.review-loop/sessions/<uuid>.md and _processed.json can)"
        )
    context = Context(origin.via)
    context.actor_given = origin.actor
    return {"adopted": [f"session/{adopt_session(context, ledger, path)}"]}
