"""What a session needs next, and when it has to stop: pure functions of its state (contract, Rounds, Stages)."""

from __future__ import annotations

from projections import lean  # noqa: F401 - before msgspec
from projections.session import APPROVE, REQUEST_CHANGES, due, next_step
from projections.session_rules import STAGES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from projections.session import State

# The driver's parts after the execution loop, and the stop point that lies before each.
_PARTS = ("polish", "docs", "security", "delivery")
_STOPS = ("before-polish", "before-docs", "before-security", "before-delivery")


def next_action(state: State) -> str:
    """`executor`, `reviewer` (reports that are due), `round`, `carry`, `clear`, `gate`, `mint STAGE`, `polish STEP`,
    `docs STEP`, `security`, `delivery`, `blocked`, `failed` or `done`.
    """  # noqa: D205 -- the list is the summary
    if state.delivered:
        return "done"
    if state.blocked_by:
        return "blocked"
    if state.phase == "failed":
        return "failed"
    if due(state):
        return due(state)
    if state.pending == "carry":
        return "clear" if state.carry_verdict == REQUEST_CHANGES else "carry"
    if state.pending == "clear":
        return "clear"
    if "exec" not in state.stages:
        return _before_exec(state)
    return _after_exec(state)


def _before_exec(state: State) -> str:
    if state.review.verdict != APPROVE or state.review.fingerprint != state.known.fingerprint:
        return "round"
    if not state.gate_round:
        return "gate"
    if state.gate_verdict == REQUEST_CHANGES and state.review.round <= state.gate_round:
        return "round"
    return "mint exec"


def _after_exec(state: State) -> str:
    if len(state.stages) < len(STAGES) and any(f != state.known.fingerprint for f in state.stages.values()):
        return "clear"  # no drift of content, but the index: what was minted stands for another one
    for stage in STAGES[1:]:
        if stage in state.stages:
            continue
        if stage == "security":
            return "mint security" if state.scan == state.known.fingerprint else "security"
        if stage == "polish" and state.pinned is not None and state.pinned.skip_quality_polish:
            return "mint polish"
        step = next_step(state, stage)
        return f"{stage} {step}" if step else f"mint {stage}"
    return "delivery"


def stops_here(state: State, stop_after: str) -> bool:
    """Whether a `--stop-after` point is reached at the next action."""
    action = next_action(state)
    word = action.partition(" ")[0]
    if stop_after == "exec-round":
        reviewed = state.lock is not None and state.review_seq > state.lock.seq and not state.phase
        return reviewed or word in (
            "gate",
            "mint",
            "polish",
            "docs",
            "security",
            "delivery",
            "carry",
            "clear",
        )
    if stop_after not in _STOPS:
        return False
    # `mint polish` of a skipped polish, too, comes after the point before it; a point that lies behind stops at once.
    part = action.partition(" ")[2] if word == "mint" else word
    return part in _PARTS and _PARTS.index(part) >= _STOPS.index(stop_after)
