"""Replay: is the whole log lawful? Verification, and then every event through the same admission that let it in.

Contract page ledger, `replay`; DESIGN, Decide.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import apsw
import msgspec

from ledger.access import ledger_id_of
from ledger.errors import Invalid, Tampered
from ledger.event import Event
from ledger.lines import read_envelope
from ledger.sharing import Other, worth_sharing
from ledger.sqlite import RANGE_SQL, SQLiteStore, connect
from ledger.verify import Report, verify
from ledger.walk import CHUNK, EPOCH, Walk, Wrong, go_on
from projections.engine import decode, reader_of
from projections.fact import Fact, Law, Unlawful
from projections.registry import TYPES, aggregate, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from ledger.lines import Envelope
    from ledger.sqlite import Row

SECOND = 1_000_000
FIRST_LOOK = 4 * CHUNK  # events that tell whether most are open ones
# Types that may carry an SSH signature, which replay verifies again (projections.authority).
SIGNED = frozenset(
    ("plan.approved", "receipt.issued", "drift.accepted", "dispatch.approved", "authority.changed")
)
# Types that say something of other events, which admission does not see.
TELLING = frozenset(("ledger.redacted", "ledger.restored"))


# What one event type needs: the class of its aggregate's states, the fold's functions, how its data is read. A plain
# tuple, since the loop over all events takes it apart at once.
Judge = tuple[Any, Any, int, Any, Any, Any, bool, str]
NOBODY: Judge = (Ellipsis, None, 0, None, None, None, False, "")


def _judge_of(name: str, module: Any) -> Judge:
    """`(state class, initial, v, read, admit, evolve, more, fold)` of an event type; `more`: admission is not all."""
    state = type(module.initial(f"{module.KIND}/"))
    v, read = reader_of(name)
    return state, module.initial, v, read, module.admit, module.evolve, name in SIGNED | TELLING, module.FOLD


class Replay:
    """Folds and admits every event in order; `states` at the end are what the log says now, `wrong` what was not lawful.

    Events come from a verification that found them right (`take`), or are read here (`run`), and then judged as if they
    were: hashes and forms are verification's business, not this one's. Nothing follows the first event that was wrong.
    """

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store
        self.states: dict[str, Any] = {}
        self.law = Law(self._state)
        self.admitted = 0
        self.open_events = 0
        self.next = 1
        self.wrong: Wrong | None = None
        self._second, self._second_ends = 0, EPOCH  # the second that events are in: us, and its last moment
        self._ledger_id = ""
        self._judges: dict[str, Judge] = {}
        # By version first: few have any, so that most events look no further.
        self._snapshots: dict[int, dict[str, tuple[str, bytes]]] = {}
        for stream, version, fold, state in store.query("SELECT stream, version, fold, state FROM snapshots"):
            of_version = self._snapshots.setdefault(int(str(version)), {})
            of_version[str(stream)] = (str(fold), state)  # type: ignore[assignment]

    def _state(self, stream: str) -> Any:
        found = self.states.get(stream)
        return aggregate(kind_of(stream)).initial(stream) if found is None else found

    def _judge(self, envelope: Envelope) -> Judge:
        """What the type of `envelope` needs, when it may stand in that stream."""
        name, stream = envelope.type, envelope.stream
        kind = kind_of(stream)
        if name not in TYPES or TYPES[name][0] != kind:
            raise Wrong(
                "not-lawful",
                envelope.seq,
                "type",
                "a type of the vocabulary in its own kind of stream",
                f"{name} in {stream}",
            )
        if name not in self._judges:
            try:
                self._judges[name] = _judge_of(name, aggregate(kind))
            except (KeyError, ModuleNotFoundError):
                raise Wrong(
                    "not-lawful", envelope.seq, "stream", "a kind of stream this gatebook knows", kind
                ) from None
        return self._judges[name]

    def take(self, rows: list[Row], envelopes: Iterable[Envelope]) -> None:
        """Judge and fold rows that follow the ones before: `wrong` is the first one that is not lawful, or not known here."""
        if self.wrong is not None:
            return
        left = iter(rows)
        try:
            self._rows(left, envelopes)
        except Wrong as wrong:
            # Its own number: an envelope that nobody has verified yet may name another, and blame an event that is right.
            wrong.seq = rows[-1 - len(list(left))][0]
            self.wrong = wrong
        except (msgspec.MsgspecError, TypeError) as error:
            self.wrong = Wrong("content-mismatch", None, "envelope", "the members of format 1", str(error))
        self.next = rows[-1][0] + 1

    def run(
        self, last: int, progress: Callable[[int, int], None] | None = None, other: Other | None = None
    ) -> None:
        """Take the events up to `last`, in pieces; without reading those that `other` found to be open ones all."""
        connection = connect(self._store.path, walking=True)
        try:
            for end in (last + 1,) if other is None else other.ends:
                if self.next >= end or self.wrong is not None:
                    continue
                found = other.found(end) if other is not None else None
                if found is not None and _all_open(found):
                    self.open_events += end - self.next
                    self.next = end
                else:
                    self._read(connection, end)
                if progress is not None:
                    progress(self.next - 1, last)
        finally:
            connection.close()

    def _read(self, connection: apsw.Connection, end: int) -> None:
        rows = iter(connection.execute(RANGE_SQL, (self.next, end - 1)))
        while chunk := list(islice(rows, CHUNK)):
            self.take(chunk, map(read_envelope, [row[1] for row in chunk]))
            if self.wrong is not None:
                return
        self.next = end

    def beside(
        self, walk: Walk, connection: apsw.Connection, last: int, progress: Callable[[int, int], None] | None
    ) -> None:
        """Move `walk` to event `last` together with another process, and take the events meanwhile.

        The other one verifies from the end on. Where most events are open ones there is little to admit, so this one
        verifies, too, what it takes, until they meet; else it takes everything first.
        """
        walk.passed = self.take
        if not go_on(walk, connection, min(walk.next + FIRST_LOOK, last + 1), last):
            return
        other = Other(self._store.path, walk.next, last + 1)
        try:
            for end in other.ends:
                if other.found(end) is not None or self.admitted > self.open_events:
                    break
                if not go_on(walk, connection, end, last):
                    return
                if progress is not None:
                    progress(walk.events, last)
            walk.passed = None
            self.run(last, progress, other)
            for end in other.meet(walk):
                if not go_on(walk, connection, end, last):
                    return
        finally:
            other.stop()

    def _rows(self, rows: Iterator[Row], envelopes: Iterable[Envelope]) -> None:
        """Whatever stands in this loop every event pays for."""
        states, judges, law, snapshots = self.states, self._judges, self.law, self._snapshots
        second, ends = self._second, self._second_ends
        last = ""
        for row, envelope in zip(rows, envelopes, strict=True):
            name, stream = envelope.type, envelope.stream
            if name != last:  # events of one type often stand together
                last = name
                state_class, initial, v, read, admit, evolve, more, fold = judges.get(name, NOBODY)
            state = states.get(stream)
            # A state is of the aggregate's own class, so that its class says of which kind the stream is.
            if type(state) is not state_class:
                if name.startswith("x.") and stream.startswith("x"):
                    self.open_events += 1  # it takes no part in any fold
                    continue
                state_class, initial, v, read, admit, evolve, more, fold = self._judge(envelope)
                if state is None:
                    state = initial(stream)
            try:
                data = read(row[2]) if envelope.v == v else self._data(envelope, row)
            except msgspec.MsgspecError:
                data = self._data(envelope, row)
            recorded = envelope.recorded_at
            if recorded > ends:
                second, ends = _second_of(recorded)
            version, digest = envelope.version, envelope.content_digest
            fact = Fact(
                envelope.seq, stream, version, name, data, second + recorded.microsecond - envelope.clock_behind,
                envelope.actor, envelope.via, envelope.correlation, envelope.causation,
                None if digest is None else self._content(row), digest,
            )  # fmt: skip
            try:
                admit(state, fact, law)
                if more:
                    self._check_more(fact)
                states[stream] = state = evolve(state, fact)
            except (Unlawful, Invalid) as error:
                raise _unlawful(envelope, error) from None
            self.admitted += 1
            if name == "ledger.restored":
                law.void_before = envelope.seq
            if version in snapshots:
                self._compare(envelope, state, fold)
        self._second, self._second_ends = second, ends

    def _content(self, row: Row) -> bytes | None:
        """An event's content, from its artifact where it lies outside the database; None where it was erased."""
        if row[4] is None and row[3] is not None:
            return self._store.artifact(Event(*row))
        return row[4]

    def _data(self, envelope: Envelope, row: Row) -> Any:
        """The data of an event in an older schema version; Wrong when it breaks its schema."""
        try:
            return decode(envelope.type, envelope.v, row[2], envelope.seq)
        except Tampered as error:
            raise Wrong(
                "not-lawful", envelope.seq, "data", f"the schema of {envelope.type}", str(error)
            ) from None

    def _compare(self, envelope: Envelope, state: Any, fold: str) -> None:
        """A snapshot that this fold made must be the state that it stands for."""
        kept = self._snapshots[envelope.version].get(envelope.stream)
        if kept is not None and kept[0] == fold and msgspec.json.encode(state) != kept[1]:
            raise Wrong(
                "not-lawful",
                envelope.seq,
                f"snapshot of {envelope.stream}",
                "the state folded from the events",
                "another state",
            )

    def _check_more(self, fact: Fact) -> None:
        """What admission cannot see: whether a signature holds, and whether other events are as this one says."""
        if fact.type == "ledger.restored":
            self._check_told(
                fact, "hash of the event before", fact.data.after_hash, self._hash(fact.data.after)
            )
        elif fact.type == "ledger.redacted":
            for seq in fact.data.events:
                self._check_told(fact, f"event {seq}", "content", self._content_of(seq))
        else:
            self._check_signature(fact)

    def _check_told(self, fact: Fact, what: str, told: str, found: str) -> None:
        if told != found:
            raise Wrong("not-lawful", fact.seq, what, told, found)

    def _hash(self, seq: int) -> str:
        event = self._store.reader().event(seq)
        return "no such event" if event is None else event.hash.hex()

    def _content_of(self, seq: int) -> str:
        event = self._store.reader().event(seq)
        return "content" if event is not None and event.content_digest is not None else "no content"

    def _check_signature(self, fact: Fact) -> None:
        from ledger.errors import Refused
        from projections.authority import check_fact

        if not self._ledger_id:
            genesis = self._store.reader().event(1)
            self._ledger_id = ledger_id_of(genesis.envelope) if genesis is not None else ""
        try:
            check_fact(fact, self._state("ledger"), self._ledger_id)
        except Unlawful:
            raise
        except Refused as error:
            raise Wrong(
                "not-lawful",
                fact.seq,
                "signature",
                "one that a listed signer made over this event",
                str(error),
            ) from None


def _second_of(recorded: datetime) -> tuple[int, datetime]:
    """The whole second that `recorded` is in: us since 1970, and its last moment."""
    passed = recorded - EPOCH
    return (passed.days * 86_400 + passed.seconds) * SECOND, recorded.replace(microsecond=SECOND - 1)


def _unlawful(envelope: Envelope, error: Unlawful | Invalid) -> Wrong:
    expected = (
        "what the admission of its aggregate allows"
        if isinstance(error, Unlawful)
        else "data in the form its type gives"
    )
    return Wrong("not-lawful", envelope.seq, envelope.type, expected, str(error))


def _place(seq: object) -> float:
    """Where a wrong event stands; the end, for what belongs to none."""
    return seq if isinstance(seq, int) else float("inf")


def _all_open(summary: dict[str, Any]) -> bool:
    """Whether all the events that another process walked take no part in any fold."""
    if "wrong" in summary:
        return False
    return all(name.startswith("x.") for name in summary["types"]) and all(
        stream.startswith("x") for stream in summary["streams"]
    )


def replay(
    store: SQLiteStore,
    *,
    memory: tuple[int, bytes] | None = None,
    progress: Callable[[int, int], None] | None = None,
    upto: int | None = None,
) -> tuple[Report, Replay]:
    """Verify every event and admit it in its turn, up to event `upto` (None: the head).

    The report's verdict is `not-lawful` for the first event that its aggregate would not have let in.
    """
    running = Replay(store)
    small = not worth_sharing(store, store.head().seq if upto is None else upto)
    report = verify(
        store,
        memory=memory,
        upto=upto,
        through=None
        if small
        else lambda walk, connection, last: running.beside(walk, connection, last, progress),
    )
    # Where something is not as recorded, an earlier event may not have been lawful.
    if (small or not report.ok) and report.verdict != "unreadable":
        running.run(int(min(report.head_seq, _place((report.first_wrong or {}).get("seq")) - 1)), progress)
    wrong = running.wrong
    if wrong is not None and (report.ok or _place(wrong.seq) < _place((report.first_wrong or {}).get("seq"))):
        report.blame(wrong)
    return report, running
