"""What a user's machine keeps about ledgers, outside them: trust, head memories, private keys.

All of it lies in `$XDG_STATE_HOME/gatebook` (0700), so that neither a cloned repository nor a restored
file can bring it along (DESIGN, Views: Which ledger).
"""

from __future__ import annotations

import fcntl
import os
import stat

from ledger.canonical import encode, parse_object
from ledger.errors import Invalid, Refused, Tampered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD_BYTES = 20 + 1 + 64 + 1


def state_path() -> str:
    """`$XDG_STATE_HOME/gatebook`, whether it is there or not."""
    root = os.environ.get("XDG_STATE_HOME") or ""
    if not os.path.isabs(root):  # the XDG base directory rules: a relative value is ignored
        root = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(root, "gatebook")


def state_dir() -> str:
    """`$XDG_STATE_HOME/gatebook`, made 0700 when missing."""
    folder = state_path()
    if not os.path.isdir(folder):
        os.makedirs(folder, 0o700, exist_ok=True)
    return folder


class HeadMemory:
    """The last head of one ledger as this machine saw it; behind the file after a crash, never ahead of it."""

    __slots__ = ("_handle", "path")

    def __init__(self, ledger_id: str) -> None:
        # Only named here: a home that cannot be written keeps nobody from reading or appending.
        self.path = os.path.join(state_path(), "heads", ledger_id)
        self._handle = -1

    def read(self) -> tuple[int, bytes] | None:
        """(seq, hash), or None where this machine has not seen the ledger.

        Raises:
            Tampered: the memory is there but not readable as one.
        """
        try:
            with open(self.path, "rb", buffering=0) as file:
                raw = file.read(_HEAD_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Refused(
                f"{self.path}: {error.strerror}: this machine's memory of the ledger cannot be read"
            ) from None
        if not raw.strip(b"\0"):
            return None  # a crash, or a full disk, between making the file and filling it
        try:
            if len(raw) != _HEAD_BYTES or raw[-1:] != b"\n" or raw[20:21] != b" " or not raw[:20].isdigit():
                raise ValueError
            return int(raw[:20]), bytes.fromhex(raw[21:85].decode())
        except ValueError:
            raise Tampered(
                f"{self.path}: damaged memory of the ledger's head: check with `gatebook verify`, then `gatebook trust`"
            ) from None

    def write(self, seq: int, hash: bytes) -> None:
        """Remember the head. In place and without a flush: a crash leaves an older head, which only checks less."""
        if self._handle < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                self._handle = os.open(self.path, flags, 0o600)
            except FileNotFoundError:
                state_dir()
                os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
                self._handle = os.open(self.path, flags, 0o600)
            os.ftruncate(self._handle, _HEAD_BYTES)  # whatever damage stood here before
        os.pwrite(self._handle, f"{str(seq).zfill(20)} {hash.hex()}\n".encode(), 0)

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def known_ledgers() -> dict[str, dict[str, object]]:
    """`ledgers.json`: ledger id -> {"path", "trusted_at"}; empty when there is none.

    Raises:
        Invalid: the file is there but is not such an object.
    """
    path = os.path.join(state_path(), "ledgers.json")
    try:
        with open(path, "rb") as file:
            raw = file.read()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}: cannot tell which ledgers this machine trusts") from None
    found: dict[str, dict[str, object]] = {}
    for ledger_id, entry in parse_object(raw, what=path).items():
        if not isinstance(entry, dict):
            raise Invalid(f"{path}: the entry of {ledger_id} must be an object: mend or remove it")
        found[ledger_id] = entry
    return found


def _path_text(folder: str) -> str:
    return os.fsencode(os.path.realpath(folder)).decode("utf-8", "backslashreplace")


def _paths(entry: dict[str, object]) -> list[str]:
    paths = entry.get("paths")
    return [text for text in paths if isinstance(text, str)] if isinstance(paths, list) else []


def remember_ledger(ledger_id: str, folder: str, when: str) -> None:
    """Trust the ledger with this id at `folder` from now on."""
    from ledger.files import write_whole

    root = state_dir()
    lock = os.open(
        os.path.join(root, "ledgers.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = known_ledgers()
        path = _path_text(folder)
        for other in list(known):
            if other != ledger_id and path in _paths(known[other]):
                # One path, one ledger: what stood there before was deleted or moved away.
                known[other]["paths"] = [text for text in _paths(known[other]) if text != path]
                if not known[other]["paths"]:
                    del known[other]
        paths = _paths(known.get(ledger_id, {}))
        if path not in paths:
            paths.append(path)
        known[ledger_id] = {"paths": paths, "trusted_at": when}
        write_whole(os.path.join(root, "ledgers.json"), encode(known) + b"\n")
    finally:
        os.close(lock)


def trusted_id(folder: str) -> str | None:
    """The id of the ledger that this user trusted at `folder`, or None."""
    path = _path_text(folder)
    for ledger_id, entry in known_ledgers().items():
        if path in _paths(entry):
            return ledger_id
    return None


def check_found(folder: str) -> None:
    """Raise Refused unless `folder` is a real directory of this user that others cannot write and git does not track."""
    info = os.lstat(folder)
    if not stat.S_ISDIR(info.st_mode):
        raise Refused(
            f"{folder}: not a real directory (a link or a file); a found ledger must be one: name it with --ledger"
        )
    if info.st_uid != os.geteuid():
        raise Refused(f"{folder}: belongs to another user: name it with --ledger if you mean it")
    if info.st_mode & 0o022:
        raise Refused(
            f"{folder}: others can write to it: chmod go-w it, then look at it with `gatebook verify`"
        )
    if _tracked(folder):
        raise Refused(
            f"{folder}: is tracked by git, so whoever pushes could bring it: `git rm -r --cached` it, or name it with --ledger"
        )


def _git_dirs(folder: str) -> Iterator[tuple[str, str]]:
    """(work tree, git directory) of the repositories that enclose `folder`'s parent, innermost first."""
    here = os.path.dirname(os.path.abspath(folder))
    while True:
        git = os.path.join(here, ".git")
        if os.path.isdir(git):
            yield here, git
        elif os.path.isfile(git):
            with open(git, "rb") as file:
                line = file.read(4096).strip()
            if line.startswith(b"gitdir: "):
                yield here, os.path.join(here, os.fsdecode(line[8:]))
        parent = os.path.dirname(here)
        if parent == here:
            return
        here = parent


def _tracked(folder: str) -> bool:
    for tree, git in _git_dirs(folder):
        index = os.path.join(git, "index")
        try:
            info = os.stat(index)
        except OSError:
            continue
        seen = os.path.join(state_path(), "git", f"{info.st_dev:x}-{info.st_ino:x}")
        mark = f"{info.st_mtime_ns} {info.st_size} {folder}\n".encode("utf-8", "surrogateescape")
        try:
            with open(seen, "rb") as file:
                if file.read() == mark:
                    continue
        except OSError:
            pass
        if _in_index(tree, folder, index):
            return True
        try:
            from ledger.files import write_whole

            state_dir()
            os.makedirs(os.path.dirname(seen), 0o700, exist_ok=True)
            write_whole(seen, mark)
        except OSError:
            pass  # only a cache: the index is read again next time
    return False


def _in_index(tree: str, folder: str, index: str) -> bool:
    with open(index, "rb") as file:
        raw = file.read()
    name = os.fsencode(os.path.relpath(folder, tree)) + b"/"
    # Versions 2 and 3 hold each path whole; version 4 shortens them, and the extension `link` says that a
    # shared index holds more: then git must be asked.
    whole = raw[:4] == b"DIRC" and raw[4:8] in (b"\0\0\0\2", b"\0\0\0\3") and b"link" not in raw
    if whole and name not in raw:
        return False
    import subprocess

    # A git hook's own GIT_DIR and GIT_INDEX_FILE would answer for another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "--", os.path.relpath(folder, tree)],
            cwd=tree, capture_output=True, check=False, env={**env, "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except OSError:
        return True  # no git to ask: what cannot be ruled out is taken to be so
    if done.returncode != 0:
        why = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise Refused(
            f"{folder}: git cannot say whether it tracks it ({why}): mend {tree}, or name the ledger with --ledger"
        )
    return bool(done.stdout)


def keys_dir(ledger_id: str) -> str:
    """Where this machine keeps the ledger's private keys."""
    return os.path.join(state_path(), "keys", ledger_id)


def write_key(ledger_id: str, name: str, seed: bytes) -> None:
    """Keep a 32-byte Ed25519 seed as `name`, 0600; an existing one is never replaced (FileExistsError)."""
    from ledger.files import flush_names

    state_dir()
    folder = keys_dir(ledger_id)
    os.makedirs(folder, 0o700, exist_ok=True)
    handle = os.open(
        os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
    )
    try:
        os.write(handle, seed.hex().encode() + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)
    flush_names(folder)  # the log is about to name its public half


def read_key(ledger_id: str, name: str) -> bytes:
    """The 32-byte seed kept as `name`.

    Raises:
        Refused: it is not on this machine, or not private to this user.
    """
    path = os.path.join(keys_dir(ledger_id), name)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except PermissionError as error:
        raise Refused(f"{path}: {error.strerror}: this user may not read the ledger's {name} key") from None
    except OSError:
        raise Refused(
            f"{path}: this machine does not have the ledger's {name} key: use the machine that has it (it ran "
            "`gatebook init`, or `authority rotate` since), or copy that key from there"
        ) from None
    try:
        if os.fstat(handle).st_mode & 0o077:
            raise Refused(f"{path}: others can read this private key: chmod 600 it and rotate it")
        raw = os.read(handle, 100).strip()
    finally:
        os.close(handle)
    try:
        seed = bytes.fromhex(raw.decode())
    except ValueError:
        seed = b""
    if len(seed) != 32:
        raise Refused(f"{path}: not a 32-byte key in hex")
    return seed
