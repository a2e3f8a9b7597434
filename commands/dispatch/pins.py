"""What a worker may not have touched, pinned before it begins and compared when it is back (contract page dispatch).

In a git work tree: HEAD and where it went, refs, stash, index, configuration, hooks, local remotes and every file;
outside git every file of the working directory and of the allowed paths. The same of each repository inside (a
submodule, a clone). Always: the user's git and gatebook configuration, and the rubric of the project.
"""

from __future__ import annotations

import os

from commands.dispatch.ceiling import Ceiling, inside
from commands.dispatch.manifest import Manifest, changed_between, manifest_of
from ledger.errors import GatebookError, MissingExecutor, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import Any

    from commands.git import Git

# What a tool or an approval of the request grants beyond files: `git commit`, `Bash(git commit:*)`, or just `commit`.
GRANTS = {
    "commit": ("commit", "refs"),
    "push": ("push", "refs"),
    "branch": ("refs",),
    "tag": ("refs",),
    "stash": ("stash", "refs"),
    "config": ("config",),
}


def grants_of(text: str) -> tuple[str, ...]:
    """The codes of what `text`, a tool's or an approval's name, allows; mostly nothing."""
    words = text.lower().removeprefix("bash(").removesuffix(")").partition(":")[0].split()
    return GRANTS.get(" ".join(words[1:] if words[:1] == ["git"] else words), ())


class Comparison:
    """What changed: `files` inside the ceiling, by canonical path; `violation` the first thing nobody granted, or empty."""

    __slots__ = ("detail", "files", "violation")

    def __init__(self, files: list[str], violation: str, detail: str) -> None:
        self.files = files
        self.violation = violation
        self.detail = detail


def take_pins(ceiling: Ceiling, without: Collection[str]) -> dict[str, Any]:
    """The pins now, as a JSON object; `without` are the directories of our own ledgers."""
    return _take(ceiling, [os.path.realpath(path) for path in without], None)


def _take(ceiling: Ceiling, without: list[str], before: Mapping[str, Any] | None) -> dict[str, Any]:
    git = _git_pins(ceiling.folder)
    roots = [ceiling.folder, *ceiling.watched]
    if git is not None:
        roots.append(git["top"])
        without = [*without, git["folder"]]
    # A root inside another is walked with it.
    outer = [root for root in roots if not any(root != other and inside(root, other) for other in roots)]
    known: Manifest | None = before["files"] if before is not None else None
    # What is below the .git of a repository that was pinned need not be read again.
    pinned = [os.path.join(top, ".git") for top in before["nested"]] if before is not None else []
    files = manifest_of(dict.fromkeys(outer), [*without, *pinned], known)
    nested = _nested_pins([*files, *filter(os.path.lexists, pinned)], "" if git is None else git["top"])
    files = {path: entry for path, entry in files.items() if _repository_of(path) not in nested}
    # Each repository's .git as one thing, that comes or goes.
    files |= {os.path.join(top, ".git"): ["", "a repository"] for top in nested}
    config = manifest_of([*_user_config(without), *_read_by_git(ceiling.folder)])
    return {"git": git, "nested": nested, "without": without, "files": files, "config": config}


def _repository_of(path: str) -> str:
    """The directory whose `.git` (or something in it) `path` is, empty for any other path."""
    top, found, _ = f"{path}{os.sep}".partition(f"{os.sep}.git{os.sep}")
    return top if found else ""


def _nested_pins(files: Iterable[str], outer: str) -> dict[str, Any]:
    """The pins of each repository but `outer` whose `.git` stands among `files`, by its directory; what git takes for none is none."""
    found = {}
    for top in sorted({_repository_of(path) for path in files} - {"", outer}):
        try:
            pins = _git_pins(top)
        except GatebookError:
            continue
        if pins is not None and pins["top"] == top:
            found[top] = pins
    return found


def compare_pins(ceiling: Ceiling, before: Mapping[str, Any], granting: Collection[str]) -> Comparison:
    """What changed since `before`, judged by the ceiling and by what the names in `granting` allow."""
    before = {"nested": {}, **before}  # an attempt of before inner repositories were pinned has none
    after = _take(ceiling, list(before["without"]), before)
    granted = {grant for name in granting for grant in grants_of(name)}
    changed = changed_between(before["files"], after["files"])
    stray = [path for path in changed if not ceiling.permits(path)]
    files = [path for path in changed if ceiling.permits(path)]
    violation, detail = _git_violation(before["git"], after["git"], granted, ceiling)
    for top in sorted(before["nested"].keys() & after["nested"].keys()):
        if violation:
            break
        violation, what = _git_violation(before["nested"][top], after["nested"][top], granted, ceiling)
        detail = f"{what}, in {_shown(top, ceiling)}" if violation else ""
    if not violation and "config" not in granted and changed_between(before["config"], after["config"]):
        violation, detail = "config", "the user's configuration or the rubric changed"
    if not violation and stray:
        violation, detail = (
            "path",
            f"{len(stray)} files outside allowed_paths, the first {_shown(stray[0], ceiling)}",
        )
    return Comparison(files, violation, detail)


def _shown(path: str, ceiling: Ceiling) -> str:
    return repr(os.path.relpath(path, ceiling.folder))


def _git_pins(folder: str) -> dict[str, Any] | None:
    """The repository around `folder`, None where there is none (or no git)."""
    from commands.git import Git, GitFailed

    try:
        top = Git(folder).line(["rev-parse", "--show-toplevel"])
    except (GitFailed, MissingExecutor) as error:
        if _has_repository(folder):
            raise Refused(f"the repository cannot be watched: {error}") from None
        return None
    git = Git(top)
    common = os.path.realpath(os.path.join(top, git.line(["rev-parse", "--git-common-dir"])))
    own = os.path.realpath(os.path.join(top, git.line(["rev-parse", "--git-dir"])))
    return {
        "top": os.path.realpath(top),
        "folder": common,
        "head": _read(git, ["rev-parse", "--verify", "-q", "HEAD"]),
        "branch": _read(git, ["symbolic-ref", "-q", "HEAD"]),
        "went": _read(git, ["reflog", "show", "--format=%H", "HEAD", "--"]).split(),
        "refs": _read(git, ["for-each-ref", "--format=%(objectname) %(refname)"]),
        "stash": _read(git, ["reflog", "show", "--format=%H", "refs/stash", "--"]),
        "index": _index(git),
        "config": manifest_of(_config_files(common, own)),
        "remotes": _local_remotes(git, top),
    }


def _has_repository(folder: str) -> bool:
    """Whether something here or above calls itself a repository, so that git's silence would hide its changes."""
    while not os.path.lexists(os.path.join(folder, ".git")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent
    return True


def _read(git: Git, args: list[str]) -> str:
    """What git says, empty where it has nothing to say (no commit yet, no stash)."""
    from commands.git import GitFailed

    try:
        return os.fsdecode(git.run(args))
    except GitFailed:
        return ""


def _index(git: Git) -> dict[str, str]:
    entries = _read(git, ["ls-files", "--stage", "-z", "--full-name", ":/"]) or _read(
        git, ["ls-files", "--stage", "-z"]
    )
    found: dict[str, str] = {}
    for entry in entries.split("\0"):
        if entry:
            facts, _, path = entry.partition("\t")
            found[path] = f"{found.get(path, '')}{facts};"
    return found


# Below `.git`, what decides how git behaves; `info/refs` is not of it: a repack writes it, from the refs.
_SETTINGS = ("config", "hooks", "info/attributes", "info/exclude", "info/grafts", "info/sparse-checkout")


def _config_files(common: str, own: str) -> list[str]:
    places = [os.path.join(common, name) for name in _SETTINGS]
    if own != common:  # a linked work tree has its own
        places.append(os.path.join(own, "info", "sparse-checkout"))
    return [*places, os.path.join(own, "config.worktree")]


def _user_config(own_folders: list[str]) -> list[str]:
    """Files that decide what is run and where work goes; the rubric stands in the ledger's own folder."""
    home = os.path.expanduser("~")
    configured = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config")
    places = [
        os.path.join(home, ".gitconfig"),
        os.path.join(configured, "git"),
        os.path.join(configured, "gatebook"),
    ]
    if os.environ.get("GIT_CONFIG_GLOBAL"):
        places.append(os.environ["GIT_CONFIG_GLOBAL"])
    return list(dict.fromkeys([*places, *(os.path.join(folder, "rubric.yaml") for folder in own_folders)]))


def _read_by_git(folder: str) -> list[str]:
    """Every file that git reads its configuration from in `folder`, those that others include too."""
    from commands.git import run_git

    try:
        listed = run_git(["config", "--list", "--show-origin", "--name-only", "-z"], folder)
    except GatebookError:  # no git, or a file it cannot read: those of a fixed place are watched all the same
        return []
    origins = {part.removeprefix(b"file:") for part in listed.split(b"\0") if part.startswith(b"file:")}
    return [os.path.realpath(os.path.join(folder, os.fsdecode(origin))) for origin in sorted(origins)]


def _local_remotes(git: Git, top: str) -> dict[str, str]:
    """The refs of every remote that is a repository on this machine: a push there leaves no trace here."""
    from commands.git import run_git

    found = {}
    for line in _read(git, ["config", "--get-regexp", r"^remote\..*\.(push)?url$"]).splitlines():
        place = line.partition(" ")[2].removeprefix("file://")
        path = os.path.realpath(os.path.join(top, place))
        if os.path.isdir(path) and "://" not in place:
            try:
                refs = run_git(["for-each-ref", "--format=%(objectname) %(refname)"], path)
            except GatebookError:
                continue
            found[path] = os.fsdecode(refs)
    return found


def _git_violation(
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    granted: Collection[str],
    ceiling: Ceiling,
) -> tuple[str, str]:
    """(code, what happened) of the first change in the repository that nobody granted; empty when there is none."""
    if before is None or after is None:
        return ("", "") if before is after else ("refs", "a git repository came or went")
    moved = _moved(before, after)
    checks = (
        ("commit", moved, "HEAD moved: a commit, checkout or reset"),
        ("push", before["remotes"] != after["remotes"], "a remote's refs changed: a push"),
        ("stash", before["stash"] != after["stash"], "the stash changed"),
        ("refs", (before["refs"], before["branch"]) != (after["refs"], after["branch"]), "refs changed"),
        (
            "config",
            changed_between(before["config"], after["config"]) != [],
            "git configuration or hooks changed",
        ),
        ("path", _staged_outside(before, after, ceiling), "a path outside allowed_paths was staged"),
    )
    for code, happened, what in checks:
        if happened and code not in granted:
            return code, what
    return "", ""


def _moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether HEAD is, or was in between, at another commit than before."""
    steps = len(after["went"]) - len(before["went"])
    return before["head"] != after["head"] or any(
        f"{oid}\n" != before["head"] for oid in after["went"][: max(steps, 0)]
    )


def _staged_outside(before: Mapping[str, Any], after: Mapping[str, Any], ceiling: Ceiling) -> bool:
    names = before["index"].keys() | after["index"].keys()
    top = str(after["top"])
    return any(
        before["index"].get(name) != after["index"].get(name) and not ceiling.permits(os.path.join(top, name))
        for name in names
    )
