"""How sessions stand in the views and in `state` (the aggregate is `projections.session`)."""

from __future__ import annotations

from ledger.clock import format_us

TYPE_CHECKING = False
if TYPE_CHECKING:
    from projections.session import State

VIEWS = {
    "sessions": {
        "uuid": str,
        "entry_point": str,
        "plan_source": str,
        "rounds": int,
        "completed_stages": str,
        "delivery_blocked_by": str,
        "locked_by": int,
        "delivered": int,
        "commit_sha": str,
    },
    "rounds": {
        "round": int,
        "kind": str,
        "verdict": str,
        "criticals": int,
        "minors": int,
        "reviewed_at": str,
    },
    "stages": {"stage": str, "fingerprint": str},
}


def show(_stream: str, state: State) -> dict[str, object] | None:
    """One session as `state sessions` prints it."""
    if not state.fence:
        return None
    return {
        "uuid": state.uuid,
        "entry_point": state.entry_point,
        "plan_source": state.plan_source,
        "rounds": state.round,
        "completed_stages": list(state.stages),
        "delivery_blocked_by": state.blocked_by or None,
        "locked_by": None if state.lock is None else state.lock.owner_pid,
        "delivered": state.delivered,
        "commit": state.commit or None,
        "session_commits": list(state.session_commits),
        "last_verified_head": state.verified.head,
    }


def show_stages(_stream: str, state: State) -> dict[str, object] | None:
    """The stages of one session, each with the fingerprint of the tree that it holds for."""
    return {"uuid": state.uuid, "stages": dict(state.stages)} if state.fence else None


def voided(state: State, before: int) -> State:
    """The session after a restore at event `before`: a lock from before it is nobody's."""
    from msgspec.structs import replace

    return replace(state, lock=None) if state.lock is not None and state.lock.seq < before else state


STATES = {"sessions": show, "stages": show_stages}


def rows(_stream: str, state: State) -> dict[str, list[dict[str, object]]]:
    """The rows of one session."""
    session: dict[str, object] = {
        "uuid": state.uuid,
        "entry_point": state.entry_point,
        "plan_source": state.plan_source,
        "rounds": state.round,
        "completed_stages": ",".join(state.stages),
        "delivery_blocked_by": state.blocked_by or None,
        "locked_by": None if state.lock is None else state.lock.owner_pid,
        "delivered": int(state.delivered),
        "commit_sha": state.commit or None,
    }
    reviewed: list[dict[str, object]] = [
        {
            "round": done.round,
            "kind": done.kind,
            "verdict": done.verdict,
            "criticals": done.criticals,
            "minors": done.minors,
            "reviewed_at": format_us(done.reviewed_at),
        }
        for done in state.rounds
    ]
    stages: list[dict[str, object]] = [
        {"stage": stage, "fingerprint": fingerprint} for stage, fingerprint in state.stages.items()
    ]
    return {"sessions": [session], "rounds": reviewed, "stages": stages}
