"""Reading a fleet's stream: what the replica has is compared, what is new is checked and kept, the rest is void.

Messages are taken by the chunk: one that is surely as it must be is done at C speed, by one comparison or by
`ledger.plain`; in any other each message is looked at by itself, by the rule of `ledger.extension`.
"""

from __future__ import annotations

import sys
from array import array
from threading import Thread

import apsw

from ledger.errors import Tampered, Unavailable
from ledger.event import Event, Head, head_of
from ledger.extension import Chain, Void, message_of
from ledger.jetstream import as_stored, goes_on, place_in
from ledger.nats_client import Burst
from ledger.sqlite import check_last, without_triggers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.jetstream import Deliveries, Stream
    from ledger.replica import FleetStore

    Kept = list[tuple[bytes, list[int]]]
    """New events, in order: received bytes, and where in them each one's lines are (see `_where`)."""

    Reached = tuple[tuple[int, int, int], tuple[int, int, int] | None]
    """The anchor (place, seq, voids), and the tip where the end of what the replica had is reached."""

PAGE = 4000
CHUNK = 128
WORTH_DELIVERING = 2 * PAGE  # messages: below that a consumer takes longer to make than it saves
NEWEST = 32  # messages that the leader is asked for one by one
# What may wait for the disk: moving the WAL into the file takes as long as checking 15,000 events.
QUEUE_BYTES = 64 << 20
MANY = 1000  # events: below that the fast judge takes longer to import than it saves
# A length has 17 bits in `_where`, more than an event can have.
_LENGTH = (1 << 17) - 1
_LINE_FEED = 10
_KEEP = (
    "INSERT INTO events SELECT ?3 + rowid - 1, substr(?1, 1 + (value >> 34), value >> 17 & 131071), "
    "substr(?1, 2 + (value >> 34) + (value >> 17 & 131071), value & 131071), NULL, NULL, "
    "unhex(substr(?1, 3 + (value >> 34) + (value >> 17 & 131071) + (value & 131071), 64)) FROM carray(?2)"
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
        self._chain: Chain | None = None
        self._kept: Kept = []
        self._fast = "msgspec" in sys.modules
        # What is being kept, oldest first, each with the anchor and the tip once it is.
        self._keeping: list[tuple[Keeping, Reached]] = []

    def run(self, *, newest: bool = False) -> None:
        """Read to the end, and keep what came; errors as `_run`, and those of the replica's file.

        `newest`: to the end as the stream's leader has it. Other servers show the last message with the next, or later.
        """
        try:
            self._run(newest)
            self._settle()
        finally:
            for keeping, _ in self._keeping:
                keeping.join()

    def _run(self, newest: bool) -> None:
        """Read to the end.

        Raises:
            Behind: the end comes before the replica's head. Tampered: another history, or a hole.
            Unavailable, Refused: as `Stream`.
        """
        stream = self._store.stream
        source: Stream | Deliveries = stream
        place = self._start
        begun: list[Burst] = []  # a batch whose rest has not come: it is kept whole or not at all
        last = stream.ask_last() if newest else b""
        page, left = stream.page(stream.ask_from(place, PAGE), PAGE)
        while True:
            count = sum(len(burst.spans) for burst in page)
            place += count
            more = left > 0 and count > 0
            if left >= WORTH_DELIVERING and source is stream:
                source = stream.deliver_from(place) or stream
            if newest and not more:
                page += self._newest(place, last or stream.ask_last())
            last = b""  # of before the next page
            page = begun + page
            begun = _cut(page) if more else []
            inbox = source.ask_from(place, PAGE) if more else b""
            self._fast = self._fast or count >= MANY
            for burst in page:
                self._take_all(burst)
            if self._chain is None or self._chain.bare:
                self._keep_bare(many=more)
                if not more:
                    break
                page, left = source.page(inbox, PAGE)
            else:
                # What was asked for ahead first: contents would wait behind it.
                ahead = source.page(inbox, PAGE) if more else ([], 0)
                self._keep_with_contents()
                if not more:
                    break
                page, left = ahead
        if self.seq < self._head:
            raise Behind(self.place, self.seq)

    def _newest(self, place: int, last: bytes) -> list[Burst]:
        """The few messages from `place` on that the leader alone shows yet; `last`: where it says which is its last."""
        found: list[Burst] = []
        try:
            answer = self._store.stream.last(last)
            if answer is None or answer[0] < place:
                return found
            for at in range(place, min(answer[0], place + NEWEST)):
                between = self._store.stream.at_leader(at)
                if between is None:
                    return found
                found.append(as_stored(at, *between))
            if answer[0] < place + NEWEST:
                found.append(as_stored(*answer))
        except Unavailable:
            return []  # whoever publishes hears it
        _cut(found)
        return found

    def _take_all(self, burst: Burst) -> None:
        number, end = 0, len(burst.spans)
        while number < end:
            done = self._take_chunk(burst, number) if self._fast else 0
            if not done:
                done = min(CHUNK, end - number)
                for one in range(number, number + done):
                    self._take(burst, one)
            number += done

    def _take_chunk(self, burst: Burst, number: int) -> int:
        """Take some messages from that one on, when they are surely right; how many it were, 0 when one may not be."""
        lines = Lines(burst, number, self.place + 1, self._head - self.seq)
        if not lines.where:
            return 0
        if self.seq < self._head:
            if not self._are_known(lines):
                return 0
        else:
            chain = self._growing()
            if not chain.extend_all(lines.envelopes, lines.datas, lines.hashes):
                return 0
            self._keep(burst.buffer, lines.where)
        count = len(lines.where)
        self.place += count
        self.seq += count
        self._valid = (self.place, self.seq, self.voids)
        return count

    def _are_known(self, lines: Lines) -> bool:
        """Whether these are the replica's next events."""
        rows = self._store.query(
            "SELECT envelope, data, hash FROM events WHERE seq > ? AND seq <= ? ORDER BY seq",
            (self.seq, self.seq + len(lines.where)),
        )
        if len(rows) != len(lines.where):
            return False
        envelopes, datas, hashes = map(list, zip(*rows, strict=True))
        known = b"".join(hashes).hex().encode()
        return envelopes == lines.envelopes and datas == lines.datas and known == b"".join(lines.hashes)

    def _keep(self, buffer: bytes, where: list[int]) -> None:
        if self._kept and self._kept[-1][0] is buffer:
            self._kept[-1][1].extend(where)
        else:
            self._kept.append((buffer, where))

    def _take(self, burst: Burst, number: int) -> None:
        """Take one message, whatever it is."""
        buffer = burst.buffer
        start, middle, end = burst.spans[number]
        place = burst.place + number if burst.place else place_in(buffer[start:middle])
        if not place:
            raise Unavailable(
                f"{self._store.url}: an answer that is not JetStream's: {buffer[start : start + 80]!r}"
            )
        if place != self.place + 1:
            raise Tampered(
                f"{self._store.url}: messages {self.place + 1} to {place - 1} were taken out of the stream "
                "(verdict gap): ask the cluster's administrator",
                verdict="gap",
            )
        self.place = place
        body = buffer[middle:end]
        if self.seq < self._head:
            self._compare(body)
            return
        try:
            event = self._growing().extend(body)
        except Void:
            self.voids += 1
            return
        self._keep(buffer, [_where(middle, len(event.envelope), len(event.data))])
        self.seq += 1
        self._valid = (place, self.seq, self.voids)

    def _compare(self, body: bytes) -> None:
        event = self._store.reader().event(self.seq + 1)
        if event is None:
            raise Tampered(
                f"{self._store.path}: event {self.seq + 1} is missing (verdict gap): move {self._store.folder} away; it "
                "is made again from the stream",
                verdict="gap",
                seq=self.seq + 1,
            )
        if message_of(event) == body:
            self.seq += 1
            self._valid = (self.place, self.seq, self.voids)
            return
        try:
            self._chain_at(self.seq).extend(body)
        except Void:
            if self.place != self._start or self._start == 1:
                self.voids += 1
                return
        raise Tampered(
            f"{self._store.url}: event {event.seq} is not the one that this machine's replica has (verdict forked: the "
            f"stream's history was rewritten): nothing is written; {self._store.way_on}",
            verdict="forked",
            seq=event.seq,
        )

    def _growing(self) -> Chain:
        """The chain that new events follow."""
        if self._chain is None:
            self._chain = self._chain_at(self.seq)
            if self._fast:
                self._chain.expect_many()
        return self._chain

    def _chain_at(self, seq: int) -> Chain:
        store = self._store

        def version(stream: str) -> int:
            if not seq:
                return 0
            self._settle()
            found = store.query(
                "SELECT max(version) FROM events WHERE stream = ? AND seq <= ?", (stream, seq)
            )[0][0]
            return found if isinstance(found, int) else 0

        def has_key(key: str) -> bool:
            if not seq:
                return False
            self._settle()
            return bool(
                store.query("SELECT 1 FROM events WHERE idempotency_key = ? AND seq <= ?", (key, seq))
            )

        last = store.reader().event(seq)
        return Chain(head_of(last) if last else Head(), version, has_key)

    def _keep_bare(self, *, many: bool) -> None:
        """Keep what came: events with nothing but their own rows."""
        kept, first, then = self._came()
        if kept and many:
            # While SQLite inserts these, and moves its WAL, without the interpreter's lock, the next pages are checked.
            self._settle(QUEUE_BYTES)
            before = self._keeping[-1][0] if self._keeping else None
            keeping = Keeping(self._store, self._connection, kept, first, before)
            self._keeping.append((keeping, then))
            keeping.start()
            return
        self._settle()
        if kept:
            Keeping(self._store, self._connection, kept, first, None).insert()
        self._move(*then)

    def _keep_with_contents(self) -> None:
        """Keep what came, with contents, and what redactions among it erase."""
        kept, first, then = self._came()
        self._settle()
        self._store.store_events(self._connection, _events(kept, first))
        self._move(*then)
        if self._chain is not None:
            self._chain.bare = True

    def _came(self) -> tuple[Kept, int, Reached]:
        """What came since the last time, its first seq, and what the anchor is once it is kept."""
        kept, self._kept = self._kept, []
        first = self.seq + 1 - sum(len(where) for _, where in kept)
        return (
            kept,
            first,
            (self._valid, (self.place, self.seq, self.voids) if self.seq >= self._head else None),
        )

    def _settle(self, left: int = 0) -> None:
        """Move the anchor past what is kept, not before; wait until no more than `left` bytes are being kept."""
        waiting = sum(keeping.size for keeping, _ in self._keeping)
        while self._keeping and (waiting > left or not self._keeping[0][0].is_alive()):
            keeping, then = self._keeping.pop(0)
            waiting -= keeping.size
            keeping.join()
            if keeping.error is not None:
                raise keeping.error
            self._move(*then)

    def _move(self, valid: tuple[int, int, int], tip: tuple[int, int, int] | None) -> None:
        anchor = self._store.anchor
        anchor.place, anchor.seq, anchor.voids = valid
        if tip is not None:
            anchor.tip, anchor.tip_seq, anchor.tip_voids = tip
        anchor.save()
        if self._store.kept is not None:
            self._store.kept(self._store, valid[1])


class Lines:
    """The three lines of some messages, and where they are: as many as stand at their places and look like events."""

    __slots__ = ("datas", "envelopes", "hashes", "where")
    datas: list[bytes]
    envelopes: list[bytes]
    hashes: list[bytes]
    where: list[int]

    def __init__(self, burst: Burst, number: int, place: int, limit: int) -> None:
        """From message `number` on, which must be stored at `place`: no more than `limit`, if that is above 0."""
        self.envelopes = envelopes = []
        self.datas = datas = []
        self.hashes = hashes = []
        self.where = where = []
        buffer = burst.buffer
        if burst.place and burst.place + number != place:
            return
        find, rfind, startswith = buffer.find, buffer.rfind, buffer.startswith
        count = min(CHUNK, limit) if limit > 0 else CHUNK
        for start, middle, end in burst.spans[number : number + count]:
            data, hash = find(b"\n", middle, end) + 1, end - 64
            if not (middle < data < hash and buffer[hash - 1] == _LINE_FEED and end - middle <= _LENGTH):
                break
            # A publisher's headers may say the same: the server's own are the last.
            if not burst.place and not startswith(
                b"\r\nNats-Sequence: %d\r\nNats-Time-Stamp: " % place,
                rfind(b"\r\nNats-Sequence: ", start, middle),
            ):
                break
            envelopes.append(buffer[middle : data - 1])
            datas.append(buffer[data : hash - 1])
            hashes.append(buffer[hash:end])
            where.append(middle << 34 | data - middle - 1 << 17 | hash - data - 1)  # as `_where`
            place += 1


def _where(place: int, envelope: int, data: int) -> int:
    """Where an event's lines are in a buffer: one number of the envelope's place and length and the data's length."""
    return place << 34 | envelope << 17 | data


def _events(kept: Kept, seq: int) -> list[Event]:
    """These events, the first with that number, without contents."""
    found = []
    for buffer, where in kept:
        for at in where:
            start, size, rest = at >> 34, at >> 17 & _LENGTH, at & _LENGTH
            data = start + size + 1
            hash = bytes.fromhex(buffer[data + rest + 1 : data + rest + 65].decode())
            found.append(Event(seq, buffer[start : data - 1], buffer[data : data + rest], None, None, hash))
            seq += 1
    return found


def _cut(page: list[Burst]) -> list[Burst]:
    """Take the messages of a batch that has not ended off the end of `page`."""
    for last in range(len(page) - 1, -1, -1):
        burst = page[last]
        for number in range(len(burst.spans) - 1, -1, -1):
            start, middle, _ = burst.spans[number]
            if not goes_on(burst.buffer[start:middle]):
                place = burst.place and burst.place + number + 1
                begun = [Burst(burst.buffer, burst.spans[number + 1 :], place), *page[last + 1 :]]
                page[last:] = [Burst(burst.buffer, burst.spans[: number + 1], burst.place)]
                return begun
    begun, page[:] = page[:], []
    return begun


class Keeping(Thread):
    """Events on their way into the replica, in one transaction, after what is on its way before them."""

    def __init__(
        self, store: FleetStore, connection: apsw.Connection, kept: Kept, first: int, before: Keeping | None
    ) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._store = store
        self._connection = connection
        self._kept = kept
        self._first = first
        self._before = before
        self.size = sum(len(buffer) for buffer, _ in kept)
        self.end = first + sum(len(where) for _, where in kept)
        self._follows = before is not None and before.end == first

    def insert(self) -> None:
        """Insert them; errors as APSW's.

        One statement is one transaction, and waits for the interpreter's lock once: other threads may keep it for long.
        """
        places, size = [], 0
        for buffer, where in self._kept:
            start = _where(size, 0, 0)
            places += [at + start for at in where]
            size += len(buffer)
        received = b"".join([buffer for buffer, _ in self._kept])
        values = (received, apsw.carray(array("q", places)), self._first)
        if len(places) < MANY:
            self._connection.execute(_KEEP, values)
            return
        # For each row the trigger events_in_order would have SQLite reckon the generated columns again. These rows follow
        # one another by the statement, and the last event by what was kept before them or is looked up here; a number
        # that stands already is no second time there. The replica's lock is ours all the while.
        if not self._follows:
            check_last(self._connection, self._first - 1)
        without_triggers(self._connection, lambda: self._connection.execute(_KEEP, values))

    def run(self) -> None:
        """Insert; what goes wrong is kept in `error`."""
        before, self._before = self._before, None
        if before is not None:
            before.join()
            if before.error is not None:
                self.error = before.error
                return
        try:
            self.insert()
            self._store.after_many(self._connection)
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self.error = error
