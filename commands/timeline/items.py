"""Events as items on lanes: what lasts becomes a span from the event that began it to the one that ended it."""

from __future__ import annotations

from commands.timeline.lanes import Item
from ledger.errors import Invalid
from projections.times import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

ORDER = (
    "approvals", "hold", "items", "attempts", "circuit", "rounds", "stage", "receipts", "delivery", "refusals", "redactions", "other",
)  # fmt: skip


class Moment:
    """An event as the timeline reads it: times in us, `data` as an object."""

    __slots__ = ("actor", "at", "data", "redacted", "seq", "stream", "type")

    def __init__(
        self,
        seq: int,
        at: int,
        *,
        stream: str,
        type: str,
        actor: str,
        data: dict[str, Any],
        redacted: bool = False,
    ) -> None:
        self.seq = seq
        self.at = at
        self.stream = stream
        self.type = type
        self.actor = actor
        self.data = data
        self.redacted = redacted


class _Drawing:
    """The items so far, and the spans that are still open by what they are about."""

    def __init__(self) -> None:
        self.items: list[tuple[int, Item]] = []
        self.open: dict[tuple[str, ...], Item] = {}

    def put(
        self,
        group: str,
        lane: str,
        kind: str,
        event: Moment,
        label: str,
        *,
        detail: str = "",
        end: int | None = -1,
    ) -> Item:
        """Add an item that begins with `event`: a moment, or (`end` None) a span, or one with a known end."""
        parts = [f"by {event.actor}", detail, "content redacted" if event.redacted else ""]
        until = event.at if end == -1 else end
        item = Item(
            lane, kind, event.at, until, label=label, seq=event.seq, detail=", ".join(filter(None, parts))
        )
        self.items.append((ORDER.index(group), item))
        return item

    def begin(self, key: tuple[str, ...], item: Item) -> None:
        """`item` lasts until `end` is called with `key`; one that was open ends here."""
        self.end(key, item.start)
        self.open[key] = item

    def end(self, key: tuple[str, ...], at: int, detail: str = "", kind: str = "") -> None:
        """End the open item of `key`, if there is one."""
        item = self.open.pop(key, None)
        if item is None:
            return
        item.end = at
        if detail:
            item.detail = f"{item.detail}, {detail}"
        if kind:
            item.kind = kind


def _name(stream: str) -> str:
    kind, _, name = stream.partition("/")
    return name[:8] if kind == "session" else name


def _approval(draw: _Drawing, event: Moment) -> None:
    label = {
        "plan.approved": "plan approved",
        "drift.accepted": "drift accepted",
        "dispatch.approved": "dispatch approved",
    }
    draw.put(
        "approvals", "approvals", "approval", event, label.get(event.type, event.type), detail=event.stream
    )
    if event.type == "drift.accepted":
        _cleared(draw, event)


def _claimed(draw: _Drawing, event: Moment) -> None:
    lane = f"marker {_name(event.stream)}"
    item = draw.put(
        "hold", lane, "hold", event, f"owner {event.data.get('session_id', event.actor)}", end=None
    )
    draw.begin(("hold", event.stream), item)


def _locked(draw: _Drawing, event: Moment) -> None:
    item = draw.put("hold", f"lock {_name(event.stream)}", "hold", event, event.actor, end=None)
    draw.begin(("hold", event.stream), item)


def _let_go(draw: _Drawing, event: Moment) -> None:
    draw.end(("hold", event.stream), event.at, event.type)
    draw.end(("round", event.stream), event.at, "ended without a review")


def _handed_off(draw: _Drawing, event: Moment) -> None:
    label = f"item {event.data.get('index', '')}"
    item = draw.put(
        "items",
        f"items {_name(event.stream)}",
        "attempt",
        event,
        label,
        detail=str(event.data.get("skill", "")),
        end=None,
    )
    draw.begin(("item", event.stream, str(event.data.get("key"))), item)


def _item_done(draw: _Drawing, event: Moment) -> None:
    key = ("item", event.stream, str(event.data.get("key")))
    status = str(event.data.get("status") or event.data.get("reason") or "deferred")
    if key in draw.open:
        draw.end(key, event.at, status, "failure" if status in ("error", "interrupted") else "")
    else:
        draw.put(
            "items",
            f"items {_name(event.stream)}",
            "event",
            event,
            f"item {event.data.get('index', '')} {status}",
        )


def _endpoint(event: Moment) -> str:
    return f"{event.data.get('provider', '?')}|{event.data.get('executor', '?')}"


def _attempted(draw: _Drawing, event: Moment) -> None:
    label = str(event.data.get("candidate", "attempt"))
    item = draw.put(
        "attempts", f"attempts {_endpoint(event)}", "attempt", event, label, detail=event.stream, end=None
    )
    draw.begin(("attempt", event.stream), item)


def _returned(draw: _Drawing, event: Moment) -> None:
    status = str(event.data.get("status", ""))
    draw.end(("attempt", event.stream), event.at, status, "" if status == "succeeded" else "failure")


def _circuit_opened(draw: _Drawing, event: Moment) -> None:
    lane = f"circuit {event.stream.partition('/')[2]}"
    reason = str(event.data.get("reason", ""))
    draw.put(
        "circuit", lane, "failure", event, reason, detail=f"failure {event.data.get('failure_count', '')}"
    )
    try:
        until = parse_time(event.data.get("unavailable_until"))
    except Invalid:
        return
    cooldown = draw.put("circuit", lane, "cooldown", event, f"cooldown: {reason}", end=max(until, event.at))
    draw.begin(("circuit", event.stream), cooldown)
    cooldown.end = max(until, event.at)


def _circuit_ended(draw: _Drawing, event: Moment) -> None:
    lane = f"circuit {event.stream.partition('/')[2]}"
    if event.type == "circuit.probed":
        draw.put("circuit", lane, "probe", event, "probe")
        return
    item = draw.open.get(("circuit", event.stream))
    if item is not None and item.end is not None and item.end > event.at:
        draw.end(("circuit", event.stream), event.at, event.type)
    draw.put(
        "circuit",
        lane,
        "attempt" if event.type == "circuit.closed" else "event",
        event,
        event.type.partition(".")[2],
    )


def _round_started(draw: _Drawing, event: Moment) -> None:
    label = f"round {event.data.get('round', '')}"
    item = draw.put("rounds", f"rounds {_name(event.stream)}", "round", event, label, end=None)
    draw.begin(("round", event.stream), item)


def _round_ended(draw: _Drawing, event: Moment) -> None:
    lane = f"rounds {_name(event.stream)}"
    if event.type == "round.rejected":
        draw.put(
            "rounds", lane, "rejected", event, f"{event.data.get('role', '')} {event.data.get('reason', '')}"
        )
    elif event.type == "gate.returned":
        verdict = str(event.data.get("verdict", ""))
        draw.put(
            "rounds",
            lane,
            "rejected" if verdict == "REQUEST_CHANGES" else "approval",
            event,
            f"gate {verdict}",
        )
    else:
        draw.end(("round", event.stream), event.at, str(event.data.get("verdict", "")))


def _minted(draw: _Drawing, event: Moment) -> None:
    stage = str(event.data.get("stage", ""))
    lane = f"stage {stage} {_name(event.stream)}"
    draw.begin(("stage", event.stream, stage), draw.put("stage", lane, "stage", event, stage, end=None))


def _cleared(draw: _Drawing, event: Moment) -> None:
    for key in [key for key in draw.open if key[:2] == ("stage", event.stream)]:
        draw.end(key, event.at, f"lost: {event.data.get('reason', event.type)}")


def _issued(draw: _Drawing, event: Moment) -> None:
    label = str(event.data.get("receipt_id", event.stream))
    try:
        expires: int | None = parse_time(event.data.get("expires_at"))
    except Invalid:
        expires = None
    item = draw.put(
        "receipts",
        "receipts",
        "receipt",
        event,
        label,
        detail=" ".join(event.data.get("actions", ())),
        end=None,
    )
    draw.begin(("receipt", event.stream), item)
    item.end = max(expires, event.at) if expires is not None else None


def _consumed(draw: _Drawing, event: Moment) -> None:
    if event.type == "receipt.consumed":
        draw.put(
            "receipts", "receipts", "consumed", event, str(event.data.get("action", "")), detail=event.stream
        )
        if not event.data.get("terminal"):
            return
    draw.end(("receipt", event.stream), event.at, event.type)


def _delivered(draw: _Drawing, event: Moment) -> None:
    label = str(event.data.get("sha", ""))[:10] or event.type
    draw.put("delivery", "delivery", "delivery", event, label, detail=event.stream)
    if event.type == "run.finalized":
        _let_go(draw, event)


def _blocked(draw: _Drawing, event: Moment) -> None:
    draw.put(
        "delivery",
        "delivery",
        "refusal",
        event,
        f"blocked by {event.data.get('by', '')}",
        detail=event.stream,
    )


def _refused(draw: _Drawing, event: Moment) -> None:
    detail = f"{event.data.get('stream', event.stream)}: {event.data.get('reason', '')}"
    draw.put(
        "refusals",
        "refusals",
        "refusal",
        event,
        f"{event.data.get('type', event.type)} refused",
        detail=detail,
    )


def _redacted(draw: _Drawing, event: Moment) -> None:
    events = ", ".join(map(str, event.data.get("events", ())))
    draw.put("redactions", "redactions", "redaction", event, f"content of {events} erased")


def _restored(draw: _Drawing, event: Moment) -> None:
    """What was open is void from here on; stages and cooldowns stand as they did."""
    for key, item in list(draw.open.items()):
        if key[0] not in ("stage", "circuit") and (item.end is None or item.end > event.at):
            draw.end(key, event.at, "voided by a restore")
    _other(draw, event)


def _other(draw: _Drawing, event: Moment) -> None:
    draw.put("other", "other events", "event", event, event.type, detail=event.stream)


_RULES: dict[str, Callable[[_Drawing, Moment], None]] = {
    **dict.fromkeys(("plan.approved", "drift.accepted", "dispatch.approved", "authority.changed"), _approval),
    "marker.claimed": _claimed,
    "session.locked": _locked,
    **dict.fromkeys(
        ("marker.released", "marker.recovered", "session.unlocked", "session.lock_recovered"), _let_go
    ),
    "item.handed_off": _handed_off,
    **dict.fromkeys(("result.recorded", "item.deferred"), _item_done),
    "dispatch.attempted": _attempted,
    **dict.fromkeys(("dispatch.returned", "dispatch.concluded"), _returned),
    "circuit.opened": _circuit_opened,
    **dict.fromkeys(("circuit.probed", "circuit.closed", "circuit.imported"), _circuit_ended),
    "round.started": _round_started,
    **dict.fromkeys(("round.reviewed", "round.rejected", "gate.returned"), _round_ended),
    "stage.minted": _minted,
    "stages.cleared": _cleared,
    "receipt.issued": _issued,
    **dict.fromkeys(("receipt.consumed", "receipt.revoked", "receipt.finalized"), _consumed),
    **dict.fromkeys(("run.finalized", "commit.recorded", "delivery.completed"), _delivered),
    "delivery.blocked": _blocked,
    **dict.fromkeys(("admission.refused", "marker.refused", "receipt.denied", "dispatch.blocked"), _refused),
    "ledger.redacted": _redacted,
    "ledger.restored": _restored,
}


def items_of(events: Iterable[Moment]) -> list[Item]:
    """The items of `events` (in order), lane by lane; what no event ended lasts still (`end` None).

    A cooldown or receipt that ends after the last event lasts still, so that the picture stays that of the record.
    """
    draw = _Drawing()
    last = 0
    for event in events:
        _RULES.get(event.type, _other)(draw, event)
        last = event.at
    for _, item in draw.items:
        if item.end is not None and item.end > last:
            item.end = None
    lanes: dict[str, int] = {}
    for at, (group, item) in enumerate(draw.items):
        lanes.setdefault(item.lane, group * len(draw.items) + at)
    return sorted((item for _, item in draw.items), key=lambda item: (lanes[item.lane], item.start, item.seq))
