"""The authority ceiling on paths and tools: what a request may touch, canonically (contract page dispatch)."""

from __future__ import annotations

import os

from ledger.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

READ_ONLY = "read-only"
PATHS = "paths"
WORKSPACE_WRITE = "workspace-write"

# What every coding agent has under some such name; anything else named in `tools` must be a program here.
_AGENT_TOOLS = frozenset(
    ["apply_patch", "bash", "edit", "exec", "exec_command", "execute", "fetch", "find", "glob", "grep", "list", "ls", "multiedit", "patch", "read", "read_file", "run", "search", "shell", "task", "terminal", "todo", "update_plan", "view", "web_search", "webfetch", "websearch", "write", "write_file"]
)  # fmt: skip


def inside(path: str, folder: str) -> bool:
    """Whether the canonical `path` is `folder` or lies below it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def canonical(path: str, base: str) -> str:
    """`path` (relative to `base`) with every link and `..` resolved; Refused for a loop of links."""
    found = os.path.realpath(os.path.join(base, path))
    if os.path.islink(found):
        raise Refused(f"{path!r} is a loop of links")
    return found


class Ceiling:
    """Where work happens and what it may write: `given` exactly as asked, `folder` and `allowed` canonical.

    `watched` are the paths that the request allows, which an attempt narrower than it may not write either.
    """

    __slots__ = ("allowed", "folder", "given", "watched")

    def __init__(self, given: str, folder: str, allowed: tuple[str, ...]) -> None:
        self.given = given
        self.folder = folder
        self.allowed = self.watched = allowed

    def read_only(self) -> Ceiling:
        """The same places, and nothing of them to write to."""
        narrow = Ceiling(self.given, self.folder, ())
        narrow.watched = self.watched
        return narrow

    @property
    def sandbox(self) -> str:
        """`read-only` without allowed paths, `workspace-write` when one contains the directory, else `paths`."""
        if not self.allowed:
            return READ_ONLY
        return WORKSPACE_WRITE if any(inside(self.folder, path) for path in self.allowed) else PATHS

    def permits(self, path: str) -> bool:
        """Whether the canonical `path` may be written."""
        return any(inside(path, allowed) for allowed in self.allowed)


def ceiling_of(working_directory: str, allowed_paths: Sequence[str]) -> Ceiling:
    """The ceiling that a request names.

    Raises:
        Refused: the directory does not exist, or an allowed path leaves it once its links and `..` are resolved.
            An absolute path that contains the directory, and says so plainly, is lawful: it is the whole of it.
    """
    if not os.path.isdir(working_directory):
        raise Refused(f"authority.working_directory {working_directory!r} does not exist")
    folder = os.path.realpath(working_directory)
    allowed = []
    for path in allowed_paths:
        found = canonical(path, folder)
        plain = os.path.isabs(path) and os.path.normpath(path) == found and ".." not in path.split(os.sep)
        if not inside(found, folder) and not (plain and inside(folder, found)):
            raise Refused(f"authority.allowed_paths {path!r} leaves the working directory")
        allowed.append(found)
    return Ceiling(working_directory, folder, tuple(dict.fromkeys(allowed)))


def missing_tool(tools: Iterable[str]) -> str | None:
    """The first of `tools` that is neither an agent's own nor a program here, None when all are here."""
    for tool in tools:
        words = tool.partition("(")[0].split()  # `Bash(git:*)` is a tool too
        if not words or (words[0].lower() not in _AGENT_TOOLS and not _is_here(words[0])):
            return tool
    return None


def _is_here(program: str) -> bool:
    from shutil import which  # only for a request that names programs

    return which(program) is not None
