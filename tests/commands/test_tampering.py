"""Verification finds every change of every stored cell and rule, and names it (issue 2, Reliability)."""

from __future__ import annotations

import json
import os
import shutil

import apsw
import msgspec
import pytest
from blake3 import blake3
from program import call

from ledger.access import create_ledger, open_ledger
from ledger.event import Draft, Origin

ORIGIN = Origin("cli:tester", "test")
TRIGGERS = ("events_fixed", "events_kept", "events_in_order")


def settle(path):
    """Move everything from the write-ahead log into the file (a connection that read nothing would do nothing)."""
    connection = apsw.Connection(str(path))
    connection.execute("SELECT count(*) FROM events").fetchall()
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A small ledger with every shape of event: content, none, erased, in an artifact, floats, non-ASCII, a snapshot."""
    root = tmp_path_factory.mktemp("original")
    before = os.environ["XDG_STATE_HOME"]
    os.environ["XDG_STATE_HOME"] = str(root / "state")
    try:
        ledger, _ = create_ledger(str(root / "l"), ORIGIN)
        ledger.append(
            [
                Draft("x-a/1", "x.a.b", b'{"n":1}', content=b"words"),
                Draft("x-a/\u00fc", "x.a.b", '{"\u00fc":1e-7}'.encode(), content=b""),
                Draft("x-a/1", "x.a.c", b"{}", idempotency_key="k", correlation="c", causation=1),
                Draft("x-a/1", "x.a.b", b'{"big":1e+21}', content=b"z" * 600_000),
                Draft("x-b/1", "x.a.b", b'{"n":2}', content=b"to be erased"),
                Draft("x-b/1", "x.a.b", b'{"n":3}'),
            ],
            ORIGIN,
        )
        assert call("--ledger", str(root / "l"), "redact", "6", "--reason", "test").code == 0
        ledger.transact(
            lambda reader: reader.save_snapshot("x-b/1", 2, "f/1", b'{"a":1}') or [Draft("x-b/1", "x.a.b")],
            ORIGIN,
        )
        head = ledger.store.head()
        ledger.close()
        settle(ledger.path)
    finally:
        os.environ["XDG_STATE_HOME"] = before
    return root, head


@pytest.fixture
def copy(original, tmp_path, monkeypatch):
    """A copy to tamper with, on a machine that never saw it (so that the file alone must tell)."""
    root, _ = original
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copytree(root / "l", tmp_path / "l")
    return tmp_path / "l"


def tamper(folder, *statements, restore=True):
    """Run statements without the triggers; put the triggers back afterwards, so that only the cells differ."""
    connection = apsw.Connection(str(folder / "ledger.db"))
    kept = connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name in TRIGGERS:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        values = ()
        if isinstance(statement, tuple):
            statement, *values = statement
        connection.execute(statement, values).fetchall()
    if restore:
        for (sql,) in kept:
            connection.execute(sql)
    connection.close()


def verdict(folder, *more):
    done = call("--ledger", str(folder), "verify", "--json", *more)
    found = json.loads(done.out)
    assert done.code == (0 if found["ok"] else 3), done.err
    return found


def cells(original):
    root, head = original
    connection = apsw.Connection(str(root / "l" / "ledger.db"))
    rows = connection.execute(
        "SELECT seq, envelope, data, salt, content, hash FROM events ORDER BY seq"
    ).fetchall()
    connection.close()
    return rows


def test_the_untouched_ledger_verifies_and_says_how_much_was_checked(original, copy):
    """F5"""
    _, head = original
    found = verdict(copy)
    assert found == {
        "ok": True, "verdict": "ok", "events": head.seq, "after_checkpoint": head.seq,
        "head": {"seq": head.seq, "hash": head.hash.hex()}, "first_wrong": None,
    }  # fmt: skip


COLUMNS = ("envelope", "data", "salt", "content", "hash")


def patch(folder, old, new, column, seq):
    """Put `new` for `old`: an envelope in the bytes of the file, past SQLite and its indexes; another cell by SQL."""
    if column != "envelope":
        tamper(folder, (f"UPDATE events SET {column} = ? WHERE seq = ?", new, seq))
        return
    path = folder / "ledger.db"
    settle(path)
    raw = path.read_bytes()
    assert raw.count(old) == 1
    path.write_bytes(raw.replace(old, new))


@pytest.mark.parametrize("seq", range(1, 10))
@pytest.mark.parametrize("column", COLUMNS)
def test_a_flipped_byte_of_any_cell_is_found_and_named(original, copy, seq, column):
    """F7: first, middle and last byte, one bit."""
    row = cells(original)[seq - 1]
    cell = row[1 + COLUMNS.index(column)]
    if not cell:
        pytest.skip("nothing stands in that cell")
    for place in sorted({0, len(cell) // 2, len(cell) - 1}):
        changed = bytearray(cell)
        changed[place] ^= 1
        patch(copy, cell, bytes(changed), column, seq)
        found = verdict(copy)
        wrong = found["first_wrong"]
        assert not found["ok"]
        assert found["events"] == seq - 1 or seq == 1 or found["events"] <= 9
        last_envelope = (
            column in ("envelope", "hash") and seq == 9
        )  # the two cannot be told apart on the last event
        assert wrong["seq"] == seq, (place, found)
        assert (
            last_envelope or column in wrong["field"] or (column == "salt" and wrong["field"] == "content")
        ), (place, found)
        assert wrong["expected"] != wrong["found"]
        patch(copy, bytes(changed), cell, column, seq)
    assert verdict(copy)["ok"]


@pytest.mark.parametrize("seq", range(1, 10))
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", [b"", None, b"\x00", b"{}", b"\xff" * 40])
def test_an_emptied_or_replaced_cell_is_found_and_not_skipped(original, copy, seq, column, value):
    """F8: hashes, and every other cell, set to '' or NULL."""
    row = cells(original)[seq - 1]
    if row[1 + COLUMNS.index(column)] == value:
        pytest.skip("that is what stands there")
    if value is None and column in ("envelope", "data", "hash"):
        connection = apsw.Connection(str(copy / "ledger.db"))
        with pytest.raises(apsw.ConstraintError):
            tamper(copy, (f"UPDATE events SET {column} = ? WHERE seq = ?", value, seq))
        connection.close()
        return
    try:
        tamper(copy, (f"UPDATE events SET {column} = ? WHERE seq = ?", value, seq))
    except apsw.Error:
        return  # SQLite's own index refused it
    found = verdict(copy)
    assert not found["ok"]
    assert found["first_wrong"]["seq"] in (seq, None), found
    assert found["verdict"] in ("content-mismatch", "link-broken", "order", "gap"), found


def test_erasing_content_without_a_record_is_found(copy):
    tamper(copy, "UPDATE events SET content = NULL, salt = NULL WHERE seq = 2")
    found = verdict(copy)
    assert (found["verdict"], found["first_wrong"]["seq"], found["first_wrong"]["field"]) == (
        "content-mismatch",
        2,
        "content",
    )


@pytest.mark.parametrize("seq", range(1, 10))
def test_a_deleted_event_is_a_gap_where_it_stood(copy, seq):
    tamper(copy, f"DELETE FROM events WHERE seq = {seq}")
    found = verdict(copy)
    if seq == 9:
        assert found["ok"]  # F9: nobody remembers it here: verify says so, below
        assert "Without a checkpoint kept elsewhere" in call("--ledger", str(copy), "verify").out
    else:
        assert not found["ok"]
        assert found["verdict"] in ("gap", "link-broken")
        assert found["first_wrong"]["seq"] == seq


def remember(original, tmp_path, monkeypatch):
    """Be the machine that wrote the ledger."""
    root, _ = original
    shutil.copytree(root / "state", tmp_path / "remembers")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "remembers"))


def test_the_last_events_deleted_are_found_by_this_machines_memory(original, copy, tmp_path, monkeypatch):
    """F9"""
    remember(original, tmp_path, monkeypatch)
    tamper(copy, "DELETE FROM snapshots", "DELETE FROM events WHERE seq > 7")
    found = verdict(copy)
    assert found["verdict"] == "truncated"
    tamper(copy, "DELETE FROM events")
    found = verdict(copy)
    assert found["verdict"] in ("nothing-to-verify", "truncated")
    assert not found["ok"]


@pytest.mark.parametrize("command", ["verify", "replay"])
def test_a_damaged_memory_is_told_after_every_event_was_checked(original, copy, tmp_path, command):
    """Whoever meets the damage is told to verify first: that must say something of the events."""
    _, head = original
    ledger = open_ledger(str(copy))
    heads = tmp_path / "state" / "gatebook" / "heads"
    heads.mkdir(parents=True)
    (heads / ledger.id).write_text("garbage")
    ledger.close()
    done = call("--ledger", str(copy), command, "--json")
    found = json.loads(done.out)
    assert (done.code, found["verdict"], found["events"]) == (3, "content-mismatch", head.seq)
    assert found["first_wrong"]["field"] == "memory of the head"
    tamper(copy, "UPDATE events SET data = x'7b7d' WHERE seq = 2")
    found = json.loads(call("--ledger", str(copy), command, "--json").out)
    assert (found["first_wrong"]["seq"], found["first_wrong"]["field"]) == (2, "data")


def test_no_events_at_all_is_not_fine(copy):
    """F5, F13"""
    tamper(copy, "DELETE FROM events")
    found = verdict(copy)
    assert (found["ok"], found["verdict"], found["events"]) == (False, "nothing-to-verify", 0)


def rewrite(folder, seq, change):
    """Forge event `seq` and recompute everything after it, as an attacker with the file can."""
    connection = apsw.Connection(str(folder / "ledger.db"))
    rows = connection.execute(
        "SELECT seq, envelope, data, salt, content, hash FROM events ORDER BY seq"
    ).fetchall()
    connection.close()
    previous, updates = bytes(32), []
    for number, envelope, data, _salt, _content, stored in rows:
        if number == seq:
            data = change(data)
            members = json.loads(envelope)
            members["data_digest"] = blake3(data).hexdigest()
            envelope = json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        hash = blake3(previous + envelope, derive_key_context="gatebook 2026 event v1").digest()
        if hash != stored:
            updates.append(
                (
                    "UPDATE events SET envelope = ?, data = ?, hash = ? WHERE seq = ?",
                    envelope,
                    data,
                    hash,
                    number,
                )
            )
        previous = hash
    tamper(folder, "DELETE FROM snapshots", *updates)


def test_a_wholly_recomputed_chain_is_found_against_a_checkpoint_kept_elsewhere(
    original, copy, tmp_path, monkeypatch
):
    """F11, F12: the same number of events, every hash right."""
    root, _ = original
    remember(original, tmp_path, monkeypatch)
    shutil.copytree(root / "l", tmp_path / "whole")
    note = tmp_path / "note"
    assert call("--ledger", str(tmp_path / "whole"), "checkpoint", "--out", str(note)).code == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "stranger"))
    rewrite(copy, 4, lambda _data: b'{"forged":true}')
    assert verdict(copy)["ok"]  # the file alone cannot tell
    done = call("--ledger", str(copy), "verify", "--json", "--against", str(note))
    assert done.code == 3, (done.out, done.err)
    assert not json.loads(done.out)["ok"]


def test_a_wholly_recomputed_chain_is_found_by_this_machines_memory(original, copy, tmp_path, monkeypatch):
    """F11, F12"""
    remember(original, tmp_path, monkeypatch)
    rewrite(copy, 4, lambda _data: b'{"forged":true}')
    assert verdict(copy)["verdict"] == "forked"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda m: {**m, "extra": 1}, "envelope"), (lambda m: {k: v for k, v in m.items() if k != "via"}, "envelope"), (lambda m: {**m, "correlation": None}, "envelope"),
        (lambda m: {**m, "clock_behind": 0}, "envelope"), (lambda m: {**m, "v": "1"}, "envelope"), (lambda m: {**m, "seq": 5}, "seq"), (lambda m: {**m, "version": 7}, "version"),
        (lambda m: {**m, "recorded_at": "2020-01-01T00:00:00.000000Z"}, "recorded_at"), (lambda m: {**m, "recorded_at": m["recorded_at"].replace("Z", "+00:00")}, "envelope"), (lambda m: {**m, "recorded_at": m["recorded_at"][:-1] + "789Z"}, "envelope"),
        (lambda m: {**m, "stream": "X-a/1"}, "envelope"), (lambda m: {**m, "type": "x"}, "envelope"), (lambda m: {**m, "data_digest": m["data_digest"].upper()}, "data"), (lambda m: {**m, "actor": "nobody"}, "envelope"),
        (lambda m: {**m, "stream": "x-a/e\u0301"}, "envelope"), (lambda m: {**m, "version": 1.0}, "envelope"), (lambda m: {**m, "causation": 99}, "causation"), (lambda m: {**m, "actor": "cli:a\x00"}, "envelope"), (lambda m: {**m, "clock_behind": -5}, "clock_behind"),
    ],
)  # fmt: skip
def test_an_envelope_that_breaks_a_rule_of_format_1_is_found_though_every_hash_is_right(
    original, copy, change, field
):
    """F4: a finer timestamp, too."""
    rows = cells(original)
    previous, updates = bytes(32), []
    for number, envelope, _data, _salt, _content, stored in rows:
        if number == 4:
            envelope = json.dumps(
                change(json.loads(envelope)), sort_keys=True, separators=(",", ":"), ensure_ascii=False
            ).encode()
        hash = blake3(previous + envelope, derive_key_context="gatebook 2026 event v1").digest()
        if hash != stored:
            updates.append(("UPDATE events SET envelope = ?, hash = ? WHERE seq = ?", envelope, hash, number))
        previous = hash
    try:
        tamper(copy, "DELETE FROM snapshots", *updates)
    except apsw.ConstraintError:
        return  # two events of one stream with one version: the index does not hold them
    found = verdict(copy)
    assert not found["ok"]
    assert found["first_wrong"]["seq"] in (4, 5, None), found
    assert field in found["first_wrong"]["field"] or found["first_wrong"]["seq"] == 5, found


@pytest.mark.parametrize("raw", [b'{"a": 1}', b'{"b":1,"a":2}', b'{"a":1,"a":1}', b"[]", b"1", b"{", b'{"a":1.0}', b'{"a":NaN}', b'{"a":"\\u0041"}', b'{"\xee\x80\x80":1,"\xf0\x90\x80\x80":2}', b'{"a":9007199254740993}', b'{"a":' * 65 + b"1" + b"}" * 65, b'{"a":"\xff"}'])  # fmt: skip
def test_data_that_is_not_canonical_is_found_though_every_hash_is_right(copy, raw):
    rewrite(copy, 4, lambda _data: raw)
    found = verdict(copy)
    assert (found["verdict"], found["first_wrong"]["seq"], found["first_wrong"]["field"]) == (
        "content-mismatch",
        4,
        "data",
    )


@pytest.mark.parametrize(
    "name",
    [
        "events_fixed",
        "events_kept",
        "events_in_order",
        "events_stream",
        "events_type",
        "events_key",
        "snapshots",
    ],
)
def test_a_dropped_trigger_index_or_table_is_found_by_name(copy, name):
    connection = apsw.Connection(str(copy / "ledger.db"))
    kind = connection.execute("SELECT type FROM sqlite_schema WHERE name = ?", (name,)).fetchall()[0][0]
    connection.execute(f"DROP {kind} {name}")
    connection.close()
    found = verdict(copy)
    assert found["verdict"] == "schema-tampered", found
    assert name in found["first_wrong"]["field"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE more (a)", "CREATE INDEX more ON events (seq)", "CREATE TRIGGER more AFTER INSERT ON events BEGIN SELECT 1; END", "CREATE VIEW more AS SELECT * FROM events",
        "PRAGMA application_id=5", "DROP TRIGGER events_kept; CREATE TRIGGER events_kept BEFORE DELETE ON events WHEN OLD.seq > 5 BEGIN SELECT RAISE(ABORT, 'x'); END",
    ],
)  # fmt: skip
def test_an_added_or_weakened_rule_is_found(copy, statement):
    connection = apsw.Connection(str(copy / "ledger.db"))
    for one in connection.execute(statement):
        assert one is not None
    connection.close()
    assert verdict(copy)["verdict"] == "schema-tampered"


@pytest.mark.parametrize("number", [2**63 - 1, 900_000_000])
@pytest.mark.parametrize("command", ["verify", "replay"])
def test_a_number_that_no_file_could_hold_is_a_gap_and_costs_nothing(original, copy, number, command):
    """The work must not be shared out by a number that somebody wrote."""
    _, head = original
    tamper(copy, f"UPDATE events SET seq = {number} WHERE seq = {head.seq}")
    found = json.loads(call("--ledger", str(copy), command, "--json").out)
    assert (found["verdict"], found["events"]) == ("gap", head.seq - 1)
    assert found["first_wrong"] == {"seq": head.seq, "field": "seq", "expected": head.seq, "found": number}


def test_numbers_below_one_are_a_gap_at_the_first(copy):
    tamper(copy, "UPDATE events SET seq = -seq")
    found = verdict(copy)
    assert (found["verdict"], found["events"], found["after_checkpoint"]) == ("gap", 0, 0)
    assert found["first_wrong"] == {"seq": 1, "field": "seq", "expected": 1, "found": -1}


@pytest.mark.parametrize("version", [0, -1])
def test_another_format_number_is_found(copy, version):
    tamper(copy, f"PRAGMA user_version = {version}")
    found = verdict(copy)
    assert (found["verdict"], found["first_wrong"]["field"]) == ("schema-tampered", "user_version")


def test_an_index_that_hides_an_event_is_found(copy):
    """Decisions look events up by index: an entry taken out of it hides a decision, with every row as it was."""
    connection = apsw.Connection(str(copy / "ledger.db"))
    (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'events_stream'").fetchall()[0]
    connection.execute("DROP INDEX events_stream")
    connection.execute("CREATE UNIQUE INDEX events_stream ON events (stream, version) WHERE version < 2")
    connection.execute("PRAGMA writable_schema=ON").fetchall()
    connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'events_stream'", (sql,))
    connection.close()
    found = verdict(copy)
    assert not found["ok"]
    assert found["verdict"] in ("schema-tampered", "unreadable")


@pytest.mark.parametrize("column", ["stream", "version", "hash", "fold", "state", "digest"])
def test_every_cell_of_a_snapshot_is_covered(copy, column):
    connection = apsw.Connection(str(copy / "ledger.db"))
    ((value,),) = connection.execute(f"SELECT {column} FROM snapshots").fetchall()
    changed = value + 1 if isinstance(value, int) else value + ("x" if isinstance(value, str) else b"x")
    connection.execute(f"UPDATE snapshots SET {column} = ?", (changed,))
    connection.close()
    found = verdict(copy)
    assert not found["ok"], found
    assert "snapshot" in found["first_wrong"]["field"]


@pytest.mark.parametrize("how", ["changed", "emptied", "removed", "a directory", "longer"])
def test_an_artifact_is_covered_too(copy, how):
    (name,) = os.listdir(copy / "artifacts")
    path = copy / "artifacts" / name
    raw = path.read_bytes()
    if how in ("removed", "a directory"):
        path.unlink()
        if how == "a directory":
            path.mkdir()
    else:
        path.write_bytes({"changed": b"y" + raw[1:], "emptied": b"", "longer": raw + b"z"}[how])
    found = verdict(copy)
    assert (found["verdict"], found["first_wrong"]["seq"]) == ("content-mismatch", 5), found


def test_two_swapped_events_are_found(original, copy):
    rows = cells(original)
    one, two = rows[1], rows[2]
    tamper(
        copy,
        ("UPDATE events SET envelope = CAST('{}' AS BLOB) WHERE seq = 3",),
        ("UPDATE events SET envelope = ?, data = ?, salt = ?, content = ?, hash = ? WHERE seq = 2", *two[1:]),
        ("UPDATE events SET envelope = ?, data = ?, salt = ?, content = ?, hash = ? WHERE seq = 3", *one[1:]),
    )
    found = verdict(copy)
    assert not found["ok"]
    assert found["first_wrong"]["seq"] == 2


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_random_damage_to_the_file_is_found_or_changes_nothing_that_counts(original, copy, jobs):
    """Bytes anywhere in the file: never ok with another head, never an internal error."""
    import random

    _, head = original
    path, chance = copy / "ledger.db", random.Random(int(jobs))
    raw = path.read_bytes()
    for _ in range(40):
        damaged = bytearray(raw)
        for _ in range(chance.choice([1, 1, 4, 64])):
            damaged[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        for side in ("-wal", "-shm"):
            if os.path.exists(f"{path}{side}"):
                os.unlink(f"{path}{side}")
        path.write_bytes(damaged)
        done = call("--ledger", str(copy), "verify", "--json", "--jobs", jobs)
        assert "internal error" not in done.err, done.err
        if done.code == 0:
            assert json.loads(done.out)["head"]["hash"] == head.hash.hex()
        else:
            assert done.code in (1, 2, 3, 75), done.err
            assert done.err.count("\n") <= 1


def test_verify_answers_an_unreadable_file_with_a_verdict(copy):
    """F13"""
    (copy / "ledger.db").write_bytes(b"not a database at all " * 300)
    found = verdict(copy)
    assert (found["ok"], found["verdict"], found["events"]) == (False, "unreadable", 0)
    (copy / "ledger.db").write_bytes(b"")
    assert verdict(copy)["verdict"] == "nothing-to-verify"
    os.unlink(copy / "ledger.db")
    call("--ledger", str(copy), "verify", "--json").refused(2)


def test_the_forger_of_an_unknown_type_is_found_by_replay(original, copy, monkeypatch):
    """F67: verify checks hashes; replay stops at a type that nobody knows, and never skips it."""
    root, _ = original
    monkeypatch.setenv("XDG_STATE_HOME", str(root / "state2"))
    ledger = open_ledger(str(copy))
    ledger.append([Draft("circuit/a|b", "circuit.melted", b"{}")], ORIGIN)
    ledger.close()
    assert verdict(copy)["ok"]
    done = call("--ledger", str(copy), "replay", "--json")
    assert done.code == 3, (done.out, done.err)
    assert "not-lawful" in done.out
    assert msgspec.json.decode(done.out)["first_wrong"]["seq"] == 10


@pytest.mark.parametrize("stand", [True, False])
@pytest.mark.parametrize(
    ("stream", "name"), [("circuit/a|b", "circuit.melted"), ("circuit/a|b", "x.a.b"), ("melted/1", "x.a.b")]
)
def test_the_read_models_stop_at_an_unknown_type_and_never_skip_it(copy, stream, name, stand):
    """F67: from nothing, and on views that stand."""
    place = ("--ledger", str(copy))
    if stand:
        assert call(*place, "rebuild").code == 0
    ledger = open_ledger(str(copy))
    ledger.append([Draft(stream, name, b"{}")], ORIGIN)
    ledger.close()
    call(*place, "query", "SELECT count(*) FROM events").refused(3, "upgrade gatebook")
    call(*place, "rebuild").refused(3, "upgrade gatebook")
