"""What follows by itself from what is recorded: stages whose conditions hold are minted, unsettled writes clear them."""

from __future__ import annotations

from commands.sessions.progress import next_action, stops_here
from projections import session_events as e
from projections.session import REQUEST_CHANGES, next_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.writer import Writer
    from projections.session import State


def advance(writer: Writer) -> State:
    """Mint and clear until something is due that needs an agent, or the stop point is reached; the state then."""
    while True:
        state = writer.state()
        word, _, stage = next_action(state).partition(" ")
        if word not in ("mint", "clear") or (
            state.lock is not None and stops_here(state, state.lock.stop_after)
        ):
            return state
        if word == "clear":
            reason = "a write that was not settled" if state.pending else "the index changed"
            writer.tell("stages.cleared", e.Cleared(writer.fence, reason))
        else:
            minted = e.Minted(writer.fence, stage, state.known.fingerprint, _ground(state, stage))
            writer.tell("stage.minted", minted)


def _ground(state: State, stage: str) -> str:
    """What a stage rests on."""
    if stage == "exec":
        return "reviewer" if state.gate_verdict == REQUEST_CHANGES else "gate"
    if stage == "security":
        return "scan"
    return "skipped-by-config" if stage == "polish" and next_step(state, stage) else "steps"
