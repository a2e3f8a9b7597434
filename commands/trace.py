"""`trace`: why was this allowed, back to a person's words; and what did it cause, forward."""

from __future__ import annotations

from bisect import bisect_left

from commands.context import emit, say
from commands.eventlines import printable
from commands.flags import Args, Command, Flag, Word, whole_number
from ledger.canonical import load
from ledger.errors import Invalid
from projections.causes import Causes, named
from projections.reasons import GROUNDS, WORDS, History, Reason, Step, grounds, other_streams
from projections.registry import AGGREGATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commands.context import Context
    from ledger.access import Ledger
    from ledger.event import Event

SHOWN = 240  # characters of a person's words in text output
REFUSALS = ("admission.refused", "marker.refused", "receipt.denied")
# The types that name a receipt and are not in its own stream.
UNDER_RECEIPT = ("item.handed_off", "result.recorded")
DIGEST_ONLY = "(words of which only a digest was kept)"  # of a receipt, labelled just `words`
DEEPEST = 30  # levels of the tree in text output


def _step(event: Event) -> Step:
    return Step(event.seq, event.stream, event.type, load(event.data), event.causation)


class Tracer:
    """Follows grounds over one ledger; loads each stream once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._reader = ledger.store.reader()
        self._histories: dict[str, History] = {}
        self._last: dict[str, list[int]] = {}
        self._events: dict[int, Event] = {}
        self._causes = Causes(ledger)

    def close(self) -> None:
        """Let go of the views, which nobody can write while they are read."""
        self._causes.close()

    def event(self, seq: int) -> Event:
        """The event with that number.

        Raises:
            Invalid: there is none.
        """
        if seq not in self._events:
            found = self._reader.event(seq)
            if found is None:
                raise Invalid(f"there is no event {seq}; the ledger ends at {self._reader.head().seq}")
            self._events[seq] = found
        return self._events[seq]

    def _history(self, stream: str) -> History:
        if stream not in self._histories:
            rows = self._ledger.store.query(
                "SELECT seq, type, data FROM events WHERE stream = ? ORDER BY version", (stream,)
            )
            self._histories[stream] = History(Step(seq, stream, type, data, None) for seq, type, data in rows)  # type: ignore[arg-type]
            self._last[stream] = [seq for seq, _, _ in rows]  # type: ignore[misc]
        return self._histories[stream]

    def reasons(self, event: Event) -> list[Reason]:
        """What `event` rests on, in its own and in other streams."""
        step = _step(event)
        rests = event.type in GROUNDS or event.type == "stage.minted"
        found = grounds(step, self._history(event.stream) if rests else History())
        for relation, stream in other_streams(step):
            self._history(stream)
            seqs = self._last[stream]
            at = bisect_left(seqs, event.seq)
            if at and all(reason.seq != seqs[at - 1] for reason in found):
                found.append(Reason(relation, seqs[at - 1]))
        return found

    def causes(self, starts: list[Event]) -> dict[int, list[Reason]]:
        """Every event that `starts` rest on, each with its own reasons; the starts included."""
        found: dict[int, list[Reason]] = {}
        todo = [event.seq for event in starts]
        while todo:
            seq = todo.pop()
            if seq not in found:
                found[seq] = self.reasons(self.event(seq))
                todo += [reason.seq for reason in found[seq]]
        return found

    def effects(self, starts: list[Event]) -> dict[int, list[Reason]]:
        """Every later event that rests on one of `starts`, directly or not, each with the reasons that lead there.

        Only events that can rest on one are looked at, in the order of the log: those that name it as their cause,
        the later ones of its stream, and those that name its stream or number in their data.
        """
        from heapq import heappop, heappush

        reached = {event.seq for event in starts}
        found: dict[int, list[Reason]] = {}
        streams: set[str] = set()
        todo: list[int] = []

        def follow(event: Event) -> None:
            for seq in self._causes.of(event.seq):
                heappush(todo, seq)
            if event.stream not in streams:
                streams.add(event.stream)
                for seq in self._later(event):
                    heappush(todo, seq)

        for event in sorted(starts, key=lambda event: event.seq):
            follow(event)
        last = 0
        while todo:
            seq = heappop(todo)
            if seq == last:
                continue
            last = seq
            event = self.event(seq)
            leading = [reason for reason in self.reasons(event) if reason.seq in reached]
            if leading:
                reached.add(seq)
                found[seq] = leading
                follow(event)
        return found

    def _later(self, event: Event) -> list[int]:
        """The seqs of later events that may rest on `event` or a later one of its stream, by anything but causation."""
        kind, _, name = event.stream.partition("/")
        query = self._ledger.store.query
        rows = []
        if kind in AGGREGATES:
            rows = query(
                "SELECT seq FROM events WHERE stream = ? AND version > ?", (event.stream, event.version)
            )
        wanted = [("stream", type, event.stream) for type in REFUSALS]
        if kind == "receipt":
            wanted += [("receipt_id", type, name) for type in UNDER_RECEIPT]
        rows += query(
            "SELECT seq FROM events WHERE type IN ('ledger.redacted', 'ledger.restored') AND seq > ?",
            (event.seq,),
        )
        found: list[int] = [row[0] for row in rows]  # type: ignore[misc]
        for member, type, value in wanted:
            found += named(self._ledger, type, member, value, event.seq)
        return found + (self._causes.children(name, event.seq) if kind == "receipt" else [])


def words_of(ledger: Ledger, event: Event) -> str | None:
    """What a person said, where `event` carries it: the words, a title or an outcome; None otherwise."""
    if event.type not in WORDS:
        return None
    if event.redacted:
        return "(redacted)"
    content = ledger.store.artifact(event)
    if content is None:
        label = load(event.data).get("authority_reference")
        if not isinstance(label, dict) or "label" not in label:
            return None
        return DIGEST_ONLY if label["label"] == "words" else str(label["label"])
    text = content.decode("utf-8", "replace")
    if text.startswith("{"):
        from ledger.canonical import parse

        try:
            value = parse(text)
        except Invalid:
            return text
        for name in ("title", "outcome", "description", "what"):
            if isinstance(value, dict) and isinstance(value.get(name), str):
                return str(value[name])
    return text


def _describe(ledger: Ledger, event: Event, reasons: list[Reason]) -> dict[str, Any]:
    node: dict[str, Any] = {
        "seq": event.seq,
        "type": event.type,
        "stream": event.stream,
        "recorded_at": event.recorded_at,
        "actor": event.actor,
        "via": event.via,
    }
    words = words_of(ledger, event)
    if words is not None:
        node["words"] = words
    if event.redacted:
        node["redacted"] = True
    node["because"] = [{"relation": reason.relation, "seq": reason.seq} for reason in reasons]
    return node


def _starts(ledger: Ledger, tracer: Tracer, what: str) -> list[Event]:
    """The events that WHAT names: a number, a whole stream (its first and last event), a commit or a hash prefix."""
    reader = ledger.store.reader()
    # Digits alone are a number, unless they can only be the beginning of a hash.
    if (
        what.isascii()
        and what.isdigit()
        and len(what) <= 16
        and (len(what) < 6 or int(what) <= reader.head().seq)
    ):
        return [tracer.event(whole_number(what, "SEQ"))]
    if what == "ledger" or "/" in what:
        events = reader.stream(what)
        if not events:
            raise Invalid(f"stream {what[:80]!r} has no event here")
        return events
    prefix = what.lower()
    if not 6 <= len(prefix) <= 64 or prefix.strip("0123456789abcdef"):
        raise Invalid(
            f"{what[:80]!r}: give an event's number, a stream (kind/id), or 6 or more hex digits of a commit or event hash"
        )
    commits = ledger.store.query(
        "SELECT seq FROM events WHERE type = 'commit.recorded' AND json_extract(CAST(data AS TEXT), '$.sha') LIKE ? || '%'",
        (prefix,),
    )
    found = commits or ledger.store.query(
        "SELECT seq FROM events WHERE hash BETWEEN ? AND ? LIMIT 2",
        (bytes.fromhex(prefix.ljust(64, "0")), bytes.fromhex(prefix.ljust(64, "f"))),
    )
    if not found:
        raise Invalid(f"no commit or event begins with {prefix}")
    if len(found) > 1:
        raise Invalid(f"{prefix} stands for more than one event: give more digits")
    return [tracer.event(int(found[0][0]))]  # type: ignore[call-overload]


def trace(ledger: Ledger, what: str) -> dict[str, Any]:
    """The whole answer for WHAT (see `_starts`): the asked events, their causes, their effects, and one sentence.

    Raises:
        Invalid: WHAT names nothing here.
    """
    tracer = Tracer(ledger)
    try:
        return _traced(ledger, tracer, what)
    finally:
        tracer.close()


def _traced(ledger: Ledger, tracer: Tracer, what: str) -> dict[str, Any]:
    named = _starts(ledger, tracer, what)
    asked = {event.seq for event in named}
    causes = tracer.causes([named[-1]] if len(named) > 1 else named)
    effects = tracer.effects([named[0]] if len(named) > 1 else named)
    return {
        "asked": sorted(asked),
        "answer": _answer(ledger, tracer, named[-1], causes),
        "causes": [_describe(ledger, tracer.event(seq), causes[seq]) for seq in sorted(causes, reverse=True)],
        "effects": [_describe(ledger, tracer.event(seq), effects[seq]) for seq in sorted(effects)],
    }


def _answer(ledger: Ledger, tracer: Tracer, event: Event, causes: dict[int, list[Reason]]) -> str:
    name = f"event {event.seq} ({event.type})"
    if event.type in REFUSALS:
        data = load(event.data)
        return f"{name} was not allowed: {data.get('type')} was refused, {data.get('reason')}"
    spoken = []
    for seq in sorted(causes):
        cause = tracer.event(seq)
        words = words_of(ledger, cause)
        if words is not None:
            text = " ".join(words.split())
            principal = load(cause.data).get("principal")
            signed = f", signed by {principal}" if principal else ""
            spoken.append(
                f"{cause.type} (event {seq}, {cause.actor}{signed}): “{text if len(text) <= SHOWN else text[:SHOWN] + '…'}”"
            )
    if spoken:
        return f"{name} goes back to {'; '.join(spoken)}"
    return f"no person's words stand behind {name}; it goes back to event {min(causes)}"


def _line(node: dict[str, Any], relation: str = "", here: str = "") -> str:
    """An event in one line; its stream is left out where it is `here`."""
    words = f"  “{' '.join(str(node['words']).split())[:SHOWN]}”" if "words" in node else ""
    gone = "  [content redacted]" if node.get("redacted") else ""
    lead = f"{relation} " if relation else ""
    stream = "" if node["stream"] == here else f"  {node['stream']}"
    return printable(
        f"{lead}{node['seq']} {node['type']}{stream}  {node['recorded_at']}  {node['actor']}{gone}{words}"
    )


def _tree(nodes: dict[int, dict[str, Any]], start: int) -> list[str]:
    """The causes of `start` as lines of a tree; a node that was shown is not taken apart again, nor one too deep."""
    lines: list[str] = []
    shown: set[int] = set()
    # (event, relation, what stands before its line, what stands before its causes' lines, depth)
    todo = [(start, "", "", "", 0)]
    while todo:
        seq, relation, lead, below, depth = todo.pop()
        reasons = nodes[seq]["because"]
        known = seq in shown
        deep = depth >= DEEPEST and bool(reasons)
        here = nodes[start]["stream"] if relation else ""
        lines.append(
            lead
            + _line(nodes[seq], relation, here)
            + ("  (above)" if known else "  … (--json shows all)" if deep else "")
        )
        if known or deep:
            continue
        shown.add(seq)
        for at, reason in reversed(list(enumerate(reasons))):
            last = at == len(reasons) - 1
            branch, rest = ("└─ ", "   ") if last else ("├─ ", "│  ")
            todo.append((reason["seq"], reason["relation"], below + branch, below + rest, depth + 1))
    return lines


def _changed(ledger: Ledger, found: dict[str, Any]) -> bool:
    """Whether a cause in the answer was changed since it was recorded; says which."""
    from commands.intact import warn

    reader = ledger.store.reader()
    events = (reader.event(node["seq"]) for node in reversed(found["causes"]))
    return warn(ledger, (event for event in events if event is not None))


def run(args: Args, context: Context) -> int:
    """Print the causes as a tree and the effects in order; JSON with --json. Exit 3 where a cause was changed."""
    ledger = context.ledger()
    found = trace(ledger, args.what)
    code = 3 if _changed(ledger, found) else 0
    if args.json:
        emit(found)
        return code
    say(printable(found["answer"]))
    nodes = {node["seq"]: node for node in found["causes"]}
    say("\nWhy:")
    asked = max(nodes)
    for line in _tree(nodes, asked):
        say(line)
    say("\nWhat followed:" if found["effects"] else "\nNothing rests on it.")
    for node in found["effects"]:
        say(
            f"  {_line(node, here=nodes[asked]['stream'])}  ← {', '.join(str(reason['seq']) for reason in node['because'])}"
        )
    return code


COMMANDS = {
    "trace": Command(
        run,
        "Why was this allowed? Follows what the event rests on back to a person's words, and forward to all it caused.\n"
        "WHAT is an event's number, a stream (receipt/ID, run/…, session/…), or 6 or more hex digits of a commit or event hash.\n"
        "Exit 3 where a cause is not what was recorded.",
        words=(Word("WHAT", "SEQ, STREAM, or a commit's or event's hash prefix"),),
        flags=(Flag("--json", None, "the whole answer as JSON"),),
        example="gatebook trace receipt/4f1c",
    )
}
