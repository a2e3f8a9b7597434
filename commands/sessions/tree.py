"""The work tree and index as one moment shows them: dirty map, round delta, fingerprint.

Rules: contract `review-sessions`, Dirty map and Rounds. Paths are text as `commands.git.quote_path` writes
them. A handful of git processes whatever the number of files.
"""

from __future__ import annotations

import os
import stat

from commands.git import Git, GitFailed, c_quote, quote_path, unquote_path
from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DELETED = "<deleted>"
UNBORN = "unborn"  # `head` before the first commit

# Our own files: never part of what a session judges.
EXCLUDED = (b".review-loop/sessions/", b".review-loop/tmp/", b".gatebook/")

_WORK, _INDEX = "work", "index"


class Tree:
    """What stands now.

    `head` is a commit id or `unborn`; `entries` maps each path that differs from HEAD to `MODE SHA` or
    `<deleted>`; `fingerprint` is one digest over index and work tree (HEAD has no part in it: a commit of what
    stands does not change it); `distrusted` lists dirty paths whose configured filter was not run.
    """

    __slots__ = ("distrusted", "entries", "fingerprint", "head")

    def __init__(
        self, head: str, entries: dict[str, str], fingerprint: str, distrusted: tuple[str, ...] = ()
    ) -> None:
        self.head = head
        self.entries = entries
        self.fingerprint = fingerprint
        self.distrusted = distrusted

    @property
    def dirty(self) -> dict[str, str]:
        """The dirty map: path -> blob sha or `<deleted>`."""
        return dirty_map(self.entries)


def dirty_map(entries: Mapping[str, str]) -> dict[str, str]:
    """The dirty map of such entries: the mode left out."""
    return {path: value.rpartition(" ")[2] for path, value in sorted(entries.items())}


def top_level(cwd: str) -> str:
    """The root of the work tree around `cwd`; `GitFailed` outside of one."""
    return Git(cwd).line(["rev-parse", "--show-toplevel"], filters=False)


def read_tree(root: str, *, trusted_filters: Iterable[str] = ()) -> Tree:
    """Read index and work tree of the repository whose top level is `root`.

    Raises `Invalid` on an unmerged path or an unknown git state, `GitFailed` when a git command fails.
    """
    git = Git(root, trusted_filters=trusted_filters)
    head = read_head(git)
    index, hidden = _read_index(git)
    kinds = parse_status(
        git.run(["status", "--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=none"])
    )
    on_disk = {path for path, kind in kinds.items() if kind == _WORK} | hidden
    modes = {path: index[path].partition(" ")[0] for path in on_disk if path in index}
    blobs = hash_work_tree(git, root, on_disk, modes)
    entries: dict[str, str] = {}
    for path, kind in kinds.items():
        if kind == DELETED:
            entries[quote_path(path)] = DELETED
        else:
            entries[quote_path(path)] = blobs[path] if kind == _WORK else index[path]
    distrusted = _distrusted(git, on_disk)
    return Tree(head, entries, _fingerprint(index, kinds, blobs), distrusted)


def read_head(git: Git) -> str:
    """The commit HEAD names, or `unborn`."""
    try:
        return git.line(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], filters=False)
    except GitFailed as error:
        if error.code == 1:
            return UNBORN
        raise


def parse_status(output: bytes) -> dict[bytes, str]:
    """`git status --porcelain=v1 -z` as path -> where its value is: `work`, `index` or `<deleted>`.

    The contract's eight rules, first match wins; `Invalid` for unmerged (1) and unknown (8) states.
    """
    kinds: dict[bytes, str] = {}
    fields = iter(output.split(b"\0"))
    for field in fields:
        if not field:
            continue
        x, y, path = field[0:1], field[1:2], field[3:]
        renamed = x in b"RC" or y in b"RC"
        old = next(fields) if renamed else b""
        kind = _place(x, y, path)
        if not _excluded(path):
            kinds[path] = kind
        if renamed and b"R" in (x, y) and not _excluded(old):
            kinds[old] = DELETED
    return kinds


def _place(x: bytes, y: bytes, path: bytes) -> str:
    if x == b"U" or y == b"U" or (x, y) in ((b"A", b"A"), (b"D", b"D")):
        raise Invalid(f"unmerged: {quote_path(path)}; resolve the conflict first")
    if x == y == b"?":
        return _WORK
    renamed = x in b"RC" or y in b"RC"
    if y == b"D" or (y == b" " and x == b"D"):
        return DELETED
    if y in b"MTA" or (renamed and y in b"RC"):
        return _WORK
    if y == b" " and (x in b"MAT" or renamed):
        return _INDEX
    code = (x + y).decode("ascii", "replace")
    raise Invalid(f"unknown git state {code!r} of {quote_path(path)}; look at `git status`")


def _excluded(path: bytes) -> bool:
    return path.startswith(EXCLUDED)


def _read_index(git: Git) -> tuple[dict[bytes, str], set[bytes]]:
    """Path -> `MODE SHA` of every index entry, and the paths whose flags hide changes from `git status`."""
    index: dict[bytes, str] = {}
    hidden: set[bytes] = set()
    for record in git.run(["ls-files", "--stage", "-v", "-z"], filters=False).split(b"\0"):
        if not record:
            continue
        info, _, path = record.partition(b"\t")
        flag, mode, sha, _stage = info.decode("ascii").split(" ")
        if _excluded(path):
            continue
        index[path] = f"{mode} {sha}"
        if (flag.islower() or flag == "S") and os.path.lexists(os.path.join(os.fsencode(git.cwd), path)):
            hidden.add(path)  # assume-unchanged, or skip-worktree though the file is there
    return index, hidden


def hash_work_tree(
    git: Git, root: str, paths: Iterable[bytes], modes: Mapping[bytes, str]
) -> dict[bytes, str]:
    """Path -> `MODE SHA` of what lies in the work tree, as git would store it.

    `modes` are those that git knows: a file keeps its own where `core.fileMode` is off. Regular files go through
    one `git hash-object` (with the conversions their attributes ask for), symlinks by their target's text, a
    directory is a submodule or nested repository and counts by its commit.
    """
    found: dict[bytes, str] = {}
    files: list[bytes] = []
    links: list[bytes] = []
    base = os.fsencode(root)
    for path in sorted(paths):
        try:
            mode = os.lstat(os.path.join(base, path)).st_mode
        except FileNotFoundError:
            raise Invalid(
                f"{quote_path(path)} went away while it was read; something else is writing here"
            ) from None
        if stat.S_ISLNK(mode):
            links.append(path)
        elif stat.S_ISDIR(mode):
            found[path] = f"160000 {_nested_head(git, root, path)}"
        elif stat.S_ISREG(mode):
            found[path] = "100755" if mode & 0o100 else "100644"
            files.append(path)
        else:
            raise Invalid(f"{quote_path(path)} is neither a file, a link nor a directory")
    if any(found[path] != modes.get(path, "100644") for path in files) and not _trusts_modes(git):
        for path in files:
            known = modes.get(path, "")
            found[path] = known if known.startswith("100") else "100644"
    if files:
        listing = "".join(c_quote(path) + "\n" for path in files).encode("ascii")
        hashes = git.run(["hash-object", "--stdin-paths"], input=listing).decode("ascii").split()
        if len(hashes) != len(files):
            raise Invalid("git hash-object answered for another number of files than it was asked")
        for path, sha in zip(files, hashes, strict=True):
            found[path] += f" {sha}"
    if links:
        algorithm = git.line(["rev-parse", "--show-object-format"], filters=False)
        for path in links:
            found[path] = f"120000 {_blob_id(algorithm, os.readlink(os.path.join(base, path)))}"
    return found


def _trusts_modes(git: Git) -> bool:
    """Whether the executable bit on this disk means anything (`core.fileMode`)."""
    return git.line(["config", "--type=bool", "--default=true", "core.fileMode"], filters=False) == "true"


def _blob_id(algorithm: str, content: bytes) -> str:
    import hashlib

    return hashlib.new(algorithm, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _nested_head(git: Git, root: str, path: bytes) -> str:
    inner = os.path.join(root, os.fsdecode(path))
    if not os.path.lexists(os.path.join(inner, ".git")):
        raise Invalid(f"{quote_path(path)} is a directory where git expects a file; look at `git status`")
    try:
        return Git(inner, timeout=git.timeout).line(["rev-parse", "--verify", "HEAD^{commit}"], filters=False)
    except GitFailed as error:
        raise Invalid(
            f"{quote_path(path)} is a repository without a commit; commit there, ignore it, or remove it"
        ) from error


def _distrusted(git: Git, paths: set[bytes]) -> tuple[str, ...]:
    """Those of the paths that ask for a configured filter the user does not trust."""
    untrusted = git.named_filters - git.trusted_filters
    if not untrusted or not paths:
        return ()
    out = git.run(["check-attr", "-z", "--stdin", "filter"], input=b"".join(p + b"\0" for p in sorted(paths)))
    fields = out.split(b"\0")
    return tuple(
        quote_path(fields[i]) for i in range(0, len(fields) - 2, 3) if os.fsdecode(fields[i + 2]) in untrusted
    )


def _fingerprint(index: dict[bytes, str], kinds: dict[bytes, str], blobs: dict[bytes, str]) -> str:
    """BLAKE3 over `PATH NUL index NUL work NUL` of every path in index or work tree, in byte order.

    `index` is `MODE SHA` or empty; `work` is the same where the work tree differs from the index or git does
    not look, `<deleted>` where the file is gone, else empty.
    """
    import blake3

    digest = blake3.blake3(b"gatebook tree 1\0")
    for path in sorted(index.keys() | kinds.keys()):
        work = blobs.get(path, "")
        if not work and kinds.get(path) == DELETED:
            work = DELETED if path in index else ""
        if path in index or work:
            digest.update(path + b"\0" + index.get(path, "").encode() + b"\0" + work.encode() + b"\0")
    return digest.hexdigest()


def round_delta(
    before: Mapping[str, str], after: Mapping[str, str], committed: Iterable[str] = ()
) -> tuple[str, ...]:
    """The paths whose content or mode a round changed: entries before and after, compared one by one.

    `committed` adds the paths that differ between the two HEADs, when HEAD moved.
    """
    moved = set(committed)
    paths = before.keys() | after.keys() | moved
    return tuple(sorted(p for p in paths if before.get(p) != after.get(p) or p in moved))


def changed_between(git: Git, old: str, new: str) -> tuple[str, ...]:
    """The paths that differ between two commits."""
    if old == new:
        return ()
    out = git.run(["diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new], filters=False)
    return tuple(quote_path(p) for p in out.split(b"\0") if p and not _excluded(p))


def commits_between(git: Git, old: str, new: str) -> tuple[str, ...] | None:
    """The commits from `old` (excluded) to its descendant `new`; None when `new` does not descend from it."""
    if old == new:
        return ()
    if UNBORN in (old, new):
        return (
            tuple(git.run(["rev-list", new], filters=False).decode("ascii").split())
            if old == UNBORN
            else None
        )
    try:
        git.run(["merge-base", "--is-ancestor", old, new], filters=False)
    except GitFailed as error:
        if error.code in (1, 128):  # 128: the old commit is gone from the repository
            return None
        raise
    return tuple(git.run(["rev-list", f"{old}..{new}"], filters=False).decode("ascii").split())


def existing(paths: Iterable[str], root: str) -> list[str]:
    """Those of the paths that are in the work tree now."""
    base = os.fsencode(root)
    return [p for p in paths if os.path.lexists(os.path.join(base, unquote_path(p)))]
