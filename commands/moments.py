"""X as `--since`, `--until`, `--at`, `--from` and `--to` take it: a seq, or a time with a zone; inclusive."""

from __future__ import annotations

from ledger.errors import Invalid, Usage
from projections.times import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.event import Event
    from ledger.store import Reader


def _recorded(event: Event | None) -> int:
    assert event is not None
    return event.recorded_us


def first_at_or_after(reader: Reader, moment: int) -> int:
    """The seq of the first event recorded at `moment` (us) or later; one past the head when there is none.

    A binary search: `recorded_at` strictly increases.
    """
    low, high = 1, reader.head().seq + 1
    while low < high:
        middle = (low + high) // 2
        if _recorded(reader.event(middle)) >= moment:
            high = middle
        else:
            low = middle + 1
    return low


def _moment(text: str, flag: str) -> int | None:
    """None for a seq, else the time in us."""
    if text.isascii() and text.isdigit() and len(text) <= 16:
        return None
    try:
        return parse_time(text, flag)
    except Invalid as error:
        raise Usage(f"{error}; a seq (like 17) or a time (like 2026-12-01T09:00:00Z)") from None


def since(reader: Reader, text: str | None, flag: str = "--since") -> int:
    """The first seq that X takes in: the seq itself, or the first event at or after the time."""
    if text is None:
        return 1
    moment = _moment(text, flag)
    return max(1, int(text)) if moment is None else first_at_or_after(reader, moment)


def until(reader: Reader, text: str | None, flag: str = "--until") -> int:
    """The last seq that X takes in (0: none): the seq itself, or the last event at or before the time."""
    head = reader.head().seq
    if text is None:
        return head
    moment = _moment(text, flag)
    return min(int(text), head) if moment is None else first_at_or_after(reader, moment + 1) - 1
