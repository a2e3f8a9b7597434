"""`.review-loop/sessions/<uuid>.lock`: the claim that other tools respect (contract `review-sessions`, Start).

Made whole in a temporary file and linked into place, so that of two starts at once one wins and nobody ever reads
half a lock.
"""

from __future__ import annotations

import os

from commands.sessions.owner import ELSEWHERE, Owner
from ledger.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BYTES = 65536


class LockFile:
    """A lock as its file states it; fields that the older tool does not write are empty."""

    __slots__ = ("nonce", "owner", "raw", "started_at")

    def __init__(self, raw: bytes, fields: Mapping[str, str]) -> None:
        self.raw = raw
        pid = fields.get("pid", "")
        self.owner = Owner(
            int(pid) if pid.isascii() and pid.isdigit() and len(pid) < 10 else 0,
            fields.get("process_start", ""),
            fields.get("boot_id", ""),
            fields.get("pid_namespace", ""),
            fields.get("host", ""),
        )
        self.nonce = fields.get("claim_nonce", "")
        self.started_at = fields.get("started_at", "")

    def standing(self) -> str:
        """As `Owner.standing`; a lock without a readable pid counts as held elsewhere."""
        return self.owner.standing() if self.owner.pid else ELSEWHERE


def lock_path(root: str, uuid: str) -> str:
    """Where a session's lock lies."""
    return os.path.join(sessions_dir(root), f"{uuid}.lock")


def sessions_dir(root: str) -> str:
    """The directory of session files and locks."""
    return os.path.join(root, ".review-loop", "sessions")


def check_folders(root: str) -> None:
    """Raise Refused when `.review-loop` or its `sessions` is a link: it could lead out of the work tree."""
    for folder in (".review-loop", os.path.join(".review-loop", "sessions")):
        if os.path.islink(os.path.join(root, folder)):
            raise Refused(f"{folder} is a symbolic link: make it a real directory of this work tree")


def read_lock(root: str, uuid: str) -> LockFile | None:
    """The lock that stands, or None."""
    try:
        descriptor = os.open(lock_path(root, uuid), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        raw = file.read(_MAX_BYTES)
    return LockFile(raw, _fields(raw.decode("utf-8", "replace")))


def _fields(text: str) -> dict[str, str]:
    """JSON, `key: value` / `key=value` lines in any case, or a bare pid, as other tools write it."""
    if text.lstrip().startswith("{"):
        import json

        try:
            value = json.loads(text)
        except ValueError:
            return {}
        return {str(k).lower(): str(v) for k, v in value.items()} if isinstance(value, dict) else {}
    if text.strip().isdigit():
        return {"pid": text.strip()}
    found = {}
    for line in text.splitlines():
        bare = line.strip().removeprefix("-").strip()
        for sign in (":", "="):
            key, there, value = bare.partition(sign)
            if there and key.strip().replace("_", "a").isalpha():
                found[key.strip().lower()] = value.strip().strip('"')
                break
    return found


def make_lock(
    root: str, uuid: str, owner: Owner, *, started_at: str, entry_point: str, stop_after: str, nonce: str
) -> bool:
    """Put the lock in place; False when another stands there already."""
    import json

    body = {
        "pid": owner.pid,
        "started_at": started_at,
        "entry_point": entry_point,
        "stop_after": stop_after,
        "host": owner.host,
        "process_start": owner.started,
        "boot_id": owner.boot,
        "pid_namespace": owner.namespace,
        "claim_nonce": nonce,
    }
    path = lock_path(root, uuid)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{nonce}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(body, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # Crash here: a `.tmp` of a dead claim, which no reader looks at.
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)
    _sync_directory(os.path.dirname(path))
    return True


def remove_lock(root: str, uuid: str, nonce: str) -> None:
    """Take away the lock that carries this nonce; any other is left alone."""
    found = read_lock(root, uuid)
    if found is not None and found.nonce == nonce:
        os.unlink(lock_path(root, uuid))
        _sync_directory(sessions_dir(root))


def remove_dead_lock(root: str, uuid: str, seen: LockFile) -> None:
    """Take away the very lock that was judged dead. Renamed first: a new one that came meanwhile is put back."""
    path = lock_path(root, uuid)
    aside = f"{path}.{os.getpid()}.dead"
    try:
        os.rename(path, aside)
    except FileNotFoundError:
        return
    with open(aside, "rb") as file:
        same = file.read(_MAX_BYTES) == seen.raw
    if not same:
        try:
            os.link(aside, path)
        except FileExistsError:
            pass
    os.unlink(aside)
    _sync_directory(os.path.dirname(path))


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
