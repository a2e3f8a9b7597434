"""One pass over a range of events: every hash, link, number, digest, name and form, in constant memory per stream.

A few events at once are judged by `ledger.lines`. An event that differs anywhere, or has floats or text outside
ASCII, is judged again without shortcuts, to say which field, expected and found.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec
from blake3 import blake3

from ledger import lines
from ledger.canonical import is_canonical
from ledger.errors import GatebookError
from ledger.event import Event, Origin, chain_hash, check_names, content_digest
from ledger.lines import read_envelope, write_envelope
from ledger.sqlite import RANGE_SQL, SQLiteStore, connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import apsw

    from ledger.lines import Envelope
    from ledger.sqlite import Row

CHUNK = 64  # rows that go through msgspec together: few enough to stay in the processor's cache
PROGRESS_EVERY = 20_000
UTC_TIME = b'Z","seq":'  # how recorded_at ends: within a text the quotes would be escaped


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


def _member(error: Exception) -> str:
    """`envelope.NAME` for the member that msgspec complains about, `envelope` where it names none."""
    return f"envelope.{str(error).partition('at `$.')[2].rstrip('`')}".rstrip(".")


def _misnamed(envelope: Envelope, expected: str, error: GatebookError) -> Wrong:
    return Wrong("content-mismatch", envelope.seq, "envelope", f"{expected} of format 1", str(error))


class Walk:
    """The state of one pass over a range of events, and the checks on each; `passed` is told of those found right."""

    def __init__(self, store: SQLiteStore, start: int, previous: bytes, recorded: datetime = EPOCH) -> None:
        self.store = store
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
        following = self.store.query("SELECT envelope, hash FROM events WHERE seq = ?", (seq + 1,))
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
            content = self.store.artifact(
                Event(seq, b'{"content_digest":"%s"}' % digest.encode(), b"", salt, None, b"")
            )
            # Redacted since this walk began to read: the artifact went at once, the row only for later readers.
            if content is None and not self.store.query(
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
            raise _misnamed(envelope, "names", error) from None

    def _writer(self, envelope: Envelope) -> None:
        if (envelope.actor, envelope.via) in self.writers:
            return
        self.writers.add((envelope.actor, envelope.via))
        try:
            Origin(envelope.actor, envelope.via)
        except GatebookError as error:
            raise _misnamed(envelope, "an actor", error) from None

    def _ledger_event(self, kind: str, data: bytes) -> None:
        if kind == "ledger.redacted":
            self.redacted |= _erasures(data)
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
            rows = self.store.query(
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
    """The events that a ledger.redacted event names; none where its data, which beyond the walk is not verified yet, is damaged."""
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


def go_on(walk: Walk, connection: apsw.Connection, end: int, last: int) -> bool:
    """Move `walk` through the piece that ends before `end`; False when events are missing there, and none follow up to `last`.

    Raises:
        Wrong: the first event that is not as recorded.
    """
    go(walk, connection, end - 1)
    if walk.next < end:
        go(walk, connection, last)
    return walk.next >= end
