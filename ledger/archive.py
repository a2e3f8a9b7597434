"""A ledger as JSON lines and back, and consistent copies (contract page ledger, `export`, `import`, `backup`).

The first line says what follows: `{"gatebook":"export","format":1,"ledger_id":…,"events":N,"head":{"seq","hash"}}`.
Each other line is one event: its envelope and data as the canonical bytes that the hashes cover, salt and hash as
hex, content as text or `{"base64":…}`; salt and content are left out where there is none or it was redacted.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil

import apsw

from ledger import clock
from ledger.access import ARCHIVE_ID, FOLDER, GITIGNORE, Ledger, ledger_id_of
from ledger.canonical import encode, parse_stored, quote
from ledger.errors import Conflict, Invalid, Tampered, Unavailable
from ledger.event import ARTIFACTS, MAX_CONTENT, Event, content_digest
from ledger.files import flush_names, write_whole
from ledger.sqlite import FORMAT, INSERT, SQLiteStore, connect, create_schema, explain, insert_in_order
from ledger.verify import Report, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_LINE = 128 * 1024 * 1024
BATCH = 1000
_MEMBERS = {"envelope", "data", "salt", "content", "hash"}


def _content_text(content: bytes) -> str:
    """Text where it is UTF-8; base64 where it is not, or where a large text would be longer in JSON: a line has a limit."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return _base64(content)
    quoted = quote(text)
    escapes = len(quoted) - len(text)
    return _base64(content) if len(content) > MAX_CONTENT and escapes * 3 > len(content) else quoted


def _base64(content: bytes) -> str:
    return f'{{"base64":"{base64.b64encode(content).decode()}"}}'


def export_line(event: Event, store: SQLiteStore) -> bytes:
    """One event as its line, newline included.

    Raises:
        Tampered: its content should lie in an artifact and does not.
    """
    parts = [b'{"envelope":', event.envelope, b',"data":', event.data]
    if event.content_digest is not None and not event.redacted:
        content = store.artifact(event)
        if content is None or event.salt is None:
            raise Tampered(
                f"event {event.seq}: its content (artifact {event.content_digest}) is missing: run `gatebook verify`",
                seq=event.seq,
            )
        parts += [b',"salt":"', event.salt.hex().encode(), b'","content":', _content_text(content).encode()]
    parts += [b',"hash":"', event.hash.hex().encode(), b'"}\n']
    return b"".join(parts)


def export(ledger: Ledger, progress: Callable[[int, int], None] | None = None) -> Iterator[bytes]:
    """The lines of the whole ledger as of its head now; other processes may go on writing."""
    head = ledger.store.head()
    first = {
        "gatebook": "export",
        "format": FORMAT,
        "ledger_id": ledger.id,
        "events": head.seq,
        "head": {"hash": head.hash.hex(), "seq": head.seq},
    }
    yield encode(first) + b"\n"
    for event in ledger.store.read(1, head.seq + 1):
        yield export_line(event, ledger.store)
        if progress is not None and event.seq % 1000 == 0:
            progress(event.seq, head.seq)


def _hex(value: object, size: int | None, what: str) -> bytes:
    try:
        raw = bytes.fromhex(value) if isinstance(value, str) else b""
    except ValueError:
        raw = b""
    if not raw or (size is not None and len(raw) != size) or value != raw.hex():
        raise Invalid(f"{what}: must be {size} bytes in lower-case hex")
    return raw


def _content(value: object, what: str) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise Invalid(f"{what}: content: a lone surrogate is not text") from None
    if isinstance(value, dict) and set(value) == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError:
            pass
    raise Invalid(f'{what}: content: must be text or {{"base64": …}}')


def parse_line(line: bytes, what: str) -> Event:
    """One line of an export as the event it states; hashes are judged later, by `verify`.

    Raises:
        Invalid: not such a line; the message begins with `what`.
    """
    value = parse_stored(line, what=what)
    if not isinstance(value, dict) or not {"envelope", "data", "hash"} <= set(value) <= _MEMBERS:
        raise Invalid(f"{what}: must have envelope, data, hash, and salt and content or neither")
    if ("salt" in value) != ("content" in value):
        raise Invalid(f"{what}: salt and content go together")
    envelope, data = value["envelope"], value["data"]
    if (
        not isinstance(envelope, dict)
        or not isinstance(data, dict)
        or not isinstance(envelope.get("seq"), int)
    ):
        raise Invalid(f"{what}: envelope and data must be objects, with the envelope's seq a number")
    salt = _hex(value["salt"], 16, f"{what}: salt") if "salt" in value else None
    content = _content(value["content"], what) if "content" in value else None
    hash_ = _hex(value["hash"], 32, f"{what}: hash")
    return Event(envelope["seq"], encode(envelope, what=what), encode(data, what=what), salt, content, hash_)


def _header(line: bytes, what: str) -> dict[str, object]:
    value = parse_stored(line, what=what)
    if not isinstance(value, dict) or value.get("gatebook") != "export":
        raise Invalid(f"{what}: not a gatebook export: its first line must say so")
    if value.get("format") != FORMAT:
        raise Invalid(
            f"{what}: export of format {value.get('format')}, this gatebook knows {FORMAT}: upgrade gatebook"
        )
    head = value.get("head")
    if (
        not isinstance(head, dict)
        or not isinstance(head.get("seq"), int)
        or not isinstance(head.get("hash"), str)
    ):
        raise Invalid(f"{what}: the first line must name the head")
    return value


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    try:
        with open(path, "rb") as file:
            number = 0
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise Invalid(f"{path}: line {number}: longer than {MAX_LINE} bytes")
                if not line.endswith(b"\n"):
                    raise Invalid(
                        f"{path}: line {number}: cut off (no newline at its end): the file is not whole"
                    )
                yield number, line
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}") from None


def _insert(connection: apsw.Connection, folder: str, events: Iterable[Event]) -> None:
    rows = []
    for event in events:
        content = event.content
        if content is not None and len(content) > MAX_CONTENT:
            os.makedirs(os.path.join(folder, ARTIFACTS), 0o700, exist_ok=True)
            assert event.salt is not None
            write_whole(os.path.join(folder, ARTIFACTS, content_digest(event.salt, content)), content)
            content = None
        rows.append((event.seq, event.envelope, event.data, event.salt, content, event.hash))
    if rows:
        insert_in_order(connection, lambda: connection.executemany(INSERT, rows), rows[0][0] - 1, len(rows))


def _fill(connection: apsw.Connection, folder: str, path: str) -> dict[str, object]:
    header: dict[str, object] | None = None
    batch: list[Event] = []
    last = 0
    for number, line in _lines(path):
        where = f"{path}: line {number}"
        if header is None:
            header = _header(line, where)
            continue
        event = parse_line(line, where)
        if event.seq != last + 1:
            raise Invalid(f"{where}: event {event.seq} where {last + 1} must be")
        last = event.seq
        batch.append(event)
        if len(batch) == BATCH:
            _insert(connection, folder, batch)
            batch = []
    if header is None:
        raise Invalid(f"{path}: the file is empty")
    _insert(connection, folder, batch)
    if header["events"] != last:
        raise Invalid(f"{path}: ends after event {last} of {header['events']}: the file is not whole")
    return header


def import_archive(path: str, folder: str) -> tuple[Report, str]:
    """Make a read-only archive in `folder` from the export at `path`; it appears whole and verified, or not at all.

    Returns the verification's report (ok) and the ledger id.

    Raises:
        Invalid: a line that is not one, named by its number. Tampered: the lines do not verify to the head they state.
        Conflict: `folder` is taken. Unavailable: no room or no right to write.
    """
    if os.path.lexists(folder):
        raise Conflict(f"{folder}: exists already: name another place with --to")
    temporary = f"{folder}.{os.getpid()}.new"
    try:
        os.makedirs(temporary, 0o700)
        report, ledger_id = _archive(path, temporary)
        # Crash before the rename: only a folder with a temporary name stays behind, never half an archive.
        os.rename(temporary, folder)
    except OSError as error:
        raise Unavailable(f"{folder}: {error.strerror}; nothing was imported") from None
    except apsw.Error as error:
        raise explain(error, folder) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return report, ledger_id


def _archive(path: str, folder: str) -> tuple[Report, str]:
    database = os.path.join(folder, "ledger.db")
    os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    write_whole(os.path.join(folder, ".gitignore"), GITIGNORE)
    write_whole(os.path.join(folder, "ledger.lock"), b"")
    connection = connect(database, create=True)
    try:
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        create_schema(connection)
        connection.execute(f"PRAGMA application_id={ARCHIVE_ID}")
        header = _fill(connection, folder, path)
        connection.execute("COMMIT")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.close()
    return _judge(database, header, path)


def _judge(database: str, header: dict[str, object], path: str) -> tuple[Report, str]:
    store = SQLiteStore(database)
    try:
        report = verify(store)
        first = store.reader().event(1)
        ledger_id = ledger_id_of(first.envelope) if first else ""
    finally:
        store.close()
    if not report.ok:
        wrong = report.first_wrong or {}
        raise Tampered(
            f"{path}: {report.verdict} at event {wrong.get('seq')}, {wrong.get('field')}: nothing was imported",
            verdict=report.verdict,
        )
    head = header["head"]
    assert isinstance(head, dict)
    if head["hash"] != report.head_hash.hex() or header.get("ledger_id") != ledger_id:
        raise Tampered(
            f"{path}: the events do not end at the head that the first line states: nothing was imported",
            verdict="forked",
        )
    return report, ledger_id


def backup(ledger: Ledger, path: str, progress: Callable[[int, int], None] | None = None) -> Report:
    """A consistent copy of the ledger's file at `path` while others write; verified before it gets that name.

    Contents that lie outside the database go to `artifacts/` beside the copy.

    Raises:
        Conflict: `path` exists. Tampered: the copy does not verify. Unavailable: no room or no right to write.
    """
    path = os.path.abspath(path)
    if os.path.lexists(path):
        raise Conflict(f"{path}: exists already: a backup never replaces a file")
    temporary = f"{path}.{os.getpid()}.new"
    try:
        os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        _copy(ledger.path, temporary, progress)
        _copy_artifacts(ledger.folder, os.path.dirname(path))
        report = _verified_copy(temporary, path)
    except OSError as error:
        raise Unavailable(f"{path}: {error.strerror}; there is no backup") from None
    except apsw.Error as error:
        raise explain(error, path) from None
    finally:
        for name in (temporary, temporary + "-wal", temporary + "-shm", temporary + "-journal"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
    return report


def _copy(source: str, target: str, progress: Callable[[int, int], None] | None) -> None:
    origin, copy = connect(source), connect(target, create=True)
    try:
        with copy.backup("main", origin, "main") as running:
            while not running.done:
                running.step(2000)
                if progress is not None:
                    progress(running.page_count - running.remaining, running.page_count)
        copy.execute(
            "PRAGMA journal_mode=DELETE"
        )  # one file, with nothing beside it, until somebody opens it
    finally:
        copy.close()
        origin.close()


def _copy_artifacts(source: str, target: str) -> None:
    folder = os.path.join(source, ARTIFACTS)
    if not os.path.isdir(folder) or os.path.realpath(source) == os.path.realpath(target):
        return
    os.makedirs(os.path.join(target, ARTIFACTS), 0o700, exist_ok=True)
    for name in sorted(os.listdir(folder)):
        if name.startswith("."):
            continue
        try:
            with open(os.path.join(folder, name), "rb") as file:
                content = file.read()
        except FileNotFoundError:
            continue  # redacted meanwhile; were it another, the copy would not verify
        write_whole(os.path.join(target, ARTIFACTS, name), content)


def _verified_copy(temporary: str, path: str) -> Report:
    store = SQLiteStore(temporary, now=clock.now_us)
    try:
        report = verify(store)
    finally:
        store.close()
    if not report.ok:
        raise Tampered(
            f"{path}: the copy does not verify ({report.verdict}): there is no backup; run `gatebook verify`",
            verdict=report.verdict,
        )
    handle = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    os.rename(temporary, path)
    flush_names(os.path.dirname(path))
    return report


def default_folder(path: str) -> str:
    """Where `import` puts an archive without `--to`: beside the working directory's other ledgers, named after the file."""
    name = os.path.basename(path)
    for ending in (".jsonl", ".ndjson", ".json"):
        name = name.removesuffix(ending)
    return os.path.abspath(f"{name or 'archive'}{FOLDER}")
