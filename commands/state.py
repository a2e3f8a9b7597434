"""`state` and `diff`: projections now, as of a moment, and what changed between two (contract page ledger)."""

from __future__ import annotations

from commands.context import Context, dumps, emit, say
from commands.flags import Args, Command, Flag, Word
from commands.moments import until
from ledger.errors import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ledger.access import Ledger

_NAMES = ("plan", "marker", "receipts", "results", "circuits", "dispatches", "sessions", "stages", "runs")


def _known(name: str) -> None:
    if name not in _NAMES:
        raise Usage(f"no projection is called {name!r}: {', '.join(_NAMES)}")


def snapshot(ledger: Ledger, name: str, key: str | None, seq: int) -> dict[str, object]:
    """The projection after event `seq`, with the seq and hash of that head and the fold's version."""
    from projections.timetravel import projection

    reader = ledger.store.reader()
    event = reader.event(seq)
    value, fold = projection(reader, name, key, seq)
    return {
        "name": name,
        "key": key,
        "seq": seq,
        "hash": event.hash.hex() if event is not None else "0" * 64,
        "as_of": event.recorded_at if event is not None else None,
        "fold": fold,
        "state": value,
    }


def _nothing_of(ledger: Ledger, args: Args) -> bool:
    """Whether KEY names a stream that never had an event; says so, for that is mostly a mistyped key."""
    from commands.eventlines import printable
    from projections.timetravel import stream_of

    if args.key is None or ledger.store.reader().version(stream_of(args.name, args.key)):
        return False
    say(printable(f"  (no event of {stream_of(args.name, args.key)} in this ledger)"))
    return True


def _lines(value: object, at: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _lines(inner, f"{at}.{name}" if at else str(name))
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _lines(inner, f"{at}[{index}]")
    else:
        yield at, value if isinstance(value, str) else dumps(value)


def state(args: Args, context: Context) -> int:
    """Print a projection now, or as of `--at`."""
    if args.name is None:
        if args.json:
            emit(list(_NAMES))
        else:
            say("\n".join(_NAMES))
        return 0
    _known(args.name)
    ledger = context.ledger()
    seq = until(ledger.store.reader(), args.at, "--at")
    found = snapshot(ledger, args.name, args.key, seq)
    if args.json:
        emit(found)
        return 0
    from commands.eventlines import printable

    moment = (
        f"as of event {seq} {str(found['hash'])[:16]}… ({found['as_of']})"
        if seq
        else "before the first event"
    )
    say(f"{args.name} {moment}, fold {found['fold']}")
    if _nothing_of(ledger, args):
        return 0
    lines = list(_lines(found["state"]))
    width = min(60, max((len(place) for place, _ in lines), default=0))
    for place, text in lines:
        say(printable(f"  {place:<{width}}  {text}") if place else "  (nothing)")
    return 0


def _changes(old: object, new: object, at: str = "") -> Iterator[dict[str, object]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(key for key in new if key not in old)]:
            yield from _changes(old.get(name), new.get(name), f"{at}.{name}" if at else str(name))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from _changes(was, now, f"{at}[{index}]")
    elif old != new:
        yield {"field": at, "from": old, "to": new}


def diff(args: Args, context: Context) -> int:
    """Print which fields of a projection changed between two moments, and which events changed them."""
    from projections.timetravel import changing

    _known(args.name)
    ledger = context.ledger()
    reader = ledger.store.reader()
    first, last = until(reader, getattr(args, "from"), "--from"), until(reader, args.to, "--to")
    if first > last:
        raise Usage("--from must not be after --to")
    old = snapshot(ledger, args.name, args.key, first)
    new = snapshot(ledger, args.name, args.key, last)
    changes = list(_changes(old["state"], new["state"]))
    events = changing(reader, args.name, args.key, first, last)
    if args.json:
        emit(
            {
                "name": args.name,
                "key": args.key,
                "from": _place(old),
                "to": _place(new),
                "changes": changes,
                "events": events,
            }
        )
        return 0
    from commands.eventlines import line, printable

    say(
        f"{args.name} {args.key}: event {first} to {last}, {len(changes)} field{'' if len(changes) == 1 else 's'} changed"
    )
    _nothing_of(ledger, args)
    for change in changes:
        say(printable(f"  {change['field'] or args.name}: {dumps(change['from'])} -> {dumps(change['to'])}"))
    for seq in events:
        event = reader.event(seq)
        if event is not None:
            say(line(event, ledger.store))
    return 0


def _place(found: dict[str, object]) -> dict[str, object]:
    return {name: found[name] for name in ("seq", "hash", "as_of")}


COMMANDS = {
    "state": Command(
        state,
        "A projection, folded from the log: plan, marker, receipts, results, circuits, dispatches, sessions, stages, runs.\n"
        "KEY is one stream's id (all of them without). X is a seq or a time, and is included; before the first event\n"
        "the state is the empty one.",
        words=(
            Word("NAME", "which projection (default: list the names)", optional=True, offers=lambda: _NAMES),
            Word("KEY", "which stream (default: all)", optional=True),
        ),
        flags=(Flag("--at", "X", "as of this event or time"), Flag("--json", None, "one JSON object")),
        example="gatebook state circuits\ngatebook state circuits --at 1 --json",
    ),
    "diff": Command(
        diff,
        "What changed in a projection between two moments (both included), and which events changed it.",
        words=(Word("NAME", "which projection", offers=lambda: _NAMES), Word("KEY", "which stream")),
        flags=(
            Flag("--from", "X", "the earlier moment: a seq or a time", required=True),
            Flag("--to", "X", "the later moment", required=True),
            Flag("--json", None, "one JSON object"),
        ),
        example="gatebook diff circuits 'openai|codex' --from 1 --to 2",
    ),
}
