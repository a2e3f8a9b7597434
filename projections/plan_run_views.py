"""A run as the read models and `state plan|marker|results|runs` show it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from projections.plan_run import State

VIEWS = {
    "plans": {
        "date": str,
        "digest": str,
        "proposed_seq": int,
        "approved_seq": int,
        "approved_in": str,
        "approval_used": int,
    },
    "plan_items": {
        "item": int,
        "bucket": str,
        "course_id": str,
        "assignment_id": str,
        "skill": str,
        "decision": str,
        "result_key": str,
        "attempts": int,
    },
    "markers": {
        "session_id": str,
        "claimed_seq": int,
        "created_at": str,
        "plan_digest": str,
        "prepared_at": str,
        "archived": int,
    },
    "results": {
        "result_key": str,
        "status": str,
        "reason_code": str,
        "digest": str,
        "recorded_seq": int,
        "recorded_at": str,
        "paused": int,
        "kept": int,
    },
    "runs": {
        "date": str,
        "state": str,
        "items": int,
        "approved": int,
        "results": int,
        "open_item": str,
        "reported_seq": int,
        "delivered_seq": int,
        "finalized_seq": int,
    },
}


def _date(stream: str) -> str:
    return stream.partition("-")[2]


def _phase(state: State) -> str:
    """Where the run stands, in one word."""
    if state.claim is not None:
        return "prepared" if state.claim.is_ready else "claimed"
    if state.finalized:
        return "finalized"
    if state.recovered is not None:
        return "recovered"
    if state.approval is not None and not state.approval.used:
        return "approved"
    return "proposed" if state.proposed else "empty"


def show_plan(stream: str, state: State) -> dict[str, object]:
    """The current plan as `state plan` prints it."""
    approval = state.approval
    return {
        "date": _date(stream),
        "digest": state.current,
        "proposed_seq": state.proposed,
        "approved_seq": None if approval is None else approval.seq,
        "approved_in": None if approval is None else approval.session_id,
        "approval_used": None if approval is None else approval.used,
        "items": [
            {
                "index": item.index,
                "bucket": item.bucket,
                "course_id": item.course_id,
                "assignment_id": item.assignment_id,
                "skill": item.skill,
                "decision": state.decision(item) or None,
                "result_key": item.key,
            }
            for item in state.items
        ],
    }


def show_marker(_stream: str, state: State) -> dict[str, object] | None:
    """Who holds the run; None when nobody does."""
    claim = state.claim
    if claim is None:
        return None
    return {
        "session_id": claim.session_id,
        "claimed_seq": claim.seq,
        "created_at": claim.created_at,
        "plan_digest": claim.digest,
        "prepared_at": claim.prepared_at or None,
        "archived": claim.archived,
        "prepared_approved_result_keys": claim.keys,
        "needs_preparation": not claim.is_ready,
        "open_hand_off": None if state.open is None else state.open.key,
    }


def show_results(_stream: str, state: State) -> dict[str, object] | None:
    """What counts as each item's result; None before there is one."""
    return {row["result_key"]: row for row in _result_rows(state)} if state.results else None  # type: ignore[misc]


def show_run(stream: str, state: State) -> dict[str, object]:
    """Where the run stands."""
    return {
        "date": _date(stream),
        "state": _phase(state),
        "items": len(state.items),
        "approved": len(state.approved_keys()),
        "results": len(state.results),
        "open_item": None if state.open is None else state.open.key,
        "reported_seq": state.reported or None,
        "delivered_seq": state.delivered or None,
        "finalized_seq": state.finalized or None,
    }


def voided(state: State, before: int) -> State:
    """The run after a restore at event `before`: a claim from before it holds nothing, an approval is of no use."""
    from msgspec.structs import replace

    claim, approval, handed = state.claim, state.approval, state.open
    if claim is not None and claim.seq < before:
        claim = handed = None
    if approval is not None and approval.seq < before:
        approval = replace(approval, used=True)
    return replace(state, claim=claim, approval=approval, open=handed)


STATES = {"plan": show_plan, "marker": show_marker, "results": show_results, "runs": show_run}


def _result_rows(state: State) -> list[dict[str, object]]:
    from ledger.clock import format_us

    return [
        {
            "result_key": key,
            "status": held.status,
            "reason_code": held.reason_code or None,
            "digest": held.digest,
            "recorded_seq": held.seq,
            "recorded_at": format_us(held.clock),
            "paused": held.paused,
            "kept": held.kept,
        }
        for key, held in state.results.items()
    ]


def rows(stream: str, state: State) -> dict[str, list[dict[str, object]]]:
    """The rows of the views' tables."""
    plan = show_plan(stream, state)
    del plan["items"]
    marker = show_marker(stream, state)
    if marker is not None:
        for name in ("prepared_approved_result_keys", "needs_preparation", "open_hand_off"):
            del marker[name]
    items: list[dict[str, object]] = [
        {
            "item": item.index,
            "bucket": item.bucket,
            "course_id": item.course_id,
            "assignment_id": item.assignment_id,
            "skill": item.skill,
            "decision": state.decision(item) or None,
            "result_key": item.key,
            "attempts": state.attempts.get(item.key, 0),
        }
        for item in state.items
    ]
    return {
        "plans": [plan],
        "plan_items": items,
        "markers": [] if marker is None else [marker],
        "results": _result_rows(state),
        "runs": [show_run(stream, state)],
    }
