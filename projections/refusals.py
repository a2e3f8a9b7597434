"""Refusals of authority as events, in `refusal/<utc date>`: what was refused, by type, stream, reason and digest.

Never the refused data itself. At most 100 a minute are written; the rest are counted in a file beside the
ledger and the count goes into the next one (contract page ledger; DESIGN, Decide).
"""

from __future__ import annotations

import os

from blake3 import blake3

from ledger.canonical import encode
from ledger.clock import SECOND, format_us
from ledger.errors import GatebookError
from ledger.event import Draft

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.access import Ledger
    from ledger.event import Event, Origin
    from ledger.store import Reader

A_MINUTE = 100
_SUPPRESSED = "refusals.suppressed"


def digest_of(refused: bytes) -> str:
    """What stands for the refused data in the event: BLAKE3, hex."""
    return blake3(refused).hexdigest()


def _counter(ledger: Ledger) -> str:
    return os.path.join(ledger.folder, _SUPPRESSED)


def suppressed(ledger: Ledger) -> int:
    """How many refusals were counted but not written since the last one that was."""
    try:
        return os.stat(_counter(ledger)).st_size
    except OSError:
        return 0


def _count_one(ledger: Ledger) -> None:
    try:
        handle = os.open(
            _counter(ledger), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
    except OSError:
        return
    os.write(handle, b".")  # one byte a refusal: appends of many processes add up without a lock
    os.close(handle)


def record_refusal(
    ledger: Ledger,
    origin: Origin,
    *,
    type: str,
    stream: str,
    reason: str,
    refused: bytes,
    as_type: str = "admission.refused",
    correlation: str | None = None,
) -> Event | None:
    """Record, in a transaction of its own, that something was refused; None when over the rate or it cannot be written.

    `reason` is a short fixed word or phrase, never foreign text; `refused` the canonical data that was refused.
    """
    data: dict[str, object] = {
        "digest": digest_of(refused),
        "reason": reason[:200],
        "stream": stream.encode("utf-8", "replace").decode()[:200],
        "type": type.encode("utf-8", "replace").decode()[:128],
    }

    def decide(reader: Reader) -> Sequence[Draft]:
        name = f"refusal/{format_us(reader.clock)[:10]}"
        version = reader.version(name)
        if version >= A_MINUTE:
            oldest = reader.stream(name, after=version - A_MINUTE, upto=version - A_MINUTE + 1)
            if oldest and reader.clock - oldest[0].clock < 60 * SECOND:
                return []
        waiting = suppressed(ledger)
        if waiting:
            data["suppressed"] = waiting
        return [Draft(name, as_type, encode(data, what=as_type, floats=False), correlation=correlation)]

    try:
        done = ledger.transact(decide, origin)
    except GatebookError:
        _count_one(ledger)  # the refusal itself stands; that it is missing from the log is counted and shown
        return None
    if not done.events:
        _count_one(ledger)
        return None
    if "suppressed" in data:
        os.unlink(_counter(ledger))
    return done.events[0]


KIND = "refusal"
FOLD = "refusal/1"


def __getattr__(name: str) -> object:
    """EVENTS and State are made on demand: recording a refusal needs no msgspec."""
    if name in ("EVENTS", "State", "initial", "evolve", "admit"):
        from projections import refusal_stream

        return getattr(refusal_stream, name)
    raise AttributeError(name)
