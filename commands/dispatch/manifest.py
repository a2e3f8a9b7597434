"""What lies in a tree, by content, so that what a worker changed can be told afterwards; nothing is followed or run."""

from __future__ import annotations

import os
import stat

from ledger.errors import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

MAX_FILES = 500_000
_READ_UPTO = 16 * 1024 * 1024  # bytes; of larger files the metadata must do

# path -> [fingerprint of the metadata, digest of the content or what stands for it]
Manifest = dict[str, list[str]]


def manifest_of(
    roots: Collection[str], without: Collection[str] = (), before: Manifest | None = None
) -> Manifest:
    """Every file below `roots` (canonical paths; a root may be a file or missing), but for the directories `without`.

    With `before`, a file whose metadata did not change is not read again: its ctime would have changed with it.
    """
    paths: dict[str, None] = {}
    for root in roots:
        for path in _files(root, frozenset(without)):
            paths[path] = None
            if len(paths) > MAX_FILES:  # told before anything is read: that would take minutes
                raise Unavailable(f"{root}: over {MAX_FILES} files; changes in such a tree are not watched")
    found: Manifest = {}
    for path in paths:
        entry = _entry(path, (before or {}).get(path))
        if entry is not None:
            found[path] = entry
    return found


def _files(root: str, without: frozenset[str]) -> Iterator[str]:
    if root in without:
        return
    if not os.path.isdir(root) or os.path.islink(root):
        yield root
        return
    stack = [root]
    while stack:
        folder = stack.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.path in without:
                continue
            if entry.is_dir(follow_symlinks=False):
                stack.append(entry.path)
            else:
                yield entry.path


def _entry(path: str, before: list[str] | None) -> list[str] | None:
    try:
        facts = os.lstat(path)
        fingerprint = (
            f"{facts.st_mode:o}.{facts.st_size}.{facts.st_mtime_ns}.{facts.st_ctime_ns}.{facts.st_ino}"
        )
        if before is not None and before[0] == fingerprint:
            return before
        return [fingerprint, _content(path, facts)]
    except FileNotFoundError:
        return None
    except OSError as error:
        return ["", f"unreadable {error.errno}"]


def _content(path: str, facts: os.stat_result) -> str:
    kind = f"{stat.S_IFMT(facts.st_mode):o} {facts.st_mode & 0o111:o}"
    if stat.S_ISLNK(facts.st_mode):
        from blake3 import blake3

        return f"{kind} {blake3(os.fsencode(os.readlink(path))).hexdigest()}"
    if not stat.S_ISREG(facts.st_mode):
        return kind
    if facts.st_size > _READ_UPTO:
        return f"{kind} {facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns}"
    return f"{kind} {file_digest(path)}"


def file_digest(path: str) -> str:
    """BLAKE3 (hex) of a regular file's bytes; OSError where it cannot be read."""
    from blake3 import blake3

    # O_NONBLOCK and O_NOFOLLOW: a fifo or a link put there meanwhile neither hangs us nor leads elsewhere.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    digest = blake3()
    try:
        while part := os.read(descriptor, 1 << 20):
            digest.update(part)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def changed_between(before: Manifest, after: Manifest) -> list[str]:
    """The paths that came, went, or have other content, sorted."""
    return sorted(
        path
        for path in before.keys() | after.keys()
        if (before.get(path) or ["", ""])[1] != (after.get(path) or ["", ""])[1]
    )


def digest_of_paths(paths: Collection[str], base: str) -> tuple[str, list[dict[str, str]]]:
    """One digest over the content of `paths` (files or trees, relative to `base`), and the digest of each file.

    A path that is not there has the digest `missing`, so that its coming is a change too; of a link both the link
    and what it leads to count.
    """
    from blake3 import blake3

    whole, shown = blake3(), []
    for path in sorted(set(paths)):
        top = os.path.join(base, path)
        found = manifest_of(dict.fromkeys((top, os.path.realpath(top))))
        for place in sorted(found) or [top]:
            content = (found.get(place) or ["", "missing"])[1]
            name = os.path.relpath(place, base)
            whole.update(os.fsencode(name) + b"\0" + content.encode() + b"\n")
            shown.append({"path": name, "digest": content.rpartition(" ")[2]})
    return whole.hexdigest(), shown
