"""Rounds: start, executor's report, reviewer's report, the gate's verdict (contract `review-sessions`, Rounds and Gate)."""

from __future__ import annotations

import os
import sys

from commands.sessions.advance import advance
from commands.sessions.progress import next_action
from commands.sessions.prompts import executor_prompt, reviewer_prompt
from commands.sessions.reports import check_executor, check_reviewer, reviewer_issues
from commands.sessions.view import content_of, foreign_change, session_path, write_view
from commands.sessions.writer import digest, encode_json, entries_content, tree_struct
from ledger.errors import Refused
from projections import session_events as e
from projections.session import APPROVE, REQUEST_CHANGES, SKIP, due, exec_cap, repair_needed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from msgspec import Struct

    from commands.sessions.reports import Issue, Judgement
    from commands.sessions.tree import Tree
    from commands.sessions.writer import Writer
    from projections.session import State

    Batch = list[tuple[str, Struct, bytes | None]]

SESSION_FILES_CHANGED = "session-files-changed"
HEAD_MOVED = "head-moved"


class Capped(Refused):
    """A stage's limit was reached with findings left: it is not minted, delivery is blocked by it (exit 4)."""

    def __init__(self, stage: str, why: str) -> None:
        super().__init__(
            f"stuck at {stage}: {why}. Delivery is blocked by {stage}; look at it, then resume with --continue"
        )
        self.stage = stage
        self.why = why


def start_round(writer: Writer, *, kind: str = "exec", scope: str = "") -> dict[str, object]:
    """Begin the next round and write its prompts; what to run and where the prompts lie.

    An executor round clears the stages. Raises Refused while a report is due, or when the tree drifted.
    """
    state = writer.state()
    role = due(state)
    if role:
        prompt = _standing_prompt(writer, state, role)
        raise Refused(
            f"round {state.round} is running and waits for the {role}'s report; its prompt is {prompt}"
        )
    tree = writer.require_known_tree(state)
    number = state.round + 1
    first_review_only = state.plan_source == "review-only" and number == 1
    executor = kind == "exec" and not first_review_only
    path = session_path(writer.root, writer.uuid)
    prompts = {
        "executor": executor_prompt(path, source=state.plan_source, number=number, feedback=findings_text(writer, state)) if executor else "",
        "reviewer": reviewer_prompt(
            path, source=state.plan_source, number=number, config=writer.config,
            previous="" if scope else findings_text(writer, state), scope=scope,
        ),
    }  # fmt: skip
    started = e.RoundStarted(
        writer.fence, number, kind, executor, state.plan_source, state.plan_source,
        digest(prompts["reviewer"].encode()), tree_struct(tree), model=writer.config.model,
    )  # fmt: skip

    def decide(now: State) -> Batch:
        batch: Batch = []
        if now.known.fingerprint != tree.fingerprint or now.known.head != tree.head:
            batch.append(writer.verified(tree))
        if kind == "exec" and (now.stages or now.pending):
            batch.append(("stages.cleared", e.Cleared(writer.fence, "a new executor round"), None))
        return [*batch, ("round.started", started, encode_json(prompts))]

    writer.record(decide)
    files = write_prompts(writer, number, prompts)
    return {
        "round": number,
        "kind": kind,
        "executor": executor,
        "model": writer.config.model or None,
        "prompts": files,
    }


def _prompt_path(writer: Writer, number: int, role: str) -> str:
    return os.path.join(writer.root, ".review-loop", "tmp", f"{writer.uuid}-round-{number}-{role}.txt")


def _standing_prompt(writer: Writer, state: State, role: str) -> str:
    """Where the running round's prompt for `role` lies; one that a crash or a full disk lost is written again, from the log."""
    path = _prompt_path(writer, state.round, role)
    if not os.path.lexists(path):
        write_prompts(writer, state.round, round_prompts(writer, state))
    return path


def write_prompts(writer: Writer, number: int, prompts: dict[str, str]) -> dict[str, str]:
    """Write a round's prompts under `.review-loop/tmp/`; role -> path."""
    from ledger.files import write_whole

    folder = os.path.join(writer.root, ".review-loop", "tmp")
    if os.path.islink(folder):
        raise Refused(".review-loop/tmp is a symbolic link: make it a real directory")
    os.makedirs(folder, exist_ok=True)
    found = {}
    for role, text in prompts.items():
        if text:
            found[role] = _prompt_path(writer, number, role)
            write_whole(found[role], text.encode(), mode=0o644)
    return found


def round_prompts(writer: Writer, state: State) -> dict[str, str]:
    """The running round's prompts, from the log."""
    from projections.engine import fact_of

    event = writer.ledger.store.reader().event(state.started_seq)
    assert event is not None
    return {
        role: str(text) for role, text in content_of(fact_of(event, writer.ledger.store.artifact)).items()
    }


def findings_text(writer: Writer, state: State) -> str:
    """The findings that the next round has to resolve: the gate's when it asked for changes, else the reviewer's."""
    if not repair_needed(state):
        return ""
    from_gate = state.review.verdict == APPROVE
    seq = state.gate_seq if from_gate else state.review_seq
    event = writer.ledger.store.reader().event(seq)
    if event is None:
        return ""
    text = (writer.ledger.store.artifact(event) or b"").decode("utf-8")
    if from_gate:
        return text.partition("### Issues\n")[2].partition("\n### Advisory")[0].strip()
    return "\n".join(line for issue in reviewer_issues(text) for line in issue.lines)


def executed(writer: Writer, report: bytes) -> Judgement:
    """Judge the executor's report against the round's own delta and record it, valid or not."""
    state = writer.state()
    if due(state) != "executor":
        raise Refused(f"no executor report is due; next: {next_action(state)}")
    attempt = state.rejections.get("executor", 0) + 1
    tree = writer.tree()
    judgement = _round_judgement(writer, state, tree, report)
    if not judgement.valid:
        _reject(writer, state, "executor", attempt, judgement, report)
        return judgement
    delta = writer.delta(state, tree)
    data = e.RoundExecuted(
        writer.fence, state.round, attempt, digest(report), len(report), digest("\n".join(delta).encode()), len(delta),
        bool(judgement.noop), tree_struct(tree),
    )  # fmt: skip
    content = entries_content(tree, report=report.decode("utf-8"), paths=list(judgement.paths))
    writer.record(lambda _state: [("round.executed", data, content)])
    return judgement


def _round_judgement(writer: Writer, state: State, tree: Tree, report: bytes) -> Judgement:
    from commands.sessions.reports import Judgement as Judged

    changed = foreign_change(writer.ledger, writer.root, writer.uuid)
    if changed:
        write_view(writer.ledger, writer.root, writer.uuid)
        return Judged(
            SESSION_FILES_CHANGED,
            f"the round changed the session file ({changed}); it was written again",
            noop=False,
        )
    if tree.head != state.known.head:
        return Judged(
            HEAD_MOVED,
            f"HEAD moved from {state.known.head[:12]}; the delivery commits, not the executor",
            noop=False,
        )
    return check_executor(report.decode("utf-8"), writer.delta(state, tree))


def reject_round(writer: Writer, role: str, reason: str, detail: str, report: bytes = b"") -> Judgement:
    """Record that a round's program counts for nothing."""
    from commands.sessions.reports import Judgement as Judged

    state = writer.state()
    judgement = Judged(reason, detail)
    _reject(writer, state, role, state.rejections.get(role, 0) + 1, judgement, report)
    return judgement


def _reject(
    writer: Writer, state: State, role: str, attempt: int, judgement: Judgement, report: bytes
) -> None:
    data = e.RoundRejected(writer.fence, state.round, role, attempt, str(judgement.reason), digest(report))
    writer.record(lambda _state: [("round.rejected", data, report or None)])


def reviewed(writer: Writer, report: bytes) -> Judgement:
    """Judge the reviewer's report and record it; an APPROVE after the gate's findings mints exec with it.

    Raises:
        Capped: CRITICAL findings are left and a limit is reached; the block is recorded.
    """
    state = writer.state()
    if due(state) != "reviewer":
        raise Refused(f"no reviewer report is due; next: {next_action(state)}")
    attempt = state.rejections.get("reviewer", 0) + 1
    changed = foreign_change(writer.ledger, writer.root, writer.uuid)
    if changed:
        write_view(writer.ledger, writer.root, writer.uuid)
        return reject_round(
            writer, "reviewer", SESSION_FILES_CHANGED, f"the review changed the session file ({changed})"
        )
    tree = writer.require_known_tree(state)
    judgement = check_reviewer(report.decode("utf-8"))
    if not judgement.valid:
        _reject(writer, state, "reviewer", attempt, judgement, report)
        return judgement
    criticals = sorted({_issue_digest(issue) for issue in judgement.issues if issue.severity == "CRITICAL"})
    data = e.RoundReviewed(
        writer.fence, state.round, attempt, digest(report), len(report), str(judgement.verdict), tree.fingerprint,
        criticals, sum(issue.severity == "MINOR" for issue in judgement.issues),
    )  # fmt: skip

    def decide(now: State) -> Batch:
        batch: Batch = [("round.reviewed", data, report)]
        if now.kind == "carry":
            return batch + _after_carry(writer, now, tree, judgement)
        if judgement.verdict == APPROVE and now.gate_verdict == REQUEST_CHANGES:
            batch.append(("stage.minted", e.Minted(writer.fence, "exec", tree.fingerprint, "reviewer"), None))
        return batch

    writer.record(decide)
    after = writer.state()
    if after.pending == "carry" and after.carry_verdict == APPROVE:
        _carry(writer, after)
    advance(writer)
    return judgement


def _after_carry(writer: Writer, state: State, tree: Tree, judgement: Judgement) -> Batch:
    """A fast replay's REQUEST_CHANGES clears all at once; its APPROVE is carried by an event that names its seq."""
    del state, tree
    if judgement.verdict == APPROVE:
        return []
    return [("stages.cleared", e.Cleared(writer.fence, "the fast replay's reviewer asked for changes"), None)]


def _carry(writer: Writer, state: State) -> None:
    """Carry the stages over to the written tree. Crash before this: the fast replay is reviewed again."""
    old = next(iter(state.stages.values()), "")
    data = e.Carried(writer.fence, old, state.known.fingerprint, state.pending_diff, state.review_seq)
    writer.record(lambda _state: [("stages.carried", data, None)])


def _issue_digest(issue: Issue) -> str:
    """A finding's identity from round to round: its words without numbers, so that moved lines do not hide it."""
    words = "".join(c if c.isalpha() else " " for c in issue.title.lower()).split()
    return digest(" ".join(words).encode())[:16]


def stop_at_exec_cap(writer: Writer) -> None:
    """Record and raise when the execution loop reached a limit with findings left; a person at a terminal may go on."""
    state = writer.state()
    why = exec_cap(state)
    if why is None:
        return
    from commands.sessions.request import ask

    lock = state.lock
    handsfree = lock is None or lock.handsfree
    if not handsfree and ask(f"{why}. Go on with more rounds?", ("y", "n")) == "y":
        writer.tell("delivery.blocked", e.Blocked(writer.fence, "exec", "round limit"))
        writer.tell("delivery.unblocked", e.Unblocked(writer.fence, "exec", "person"))
        return
    block(writer, "exec", why)


def block(writer: Writer, stage: str, why: str) -> None:
    """A cap: the baseline becomes the current state, delivery is blocked by `stage`; raises Capped."""
    tree = writer.tree()
    blocked = e.Blocked(writer.fence, stage, why[:200])
    findings = findings_text(writer, writer.state())
    writer.record(lambda _state: [writer.verified(tree), ("delivery.blocked", blocked, None)])
    sys.stderr.write(stuck_summary(writer, stage, why, findings))
    raise Capped(stage, why)


def stuck_summary(writer: Writer, stage: str, why: str, findings: str) -> str:
    """What a person reads when a session is stuck: where, why, what is left, what stands."""
    state = writer.state()
    lines = [f"stuck: session {writer.uuid} at {stage}, round {state.round}", f"  why: {why}"]
    lines.append(f"  stages minted: {', '.join(state.stages) or 'none'}")
    if findings:
        lines += ["  left:", *(f"    {line}" for line in findings.split("\n"))]
    return "\n".join(lines) + "\n"


def record_gate(writer: Writer, verdict: str, text: str, reason: str = "") -> str:
    """Record the one gate pass; APPROVE and SKIP mint exec. Returns what is next."""
    state = writer.state()
    if next_action(state) != "gate":
        raise Refused(f"the gate is not due; next: {next_action(state)}")
    tree = writer.require_known_tree(state)
    data = e.GateReturned(
        writer.fence, state.convergence, verdict, tree.fingerprint, digest(text.encode()), reason=reason
    )  # fmt: skip

    def decide(_state: State) -> Batch:
        batch: Batch = [("gate.returned", data, text.encode())]
        if verdict in (APPROVE, SKIP):
            batch.append(("stage.minted", e.Minted(writer.fence, "exec", tree.fingerprint, "gate"), None))
        return batch

    writer.record(decide)
    return next_action(advance(writer))


def live_line(writer: Writer, what: str) -> str:
    """The one line that follows each round."""
    state = writer.state()
    stages = ",".join(state.stages) or "none"
    return (
        f"session {writer.uuid[:8]} round {state.round}: {what}; stages: {stages}; next: {next_action(state)}"
    )
