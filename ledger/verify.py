"""Verification: every event of a ledger as it was recorded, the table's shape, and this machine's memory of the head."""

from __future__ import annotations

from typing import Any

import apsw

from ledger.errors import Tampered
from ledger.event import ZERO_HASH, Head, head_of
from ledger.sharing import in_parallel, worth_sharing
from ledger.sqlite import APPLICATION_ID, FORMAT, SCHEMA, SQLiteStore, connect, snapshot_digest
from ledger.walk import IndexScan, Walk, Wrong, go

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Report:
    """What a verification found; `as_json` is the contract's shape."""

    __slots__ = (
        "after_checkpoint",
        "checkpointed",
        "events",
        "first_wrong",
        "head_hash",
        "head_seq",
        "redacted",
        "verdict",
    )

    def __init__(self) -> None:
        self.verdict = "ok"
        self.events = 0
        self.head_seq = 0
        self.head_hash = ZERO_HASH
        self.checkpointed = 0
        self.after_checkpoint = 0
        self.redacted = 0
        self.first_wrong: dict[str, object] | None = None

    @property
    def ok(self) -> bool:
        """Whether everything checked is as recorded."""
        return self.verdict == "ok"

    def blame(self, wrong: Wrong) -> None:
        """Make `wrong` the verdict."""
        self.verdict = wrong.verdict
        self.first_wrong = {
            "seq": wrong.seq,
            "field": wrong.field,
            "expected": wrong.expected,
            "found": wrong.found,
        }

    def as_json(self) -> dict[str, object]:
        """`{"ok","verdict","events","after_checkpoint","head","first_wrong"}` (contract page ledger)."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "events": self.events,
            "after_checkpoint": self.after_checkpoint,
            "head": {"seq": self.head_seq, "hash": self.head_hash.hex()},
            "first_wrong": self.first_wrong,
        }


def check_schema(store: SQLiteStore) -> None:
    """Raise Wrong unless tables, indexes and triggers are exactly format 1's."""
    rows = store.query(
        "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_autoindex%' ESCAPE '\\'"
    )
    found = {row[0]: row[1] for row in rows}
    names: dict[Any, None] = dict.fromkeys((*SCHEMA, *found))
    for name in names:
        if SCHEMA.get(str(name)) != found.get(name):
            raise Wrong("schema-tampered", None, f"schema of {name}", SCHEMA.get(str(name)), found.get(name))
    shape = store.query("SELECT application_id FROM pragma_application_id")[0][0]
    from ledger.access import ARCHIVE_ID

    if shape not in (APPLICATION_ID, ARCHIVE_ID):
        raise Wrong("schema-tampered", None, "application_id", APPLICATION_ID, shape)
    version = store.query("SELECT user_version FROM pragma_user_version")[0][0]
    if version != FORMAT:
        raise Wrong("schema-tampered", None, "user_version", FORMAT, version)


def check_snapshots(store: SQLiteStore, last: int) -> None:
    """Raise Wrong unless every snapshot's cells are the ones that were written, for an event that stands."""
    rows = store.query(
        "SELECT s.stream, s.version, s.hash, s.fold, s.state, s.digest, e.seq, e.hash FROM snapshots s "
        "LEFT JOIN events e ON e.stream = s.stream AND e.version = s.version"
    )
    for stream, version, hash_, fold, state, digest, seq, real in rows:
        if isinstance(seq, int) and seq > last:
            continue
        good = (
            isinstance(hash_, bytes)
            and isinstance(state, bytes)
            and isinstance(version, int)
            and hash_ == real
        )
        if not good or snapshot_digest(str(stream), version, hash_, str(fold), state) != digest:  # type: ignore[arg-type]
            raise Wrong(
                "content-mismatch",
                seq if isinstance(seq, int) else None,
                f"snapshot of {stream} at {version}",
                real,
                hash_,
            )


def check_memory(store: SQLiteStore, memory: tuple[int, bytes] | None, head_seq: int) -> None:
    """Raise Wrong when the file ends before, or differs from, what this machine saw (DESIGN, Views)."""
    if memory is None:
        return
    seq, known = memory
    if seq > head_seq:
        raise Wrong("truncated", seq, "head", f"event {seq} {known.hex()}", f"ends at event {head_seq}")
    row = store.query("SELECT hash FROM events WHERE seq = ?", (seq,))
    if not row or row[0][0] != known:
        raise Wrong("forked", seq, "hash", known, row[0][0] if row else None)


def bare_head(store: SQLiteStore) -> Head:
    """The last event's number and hash as they stand, whatever its envelope is."""
    rows = store.query("SELECT seq, hash FROM events ORDER BY seq DESC LIMIT 1")
    if not rows:
        return Head()
    seq, hash_ = rows[0]
    return Head(int(str(seq)), hash_ if isinstance(hash_, bytes) else ZERO_HASH)


def verify(
    store: SQLiteStore,
    *,
    memory: tuple[int, bytes] | None = None,
    jobs: int = 1,
    since: tuple[int, bytes] | None = None,
    upto: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    through: Callable[[Walk, apsw.Connection, int], None] | None = None,
) -> Report:
    """Check the ledger's table and every event up to the head of this moment; other processes may go on writing.

    `memory`: (seq, hash) this machine saw last. `since`: (seq, hash) already verified: only later events are read.
    `upto`: stop after this event. `jobs`: processes to share the events.
    `progress(done, of)` now and then. `through(walk, connection, last)`: moves the walk to event `last` in place of this
    module's own ways. Never raises for what is wrong with the ledger: the report says it.
    """
    report = Report()
    index: IndexScan | None = None
    try:
        head = bare_head(store)
        if upto is not None and upto < head.seq:
            event = store.reader().event(upto)
            head, memory = (head_of(event), None) if event is not None else (Head(), None)
        report.head_seq, report.head_hash = head.seq, head.hash
        if head.seq == 0:
            check_memory(store, memory, 0)
            raise Wrong("nothing-to-verify", None, "events", "at least the genesis event", 0)
        if head.seq < 0:
            raise Wrong("gap", 1, "seq", 1, head.seq)
        start, previous = (since[0] + 1, since[1]) if since else (1, ZERO_HASH)
        if since:
            row = store.query("SELECT hash FROM events WHERE seq = ?", (since[0],))
            if not row:
                raise Wrong("truncated", since[0], "head", f"event {since[0]}", f"ends at event {head.seq}")
            if row[0][0] != since[1]:
                raise Wrong("forked", since[0], "hash", since[1], row[0][0])
        walk = Walk(store, start, previous)
        index = IndexScan(store.path, head.seq) if since is None else None
        # A connection of its own: long reads that neither hold the store's mutex nor its statements.
        connection = connect(store.path, walking=True)
        try:
            if through is not None:
                through(walk, connection, head.seq)
            elif jobs > 1 and worth_sharing(store, head.seq - start):
                in_parallel(walk, connection, head.seq, jobs, progress)
            else:
                go(walk, connection, head.seq, progress)
        finally:
            connection.close()
        report.events = walk.events
        if walk.next <= head.seq:
            raise Wrong("gap", walk.next, "seq", walk.next, None)
        check_memory(store, memory, head.seq)
        check_schema(store)  # after the events: which event was changed says more than how
        walk.check_erasures()
        if index is not None:
            walk.finish(index)
        check_snapshots(store, head.seq)
        report.redacted = len(walk.erased)
        report.checkpointed = walk.checkpointed
        report.after_checkpoint = head.seq - max(walk.checkpointed, since[0] if since else 0)
    except Wrong as wrong:
        report.blame(wrong)
        if wrong.seq is not None and report.events == 0:
            report.events = max(0, wrong.seq - 1 if wrong.seq <= report.head_seq + 1 else report.head_seq)
        report.after_checkpoint = max(0, report.head_seq)
    except Tampered as error:
        report.blame(Wrong(error.verdict, error.seq, "file", "a readable ledger", str(error)))
    except (apsw.Error, UnicodeDecodeError) as error:
        report.blame(Wrong("unreadable", None, "file", "a readable ledger", str(error)))
    finally:
        if index is not None:
            index.wait()  # its connection must be gone before a caller moves or removes the file
    return report
