"""`timeline`: lanes over time, in the terminal or as a file."""

from __future__ import annotations

import os
import sys

from commands.context import Context, emit, say
from commands.flags import Args, Command, Flag, Word
from commands.timeline.items import Moment, items_of
from ledger.canonical import load
from ledger.clock import parse_us
from ledger.errors import Invalid, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.timeline.lanes import Item
    from ledger.access import Ledger

MOST = 20_000  # events in one picture; more are neither legible nor quick


def moments(ledger: Ledger, correlation: str | None) -> tuple[list[Moment], int]:
    """The newest events (of a correlation or stream, if one is named), oldest first, and how many were left out.

    Raises:
        Invalid: nothing belongs to that name.
    """
    sql = "SELECT seq, envelope, data, salt IS NULL FROM events"
    values: tuple[object, ...] = ()
    if correlation is not None:
        # A refusal belongs to the stream that it was refused in.
        sql += " WHERE stream = ?1 OR (type IN ('admission.refused', 'marker.refused', 'receipt.denied') AND json_extract(CAST(data AS TEXT), '$.stream') = ?1)"
        sql += " OR (instr(envelope, CAST('\"correlation\":' AS BLOB)) AND json_extract(CAST(envelope AS TEXT), '$.correlation') = ?1)"
        values = (correlation,)
    rows = ledger.store.query(f"{sql} ORDER BY seq DESC LIMIT {MOST + 1}", values)
    if correlation is not None and not rows:
        raise Invalid(f"no event has the correlation or stream {correlation[:80]!r}")
    left_out = 0
    if len(rows) > MOST:
        left_out = int(ledger.store.query(f"SELECT count(*) FROM ({sql})", values)[0][0]) - MOST  # type: ignore[call-overload]  # noqa: S608
    found = rows[:MOST]
    if correlation is not None:  # a restore voids what any stream has open
        restores = (
            "SELECT seq, envelope, data, salt IS NULL FROM events WHERE type = 'ledger.restored' AND seq > ?"
        )
        found = list(
            {row[0]: row for row in [*found, *ledger.store.query(restores, (found[-1][0],))]}.values()
        )
    return [_moment(*row) for row in sorted(found)], left_out  # type: ignore[arg-type]


def _moment(seq: int, envelope: bytes, data: bytes, bare: int) -> Moment:
    members = load(envelope)
    return Moment(
        seq,
        parse_us(str(members["recorded_at"])),
        stream=str(members["stream"]),
        type=str(members["type"]),
        actor=str(members["actor"]),
        data=load(data),
        redacted=bool(bare) and "content_digest" in members,
    )


def picture(ledger: Ledger, correlation: str | None) -> tuple[list[Item], str]:
    """The items of a timeline and its title."""
    events, left_out = moments(ledger, correlation)
    title = correlation if correlation is not None else f"ledger {ledger.id[:12]}"
    if left_out:
        title += f" (the last {MOST} events; {left_out} earlier ones are left out)"
    return items_of(events), title


def _write(path: str, text: str) -> None:
    from ledger.files import write_whole

    write_whole(os.path.abspath(path), text.encode(), 0o644)


def run(args: Args, context: Context) -> int:
    """Draw the timeline."""
    if args.html is not None and args.svg is not None:
        raise Usage("--html and --svg: one file a call")
    items, title = picture(context.ledger(), args.correlation)
    if args.html is not None:
        from commands.timeline.page import render_page

        _write(args.html, render_page(items, title=title))
        emit({"path": args.html, "items": len(items)})
        return 0
    if args.svg is not None:
        from commands.timeline.svg import render_svg

        _write(args.svg, render_svg(items, title=title))
        emit({"path": args.svg, "items": len(items)})
        return 0
    import shutil

    from commands.timeline.terminal import render_text

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    say(
        render_text(
            items, title=title, width=shutil.get_terminal_size((100, 24)).columns, colour=colour
        ).rstrip("\n")
    )
    return 0


COMMANDS = {
    "timeline": Command(
        run,
        "Lanes over time: approvals, holds, items, attempts, cooldowns and probes, rounds, stages, receipts, deliveries,\n"
        "refusals. A number stands where that many things are too close to be told apart; the HTML page zooms in.",
        words=(Word("CORRELATION", "only what belongs to this correlation or stream", optional=True),),
        flags=(
            Flag("--html", "F", "write one self-contained page: zoom, tooltips, keyboard, light and dark"),
            Flag("--svg", "F", "write an SVG picture"),
        ),
        example="gatebook timeline run/1-2026-11-30 --html run.html",
    )
}
