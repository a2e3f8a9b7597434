"""Verification: every hash, link, number, digest and form of a ledger, in constant memory per stream.

A few events at once are judged by `ledger.lines`. An event that differs anywhere, or has floats or text outside
ASCII, is judged again without shortcuts, to say which field, expected and found.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import apsw
import msgspec
from blake3 import blake3

from ledger import lines
from ledger.canonical import is_canonical
from ledger.errors import GatebookError, Tampered
from ledger.event import (
    ZERO_HASH,
    Event,
    Head,
    Origin,
    chain_hash,
    check_names,
    content_digest,
    head_of,
)
from ledger.lines import read_envelope, write_envelope
from ledger.sqlite import APPLICATION_ID, RANGE_SQL, SCHEMA, SQLiteStore, connect, snapshot_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from ledger.lines import Envelope
    from ledger.sqlite import Row

VERDICTS = (
    "ok",
    "content-mismatch",
    "link-broken",
    "gap",
    "order",
    "truncated",
    "forked",
    "not-lawful",
    "views-differ",
    "schema-tampered",
    "unreadable",
    "nothing-to-verify",
)
PROGRESS_EVERY = 20_000
CHUNK = 64  # rows that go through msgspec together: few enough to stay in the processor's cache
WORTH_A_PROCESS = 20_000  # events: below that a second process takes longer to start than it saves
UTC_TIME = b'Z","seq":'  # how recorded_at ends: within a text the quotes would be escaped
PIECE = 4_000  # events that processes which share a range take at a time


class Wrong(Exception):
    """The first thing that is not as recorded."""

    def __init__(self, verdict: str, seq: int | None, field: str, expected: object, found: object) -> None:
        super().__init__(verdict)
        self.verdict = verdict
        self.seq = seq
        self.field = field
        self.expected = _shown(expected)
        self.found = _shown(found)


def _shown(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex() if len(value) <= 64 else f"{value[:32].hex()}… ({len(value)} bytes)"
    if isinstance(value, str) and len(value) > 300:
        return value[:300] + "…"
    return value


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


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


def _member(error: Exception) -> str:
    """`envelope.NAME` for the member that msgspec complains about, `envelope` where it names none."""
    return f"envelope.{str(error).partition('at `$.')[2].rstrip('`')}".rstrip(".")


class Walk:
    """The state of one pass over a range of events, and the checks on each; `passed` is told of those found right."""

    def __init__(self, store: SQLiteStore, start: int, previous: bytes, recorded: datetime = EPOCH) -> None:
        self._store = store
        self.start = start
        self.next = start
        self.previous = previous
        self.recorded = recorded
        # stream -> [first version, last version, sum of seqs]
        self.streams: dict[str, list[int]] = {}
        self.types: dict[str, int] = {}
        self.writers: set[tuple[str, str]] = set()
        self.keys = 0
        self.erased: set[int] = set()
        self.redacted: set[int] = set()
        self.checkpointed = 0
        self.passed: Callable[[list[Row], list[Envelope]], None] | None = None

    @property
    def events(self) -> int:
        """How many events were checked and found right."""
        return self.next - self.start

    def rows(self, rows: Iterable[Row]) -> None:
        """Check rows that follow the ones before.

        Raises:
            Wrong: the first event that is not as recorded.
        """
        more = iter(rows)
        while chunk := list(islice(more, CHUNK)):
            columns, nothing = list(zip(*chunk, strict=True)), (None,) * len(chunk)
            envelopes = self._judged(*columns)
            if envelopes is not None:
                self._book(chunk, envelopes, bare=columns[3:5] == [nothing, nothing])
                continue
            for row in chunk:
                self._book([row], [self._careful(row)])

    def _judged(
        self, seqs: Sequence[int], raws: Sequence[bytes], datas: Sequence[bytes], *rest: Sequence[bytes]
    ) -> list[Envelope] | None:
        """The envelopes of a few rows, given as columns, when every cell's form, number, digest and link is surely right; None says nothing."""
        if seqs != tuple(range(self.next, self.next + len(seqs))):
            return None
        envelopes = lines.read(raws, datas)
        if envelopes is None:
            return None
        made, digests = lines.hashes(self.previous, raws, datas)
        good = made == list(rest[-1]) and digests == "\n".join(
            [envelope.data_digest for envelope in envelopes]
        )
        return envelopes if good else None

    def _book(self, rows: list[Row], envelopes: list[Envelope], *, bare: bool = False) -> None:
        """What follows from one event to the next: times, versions, contents (none if `bare`), names, causes."""
        streams, types, recorded = self.streams, self.types, self.recorded
        actor = via = kind = None
        seq = self.next = begin = rows[0][0]  # begin: of a run of one type
        for envelope in envelopes:
            if envelope.seq != seq:
                raise Wrong("order", seq, "seq", seq, envelope.seq)
            now = envelope.recorded_at
            if now <= recorded:
                raise Wrong("order", seq, "recorded_at", f"after {_time(recorded)}", _time(now))
            recorded = now
            if not bare or envelope.content_digest is not None:
                self._content(seq, envelope.content_digest, *rows[seq - self.next][3:5])
            stream = envelope.stream
            known = streams.get(stream)
            if known is None:
                self._first_of_stream(envelope)
                streams[stream] = [envelope.version, envelope.version, seq]
            elif envelope.version != known[1] + 1:
                raise Wrong("order", seq, "version", known[1] + 1, envelope.version)
            else:
                known[1] += 1
                known[2] += seq
            if envelope.type != kind:
                if kind is not None:
                    types[kind] += seq - begin
                kind, begin = envelope.type, seq
                if kind not in types:
                    self._first_of_stream(envelope)
                    types[kind] = 0
            if envelope.idempotency_key is not None:
                self.keys += 1
            if envelope.causation is not None and not 1 <= envelope.causation < seq:
                raise Wrong(
                    "order", seq, "causation", f"an earlier event, 1 to {seq - 1}", envelope.causation
                )
            if envelope.actor != actor or envelope.via != via:
                self._writer(envelope)
                actor, via = envelope.actor, envelope.via
            if stream == "ledger":
                self._ledger_event(envelope.type, rows[seq - self.next][2])
            seq += 1
        if kind is not None:
            types[kind] += seq - begin
        self.previous, self.next, self.recorded = rows[-1][5], seq, recorded
        if self.passed is not None:
            self.passed(rows, envelopes)

    def _careful(self, row: Row) -> Envelope:
        """One event judged without shortcuts: floats, non-ASCII names, and whatever is wrong."""
        seq, raw, data, _, _, stored = row
        if not isinstance(seq, int):
            raise Wrong("order", None, "seq", "a whole number", str(seq))
        if seq != self.next:
            raise Wrong("gap", self.next, "seq", self.next, seq)
        for field, value in (("envelope", raw), ("data", data), ("hash", stored)):
            if not isinstance(value, bytes):
                raise Wrong("content-mismatch", seq, field, "bytes", None if value is None else str(value))
        computed = chain_hash(self.previous, raw)
        if computed != stored:
            raise self._hash(seq, computed, stored)
        try:
            envelope = read_envelope(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Wrong(
                "content-mismatch", seq, _member(error), "the members of format 1", str(error)
            ) from None
        written = write_envelope(envelope)
        if envelope.recorded_at.microsecond == 0:  # msgspec leaves .000000 out, format 1 does not
            whole = envelope.recorded_at.strftime("%Y-%m-%dT%H:%M:%S").encode()
            written = written.replace(b'"%sZ"' % whole, b'"%s.000000Z"' % whole, 1)
        if not is_canonical(raw, floats=False) or written != raw:
            raise Wrong("content-mismatch", seq, "envelope", "canonical JSON (RFC 8785)", raw)
        if UTC_TIME not in raw:
            raise Wrong("content-mismatch", seq, "envelope.recorded_at", "UTC, written with Z", raw)
        if envelope.seq != seq:
            raise Wrong("order", seq, "seq", seq, envelope.seq)
        found = blake3(data).hexdigest()
        if found != envelope.data_digest:
            raise Wrong("content-mismatch", seq, "data", envelope.data_digest, found)
        if not is_canonical(data, floats=envelope.type.startswith("x.")):
            raise Wrong("content-mismatch", seq, "data", "canonical JSON (RFC 8785)", data)
        return envelope

    def _hash(self, seq: int, computed: bytes, stored: bytes) -> Wrong:
        """Which of an event's envelope and hash was changed: the one that the next event does not agree with."""
        following = self._store.query("SELECT envelope, hash FROM events WHERE seq = ?", (seq + 1,))
        if following:
            envelope, after = following[0]
            if isinstance(envelope, bytes) and chain_hash(computed, envelope) == after:
                return Wrong("link-broken", seq, "hash", computed, stored)
            if isinstance(envelope, bytes) and chain_hash(stored, envelope) == after:
                return Wrong("content-mismatch", seq, "envelope", stored, computed)
        return Wrong("link-broken", seq, "hash", computed, stored)

    def _content(self, seq: int, digest: str | None, salt: bytes | None, content: bytes | None) -> None:
        if digest is None and salt is None and content is None:
            return
        if digest is None:
            raise Wrong(
                "content-mismatch", seq, "content" if content is not None else "salt", None, content or salt
            )
        if salt is None and content is None:
            self.erased.add(seq)
            return
        if content is None and salt is not None:
            content = self._store.artifact(
                Event(seq, b'{"content_digest":"%s"}' % digest.encode(), b"", salt, None, b"")
            )
            # Redacted since this walk began to read: the artifact went at once, the row only for later readers.
            if content is None and not self._store.query(
                "SELECT 1 FROM events WHERE seq = ? AND salt IS NOT NULL", (seq,)
            ):
                self.erased.add(seq)
                return
        found = (
            content_digest(salt, content) if isinstance(salt, bytes) and isinstance(content, bytes) else None
        )
        if found != digest:
            raise Wrong("content-mismatch", seq, "salt" if salt is None else "content", digest, found)

    def _first_of_stream(self, envelope: Envelope) -> None:
        try:
            check_names(envelope.stream, envelope.type)
        except GatebookError as error:
            raise Wrong(
                "content-mismatch", envelope.seq, "envelope", "names of format 1", str(error)
            ) from None

    def _writer(self, envelope: Envelope) -> None:
        if (envelope.actor, envelope.via) in self.writers:
            return
        self.writers.add((envelope.actor, envelope.via))
        try:
            Origin(envelope.actor, envelope.via)
        except GatebookError as error:
            raise Wrong(
                "content-mismatch", envelope.seq, "envelope", "an actor of format 1", str(error)
            ) from None

    def _ledger_event(self, kind: str, data: bytes) -> None:
        if kind == "ledger.redacted":
            self.redacted.update(n for n in msgspec.json.decode(data).get("events", ()) if isinstance(n, int))
        elif kind == "ledger.checkpointed":
            size = msgspec.json.decode(data).get("size")
            self.checkpointed = size if isinstance(size, int) else 0

    def summary(self) -> dict[str, Any]:
        """What a worker process sends back."""
        return {
            "next": self.next,
            "previous": self.previous.hex(),
            "recorded": _time(self.recorded),
            "streams": self.streams,
            "types": self.types,
            "keys": self.keys,
            "erased": sorted(self.erased),
            "redacted": sorted(self.redacted),
            "checkpointed": self.checkpointed,
        }

    def join(self, other: dict[str, Any]) -> bool:
        """Take over what another walk found on the range that follows this one; False: something there is wrong."""
        if "wrong" in other:
            return False
        for stream, (first, _, _) in other["streams"].items():
            known = self.streams.get(stream)
            if known is None:
                if first != 1 and self.start == 1:
                    return False
            elif first != known[1] + 1:
                return False
        for stream, (first, last, total) in other["streams"].items():
            known = self.streams.setdefault(stream, [first, last, 0])
            known[1] = last
            known[2] += total
        for kind, count in other["types"].items():
            self.types[kind] = self.types.get(kind, 0) + count
        self.keys += other["keys"]
        self.erased.update(other["erased"])
        self.redacted.update(other["redacted"])
        self.checkpointed = other["checkpointed"] or self.checkpointed
        self.previous, self.next, self.recorded = (
            bytes.fromhex(other["previous"]),
            other["next"],
            datetime.fromisoformat(other["recorded"]),
        )
        return True

    def check_erasures(self) -> None:
        """Raise Wrong unless a ledger.redacted event names whatever was erased; it may have come after the last event walked."""
        unexplained = self.erased - self.redacted
        if unexplained:
            rows = self._store.query(
                "SELECT data FROM events WHERE type = 'ledger.redacted' AND seq >= ?", (self.next,)
            )
            for (data,) in rows:
                unexplained -= _erasures(data)
        if unexplained:
            raise Wrong(
                "content-mismatch",
                min(unexplained),
                "content",
                "content, or a ledger.redacted event that names it",
                None,
            )

    def finish(self, index: IndexScan) -> None:
        """What can be judged only after the last event: versions from 1, indexes complete."""
        for stream, (first, _, _) in self.streams.items():
            if first != 1:
                raise Wrong("order", None, "version", f"{stream}: 1", first)
        indexes = index.result()
        self._compare("stream", {**self.streams}, indexes.streams)
        self._compare("type", {**self.types}, indexes.types)
        self._compare("key", {"keys": self.keys}, {"keys": indexes.keys})

    def _compare(self, name: str, walked: dict[Any, Any], indexed: dict[Any, Any]) -> None:
        """The indexes, by which decisions find events, must hold exactly the events: a hidden one would hide a decision."""
        if walked != indexed:
            key = next(key for key in {**walked, **indexed} if walked.get(key) != indexed.get(key))
            raise Wrong(
                "schema-tampered",
                None,
                f"index events_{name} at {key}",
                str(walked.get(key)),
                str(indexed.get(key)),
            )


def _erasures(data: object) -> set[int]:
    """The events that a ledger.redacted event beyond the walk names; none where its data, not verified yet, is damaged."""
    try:
        found = msgspec.json.decode(data).get("events", ()) if isinstance(data, bytes) else ()
        return {seq for seq in found if isinstance(seq, int)}
    except (msgspec.MsgspecError, AttributeError, TypeError):
        return set()


class IndexScan:
    """What the indexes say of events 1 to `last`, read in a thread while the events themselves are checked."""

    def __init__(self, path: str, last: int) -> None:
        self.streams: dict[Any, Any] = {}
        self.types: dict[Any, Any] = {}
        self.keys: Any = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(path, last), daemon=True)
        self._thread.start()

    def _run(self, path: str, last: int) -> None:
        try:
            connection = connect(path, walking=True)
            try:
                self._scan(connection, last)
            finally:
                connection.close()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            self._error = error

    def _scan(self, connection: apsw.Connection, last: int) -> None:
        for stream, first, version, seqs, count in connection.execute(
            "SELECT stream, min(version), max(version), sum(seq), count(*) FROM events INDEXED BY events_stream "
            "WHERE seq <= ? GROUP BY stream",
            (last,),
        ):
            self.streams[stream] = (
                [first, version, seqs] if count == version else [first, version, seqs, count]
            )
        for name, count in connection.execute(
            "SELECT type, count(*) FROM events INDEXED BY events_type WHERE seq <= ? GROUP BY type", (last,)
        ):
            self.types[name] = count
        for (self.keys,) in connection.execute(
            "SELECT count(*) FROM events INDEXED BY events_key WHERE idempotency_key IS NOT NULL AND seq <= ?",
            (last,),
        ):
            pass

    def wait(self) -> None:
        """Until the scan is done and its connection closed."""
        self._thread.join()

    def result(self) -> IndexScan:
        """Itself, when the scan is done."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self


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


def _head(store: SQLiteStore) -> Head:
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
        head = _head(store)
        if upto is not None and upto < head.seq:
            event = store.reader().event(upto)
            head, memory = (head_of(event), None) if event is not None else (Head(), None)
        report.head_seq, report.head_hash = head.seq, head.hash
        if head.seq == 0:
            check_memory(store, memory, 0)
            raise Wrong("nothing-to-verify", None, "events", "at least the genesis event", 0)
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
            elif jobs > 1 and head.seq - start > WORTH_A_PROCESS:
                _in_parallel(walk, connection, head.seq, jobs, progress)
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
        report.after_checkpoint = report.head_seq
    except Tampered as error:
        report.blame(Wrong(error.verdict, error.seq, "file", "a readable ledger", str(error)))
    except (apsw.Error, UnicodeDecodeError) as error:
        report.blame(Wrong("unreadable", None, "file", "a readable ledger", str(error)))
    finally:
        if index is not None:
            index.wait()  # its connection must be gone before a caller moves or removes the file
    return report


def go(
    walk: Walk,
    connection: apsw.Connection,
    last: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Move `walk` on to event `last`; where the events end before, it stays behind.

    Raises:
        Wrong: the first event that is not as recorded.
    """
    while walk.next <= last:
        upto = min(last, walk.next + PROGRESS_EVERY - 1) if progress is not None else last
        walk.rows(connection.execute(RANGE_SQL, (walk.next, upto)))
        if walk.next <= upto:  # what follows the gap is wrong there; when nothing follows, the caller says so
            walk.rows(connection.execute(RANGE_SQL, (walk.next, last)))
            return
        if progress is not None:
            progress(walk.events, last)


def _in_parallel(
    walk: Walk,
    connection: apsw.Connection,
    last: int,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Share the range among processes of our own (never a fork: SQLite's locks do not survive one).

    This one begins with half of an even share, and then comes to meet the others, each in its own part.
    """
    store = walk._store  # noqa: SLF001 - one module
    share = (last - walk.next + 1) // jobs
    begin = walk.next if jobs == 2 else walk.next + share // 2
    size = -(-(last + 1 - begin) // (jobs - 1))
    others: list[Other] = []
    try:
        others += (Other(store.path, at, min(at + size, last + 1)) for at in range(begin, last + 1, size))
        go(walk, connection, begin - 1, progress)
        for other in others:
            for end in other.meet(walk):
                if not go_on(walk, connection, end, last):
                    return
                if progress is not None:
                    progress(walk.events, last)
            if progress is not None:
                progress(walk.events, last)
    finally:
        for other in others:
            other.stop()


def go_on(walk: Walk, connection: apsw.Connection, end: int, last: int) -> bool:
    """Move `walk` through the piece that ends before `end`; False when events are missing there, and none follow up to `last`.

    Raises:
        Wrong: the first event that is not as recorded.
    """
    go(walk, connection, end - 1)
    if walk.next < end:
        go(walk, connection, last)
    return walk.next >= end


def _start(*words: object) -> subprocess.Popen[bytes]:
    """This module's `main` in a process of its own; it needs nothing of typing_extensions, 12 ms of msgspec's import.

    Interrupted, or alone because this one was killed, it ends without a word.
    """
    import subprocess

    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); signal.signal(signal.SIGPIPE, signal.SIG_DFL); "
        "sys.modules['typing_extensions'] = None; from ledger.verify import main; main()"
    )
    command = [sys.executable, "-P", "-c", script, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)


class Other:
    """A process that walks a range piece by piece from its end, while this one comes from its beginning."""

    def __init__(self, path: str, begin: int, end: int) -> None:
        self.ends = [min(at + PIECE, end) for at in range(begin, end, PIECE)]
        self._found: list[bytes] = []  # a summary of each piece, the last piece first
        self._changed = threading.Condition()
        self._runs = True
        self._process = _start(path, begin, end, PIECE)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._found.append(line)
                self._changed.notify()
        with self._changed:
            self._runs = False
            self._changed.notify()

    def found(self, end: int) -> dict[str, Any] | None:
        """What it found in the piece that ends there; None when it has not come to it."""
        place = len(self.ends) - self.ends.index(end)
        with self._changed:
            return _summary(self._found[place - 1]) if len(self._found) >= place else None

    def meet(self, walk: Walk) -> Iterator[int]:
        """Move `walk` through what is left of the range: the ends of the pieces that it is to walk itself are given in order.

        Those are the ones that nobody has walked, and the ones where the other found something wrong: whatever is
        wrong first is found here, in order.
        """
        for at, end in enumerate(self.ends):
            if end <= walk.next:
                continue
            line = self._piece(len(self.ends) - at)
            if line is None or not walk.join(_summary(line)):
                yield end

    def _piece(self, place: int) -> bytes | None:
        """The summary of the piece at this place from the end; None when the other is not there yet, or has died."""
        with self._changed:
            if place == len(self._found) + 1:  # it is in it
                self._changed.wait_for(lambda: len(self._found) >= place or not self._runs)
            if len(self._found) < place:
                return None
        self._process.kill()  # what it has not begun is walked already
        return self._found[place - 1]

    def stop(self) -> None:
        """End it, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _summary(line: bytes) -> dict[str, Any]:
    """What an `Other` wrote; of a line cut off in the middle, that it is wrong."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {"wrong": True}


def _worker(path: str, begin: int, end: int, piece: int) -> int:
    """Pieces of a range in a process of its own, the last one first: prints each one's summary, or that it is wrong."""
    store = SQLiteStore(path)
    connection = connect(path, walking=True)
    for first in reversed(range(begin, end, piece)):
        try:
            answer = _walk_piece(store, connection, first, min(first + piece, end))
        except Exception:  # noqa: BLE001 - whatever it is, the process that asked comes to it and says it
            answer = {"wrong": True}
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.flush()
        if "wrong" in answer:
            break
    return 0


def _walk_piece(store: SQLiteStore, connection: apsw.Connection, first: int, end: int) -> dict[str, Any]:
    previous, recorded = ZERO_HASH, EPOCH
    if first > 1:
        ((hash_, before),) = store.query("SELECT hash, envelope FROM events WHERE seq = ?", (first - 1,))
        assert isinstance(hash_, bytes)
        assert isinstance(before, bytes)
        previous, recorded = hash_, read_envelope(before).recorded_at
    walk = Walk(store, first, previous, recorded)
    go(walk, connection, end - 1)
    return walk.summary() if walk.next == end else {"wrong": True}


def main() -> None:
    """What an `Other` started."""
    os._exit(_worker(sys.argv[1], *map(int, sys.argv[2:])))
