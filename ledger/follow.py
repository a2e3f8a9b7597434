"""Reading a fleet's stream: what the replica has is compared, what is new is checked and kept, the rest is void."""

from __future__ import annotations

from threading import Thread

from ledger.errors import Tampered
from ledger.event import Head, head_of
from ledger.extension import Chain, Void, message_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

    from ledger.event import Event
    from ledger.jetstream import Stored
    from ledger.replica import FleetStore

PAGE = 2000
_KEEP = (
    "INSERT INTO events SELECT value->>0, substr(?1, value->>1, value->>2), substr(?1, value->>3, value->>4), NULL, NULL, "
    "substr(?1, value->>5, 32) FROM json_each(?2)"
)


class Behind(Exception):
    """The stream, as one of its servers showed it, ends before what the replica has."""

    def __init__(self, place: int, seq: int) -> None:
        super().__init__(place)
        self.place = place
        self.seq = seq


class Walk:
    """One reading of the stream from the anchor to its end: what the replica has is compared, the rest is kept."""

    def __init__(self, store: FleetStore, connection: apsw.Connection) -> None:
        self._store = store
        self._connection = connection
        reader = store.reader()
        self._head = reader.head().seq
        anchor = store.anchor
        if anchor.seq > self._head:
            anchor.forget()  # the replica lost its last commits: compare from the beginning
        self._start = anchor.place or 1
        self.place = self._start - 1
        self.voids = anchor.voids
        self.seq = max(anchor.seq - 1, 0)
        self._valid = (anchor.place, anchor.seq, anchor.voids)
        self._known: Iterator[Event] = store.read(self.seq + 1, self._head + 1)
        self._chain: Chain | None = None
        self._pending: list[Event] = []
        self._whole = (0, self._valid)  # how many pending events, and up to where, end with a whole batch
        self._many = False
        self._keeping: Keeping | None = None
        # The anchor and the tip once that is kept.
        self._then: tuple[tuple[int, int, int], tuple[int, int, int] | None] = (self._valid, None)
        self._held: Event | None = (
            None  # what the replica has where the stream has shown something else so far
        )

    def run(self) -> None:
        """Read to the end, and keep what came; errors as `_run`, and those of the replica's file."""
        try:
            self._run()
            self._settle()
        finally:
            if self._keeping is not None:
                self._keeping.join()

    def _run(self) -> None:
        """Read to the end.

        Raises:
            Behind: the end comes before the replica's head. Tampered: another history, or a hole.
            Unavailable, Refused: as `Stream`.
        """
        stream = self._store.stream
        inbox = b""
        while True:
            page = list(stream.answers_from(inbox or stream.ask_from(self.place + 1, PAGE)))
            inbox = b""
            if len(page) == PAGE:
                self._many = True
                # Asked for ahead only where nothing else will be asked meanwhile: contents would wait behind it.
                bodies = [stored.body for stored in page] + [event.envelope for event in self._pending]
                if all(map(_is_bare, bodies)):
                    inbox = stream.ask_from(self.place + 1 + PAGE, PAGE)
            for stored in page:
                self._take(stored)
                if not stored.more:
                    self._whole = (len(self._pending), self._valid)
            if len(page) < PAGE:
                self._whole = (len(self._pending), self._valid)
            self._flush()
            if len(page) < PAGE:
                break
        if self.seq < self._head:
            raise Behind(self.place, self.seq)

    def _take(self, stored: Stored) -> None:
        if stored.place != self.place + 1:
            raise Tampered(
                f"{self._store.url}: messages {self.place + 1} to {stored.place - 1} were taken out of the stream "
                "(verdict gap): ask the cluster's administrator",
                verdict="gap",
            )
        self.place = stored.place
        if self.seq < self._head:
            self._compare(stored)
            return
        if self._chain is None:
            self._chain = self._chain_at(self.seq)
            if self._many:
                self._chain.expect_many()
        try:
            self._pending.append(self._chain.extend(stored.body))
        except Void:
            self.voids += 1
            return
        self.seq += 1
        self._valid = (stored.place, self.seq, self.voids)

    def _compare(self, stored: Stored) -> None:
        event = self._held or next(self._known)
        if message_of(event) == stored.body:
            self._held = None
            self.seq += 1
            self._valid = (stored.place, self.seq, self.voids)
            return
        self._held = event
        try:
            self._chain_at(self.seq).extend(stored.body)
        except Void:
            if stored.place != self._start or self._start == 1:
                self.voids += 1
                return
        raise Tampered(
            f"{self._store.url}: event {event.seq} is not the one that this machine's replica has (verdict forked: the "
            f"stream's history was rewritten): nothing is written; {self._store.way_on}",
            verdict="forked",
            seq=event.seq,
        )

    def _chain_at(self, seq: int) -> Chain:
        store = self._store

        def version(stream: str) -> int:
            self._settle()
            found = store.query(
                "SELECT max(version) FROM events WHERE stream = ? AND seq <= ?", (stream, seq)
            )[0][0]
            return found if isinstance(found, int) else 0

        def has_key(key: str) -> bool:
            self._settle()
            return bool(
                store.query("SELECT 1 FROM events WHERE idempotency_key = ? AND seq <= ?", (key, seq))
            )

        last = store.reader().event(seq)
        return Chain(head_of(last) if last else Head(), version, has_key)

    def _flush(self) -> None:
        """Keep what came, but no batch in part while the rest of it may still come."""
        count, valid = self._whole
        self._whole = (0, valid)
        self._settle()
        tip = (self.place, self.seq, self.voids) if self.seq >= self._head else None
        if count:
            events = self._pending[:count]
            del self._pending[:count]
            if self._many and all(_is_bare(event.envelope) for event in events):
                # While SQLite inserts these, without the interpreter's lock, the next page is checked.
                self._keeping = Keeping(self._store, self._connection, events)
                self._then = (valid, tip)
                return
            self._store.store_events(self._connection, events)
        self._move(valid, tip)

    def _settle(self) -> None:
        """Wait for what is being kept; only then may the anchor move."""
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.join()
            if keeping.error is not None:
                raise keeping.error
            self._move(*self._then)

    def _move(self, valid: tuple[int, int, int], tip: tuple[int, int, int] | None) -> None:
        anchor = self._store.anchor
        anchor.place, anchor.seq, anchor.voids = valid
        if tip is not None:
            anchor.tip, anchor.tip_seq, anchor.tip_voids = tip
        anchor.save()


def _is_bare(envelope: bytes) -> bool:
    """Whether nothing but its own row comes with an event."""
    return b',"content_digest":"' not in envelope and b'"type":"ledger.' not in envelope


class Keeping(Thread):
    """Many events on their way into the replica, in one statement of one transaction."""

    def __init__(self, store: FleetStore, connection: apsw.Connection, events: list[Event]) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._store = store
        self._connection = connection
        self._bytes = b"".join(part for event in events for part in (event.envelope, event.data, event.hash))
        places, at = [], 1
        for event in events:
            head, data = len(event.envelope), len(event.data)
            places.append(f"[{event.seq},{at},{head},{at + head},{data},{at + head + data}]")
            at += head + data + len(event.hash)
        self._places = f"[{','.join(places)}]"
        self.start()

    def run(self) -> None:
        """Insert; what goes wrong is kept in `error`."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(_KEEP, (self._bytes, self._places))
            self._connection.execute("COMMIT")
            self._store.after_many(self._connection)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self.error = error
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
