"""The read models: a second SQLite file beside the log, disposable, caught up from a stored position (DESIGN, Views).

No decision reads them. Tables:

    events      every event: envelope's members, data as JSON text, content as text, `redacted`
    events_fts  full text over data and content (FTS5)
    position    up to which event (seq, hash) they stand, and by which folds

and what the aggregates offer. An aggregate module may define

    VIEWS       table -> {column: type}, besides the column `stream` that every such table has
    rows        (stream name, state) -> {table: [row without `stream`, …]}

The log's file is opened by APSW alone and this one by sqlite-utils alone; they are never ATTACHed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from itertools import chain, islice

import apsw
import sqlite_utils
from sqlite_utils.db import Database

from ledger.errors import Invalid, Tampered, Unavailable
from ledger.event import Event
from ledger.leftovers import NEW, VIEWS, hold_views, remove_database
from ledger.notice import tell
from ledger.sqlite import RANGE_SQL, explain
from ledger.sqlite import connect as connect_log
from projections.engine import aggregate_of, decode, load, reader_of, void_before_of
from projections.members import clock_of, members_of
from projections.registry import AGGREGATES, TYPES, aggregate, kind_of
from projections.timetravel import version_at, without_void

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future, ThreadPoolExecutor
    from typing import Any, Self

    from ledger.access import Ledger
    from ledger.sqlite import Row, SQLiteStore

VERSION = "views/2"
READ = 100  # events at a time: few enough that they and their rows stay in the processor's cache
GROUP = 50  # rows that one statement inserts
WAITING = 10_000  # streams' rows that wait in memory
TEXTS = 16_000  # events whose words are indexed by one statement
LARGE = 20_000  # events: views of fewer keep SQLite's own pages, of which many would be nearly empty
LARGE_PAGE = 16_384  # bytes: fewer pages to split, write and read again
HELD_SECONDS = 60.0
FEW = 2_000  # events that are caught up without a connection and a thread of their own
EVENT_COLUMNS: dict[str, Any] = {
    "seq": int,
    "stream": str,
    "kind": str,
    "version": int,
    "type": str,
    "v": int,
    "recorded_at": str,
    "clock_us": int,
    "clock_behind": int,
    "actor": str,
    "via": str,
    "correlation": str,
    "causation": int,
    "idempotency_key": str,
    "data": str,
    "content": str,
    "redacted": int,
    "hash": str,
}
# What is given in place of None, and becomes NULL only in the statement: for each None `sqlite3` looks for an adapter,
# which costs as much as all other cells of a row. Each is of a type that its column's values never have.
_ABSENT: dict[str, int | str] = {"correlation": 0, "causation": "", "idempotency_key": 0, "content": 0}
_PLACES = ", ".join(f"nullif(?, {_ABSENT[name]!r})" if name in _ABSENT else "?" for name in EVENT_COLUMNS)
_INSERT_ONE = f"INSERT INTO events VALUES ({_PLACES})"  # noqa: S608 - only places for values
_INSERT_GROUP = _INSERT_ONE + f", ({_PLACES})" * (GROUP - 1)
_INSERT_TEXT = "INSERT INTO events_fts(rowid, data, content) SELECT seq, data, content FROM events WHERE seq BETWEEN ? AND ?"
_INDEXED = ("stream", "type", "actor", "recorded_at")
_INDEXED_WHERE_GIVEN = ("correlation", "causation")


def _modules() -> Iterator[Any]:
    for kind in AGGREGATES:
        with contextlib.suppress(ModuleNotFoundError):
            yield aggregate(kind)


def folds() -> str:
    """The versions of every fold behind the views: where it differs from the stored one, they are made anew."""
    return " ".join([VERSION, *(module.FOLD for module in _modules())])


def path_of(ledger: Ledger) -> str:
    """Where the views of a ledger lie."""
    return os.path.join(ledger.folder, VIEWS)


def _create(database: Database) -> None:
    """The tables, still without the indexes: made over all rows at once, those cost half."""
    events: Any = database["events"]
    events.create(EVENT_COLUMNS, pk="seq")
    database.execute(
        "CREATE VIRTUAL TABLE events_fts USING fts5(data, content, content='events', content_rowid='seq')"
    )
    position: Any = database["position"]
    position.create({"id": int, "seq": int, "hash": str, "folds": str}, pk="id")
    for module in _modules():
        for table, columns in getattr(module, "VIEWS", {}).items():
            made: Any = database[table]
            made.create({"stream": str, **columns})


def _index(database: Database) -> None:
    events: Any = database["events"]
    for column in _INDEXED:
        events.create_index([column])
    for column in _INDEXED_WHERE_GIVEN:
        database.execute(f"CREATE INDEX idx_events_{column} ON events ({column}) WHERE {column} IS NOT NULL")
    for module in _modules():
        for table in getattr(module, "VIEWS", {}):
            made: Any = database[table]
            made.create_index(["stream"])


def _row(row: Row, store: SQLiteStore) -> tuple[object, ...]:
    """The cells of `events`, with `_ABSENT` for None."""
    seq, envelope, data, salt, content, hash_ = row
    members = members_of(seq, envelope)
    stream, digest = members.stream, members.content_digest
    correlation, causation, key = members.correlation, members.causation, members.idempotency_key
    if content is None and salt is not None and digest is not None:
        content = store.artifact(Event(*row))
    return (
        seq, stream, kind_of(stream), members.version, members.type, members.v, members.recorded_at, clock_of(members),
        members.clock_behind, members.actor, members.via, 0 if correlation is None else correlation,
        "" if causation is None else causation, 0 if key is None else key, data.decode(),
        0 if content is None else content.decode("utf-8", "replace"), 1 if digest is not None and salt is None else 0, hash_.hex(),
    )  # fmt: skip


def _pages(store: SQLiteStore, start: int, last: int) -> Iterator[list[Row]]:
    """The events from `start` to `last`, a few at a time."""
    if last - start < FEW:
        yield from store.rows(start, last + 1, READ)
        return
    connection = connect_log(store.path, walking=True)
    try:
        rows = connection.execute(RANGE_SQL, (start, last))
        while page := list(islice(rows, READ)):
            yield page
    except apsw.Error as error:
        raise explain(error, store.path) from None
    finally:
        connection.close()


class Catchup:
    """Brings one views file from its position up to one event, the ledger's head at first; whatever comes later is left."""

    def __init__(
        self,
        ledger: Ledger,
        database: Database,
        progress: Callable[[int, int], None] | None = None,
        upto: int | None = None,
    ) -> None:
        self._ledger = ledger
        self._database = database
        self._progress = progress
        self._head = ledger.store.head().seq if upto is None else upto
        self._touched: dict[str, int] = {}  # stream -> its last version up to there
        self._known: set[tuple[str, int]] = set()  # types and their versions met so far
        self._restored = False  # whether what stands may have become void

    def run(self, start: int) -> int:
        """Add the events from `start` on to views that stand; returns how many."""
        done, last = self._events(start)
        if last is not None:
            self._words(start, last[0])
            if self._restored:
                self._touch_all()
            with Beside() as beside:
                self._states(beside, fresh=False)
            self._stand(last)
        return done

    def fill(self) -> int:
        """Add all events to views that were just created, and index them; returns how many."""
        done, last = self._events(1)
        with Beside() as beside:
            beside.start(lambda: self._all_words_and_indexes(0 if last is None else last[0]))
            self._states(beside, fresh=True)
        if last is not None:
            self._stand(last)
        return done

    def _stand(self, last: Row) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO position VALUES (1, ?, ?, ?)", [last[0], last[5].hex(), folds()]
        )

    def _events(self, start: int) -> tuple[int, Row | None]:
        """Insert the events from `start` to the head: how many, and the last one."""
        store, execute, head = self._ledger.store, self._database.conn.execute, self._head
        done, last = 0, None
        for page in _pages(store, start, head):
            rows = [_row(row, store) for row in page]
            # Open types live in streams of x kinds; any other type there or elsewhere is folded, or stops its fold.
            decided = [row for row in rows if str(row[2])[:1] != "x" or row[4] in TYPES]
            for row in decided:
                self._check_known(str(row[4]), int(row[5]), seq=int(row[0]))  # type: ignore[call-overload]
            self._touched.update([(row[1], row[3]) for row in decided])  # type: ignore[misc]
            self._restored = self._restored or any(row[4] == "ledger.restored" for row in rows)
            whole = len(rows) - len(rows) % GROUP
            for at in range(0, whole, GROUP):
                execute(_INSERT_GROUP, tuple(chain.from_iterable(rows[at : at + GROUP])))
            for row in rows[whole:]:
                execute(_INSERT_ONE, row)
            last = page[-1]
            done += len(page)
            if self._progress is not None:
                self._progress(start - 1 + done, head)
        return done, last

    def _check_known(self, name: str, v: int, *, seq: int) -> None:
        """Stop at what this gatebook does not know (FAULTS F67): a view that skipped it would look whole."""
        if (name, v) not in self._known and v > reader_of(name, seq)[0]:
            decode(name, v, b"", seq)
        self._known.add((name, v))

    def _touch_all(self) -> None:
        """A restore voids what is open in streams that have no new event."""
        reader = self._ledger.store.reader()
        for kind in AGGREGATES:
            for stream in reader.streams(kind):
                if stream not in self._touched and (version := version_at(reader, stream, self._head)):
                    self._touched[stream] = version

    def _words(self, first: int, last: int) -> None:
        for begin in range(first, last + 1, TEXTS):
            self._database.conn.execute(_INSERT_TEXT, (begin, min(begin + TEXTS - 1, last)))

    def _all_words_and_indexes(self, last: int) -> None:
        """Over all rows at once: words' segments are merged once, at the end, instead of level by level."""
        execute = self._database.conn.execute
        set_option = "INSERT INTO events_fts(events_fts, rank) VALUES (?, ?)"
        execute(set_option, ("automerge", 0))
        execute(set_option, ("crisismerge", 64))
        self._words(1, last)
        execute("INSERT INTO events_fts(events_fts) VALUES ('optimize')")
        execute(set_option, ("automerge", 4))  # SQLite's own values, for whoever catches up
        execute(set_option, ("crisismerge", 16))
        _index(self._database)

    def _states(self, beside: Beside, *, fresh: bool) -> None:
        """Fold every stream that was touched, and put its rows in place of the ones that stood."""
        reader = self._ledger.store.reader()
        rows = Rows(self._database, beside, fresh=fresh)
        void_before = void_before_of(reader, self._head)
        for stream in sorted(self._touched):
            module = aggregate_of(stream)
            tables = getattr(module, "VIEWS", {})
            if tables:
                state, _ = load(reader, stream, self._touched[stream])
                state = without_void(module, state, void_before)
                rows.put(stream, tables, module.rows(stream, state))
        rows.flush()


class Beside:
    """Statements in another thread: SQLite works on them while this thread folds streams."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._running: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            if failed is None:
                self.wait()

    def start(self, statements: Callable[[], None]) -> None:
        """Run `statements`; until `wait` has returned nobody else may use their connection."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(1)
        self._running = self._pool.submit(statements)

    def wait(self) -> None:
        """Until they are done; raises what they raised."""
        running, self._running = self._running, None
        if running is not None:
            running.result()


class Rows:
    """Streams' rows on their way into their tables, many streams at once; `fresh`: none stand there yet."""

    def __init__(self, database: Database, beside: Beside, *, fresh: bool) -> None:
        self._fresh = fresh
        self._beside = beside
        self._connection = database.conn
        self._waiting: dict[str, list[list[object]]] = {}
        self._columns: dict[str, list[str]] = {}
        self._streams: dict[str, list[tuple[str]]] = {}
        self._count = 0

    def put(
        self,
        stream: str,
        tables: dict[str, dict[str, Any]],
        found: dict[str, list[dict[str, object]]],
    ) -> None:
        """`found`: table -> rows of `stream`; `tables`: table -> columns, the ones without a row of it too."""
        for table, columns in tables.items():
            self._columns[table] = list(columns)
            self._streams.setdefault(table, []).append((stream,))
            waiting = self._waiting.setdefault(table, [])
            for row in found.get(table, ()):
                waiting.append([stream, *map(row.get, columns)])
                self._count += 1
        self._count += 1
        if self._count >= WAITING:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self._beside.wait()
        for table, columns in self._columns.items():
            places = ", ".join("?" * (len(columns) + 1))
            if not self._fresh:
                self._connection.executemany(f"DELETE FROM {table} WHERE stream = ?", self._streams[table])  # noqa: S608 - names from our modules
            self._connection.executemany(f"INSERT INTO {table} VALUES ({places})", self._waiting[table])  # noqa: S608
        self._waiting, self._columns, self._streams, self._count = {}, {}, {}, 0


def usable(ledger: Ledger, database: Database) -> int | None:
    """The first event that the views lack, or None where they must be made anew."""
    try:
        row = database.execute("SELECT seq, hash, folds FROM position WHERE id = 1").fetchone()
    except sqlite3.Error:
        return None
    if row is None or row[2] != folds():
        return None
    event = ledger.store.reader().event(row[0])
    if event is None or event.hash.hex() != row[1]:
        return None
    return int(row[0]) + 1


def utc(text: object) -> str | None:
    """A moment in any form that gatebook reads, as SQLite reads it too (its functions know fewer); None for what is none."""
    from ledger.clock import format_us
    from projections.times import parse_time

    try:
        return format_us(parse_time(text))
    except Invalid:
        return None


def connect(path: str) -> Database:
    """A connection to a views file with its settings, and the SQL function `utc`."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
    connection.create_function("utc", 1, utc, deterministic=True)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    return Database(connection, recursive_triggers=False)


def bring_up(
    ledger: Ledger,
    database: Database,
    progress: Callable[[int, int], None] | None = None,
    upto: int | None = None,
) -> bool:
    """Add to standing views what they lack, up to event `upto`, in one transaction; False where they must be made anew."""
    start = usable(ledger, database)
    if start is None:
        return False
    database.execute("BEGIN IMMEDIATE")
    Catchup(ledger, database, progress, upto).run(start)
    database.execute("COMMIT")
    return True


def build(
    ledger: Ledger, path: str, progress: Callable[[int, int], None] | None = None, upto: int | None = None
) -> int:
    """Make views at `path` from nothing, up to event `upto`, while the caller holds them; returns the number of events. The file appears whole or not at all.

    Raises:
        Unavailable: there is no room for them, or no right to write them.
    """
    temporary = path + NEW
    remove_database(temporary)  # of one that was killed
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        database = connect(temporary)
        if ledger.store.head().seq > LARGE:
            database.execute(f"PRAGMA page_size={LARGE_PAGE}")
        database.execute(
            "PRAGMA synchronous=OFF"
        )  # a half-made file is thrown away, so nothing need be flushed
        database.execute("BEGIN")
        _create(database)
        done = Catchup(ledger, database, progress, upto).fill()
        database.execute("COMMIT")
        database.close()
        os.rename(temporary, path)
    except sqlite3.OperationalError as error:
        remove_database(temporary)
        raise _unwritable(path, error) from None
    except BaseException:
        remove_database(temporary)
        raise
    return done


def _unwritable(path: str, error: sqlite3.Error) -> Unavailable:
    return Unavailable(f"{path}: {error}: the views cannot be written")


@contextlib.contextmanager
def locked(ledger: Ledger) -> Iterator[None]:
    """Hold the views' file: while it is built, caught up, compared or removed."""
    try:
        handle = hold_views(ledger.folder, HELD_SECONDS)
    except BlockingIOError:
        raise Unavailable(
            f"{ledger.folder}: another process has been making the views for a minute; call again"
        ) from None
    except OSError as error:
        raise Unavailable(
            f"{ledger.folder}: the views cannot be kept here ({error.strerror}): `gatebook backup FILE` makes a copy "
            "elsewhere, which --ledger FILE asks"
        ) from None
    try:
        yield
    finally:
        os.close(handle)


def catch_up(ledger: Ledger, progress: Callable[[int, int], None] | None = None) -> Database:
    """The views of `ledger` at its head, as a sqlite-utils Database: caught up, or made anew where they cannot be.

    A damaged, foreign or outdated file is replaced, and that is said on stderr.
    """
    path = path_of(ledger)
    with locked(ledger):
        if os.path.exists(path):
            try:
                database = connect(path)
                if bring_up(ledger, database, progress):
                    return database
                database.close()
                why = "they were made by other folds or from another history"
            except sqlite3.Error as error:
                code = getattr(error, "sqlite_errorcode", 0) & 0xFF
                if code == sqlite3.SQLITE_FULL:
                    raise _unwritable(path, error) from None  # what stands is sound, and has no room to grow
                why = (
                    "another program keeps reading the old ones"
                    if code == sqlite3.SQLITE_BUSY
                    else f"the file is damaged ({error})"
                )
            remove_database(path)
            tell(f"{path}: the views are made anew: {why}")
        build(ledger, path, progress)
        return connect(path)


@contextlib.contextmanager
def open_views(ledger: Ledger, progress: Callable[[int, int], None] | None = None) -> Iterator[Database]:
    """The views at the ledger's head, closed afterwards."""
    database = catch_up(ledger, progress)
    try:
        yield database
    finally:
        database.close()


_HIDDEN = ("sqlite_", "events_fts_", "position")


def differences(standing: str, fresh: str) -> list[str]:
    """What differs between two views files, table by table: `TABLE: N rows, M expected` or the first row that is not the same.

    Raises:
        Tampered: the standing file cannot be read.
    """
    found = []
    try:
        old, new = sqlite_utils.Database(standing), sqlite_utils.Database(fresh)
        tables = [name for name in new.table_names() if not name.startswith(_HIDDEN) and name != "events_fts"]
        extra = sorted(set(old.table_names()) ^ set(new.table_names()))
        found += [f"{name}: in one of them only" for name in extra]
        for table in tables:
            if table not in old.table_names():
                continue
            order = "seq" if table == "events" else "stream, rowid"
            found += _rows_differ(table, _rows(old, table, order), _rows(new, table, order))
        old.close()
        new.close()
    except sqlite3.Error as error:
        raise Tampered(
            f"{standing}: cannot be read ({error}): `gatebook rebuild` repairs it", verdict="views-differ"
        ) from None
    return found


def _rows(database: Database, table: str, order: str) -> Iterator[tuple[object, ...]]:
    columns = ", ".join(f"[{column.name}]" for column in database[table].columns)
    yield from database.execute(f"SELECT {columns} FROM [{table}] ORDER BY {order}")  # noqa: S608 - names from our own schema


def _rows_differ(
    table: str, old: Iterator[tuple[object, ...]], new: Iterator[tuple[object, ...]]
) -> list[str]:
    for number, expected in enumerate(new, 1):
        row = next(old, None)
        if row != expected:
            return [f"{table}: row {number}: expected {str(expected)[:200]}, found {str(row)[:200]}"]
    if next(old, None) is not None:
        return [f"{table}: more rows than the log gives"]
    return []
