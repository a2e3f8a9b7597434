"""The store of a fleet's ledger: a local SQLite replica that follows one JetStream stream, and writes through it.

The replica is an ordinary ledger file, so every query, projection and proof runs on it unchanged. It never decides
what happened: a message counts by the rule of `ledger.extension`, a write counts once the stream has stored it in
the place that the writer expected. What it has seen it remembers: a stream that no longer has it is said, not followed.
"""

from __future__ import annotations

import fcntl
import os
import time

import apsw

from ledger import clock
from ledger.anchor import Anchor
from ledger.errors import GatebookError, Refused, Tampered, Unavailable, Usage
from ledger.event import Head
from ledger.files import write_whole
from ledger.fleet_write import FleetReader, Refusal, Write
from ledger.follow import Behind, Walk
from ledger.jetstream import NoStream, Stream, WrongLast
from ledger.leftovers import hold_views, named_by, remove_artifacts, remove_views
from ledger.nats_client import Silence
from ledger.objects import Objects
from ledger.sqlite import INSERT, SQLiteReader, SQLiteStore, explain
from ledger.turns import Turns, jitter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.event import Draft, Event, Origin
    from ledger.nats_client import Link
    from ledger.store import Recorded

# A handle that only writes reads the stream again this often: a stream replaced behind its back is seen by then.
TRUST_SECONDS = 1.0
RACE_SECONDS = 30.0
MAX_KEPT = 1000
# A handle that waits so often reads much of what others write; not all of them find that at once.
MANY_WAITS = (3, 20)
# The WAL is moved into the file past 32 MB, past 64 MB where many events are followed: whoever moves it waits for the
# disk, once in 2,000 appends; what a crash leaves of it is read in 0.1 s.
WAL_PAGES = 8192
BULK_PAGES = 16_384
# Following many events: their indexes stay in memory.
CACHE_KIB = 65_536
# How long a lagging replica or a stream without a leader is waited for before it is said.
PATIENCE = 8.0


class FleetStore(SQLiteStore):
    """`Store` over a stream and its local replica; the replica's lock file lets this machine's writers queue in order."""

    def __init__(
        self, path: str, url: str, link: Link, name: str, *, now: Callable[[], int] = clock.now_us
    ) -> None:
        """Open the replica file at `path`; nothing is asked of the network yet."""
        super().__init__(path, now=now)
        # What is lost here in a power failure is read from the stream again.
        self._usable().execute(f"PRAGMA synchronous=NORMAL; PRAGMA cache_size=-{CACHE_KIB}").fetchall()
        self.url = url
        self.link = link
        self.stream = Stream(link, name)
        self.objects = Objects(link, name)
        self.anchor = Anchor(self.folder)
        self.owed = os.path.join(self.folder, "purge.owed")
        """The events, by seq, whose erased content may still stand in this replica's files; mostly not there."""
        self.offline = ""
        """Why the last attempt to follow failed, empty when it did not."""
        self.head_kept = Head()
        """The head as this handle wrote it last; good as long as the anchor's tip is at it."""
        self.versions_kept: dict[str, int] = {}
        """Versions of streams, good as long as `head_kept` is."""
        self.kept: Callable[[FleetStore, int], None] | None = None
        """Called while this follows: the replica has the stream's events up to that number, the next are on their way.

        It must not read through this store, whose connection another thread may be using: let it tell whoever does.
        """
        self.came = 0
        """How many events came by following since this was opened."""
        self._read_at = -TRUST_SECONDS
        self._waits = 0
        self._many_waits = jitter(*MANY_WAITS)
        self.turns = Turns(link, self.stream.subject)

    @property
    def voids(self) -> int:
        """How many messages of the stream, as far as it was followed, were no extension of the chain."""
        return self.anchor.tip_voids

    def follow(self, *, whole: bool = False) -> int:
        """Catch the replica up with the stream; the number of new events. `whole` compares from the beginning.

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
                if whole:
                    self.anchor.forget()
                self._read_at = -TRUST_SECONDS
                owed = os.path.lexists(
                    self.owed
                )  # from before: what comes now is purged, or tried, as it comes
                came = self._catch_up(connection)
                self.offline = ""
                if owed:
                    self._purge()
                return came
            except apsw.Error as error:
                raise explain(error, self.path) from None
            except Unavailable as error:
                self.offline = str(error)
                raise
            finally:
                if self._lock >= 0:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
                self.after_many(connection)

    def _check_files(self, outcome: str) -> None:
        # What a replica loses is in the stream: its files are looked at before it is read, not around each write.
        if not self._trusted() and outcome == "nothing was written":
            super()._check_files(outcome)

    def _catch_up(self, connection: apsw.Connection, *, newest: bool = False) -> int:
        # Under the lock. A replica that lags, or a leader just chosen, may not show yet what was acknowledged.
        begun = before = self.reader().head().seq
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                end = before
                if self._trusted() or self._look() != self.anchor.tip or self.anchor.tip_seq != before:
                    walk = Walk(self, connection)
                    walk.run(newest=newest)
                    end = walk.seq
                self._read_at = time.monotonic()
                self.came += end - begun
                return end - begun
            except Behind as behind:
                self._check_behind(behind, final=time.monotonic() > deadline)
            except NoStream:
                raise self.no_stream() from None
            except Silence:
                self._check_stream()
                # A server that died in the middle of a long reading: as long as something came, others have the rest.
                if self.reader().head().seq == before and time.monotonic() > deadline:
                    raise
            before = self.reader().head().seq
            time.sleep(jitter(0.01, 0.1))

    def _trusted(self) -> bool:
        return time.monotonic() - self._read_at < TRUST_SECONDS

    def _look(self) -> int:
        """The stream's last place, from its leader; one that is not the stream we read is read from its beginning.

        Raises:
            Tampered: messages were taken out of it.
        """
        info = self.stream.info()
        self.anchor.identify(str(info.get("created")))
        state, config = info.get("state"), info.get("config")
        assert isinstance(state, dict)
        replicas = config.get("num_replicas") if isinstance(config, dict) else None
        # An acknowledgement of three servers' stream says that two of them have flushed it.
        self.promise = "replicated" if isinstance(replicas, int) and replicas >= 3 else "recorded"
        first, removed, last = (state.get(name) or 0 for name in ("first_seq", "num_deleted", "last_seq"))
        if first > 1 or removed:
            raise Tampered(
                f"{self.url}: messages were taken out of the stream (verdict gap): ask the cluster's administrator",
                verdict="gap",
            )
        return int(last)

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
        return Usage(f"{self.url}: no ledger here; run `gatebook init`")

    def _check_stream(self) -> None:
        try:
            self.stream.info()
        except NoStream:
            raise self.no_stream() from None

    def _check_behind(self, behind: Behind, *, final: bool) -> None:
        """Raise once the stream's leader, too, has less than this replica: what was acknowledged is lost there."""
        info = self.stream.info()
        state, config = info.get("state"), info.get("config")
        last = state.get("last_seq") if isinstance(state, dict) else None
        # A server alone has no other that could still know more.
        alone = isinstance(config, dict) and config.get("num_replicas") == 1
        if isinstance(last, int) and last <= behind.place and (final or alone):
            raise Tampered(
                f"{self.url}: the stream ends at message {last}; this machine's replica goes on to event "
                f"{self.reader().head().seq}, which was in it and is not any more (verdict truncated): nothing is "
                f"written; {self.way_on}",
                verdict="truncated",
            )
        if final:
            raise Unavailable(f"{self.url}: its servers lag behind this replica; call again")

    def store_events(self, connection: apsw.Connection, events: list[Event]) -> None:
        """Insert followed events with their contents, one transaction; redactions among them take effect."""
        redacted = {
            seq
            for event in events
            if b'"type":"ledger.redacted"' in event.envelope
            for seq in named_by(event)
        }
        wanted = [event for event in events if b',"content_digest":"' in event.envelope]
        if wanted:
            contents = self.objects.get([str(event.content_digest) for event in wanted])
            for event in wanted:
                event.salt, event.content = contents.get(str(event.content_digest), (None, None))
        if redacted:
            # Crash after this line: the purge is made up for by whoever follows next.
            write_whole(self.owed, b"".join(b"%d\n" % seq for seq in sorted(redacted | self._owed_seqs())))
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(INSERT, map(self.row, events))
            for seq in redacted:
                connection.execute("UPDATE events SET salt = NULL, content = NULL WHERE seq = ?", (seq,))
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        if redacted:
            self._purge()

    def _checkpoint(self, connection: apsw.Connection, pages: int = WAL_PAGES) -> None:
        super()._checkpoint(connection, pages)

    def after_many(self, connection: apsw.Connection) -> None:
        """Keep the WAL small while many events are followed."""
        self._checkpoint(connection, BULK_PAGES)

    def _owed_seqs(self) -> set[int]:
        try:
            with open(self.owed, "rb") as file:
                return {int(line) for line in file.read().split() if line.isdigit()}
        except FileNotFoundError:
            return set()

    def _remove_views(self) -> bool:
        """Remove the views beside the log (projections.views): made again from what is left. False: they are being made."""
        try:
            held = hold_views(self.folder)
        except BlockingIOError:
            return False
        try:
            remove_views(self.folder)
        finally:
            os.close(held)
        return True

    def _purge(self) -> None:
        """What followed redactions leave elsewhere: artifacts, the WAL, and an object whose eraser died on the way.

        Where somebody reads an old snapshot, or makes the views, it is tried again by whoever follows next.
        """
        redacted = self._owed_seqs()
        events = [
            event for event in map(self.reader().event, redacted) if event is not None and event.redacted
        ]
        remove_artifacts(self)
        if self._remove_views() and self.empty_wal(wait_ms=100):
            os.unlink(self.owed)
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
        write = Write(self, decide, origin, clock_jump)
        try:
            return self._race(connection, write)
        except BaseException:
            write.clean_up()
            raise
        finally:
            self.turns.done()

    def _race(self, connection: apsw.Connection, write: Write) -> Recorded:
        deadline = time.monotonic() + RACE_SECONDS
        self.anchor.load()
        self.turns.begin()
        if self.turns.must_wait():
            self._wait_turn(connection)
        elif self.anchor.tip < 0 or not self._trusted():
            self._catch_up_to_write(connection)
        lost = 0
        while True:
            try:
                done = write.attempt(connection)
                if done.replayed or done.events or self._is_current():
                    return done
            except WrongLast:
                lost += 1
                if time.monotonic() > deadline:
                    raise self.not_now(Unavailable("other writers were always faster; call again")) from None
            except Refusal as refusal:
                # Decided on what may be an old head: final only when the stream's leader has nothing newer.
                if self._is_current():
                    raise refusal.error from None
            # Once behind is no contention yet: the other may have written long ago, unless somebody waits already.
            if lost > 1 or (lost and self.turns.must_wait()):
                self._wait_turn(connection)
            else:
                self._catch_up_to_write(connection, newest=True)

    def _wait_turn(self, connection: apsw.Connection) -> None:
        """Let those write that wait longer, then catch up."""
        self._waits += 1
        if self._waits >= self._many_waits:
            import ledger.plain  # noqa: F401 - what others write is read faster from now on: loaded before our turn, not in it

        def ahead_of_turn() -> None:
            try:
                self._catch_up(connection)
            except GatebookError:
                pass  # whatever it is, the reading in our turn says it

        try:
            self.turns.wait(ahead_of_turn)
        except Unavailable as error:
            raise self.not_now(error) from None
        self._catch_up_to_write(connection, newest=True)

    def _is_current(self) -> bool:
        try:
            state = self.stream.info().get("state")
        except (Unavailable, NoStream) as error:
            raise self.not_now(error) from None
        return isinstance(state, dict) and state.get("last_seq") == self.anchor.tip

    def _catch_up_to_write(self, connection: apsw.Connection, *, newest: bool = False) -> None:
        try:
            self._catch_up(connection, newest=newest)
        except Unavailable as error:
            raise self.not_now(error) from None
        except Tampered as error:
            raise Refused(str(error)) from None

    def inside(self) -> FleetReader:
        """A reader inside this store's write transaction."""
        known = self.head_kept.seq == self.anchor.tip_seq
        if not known or len(self.versions_kept) > MAX_KEPT:
            self.versions_kept.clear()
        return FleetReader(self, self._now(), self.head_kept if known else None, self.versions_kept)

    def check_before(self, reader: SQLiteReader, events: Sequence[Event]) -> None:
        """What `guard` asked for ahead of a write."""
        if self._before_commit is not None:
            self._before_commit(reader, events)

    def not_now(self, error: Exception) -> Unavailable:
        """The refusal of a write that was not stored because the cluster does not serve."""
        return Unavailable(f"{self.url}: {error}; nothing was recorded (reading goes on from the replica)")

    def publish(self, events: list[Event], bodies: list[bytes], while_waiting: Callable[[], None]) -> None:
        """Store `events`, as these `bodies`, in the stream after the place that this replica stands at, or find that somebody else did.

        Raises:
            WrongLast: another writer has the place. Unavailable: not stored, or (the message says so) not known.
            Refused: this user may not publish.
        """
        attempt = self.turns.attempt()
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
        self.anchor.wrote(place, events[-1].seq)
        self.turns.wrote()

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
        self.turns.leave()
        self.link.drop()
        self.anchor.close()
        super().close()
