"""The store of a fleet's ledger: a local SQLite replica that follows one JetStream stream, and writes through it.

The replica is an ordinary ledger file, so every query, projection and proof runs on it unchanged. It never decides
what happened: a message counts by the rule of `ledger.extension`, a write counts once the stream has stored it in
the place that the writer expected. What it has seen it remembers: a stream that no longer has it is said, not followed.
"""

from __future__ import annotations

import fcntl
import os
import random
import sys
import time

import apsw

from ledger import clock
from ledger.errors import GatebookError, Refused, Tampered, Unavailable
from ledger.event import SALT_BYTES, Event
from ledger.extension import Chain, Void, message_of
from ledger.jetstream import NoStream, Stored, Stream, WrongLast
from ledger.nats_client import Silence
from ledger.objects import Objects
from ledger.sqlite import SQLiteReader, SQLiteStore, explain
from ledger.store import Recorded, prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ledger.event import Draft, Origin
    from ledger.nats_client import Link

PAGE = 2000
# A handle that only writes reads the stream again this often: a stream replaced behind its back is seen by then.
TRUST_SECONDS = 1.0
CHECKPOINT_PAGES = 2048
# How long a lagging replica or a stream without a leader is waited for before it is said.
PATIENCE = 8.0
_LINE = b"%020d %020d %020d %020d %020d %020d\n"


def jitter(low: float, high: float) -> float:
    """Seconds between two bounds, so that writers that lost together do not try again together."""
    return random.uniform(low, high)  # noqa: S311 - not a secret


class Anchor:
    """How far the stream was read, and where its end was left.

    The anchor is the place of the last message that was read as an event, with that event's seq and the voids before
    it: reading begins there, with that message. The tip is the last place that this machine knows, as of event
    `tip_seq`: the next write goes after it. Both are kept beside the replica without a flush: after a crash they are
    older than the replica, and what lies between is compared again; damaged ones are none.
    """

    __slots__ = ("_handle", "_path", "place", "seq", "tip", "tip_seq", "tip_voids", "voids")

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "anchor")
        self._handle = -1
        self.place = self.seq = self.voids = self.tip_seq = self.tip_voids = 0
        self.tip = -1

    def load(self) -> None:
        """Take over what other processes of this machine have read and written; under the replica's lock."""
        if self._handle < 0:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        raw = os.pread(self._handle, 200, 0)
        try:
            numbers = tuple(map(int, raw.split()))
            if raw != _LINE % numbers:
                raise ValueError
        except (TypeError, ValueError):
            numbers = (0, 0, 0, -1, 0, 0)
        self.place, self.seq, self.voids, self.tip, self.tip_seq, self.tip_voids = numbers

    def save(self) -> None:
        """Write what stands here."""
        line = _LINE % (self.place, self.seq, self.voids, max(self.tip, 0), self.tip_seq, self.tip_voids)
        os.pwrite(self._handle, line, 0)

    def forget(self) -> None:
        """Begin from nothing."""
        self.place = self.seq = self.voids = self.tip_seq = self.tip_voids = 0
        self.tip = -1

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class Backoff:
    """How long a writer waits after it lost the race for a place."""

    def lost(self) -> None:
        """Wait, with jitter."""
        time.sleep(jitter(0.0, 0.01))


class FleetStore(SQLiteStore):
    """`Store` over a stream and its local replica; the replica's lock file lets this machine's writers queue in order."""

    def __init__(
        self, path: str, url: str, link: Link, name: str, *, now: Callable[[], int] = clock.now_us
    ) -> None:
        """Open the replica file at `path`; nothing is asked of the network yet."""
        super().__init__(path, now=now)
        # What is lost here in a power failure is read from the stream again.
        self._usable().execute("PRAGMA synchronous=NORMAL")
        self.url = url
        self.link = link
        self.stream = Stream(link, name)
        self.objects = Objects(link, name)
        self.anchor = Anchor(self.folder)
        self.offline = ""
        """Why the last attempt to follow failed, empty when it did not."""
        self.came = 0
        """How many events came by following since this was opened."""
        self._read_at = -TRUST_SECONDS
        self.backoff = Backoff()

    @property
    def voids(self) -> int:
        """How many messages of the stream, as far as it was followed, were no extension of the chain."""
        return self.anchor.tip_voids

    def follow(self) -> int:
        """Catch the replica up with the stream; the number of new events.

        Raises:
            Unavailable: no answer; the replica stands where it was. Refused: not allowed.
            Tampered: the stream is not the one that this replica followed (verdict truncated, forked or gap).
        """
        self._usable()
        with self._mutex:
            connection = self._usable()
            try:
                self._take_lock()
                self._check_files("nothing was written")
                self.anchor.load()
                came = self._catch_up(connection)
                self.offline = ""
                return came
            except apsw.Error as error:
                raise explain(error, self.path) from None
            except Unavailable as error:
                self.offline = str(error)
                raise
            finally:
                if self._lock >= 0:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
                self._checkpoint(connection)

    def _check_files(self, outcome: str) -> None:
        # What a replica loses is in the stream: its files are looked at when it is read, not around each write.
        if time.monotonic() - self._read_at > TRUST_SECONDS:
            super()._check_files(outcome)

    def _checkpoint(self, connection: apsw.Connection) -> None:
        # Rarer than for a ledger of its own: each one flushes, and a longer WAL only costs the next opener some ms.
        if self._pages > CHECKPOINT_PAGES:
            super()._checkpoint(connection)

    def _catch_up(self, connection: apsw.Connection) -> int:
        # Under the lock. A replica that lags, or a leader just chosen, may not show yet what was acknowledged.
        deadline = time.monotonic() + PATIENCE
        while True:
            before = self.reader().head().seq
            try:
                walk = _Walk(self, connection)
                walk.run()
                self._read_at = time.monotonic()
                self.came += walk.seq - before
                return walk.seq - before
            except _Behind as behind:
                self._check_behind(behind, final=time.monotonic() > deadline)
            except NoStream:
                raise self.no_stream() from None
            except Silence:
                if time.monotonic() > deadline:
                    raise
            time.sleep(jitter(0.01, 0.1))

    @property
    def way_on(self) -> str:
        """What to do when the stream is not what this machine saw."""
        return (
            f"ask the cluster's administrator; to go on with what the cluster has, move {self.folder} away (it is the "
            "evidence), then `gatebook resume --as-successor --reason R`"
        )

    def no_stream(self) -> GatebookError:
        """What it means that there is no such stream."""
        if self.reader().head().seq:
            return Tampered(
                f"{self.url}: the stream is gone; this machine's replica has {self.reader().head().seq} events of it "
                f"(verdict truncated): {self.way_on}",
                verdict="truncated",
            )
        return Unavailable(f"{self.url}: there is no such ledger: check the name, or run `gatebook init`")

    def _check_behind(self, behind: _Behind, *, final: bool) -> None:
        """Raise once the stream's leader, too, has less than this replica: what was acknowledged is lost there."""
        state = self.stream.info().get("state")
        last = state.get("last_seq") if isinstance(state, dict) else None
        if isinstance(last, int) and last <= behind.place and final:
            raise Tampered(
                f"{self.url}: the stream ends at message {last}; this machine's replica has events {behind.seq + 1} to "
                f"{self.reader().head().seq} that were in it and are not any more (verdict truncated): nothing is "
                f"written; {self.way_on}",
                verdict="truncated",
            )
        if final:
            raise Unavailable(f"{self.url}: its servers lag behind this replica; call again")

    def store_events(self, connection: apsw.Connection, events: list[Event]) -> None:
        """Insert followed events with their contents, one transaction; redactions among them take effect."""
        redacted = {
            seq for event in events if b'"type":"ledger.redacted"' in event.envelope for seq in _named(event)
        }
        wanted = [event for event in events if b',"content_digest":"' in event.envelope]
        if wanted:
            contents = self.objects.get([str(event.content_digest) for event in wanted])
            for event in wanted:
                event.salt, event.content = contents.get(str(event.content_digest), (None, None))
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", (self._row(event) for event in events)
            )
            for seq in redacted:
                connection.execute("UPDATE events SET salt = NULL, content = NULL WHERE seq = ?", (seq,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if redacted:
            self._purge(redacted)

    def _purge(self, redacted: set[int]) -> None:
        """What a followed redaction leaves elsewhere: artifacts, the WAL, and an object whose eraser died on the way."""
        events = [event for event in map(self.reader().event, redacted) if event is not None]
        for event in events:
            path = os.path.join(self.folder, "artifacts", str(event.content_digest))
            if os.path.lexists(path):
                os.unlink(path)
        self.empty_wal()
        try:
            left = self.objects.get([str(event.content_digest) for event in events])
            self.objects.erase(left)
        except GatebookError:
            return  # a reader's account may not; `doctor` shows what is left

    def _write(
        self,
        connection: apsw.Connection,
        decide: Callable[[SQLiteReader], Sequence[Draft]],
        origin: Origin,
        clock_jump: bool,
    ) -> Recorded:
        write = _Write(self, decide, origin, clock_jump)
        self.anchor.load()
        if self.anchor.tip < 0 or time.monotonic() - self._read_at > TRUST_SECONDS:
            self._catch_up_to_write(connection)
        while True:
            try:
                done = write.attempt(connection)
                if done.replayed or done.events or self._is_current():
                    return done
            except WrongLast:
                self.backoff.lost()
            except _Refusal as refusal:
                # Decided on what may be an old head: final only when the stream's leader has nothing newer.
                if self._is_current():
                    write.clean_up()
                    raise refusal.error from None
            except BaseException:
                write.clean_up()
                raise
            self._catch_up_to_write(connection)

    def _is_current(self) -> bool:
        try:
            state = self.stream.info().get("state")
        except (Unavailable, NoStream) as error:
            raise self.not_now(error) from None
        return isinstance(state, dict) and state.get("last_seq") == self.anchor.tip

    def _catch_up_to_write(self, connection: apsw.Connection) -> None:
        try:
            self._catch_up(connection)
        except Unavailable as error:
            raise self.not_now(error) from None
        except Tampered as error:
            raise Refused(str(error)) from None

    def inside(self) -> FleetReader:
        """A reader inside this store's write transaction."""
        return FleetReader(self, self._now())

    def check_before(self, reader: SQLiteReader, events: Sequence[Event]) -> None:
        """What `guard` asked for ahead of a write."""
        if self._before_commit is not None:
            self._before_commit(reader, events)

    def row(self, event: Event) -> tuple[object, ...]:
        """The six columns of `event`; a large content becomes an artifact beside the replica."""
        return self._row(event)

    def not_now(self, error: Exception) -> Unavailable:
        """The refusal of a write that was not stored because the cluster does not serve."""
        return Unavailable(f"{self.url}: {error}; nothing was recorded (reading goes on from the replica)")

    def publish(self, events: list[Event], while_waiting: Callable[[], None]) -> None:
        """Store `events` in the stream after the place that this replica stands at, or find that somebody else did.

        Raises:
            WrongLast: another writer has the place. Unavailable: not stored, or (the message says so) not known.
            Refused: this user may not publish.
        """
        bodies = [message_of(event) for event in events]
        attempt = os.urandom(8).hex().encode()
        deadline = time.monotonic() + PATIENCE
        unknown = False
        problem: Unavailable
        while True:
            try:
                self.stream.publish(bodies, self.anchor.tip, attempt)
                while_waiting()
                place = self.stream.acknowledged()
                break
            except WrongLast:
                if not unknown:
                    raise
                mine = self._is_mine(attempt)
                if mine is False:
                    raise
                if mine:
                    place = self.anchor.tip + len(bodies)
                    break
            except Silence as error:
                # Crash or lost acknowledgement: sending the same again is safe, one of both at most gets the place.
                unknown = True
                problem = error
            except Unavailable as error:
                if not self.link.connected:
                    if unknown:
                        raise self._perhaps(error) from None
                    raise self.not_now(error) from None
                problem = error
            if time.monotonic() > deadline:
                raise (self._perhaps(problem) if unknown else self.not_now(problem))
            time.sleep(jitter(0.02, 0.1))
        if place != self.anchor.tip + len(bodies):
            raise Tampered(
                f"{self.url}: acknowledged as message {place}, expected {self.anchor.tip + len(bodies)}: the stream was "
                "replaced (verdict forked): run `gatebook sync`",
                verdict="forked",
            )
        self.anchor.tip, self.anchor.tip_seq = place, events[-1].seq

    def _is_mine(self, attempt: bytes) -> bool | None:
        """Whether the message after our place is that attempt's; None when none is there yet, or nobody can say."""
        try:
            found = self.stream.at_leader(self.anchor.tip + 1)
        except Unavailable:
            return None
        return None if found is None else b"Gatebook-Attempt: " + attempt + b"\r\n" in found[0]

    def _perhaps(self, error: Exception) -> Unavailable:
        return Unavailable(
            f"{self.url}: {error}; no acknowledgement: it may or may not be recorded: see `gatebook log -n 5` when the "
            "cluster answers again"
        )

    def erase(self, events: Sequence[Event]) -> None:
        """Erase the contents of `events` from the bucket, for every replica that has not followed yet."""
        self.objects.erase(event.content_digest for event in events if event.content_digest is not None)

    def close(self) -> None:
        """Close the replica and the connection."""
        self.link.drop()
        self.anchor.close()
        super().close()


def _named(event: Event) -> list[int]:
    """The seqs of earlier events that a ledger.redacted names."""
    from ledger.canonical import load

    named = load(event.data).get("events") if event.type == "ledger.redacted" else None
    return (
        [seq for seq in named if type(seq) is int and 0 < seq < event.seq] if isinstance(named, list) else []
    )


class FleetReader(SQLiteReader):
    """A reader inside a write, which keeps in mind whose contents must go from the bucket too."""

    __slots__ = ("erased",)

    def __init__(self, store: FleetStore, now: int) -> None:
        super().__init__(store, now, inside=True)
        self.erased: list[int] = []

    def erase(self, seq: int) -> None:
        """Erase content and salt of event `seq` together with what this transaction appends."""
        super().erase(seq)
        self.erased.append(seq)


class _Refusal(Exception):
    """What `decide` raised on the head as the replica knew it."""

    def __init__(self, error: GatebookError) -> None:
        super().__init__(str(error))
        self.error = error


class _Write:
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

    def _prepare(self, reader: SQLiteReader) -> Recorded:
        store = self._store
        try:
            drafts = self._decide(reader)
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
            raise _Refusal(error) from None
        return done

    def attempt(self, connection: apsw.Connection) -> Recorded:
        """Decide and publish once, and keep what was recorded; errors as `FleetStore.publish`, and _Refusal."""
        store = self._store
        connection.execute("BEGIN IMMEDIATE")
        try:
            reader = store.inside()
            if reader.head().seq != store.anchor.tip_seq:
                raise WrongLast  # a process died between its commit and saving the tip
            done = self._prepare(reader)
            if done.replayed or not done.events:
                return done
            rows = [store.row(event) for event in done.events]
            self._put_contents(done.events)
            kept = _Keep(connection, rows, reader)
            store.publish(done.events, kept)
            # Crash here: the stream has it, this replica reads it there.
            kept.commit(store)
            if reader.erased:
                # Crash here: erased on record, and by each replica that follows; the object goes with the first of them.
                store.erase([event for event in map(reader.event, reader.erased) if event is not None])
            return done
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _put_contents(self, events: list[Event]) -> None:
        missing = [e for e in events if e.content_digest is not None and e.content_digest not in self._put]
        if missing:
            try:
                self._store.objects.put(missing)
            except Unavailable as error:
                raise self._store.not_now(error) from None
            self._put.update(e.content_digest for e in missing if e.content_digest is not None)

    def clean_up(self) -> None:
        """Contents of what was refused in the end are nobody's: erase them, if that can be done now."""
        try:
            self._store.objects.erase(self._put)
        except GatebookError:
            return  # `doctor` counts them


class _Keep:
    """Insert rows into the replica while the stream stores them; a replica that cannot is only said."""

    def __init__(
        self, connection: apsw.Connection, rows: list[tuple[object, ...]], reader: SQLiteReader
    ) -> None:
        self._connection = connection
        self._rows = rows
        self._reader = reader
        self._done = False
        self._problem: apsw.Error | None = None

    def __call__(self) -> None:
        if self._done:
            return
        self._done = True
        try:
            self._connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", self._rows)
            self._reader.write_erasures()
            self._reader.write_snapshots()
        except apsw.Error as error:
            self._problem = error

    def commit(self, store: FleetStore) -> None:
        """Commit; after a failure the replica reads the events from the stream at the next call."""
        try:
            if self._problem is not None:
                raise self._problem
            self._connection.execute("COMMIT")
            store.anchor.save()
        except apsw.Error as error:
            store.anchor.tip = -1
            sys.stderr.write(f"gatebook: warning: recorded in the stream, but not in {store.path}: {error}\n")


class _Behind(Exception):
    """The stream, as one of its servers showed it, ends before what the replica has."""

    def __init__(self, place: int, seq: int) -> None:
        super().__init__(place)
        self.place = place
        self.seq = seq


class _Walk:
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

    def run(self) -> None:
        """Read to the end.

        Raises:
            _Behind: the end comes before the replica's head. Tampered: another history, or a hole.
            Unavailable, Refused: as `Stream`.
        """
        stream = self._store.stream
        inbox = stream.ask_from(self.place + 1, PAGE)
        while True:
            page = list(stream.answers_from(inbox))
            if len(page) == PAGE:
                inbox = stream.ask_from(self.place + 1 + PAGE, PAGE)
            for stored in page:
                self._take(stored)
            if len(page) < PAGE or not page[-1].more:
                self._flush()
            if len(page) < PAGE:
                break
        if self.seq < self._head:
            raise _Behind(self.place, self.seq)

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

        return Chain(store.reader().event(seq) if seq else None, version, has_key)

    def _flush(self) -> None:
        if self._pending:
            self._store.store_events(self._connection, self._pending)
            self._pending = []
        anchor = self._store.anchor
        anchor.place, anchor.seq, anchor.voids = self._valid
        if self.seq >= self._head:
            anchor.tip, anchor.tip_seq, anchor.tip_voids = self.place, self.seq, self.voids
        anchor.save()
