"""The timeline as one SVG picture: light or dark as its viewer prefers, a tooltip on every mark."""

from __future__ import annotations

from commands.timeline.lanes import (
    KINDS,
    axis_ticks,
    bars_first,
    columns,
    count_text,
    describe,
    duration_text,
    gravest,
    moment_text,
    pack_rows,
    place_marks,
    shorten,
    summary,
    time_range,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from commands.timeline.lanes import Item, Mark, Row

WIDTH = 1280
GUTTER = 215
MARGIN = 16
HEAD = 78
ROW = 20
LANE_GAP = 8
CHAR = 6.3  # average width of a label's character, px, at 11 px
SMALL = 7  # narrower items are drawn as a mark, px
WIDEST = 34  # of a mark that stands for many, px
DIAMONDS = ("probe", "delivery")
CROSSES = ("failure", "rejected", "refusal")


def escape(text: str) -> str:
    """Text for XML content and attributes; characters that XML cannot hold are shown as U+FFFD."""
    clean = "".join(
        c if c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff" else "\ufffd"
        for c in text
    )
    return clean.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def style() -> str:
    """The colours of both schemes as CSS; the HTML page uses the same."""
    light = "".join(f"--{kind}:{entry[3]};" for kind, entry in KINDS.items())
    dark = "".join(f"--{kind}:{entry[4]};" for kind, entry in KINDS.items())
    return (
        f":root{{--ground:#ffffff;--ink:#1b1f24;--dim:#5b6472;--line:#d9dde3;--band:#f5f6f8;{light}}}"
        "@media (prefers-color-scheme:dark){"
        f":root{{--ground:#14171c;--ink:#e8eaed;--dim:#a3acb9;--line:#333a44;--band:#1b1f26;{dark}}}}}"
    )


def _point(kind: str, x: float, y: float) -> str:
    colour = f"var(--{kind})"
    if kind in CROSSES:
        return f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8" stroke="{colour}" stroke-width="2.4" fill="none"/>'
    if kind in DIAMONDS:
        return f'<path d="M{x:.1f} {y - 6:.1f}l6 6-6 6-6-6z" fill="{colour}"/>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>'


def _label(text: str, x: float, y: float, room: float, css: str) -> str:
    fits = int(room / CHAR)
    if fits < min(columns(text), 8):
        return ""
    return f'<text class="{css}" x="{x:.1f}" y="{y + 4:.1f}">{escape(shorten(text, fits))}</text>'


def _mark(mark: Mark, y: float, origin: float) -> str:
    x0, x1 = origin + mark.x0, origin + mark.x1
    if len(mark.items) > 1:
        kind, count = gravest(mark.items), str(len(mark.items))
        wide = max(x1 - x0, len(count) * CHAR + 8)
        first, last = mark.items[0].start, mark.items[-1].start
        title = f"{len(mark.items)} items, {moment_text(first)} to {moment_text(last)}: {summary(mark.items)}"
        return (
            f'<g><title>{escape(title)}</title><rect x="{x0:.1f}" y="{y - 7:.1f}" width="{wide:.1f}" height="14" rx="7" '
            f'fill="var(--{kind})"/><text class="on" x="{x0 + wide / 2:.1f}" y="{y + 4:.1f}" text-anchor="middle">{count}</text></g>'
        )
    item = mark.items[0]
    body = f"<g><title>{escape(describe(item))}</title>"
    if x1 - x0 < SMALL:
        return body + _point(item.kind, x0, y) + _label(item.label, x0 + 9, y, mark.room - 16, "by") + "</g>"
    edge = ' stroke-dasharray="4 3"' if item.kind == "cooldown" else ""
    fill = 0.22 if item.kind == "cooldown" else 0.9
    body += (
        f'<rect x="{x0:.1f}" y="{y - 7:.1f}" width="{x1 - x0:.1f}" height="14" rx="3" fill="var(--{item.kind})" '
        f'fill-opacity="{fill}" stroke="var(--{item.kind})"{edge}/>'
    )
    if item.end is None:
        body += f'<path d="M{x1:.1f} {y - 7:.1f}l7 7-7 7z" fill="var(--{item.kind})"/>'
    css = "by" if item.kind == "cooldown" else "on"
    inside = _label(item.label, x0 + 5, y, x1 - x0 - 8, css)
    return body + (inside or _label(item.label, x1 + 6, y, mark.room - 12, "by")) + "</g>"


def _lane_tops(rows: Sequence[Row]) -> list[tuple[Row, float, bool]]:
    """Each row with the y of its middle, and whether it begins a lane."""
    found, y, before = [], float(HEAD), None
    for row in rows:
        first = row.lane != before
        if first and before is not None:
            y += LANE_GAP
        found.append((row, y + ROW / 2, first))
        y += ROW
        before = row.lane
    return found


def _axis(span: tuple[int, int], plot: float, bottom: float) -> str:
    start, end = span
    parts = []
    for at, label in axis_ticks(start, end, 10):
        x = GUTTER + (at - start) / max(1, end - start) * plot
        parts.append(
            f'<path class="grid" d="M{x:.1f} {HEAD - 8}V{bottom:.0f}"/><text class="dim" x="{x + 3:.1f}" y="{HEAD - 14}">{label}</text>'
        )
    return "".join(parts)


def _legend(kinds: Sequence[str], y: float) -> str:
    parts, x = [], float(GUTTER)
    for kind in kinds:
        name = KINDS[kind][0]
        wide = len(name) * CHAR + 30
        if x + wide > WIDTH - MARGIN:
            x, y = float(GUTTER), y + ROW
        parts.append(
            f'{_point(kind, x + 5, y)}<text class="dim" x="{x + 15:.1f}" y="{y + 4:.1f}">{escape(name)}</text>'
        )
        x += wide
    return "".join(parts)


def render_svg(items: Sequence[Item], *, title: str) -> str:
    """The timeline as a standalone SVG document, 1280 px wide, as high as its lanes need."""
    span = time_range(items)
    rows = pack_rows(items)
    places = _lane_tops(rows)
    bottom = (places[-1][1] + ROW / 2 if places else HEAD) + 6
    kinds = [kind for kind in KINDS if any(item.kind == kind for item in items)]
    plot = WIDTH - GUTTER - MARGIN - 60
    height = (
        bottom
        + 24
        + ROW * (1 + sum(len(KINDS[kind][0]) * CHAR + 30 for kind in kinds) // (WIDTH - GUTTER - MARGIN))
    )
    body = [_axis(span, plot, bottom)] if items else []
    for row, y, first in places:
        if first:
            name = shorten(row.lane, 28)
            body.append(
                f'<text class="lane" x="{MARGIN}" y="{y + 4:.1f}"><title>{escape(row.lane)}</title>{escape(name)}</text>'
            )
            body.append(
                f'<path class="grid" d="M{MARGIN} {y - ROW / 2 - LANE_GAP / 2:.1f}H{WIDTH - MARGIN}"/>'
            )
        marks = place_marks(row, span, plot, small=SMALL, widest=WIDEST, right=60)
        body += [_mark(mark, y, GUTTER) for mark in bars_first(marks)]
    start, end = span
    said = (
        f"{count_text(items)}, {moment_text(start)} to {moment_text(end)} ({duration_text(end - start)})"
        if items
        else "nothing happened yet"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(said)}</desc>"
        f"<style>{style()}text{{font:11px system-ui,sans-serif;fill:var(--ink)}}.lane{{font-weight:600;font-size:12px}}"
        ".dim{fill:var(--dim)}.on{fill:var(--ground)}.by{fill:var(--ink)}.head{font-size:15px;font-weight:600}.grid{stroke:var(--line);fill:none}"
        "</style>"
        f'<rect width="100%" height="100%" fill="var(--ground)"/>'
        f'<text class="head" x="{MARGIN}" y="24">{escape(title)}</text><text class="dim" x="{GUTTER}" y="40">{escape(said)}</text>'
        f'{"".join(body)}<g class="legend">{_legend(kinds, bottom + 16)}</g></svg>\n'
    )
