"""`log`: the events, oldest first (contract page ledger)."""

from __future__ import annotations

import sys
import time

from commands.context import Context, dumps, say
from commands.eventlines import Reach, line, whole
from commands.flags import Args, Command, Flag
from commands.moments import since, until
from ledger.errors import Usage
from ledger.event import Event
from ledger.sqlite import COLUMNS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterator

    from ledger.access import Ledger

POLL_SECONDS = 0.1
PAGE = 500


def _glob(pattern: str) -> str:
    """A shell's GLOB as SQLite has it: `[!a]` is `[^a]` there, and a bracket that nothing closes stands for itself."""
    done, at = "", 0
    while at < len(pattern):
        if pattern[at] != "[":
            done, at = done + pattern[at], at + 1
            continue
        negated = pattern[at + 1 : at + 2] in ("!", "^") and at + 1 < len(pattern)
        begin = at + 2 if negated else at + 1
        end = pattern.find("]", begin + 1)  # one that stands first is a member of the set
        if end < 0:
            done, at = f"{done}[[]", at + 1
        else:
            done, at = f"{done}[{'^' if negated else ''}{pattern[begin : end + 1]}", end + 1
    return done


def _compiled(pattern: str) -> re.Pattern[str]:
    """The regular expression, or Usage with the reason; what Python only warns of is meant as it is written."""
    import re
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise Usage(f"--grep: {error}") from None
    except RecursionError:
        raise Usage("--grep: nested too deep") from None


def _member(name: str) -> str:
    return f"json_extract(CAST(envelope AS TEXT), '$.{name}')"


class Filter:
    """Which events are asked for; `sql` for what the database can judge, `matches` for the rest."""

    def __init__(self, args: Args) -> None:
        self.exact_stream: str | None = None
        conditions: list[str] = []
        self.values: list[object] = []
        if args.stream is not None and not set(args.stream) & set("*?["):
            self.exact_stream = args.stream
        for given, column in ((args.stream, "stream"), (args.type, "type"), (args.actor, _member("actor"))):
            if given is not None:
                conditions.append(f"{column} {'=' if given == self.exact_stream else 'GLOB'} ?")
                self.values.append(given if given == self.exact_stream else _glob(given))
        if args.correlation is not None:
            conditions.append(f"{_member('correlation')} = ?")
            self.values.append(args.correlation)
        self.where = "".join(f" AND {condition}" for condition in conditions)
        self.order = "version" if self.exact_stream is not None else "seq"
        self._pattern = None if args.grep is None else _compiled(args.grep)

    def matches(self, event: Event, ledger: Ledger) -> bool:
        """Whether `--grep` finds something in the event's envelope, data or content."""
        if self._pattern is None:
            return True
        content = ledger.store.artifact(event) or b""
        texts = (event.envelope, event.data, content)
        return any(self._pattern.search(text.decode("utf-8", "replace")) for text in texts)


def _page(
    ledger: Ledger, wanted: Filter, first: int, last: int, size: int, *, backwards: bool
) -> list[Event]:
    rows = ledger.store.query(
        f"SELECT {COLUMNS} FROM events WHERE seq >= ? AND seq <= ?{wanted.where} "  # noqa: S608 - our own columns
        f"ORDER BY {wanted.order} {'DESC' if backwards else 'ASC'} LIMIT {size:d}",
        (first, last, *wanted.values),
    )
    return [Event(*row) for row in rows]  # type: ignore[arg-type]


def select(
    ledger: Ledger, wanted: Filter, first: int, last: int, *, backwards: bool = False, size: int = PAGE
) -> Iterator[Event]:
    """The wanted events with first <= seq <= last, in order, or from the last one backwards; `size` are read at a time."""
    while first <= last:
        page = _page(ledger, wanted, first, last, size, backwards=backwards)
        yield from (event for event in page if wanted.matches(event, ledger))
        if len(page) < size:
            return
        if backwards:
            last = page[-1].seq - 1
        else:
            first = page[-1].seq + 1


def _last(ledger: Ledger, wanted: Filter, first: int, last: int, count: int) -> list[Event]:
    found: list[Event] = []
    if count:
        for event in select(ledger, wanted, first, last, backwards=True, size=min(count, PAGE)):
            found.append(event)
            if len(found) == count:
                break
    return found


def _waiting(ledger: Ledger, context: Context) -> Callable[[], object]:
    """How to wait for more: of a fleet's ledger, it comes with following the stream."""
    if not ledger.store.url:
        return lambda: time.sleep(POLL_SECONDS)
    from commands.sync import Follower

    return Follower(ledger, context).wait


def _follow(
    ledger: Ledger, wanted: Filter, after: int, begin: str | None, wait: Callable[[], object]
) -> Iterator[Event]:
    """Events after `after` and not before `begin` (a seq or time), as they come, for as long as the reader stays."""
    while True:
        head = ledger.store.head().seq
        if head > after:
            first = since(ledger.store.reader(), begin)  # a moment that had not come may have come by now
            yield from select(ledger, wanted, max(after + 1, first), head)
            after = head
        sys.stdout.flush()
        wait()


def _print(event: Event, ledger: Ledger, reach: Reach, *, as_json: bool) -> None:
    promise = reach.promise(event)
    say(
        dumps({**whole(event, ledger.store), "promise": promise})
        if as_json
        else line(event, ledger.store, promise)
    )


def run(args: Args, context: Context) -> int:
    """Print the events that the flags ask for; `-n` takes the last N of them."""
    if args.follow and (args.reverse or args.until is not None):
        raise Usage("--follow goes on for ever; it does not go with --reverse or --until")
    ledger = context.ledger()
    reader = ledger.store.reader()
    wanted, reach = Filter(args), Reach(ledger)
    first, last = since(reader, args.since), until(reader, args.until)
    if args.n is not None:
        found = _last(ledger, wanted, first, last, args.n)
        events: Iterator[Event] = iter(found if args.reverse else reversed(found))
    else:
        events = select(ledger, wanted, first, last, backwards=args.reverse)
    for event in events:
        _print(event, ledger, reach, as_json=args.json)
    if args.follow:
        try:
            for event in _follow(ledger, wanted, last, args.since, _waiting(ledger, context)):
                _print(event, ledger, reach, as_json=args.json)
        except KeyboardInterrupt:
            return 0
    return 0


COMMANDS = {
    "log": Command(
        run,
        "The events, oldest first. X is a seq, or a time with a zone; both ends are included.\n"
        "GLOB: * ? and [a-z], as the shell has them. The sign after the number says how far the record is promised:\n"
        "none recorded, = replicated by a cluster, ~ self-signed, + attested by a checkpoint, * witnessed.",
        flags=(
            Flag("--stream", "GLOB", "only these streams"),
            Flag("--type", "GLOB", "only these types"),
            Flag("--actor", "GLOB", "only these actors"),
            Flag("--correlation", "C", "only what belongs to C"),
            Flag("--since", "X", "from here on"),
            Flag("--until", "X", "up to here"),
            Flag("--grep", "RE", "a regular expression over envelope, data and content"),
            Flag("-n", "N", "the last N of them", number=True),
            Flag("--reverse", None, "newest first"),
            Flag("--follow", None, "go on with new events as they come"),
            Flag("--json", None, "whole events, one JSON object a line"),
        ),
        example="gatebook log -n 20\ngatebook log --type 'x.*' --since 2 --json",
    )
}
