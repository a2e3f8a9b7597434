"""`replay`: verify, admit every event again, and compare the states with the views (contract page ledger)."""

from __future__ import annotations

import os
import time

from commands.context import Context, emit, say
from commands.flags import Args, Command, Flag
from commands.moments import until
from commands.verify import Remembered, compare_stream, unreadable
from ledger.errors import Tampered
from ledger.leftovers import VIEWS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger
    from ledger.verify import Report


def _views_differ(ledger: Ledger) -> list[str]:
    """What the standing views say otherwise than the log; nothing where there are none or they only lag."""
    from commands.views import check

    return check(ledger)[1]


def _judge(ledger: Ledger, args: Args) -> tuple[Report, dict[str, object]]:
    from commands.progress import Bar
    from projections.replay import replay

    reader, memory = ledger.store.reader(), Remembered(ledger)
    upto = None if args.to is None else until(reader, args.to, "--to")
    bar = Bar("replaying")
    began = time.monotonic()
    try:
        report, running = replay(
            ledger.store,
            memory=memory.head,
            progress=bar.callback(),
            upto=upto,
        )
    finally:
        bar.close()
    seconds = time.monotonic() - began
    more: dict[str, object] = {
        "admitted": running.admitted,
        "open_events": running.open_events,
        "streams": len(running.states),
        "skipped_checks": running.law.skipped,
        "views": None,
    }
    if args.rate:
        more["seconds"] = round(seconds, 3)
        more["events_per_second"] = round(report.events / seconds) if seconds else 0
    if report.ok:
        from commands.audit.against import check_recorded

        check_recorded(ledger, report)
    if report.ok and upto is None and os.path.exists(os.path.join(ledger.folder, VIEWS)):
        differ = _views_differ(ledger)
        more["views"] = "differ" if differ else "equal"
        if differ:
            from ledger.walk import Wrong

            report.blame(Wrong("views-differ", None, "views", "the states folded from the log", differ[0]))
    compare_stream(ledger, report)
    memory.compare(report)
    return report, more


def run(args: Args, context: Context) -> int:
    """Replay the ledger; exit 3 when anything is not as recorded or was not lawful."""
    more: dict[str, object] = {}
    try:
        report, more = _judge(context.ledger(), args)
    except Tampered as error:
        report = unreadable(error)
    if args.json:
        emit({**report.as_json(), **more})
    elif report.ok:
        rate = f", {more['events_per_second']} events/s" if args.rate else ""
        views = {"equal": ", the views agree", None: "", "differ": ""}[
            str(more["views"]) if more["views"] else None
        ]
        say(
            f"ok: {report.events} events verified, {more['admitted']} decided ones lawful, {more['open_events']} open ones, "
            f"{more['streams']} streams folded{views}{rate}"
        )
        if more["skipped_checks"]:
            say(f"{more['skipped_checks']} checks need content that was redacted, and were skipped")
    else:
        wrong = report.first_wrong or {}
        where = f"event {wrong['seq']}, " if wrong.get("seq") is not None else ""
        from commands.eventlines import printable

        say(
            printable(
                f"{report.verdict}: {where}{wrong.get('field')}: expected {wrong.get('expected')}, found {wrong.get('found')}"
            )
        )
        say(f"{report.events} events were checked")
    return 0 if report.ok else 3


COMMANDS = {
    "replay": Command(
        run,
        "Everything that `verify` checks, and then every event through the admission that let it in: hashes, order and\n"
        "lawfulness; and the views, where they stand, must say what the log says. Exit 3 when not.",
        flags=(
            Flag("--to", "X", "only up to this event or time"),
            Flag("--rate", None, "say how fast it went"),
            Flag("--json", None, "one JSON object"),
        ),
        example="gatebook replay --rate",
    )
}
