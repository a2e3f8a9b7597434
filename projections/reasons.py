"""Why an event was allowed: the earlier events it rests on, by the lawful order of each aggregate.

Contract page ledger, `trace`. A ground is what admission looked at (an approval, a claim, a hand-off, a
review), so that following grounds leads from any event back to a person's words. Pure; reads typed data only.
"""

from __future__ import annotations

from bisect import bisect_left

from ledger.canonical import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


class Step:
    """An event as the tracer sees it; its data is read when it is asked for, which for most steps it never is."""

    __slots__ = ("_data", "causation", "seq", "stream", "type")

    def __init__(
        self, seq: int, stream: str, type: str, data: dict[str, Any] | bytes, causation: int | None
    ) -> None:
        self.seq = seq
        self.stream = stream
        self.type = type
        self._data = data
        self.causation = causation

    @property
    def data(self) -> dict[str, Any]:
        """The event's data."""
        if isinstance(self._data, bytes):
            self._data = load(self._data)
        return self._data


class Ground:
    """The latest earlier event of one of `types` in the same stream, equal in the fields `same`.

    `each`: one such event for every value of that field, none older than the last event of a type in `since`.
    """

    __slots__ = ("each", "same", "since", "types")

    def __init__(
        self, *types: str, same: tuple[str, ...] = (), each: str = "", since: tuple[str, ...] = ()
    ) -> None:
        self.types = types
        self.same = same
        self.each = each
        self.since = since


_STANDING = Ground("stage.minted", each="stage", since=("stages.cleared", "drift.accepted"))
_LAST_WORD = Ground(
    "round.reviewed", "gate.returned", "stage.step_recorded", "security.scanned", "round.rejected"
)
_SESSION = Ground("session.opened", "session.imported")

GROUNDS: dict[str, tuple[Ground, ...]] = {
    "ledger.checkpointed": (Ground("ledger.opened", "key.changed", "ledger.restored"),),
    "ledger.restored": (Ground("ledger.opened"),),
    "authority.changed": (Ground("ledger.opened", "authority.changed"),),
    "key.changed": (Ground("ledger.opened", "key.changed", "ledger.restored"),),
    "plan.approved": (Ground("plan.proposed"),),
    "marker.claimed": (Ground("plan.approved"),),
    "marker.resumed": (Ground("marker.claimed"),),
    "marker.prepared": (Ground("marker.claimed", "marker.resumed"),),
    "marker.recovered": (Ground("marker.claimed"), Ground("plan.proposed")),
    "marker.released": (Ground("run.finalized"),),
    "result.archived": (Ground("marker.claimed", "marker.resumed"),),
    "item.handed_off": (Ground("plan.approved"), Ground("marker.prepared")),
    "item.deferred": (Ground("plan.approved"), Ground("item.handed_off", same=("key",))),
    "result.recorded": (Ground("plan.approved"), Ground("item.handed_off", same=("key",))),
    "run.reported": (Ground("result.recorded", "item.deferred", each="key", since=("plan.proposed",)),),
    "run.delivered": (Ground("result.recorded", each="key", since=("plan.proposed",)),),
    "run.finalized": (Ground("marker.claimed", "marker.resumed"), Ground("run.reported")),
    "receipt.consumed": (Ground("receipt.issued"),),
    "receipt.finalized": (Ground("receipt.issued"), Ground("receipt.consumed")),
    "receipt.revoked": (Ground("receipt.issued"),),
    "dispatch.blocked": (Ground("dispatch.requested"),),
    "dispatch.approved": (Ground("dispatch.requested"),),
    "memory.recalled": (Ground("dispatch.requested"),),
    "route.selected": (
        Ground("dispatch.requested"),
        Ground("dispatch.approved", each="what"),
        Ground("dispatch.returned"),
    ),
    "dispatch.attempted": (Ground("route.selected"),),
    "dispatch.returned": (Ground("dispatch.attempted"),),
    "dispatch.verified": (Ground("dispatch.returned"),),
    "memory.captured": (Ground("dispatch.verified"),),
    "dispatch.concluded": (
        Ground("dispatch.verified", "dispatch.returned", "dispatch.blocked", "dispatch.requested"),
    ),
    "circuit.opened": (Ground("circuit.opened", "circuit.probed", "circuit.imported"),),
    "circuit.probed": (Ground("circuit.opened", "circuit.imported"),),
    "circuit.closed": (Ground("circuit.opened", "circuit.probed", "circuit.imported"),),
    "session.unlocked": (Ground("session.locked"),),
    "session.lock_recovered": (Ground("session.locked"),),
    "session.stopped": (_SESSION, _LAST_WORD),
    "baseline.verified": (_SESSION,),
    "drift.detected": (Ground("baseline.verified", "session.opened", "session.imported", "drift.accepted"),),
    "drift.accepted": (Ground("drift.detected"),),
    "drift.aborted": (Ground("drift.detected"),),
    "round.started": (_SESSION, Ground("drift.accepted"), _LAST_WORD),
    "round.executed": (Ground("round.started", same=("round",)),),
    "round.reviewed": (Ground("round.executed", "round.started", same=("round",)),),
    "round.rejected": (Ground("round.started", same=("round",)),),
    "gate.returned": (Ground("round.reviewed"),),
    "stages.cleared": (
        Ground(
            "round.executed", "drift.accepted", "stage.step_recorded", "security.scanned", "round.reviewed"
        ),
    ),
    "security.scanned": (Ground("stage.minted"),),
    "stage.step_recorded": (Ground("stage.minted"),),
    "delivery.blocked": (_SESSION, _LAST_WORD),
    "delivery.unblocked": (Ground("delivery.blocked"),),
    "commit.recorded": (_STANDING,),
    "delivery.completed": (_STANDING, Ground("commit.recorded")),
}

# What a stage rests on (contract page review-sessions, Stages).
_MINTS: dict[str, tuple[Ground, ...]] = {
    "exec": (Ground("gate.returned"), Ground("round.reviewed")),
    "polish": (Ground("stage.step_recorded", same=("stage",)), _SESSION),
    "docs": (Ground("stage.step_recorded", same=("stage",)), Ground("stages.carried")),
    "security": (Ground("security.scanned"),),
}

# Where a person spoke: following grounds ends well here.
WORDS = ("plan.approved", "receipt.issued", "dispatch.approved", "drift.accepted", "session.opened", "dispatch.requested", "authority.changed")  # fmt: skip


class History:
    """The steps of one stream so far, in order; answers which was the latest of a kind."""

    __slots__ = ("_by_type", "_seqs")

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._by_type: dict[str, list[Step]] = {}
        self._seqs: dict[str, list[int]] = {}
        for step in steps:
            self.add(step)

    def add(self, step: Step) -> None:
        """The stream's next step."""
        self._by_type.setdefault(step.type, []).append(step)
        self._seqs.setdefault(step.type, []).append(step.seq)

    def _before(self, name: str, before: int) -> int:
        return bisect_left(self._seqs.get(name, []), before)

    def latest(self, types: Iterable[str], before: int, fits: Callable[[Step], bool]) -> Step | None:
        """The latest step before seq `before` of one of `types` that `fits`."""
        best: Step | None = None
        for name in types:
            steps = self._by_type.get(name, [])
            for at in range(self._before(name, before) - 1, -1, -1):
                if best is not None and steps[at].seq <= best.seq:
                    break
                if fits(steps[at]):
                    best = steps[at]
                    break
        return best

    def every(self, ground: Ground, before: int) -> list[Step]:
        """For each value of `ground.each` the latest step, none older than the last of `ground.since`."""
        start = self.latest(ground.since, before, lambda _: True)
        floor = start.seq if start is not None else 0
        found: dict[object, Step] = {}
        for name in ground.types:
            steps = self._by_type.get(name, [])
            for step in steps[self._before(name, floor + 1) : self._before(name, before)]:
                value = step.data.get(ground.each)
                key = value if isinstance(value, (str, int)) else repr(value)
                if key not in found or found[key].seq < step.seq:
                    found[key] = step
        return sorted(found.values(), key=lambda step: step.seq)


class Reason:
    """One earlier event that a step rests on, and how: `caused by`, `rests on`, `under receipt` and so on."""

    __slots__ = ("relation", "seq")

    def __init__(self, relation: str, seq: int) -> None:
        self.relation = relation
        self.seq = seq


def _numbers(step: Step) -> list[Reason]:
    """Earlier events that a step's data names by number."""
    found = []
    if step.type == "stages.carried" and isinstance(step.data.get("review"), int):
        found.append(Reason("carried by review", step.data["review"]))
    if step.type == "dispatch.attempted":
        found += [
            Reason("approved by", seq) for seq in step.data.get("approvals", ()) if isinstance(seq, int)
        ]
    if step.type == "ledger.redacted":
        found += [
            Reason("erased content of", seq) for seq in step.data.get("events", ()) if isinstance(seq, int)
        ]
    if step.type == "ledger.restored" and isinstance(step.data.get("after"), int):
        found.append(Reason("goes on after", step.data["after"]))
    return found


def other_streams(step: Step) -> list[tuple[str, str]]:
    """(relation, stream) of other streams whose last event before the step it rests on."""
    found = []
    receipt = step.data.get("receipt_id")
    if isinstance(receipt, str) and receipt and step.stream != f"receipt/{receipt}":
        found.append(("under receipt", f"receipt/{receipt}"))
    parent = step.data.get("parent_id")
    if step.type == "receipt.issued" and isinstance(parent, str) and parent:
        found.append(("delegated from", f"receipt/{parent}"))
    if step.type in ("admission.refused", "marker.refused", "receipt.denied") and isinstance(
        step.data.get("stream"), str
    ):
        found.append(("refused in", step.data["stream"]))
    return found


def grounds(step: Step, history: History) -> list[Reason]:
    """What `step` rests on in its own stream and by number; `other_streams` adds the rest. Latest last, each once."""
    reasons: dict[int, Reason] = {}
    wanted = GROUNDS.get(step.type, ())
    if step.type == "stage.minted":
        wanted = _MINTS.get(str(step.data.get("stage")), ())
    for ground in wanted:
        for other in _found(ground, step, history):
            reasons.setdefault(other.seq, Reason("rests on", other.seq))
    for reason in _numbers(step):
        if reason.seq < step.seq:
            reasons[reason.seq] = reason
    if step.causation is not None:
        reasons[step.causation] = Reason("caused by", step.causation)
    return [reasons[seq] for seq in sorted(reasons)]


def _found(ground: Ground, step: Step, history: History) -> list[Step]:
    if ground.each:
        return history.every(ground, step.seq)

    def agrees(other: Step) -> bool:
        return all(step.data.get(field) == other.data.get(field) for field in ground.same)

    one = history.latest(ground.types, step.seq, agrees)
    return [one] if one is not None else []
