"""The timeline as lines of text for a terminal."""

from __future__ import annotations

from commands.eventlines import printable
from commands.timeline.lanes import (
    KINDS,
    Mark,
    axis_ticks,
    bars_first,
    columns,
    count_text,
    duration_text,
    gravest,
    moment_text,
    pack_rows,
    place_marks,
    shorten,
    time_range,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from commands.timeline.lanes import Item, Row

MAX_GUTTER = 28
MIN_PLOT = 20


class _Cells:
    """One line of character cells, each with an ANSI colour (0: none); the second cell of a wide character is empty."""

    __slots__ = ("chars", "colours")

    def __init__(self, width: int) -> None:
        self.chars = [" "] * width
        self.colours = [0] * width

    def put(self, at: int, text: str, colour: int) -> None:
        for char in printable(text):
            wide = columns(char)
            if wide and 0 <= at <= len(self.chars) - wide:
                for cell, part in zip(range(at, at + wide), (char, ""), strict=False):
                    self._free(cell)
                    self.chars[cell], self.colours[cell] = part, colour
            at += wide

    def _free(self, at: int) -> None:
        """What is left of a wide character, half of which is overwritten, is a space."""
        if not self.chars[at]:
            self.chars[at - 1] = " "
        elif at + 1 < len(self.chars) and not self.chars[at + 1]:
            self.chars[at + 1] = " "

    def line(self, *, colour: bool) -> str:
        if not colour:
            return "".join(self.chars).rstrip()
        parts, now = [], 0
        for char, wanted in zip(self.chars, self.colours, strict=True):
            if wanted != now:
                parts.append(f"\x1b[{wanted}m")
                now = wanted
            parts.append(char)
        return "".join(parts).rstrip() + ("\x1b[0m" if now else "")


def _draw(cells: _Cells, mark: Mark) -> None:
    first, last = int(mark.x0), min(int(mark.x1), len(cells.chars) - 1)
    if len(mark.items) > 1:
        _, _, colour, *_ = KINDS[gravest(mark.items)]
        count = str(len(mark.items))
        cells.put(
            first, count if len(count) <= last - first + 1 + max(0, int(mark.room) - 1) else "+", colour
        )
        return
    item = mark.items[0]
    label = printable(item.label)
    _, char, colour, *_ = KINDS[item.kind]
    if item.end == item.start or first == last:
        cells.put(first, "●" if char == "━" else char, colour)
        room = int(mark.room) - 2
        if room >= min(columns(label), 12):
            cells.put(first + 2, shorten(label, room), 0)
        return
    bar = char if char in "━░▒" else "━"
    end = ("▶" if item.end is None else "┫") if bar == "━" else bar
    middle = bar * (last - first - 1)
    if bar == "━" and len(middle) >= columns(label) + 4:
        middle = f"━ {label} " + "━" * (len(middle) - columns(label) - 3)
    cells.put(first, ("┣" if bar == "━" else bar) + middle + end, colour)


def _axis(start: int, end: int, plot: int) -> str:
    cells = _Cells(plot)
    until = -1
    for at, label in axis_ticks(start, end, max(2, plot // 14)):
        x = int((at - start) / max(1, end - start) * (plot - 1))
        if x > until and x + len(label) + 1 <= plot:
            cells.put(x, "╷" + label, 0)
            until = x + len(label) + 2
    return cells.line(colour=False)


def _row_lines(
    rows: Sequence[Row], span: tuple[int, int], gutter: int, plot: int, *, colour: bool
) -> list[str]:
    lines = []
    before = None
    for row in rows:
        cells = _Cells(plot)
        for mark in bars_first(place_marks(row, span, plot - 1, small=1, widest=4, right=0)):
            _draw(cells, mark)
        name = shorten(printable(row.lane), gutter) if row.lane != before else ""
        lines.append(f"{name}{' ' * (gutter - columns(name))}  {cells.line(colour=colour)}".rstrip())
        before = row.lane
    return lines


def _wrap(entries: list[str], width: int) -> list[str]:
    lines = [""]
    for entry in entries:
        if lines[-1] and len(lines[-1]) + 2 + len(entry) > width:
            lines.append("")
        lines[-1] += f"  {entry}" if lines[-1] else entry
    return lines


def render_text(items: Sequence[Item], *, title: str, width: int = 100, colour: bool = False) -> str:
    """The timeline in `width` columns: a head line, the time axis, one or more lines a lane, a legend.

    A digit (or `+`) stands where that many items are too close to be told apart at this width.
    """
    if not items:
        return f"{title}: nothing happened yet\n"
    start, end = time_range(items)
    rows = pack_rows(items)
    gutter = min(MAX_GUTTER, max(columns(printable(row.lane)) for row in rows))
    plot = max(MIN_PLOT, width - gutter - 2)
    head = f"{title}: {count_text(items)}, {moment_text(start)} to {moment_text(end)} ({duration_text(end - start)})"
    used = dict.fromkeys(item.kind for item in items)
    legend = _wrap([f"{KINDS[kind][1]} {KINDS[kind][0]}" for kind in KINDS if kind in used], width)
    lines = [head, f"{'':<{gutter}}  {_axis(start, end, plot)}".rstrip()]
    lines += _row_lines(rows, (start, end), gutter, plot, colour=colour)
    return "\n".join([*lines, "", *legend, ""])
