"""Files that appear whole or not at all (FAULTS F102): temp, fsync, rename, fsync of the directory."""

from __future__ import annotations

import os
import stat
import time

_STANDARD = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}


def _open_device(path: str) -> int | None:
    """A handle of our own of the device or open file that `path` names; None where it is a file's name.

    `/dev/stdout` and its like are what stands behind that number, as a shell's `>&1` means it: opened anew, a file would
    be written from its beginning, over what is in it and under what this process still prints there.
    """
    folder, _, name = path.rpartition("/")
    number = _STANDARD.get(path)
    if folder in ("/dev/fd", "/proc/self/fd") and name.isascii() and name.isdecimal() and len(name) < 8:
        number = int(name)
    if number is not None:
        return os.dup(number)
    try:
        device = stat.S_ISCHR(os.lstat(path).st_mode)
    except OSError:
        return None
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC) if device else None


def _write_device(path: str, content: bytes) -> bool:
    """Whether `path` is a device, which then has the content."""
    try:
        handle = _open_device(path)
        if handle is None:
            return False
        try:
            _write_all(handle, content)
        finally:
            os.close(handle)
    except OSError as error:
        raise _of(path, error) from None
    return True


def _write_all(handle: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]


def write_whole(path: str, content: bytes, mode: int = 0o600) -> None:
    """Replace `path` by `content` so that a crash leaves the old file or the new one: temp, fsync, rename, fsync of the directory.

    A device (`/dev/null`, `/dev/stdout`) is written to, never replaced: root could.
    """
    if _write_device(path, content):
        return
    folder = os.path.dirname(path) or "."
    temporary = os.path.join(
        folder, f".{os.path.basename(path)[:100]}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    )
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        raise _of(path, error) from None
    try:
        _write_all(handle, content)
        os.fsync(handle)
        os.rename(temporary, path)
    except BaseException as error:
        if os.path.lexists(temporary):  # interrupted right after it got its name, it is there no more
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise _of(path, error) from None
        raise
    finally:
        os.close(handle)
    flush_names(folder)


def _of(path: str, error: OSError) -> OSError:
    """`error` with the file that a user knows, not the temporary one."""
    return OSError(error.errno, error.strerror, path)


def flush_names(folder: str) -> None:
    """Make the names in `folder` durable: a file's own flush does not cover the name that it just got."""
    directory = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
