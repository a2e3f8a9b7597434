"""The vocabulary as plain data: each type's stream kind and the command that writes it; each kind's module.

Imports nothing, so that finding one aggregate loads one module.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

AGGREGATES: dict[str, str] = {
    "ledger": "projections.ledger_stream",
    "refusal": "projections.refusals",
    "circuit": "projections.circuit",
    "run": "projections.plan_run",
    "receipt": "projections.receipt",
    "dispatch": "projections.dispatch",
    "session": "projections.session",
}

_WRITERS: dict[str, dict[str, str]] = {
    "ledger": {
        "ledger.opened": "init",
        "ledger.checkpointed": "checkpoint",
        "ledger.redacted": "redact",
        "ledger.restored": "resume",
        "authority.changed": "authority require",
        "key.changed": "authority rotate",
    },
    "refusal": {
        "admission.refused": "(the ledger itself)",
        "marker.refused": "run claim",
        "receipt.denied": "receipt consume",
    },
    "circuit": {
        "circuit.opened": "route record-failure",
        "circuit.probed": "route select",
        "circuit.closed": "route record-success",
        "circuit.imported": "route record-failure",
    },
    "run": {
        "plan.proposed": "plan record",
        "plan.approved": "plan approve",
        "marker.claimed": "run claim",
        "marker.resumed": "run claim",
        "marker.prepared": "run prepare-results",
        "marker.recovered": "run recover",
        "marker.released": "run finalize",
        "item.handed_off": "run next",
        "item.deferred": "run execute",
        "result.archived": "run prepare-results",
        "result.recorded": "run execute",
        "run.reported": "run report",
        "run.delivered": "run deliver",
        "run.finalized": "run finalize",
    },
    "receipt": {
        "receipt.issued": "receipt issue",
        "receipt.consumed": "receipt consume",
        "receipt.finalized": "receipt finalize",
        "receipt.revoked": "receipt revoke",
    },
    "dispatch": {
        "dispatch.requested": "dispatch run",
        "dispatch.blocked": "dispatch run",
        "dispatch.approved": "dispatch approve",
        "route.selected": "dispatch select",
        "dispatch.attempted": "dispatch attempt",
        "dispatch.returned": "dispatch returned",
        "dispatch.verified": "dispatch verify",
        "dispatch.concluded": "dispatch conclude",
        "memory.recalled": "dispatch run",
        "memory.captured": "dispatch run",
    },
    "session": {
        "session.opened": "session start",
        "session.imported": "session start",
        "session.locked": "session start",
        "session.unlocked": "session end",
        "session.lock_recovered": "session start",
        "session.stopped": "session run",
        "baseline.verified": "session start",
        "drift.detected": "session start",
        "drift.accepted": "session start",
        "drift.aborted": "session start",
        "round.started": "round start",
        "round.executed": "round executed",
        "round.reviewed": "round reviewed",
        "round.rejected": "round executed",
        "gate.returned": "gate record",
        "stage.step_recorded": "polish step",
        "stage.minted": "session run",
        "stages.carried": "polish step",
        "stages.cleared": "session run",
        "security.scanned": "security scan",
        "delivery.blocked": "session run",
        "delivery.unblocked": "session start",
        "delivery.completed": "session run",
        "commit.recorded": "session run",
    },
}
TYPES: dict[str, tuple[str, str]] = {
    name: (kind, writer) for kind, types in _WRITERS.items() for name, writer in types.items()
}  # fmt: skip


def is_decided(name: str) -> bool:
    """Whether `name` is in the vocabulary, and so written by its command only."""
    return name in TYPES


def writer_of(name: str) -> str:
    """The command that writes this decided type."""
    return TYPES[name][1]


def kind_of(stream: str) -> str:
    """The kind of a stream name, `circuit` for `circuit/a|b`."""
    return stream.partition("/")[0]


def aggregate(kind: str) -> ModuleType:
    """The module of one kind of stream; KeyError for a kind this version does not know."""
    from projections import lean  # noqa: F401 - before the module imports msgspec

    return __import__(AGGREGATES[kind], fromlist=["KIND"])
