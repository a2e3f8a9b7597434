"""What a timeline is made of: items in lanes, packed into rows; and the ticks of its time axis.

Everything here is pure: items in, places out. Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
MAX_ROWS = 6  # more at the same moment share the last row of their lane

# kind: (what the legend says, mark in the terminal, ANSI colour, colour on light, colour on dark)
KINDS = {
    "approval": ("approval", "●", 34, "#0b62a8", "#6db6f2"),
    "hold": ("marker hold", "━", 37, "#5b6472", "#a6b0bf"),
    "attempt": ("attempt", "●", 32, "#0a7d55", "#4fd0a0"),
    "failure": ("failure", "×", 31, "#c0400a", "#ff8a57"),
    "cooldown": ("cooldown", "░", 33, "#b97a00", "#f0bf4c"),
    "probe": ("probe", "◆", 35, "#a03a80", "#ee9fd2"),
    "round": ("round", "━", 36, "#0f7c93", "#5fd0e6"),
    "rejected": ("rejected", "×", 31, "#c0400a", "#ff8a57"),
    "stage": ("stage stands", "━", 32, "#2f7a1f", "#8ed67c"),
    "receipt": ("receipt open", "━", 35, "#7550b3", "#bfa0f5"),
    "consumed": ("receipt consumed", "●", 35, "#7550b3", "#bfa0f5"),
    "refusal": ("refusal", "×", 31, "#b3122e", "#ff7d90"),
    "delivery": ("delivery", "★", 34, "#0b62a8", "#6db6f2"),
    "redaction": ("redaction", "▒", 37, "#3c3f44", "#d7dade"),
    "event": ("other event", "·", 37, "#5b6472", "#a6b0bf"),
}


class Item:
    """One thing on a lane: a moment (`end == start`), a span, or a span that still lasts (`end` None)."""

    __slots__ = ("detail", "end", "kind", "label", "lane", "seq", "start")

    def __init__(
        self, lane: str, kind: str, start: int, end: int | None, *, label: str, seq: int, detail: str = ""
    ) -> None:
        self.lane = lane
        self.kind = kind
        self.start = start
        self.end = end
        self.label = label
        self.seq = seq
        self.detail = detail


class Row:
    """Items of one lane that do not overlap in time (but for the overfull last row), by start."""

    __slots__ = ("items", "lane")

    def __init__(self, lane: str) -> None:
        self.lane = lane
        self.items: list[Item] = []


def time_range(items: Iterable[Item]) -> tuple[int, int]:
    """First and last moment of all items; (0, 0) when there are none."""
    found = list(items)
    if not found:
        return 0, 0
    return min(item.start for item in found), max(
        item.start if item.end is None else item.end for item in found
    )


def pack_rows(items: Sequence[Item]) -> list[Row]:
    """Rows in the lanes' order of first appearance; items that overlap in time lie in different rows."""
    lanes: dict[str, list[Item]] = {}
    for item in items:
        lanes.setdefault(item.lane, []).append(item)
    rows = []
    for lane, members in lanes.items():
        rows += _pack_lane(lane, sorted(members, key=lambda item: (item.start, item.seq)))
    return rows


def _pack_lane(lane: str, members: list[Item]) -> list[Row]:
    rows: list[Row] = []
    free: list[float] = []  # when each row is free again
    for item in members:
        at = next((i for i, until in enumerate(free) if until <= item.start), None)
        if at is None:
            if len(rows) < MAX_ROWS:
                rows.append(Row(lane))
                free.append(0)
            at = len(rows) - 1
        rows[at].items.append(item)
        free[at] = max(free[at], float("inf") if item.end is None else item.end)
    return rows


class Mark:
    """What is drawn at one place of a row: one item, or several too close to be told apart (`items`)."""

    __slots__ = ("items", "room", "x0", "x1")

    def __init__(self, x0: float, x1: float, items: list[Item]) -> None:
        self.x0 = x0
        self.x1 = x1
        self.items = items
        self.room = 0.0  # free width to the right of x1, for a label


def place_marks(
    row: Row, span: tuple[int, int], width: float, *, small: float, widest: float, right: float
) -> list[Mark]:
    """A row's marks on a scale where the moments of `span` are 0 and `width`.

    Items narrower than `small` that lie closer than `small` to each other become one mark, at most `widest`
    wide, so that a crowded row shows where it is how crowded. `right` is the room beyond the scale's end
    that labels may use.
    """
    start, end = span
    scale = width / max(1, end - start)
    marks: list[Mark] = []
    for item in row.items:
        x0 = (item.start - start) * scale
        x1 = width if item.end is None else (item.end - start) * scale
        last = marks[-1] if marks else None
        # A mark is drawn at least twice `small` wide, so nearness is counted from there.
        near = (
            last is not None
            and x1 - x0 < small
            and x0 - max(last.x1, last.x0 + small) < small
            and x0 - last.x0 < widest
        )
        if last and near and (len(last.items) > 1 or last.x1 - last.x0 < small):
            last.items.append(item)
            last.x1 = max(last.x1, x1)
        else:
            marks.append(Mark(x0, x1, [item]))
    for mark, after in pairwise(marks):
        mark.room = after.x0 - mark.x1
    if marks:
        marks[-1].room = width + right - marks[-1].x1
    return marks


def bars_first(marks: Iterable[Mark]) -> list[Mark]:
    """The order to draw in: what is long first, so that a moment at its beginning is not hidden by it."""
    return sorted(marks, key=lambda mark: mark.x0 - mark.x1)


def summary(items: Sequence[Item]) -> str:
    """`3 attempt, 1 failure` for a mark of several items."""
    counts: dict[str, int] = {}
    for item in items:
        counts[item.kind] = counts.get(item.kind, 0) + 1
    return ", ".join(
        f"{count} {KINDS[kind][0]}" for kind, count in sorted(counts.items(), key=lambda pair: -pair[1])
    )


def gravest(items: Sequence[Item]) -> str:
    """The kind that colours a mark of several items: trouble shows, else the most frequent."""
    for kind in ("refusal", "failure", "rejected"):
        if any(item.kind == kind for item in items):
            return kind
    kinds = [item.kind for item in items]
    return max(set(kinds), key=lambda kind: (kinds.count(kind), kind))


_STEPS = [
    *(n * 1000 for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(n * SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR for n in (1, 2, 3, 6, 12)),
    *(n * DAY for n in (1, 2, 7, 14, 30, 90, 180, 365, 730, 1825, 3650)),
]


def axis_ticks(start: int, end: int, most: int) -> list[tuple[int, str]]:
    """At most `most` round moments within `start`..`end` with their labels (UTC)."""
    step = next((step for step in _STEPS if (end - start) / step < most), 0)
    step = step or -(-(end - start) // ((most - 1) * DAY)) * DAY  # centuries: whole days are round enough
    first = -(-start // step) * step
    return [(at, tick_label(at, step)) for at in range(first, end + 1, step)]


def tick_label(at: int, step: int) -> str:
    """A tick's label: the date where days are counted or a day begins, else the time of day."""
    import time

    moment = time.gmtime(at // SECOND)
    if step >= DAY or at % DAY == 0:
        return time.strftime("%Y-%m-%d", moment)
    if step >= MINUTE:
        return time.strftime("%H:%M", moment)
    if step >= SECOND:
        return time.strftime("%H:%M:%S", moment)
    return time.strftime("%H:%M:%S", moment) + f".{at % SECOND // 1000:03d}"


def moment_text(at: int) -> str:
    """`2026-11-30 14:00:05Z`, with milliseconds where there are some."""
    import time

    text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at // SECOND))
    rest = at % SECOND // 1000
    return f"{text}.{rest:03d}Z" if rest else f"{text}Z"


def duration_text(us: int) -> str:
    """`3 d 4 h`, `52 min 10 s`, `1.204 s`: at most two units."""
    if us < SECOND:
        return f"{us // 1000} ms"
    if us < MINUTE:
        return f"{us / SECOND:.3f}".rstrip("0").rstrip(".") + " s"
    for unit, name, below, small in (
        (DAY, "d", HOUR, "h"),
        (HOUR, "h", MINUTE, "min"),
        (MINUTE, "min", SECOND, "s"),
    ):
        if us >= unit:
            rest = us % unit // below
            return f"{us // unit} {name}" + (f" {rest} {small}" if rest else "")
    raise AssertionError("every duration is at least zero")


def columns(text: str) -> int:
    """How many columns of a terminal `text` takes: two for a wide character (Chinese, emoji), none for a combining mark."""
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, most: int) -> str:
    """`text` in at most `most` columns, with `…` where it was cut."""
    if columns(text) <= most:
        return text
    shown = text[: max(0, most - 1)]
    while columns(shown) > max(0, most - 1):
        shown = shown[:-1]
    return shown + "…"


def count_text(items: Sequence[Item]) -> str:
    """`1 item`, `3 items`."""
    return f"{len(items)} item{'' if len(items) == 1 else 's'}"


def describe(item: Item) -> str:
    """An item in one line, for tooltips and lists."""
    if item.end is None:
        when = f"since {moment_text(item.start)}"
    elif item.end == item.start:
        when = moment_text(item.start)
    else:
        when = f"{moment_text(item.start)} for {duration_text(item.end - item.start)}"
    detail = f" — {item.detail}" if item.detail else ""
    return f"{item.label} ({KINDS[item.kind][0]}, event {item.seq}) {when}{detail}"
