"""`show`: one event, whole, with its causes and effects (contract page ledger)."""

from __future__ import annotations

import sys

from commands.context import Context, emit, say
from commands.eventlines import Reach, line, printable, whole
from commands.flags import Args, Command, Flag, Word
from commands.intact import warn
from ledger.errors import Invalid
from ledger.event import Event
from ledger.sqlite import COLUMNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger

HEX = "0123456789abcdef"
MAX_CAUSES = 1000
MAX_EFFECTS = 200


def find(ledger: Ledger, text: str) -> Event:
    """The event with this number or with a hash that begins so.

    Raises:
        Invalid: there is none, or a prefix fits several.
    """
    if text.isascii() and text.isdigit() and len(text) <= 16 and text[0] != "0":  # 0017 can only be a hash's
        event = ledger.store.reader().event(int(text))
        if event is not None:
            return event
    prefix = text.lower()
    if len(prefix) < 4 or len(prefix) > 64 or prefix.strip(HEX):
        raise Invalid(
            f"no event {text!r}: give a seq (1 to {ledger.store.head().seq}) or at least 4 hex digits of a hash"
        )
    low, high = bytes.fromhex(prefix.ljust(64, "0")), bytes.fromhex(prefix.ljust(64, "f"))
    sql = f"SELECT {COLUMNS} FROM events WHERE hash BETWEEN ? AND ? ORDER BY seq LIMIT 2"  # noqa: S608 - our own columns
    rows = ledger.store.query(sql, (low, high))
    if not rows:
        raise Invalid(f"no event has a hash that begins with {prefix}")
    if len(rows) > 1:
        raise Invalid(
            f"the hashes of events {rows[0][0]} and {rows[1][0]} begin with {prefix}: give more digits"
        )
    return Event(*rows[0])  # type: ignore[arg-type]


def causes(ledger: Ledger, event: Event) -> list[Event]:
    """What caused `event`, its direct cause first, back to the one without a cause."""
    found: list[Event] = []
    reader = ledger.store.reader()
    seq = event.causation
    while seq is not None and len(found) < MAX_CAUSES:
        cause = reader.event(seq)
        if cause is None:
            break
        found.append(cause)
        seq = cause.causation
    return found


def effects(ledger: Ledger, event: Event) -> list[Event]:
    """The events that name `event` as their cause, in order, the first 200 of them."""
    from projections.causes import Causes

    causes = Causes(ledger)
    try:
        seqs = causes.first(event.seq, MAX_EFFECTS)
    finally:
        causes.close()
    reader = ledger.store.reader()
    events = (reader.event(seq) for seq in seqs)
    return [found for found in events if found is not None and found.causation == event.seq]


def run(args: Args, context: Context) -> int:
    """Print one event with its causes and effects; exit 3 where it is not what was recorded."""
    ledger = context.ledger()
    event = find(ledger, args.seq)
    before, after = causes(ledger, event), effects(ledger, event)
    promise = Reach(ledger).promise(event)
    code = 3 if warn(ledger, [event]) else 0
    if args.json:
        shown = whole(event, ledger.store)
        shown["causes"] = [cause.seq for cause in before]
        shown["effects"] = [effect.seq for effect in after]
        shown["promise"] = promise
        emit(shown)
        return code
    for name, value in whole(event, ledger.store).items():
        text = value if isinstance(value, str) and name != "content" else None
        if text is None:
            from commands.context import dumps

            text = dumps(value)
        say(f"{name:<16} {printable(text)}")
    say(f"{'promise':<16} {promise}")
    for title, events in (("caused by", before), ("effects", after)):
        if events:
            say(f"{title}:")
            for other in events:
                say("  " + line(other, ledger.store).strip())
    sys.stdout.flush()
    return code


COMMANDS = {
    "show": Command(
        run,
        "One event, whole: envelope, data, content (unless redacted), hash, how far its record is promised, what\n"
        "caused it and what it caused. Exit 3 where the event itself is not what was recorded.",
        words=(Word("SEQ", "a seq, or at least 4 hex digits of a hash"),),
        flags=(Flag("--json", None, "one JSON object"),),
        example="gatebook show 1",
    )
}
