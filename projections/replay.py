"""Replay: is the whole log lawful? Verification, and then every event through the same admission that let it in.

Contract page ledger, `replay`; DESIGN, Decide.
"""

from __future__ import annotations

import msgspec

from ledger.access import ledger_id_of
from ledger.errors import Invalid, Tampered
from ledger.event import Event
from ledger.lines import read_envelope
from ledger.sqlite import RANGE_SQL, SQLiteStore, connect
from ledger.verify import (
    EPOCH,
    PROGRESS_EVERY,
    WORTH_A_PROCESS,
    Elsewhere,
    Report,
    Wrong,
    verify,
)
from projections.engine import decode, reader_of
from projections.fact import Fact, Law, Unlawful
from projections.registry import TYPES, aggregate, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ledger.lines import Envelope
    from ledger.sqlite import Row

SECOND = 1_000_000
# Types that may carry an SSH signature, which replay verifies again (projections.authority).
SIGNED = frozenset(
    ("plan.approved", "receipt.issued", "drift.accepted", "dispatch.approved", "authority.changed")
)


class Judge:
    """What one event type needs, looked up once: its aggregate, its fold's functions, its reader of data."""

    __slots__ = ("admit", "evolve", "fold", "initial", "read", "signed", "state", "v")

    def __init__(self, name: str, module: Any) -> None:
        self.fold = module.FOLD
        self.admit = module.admit
        self.evolve = module.evolve
        self.initial = module.initial
        self.v, self.read = reader_of(name)
        self.signed = name in SIGNED
        self.state = type(module.initial(f"{module.KIND}/"))


class Replay:
    """Folds and admits every event in order; `states` at the end are what the log says now."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store
        self.states: dict[str, Any] = {}
        self.law = Law(self._state)
        self.admitted = 0
        self.open_events = 0
        self._ledger_id = ""
        self._judges: dict[str, Judge] = {}
        self._snapshots: dict[str, dict[int, tuple[str, bytes]]] = {}
        for stream, version, fold, state in store.query("SELECT stream, version, fold, state FROM snapshots"):
            of_stream = self._snapshots.setdefault(str(stream), {})
            of_stream[int(str(version))] = (str(fold), state)  # type: ignore[assignment]

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
                self._judges[name] = Judge(name, aggregate(kind))
            except (KeyError, ModuleNotFoundError):
                raise Wrong(
                    "not-lawful", envelope.seq, "stream", "a kind of stream this gatebook knows", kind
                ) from None
        return self._judges[name]

    def run(self, last: int, progress: Callable[[int, int], None] | None = None) -> None:
        """Judge and fold the events up to `last`; hashes and forms are verification's business, not this one's.

        Raises:
            Wrong: the first event that is not lawful, or of a type or schema version that this gatebook does not know.
        """
        connection = connect(self._store.path, walking=True)
        try:
            if progress is None:
                self._rows(connection.execute(RANGE_SQL, (1, last)))
                return
            for start in range(1, last + 1, PROGRESS_EVERY):
                upto = min(last, start + PROGRESS_EVERY - 1)
                self._rows(connection.execute(RANGE_SQL, (start, upto)))
                progress(upto, last)
        except (msgspec.MsgspecError, TypeError) as error:
            raise Wrong("content-mismatch", None, "envelope", "the members of format 1", str(error)) from None
        finally:
            connection.close()

    def _rows(self, rows: Iterable[Row]) -> None:
        """Judge and fold rows that follow the ones before; whatever stands in this loop every event pays for."""
        states, judges, law, snapshots = self.states, self._judges, self.law, self._snapshots
        before, moment = EPOCH, 0  # reckoned on from event to event, in small numbers
        for row in rows:
            envelope = read_envelope(row[1])
            name, stream = envelope.type, envelope.stream
            judge, state = judges.get(name), states.get(stream)
            # A state is of the aggregate's own class, so that its class says of which kind the stream is.
            if judge is None or type(state) is not judge.state:
                if name.startswith("x.") and stream.startswith("x"):
                    self.open_events += 1  # it takes no part in any fold
                    continue
                judge = self._judge(envelope)
                if state is None:
                    state = judge.initial(stream)
            try:
                data = judge.read(row[2]) if envelope.v == judge.v else self._data(envelope, row)
            except msgspec.MsgspecError:
                data = self._data(envelope, row)
            recorded = envelope.recorded_at
            passed = recorded - before
            before = recorded
            moment += (passed.days * 86_400 + passed.seconds) * SECOND + passed.microseconds
            content = row[4]
            if content is None and row[3] is not None:
                content = self._store.artifact(Event(*row))
            fact = Fact(
                envelope.seq, stream, envelope.version, name, data, moment - envelope.clock_behind, envelope.actor,
                envelope.via, envelope.correlation, envelope.causation, content, envelope.content_digest,
            )  # fmt: skip
            try:
                judge.admit(state, fact, law)
                if judge.signed:
                    self._check_signature(fact)
                states[stream] = state = judge.evolve(state, fact)
            except (Unlawful, Invalid) as error:
                raise _unlawful(envelope, error) from None
            self.admitted += 1
            if name == "ledger.restored":
                law.void_before = envelope.seq
            if snapshots and stream in snapshots:
                self._compare(envelope, state, judge.fold)

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
        kept = self._snapshots[envelope.stream].get(envelope.version)
        if kept is not None and kept[0] == fold and msgspec.json.encode(state) != kept[1]:
            raise Wrong(
                "not-lawful",
                envelope.seq,
                f"snapshot of {envelope.stream}",
                "the state folded from the events",
                "another state",
            )

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


def _unlawful(envelope: Envelope, error: Unlawful | Invalid) -> Wrong:
    expected = (
        "what the admission of its aggregate allows"
        if isinstance(error, Unlawful)
        else "data in the form its type gives"
    )
    return Wrong("not-lawful", envelope.seq, envelope.type, expected, str(error))


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
    last = store.head().seq if upto is None else upto
    if last <= WORTH_A_PROCESS:
        report = verify(store, memory=memory, upto=upto)
        if report.ok:
            _judge(running, report, last, progress)
        return report, running
    elsewhere = Elsewhere(store, memory, upto)
    try:
        lawful = Report()
        _judge(running, lawful, last, progress)
        report = elsewhere.report()
    finally:
        elsewhere.stop()
    if not lawful.ok and (report.ok or _seq(lawful) < _seq(report)):
        report.verdict, report.first_wrong = lawful.verdict, lawful.first_wrong
    return report, running


def _seq(report: Report) -> float:
    seq = (report.first_wrong or {}).get("seq")
    return seq if isinstance(seq, int) else float("inf")


def _judge(running: Replay, report: Report, last: int, progress: Callable[[int, int], None] | None) -> None:
    try:
        running.run(last, progress)
    except Wrong as wrong:
        report.blame(wrong)
