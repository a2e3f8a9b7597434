"""Is one event as it was recorded? What `show` and `trace` ask of the events they put before a person."""

from __future__ import annotations

from blake3 import blake3

from ledger.event import ZERO_HASH, chain_hash, content_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ledger.access import Ledger
    from ledger.event import Event


def damage(ledger: Ledger, event: Event) -> str | None:
    """Which part of `event` is not what its hash covers: `data`, `content` or `envelope`; None where all is as recorded.

    Says nothing of the events before it, which `verify` checks; erased content is no damage.
    """
    if blake3(event.data).hexdigest() != event.members.get("data_digest"):
        return "data"
    if event.content_digest is not None and event.salt is not None:
        content = ledger.store.artifact(event)
        if content is None or content_digest(event.salt, content) != event.content_digest:
            return "content"
    before = ledger.store.reader().event(event.seq - 1) if event.seq > 1 else None
    if chain_hash(before.hash if before is not None else ZERO_HASH, event.envelope) != event.hash:
        return "envelope"
    return None


def warn(ledger: Ledger, events: Iterable[Event]) -> bool:
    """Say on stderr which of `events` were changed since they were recorded; whether there is one."""
    found = False
    for event in events:
        part = damage(ledger, event)
        if part is not None:
            from ledger.notice import tell

            found = True
            tell(f"event {event.seq}: its {part} is not what was recorded: run `gatebook verify`", "error")
    return found
