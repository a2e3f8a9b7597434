"""What a file can suffer while it is a ledger: SQLite's own rules, removed side files, forks, odd names, other versions."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import apsw
import pytest
from store_contract import ORIGIN, add, check_chain, draft, whole
from test_sqlite_store import Folder

import ledger.sqlite as module
from ledger.access import create_ledger, open_ledger
from ledger.errors import GatebookError, Invalid, Refused, Tampered, Unavailable, Usage
from ledger.event import Head, seal
from ledger.sqlite import INSERT, SQLiteStore, connect, insert_in_order

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


@pytest.fixture
def place(tmp_path):
    return Folder(tmp_path)


@pytest.fixture
def store(place):
    opened = place.open()
    yield opened
    opened.close()


def raw(place):
    return apsw.Connection(place.path)


# -- the rules in the file itself


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM events WHERE seq = 2", "DELETE FROM events", "UPDATE events SET data = x'7b7d' WHERE seq = 1",
        "UPDATE events SET envelope = x'7b7d' WHERE seq = 1", "UPDATE events SET hash = zeroblob(32) WHERE seq = 1",
        "UPDATE events SET seq = 9 WHERE seq = 2", "UPDATE events SET salt = x'00' WHERE seq = 1",
        "UPDATE events SET content = x'00', salt = NULL WHERE seq = 1", "INSERT INTO events SELECT 9, envelope, data, salt, content, hash FROM events WHERE seq = 1",
        "INSERT INTO events SELECT 1, envelope, data, salt, content, hash FROM events WHERE seq = 2",
        "REPLACE INTO events SELECT 2, envelope, data, salt, content, hash FROM events WHERE seq = 1",
        "INSERT INTO events SELECT 0, envelope, data, salt, content, hash FROM events WHERE seq = 2",
        "INSERT INTO events SELECT 3, envelope, data, salt, content, hash FROM events WHERE seq = 2",
        "INSERT INTO events SELECT NULL, envelope, data, salt, content, hash FROM events WHERE seq = 2",
        "UPDATE events SET stream = 'x' WHERE seq = 1", "DROP TABLE sqlite_schema",
    ],
)  # fmt: skip
def test_sqlite_itself_refuses_to_change_delete_or_misplace_an_event(place, store, statement):
    add(store, draft(content=b"c"), draft())
    connection = connect(place.path)
    with pytest.raises(apsw.Error):
        connection.execute(statement).fetchall()
    connection.close()
    assert len(whole(store)) == 2


def many_after(store, count, *, first=2):
    """Rows of `count` events that follow the store's one event, numbered from `first`."""
    (head,) = add(store, draft()).events
    drafts = [draft() for _ in range(count)]
    events = seal(
        drafts,
        Head(first - 1, head.hash, head.recorded_us, head.recorded_us),
        lambda _stream: 1,
        ORIGIN,
        head.recorded_us,
    )
    return [store.row(event) for event in events]


@pytest.mark.parametrize("first", [1, 2, 3, 9])
def test_many_events_in_one_transaction_are_in_order_or_none_is_there(store, first):
    """The trigger does not look at each of them: what it would have refused is refused for all of them."""
    rows = many_after(store, module.MANY, first=first)
    connection = store._connection
    connection.execute("BEGIN")
    try:
        insert_in_order(connection, lambda: connection.executemany(INSERT, rows), 1, len(rows))
    except apsw.ConstraintError:
        assert first != 2
        connection.execute("ROLLBACK")
        assert store.head().seq == 1
    else:
        assert first == 2
        connection.execute("COMMIT")
        assert store.head().seq == module.MANY + 1


@pytest.mark.parametrize("fault", ["hole", "twice", "fewer", "another head"])
def test_a_hole_among_many_events_is_refused(store, fault):
    rows, after = many_after(store, module.MANY + 1), 1
    if fault == "hole":
        del rows[7]
    elif fault == "twice":
        rows[7] = (rows[8][0], *rows[7][1:])
    elif fault == "fewer":
        rows.pop()
    else:
        after = 0
    connection = store._connection
    connection.execute("BEGIN")
    with pytest.raises(apsw.ConstraintError):
        insert_in_order(
            connection,
            lambda: connection.executemany(INSERT, rows),
            after,
            module.MANY + 1 if fault != "hole" else len(rows),
        )
    connection.execute("ROLLBACK")
    assert store.head().seq == 1


def test_the_triggers_guard_a_connection_again_after_many_events(store):
    """Also when inserting them broke off in the middle."""
    add(store, *(draft() for _ in range(module.MANY)))
    connection = store._connection
    with pytest.raises(ZeroDivisionError):
        insert_in_order(connection, lambda: 1 / 0, module.MANY, module.MANY)
    for statement in (
        "DELETE FROM events",
        "INSERT INTO events SELECT 999, envelope, data, salt, content, hash FROM events WHERE seq = 2",
    ):
        with pytest.raises(apsw.ConstraintError):
            connection.execute(statement)


def test_the_schema_cannot_be_written_through_our_connections(place, store):
    connection = connect(place.path)
    connection.execute("PRAGMA writable_schema=ON").fetchall()
    with pytest.raises(apsw.Error):
        connection.execute("DELETE FROM sqlite_schema WHERE type = 'trigger'")


def test_every_connection_has_the_logs_settings(place):
    connection = connect(place.path)
    settings = {
        name: connection.execute(f"PRAGMA {name}").fetchall()[0][0]
        for name in ("journal_mode", "synchronous", "recursive_triggers", "secure_delete", "trusted_schema", "wal_autocheckpoint", "user_version", "application_id")
    }  # fmt: skip
    assert settings == {
        "journal_mode": "wal", "synchronous": 2, "recursive_triggers": 1, "secure_delete": 1, "trusted_schema": 0,
        "wal_autocheckpoint": 0, "user_version": 1, "application_id": 0x67617465,
    }  # fmt: skip


def test_a_generated_column_cannot_say_other_than_the_envelope(place, store):
    """F7: stream, version, type and key are read out of the bytes that the hash covers."""
    add(store, draft(idempotency_key="k\u00fc"))
    (row,) = store.query("SELECT stream, version, type, idempotency_key FROM events")
    assert row == ("x-a/1", 1, "x.thing.done", "k\u00fc")


def test_erasing_leaves_no_copy_of_the_content_in_the_file(place, store):
    """F94: secure_delete; after a checkpoint the words are in no file of the ledger."""
    (event,) = add(store, draft(content=b"a very particular sentence" * 40)).events
    place.erase(store, event.seq)
    store.close()
    connection = connect(place.path)
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()
    for name in os.listdir(store.folder):
        with open(os.path.join(store.folder, name), "rb") as file:
            assert b"a very particular sentence" not in file.read(), name


# -- the file and its side files


@pytest.mark.parametrize("lost", ["-wal", "-shm", ""])
@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_removed_or_replaced_while_open_is_found_and_nothing_is_acknowledged(place, store, lost, how):
    """F50"""
    add(store, draft())
    name = place.path + lost
    if how == "replaced":
        with open(name, "rb") as file:
            copy = file.read()
    os.unlink(name)
    if how == "replaced":
        with open(name, "wb") as file:
            file.write(copy)
    for _ in range(2):
        with pytest.raises(Tampered, match="removed or replaced while open"):
            add(store, draft())


def test_a_file_removed_in_the_middle_of_a_commit_is_not_acknowledged(place, store):
    """F50"""
    add(store, draft())

    def decide(_reader):
        os.unlink(place.path + "-wal")
        return [draft()]

    with pytest.raises(Tampered, match="not acknowledged"):
        store.transact(decide, ORIGIN)


def test_a_write_ahead_log_lost_between_two_openings_is_found_by_the_machines_memory(tmp_path, home):
    """F50: acknowledged events were in it."""
    ledger, _ = create_ledger(str(tmp_path / "l"), ORIGIN)
    ledger.append([draft(), draft()], ORIGIN)
    ledger.close()
    os.unlink(ledger.path + "-wal")
    with pytest.raises(GatebookError) as refused:
        open_ledger(ledger.path).append([draft()], ORIGIN)
    assert refused.value.exit_code in (3, 4)


def test_the_write_ahead_log_is_moved_into_the_file_now_and_then(place, store):
    """F45: also while a reader holds an old view; then writers go on."""
    reader = raw(place)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM events").fetchall()
    for _ in range(24):
        add(store, draft(content=b"z" * 400_000))
    assert reader.execute("SELECT count(*) FROM events").fetchall() == [(0,)]
    reader.execute("COMMIT")
    reader.close()
    for _ in range(24):
        add(store, draft(content=b"z" * 400_000))
    assert os.path.getsize(place.path) > 8_000_000
    check_chain(whole(store))


def sizes_of_wal(place, store, count):
    found = []
    for _ in range(count):
        add(store, draft())
        found.append(os.stat(place.path + "-wal").st_size)
    return found


def test_small_commits_do_not_each_make_the_write_ahead_log_longer(place, store):
    """It grows by many of them at once, and by nothing once it is long enough to be begun again."""
    assert len(set(sizes_of_wal(place, store, 100))) <= 6
    size = sizes_of_wal(place, store, 700)[-1]
    assert set(sizes_of_wal(place, store, 300)) == {size}
    check_chain(whole(store))


def test_a_process_for_each_event_makes_the_write_ahead_log_longer_at_once_too(place, store):
    sizes = []
    for _ in range(40):
        again = place.open()
        sizes += sizes_of_wal(place, again, 1)
        again.close()
    assert len(set(sizes)) <= 4


def test_what_stands_behind_the_last_frame_is_nothing_to_whoever_opens_the_file_next(place, store):
    """Also when SQLite has to read the WAL from its beginning, because its index of it is gone."""
    events = [add(store, draft()).events[0] for _ in range(10)]
    os.makedirs(os.path.join(os.path.dirname(place.path), "copy"))
    copy = os.path.join(os.path.dirname(place.path), "copy", "ledger.db")
    for ending in ("", "-wal"):
        shutil.copyfile(place.path + ending, copy + ending)
    with open(copy + "-wal", "rb") as file:
        assert file.read().endswith(bytes(module.FRAME))
    opened = SQLiteStore(copy)
    assert [event.hash for event in whole(opened)] == [event.hash for event in events]
    add(opened, *(draft() for _ in range(100)))
    add(opened, draft())
    check_chain(whole(opened))
    opened.close()


@pytest.mark.parametrize("fault", ["disk full", "another writer", "a link"])
def test_a_write_ahead_log_that_cannot_be_made_longer_harms_nothing(place, store, fault, monkeypatch):
    other = raw(place)
    wal = place.path + "-wal"

    def full(*_):
        raise OSError(28, "No space left on device")

    if fault == "disk full":
        monkeypatch.setattr(os, "pwrite", full)
    elif fault == "another writer":
        store._connection.set_busy_timeout(10)
        monkeypatch.setattr(store, "_after_commit", lambda _event: other.execute("BEGIN IMMEDIATE"))
    else:
        monkeypatch.setattr(
            store,
            "_after_commit",
            lambda _event: (os.rename(wal, wal + ".moved"), os.symlink(wal + ".moved", wal)),
        )
    (event,) = add(store, draft()).events
    if fault == "another writer":
        other.execute("ROLLBACK")
    elif fault == "a link":
        assert os.stat(wal + ".moved").st_size < module.AHEAD
        os.replace(wal + ".moved", wal)
    assert store.reader().event(1).hash == event.hash
    assert not store._connection.in_transaction
    other.close()


def test_closing_does_not_checkpoint(place):
    store = place.open()
    add(store, draft())
    before = os.path.getsize(place.path)
    store.close()
    assert os.path.getsize(place.path) == before
    assert os.path.getsize(place.path + "-wal") > 0


def test_another_connections_write_lock_is_waited_for(place, store):
    """No `database is locked` for a caller: a foreign tool holds the file for a moment."""
    foreign = raw(place)
    foreign.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, lambda: foreign.execute("ROLLBACK"))
    timer.start()
    assert add(store, draft()).events[0].version == 1
    timer.join()
    foreign.close()


def test_a_lock_held_too_long_is_unavailable_and_the_ledger_usable_after(place, store, monkeypatch):
    import fcntl

    monkeypatch.setattr(module, "LOCK_SECONDS", 0.2)
    handle = os.open(os.path.join(store.folder, "ledger.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    problems = []

    def try_it():
        try:
            add(store, draft())
        except BaseException as error:
            problems.append(error)

    try_it()
    thread = threading.Thread(target=try_it)
    thread.start()
    thread.join()
    assert [type(error) for error in problems] == [Unavailable, Unavailable]
    assert "held the ledger" in str(problems[0])
    os.close(handle)
    assert add(store, draft()).events[0].version == 1


def test_waiting_for_the_lock_leaves_signal_handlers_and_timers_as_they_were(tmp_path):
    """The main thread queues in the kernel under an alarm of its own."""
    place = Folder(tmp_path)
    code = f"""
import fcntl, os, signal, subprocess, sys, time
sys.path.insert(0, {os.path.dirname(__file__)!r})
from store_contract import add, draft
from ledger.sqlite import SQLiteStore
holder = subprocess.Popen([sys.executable, "-c", "import fcntl,os,sys,time\\nh=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\\nfcntl.flock(h,fcntl.LOCK_EX)\\nprint(flush=True)\\ntime.sleep(.4)", {os.path.join(str(tmp_path), "ledger.lock")!r}], stdout=subprocess.PIPE)
holder.stdout.readline()
mine = lambda *_: None
signal.signal(signal.SIGALRM, mine)
add(SQLiteStore({place.path!r}), draft())
assert signal.getsignal(signal.SIGALRM) is mine
assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
holder.wait()
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "ok\n", done


# -- forks and processes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_store_opened_before_a_fork_is_refused_in_the_child_and_right_in_the_parent(place, store):
    """F49"""
    add(store, draft())
    reader = store.reader()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            refused = 0
            for use in (
                store.head,
                lambda: add(store, draft()),
                lambda: whole(store),
                lambda: reader.version("x-a/1"),
            ):
                try:
                    use()
                except Unavailable as error:
                    refused += "before a fork" in str(error)
            store.close()
            fresh = place.open()
            add(fresh, draft())
            fresh.close()
            code = 0 if refused == 4 else 2
        finally:
            os._exit(code)
    for _ in range(5):
        add(store, draft())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    add(store, draft())
    check_chain(whole(store))
    assert len(whole(store)) == 8


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_during_another_threads_transaction_does_not_hang_the_child(place, store):
    """F49"""
    started, go = threading.Event(), threading.Event()

    def decide(_reader):
        started.set()
        go.wait()
        return [draft()]

    thread = threading.Thread(target=lambda: store.transact(decide, ORIGIN))
    thread.start()
    started.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            add(store, draft())
        except Unavailable:
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    go.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(whole(store)) == 1


# -- which file


def test_wiped_missing_empty_and_unreadable_are_four_outcomes(tmp_path, home):
    """F13"""
    ledger, _ = create_ledger(str(tmp_path / "l"), ORIGIN)
    ledger.append([draft()], ORIGIN)
    ledger.close()
    outcomes = {}

    def note(name):
        try:
            opened = open_ledger(ledger.path)
            opened.append([draft()], ORIGIN)
        except GatebookError as error:
            outcomes[name] = (
                type(error).__name__,
                error.exit_code,
                getattr(error, "verdict", str(error).split(": ", 1)[1]),
            )

    wiping = apsw.Connection(ledger.path)
    wiping.execute("DROP TRIGGER events_kept; DELETE FROM events")
    wiping.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    wiping.close()
    note("every event deleted")
    with open(ledger.path, "r+b") as file:
        file.write(bytes(4096))
    note("wiped")
    os.truncate(ledger.path, 0)
    note("empty")
    os.unlink(ledger.path)
    note("missing")
    assert outcomes["every event deleted"][:2] == ("Refused", 4)
    assert outcomes["wiped"] == ("Tampered", 3, "unreadable")
    assert outcomes["empty"] == ("Tampered", 3, "nothing-to-verify")
    assert outcomes["missing"][:2] == ("Usage", 2)
    assert len(set(outcomes.values())) == len(outcomes) == 4


def test_a_file_of_another_user_that_cannot_be_read_is_its_own_outcome(tmp_path):
    """F13: unreadable. Root reads everything, so a process of another user tries."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    place = Folder(tmp_path)
    os.chmod(place.path, 0o600)
    for folder in [tmp_path, *tmp_path.parents][:-1]:
        if not os.stat(folder).st_mode & 0o001:
            os.chmod(folder, os.stat(folder).st_mode | 0o001)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            SQLiteStore(place.path)
        except Unavailable as error:
            code = 0 if "cannot be opened" in str(error) else 2
        except BaseException:
            code = 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    "content",
    [
        b"not a database, just some text that is long enough " * 40,
        os.urandom(4096),
        b"SQLite format 3\0" + bytes(100),
        b"x",
    ],
)
def test_a_file_that_is_no_database_is_unreadable(tmp_path, content):
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    with pytest.raises(Tampered) as refused:
        open_ledger(str(path))
    assert refused.value.verdict == "unreadable"
    assert path.read_bytes() == content


def test_a_database_that_is_no_ledger_is_refused_and_left_alone(tmp_path, home):
    path = tmp_path / "ledger.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE mine (a)")
    connection.close()
    before = path.read_bytes()
    for use in (lambda: open_ledger(str(path)), lambda: create_ledger(str(tmp_path), ORIGIN)):
        with pytest.raises(Tampered, match="not a ledger"):
            use()
    assert path.read_bytes() == before


def test_a_newer_format_is_refused_by_name(place):
    connection = connect(place.path)
    connection.execute("PRAGMA user_version=2")
    connection.close()
    with pytest.raises(Invalid, match="format 2, this gatebook knows 1: upgrade"):
        place.open()


def test_a_sqlite_that_can_lose_commits_is_refused_and_the_version_can_be_told(place, monkeypatch):
    """F46"""
    assert module.sqlite_version() == apsw.sqlite_lib_version()
    for faulty in ("3.7.0", "3.45.1", "3.51.2"):
        monkeypatch.setattr(apsw, "sqlite_lib_version", lambda faulty=faulty: faulty)
        with pytest.raises(Unavailable, match=f"SQLite {faulty} can lose commits"):
            place.open()
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.3")
    place.open().close()


ODD_NAMES = [
    b"with space", b"it's", b'a"quote"', b"what?mode=memory", b"a#b", b"100%25", b"\xc3\xbcml\xc3\xa4ut \xe4\xb8\x96", b"\xff\xfe not utf-8",
    b"semi;colon", b"$HOME", b"back\\slash", b"new\nline", b"file:x", b"-dash", b":memory:", b"n" * 255, b"e\xcc\x81 and \xc3\xa9",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES, ids=repr)
def test_a_ledger_works_under_any_directory_name(tmp_path, home, name):
    """F55"""
    folder = os.path.join(os.fsencode(tmp_path), name)
    ledger, made = create_ledger(os.fsdecode(folder), ORIGIN)
    assert made
    ledger.append([draft(content=b"z" * 600_000), draft()], ORIGIN)
    ledger.close()
    assert {b"ledger.db", b"ledger.lock", b".gitignore", b"artifacts"} <= set(os.listdir(folder))
    assert os.listdir(os.fsencode(tmp_path)) in ([name, b"home"], [b"home", name])
    again = open_ledger(os.fsdecode(folder))
    events = whole(again.store)
    check_chain(events)
    assert again.store.artifact(events[1]) == b"z" * 600_000
    assert [again.append([draft()], ORIGIN).events[0].seq for _ in range(2)] == [4, 5]
    again.close()


def test_a_readonly_opener_neither_creates_nor_changes_anything(place, store):
    add(store, draft())
    reader = SQLiteStore(place.path, readonly=True)
    assert len(whole(reader)) == 1
    with pytest.raises(Unavailable, match="read-only"):
        add(reader, draft())
    reader.close()
    assert len(whole(store)) == 1


def test_an_artifact_that_no_event_names_harms_nothing(place, store):
    """A crash between the artifact and the commit leaves one."""

    class Crash(BaseException):
        pass

    def before(_reader, _events):
        raise Crash

    store.guard(before, lambda _event: None)
    with pytest.raises(Crash):
        add(store, draft(content=b"q" * 600_000))
    store.guard(lambda _reader, _events: None, lambda _event: None)
    assert whole(store) == []
    add(store, draft(content=b"q" * 600_000))
    check_chain(whole(store))


def test_a_missing_artifact_reads_as_gone_not_as_empty(place, store):
    (event,) = add(store, draft(content=b"q" * 600_000)).events
    os.unlink(os.path.join(store.folder, "artifacts", event.content_digest))
    found = store.reader().event(event.seq)
    assert found.in_artifact
    assert store.artifact(found) is None


def test_60_000_events_in_one_stream_cost_an_append_the_same_rows_as_one(place, store):
    """F41, F57: rows stepped, not time: the head, the stream's version and a key are index look-ups."""
    steps = []

    def plan(sql, values):
        return [row[3] for row in store.query("EXPLAIN QUERY PLAN " + sql, values)]

    steps += plan("SELECT seq FROM events ORDER BY seq DESC LIMIT 1", ())
    steps += plan("SELECT max(version) FROM events WHERE stream = ?", ("x-a/1",))
    steps += plan("SELECT seq FROM events WHERE idempotency_key = ?", ("k",))
    steps += plan("SELECT seq FROM events WHERE type = ? AND seq < ? ORDER BY seq DESC LIMIT ?", ("t", 9, 1))
    steps += plan(
        "SELECT seq FROM events WHERE stream = ? AND version > ? AND version <= ? ORDER BY version",
        ("s", 1, 2),
    )
    assert not any("TEMP B-TREE" in step for step in steps), steps
    assert [step for step in steps if step.startswith("SCAN")] == [
        "SCAN events"
    ]  # by rowid, backwards, one row


def test_time_does_not_pass_between_reading_the_clock_and_the_commit_of_others(place):
    """F93: the order is the numbers' order, whatever the clocks of two openers say."""
    ahead, behind = place.open(lambda: time.time_ns() // 1000 + 3_000_000), place.open()
    events = [add(store, draft()).events[0] for store in (ahead, behind, ahead, behind)]
    assert [event.clock_behind > 0 for event in events] == [False, True, False, True]
    check_chain(whole(ahead))
    ahead.close()
    behind.close()


def test_a_refused_write_into_an_archive_names_the_way_out():
    assert "resume --as-successor" in str(module.read_only_refusal("/x"))
    assert isinstance(module.read_only_refusal("/x"), Refused)


def test_a_missing_ledger_is_never_made_by_opening(tmp_path):
    with pytest.raises(Usage, match="no ledger here; run `gatebook init`"):
        SQLiteStore(str(tmp_path / "ledger.db"))
    assert os.listdir(tmp_path) == []
