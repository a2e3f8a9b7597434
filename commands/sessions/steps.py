"""The steps of 3.5 and 3.6: each step's report, what it wrote, and what that means for the stages."""

from __future__ import annotations

import re

from commands.git import Git, unquote_path
from commands.sessions.advance import advance
from commands.sessions.fast_replay import eligible
from commands.sessions.progress import next_action
from commands.sessions.rounds import block
from commands.sessions.tree import DELETED
from commands.sessions.writer import digest, entries_content, tree_struct
from ledger.errors import Invalid, Refused, Usage
from projections import session_events as e
from projections.session_rules import CAPS, FAST_REPLAY_STEPS, STEPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from msgspec import Struct

    from commands.sessions.tree import Tree
    from commands.sessions.writer import Writer
    from projections.session import State

    Batch = list[tuple[str, Struct, bytes | None]]

INDEX = ".git/index"
# Compiled by `re` at their first use: most steps of a session need none of them.
_METADATA = r"^\s*(?:[-*]\s+)?(agent|tool_uses)\s*:(.*)$"
_CRITICAL = r"^\s*[-*]\s+\[(?:CRITICAL|HIGH)\]"


class StepReport:
    """A quality agent's report: who wrote it, how many tools it used, whether CRITICAL findings are left."""

    __slots__ = ("agent", "criticals", "raw", "tool_uses")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        found: dict[str, str] = {}
        self.criticals = 0
        for line in raw.decode("utf-8").split("\n"):
            match = re.match(_METADATA, line.rstrip("\r"))
            if match and match[1] not in found:
                found[match[1]] = match[2].strip()
            self.criticals += re.match(_CRITICAL, line) is not None
        count = found.get("tool_uses", "")
        if not count.isascii() or not count.isdigit() or len(count) > 9:
            raise Invalid(
                "the report's metadata needs a line `tool_uses: N` (0 means that it proves nothing)"
            )
        self.tool_uses = int(count)
        self.agent = (found.get("agent") or "unnamed")[:100]


class StepResult:
    """What recording a step came to: its outcome, the paths it wrote, whether they may be carried over."""

    __slots__ = ("eligible", "outcome", "paths")

    def __init__(self, outcome: str, paths: tuple[str, ...] = (), *, eligible: bool = False) -> None:
        self.outcome = outcome
        self.paths = paths
        self.eligible = eligible


def check_due(state: State, stage: str, step: str) -> None:
    """Raise unless this step is the one that is due."""
    if step not in STEPS[stage]:
        raise Usage(f"{stage} has the steps {', '.join(STEPS[stage])}; not {step!r}")
    action = next_action(state)
    if action != f"{stage} {step}":
        raise Refused(f"{stage} {step} is not due; next: {action}")


def skip_step(writer: Writer, stage: str, step: str, agent: str = "none", report: bytes = b"") -> StepResult:
    """Record that nobody does this step (no command is configured, or its agent proved nothing twice)."""
    state = writer.state()
    check_due(state, stage, step)
    tree = writer.require_known_tree(state)
    return _record(writer, state, stage, step, agent, 0, "skipped", tree, (), eligible_=False, report=report)


def reverted_step(writer: Writer, stage: str, step: str, report: StepReport) -> StepResult:
    """Record that a step's writes broke the build and were taken back."""
    state = writer.state()
    check_due(state, stage, step)
    tree = writer.require_known_tree(state)
    return _record(
        writer,
        state,
        stage,
        step,
        report.agent,
        report.tool_uses,
        "reverted",
        tree,
        (),
        eligible_=False,
        report=report.raw,
    )


def record_step(
    writer: Writer, stage: str, step: str, report: StepReport, *, lint_same: bool | None = None
) -> StepResult:
    """Record a step's report over what it wrote; mints the stage when its sequence is complete and clean.

    `lint_same`: whether `lint_command` printed the same before and after; None when nobody looked. A write that
    may not be carried over clears the stages. Raises Capped when findings are left at the step's cap.
    """
    state = writer.state()
    check_due(state, stage, step)
    tree = writer.tree()
    if tree.head != state.known.head:
        raise Refused("HEAD moved during the step; the delivery commits, not the agents")
    paths = writer.delta(state, tree)
    if not paths and tree.fingerprint != state.known.fingerprint:
        paths = (INDEX,)  # it staged something: no content changed, but the stages stand for another index
    if report.tool_uses == 0:
        if paths:
            raise Refused(f"the agent used no tool, yet {len(paths)} files changed: {', '.join(paths[:5])}")
        outcome = "skipped" if state.discards else "discarded"
        return _record(
            writer, state, stage, step, report.agent, 0, outcome, tree, (), eligible_=False, report=report.raw
        )
    capped = state.step_writes.get(step, 0) >= CAPS[step]
    if paths:
        outcome = "unresolved" if capped or report.criticals else "written"
    else:
        outcome = "unresolved" if report.criticals else "clean"
    lint_ok = lint_same is True or (lint_same is None and not writer.config.lint_command)
    may_carry = (
        outcome == "written"
        and step in FAST_REPLAY_STEPS
        and lint_ok
        and _all_eligible(writer, state, tree, paths)
    )
    result = _record(
        writer, state, stage, step, report.agent, report.tool_uses, outcome, tree, paths,
        eligible_=may_carry, report=report.raw,
    )  # fmt: skip
    if outcome == "unresolved" and (capped or writer.state().step_writes.get(step, 0) > CAPS[step]):
        block(writer, stage, f"{step}: findings or writes are left after {CAPS[step]} rounds")
    return result


def _record(
    writer: Writer, state: State, stage: str, step: str, agent: str, tool_uses: int, outcome: str, tree: Tree,
    paths: tuple[str, ...], *, eligible_: bool, report: bytes,
) -> StepResult:  # fmt: skip
    data = e.StepRecorded(
        writer.fence, stage, step, agent, tool_uses, outcome, tree_struct(tree), list(paths),
        _diff_digest(state, tree, paths) if paths else "", eligible_,
    )  # fmt: skip
    content = entries_content(
        tree, report=report.decode("utf-8"), diff=_diff(writer, state, paths) if eligible_ else ""
    )

    def decide(_now: State) -> Batch:
        batch: Batch = [("stage.step_recorded", data, content)]
        if paths and not eligible_:
            batch.append(
                ("stages.cleared", e.Cleared(writer.fence, f"{step} wrote {len(paths)} files"), None)
            )
        return batch

    writer.record(decide)
    advance(writer)
    return StepResult(outcome, paths, eligible=eligible_)


def _diff_digest(state: State, tree: Tree, paths: tuple[str, ...]) -> str:
    lines = [f"{path}\0{tree.entries.get(path, '')}" for path in paths]
    return digest("\n".join([state.known.fingerprint, *lines]).encode("utf-8", "surrogateescape"))


def _all_eligible(writer: Writer, state: State, tree: Tree, paths: tuple[str, ...]) -> bool:
    """Whether every written file changed in prose or comments only; what was there before must be readable."""
    before = writer.known_entries(state)
    old = contents(writer, state, before, paths)
    if old is None:
        return False
    for path in paths:
        now = tree.entries.get(path)
        then = before.get(path)
        if (
            now == DELETED
            or (now and not now.startswith("100"))
            or (then and then != DELETED and not then.startswith("100"))
        ):
            return False
        if now and then and now.partition(" ")[0] != then.partition(" ")[0]:
            return False
        if not eligible(path, old[path], _read(writer, path)):
            return False
    return True


def _diff(writer: Writer, state: State, paths: tuple[str, ...]) -> str:
    """A unified diff of eligible writes, for the fast replay's reviewer."""
    import difflib

    old = contents(writer, state, writer.known_entries(state), paths) or {}
    lines: list[str] = []
    for path in paths:
        before = (old.get(path) or b"").decode("utf-8").splitlines(keepends=True)
        after = (_read(writer, path) or b"").decode("utf-8").splitlines(keepends=True)
        lines += difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
    return "".join(lines)


def _read(writer: Writer, path: str) -> bytes | None:
    import os

    try:
        with open(os.path.join(os.fsencode(writer.root), unquote_path(path)), "rb") as file:
            return file.read()
    except OSError:
        return None


def contents(
    writer: Writer, state: State, entries: dict[str, str], paths: tuple[str, ...]
) -> dict[str, bytes | None] | None:
    """The known tree's content of each path (None: not there); None when git does not have one of them.

    One `git cat-file --batch`. Dirty content is in git only after `keep_contents`.
    """
    wanted: list[tuple[str, bytes]] = []
    found: dict[str, bytes | None] = {}
    for path in paths:
        value = entries.get(path)
        if value == DELETED:
            found[path] = None
        elif value:
            wanted.append((path, value.rpartition(" ")[2].encode()))
        else:
            raw = unquote_path(path)
            if b"\n" in raw:
                return None
            wanted.append((path, f"{state.known.head}:".encode() + raw))
    out = Git(writer.root).run(
        ["cat-file", "--batch"], input=b"".join(name + b"\n" for _, name in wanted), filters=False
    )
    place = 0
    for path, name in wanted:
        end = out.index(b"\n", place)
        header = out[place:end].split(b" ")
        if header[-1] == b"missing":
            if b":" not in name:
                return None
            found[path] = None
            place = end + 1
            continue
        size = int(header[-1])
        found[path] = out[end + 1 : end + 1 + size]
        place = end + 1 + size + 1
    return found


def keep_contents(writer: Writer, entries: dict[str, str]) -> None:
    """Write the dirty files' blobs into git's object store, so that a step's writes can be judged and taken back."""
    from commands.git import c_quote

    files = [p for p, v in entries.items() if v != DELETED and v.startswith("100")]
    if files:
        listing = "".join(c_quote(unquote_path(p)) + "\n" for p in files).encode("ascii")
        Git(writer.root, trusted_filters=writer.config.trusted_filters).run(
            ["hash-object", "-w", "--stdin-paths"], input=listing
        )
