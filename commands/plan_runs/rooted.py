"""Files below a root, opened component by component so that no link leads out (DESIGN, Views).

A name is a relative path with `/`; each component is opened with `O_NOFOLLOW` from the folder above it.
Only regular files are read, at most `limit` bytes, without waiting on a FIFO.
"""

from __future__ import annotations

import errno
import os
import stat

from ledger.errors import Invalid, Refused

FILE_LIMIT = 512 * 1024
"""Bytes of a document that we read: what fits an event's content."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class MissingFileError(Invalid):
    """There is no such file (or no folder on the way to it)."""


def _components(name: str) -> list[str]:
    parts = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Refused(f"{name!r} is not a plain name below its folder; use names without `..` and `//`")
    return parts


def _open_parent(root: str, name: str) -> tuple[int, str]:
    """The open folder that holds `name`'s last component, and that component; the caller closes the folder."""
    *folders, last = _components(name)
    at = root
    try:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in folders:
            at = f"{at}/{part}"
            try:
                below = os.open(part, _FOLDER, dir_fd=folder)
            finally:
                os.close(folder)
            folder = below
    except OSError as error:
        raise _explain(error, at) from None
    return folder, last


def _explain(error: OSError, path: str) -> Invalid | Refused:
    if error.errno == errno.ENOENT:
        return MissingFileError(f"{path}: there is no such file")
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return Refused(f"{path}: is a symbolic link; put the real file there")
    if error.errno == errno.ENOTDIR:
        return Refused(f"{path}: is a link or no folder; put a real folder there")
    return Invalid(f"{path}: {error.strerror}")


def _at(error: OSError, path: str) -> OSError:
    """The same failure naming the file that was meant: a full disk names none, and a temp file says nobody anything."""
    return OSError(error.errno, error.strerror, path)


def read_file(root: str, name: str, *, limit: int = FILE_LIMIT) -> bytes:
    """The bytes of the regular file `name` below `root`, read once.

    Raises `MissingFileError` when there is none, `Refused` for a link on the way, `Invalid` for anything but a
    regular file and for one of more than `limit` bytes.
    """
    path = f"{root}/{name}"
    folder, last = _open_parent(root, name)
    try:
        handle = os.open(last, _FILE, dir_fd=folder)
    except OSError as error:
        # A FIFO or socket answers ENXIO; it is no regular file either way.
        if error.errno == errno.ENXIO:
            raise Invalid(f"{path}: is not a regular file") from None
        raise _explain(error, path) from None
    finally:
        os.close(folder)
    try:
        shape = os.fstat(handle)
        if not stat.S_ISREG(shape.st_mode):
            raise Invalid(f"{path}: is not a regular file")
        pieces: list[bytes] = []
        held = 0
        while piece := os.read(handle, min(1 << 20, limit + 1 - held)):
            pieces.append(piece)
            held += len(piece)
            if held > limit:
                raise Invalid(f"{path}: is larger than {limit} bytes; make it smaller")
        return b"".join(pieces)
    finally:
        os.close(handle)


def kind_of(root: str, name: str) -> str:
    """`file`, `folder`, `link`, `other` or `` (nothing there), without following the last component."""
    try:
        folder, last = _open_parent(root, name)
    except MissingFileError:
        return ""
    try:
        mode = os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return ""
    finally:
        os.close(folder)
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


def make_folder(root: str, name: str) -> None:
    """`name` below `root` is a real folder afterwards, and durable; `Refused` where a link or file stands."""
    done = ""
    for part in _components(name):
        done = f"{done}/{part}" if done else part
        folder, last = _open_parent(root, done)
        try:
            os.mkdir(last, 0o755, dir_fd=folder)
            os.fsync(folder)
        except FileExistsError:
            if kind_of(root, done) != "folder":
                raise Refused(f"{root}/{done}: is a link or no folder; put a real folder there") from None
        except OSError as error:
            raise _at(error, f"{root}/{done}") from None
        finally:
            os.close(folder)


def write_file(root: str, name: str, data: bytes, *, mode: int = 0o644) -> None:
    """`name` below `root` holds exactly `data` afterwards: temp, fsync, rename, fsync of the folder.

    If the process dies before the rename the old file stands untouched; a temp file may be left beside it.
    """
    folder, last = _open_parent(root, name)
    temp = _temp_name()
    try:
        try:
            _write_new(folder, temp, data, mode)
            os.rename(temp, last, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _unlink_quietly(folder, temp)
            raise
        os.fsync(folder)
    except IsADirectoryError:
        raise Refused(f"{root}/{name}: is a folder; a file belongs there") from None
    except OSError as error:
        raise _at(error, f"{root}/{name}") from None
    finally:
        os.close(folder)


def create_file(root: str, name: str, data: bytes, *, mode: int = 0o644) -> bool:
    """Makes `name` with its whole content in one step, or returns False because something stands there.

    The content is written to a temp file first and linked into place: nobody ever sees a part of it.
    """
    folder, last = _open_parent(root, name)
    temp = _temp_name()
    try:
        _write_new(folder, temp, data, mode)
        try:
            os.link(temp, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            return False
        os.fsync(folder)
        return True
    except OSError as error:
        raise _at(error, f"{root}/{name}") from None
    finally:
        _unlink_quietly(folder, temp)
        os.close(folder)


def move_file(root: str, name: str, target: str) -> None:
    """`name` becomes `target`, which must be free; both durable. `Refused` when something stands at `target`."""
    folder, last = _open_parent(root, name)
    target_folder, target_last = _open_parent(root, target)
    try:
        try:
            # A link first, so that an existing target is never replaced; dying between the two leaves both
            # names on one file, which `same_file` tells apart from two results.
            os.link(last, target_last, src_dir_fd=folder, dst_dir_fd=target_folder, follow_symlinks=False)
        except FileExistsError:
            raise Refused(f"{root}/{target}: stands already; {root}/{name} was left where it is") from None
        os.fsync(target_folder)
        os.unlink(last, dir_fd=folder)
        os.fsync(folder)
    except OSError as error:
        raise _at(error, f"{root}/{target}") from None
    finally:
        os.close(folder)
        os.close(target_folder)


def remove_file(root: str, name: str) -> None:
    """`name` is gone afterwards, durably; nothing happens where there was none."""
    folder, last = _open_parent(root, name)
    try:
        os.unlink(last, dir_fd=folder)
        os.fsync(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _at(error, f"{root}/{name}") from None
    finally:
        os.close(folder)


def same_file(root: str, name: str, other: str) -> bool:
    """Whether two names below `root` are one file (the trace of a move that was cut short)."""
    shapes = []
    for each in (name, other):
        folder, last = _open_parent(root, each)
        try:
            shapes.append(os.stat(last, dir_fd=folder, follow_symlinks=False))
        except FileNotFoundError:
            return False
        finally:
            os.close(folder)
    return os.path.samestat(shapes[0], shapes[1])


def _temp_name() -> str:
    return f".gatebook-{os.getpid()}-{os.urandom(6).hex()}.tmp"


def _write_new(folder: int, name: str, data: bytes, mode: int) -> None:
    handle = os.open(
        name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=folder
    )
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _unlink_quietly(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        pass  # it was never made, or cannot be removed where nothing can be written: what failed before is told
