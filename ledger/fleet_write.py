"""Writing to a fleet's stream: decide on the replica's head, publish for the next place, decide again after a lost race."""

from __future__ import annotations

import os

import apsw

from ledger.errors import GatebookError, Invalid, Refused, Unavailable
from ledger.event import SALT_BYTES, Head
from ledger.extension import Void, check_sealed, message_of
from ledger.jetstream import WrongLast
from ledger.notice import tell
from ledger.sqlite import INSERT, SQLiteReader
from ledger.store import Recorded, prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.event import Draft, Event, Origin
    from ledger.replica import FleetStore


class FleetReader(SQLiteReader):
    """A reader inside a write, which keeps in mind whose contents must go from the bucket too."""

    __slots__ = ("erased",)

    def __init__(self, store: FleetStore, now: int, head: Head | None, versions: dict[str, int]) -> None:
        """`head`: the head, where it is known; `versions`: what is known of streams, and will be."""
        super().__init__(store, now, head, versions, inside=True)
        self.erased: list[int] = []

    def erase(self, seq: int) -> None:
        """Erase content and salt of event `seq` together with what this transaction appends."""
        super().erase(seq)
        self.erased.append(seq)


class Refusal(Exception):
    """What `decide` raised on the head as the replica knew it."""

    def __init__(self, error: GatebookError) -> None:
        super().__init__(str(error))
        self.error = error


class Write:
    """One call of `transact`: each attempt decides on the replica's head, and publishes for the next place."""

    def __init__(
        self,
        store: FleetStore,
        decide: Callable[[SQLiteReader], Sequence[Draft]],
        origin: Origin,
        clock_jump: bool,
    ) -> None:
        self._store = store
        self._decide = decide
        self._origin = origin
        self._clock_jump = clock_jump
        self._salts: dict[int, tuple[bytes, bytes]] = {}
        self._put: set[str] = set()
        self._unsure = False
        self._drafts: Sequence[Draft] = ()

    def _prepare(self, reader: SQLiteReader) -> Recorded:
        store = self._store
        try:
            drafts = self._drafts = self._decide(reader)
            for number, draft in enumerate(drafts):
                if draft.content is None:
                    continue
                # The same content keeps its salt from attempt to attempt, so that its object is stored once.
                content, salt = self._salts.get(number, (None, b""))
                if content != draft.content:
                    salt = os.urandom(SALT_BYTES)
                    self._salts[number] = (draft.content, salt)
                draft.salt = salt
            done = prepare(drafts, reader, self._origin, store.artifact, clock_jump=self._clock_jump)
            if done.events and not done.replayed:
                store.check_before(reader, done.events)
        except GatebookError as error:
            raise Refusal(error) from None
        return done

    def attempt(self, connection: apsw.Connection) -> Recorded:
        """Decide and publish once, and keep what was recorded; errors as `FleetStore.publish`, and Refusal.

        The lock file alone keeps this machine's other writers out until the events are published: SQLite's
        transaction begins while the stream flushes them.
        """
        store = self._store
        reader = store.inside()
        if reader.head().seq != store.anchor.tip_seq:
            raise WrongLast  # a process died between its commit and saving the tip
        done = self._prepare(reader)
        if done.replayed or not done.events:
            return done
        self._check(reader)
        rows = [store.row(event) for event in done.events]
        self._put_contents(done.events)
        kept = Keep(connection, rows, reader)
        self._unsure = True
        try:
            try:
                store.publish(done.events, [message_of(event) for event in done.events], kept.insert)
            except (WrongLast, Refused, Invalid):
                self._unsure = False
                raise
            # Crash here: the stream has it, this replica reads it there.
            kept.commit(store, reader.head_after(done.events), done.versions)
            if reader.erased:
                self._erase(reader)
            return done
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _erase(self, reader: FleetReader) -> None:
        # Crash here: erased on record, and by each replica that follows; the objects go with the first of those.
        try:
            self._store.erase([event for event in map(reader.event, reader.erased) if event is not None])
        except GatebookError as error:
            tell(f"erased on record and here, not yet in the bucket ({error}): see `gatebook doctor`")

    def _check(self, reader: FleetReader) -> None:
        """Hold what was sealed against the rule that every replica will judge it by: a void message is never sent."""
        try:
            check_sealed(self._drafts, reader.head(), reader.clock)
        except Void as void:
            raise Invalid(f"cannot be recorded: {void}") from None

    def _put_contents(self, events: list[Event]) -> None:
        if all(event.content is None for event in events):
            return
        missing = [e for e in events if e.content_digest is not None and e.content_digest not in self._put]
        if missing:
            try:
                self._store.objects.put(missing)
            except Unavailable as error:
                raise self._store.not_now(error) from None
            self._put.update(e.content_digest for e in missing if e.content_digest is not None)

    def clean_up(self) -> None:
        """Contents of what was refused in the end are nobody's: erase them, if that can be done now.

        Not where it is unknown whether the events were stored: they may need them.
        """
        if self._unsure or not self._put:
            return
        try:
            self._store.objects.erase(self._put)
        except GatebookError:
            return  # `doctor` counts them


class Keep:
    """Insert rows into the replica while the stream stores them; a replica that cannot is only said."""

    def __init__(
        self, connection: apsw.Connection, rows: list[tuple[object, ...]], reader: SQLiteReader
    ) -> None:
        self._connection = connection
        self._rows = rows
        self._reader = reader
        self._done = False
        self._problem: apsw.Error | None = None

    def insert(self) -> None:
        """Insert, once; a failure is kept for `commit`."""
        if self._done:
            return
        self._done = True
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(INSERT, self._rows)
            self._reader.write_rest()
            # What the commit would write is in the WAL by then, undone like all of it when the place is another's.
            self._connection.cache_flush()
        except apsw.Error as error:
            self._problem = error

    def commit(self, store: FleetStore, head: Head, versions: dict[str, int]) -> None:
        """Commit; after a failure the replica reads the events from the stream at the next call."""
        try:
            if self._problem is not None:
                raise self._problem
            self._connection.execute("COMMIT")
            store.anchor.save()
            store.head_kept = head
            store.versions_kept.update(versions)
        except apsw.Error as error:
            store.anchor.tip = -1
            tell(f"recorded in the stream, but not in {store.path}: {error}")
