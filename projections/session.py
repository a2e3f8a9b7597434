"""The session aggregate, `session/<uuid>`: one writer, rounds, the gate, stages that hold for one tree, delivery.

Contract page review-sessions. State, evolve and admission side by side; the event structs are in `session_events`.
"""

from __future__ import annotations

from msgspec import Struct, field

from projections import session_events as e
from projections.authority import admit_signature
from projections.fact import Fact, Law, digest_text
from projections.session_rules import (
    CAPS,
    DRIFT_REASONS,
    ENTRY_POINTS,
    FAST_REPLAY_STEPS,
    GATE_SKIPS,
    OUTCOMES,
    PEOPLE,
    SOURCES,
    STAGES,
    STEPS,
    STOP_POINTS,
    STUCK_AFTER,
    USER_ABORT,
    missing_stage,
)
from projections.session_views import STATES, VIEWS, rows, voided

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

KIND = "session"
FOLD = "session/2"
EVENTS = e.EVENTS
approval_statement = e.approval_statement

__all__ = [
    "EVENTS",
    "FOLD",
    "KIND",
    "STATES",
    "VIEWS",
    "State",
    "admit",
    "approval_statement",
    "evolve",
    "initial",
    "rows",
    "voided",
]

APPROVE, REQUEST_CHANGES, SKIP = "APPROVE", "REQUEST_CHANGES", "SKIP"


class Known(Struct, omit_defaults=True):
    """The tree as the session knows it, and the event whose content lists its entries (0: none)."""

    head: str = ""
    dirty_digest: str = ""
    fingerprint: str = ""
    seq: int = 0


class Lock(Struct, omit_defaults=True):
    """Who holds the session; `seq` of the locking event."""

    nonce: str
    token_digest: str
    attached: bool
    owner_pid: int
    owner_started: str
    boot: str
    namespace: str
    host: str
    stop_after: str
    runtime: str
    handsfree: bool
    seq: int
    clock: int


class Review(Struct, omit_defaults=True):
    """The last valid review of an ordinary round. `standing`: each CRITICAL's digest -> its rounds in a row."""

    verdict: str = ""
    fingerprint: str = ""
    round: int = 0
    standing: dict[str, int] = {}

    @property
    def repeats(self) -> int:
        """For how many rounds in a row one same CRITICAL stood."""
        return max(self.standing.values(), default=0)


class Done(Struct, omit_defaults=True):
    """A round that was reviewed, for the views."""

    round: int
    kind: str
    verdict: str
    criticals: int
    minors: int
    reviewed_at: int


class State(Struct, omit_defaults=True):
    """A session now. `phase`: '' between rounds, started, executed, or failed (two invalid reports).

    `pending`: what a write of 3.5-3.7 still asks for: clear, or carry (the fast replay). `step_writes` counts over
    all replays; `stages` maps each minted stage to the fingerprint it holds for.
    """

    uuid: str = ""
    opened: bool = False
    imported: bool = False
    entry_point: str = ""
    plan_source: str = ""
    pinned: e.Pinned | None = None
    fence: int = 0
    lock: Lock | None = None
    base: Known = field(default_factory=Known)
    verified: Known = field(default_factory=Known)
    known: Known = field(default_factory=Known)
    opened_seq: int = 0
    session_commits: list[str] = []
    stages: dict[str, str] = {}
    blocked_by: str = ""
    blocked_reason: str = ""
    drift: str = ""
    nonces: list[str] = []
    round: int = 0
    phase: str = ""
    kind: str = ""
    executor: bool = False
    started_seq: int = 0
    rejections: dict[str, int] = {}
    review: Review = field(default_factory=Review)
    review_seq: int = 0
    carry_verdict: str = ""
    exec_rounds: int = 0
    convergence: int = 1
    gate_round: int = 0
    gate_verdict: str = ""
    gate_seq: int = 0
    steps: list[str] = []
    discards: int = 0
    step_writes: dict[str, int] = {}
    running: str = ""
    pending: str = ""
    pending_diff: str = ""
    scan: str = ""
    planned: str = ""
    commit: str = ""
    commit_parent: str = ""
    commit_seq: int = 0
    delivered: bool = False
    rounds: list[Done] = []
    last: str = ""
    last_seq: int = 0


def initial(stream: str) -> State:
    """A session that nobody opened."""
    return State(uuid=stream.partition("/")[2])


def evolve(state: State, fact: Fact) -> State:
    """The session after one event."""
    change = _EVOLVE.get(fact.type)
    if change is not None:
        change(state, fact.data, fact)
    state.last, state.last_seq = fact.type, fact.seq
    return state


def _known(tree: e.Tree, seq: int) -> Known:
    return Known(tree.head, tree.dirty_digest, tree.fingerprint, seq)


def _opened(state: State, data: e.Opened, fact: Fact) -> None:
    state.opened, state.opened_seq = True, fact.seq
    state.entry_point, state.plan_source, state.pinned = data.entry_point, data.plan_source, data.pinned
    state.base = state.verified = state.known = _known(data.tree, fact.seq)


def _imported(state: State, data: e.Imported, fact: Fact) -> None:
    state.opened = state.imported = True
    state.opened_seq = fact.seq
    state.entry_point, state.plan_source, state.pinned = data.entry_point, data.plan_source, data.pinned
    # Its trees are in the file; only `baseline.verified` or an accepted drift makes one of them known.
    state.base = Known(head=data.base_head, seq=0)
    state.verified = state.known = Known(head=data.verified_head, seq=0)
    state.session_commits = list(data.session_commits)
    state.round = max(state.round, data.rounds)
    _clear(state)
    state.stages = dict.fromkeys(data.stages, data.tree.fingerprint)
    if "exec" in state.stages:
        # What another tool approved stands for the tree that its file verified, as if reviewed here.
        state.review = Review(APPROVE, data.tree.fingerprint, state.round)
    state.scan = data.tree.fingerprint if "security" in state.stages else ""
    state.blocked_by, state.blocked_reason = data.blocked_by, "imported" if data.blocked_by else ""
    state.phase, state.delivered = "", False


def _locked(state: State, data: e.Locked, fact: Fact) -> None:
    state.fence = data.fence
    if state.phase == "failed":
        state.phase = ""  # somebody took it up again; the round itself stays as it was recorded
    state.lock = Lock(
        data.nonce, data.token_digest, data.attached, data.owner_pid, data.owner_started, data.boot,
        data.namespace, data.host, data.stop_after, data.runtime, data.handsfree, fact.seq, fact.clock,
    )  # fmt: skip


def _released(state: State, _data: object, _fact: Fact) -> None:
    state.lock = None


def _verified(state: State, data: e.Verified, fact: Fact) -> None:
    state.verified = state.known = _known(data.tree, fact.seq)
    if not state.base.seq:
        state.base = state.verified
    state.drift = ""


def _drift_detected(state: State, data: e.DriftDetected, _fact: Fact) -> None:
    state.drift = data.reason


def _drift_accepted(state: State, data: e.DriftAccepted, fact: Fact) -> None:
    state.base = state.verified = state.known = _known(data.tree, fact.seq)
    state.pinned = data.pinned
    if data.nonce:
        state.nonces.append(data.nonce)
    state.drift = ""
    state.exec_rounds = 0
    state.step_writes = {}
    state.phase = ""
    state.delivered = False
    state.commit = state.commit_parent = ""
    _clear(state)
    state.review = Review()


def _drift_aborted(state: State, _data: object, _fact: Fact) -> None:
    state.drift = ""


def _clear(state: State) -> None:
    """No stage holds: a new convergence, with its own gate pass and its own run through the steps."""
    state.stages = {}
    state.convergence += 1
    state.gate_round, state.gate_verdict, state.gate_seq = 0, "", 0
    state.steps, state.discards, state.running, state.planned = [], 0, "", ""
    state.pending = state.pending_diff = state.scan = ""
    state.review = Review(standing=state.review.standing)


def _round_started(state: State, data: e.RoundStarted, fact: Fact) -> None:
    state.round, state.phase, state.kind, state.executor = data.round, "started", data.kind, data.executor
    state.started_seq = fact.seq
    state.rejections = {}
    if data.kind == "exec":
        state.exec_rounds += 1


def _round_executed(state: State, data: e.RoundExecuted, fact: Fact) -> None:
    state.phase = "executed"
    state.known = _known(data.tree, fact.seq)


def _round_reviewed(state: State, data: e.RoundReviewed, fact: Fact) -> None:
    state.phase, state.review_seq = "", fact.seq
    state.rounds.append(
        Done(data.round, state.kind, data.verdict, len(data.criticals), data.minors, fact.clock)
    )
    if state.kind == "carry":
        state.carry_verdict = data.verdict
        return
    standing = {critical: state.review.standing.get(critical, 0) + 1 for critical in data.criticals}
    state.review = Review(data.verdict, data.fingerprint, data.round, standing)


def _round_rejected(state: State, data: e.RoundRejected, _fact: Fact) -> None:
    count = state.rejections.get(data.role, 0) + 1
    state.rejections[data.role] = count
    if count > 1:
        state.phase = "failed"


def _gate_returned(state: State, data: e.GateReturned, fact: Fact) -> None:
    state.gate_round, state.gate_verdict, state.gate_seq = state.round, data.verdict, fact.seq


def _step_recorded(state: State, data: e.StepRecorded, fact: Fact) -> None:
    state.running = data.step if data.outcome == "started" else ""
    if data.outcome == "started":
        return
    if data.outcome == "discarded":
        state.discards += 1
        return
    state.discards = 0
    if data.outcome != "unresolved":
        state.steps.append(data.step)
    if data.paths or data.outcome == "unresolved":
        state.step_writes[data.step] = state.step_writes.get(data.step, 0) + 1
    if data.paths:
        state.known = _known(data.tree, fact.seq)
        state.pending = "carry" if data.eligible else "clear"
        state.pending_diff = data.diff_digest


def _minted(state: State, data: e.Minted, _fact: Fact) -> None:
    state.stages[data.stage] = data.fingerprint


def _carried(state: State, data: e.Carried, _fact: Fact) -> None:
    state.stages = dict.fromkeys(state.stages, data.new)
    state.review.fingerprint = data.new
    state.pending = state.pending_diff = state.carry_verdict = ""


def _cleared(state: State, _data: object, _fact: Fact) -> None:
    _clear(state)


def _scanned(state: State, data: e.Scanned, fact: Fact) -> None:
    state.planned = data.planned
    if data.outcome == "clean":
        state.scan = data.tree.fingerprint
    elif data.outcome == "written":
        state.known = _known(data.tree, fact.seq)
        state.pending = "clear"
        state.step_writes["security"] = state.step_writes.get("security", 0) + 1


def _blocked(state: State, data: e.Blocked, _fact: Fact) -> None:
    state.blocked_by, state.blocked_reason = data.by, data.reason


def _unblocked(state: State, data: e.Unblocked, _fact: Fact) -> None:
    state.blocked_by = state.blocked_reason = ""
    if data.answered_by in PEOPLE:
        # The user looked at it: a failed round may be run again, and the limits count anew.
        state.exec_rounds, state.step_writes = 0, {}
        state.review.standing = {}
        if state.phase == "failed":
            state.phase = ""


def _committed(state: State, data: e.Committed, fact: Fact) -> None:
    state.commit, state.commit_parent, state.commit_seq = data.sha, data.parent, fact.seq
    state.session_commits.append(data.sha)


def _completed(state: State, _data: object, _fact: Fact) -> None:
    state.delivered = True


_EVOLVE: dict[str, Callable[[State, Any, Fact], None]] = {
    "session.opened": _opened,
    "session.imported": _imported,
    "session.locked": _locked,
    "session.unlocked": _released,
    "session.lock_recovered": _released,
    "baseline.verified": _verified,
    "drift.detected": _drift_detected,
    "drift.accepted": _drift_accepted,
    "drift.aborted": _drift_aborted,
    "round.started": _round_started,
    "round.executed": _round_executed,
    "round.reviewed": _round_reviewed,
    "round.rejected": _round_rejected,
    "gate.returned": _gate_returned,
    "stage.step_recorded": _step_recorded,
    "stage.minted": _minted,
    "stages.carried": _carried,
    "stages.cleared": _cleared,
    "security.scanned": _scanned,
    "delivery.blocked": _blocked,
    "delivery.unblocked": _unblocked,
    "commit.recorded": _committed,
    "delivery.completed": _completed,
}


# --- admission: what may follow --------------------------------------------------------------------------


def admit(state: State, fact: Fact, law: Law) -> None:
    """Judge one event against the session before it."""
    data = fact.data
    if fact.type == "session.locked":
        _admit_locked(state, data, fact, law)
        return
    if data.fence != state.fence:
        law.refuse(fact, "an older fencing number", f"fence {data.fence}, the session is at {state.fence}")
    if fact.type == "session.lock_recovered":
        if state.lock is None:
            law.refuse(fact, "there is no lock to recover")
        _answered(data.answered_by, (*PEOPLE, "crashed-claim"), fact, law)
        return
    if state.lock is None or law.is_void(state.lock.seq):
        law.refuse(fact, "the session is not locked")
    if fact.type in ("session.opened", "session.imported"):
        _admit_beginning(state, data, fact, law)
        return
    if fact.type == "session.unlocked":
        return
    if not state.opened:
        law.refuse(fact, "the session was not opened")
    _ADMIT[fact.type](state, data, fact, law)


def _admit_locked(state: State, data: e.Locked, fact: Fact, law: Law) -> None:
    if data.uuid != state.uuid:
        law.refuse(fact, "the uuid is not the stream's")
    if state.lock is not None and not law.is_void(state.lock.seq):
        law.refuse(fact, "the session is locked already")
    if data.fence != state.fence + 1:
        law.refuse(fact, "the fencing number must rise by one")
    if data.stop_after not in STOP_POINTS or data.entry_point not in ENTRY_POINTS:
        law.refuse(fact, "unknown stop point or entry point")
    digest_text(data.token_digest, fact)


def _admit_beginning(state: State, data: e.Opened | e.Imported, fact: Fact, law: Law) -> None:
    if data.uuid != state.uuid:
        law.refuse(fact, "the uuid is not the stream's")
    if data.plan_source not in SOURCES or data.entry_point not in ENTRY_POINTS:
        law.refuse(fact, "unknown plan source or entry point")
    _check_tree(data.tree, fact)
    if isinstance(data, e.Opened):
        if state.opened:
            law.refuse(fact, "the session was opened already")
        return
    if data.stages != list(STAGES[: len(data.stages)]):
        law.refuse(fact, "the imported stages are not a beginning of the sequence")
    if data.missing and data.stages:
        law.refuse(fact, "a file without its baseline has no stages")
    if data.blocked_by not in ("", *STAGES, USER_ABORT):
        law.refuse(fact, "unknown block")
    digest_text(data.file_digest, fact)


def _check_tree(tree: e.Tree, fact: Fact) -> None:
    digest_text(tree.dirty_digest, fact)
    digest_text(tree.fingerprint, fact)


def _answered(by: str, known: tuple[str, ...], fact: Fact, law: Law) -> None:
    if by not in known:
        law.refuse(fact, "unknown answer")


def _admit_cleared(state: State, _data: object, fact: Fact, law: Law) -> None:
    # Without this a cleared nothing would begin a convergence, and with it a second pass of the gate.
    _no_open_question(state, fact, law)
    if state.phase in ("started", "executed"):
        law.refuse(fact, "a round is running")
    if not state.stages and not state.pending:
        law.refuse(fact, "there is no stage and no write to clear")


def _admit_verified(state: State, data: e.Verified, fact: Fact, law: Law) -> None:
    _check_tree(data.tree, fact)
    if state.drift:
        law.refuse(fact, "drift was found and not answered")


def _admit_drift(state: State, data: e.DriftDetected, fact: Fact, law: Law) -> None:
    del state
    if data.reason not in DRIFT_REASONS:
        law.refuse(fact, "unknown reason")


def _admit_answer(state: State, data: e.DriftAccepted | e.DriftAborted, fact: Fact, law: Law) -> None:
    if not state.drift or state.drift != data.reason:
        law.refuse(fact, "this drift was not found")
    if isinstance(data, e.DriftAccepted):
        _check_tree(data.tree, fact)
        _answered(data.answered_by, ("signature",) if data.signature else PEOPLE, fact, law)
        if data.nonce and data.nonce in state.nonces:
            law.refuse(fact, "the nonce was used before")
        admit_signature(fact, law, data.nonce, data.expires_at, data.principal, data.signature)


def _admit_round_started(state: State, data: e.RoundStarted, fact: Fact, law: Law) -> None:
    _no_open_question(state, fact, law)
    if state.phase not in ("", "failed"):
        law.refuse(fact, "a round is running already")
    if data.round != state.round + 1:
        law.refuse(fact, "rounds are counted one by one")
    if data.plan_source != state.plan_source or data.block != state.plan_source:
        law.refuse(fact, "the prompt block is not the one of the plan's source")
    if data.tree.fingerprint != state.known.fingerprint or data.tree.head != state.known.head:
        law.refuse(fact, "the tree is not the one last known")
    digest_text(data.prompt_digest, fact)
    if data.kind == "carry":
        if state.pending != "carry" or data.executor:
            law.refuse(fact, "a fast replay has no executor and follows an eligible write")
        if state.rounds and (state.rounds[-1].kind, state.rounds[-1].verdict) == ("carry", REQUEST_CHANGES):
            law.refuse(fact, "the fast replay's reviewer asked for changes: all is cleared")
        return
    if data.kind != "exec":
        law.refuse(fact, "unknown kind of round")
    if state.stages or state.pending:
        law.refuse(fact, "an executor round clears the stages first")
    if data.executor == (state.plan_source == "review-only" and state.round == 0):
        law.refuse(fact, "only the first round of a review-only session has no executor")
    why = exec_cap(state)
    if why:
        law.refuse(fact, "the execution loop is at its cap", why)


def _admit_report(
    state: State, data: e.RoundExecuted | e.RoundReviewed | e.RoundRejected, fact: Fact, law: Law
) -> None:
    role = "executor" if isinstance(data, e.RoundExecuted) else "reviewer"
    if isinstance(data, e.RoundRejected):
        role = data.role
        if role not in ("executor", "reviewer"):
            law.refuse(fact, "unknown role")
    wanted = "started" if role == "executor" or not state.executor else "executed"
    if data.round != state.round or state.phase != wanted or (role == "executor" and not state.executor):
        law.refuse(fact, "this report is not due now", f"the round waits for {due(state) or 'nothing'}")
    if data.attempt != state.rejections.get(role, 0) + 1:
        law.refuse(fact, "attempts are counted one by one")
    digest_text(data.report_digest, fact)
    if isinstance(data, e.RoundExecuted):
        _check_tree(data.tree, fact)
        if data.tree.head != state.known.head:
            law.refuse(fact, "the executor moved HEAD")
        if data.noop != (data.delta_count == 0):
            law.refuse(fact, "a no-op has an empty delta, anything else has not")
        if data.noop != (data.tree.dirty_digest == state.known.dirty_digest):
            law.refuse(fact, "the delta is not what the trees say")
    elif isinstance(data, e.RoundReviewed):
        if data.fingerprint != state.known.fingerprint:
            law.refuse(fact, "the tree changed since the round's last known state")
        if data.verdict != (REQUEST_CHANGES if data.criticals else APPROVE):
            law.refuse(fact, "the verdict does not fit its findings")


def due(state: State) -> str:
    """The role whose report the running round waits for, or ''."""
    if state.phase == "started":
        return "executor" if state.executor else "reviewer"
    return "reviewer" if state.phase == "executed" else ""


def repair_needed(state: State) -> bool:
    """Whether CRITICAL findings, a reviewer's or the gate's, are left."""
    if state.review.verdict == REQUEST_CHANGES:
        return True
    return state.gate_verdict == REQUEST_CHANGES and state.review.round <= state.gate_round


def exec_cap(state: State) -> str | None:
    """Why the execution loop may not go on by itself; None when it may."""
    if not repair_needed(state):
        return None
    if state.review.verdict == REQUEST_CHANGES and state.review.repeats >= STUCK_AFTER:
        return f"the same CRITICAL finding stood in {state.review.repeats} rounds in a row"
    limit = state.pinned.soft_limit_exec if state.pinned is not None else 3
    if state.exec_rounds >= limit:
        return f"{state.exec_rounds} rounds and CRITICAL findings left (soft_limit_exec: {limit})"
    return None


def _no_open_question(state: State, fact: Fact, law: Law) -> None:
    if state.drift:
        law.refuse(fact, "drift was found and not answered")
    if state.blocked_by:
        law.refuse(
            fact, "delivery is blocked", f"delivery is blocked by {state.blocked_by}; resume with --continue"
        )
    if state.delivered:
        law.refuse(fact, "the session is delivered")


def _admit_gate(state: State, data: e.GateReturned, fact: Fact, law: Law) -> None:
    _no_open_question(state, fact, law)
    if state.phase or state.review.verdict != APPROVE:
        law.refuse(fact, "the gate follows a reviewer's APPROVE")
    if state.gate_round or data.convergence != state.convergence:
        law.refuse(fact, "the gate runs once in a convergence")
    if not data.fingerprint == state.review.fingerprint == state.known.fingerprint:
        law.refuse(fact, "the tree is not the one that was approved")
    if data.verdict not in (APPROVE, REQUEST_CHANGES, SKIP) or bool(data.reason) != (data.verdict == SKIP):
        law.refuse(fact, "unknown verdict, or a SKIP without a reason")
    if data.reason not in ("", *GATE_SKIPS):
        law.refuse(fact, "unknown reason to skip the gate")
    digest_text(data.text_digest, fact)


def _admit_minted(state: State, data: e.Minted, fact: Fact, law: Law) -> None:
    _no_open_question(state, fact, law)
    if data.stage not in STAGES or list(state.stages) != list(STAGES[: STAGES.index(data.stage)]):
        law.refuse(fact, "stages are minted in order, each once")
    if state.phase or state.pending:
        law.refuse(fact, "a round or a write is not settled")
    if any(kept != data.fingerprint for kept in state.stages.values()):
        law.refuse(fact, "the kept stages hold for another tree")
    if data.fingerprint != state.known.fingerprint:
        law.refuse(fact, "the tree is not the one last known")
    why = may_mint(state, data.stage, data.fingerprint)
    if why:
        law.refuse(fact, why)


def may_mint(state: State, stage: str, fingerprint: str) -> str | None:
    """Why a stage may not be minted for this tree; None when it may."""
    if stage == "exec":
        if state.review.verdict != APPROVE or state.review.fingerprint != fingerprint:
            return "no reviewer approved this tree"
        if not state.gate_round:
            return "the gate has not run in this convergence"
        if state.gate_verdict == REQUEST_CHANGES and state.review.round <= state.gate_round:
            return "the gate's findings were not repaired and approved"
        return None
    if stage == "security":
        return None if state.scan == fingerprint else "no clean scan of this tree"
    if stage == "polish" and state.pinned is not None and state.pinned.skip_quality_polish:
        return None
    left = [step for step in STEPS[stage] if step not in state.steps]
    return f"the sequence is not complete: {left[0]}" if left else None


def _admit_step(state: State, data: e.StepRecorded, fact: Fact, law: Law) -> None:
    _no_open_question(state, fact, law)
    if data.stage not in STEPS or list(state.stages) != list(STAGES[: STAGES.index(data.stage)]):
        law.refuse(fact, "this stage is not due")
    if state.pending:
        law.refuse(fact, "an earlier write is not settled")
    if data.step != next_step(state, data.stage):
        law.refuse(fact, "the steps come in order", f"the next step is {next_step(state, data.stage)}")
    if data.outcome not in OUTCOMES:
        law.refuse(fact, "unknown outcome")
    wrote = bool(data.paths)
    if wrote != (data.tree.fingerprint != state.known.fingerprint):
        law.refuse(fact, "the written paths do not fit the tree")
    if (data.outcome == "written") != wrote and data.outcome != "unresolved":
        law.refuse(fact, "only a step that wrote names paths")
    if wrote and state.step_writes.get(data.step, 0) >= CAPS[data.step] and data.outcome != "unresolved":
        law.refuse(fact, "the step's cap is reached")
    if data.eligible and (not wrote or data.step not in FAST_REPLAY_STEPS):
        law.refuse(fact, "only a write of simplify or docs can be eligible")
    if data.tool_uses == 0 and data.outcome not in ("started", "discarded", "skipped"):
        law.refuse(fact, "an agent that used no tool proves nothing")
    if data.tool_uses < 0 or (data.tool_uses and data.outcome in ("started", "discarded", "skipped")):
        law.refuse(fact, "such an outcome is of no agent's work")
    if data.outcome == "discarded" and state.discards:
        law.refuse(fact, "a report is discarded once, then the step is skipped")
    if data.outcome == "reverted" and data.step != "simplify":
        law.refuse(fact, "only simplify is taken back")
    if wrote:
        digest_text(data.diff_digest, fact)


def next_step(state: State, stage: str) -> str | None:
    """The step of 3.5 or 3.6 that is due; None when the sequence is complete."""
    return next((step for step in STEPS[stage] if step not in state.steps), None)


def _admit_carried(state: State, data: e.Carried, fact: Fact, law: Law) -> None:
    if state.last != "round.reviewed" or state.carry_verdict != APPROVE or state.pending != "carry":
        law.refuse(fact, "only a fast replay's APPROVE, directly before, carries the stages over")
    if data.review != state.review_seq or data.diff_digest != state.pending_diff:
        law.refuse(fact, "the review or the diff is another")
    if data.new != state.known.fingerprint or any(kept != data.old for kept in state.stages.values()):
        law.refuse(fact, "the trees are not those of the write")


def _admit_scanned(state: State, data: e.Scanned, fact: Fact, law: Law) -> None:
    _no_open_question(state, fact, law)
    if list(state.stages) != list(STAGES[:3]) or state.pending:
        law.refuse(fact, "the security scan follows docs")
    if state.scan == data.tree.fingerprint:
        law.refuse(fact, "this tree was scanned already")
    _check_tree(data.tree, fact)
    changed = data.tree.fingerprint != state.known.fingerprint
    if data.outcome not in ("clean", "halted", "planned", "written") or changed != (
        data.outcome == "written"
    ):
        law.refuse(fact, "the outcome does not fit the tree")
    if bool(data.planned) != (data.outcome == "planned"):
        law.refuse(fact, "a plan names what it will write")
    if data.outcome == "planned" and state.step_writes.get("security", 0) >= CAPS["security"]:
        law.refuse(fact, "the step's cap is reached")
    if data.outcome == "written" and not state.planned:
        law.refuse(fact, "nothing was planned to be written")
    if (data.outcome == "halted") != (data.flagged > 0):
        law.refuse(fact, "tracked secrets halt")


def _admit_blocked(state: State, data: e.Blocked, fact: Fact, law: Law) -> None:
    if data.by not in (*STAGES, USER_ABORT):
        law.refuse(fact, "unknown block")
    if state.delivered:
        law.refuse(fact, "the session is delivered")


def _admit_unblocked(state: State, data: e.Unblocked, fact: Fact, law: Law) -> None:
    if not state.blocked_by or state.blocked_by != data.was:
        law.refuse(fact, "nothing is blocked by that")
    _answered(data.answered_by, (*PEOPLE, "stop-after", "delivery"), fact, law)


def _admit_committed(state: State, data: e.Committed, fact: Fact, law: Law) -> None:
    _no_open_question(state, fact, law)
    if state.commit:
        law.refuse(fact, "the session committed already")
    if data.count < 1:
        law.refuse(fact, "nothing listed is no commit")
    if missing_stage(state.stages, data.tree.fingerprint) is not None or data.parent != state.known.head:
        law.refuse(fact, "the stages do not stand for this tree")


def _admit_completed(state: State, data: e.Completed, fact: Fact, law: Law) -> None:
    _no_open_question(state, fact, law)
    if missing_stage(state.stages, data.fingerprint) is not None:
        law.refuse(fact, "the stages do not stand for this tree")
    digest_text(data.summary_digest, fact)


def _admit_stopped(state: State, data: e.Stopped, fact: Fact, law: Law) -> None:
    if state.lock is None or data.point != state.lock.stop_after or data.point not in STOP_POINTS[:-1]:
        law.refuse(fact, "the stop point is not the lock's")
    # Before polish, docs, security, delivery: one stage more each. After a round: none is running.
    if state.phase or state.delivered or len(state.stages) < STOP_POINTS.index(data.point):
        law.refuse(fact, "the stop point is not reached")


_ADMIT: dict[str, Callable[[State, Any, Fact, Law], None]] = {
    "session.stopped": _admit_stopped,
    "baseline.verified": _admit_verified,
    "drift.detected": _admit_drift,
    "drift.accepted": _admit_answer,
    "drift.aborted": _admit_answer,
    "round.started": _admit_round_started,
    "round.executed": _admit_report,
    "round.reviewed": _admit_report,
    "round.rejected": _admit_report,
    "gate.returned": _admit_gate,
    "stage.step_recorded": _admit_step,
    "stage.minted": _admit_minted,
    "stages.carried": _admit_carried,
    "stages.cleared": _admit_cleared,
    "security.scanned": _admit_scanned,
    "delivery.blocked": _admit_blocked,
    "delivery.unblocked": _admit_unblocked,
    "commit.recorded": _admit_committed,
    "delivery.completed": _admit_completed,
}
