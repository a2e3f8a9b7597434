"""Whole stories as events, for the tests of trace, queries and timeline: what the three kinds of work record.

Only the fields that auditors' tools read are true to life, the others hold a value of their type; admission
is not asked.
"""

from __future__ import annotations

from typing import Any

import msgspec

from projections.registry import TYPES, aggregate

RUN = "run/1-2026-11-30"
RECEIPT = "receipt/r-1"
DISPATCH = "dispatch/d-1"
SESSION = "session/0b0e7a52-6f0c-4b6e-8f5f-0d6a3a1f4c11"


_VALUES: dict[type, Any] = {
    msgspec.inspect.StrType: "0" * 64,
    msgspec.inspect.IntType: 0,
    msgspec.inspect.BoolType: False,
    msgspec.inspect.DictType: {},
    msgspec.inspect.ListType: [],
    msgspec.inspect.VarTupleType: [],
}


def _filled(kind: Any, given: Any) -> Any:
    if not isinstance(kind, msgspec.inspect.StructType):
        return _VALUES[type(kind)] if given is None else given
    data = dict(given or {})
    for field in kind.fields:
        if (
            field.required
            or isinstance(data.get(field.name), dict)
            and isinstance(field.type, msgspec.inspect.StructType)
        ):
            data[field.name] = _filled(field.type, data.get(field.name))
    return data


def complete(type: str, data: dict) -> dict:
    """`data` with every required field of the event type that it lacks."""
    if type not in TYPES:
        return data
    return _filled(msgspec.inspect.type_info(aggregate(TYPES[type][0]).EVENTS[type]), data)


def plan_run(cli) -> dict[str, int]:
    """An approved plan: two items done (one submitted under a receipt), one deferred, finalized."""
    seqs: dict[str, int] = {}

    def add(
        name: str,
        type: str,
        data: dict,
        content: str | None = None,
        actor: str = "codex:t-1",
        stream: str = RUN,
    ) -> None:
        seqs[name] = cli.record(
            stream, type, complete(type, data), content, actor=actor, correlation="plans-2026-11-30"
        )

    items = [
        {"index": n, "bucket": "urgent", "course_id": "1", "assignment_id": str(n), "skill": "canvas-x"}
        for n in (1, 2, 3)
    ]
    add(
        "proposed",
        "plan.proposed",
        {"runs": "0" * 64, "digest": "a" * 64, "snapshot": "b" * 64, "items": items},
        "{}",
    )
    add(
        "approved",
        "plan.approved",
        {"session_id": "t-1", "decisions": {"1": "approve", "2": "approve", "3": "defer"}, "digest_before": "a" * 64, "digest_after": "c" * 64, "nonce": "n", "text_digest": "d" * 64},
        "approve 1-2; defer 3",
        actor="cli:anna",
    )  # fmt: skip
    add(
        "claimed",
        "marker.claimed",
        {"session_id": "t-1", "plan_digest": "c" * 64, "created_at": "2026-11-30T09:00:00Z", "nonce": "m"},
    )
    add(
        "prepared",
        "marker.prepared",
        {"session_id": "t-1", "nonce": "m", "prepared_at": "x", "archived": 0, "keys": ["k1", "k2"]},
    )
    add("deferred", "item.deferred", {"index": 3, "key": "k3", "nonce": "m", "reason": "not_approved"})
    add(
        "handed1",
        "item.handed_off",
        {"index": 1, "key": "k1", "skill": "canvas-x", "nonce": "m", "attempt": 1},
    )
    add(
        "result1",
        "result.recorded",
        {
            "index": 1,
            "key": "k1",
            "nonce": "m",
            "status": "draft_ready",
            "result": "e" * 64,
            "entry": "f" * 64,
        },
        "{}",
    )
    add(
        "handed2",
        "item.handed_off",
        {"index": 2, "key": "k2", "skill": "canvas-x", "nonce": "m", "attempt": 1},
    )
    reference = {"label": "anna/friday", "salt": "00", "sha256": "0" * 64}
    add(
        "issued",
        "receipt.issued",
        {"receipt_id": "r-1", "version": 1, "issued_at": "2026-11-30T09:00:00Z", "expires_at": "2026-11-30T10:00:00Z", "actions": ["assignment.submit_text"], "authority_reference": reference, "session_id": "t-1", "user": "anna"},
        actor="cli:anna",
        stream=RECEIPT,
    )  # fmt: skip
    add(
        "consumed",
        "receipt.consumed",
        {"action": "assignment.submit_text", "receipt": "1" * 64, "count": 1, "terminal": True},
        stream=RECEIPT,
    )
    add(
        "result2",
        "result.recorded",
        {
            "index": 2,
            "key": "k2",
            "nonce": "m",
            "status": "submitted",
            "result": "2" * 64,
            "entry": "3" * 64,
            "receipt_id": "r-1",
        },
        "{}",
    )
    add("reported", "run.reported", {"report": "4" * 64}, "# report")
    add(
        "finalized",
        "run.finalized",
        {
            "session_id": "t-1",
            "nonce": "m",
            "plan_digest": "c" * 64,
            "report": "4" * 64,
            "statuses": {"submitted": 1},
        },
    )
    return seqs


def review(cli) -> dict[str, int]:
    """A review session: one executed round, gate, all four stages, a commit, delivered."""
    seqs: dict[str, int] = {}

    def add(name: str, type: str, data: dict, content: str | None = None, actor: str = "codex:t-2") -> None:
        seqs[name] = cli.record(SESSION, type, complete(type, {"fence": 1, **data}), content, actor=actor)

    tree = {"head": "h", "dirty_digest": "0" * 64, "fingerprint": "1" * 64}
    add("locked", "session.locked", {"uuid": SESSION[8:], "nonce": "n", "attached": True})
    add(
        "opened",
        "session.opened",
        {"uuid": SESSION[8:], "entry_point": "plan", "plan_source": "user-supplied", "tree": tree},
        '{"title":"Sort the notes"}',
        actor="cli:anna",
    )
    add("baseline", "baseline.verified", {"tree": tree}, "{}")
    add("round", "round.started", {"round": 1, "kind": "exec", "executor": True, "tree": tree}, "{}")
    add("executed", "round.executed", {"round": 1, "attempt": 1, "noop": False, "tree": tree}, "{}")
    add("cleared", "stages.cleared", {"reason": "executor-round"})
    add(
        "reviewed",
        "round.reviewed",
        {"round": 1, "attempt": 1, "verdict": "APPROVE", "fingerprint": "1" * 64},
        "### VERDICT: APPROVE",
    )
    add("gate", "gate.returned", {"convergence": 1, "verdict": "APPROVE", "fingerprint": "1" * 64}, "ok")
    add("exec", "stage.minted", {"stage": "exec", "fingerprint": "1" * 64, "by": "gate"})
    add(
        "step",
        "stage.step_recorded",
        {"stage": "polish", "step": "simplify", "agent": "a", "tool_uses": 2, "outcome": "clean"},
        "{}",
    )
    add("polish", "stage.minted", {"stage": "polish", "fingerprint": "1" * 64, "by": "steps"})
    add(
        "docstep",
        "stage.step_recorded",
        {"stage": "docs", "step": "docs", "agent": "a", "tool_uses": 1, "outcome": "clean"},
        "{}",
    )
    add("docs", "stage.minted", {"stage": "docs", "fingerprint": "1" * 64, "by": "steps"})
    add("scan", "security.scanned", {"outcome": "clean", "tree": tree}, "{}")
    add("security", "stage.minted", {"stage": "security", "fingerprint": "1" * 64, "by": "scan"})
    add(
        "commit",
        "commit.recorded",
        {
            "sha": "feedfacecafe0000000000000000000000000000",
            "parent": "p",
            "tree_id": "t",
            "count": 1,
            "tree": tree,
        },
        "{}",
    )
    add("completed", "delivery.completed", {"fingerprint": "1" * 64, "summary_digest": "2" * 64}, "summary")
    return seqs


def dispatch(cli) -> dict[str, int]:
    """A request: approved, tried at one provider (outage), then at another, proven and accepted."""
    seqs: dict[str, int] = {}

    def add(
        name: str,
        type: str,
        data: dict,
        content: str | None = None,
        actor: str = "codex:t-3",
        stream: str = DISPATCH,
    ) -> None:
        seqs[name] = cli.record(stream, type, complete(type, data), content, actor=actor)

    add(
        "requested",
        "dispatch.requested",
        {"route": "default"},
        '{"outcome":"Make it green"}',
        actor="cli:anna",
    )
    add("approved", "dispatch.approved", {"what": "network"}, actor="cli:anna")
    add("selected", "route.selected", {"candidate": "gpt-b@high", "provider": "openai", "executor": "codex"})
    add("attempted", "dispatch.attempted", {"provider": "openai", "executor": "codex", "attempt": 1})
    add("returned", "dispatch.returned", {"status": "availability_failure", "attempt": 1})
    opened = {
        "provider": "openai",
        "executor": "codex",
        "reason": "quota",
        "at": "2026-11-30T09:00:00Z",
        "failure_count": 1,
        "unavailable_until": "2026-12-01T09:00:00Z",
    }
    add("circuit", "circuit.opened", opened, stream="circuit/openai|codex")
    add(
        "selected2",
        "route.selected",
        {"candidate": "claude-a@high", "provider": "anthropic", "executor": "native"},
    )
    add("attempted2", "dispatch.attempted", {"provider": "anthropic", "executor": "native", "attempt": 2})
    add("returned2", "dispatch.returned", {"status": "succeeded", "attempt": 2})
    add("verified", "dispatch.verified", {"attempt": 2, "proven": True, "ended": "exit"}, "ok")
    add("concluded", "dispatch.concluded", {"status": "accepted"}, "{}")
    add(
        "denied",
        "receipt.denied",
        {"type": "receipt.consumed", "stream": "receipt/r-9", "reason": "expired", "digest": "0" * 64},
        stream="refusal/2026-11-30",
    )
    return seqs
