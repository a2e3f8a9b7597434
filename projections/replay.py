"""Replay: is the whole log lawful? Verification, and then every event through the same admission that let it in.

Contract page ledger, `replay`; DESIGN, Decide.
"""

from __future__ import annotations

import msgspec

from ledger.access import ledger_id_of
from ledger.errors import Invalid, Tampered
from ledger.sqlite import RANGE_SQL, SQLiteStore, connect
from ledger.verify import PROGRESS_EVERY, WORTH_A_PROCESS, Elsewhere, Report, Wrong, read_envelope, verify
from projections.engine import decode
from projections.fact import Fact, Law, Unlawful
from projections.registry import TYPES, aggregate, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ledger.sqlite import Row
    from ledger.verify import Envelope

SECOND = 1_000_000
# Types that may carry an SSH signature, which replay verifies again (projections.authority).
SIGNED = frozenset(
    ("plan.approved", "receipt.issued", "drift.accepted", "dispatch.approved", "authority.changed")
)


class Replay:
    """Folds and admits every event in order; `states` at the end are what the log says now."""

    def __init__(self, store: SQLiteStore) -> None:
        self._store = store
        self.states: dict[str, Any] = {}
        self.law = Law(self._state)
        self.admitted = 0
        self.open_events = 0
        self._ledger_id = ""
        self._modules: dict[str, Any] = {}
        self._snapshots: dict[tuple[str, int], tuple[str, bytes]] = {}
        for stream, version, fold, state in store.query("SELECT stream, version, fold, state FROM snapshots"):
            self._snapshots[str(stream), int(str(version))] = (str(fold), state)  # type: ignore[assignment]

    def _state(self, stream: str) -> Any:
        found = self.states.get(stream)
        return aggregate(kind_of(stream)).initial(stream) if found is None else found

    def _module(self, kind: str, seq: int) -> Any:
        module = self._modules.get(kind)
        if module is None:
            try:
                module = self._modules[kind] = aggregate(kind)
            except (KeyError, ModuleNotFoundError):
                raise Wrong(
                    "not-lawful", seq, "stream", "a kind of stream this gatebook knows", kind
                ) from None
        return module

    def run(self, last: int, progress: Callable[[int, int], None] | None = None) -> None:
        """Judge and fold the events up to `last`; hashes and forms are verification's business, not this one's.

        Raises:
            Wrong: the first event that is not lawful, or of a type or schema version that this gatebook does not know.
        """
        connection = connect(self._store.path)
        try:
            for row in connection.execute(RANGE_SQL, (1, last)):
                raw = row[1]
                # An open event takes no part in any fold; quotes inside text are escaped, so these are the members.
                if b'"type":"x.' in raw and b'"stream":"x' in raw:
                    self.open_events += 1
                else:
                    self._event(read_envelope(raw), row)
                if progress is not None and row[0] % PROGRESS_EVERY == 0:
                    progress(row[0], last)
        except (msgspec.MsgspecError, TypeError) as error:
            raise Wrong("content-mismatch", None, "envelope", "the members of format 1", str(error)) from None
        finally:
            connection.close()

    def _event(self, envelope: Envelope, row: Row) -> None:
        name, stream = envelope.type, envelope.stream
        if name not in TYPES or TYPES[name][0] != kind_of(stream):
            raise Wrong(
                "not-lawful",
                envelope.seq,
                "type",
                "a type of the vocabulary in its own kind of stream",
                f"{name} in {stream}",
            )
        module = self._module(kind_of(stream), envelope.seq)
        fact = self._fact(envelope, row)
        state = self.states.get(stream)
        if state is None:
            state = module.initial(stream)
        try:
            module.admit(state, fact, self.law)
            if name in SIGNED:
                self._check_signature(fact)
        except Unlawful as error:
            raise Wrong(
                "not-lawful", envelope.seq, name, "what the admission of its aggregate allows", str(error)
            ) from None
        except Invalid as error:
            raise Wrong(
                "not-lawful", envelope.seq, name, "data in the form its type gives", str(error)
            ) from None
        self.states[stream] = state = module.evolve(state, fact)
        self.admitted += 1
        if name == "ledger.restored":
            self.law.void_before = envelope.seq
        kept = self._snapshots.get((stream, envelope.version))
        if kept is not None and kept[0] == module.FOLD and msgspec.json.encode(state) != kept[1]:
            raise Wrong(
                "not-lawful",
                envelope.seq,
                f"snapshot of {stream}",
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

    def _fact(self, envelope: Envelope, row: Row) -> Fact:
        try:
            data = decode(envelope.type, envelope.v, row[2], envelope.seq)
        except Tampered as error:
            raise Wrong(
                "not-lawful", envelope.seq, "data", f"the schema of {envelope.type}", str(error)
            ) from None
        content = row[4]
        if content is None and row[3] is not None:
            from ledger.event import Event

            content = self._store.artifact(Event(*row))
        moment = envelope.recorded_at
        clock = int(moment.timestamp()) * SECOND + moment.microsecond - envelope.clock_behind
        return Fact(
            envelope.seq, envelope.stream, envelope.version, envelope.type, data, clock, envelope.actor, envelope.via,
            envelope.correlation, envelope.causation, content, envelope.content_digest,
        )  # fmt: skip


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
