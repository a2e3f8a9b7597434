"""Reading a fleet's stream: what the replica has is compared, what is new is checked and kept, the rest is void."""

from __future__ import annotations

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

    def run(self) -> None:
        """Read to the end.

        Raises:
            Behind: the end comes before the replica's head. Tampered: another history, or a hole.
            Unavailable, Refused: as `Stream`.
        """
        stream = self._store.stream
        inbox = stream.ask_from(self.place + 1, PAGE)
        while True:
            page = list(stream.answers_from(inbox))
            if len(page) == PAGE:
                self._many = True
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

    _held: Event | None = None

    def _chain_at(self, seq: int) -> Chain:
        store = self._store

        def version(stream: str) -> int:
            found = store.query(
                "SELECT max(version) FROM events WHERE stream = ? AND seq <= ?", (stream, seq)
            )[0][0]
            return found if isinstance(found, int) else 0

        def has_key(key: str) -> bool:
            return bool(
                store.query("SELECT 1 FROM events WHERE idempotency_key = ? AND seq <= ?", (key, seq))
            )

        last = store.reader().event(seq)
        return Chain(head_of(last) if last else Head(), version, has_key)

    def _flush(self) -> None:
        """Keep what came, but no batch in part while the rest of it may still come."""
        count, valid = self._whole
        if count:
            self._store.store_events(self._connection, self._pending[:count])
            del self._pending[:count]
        self._whole = (0, valid)
        anchor = self._store.anchor
        anchor.place, anchor.seq, anchor.voids = valid
        if self.seq >= self._head:
            anchor.tip, anchor.tip_seq, anchor.tip_voids = self.place, self.seq, self.voids
        anchor.save()
