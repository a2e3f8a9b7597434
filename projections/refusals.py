"""Refusals of authority as events, in `refusal/<utc date>`: what was refused, by type, stream, reason and digest.

Never the refused data itself. At most 100 a minute are written; the rest are counted in a file beside the
ledger and the count goes into the next one (contract page ledger; DESIGN, Decide).
"""

from __future__ import annotations

import fcntl
import os

from blake3 import blake3

from ledger.canonical import encode
from ledger.clock import DAY, SECOND, format_us
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


def _change_count(ledger: Ledger, by: int) -> None:
    """Add one to the counter, or take off what an event now carries; a counter that cannot be written is left."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        handle = os.open(_counter(ledger), flags, 0o600)
    except OSError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if by > 0:
            os.write(handle, b"." * by)  # its size is the count: nothing to parse, nothing to get wrong
        else:
            os.ftruncate(handle, max(0, os.fstat(handle).st_size + by))
    except OSError:
        pass
    finally:
        os.close(handle)


def _too_many(reader: Reader) -> bool:
    """Whether 100 refusals are less than a minute away, either way: midnight passes, and clocks run back."""
    near = 0
    for day in (-DAY, 0, DAY):
        name = f"refusal/{format_us(reader.clock + day)[:10]}"
        last = reader.stream(name, after=max(0, reader.version(name) - A_MINUTE))
        near += sum(abs(reader.clock - event.clock) < 60 * SECOND for event in last)
    return near >= A_MINUTE


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
        data.pop("suppressed", None)
        if _too_many(reader):
            return []
        waiting = suppressed(ledger)
        if waiting:
            data["suppressed"] = waiting
        return [Draft(name, as_type, encode(data, what=as_type, floats=False), correlation=correlation)]

    def counted() -> None:
        # Under the ledger's lock still, so no other refusal carries the same count. Crash here: it is told twice.
        waiting = data.get("suppressed")
        if isinstance(waiting, int):
            _change_count(ledger, -waiting)

    try:
        done = ledger.transact(decide, origin, then=counted)
    except GatebookError:
        _change_count(
            ledger, 1
        )  # the refusal itself stands; that it is missing from the log is counted and shown
        return None
    if not done.events:
        _change_count(ledger, 1)
        return None
    return done.events[0]


KIND = "refusal"
FOLD = "refusal/1"


def __getattr__(name: str) -> object:
    """EVENTS and State are made on demand: recording a refusal needs no msgspec."""
    if name in ("EVENTS", "State", "initial", "evolve", "admit"):
        from projections import refusal_stream

        return getattr(refusal_stream, name)
    raise AttributeError(name)
