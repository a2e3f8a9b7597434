"""The SQLite store: one file, one lock file, WAL, synchronous FULL (DESIGN, Stores).

Nobody but this module's connection opens `ledger.db` in a process: opening and closing it elsewhere
would drop SQLite's POSIX locks. Writers queue on `ledger.lock` (flock) before BEGIN IMMEDIATE, so
none of them starves in SQLite's back-off.
"""

from __future__ import annotations

import fcntl
import os
import time
from _thread import RLock

import apsw
from blake3 import blake3

from ledger import clock
from ledger.errors import Invalid, Refused, Tampered, Unavailable, Usage
from ledger.event import ARTIFACTS, MAX_CONTENT, Draft, Event, Head, Origin, head_of
from ledger.store import Recorded, prepare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ledger.store import Reader

    Row = tuple[int, bytes, bytes, bytes | None, bytes | None, bytes]

FORMAT = 1
APPLICATION_ID = 0x67617465  # "gate"
# SQLite 3.7.0 to 3.51.2 can lose commits when a WAL is reset under two writers.
OLDEST_SQLITE = (3, 51, 3)
# Passive checkpoints (DESIGN): past 8 MB of WAL while a handle stays open; and when a handle is closed past 1 MB,
# because the first process that opens the file next reads the whole WAL before it can begin.
CHECKPOINT_PAGES = 2048
CLOSING_PAGES = 256
WALKING_PAGES = 50
FRAME = 24 + 4096  # a page in the WAL, with its header
AHEAD = 64 * FRAME  # bytes by which the WAL is made longer at once
FEW = 16  # events of a commit that is small beside that
LOCK_SECONDS = 30.0
AT_ONCE = fcntl.LOCK_EX | fcntl.LOCK_NB  # or not at all
IDLE_SECONDS = 0.05
GRAIN_NS = (
    100_000_000  # directory times advance in steps of up to 10 ms: a change within one could not be told
)
MAX_ARTIFACT = 64 * 1024 * 1024
PAGE = 500
MAX_TIPS = 1000  # streams whose versions a handle remembers

_MEMBER = "json_extract(CAST(envelope AS TEXT), '$.{}')"
OUT_OF_ORDER = "an event must follow the last one"
SCHEMA = {
    "events": "CREATE TABLE events ("
    "seq INTEGER PRIMARY KEY, envelope BLOB NOT NULL, data BLOB NOT NULL, salt BLOB, content BLOB, hash BLOB NOT NULL, "
    f"stream TEXT GENERATED ALWAYS AS ({_MEMBER.format('stream')}) VIRTUAL, "
    f"version INTEGER GENERATED ALWAYS AS ({_MEMBER.format('version')}) VIRTUAL, "
    f"type TEXT GENERATED ALWAYS AS ({_MEMBER.format('type')}) VIRTUAL, "
    f"idempotency_key TEXT GENERATED ALWAYS AS ({_MEMBER.format('idempotency_key')}) VIRTUAL"
    ") STRICT",
    "events_stream": "CREATE UNIQUE INDEX events_stream ON events (stream, version)",
    "events_type": "CREATE INDEX events_type ON events (type)",
    "events_key": "CREATE UNIQUE INDEX events_key ON events (idempotency_key) WHERE idempotency_key IS NOT NULL",
    "events_in_order": "CREATE TRIGGER events_in_order BEFORE INSERT ON events "
    "WHEN NEW.seq IS NOT (SELECT ifnull(max(seq), 0) + 1 FROM events) "
    f"BEGIN SELECT RAISE(ABORT, '{OUT_OF_ORDER}'); END",
    "events_fixed": "CREATE TRIGGER events_fixed BEFORE UPDATE ON events "
    "WHEN NEW.seq IS NOT OLD.seq OR NEW.envelope IS NOT OLD.envelope OR NEW.data IS NOT OLD.data "
    "OR NEW.hash IS NOT OLD.hash OR NEW.salt IS NOT NULL OR NEW.content IS NOT NULL "
    "BEGIN SELECT RAISE(ABORT, 'an event cannot be changed; only its content can be erased'); END",
    "events_kept": "CREATE TRIGGER events_kept BEFORE DELETE ON events "
    "BEGIN SELECT RAISE(ABORT, 'an event cannot be deleted'); END",
    "snapshots": "CREATE TABLE snapshots (stream TEXT NOT NULL, version INTEGER NOT NULL, hash BLOB NOT NULL, "
    "fold TEXT NOT NULL, state BLOB NOT NULL, digest BLOB NOT NULL, PRIMARY KEY (stream, version)) STRICT, WITHOUT ROWID",
}
INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)"
MANY = 256  # events of one transaction from which proving their order once is cheaper than a trigger on each
COLUMNS = "seq, envelope, data, salt, content, hash"
RANGE_SQL = f"SELECT {COLUMNS} FROM events WHERE seq >= ? AND seq <= ? ORDER BY seq"
_PAGE_SQL = f"SELECT {COLUMNS} FROM events WHERE seq >= ? AND seq < ? ORDER BY seq LIMIT ?"


def snapshot_digest(stream: str, version: int, hash: bytes, fold: str, state: bytes) -> bytes:
    """What covers a snapshot's cells, so that verification finds a changed one."""
    return blake3(f"{stream}\0{version}\0{fold}\0".encode() + hash + state).digest()


def sqlite_version() -> str:
    """The SQLite that the log is kept with, like `3.54.1`."""
    return apsw.sqlite_lib_version()


def check_sqlite() -> None:
    """Raise Unavailable when the SQLite in use is one that can lose acknowledged events."""
    version = tuple(int(part) for part in sqlite_version().split(".")[:3])
    if version < OLDEST_SQLITE:
        raise Unavailable(
            f"SQLite {sqlite_version()} can lose commits (WAL reset, fixed in 3.51.3): install a newer apsw"
        )


def connect(
    path: str, *, create: bool = False, readonly: bool = False, walking: bool = False
) -> apsw.Connection:
    """A connection to `path` with the log's settings; the file must exist unless `create`.

    `walking`: one thread alone reads the events from end to end: no mutex, and few pages kept, so that they and
    what is made of them stay in the processor's cache.
    """
    check_sqlite()
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE
    if walking:
        flags |= apsw.SQLITE_OPEN_NOMUTEX
    if create:
        flags |= apsw.SQLITE_OPEN_CREATE
    try:
        path.encode()
    except UnicodeEncodeError:  # a name that is no UTF-8: reach it through its directory's descriptor
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            where = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
            return _settle(apsw.Connection(where, flags), walking=walking)
        finally:
            os.close(folder)
    return _settle(apsw.Connection(path, flags), walking=walking)


def _settle(connection: apsw.Connection, *, walking: bool) -> apsw.Connection:
    connection.set_busy_timeout(10_000)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.execute(
        "PRAGMA synchronous=FULL; PRAGMA recursive_triggers=ON; PRAGMA secure_delete=ON; PRAGMA wal_autocheckpoint=0"
    ).fetchall()  # APSW runs the statement after one that gives a row only when asked for the next row
    if walking:
        connection.execute(f"PRAGMA cache_size={WALKING_PAGES}").fetchall()
    return connection


def explain(error: apsw.Error, path: str) -> Exception:
    """An apsw error as one of ours: what happened to the file at `path`, and what to do."""
    if isinstance(error, apsw.NotADBError | apsw.CorruptError):
        return Tampered(f"{path}: not a readable ledger ({error}): restore a backup", verdict="unreadable")
    if isinstance(error, apsw.FullError):
        return Unavailable(f"{path}: the disk is full; nothing was recorded: make room and call again")
    if isinstance(error, apsw.ReadOnlyError):
        return Unavailable(f"{path}: the file or its directory is read-only; nothing was recorded")
    if isinstance(error, apsw.CantOpenError | apsw.PermissionsError):
        return Unavailable(
            f"{path}: cannot be opened (permissions, a read-only directory, or no space for its -wal and -shm)"
        )
    if isinstance(error, apsw.IOError):
        return Unavailable(
            f"{path}: input/output error (disk full, or a failing or network disk); nothing was acknowledged"
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return Unavailable(f"{path}: another program holds the database; call again")
    if isinstance(error, apsw.ConstraintError):
        return Tampered(
            f"{path}: the log's own rules refused the write ({error}): run `gatebook verify`", verdict="order"
        )
    return Tampered(f"{path}: {error}", verdict="unreadable")


def create_schema(connection: apsw.Connection) -> None:
    """Tables, indexes and triggers of format 1, inside the caller's transaction."""
    for statement in SCHEMA.values():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}; PRAGMA user_version={FORMAT}")


def insert_in_order(
    connection: apsw.Connection, insert: Callable[[], object], after: int, count: int
) -> None:
    """Run `insert`, which adds `count` events after event `after`, in the caller's transaction.

    For each row the trigger events_in_order has SQLite reckon the generated columns a second time. For many rows its
    rule is proved once for all of them instead: these numbers and no others stand after what was the last event.

    Raises:
        apsw.Error: what `insert` raises, and ConstraintError when the numbers do not follow.
    """
    if count < MANY:
        insert()
        return
    check_last(connection, after)
    without_triggers(connection, insert)
    added = connection.execute(
        "SELECT count(*), min(seq), max(seq) FROM events WHERE seq > ?", (after,)
    ).fetchall()
    if added != [(count, after + 1, after + count)]:
        raise apsw.ConstraintError(OUT_OF_ORDER)


def check_last(connection: apsw.Connection, seq: int) -> None:
    """Raise apsw.ConstraintError unless `seq` is the last event's number (0: there is none)."""
    if connection.execute("SELECT ifnull(max(seq), 0) FROM events").fetchall() != [(seq,)]:
        raise apsw.ConstraintError(OUT_OF_ORDER)


def without_triggers(connection: apsw.Connection, insert: Callable[[], object]) -> None:
    """Run `insert` while the triggers are off on this connection; they are on again whatever it raises."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    try:
        insert()
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)


class Tip:
    """Head and stream versions after a handle's last transaction, good while SQLite's count of changes is `counter`."""

    __slots__ = ("counter", "head", "versions")

    def __init__(self) -> None:
        self.counter: int | None = None
        self.head: Head | None = None
        self.versions: dict[str, int] = {}


class SQLiteReader:
    """Reads through a store's connection; `inside` a transaction it sees the head the drafts will follow."""

    __slots__ = ("_erased", "_head", "_inside", "_snapshots", "_store", "_versions", "clock")

    def __init__(
        self,
        store: SQLiteStore,
        now: int,
        head: Head | None = None,
        versions: dict[str, int] | None = None,
        *,
        inside: bool = False,
    ) -> None:
        """`head` and `versions` of streams: what is known of them; `versions` takes what is read besides."""
        self._store = store
        self._inside = inside
        self.clock = now
        self._head = head
        self._versions = {} if versions is None else versions
        self._snapshots: list[tuple[str, int, str, bytes]] = []
        self._erased: list[tuple[int]] = []

    def head_after(self, events: Sequence[Event]) -> Head:
        """The head once `events` stand, dated as `seal` does it."""
        before, clock, last = self._head or self.head(), self.clock, events[-1]
        return Head(last.seq, last.hash, max(clock, before.recorded_us + 1) + len(events) - 1, clock)

    def _events(self, rest: str, *values: object) -> list[Event]:
        # Through the store, whose mutex keeps other threads' unfinished transactions out of sight.
        rows = self._store.query(f"SELECT {COLUMNS} FROM events {rest}", values)
        return [Event(*row) for row in rows]  # type: ignore[arg-type]

    def head(self) -> Head:
        """The last event's place."""
        if self._head is not None:
            return self._head
        last = self._events("ORDER BY seq DESC LIMIT 1")
        head = head_of(last[0]) if last else Head()
        if self._inside:
            self._head = head
        return head

    def version(self, stream: str) -> int:
        """The version of `stream`, 0 when it has no event."""
        known = self._versions.get(stream)
        if known is not None:
            return known
        version = self._store.query("SELECT max(version) FROM events WHERE stream = ?", (stream,))[0][0]
        found = version if isinstance(version, int) else 0
        if self._inside:
            self._versions[stream] = found
        return found

    def stream(self, stream: str, after: int = 0, upto: int | None = None) -> list[Event]:
        """The events of `stream` with after < version <= upto, in order."""
        last = 2**62 if upto is None else upto
        return self._events(
            "WHERE stream = ? AND version > ? AND version <= ? ORDER BY version", stream, after, last
        )

    def event(self, seq: int) -> Event | None:
        """The event with that number."""
        found = self._events("WHERE seq = ?", seq)
        return found[0] if found else None

    def by_key(self, key: str) -> Event | None:
        """The event that carries this idempotency key."""
        found = self._events("WHERE idempotency_key = ?", key)
        return found[0] if found else None

    def streams(self, kind: str) -> list[str]:
        """The names of all streams of one kind, sorted; cost of those streams' index entries."""
        rows = self._store.query(
            "WITH RECURSIVE names(name) AS (SELECT min(stream) FROM events WHERE stream >= ?1 AND stream < ?2 "
            "UNION ALL SELECT (SELECT min(stream) FROM events WHERE stream > name AND stream < ?2) FROM names "
            "WHERE name IS NOT NULL) SELECT name FROM names WHERE name IS NOT NULL",
            (f"{kind}/", f"{kind}0"),
        )
        return [str(row[0]) for row in rows]

    def of_type(self, name: str, limit: int, before: int = 2**62) -> list[Event]:
        """The last `limit` events of one type before `before`, newest first."""
        return self._events("WHERE type = ? AND seq < ? ORDER BY seq DESC LIMIT ?", name, before, limit)

    def snapshot(self, stream: str, fold: str, upto: int | None = None) -> tuple[int, bytes] | None:
        """(version, state) of the newest snapshot this fold made whose event stands in the chain with that hash."""
        rows = self._store.query(
            "SELECT s.version, s.hash, s.state, s.digest FROM snapshots s JOIN events e "
            "ON e.stream = s.stream AND e.version = s.version AND e.hash = s.hash "
            "WHERE s.stream = ? AND s.version <= ? AND s.fold = ? ORDER BY s.version DESC LIMIT 1",
            (stream, 2**62 if upto is None else upto, fold),
        )
        for version, hash, state, digest in rows:
            if snapshot_digest(stream, version, hash, fold, state) == digest:  # type: ignore[arg-type]
                return version, state  # type: ignore[return-value]
        return None

    def save_snapshot(self, stream: str, version: int, fold: str, state: bytes) -> None:
        """Keep `state` together with what this transaction appends."""
        self._snapshots.append((stream, version, fold, state))

    def erase(self, seq: int) -> None:
        """Erase content and salt of event `seq` together with what this transaction appends."""
        self._erased.append((seq,))

    def write_rest(self) -> None:
        """Erase what `erase` collected (the trigger lets nothing else change), insert what `save_snapshot` did; after the events are in."""
        for seq in self._erased:
            self._store.query("UPDATE events SET content = NULL, salt = NULL WHERE seq = ?", seq)
        for stream, version, fold, state in self._snapshots:
            for event in self.stream(stream, after=version - 1, upto=version):
                digest = snapshot_digest(stream, version, event.hash, fold, state)
                self._store.query(
                    "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?, ?)",
                    (stream, version, event.hash, fold, state, digest),
                )


class SQLiteStore:
    """`Store` over one SQLite file; safe for threads and for many processes, not across a fork."""

    promise = "recorded"
    """How far an acknowledged event is promised, by name (DESIGN, What the record promises)."""
    url = ""
    """The fleet's ledger that this is a replica of, as its users name it; empty for a ledger of files."""
    fault: Tampered | None = None
    """What is wrong with where the events come from, though the file is good: a fleet's stream that lost or rewrote some."""

    def __init__(self, path: str, *, readonly: bool = False, now: Callable[[], int] = clock.now_us) -> None:
        """Open the ledger file at `path`.

        Raises:
            Usage: there is no file. Tampered: not a ledger file (verdict says which way). Unavailable: no access.
        """
        self.path = path
        self.folder = os.path.dirname(path)
        self._now = now
        # Reentrant: `decide` and `then` may read through the store that is writing.
        self._mutex = RLock()
        self._pid = os.getpid()
        self._readonly = readonly
        self._lock = -1
        self._pages = 0
        self._room = -1
        self._names = (path, path + "-wal", path + "-shm")
        self._files: list[int | None] = []
        self._settled: tuple[int, int] | None = None
        self._looked_at = float("-inf")
        self._before_commit: Callable[[Reader, Sequence[Event]], None] | None = None
        self._after_commit: Callable[[Event], None] | None = None
        self._connection: apsw.Connection | None = None
        self._tip = Tip()
        self._open()

    def _open(self) -> None:
        try:
            size = os.stat(self.path).st_size
        except FileNotFoundError:
            raise Usage(f"{self.path}: no ledger here; run `gatebook init`") from None
        except PermissionError as error:
            raise Unavailable(f"{self.path}: cannot be opened: {error.strerror}") from None
        except OSError as error:
            raise Tampered(f"{self.path}: cannot be read: {error.strerror}", verdict="unreadable") from None
        if size == 0:
            raise Tampered(
                f"{self.path}: the file is empty (0 bytes): restore a backup", verdict="nothing-to-verify"
            )
        try:
            self._connection = connect(self.path, readonly=self._readonly)
            found, tables = self._connection.execute(
                "SELECT user_version, (SELECT count(*) FROM sqlite_schema WHERE name = 'events') FROM pragma_user_version"
            ).fetchall()[0]
        except apsw.Error as error:
            raise explain(error, self.path) from None
        if isinstance(found, int) and found > FORMAT:
            raise Invalid(
                f"{self.path}: ledger format {found}, this gatebook knows {FORMAT}: upgrade gatebook"
            )
        if not tables:
            raise Tampered(
                f"{self.path}: a SQLite file, but not a ledger: check the path", verdict="unreadable"
            )
        self._cursor = self._connection.cursor()
        self._connection.set_wal_hook(self._committed)
        self._files = self._identities()

    def _committed(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def _identities(self) -> list[int | None]:
        found: list[int | None] = []
        for name in self._names:
            try:
                found.append(os.stat(name).st_ino)
            except FileNotFoundError:
                found.append(None)
        return found

    def _usable(self) -> apsw.Connection:
        if os.getpid() != self._pid:
            raise Unavailable("this ledger was opened before a fork: open it again in the new process")
        if self._connection is None:
            raise Unavailable("this ledger is closed")
        return self._connection

    def _take_lock(self) -> None:
        if self._lock < 0:
            name = os.path.join(self.folder, "ledger.lock")
            try:
                self._lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise Unavailable(f"{name}: cannot be opened for writing: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, AT_ONCE)
            return
        except BlockingIOError:
            pass
        except OSError as error:
            raise Unavailable(f"{self.folder}: this disk cannot lock files: {error.strerror}") from None
        self._wait_for_lock()

    def _wait_for_lock(self) -> None:
        """Queue in the kernel, so that waiting writers are served in order; give up after LOCK_SECONDS."""
        import signal
        import threading

        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getitimer(signal.ITIMER_REAL)[0]
        ):
            self._poll_for_lock()
            return

        def late(_signal: int, _frame: object) -> None:
            raise Unavailable(
                f"{self.folder}: another process has held the ledger for {LOCK_SECONDS:.0f} s; call again"
            )

        before = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, LOCK_SECONDS)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before or signal.SIG_DFL)

    def _poll_for_lock(self) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        while time.monotonic() < deadline:
            try:
                fcntl.flock(self._lock, AT_ONCE)
                return
            except BlockingIOError:
                time.sleep(0.002)
        raise Unavailable(
            f"{self.folder}: another process has held the ledger for {LOCK_SECONDS:.0f} s; call again"
        )

    def _check_files(self, outcome: str) -> None:
        """The files we hold open must still be the ones that have the names, or what we write is lost.

        Names change only together with their directory's time: while that stands, and is older than the grain of such
        times, one look at the directory says that all of them stand.
        """
        try:
            folder = os.stat(self.folder)
            place = (folder.st_ino, folder.st_mtime_ns)
        except OSError:
            place = (0, 0)  # its files are gone with it
        if place == self._settled:
            return
        now = self._identities()
        if self._files[1:] == [None, None]:
            self._files[1:] = now[1:]
        if now != self._files:
            raise Tampered(
                f"{self.path}: the file, its -wal or its -shm was removed or replaced while open; "
                f"{outcome}: run `gatebook verify`",
                verdict="truncated",
            )
        self._settled = place if place[1] < time.time_ns() - GRAIN_NS else None

    def transact(
        self,
        decide: Callable[[Reader], Sequence[Draft]],
        origin: Origin,
        *,
        clock_jump: bool = False,
        then: Callable[[], None] | None = None,
    ) -> Recorded:
        """Append what `decide` returns: durable when this returns, all of it or nothing (see `Store`)."""
        if os.getpid() != self._pid:
            self._usable()  # before the mutex: after a fork it may be held by a thread that is not here
        with self._mutex:
            connection = self._connection or self._usable()
            try:
                self._take_lock()
                # After each commit the files are looked at again, so between commits that follow closely once is enough.
                began = time.monotonic()
                if began - self._looked_at > IDLE_SECONDS:
                    self._check_files("nothing was written")
                done = self._write(connection, decide, origin, clock_jump)
                self._check_files("what was just written may be lost, so it is not acknowledged")
                self._looked_at = began
                # Crash here: the events are durable, the head memory is one step behind: harmless.
                if not done.replayed and done.events and self._after_commit is not None:
                    self._after_commit(done.events[-1])
                if then is not None:
                    then()
                if self._pages > self._room and len(done.events) <= FEW:
                    self._make_room(connection)
            except apsw.Error as error:
                raise explain(error, self.path) from None
            finally:
                if self._lock >= 0:
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
            self._checkpoint(connection)
            return done

    def _write(
        self,
        connection: apsw.Connection,
        decide: Callable[[Reader], Sequence[Draft]],
        origin: Origin,
        clock_jump: bool,
    ) -> Recorded:
        tip = self._tip
        # One cursor for all: making one costs as much as a statement.
        execute = self._cursor.execute
        try:
            execute("BEGIN IMMEDIATE")
            # Counts every transaction, ours too: the same as after our last one means that nobody else wrote.
            if tip.counter != connection.data_version() or len(tip.versions) > MAX_TIPS:
                tip.head, tip.versions = None, {}
            tip.counter = None
            reader = SQLiteReader(self, self._now(), tip.head, tip.versions, inside=True)
            drafts = decide(reader)
            done = prepare(drafts, reader, origin, self.artifact, clock_jump=clock_jump)
            events = done.events
            if done.replayed or not events:
                execute("ROLLBACK")
                return done
            if self._before_commit is not None:
                self._before_commit(reader, events)
            # Crash before COMMIT returns: nothing is acknowledged; SQLite's WAL holds all of the batch or none.
            if len(events) == 1:
                execute(INSERT, self.row(events[0]))
            else:
                rows = map(self.row, events)
                insert_in_order(
                    connection,
                    lambda: self._cursor.executemany(INSERT, rows),
                    events[0].seq - 1,
                    len(events),
                )
            reader.write_rest()
            execute("COMMIT")
            tip.head = reader.head_after(events)
            tip.versions.update(done.versions)
            tip.counter = connection.data_version()
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return done

    def row(self, event: Event) -> tuple[object, ...]:
        """The six columns of `event`; a large content becomes an artifact beside the ledger."""
        content = event.content
        if content is not None and len(content) > MAX_CONTENT:
            self._write_artifact(event, content)
            content = None
        return (event.seq, event.envelope, event.data, event.salt, content, event.hash)

    def _write_artifact(self, event: Event, content: bytes) -> None:
        from ledger.files import write_whole

        if len(content) > MAX_ARTIFACT:
            raise Invalid(f"content: {len(content)} bytes; {MAX_ARTIFACT} at most")
        folder = os.path.join(self.folder, ARTIFACTS)
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            # Crash here leaves an artifact that no event names: harmless, `doctor` shows it.
            write_whole(os.path.join(folder, event.content_digest or ""), content)
        except OSError as error:
            raise Unavailable(f"{folder}: {error.strerror}; nothing was recorded") from None

    def artifact(self, event: Event) -> bytes | None:
        """The content of `event`, wherever it lies; None where it never was or is gone."""
        if event.content is not None or not event.in_artifact:
            return event.content
        try:
            with open(os.path.join(self.folder, ARTIFACTS, event.content_digest or ""), "rb") as file:
                return file.read(MAX_ARTIFACT + 1)
        except OSError:
            return None

    def _checkpoint(self, connection: apsw.Connection, pages: int = CHECKPOINT_PAGES) -> None:
        if self._pages > pages:
            self._pages = 0
            try:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            except apsw.Error:
                return  # the events are durable in the WAL; the next writer tries again

    def _make_room(self, connection: apsw.Connection) -> None:
        """Make the WAL longer in one piece, of zeros, where the next small commits would each make it longer.

        The flush of a file that has become longer writes its length and new blocks too, and takes half as long again.
        SQLite reads a WAL up to the first frame that is not whole, so that what comes behind the last one is nothing. Its
        write lock keeps everybody else from writing there now. It locks nothing in this file, so closing it here is safe.
        """
        if self._pages > CHECKPOINT_PAGES:
            return
        wanted = (self._pages + 8) * FRAME
        self._room = self._pages + AHEAD // FRAME  # where that fails, not tried again at once
        try:
            wal = os.open(self._names[1], os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                found = os.fstat(wal)
                if found.st_ino == self._files[1]:
                    # Crash here: some zeros, or none.
                    more = os.pwrite(wal, bytes(AHEAD), found.st_size) if found.st_size < wanted else 0
                    self._room = (found.st_size + more) // FRAME - 8
            finally:
                connection.execute("ROLLBACK")
        except (OSError, apsw.Error):
            return  # no room on the disk, or somebody else writes: what was recorded is recorded
        finally:
            os.close(wal)

    def reader(self) -> SQLiteReader:
        """A reader outside any transaction: each call sees the latest commit."""
        self._usable()
        return SQLiteReader(self, self._now())

    def head(self) -> Head:
        """The last event's place, `Head()` when there is none."""
        return self.reader().head()

    def rows(self, start: int = 1, stop: int | None = None, size: int = PAGE) -> Iterator[list[Row]]:
        """Pages of the six stored columns with start <= seq < stop, in order; no transaction is held between pages."""
        last = 2**62 if stop is None else stop
        while start < last:
            page: list[Row] = self.query(_PAGE_SQL, (start, last, size))  # type: ignore[assignment]
            if not page:
                return
            yield page
            start = page[-1][0] + 1

    def read(self, start: int = 1, stop: int | None = None) -> Iterator[Event]:
        """Events with start <= seq < stop, in order; new ones that come while reading are included."""
        for page in self.rows(start, stop):
            for row in page:
                yield Event(*row)

    def query(self, sql: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Rows of a statement; errors as this module's. Waits while another thread's transaction runs."""
        self._usable()
        with self._mutex:
            try:
                return self._usable().execute(sql, tuple(values)).fetchall()
            except apsw.Error as error:
                raise explain(error, self.path) from None
            except UnicodeDecodeError:
                raise Tampered(
                    f"{self.path}: text in it is not UTF-8: run `gatebook verify`", verdict="unreadable"
                ) from None

    def empty_wal(self, *, wait_ms: int = 2_000) -> bool:
        """Move the WAL into the file and cut it to nothing; False while another connection still reads from it."""
        with self._mutex:
            connection = self._usable()
            connection.set_busy_timeout(wait_ms)
            try:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                return False
            except apsw.Error as error:
                raise explain(error, self.path) from None
            finally:
                connection.set_busy_timeout(10_000)
            return True

    def mark(self, application_id: int) -> None:
        """Make the file a ledger or a read-only archive."""
        with self._mutex:
            try:
                self._usable().execute(f"PRAGMA application_id={application_id:d}")
            except apsw.Error as error:
                raise explain(error, self.path) from None

    def close(self) -> None:
        """Close the file; the WAL stays, as durable as the file."""
        if self._connection is not None and os.getpid() == self._pid:
            self._checkpoint(self._connection, CLOSING_PAGES)
            self._connection.close()
            if self._lock >= 0:
                os.close(self._lock)
        self._connection = None
        self._lock = -1

    def guard(
        self, before: Callable[[Reader, Sequence[Event]], None], after: Callable[[Event], None]
    ) -> None:
        """Call `before` under the lock ahead of each commit (it may refuse), `after` with the new last event."""
        self._before_commit, self._after_commit = before, after


def read_only_refusal(path: str) -> Refused:
    """The error for writing into an archive, which a fleet's replica is to whoever names it by its path."""
    if os.path.lexists(os.path.join(path, "anchor")):
        return Refused(
            f"{path}: a fleet's replica is read-only: name the ledger as nats://host:port/NAME; only where its cluster is "
            "gone for good, `gatebook resume --as-successor --reason R` makes the replica a ledger"
        )
    return Refused(
        f"{path}: an imported archive is read-only: `gatebook resume --as-successor --reason R` makes it a ledger"
    )
