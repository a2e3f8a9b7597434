"""`security scan`: the preflight within a session, and what it means for the stages (contract, Stages and Security)."""

from __future__ import annotations

import os

from commands.git import Git
from commands.sessions.progress import next_action
from commands.sessions.request import ask
from commands.sessions.security import CATEGORIES, flagged_paths, gaps, tracked_matches, with_patterns
from commands.sessions.tree import existing, round_delta
from commands.sessions.view import stream_events
from commands.sessions.writer import entries_content, tree_struct
from ledger.errors import Refused
from projections import session_events as e
from projections.engine import fact_of
from projections.session_rules import CAPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from msgspec import Struct

    from commands.sessions.tree import Tree
    from commands.sessions.writer import Writer
    from projections.session import State


class ScanResult:
    """What a scan found: outcome (clean, written, halted), flagged path -> kind, added and left-open categories."""

    __slots__ = ("added", "flagged", "open", "outcome")

    def __init__(self, outcome: str, flagged: dict[str, str], added: list[str], left: list[str]) -> None:
        self.outcome = outcome
        self.flagged = flagged
        self.added = added
        self.open = left


def scan(writer: Writer) -> ScanResult:
    """Run the preflight and record it; a clean one mints security, a written `.gitignore` clears the stages."""
    state = writer.state()
    if next_action(state) != "security":
        raise Refused(f"the security scan is not due; next: {next_action(state)}")
    writer.require_known_tree(state)
    git = Git(writer.root, trusted_filters=writer.config.trusted_filters)
    flagged = flagged_paths(git)
    if flagged:
        return _record(writer, "halted", flagged, [], [])
    added, left = _choose(writer, git, state)
    if added and state.step_writes.get("security", 0) < CAPS["security"]:
        _write_planned(writer, git, added, left)
        return _record(writer, "written", {}, list(added), left)
    return _record(writer, "clean", {}, [], [*left, *added])


def _write_planned(writer: Writer, git: Git, added: dict[str, tuple[str, ...]], left: list[str]) -> None:
    """Record what `.gitignore` will be, then write it."""
    from ledger.files import write_whole

    content, mode = with_patterns(writer.root, added)
    sha = git.run(["hash-object", "--stdin", "--path=.gitignore"], input=content).decode("ascii").strip()
    value = f"{'100755' if mode & 0o100 else '100644'} {sha}"
    tree = writer.tree()
    planned = e.Scanned(
        writer.fence, "planned", tree_struct(tree), gaps=left, added=list(added), planned=value
    )
    writer.tell("security.scanned", planned, entries_content(tree, flagged={}))
    # Crash here, or right after the write: `finish_planned` finds at the next start which of the two it was.
    write_whole(os.path.join(writer.root, ".gitignore"), content, mode=mode)


def finish_planned(writer: Writer, state: State, tree: Tree) -> bool:
    """Whether a planned `.gitignore` was written before a crash, and nothing else changed; then its record is made."""
    if not state.planned or tree.head != state.known.head or tree.entries.get(".gitignore") != state.planned:
        return False
    known = writer.known_entries(state)
    others = [path for path in round_delta(known, tree.entries) if path != ".gitignore"]
    # Untracked files that the new patterns cover leave the map, but stay where they are.
    if any(path in tree.entries for path in others) or existing(others, writer.root) != others:
        return False
    plans = [event for event in stream_events(writer.ledger, writer.uuid) if event.type == "security.scanned"]
    data = fact_of(plans[-1]).data
    _record(writer, "written", {}, data.added, data.gaps)
    return True


def _choose(writer: Writer, git: Git, state: State) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """The patterns to add, and the categories left open: the starred ones are always asked about."""
    del writer
    missing = gaps(git)
    handsfree = state.lock is None or state.lock.handsfree
    added: dict[str, tuple[str, ...]] = {}
    left: list[str] = []
    for category in CATEGORIES:
        patterns = missing.get(category.name)
        if not patterns:
            continue
        matched = tracked_matches(git, [*patterns, *category.kept])
        if category.ask or matched:
            note = f" (tracked files match: {', '.join(matched[:3])})" if matched else ""
            question = f"add {', '.join(patterns)} to .gitignore?{note}"
            if handsfree or ask(question, ("y", "n")) != "y":
                left.append(category.name)
                continue
        added[category.name] = patterns
    return added, left


def _record(
    writer: Writer, outcome: str, flagged: dict[str, str], added: list[str], left: list[str]
) -> ScanResult:
    tree = writer.tree()
    scanned = e.Scanned(
        writer.fence,
        outcome,
        tree_struct(tree),
        len(flagged),
        sorted(set(flagged.values())),
        left,
        added,
    )
    content = entries_content(tree, flagged=flagged)

    def decide(_state: State) -> list[tuple[str, Struct, bytes | None]]:
        batch: list[tuple[str, Struct, bytes | None]] = [("security.scanned", scanned, content)]
        if outcome == "written":
            batch.append(("stages.cleared", e.Cleared(writer.fence, "the preflight wrote .gitignore"), None))
        elif outcome == "clean":
            batch.append(("stage.minted", e.Minted(writer.fence, "security", tree.fingerprint, "scan"), None))
        else:
            blocked = e.Blocked(writer.fence, "security", f"{len(flagged)} tracked files look like secrets")
            batch += [writer.verified(tree), ("delivery.blocked", blocked, None)]
        return batch

    writer.record(decide)
    return ScanResult(outcome, flagged, added, left)


def halt_text(flagged: dict[str, str]) -> str:
    """What a halted scan says: each path, and how to untrack it."""
    shown = ", ".join(f"[CRITICAL] {path} ({kind})" for path, kind in list(flagged.items())[:20])
    return f"tracked files look like secrets: {shown}; run `git rm --cached PATH` for each and add it to .gitignore"
