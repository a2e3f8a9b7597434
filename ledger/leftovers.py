"""What an erasure names, and what must not outlive it: the views beside a log, finished or half made, and files of contents that no event names.

The views themselves are made by `projections.views`; here are their names and their lock, because a store that follows
another's redaction removes them, too.
"""

from __future__ import annotations

import fcntl
import os
import time

from ledger.canonical import load
from ledger.event import ARTIFACTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.event import Event
    from ledger.sqlite import SQLiteStore
    from ledger.store import Reader

VIEWS = "views.db"
VIEWS_LOCK = "views.lock"
NEW = ".new"  # after a views file's name: it is being made
CHECK = ".check"  # made to be compared with the standing one


def hold_views(folder: str, seconds: float = 0.0) -> int:
    """The handle that holds the views of `folder` until it is closed: to build, catch up, compare or remove them.

    Raises:
        BlockingIOError: somebody else held them for `seconds`.
    """
    handle = os.open(
        os.path.join(folder, VIEWS_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(handle)
                raise
            time.sleep(0.01)
        except BaseException:
            os.close(handle)
            raise
        else:
            return handle


def remove_database(path: str) -> None:
    """Delete a SQLite file and what SQLite keeps beside it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        try:
            os.unlink(path + suffix)
        except FileNotFoundError:
            pass  # most often; and whoever reads beside us may remove a journal at any moment


def remove_views(folder: str) -> None:
    """Delete the views beside a log, and those that somebody was making when he was killed; the caller holds them."""
    path = os.path.join(folder, VIEWS)
    for made in ("", NEW, CHECK, CHECK + NEW):
        remove_database(path + made)


def named_artifacts(store: SQLiteStore, after: int = 0) -> set[str]:
    """The artifacts that hold the content of an event later than `after`."""
    rows = store.query(
        "SELECT json_extract(CAST(envelope AS TEXT), '$.content_digest') FROM events "
        "WHERE seq > ? AND content IS NULL AND salt IS NOT NULL",
        (after,),
    )
    return {str(row[0]) for row in rows}


def unnamed_artifacts(store: SQLiteStore, named: set[str] | None = None) -> list[str]:
    """The files in the artifacts' folder that hold no event's content: redacted, or a crash while writing.

    A folder there is nobody's artifact: left alone, so that it keeps no erasure from being finished.
    """
    try:
        with os.scandir(os.path.join(store.folder, ARTIFACTS)) as entries:
            found = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    if named is None:
        named = named_artifacts(store) if found else set()
    return sorted(name for name in found if name not in named)


def remove_artifacts(store: SQLiteStore, named: set[str] | None = None) -> None:
    """Delete what `unnamed_artifacts` finds; the caller holds the ledger's lock, so that nobody is writing one."""
    for name in unnamed_artifacts(store, named):
        os.unlink(os.path.join(store.folder, ARTIFACTS, name))


def named_by(event: Event) -> list[int]:
    """The earlier events whose content `event` says was erased: none unless it is a ledger.redacted."""
    named = load(event.data).get("events") if event.type == "ledger.redacted" else None
    return (
        [seq for seq in named if type(seq) is int and 0 < seq < event.seq] if isinstance(named, list) else []
    )


def erased_on_record(reader: Reader) -> set[int]:
    """The events that any ledger.redacted event names."""
    return {seq for event in reader.stream("ledger") for seq in named_by(event)}
