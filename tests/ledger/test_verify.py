"""Verification in chunks and by several processes finds what the look at each event alone finds, and names it the same."""

from __future__ import annotations

import itertools
import shutil
import signal
import sys

import apsw
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import sharing
from ledger.access import create_ledger
from ledger.canonical import encode, quote
from ledger.event import ZERO_HASH, Draft, Head, Origin, chain_hash, seal
from ledger.lines import read_envelope
from ledger.sqlite import SQLiteStore
from ledger.verify import verify
from ledger.walk import CHUNK, Walk, Wrong

ORIGIN = Origin("cli:tester", "test")
NOW = 1_780_000_000_000_005
COUNT = CHUNK * 2 + 7
PLACES = [0, 1, CHUNK // 2, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK, COUNT - 1]
COLUMNS = ("seq", "envelope", "data", "salt", "content", "hash")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A real store, which walks ask about artifacts and about the event after a wrong one."""
    ledger, _ = create_ledger(str(tmp_path_factory.mktemp("verify") / "l"), ORIGIN)
    yield ledger.store
    ledger.close()


def drafts(count=COUNT):
    return [
        Draft(
            f"x-a/{n % 3}", "x.a.b" if n % 5 else "x.a.c", encode({"n": n, "words": ["a", {"b": None}]}),
            correlation="c" if n % 4 == 0 else None, causation=n if n % 7 == 6 else None,
            idempotency_key=f"k{n}" if n % 9 == 0 else None, content=b"words" if n == 20 else None,
        )
        for n in range(count)
    ]  # fmt: skip


def rows_of(events):
    return [(e.seq, e.envelope, e.data, e.salt, e.content, e.hash) for e in events]


ROWS = rows_of(seal(drafts(), Head(), lambda _stream: 0, ORIGIN, NOW))


def replaced(rows, at, column, value):
    """`rows` with one cell changed."""
    row = list(rows[at])
    row[COLUMNS.index(column)] = value
    return [*rows[:at], tuple(row), *rows[at + 1 :]]


def relinked(rows, start=0):
    """`rows` with digests and hashes made anew, as one who can write the file makes them."""
    previous = rows[start - 1][5] if start else ZERO_HASH
    made = rows[:start]
    for seq, envelope, data, salt, content, _ in rows[start:]:
        before, name, rest = envelope.partition(b'"data_digest":"')
        if name and data is not None:
            envelope = before + name + blake3(data).hexdigest().encode() + rest[64:]
        previous = chain_hash(previous, envelope)
        made.append((seq, envelope, data, salt, content, previous))
    return made


def outcome(store, rows, *, chunks=True):
    """What a walk over these rows says: its summary, or what is wrong."""
    walk = Walk(store, 1, ZERO_HASH)
    if not chunks:
        walk._judged = lambda *_columns: None
    try:
        walk.rows(rows)
    except Wrong as wrong:
        return (wrong.verdict, wrong.seq, wrong.field, wrong.expected, wrong.found)
    return walk.summary()


def same(store, rows):
    """The outcome, which is the same in chunks and event by event."""
    found = outcome(store, rows)
    assert found == outcome(store, rows, chunks=False)
    return found


def test_a_whole_chunk_is_judged_at_once(store):
    seen = []
    walk = Walk(store, 1, ZERO_HASH)
    walk._careful = lambda row: seen.append(row)
    walk.rows(ROWS)
    assert (walk.events, seen) == (COUNT, [])
    assert walk.summary() == outcome(store, ROWS, chunks=False)


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("column", ["envelope", "data", "hash"])
def test_every_byte_of_a_cell_counts_at_each_place_of_a_chunk(store, at, column):
    cell = ROWS[at][COLUMNS.index(column)]
    for place in range(0, len(cell), 7):
        changed = bytearray(cell)
        changed[place] ^= 1
        verdict = same(store, replaced(ROWS, at, column, bytes(changed)))
        assert isinstance(verdict, tuple), (place, bytes(changed))
        assert verdict[1] == at + 1


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("column", ["envelope", "data", "hash"])
@pytest.mark.parametrize("value", [b"", b"\n", b"{}", None, 5, 1.5, "text", b"\xff"])
def test_a_cell_of_another_kind_is_wrong_where_it_stands(store, at, column, value):
    verdict = same(store, replaced(ROWS, at, column, value))
    assert isinstance(verdict, tuple)
    assert verdict[1] == at + 1


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("column", ["envelope", "data", "hash"])
def test_text_in_place_of_the_same_bytes_is_wrong(store, at, column):
    cell = ROWS[at][COLUMNS.index(column)]
    assert isinstance(same(store, replaced(ROWS, at, column, cell.decode("latin-1"))), tuple)


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("cut", [1, 31, 33])
def test_hashes_that_are_right_only_when_joined_are_wrong(store, at, cut):
    if at == COUNT - 1:
        at -= 1
    one, two = ROWS[at][5], ROWS[at + 1][5]
    both = one + two
    changed = replaced(replaced(ROWS, at, "hash", both[:cut]), at + 1, "hash", both[cut:])
    assert same(store, changed)[1] == at + 1


@pytest.mark.parametrize("at", [0, CHUNK - 2, CHUNK + 5, COUNT - 2])
@pytest.mark.parametrize("between", ["", "\n"])
@pytest.mark.parametrize("cut", [1, 63, 65])
def test_digests_of_data_that_are_right_only_when_joined_are_wrong_though_every_hash_is_right(
    store, at, between, cut
):
    one, two = (blake3(row[2]).hexdigest() for row in ROWS[at : at + 2])
    both = one + between + two
    changed, previous = ROWS[:at], ROWS[at - 1][5] if at else ZERO_HASH
    for row in ROWS[at:]:
        envelope = row[1]
        for own, forged in ((one, both[:cut]), (two, both[cut:])):
            envelope = envelope.replace(f'"{own}"'.encode(), quote(forged).encode())
        previous = chain_hash(previous, envelope)
        changed.append((row[0], envelope, *row[2:5], previous))
    assert same(store, changed)[:3] == ("content-mismatch", at + 1, "data")


@pytest.mark.parametrize("at", PLACES[1:-1])
def test_a_row_that_is_missing_twice_or_elsewhere_is_a_gap(store, at):
    assert same(store, ROWS[:at] + ROWS[at + 1 :])[:2] == ("gap", at + 1)
    assert same(store, ROWS[: at + 1] + ROWS[at:])[:2] == ("gap", at + 2)
    swapped = [*ROWS[:at], ROWS[at + 1], ROWS[at], *ROWS[at + 2 :]]
    assert same(store, swapped)[:2] == ("gap", at + 1)
    renumbered = replaced(replaced(swapped, at, "seq", at + 1), at + 1, "seq", at + 2)
    assert same(store, renumbered)[1] == at + 1


UNLAWFUL = [
    b'{"a": 1}', b' {"a":1}', b'{"a":1} ', b'{"b":1,"a":2}', b'{"a":1,"a":1}', b'{"a":{"c":1,"b":2}}', b"[]", b"1", b"", b"\n", b"{",
    b'{"a":1}\n{"a":1}', b'{"a":1}\n', b'\n{"a":1}', b'{"a":1.0}', b'{"a":1e5}', b'{"a":1E5}', b'{"a":-0}', b'{"a":01}', b'{"a":NaN}',
    b'{"a":9007199254740993}', b'{"a":-9007199254740993}', b'{"a":123456789012345678901234567890}',
    b'{"a":"\\u0041"}', b'{"a":"\\/"}', b'{"a":"\\u00fc"}', b'{"a":"\\u001F"}', b'{"a":"\n"}', b'{"a":"\xff"}', b'{"a":"\\ud800"}', b'{"a":tru}',
    b'{"\xee\x80\x80":1,"\xf0\x90\x80\x80":2}', b'{"a":' * 65 + b"1" + b"}" * 65,
]  # fmt: skip


@pytest.mark.parametrize("at", [0, CHUNK - 1, CHUNK + 5, COUNT - 1])
@pytest.mark.parametrize("data", UNLAWFUL)
def test_data_that_is_not_canonical_is_wrong_though_every_hash_is_right(store, at, data):
    verdict = same(store, relinked(replaced(ROWS, at, "data", data), at))
    assert verdict[:3] == ("content-mismatch", at + 1, "data")


LAWFUL = [
    b"{}", b'{"a":9007199254740991,"b":-9007199254740991,"c":0}', b'{"a":"\\"\\\\\\b\\t\\n\\f\\r\\u001f"}', b'{"a":true,"b":false,"c":null}',
    b'{"":[],"a":{},"b":[[[[[[1]]]]]]}', b'{"a":1.5,"b":1e-7,"c":1e+21}', '{"a":"ü","ü":1}'.encode(), b'{"a":"\x7f"}', b'{"a":[1,[2,{"b":[]}]]}',
    b'{"\xf0\x90\x80\x80":2,"\xee\x80\x80":1}', b'{"a":100000000000000000000}', b'{"a":"1.0 and 1e5"}',
]  # fmt: skip


@pytest.mark.parametrize("data", LAWFUL)
def test_canonical_data_of_every_kind_stands(store, data):
    for at in (0, CHUNK - 1, COUNT - 1):
        found = same(store, relinked(replaced(ROWS, at, "data", data), at))
        assert isinstance(found, dict), found


ENVELOPES = [
    (b'"seq":', b'"seq":0'), (b'"seq":', b'"seq":-'), (b',"stream"', b'.0,"stream"'), (b'"version":', b'"version":0'), (b'"v":1', b'"v":1.0'),
    (b'"v":1', b'"v":"1"'), (b'"v":1', b'"v":null'), (b'"v":1', b'"v": 1'), (b'"v":1', b'"v":1e0'), (b'"v":1,', b""), (b'"v":1,', b'"v":1,"v":1,'),
    (b'{"actor"', b'{"a":1,"actor"'), (b'{"actor"', b' {"actor"'), (b'"actor"', b'"Actor"'), (b'"via":"test"}', b'"via":"test","w":1}'),
    (b'"via":"test"}', b'"via":"test"}\n'), (b'"via":"test"}', b'"via":"te\\u0073t"}'), (b'"via":"test"}', b'"via":"te\nst"}'), (b'"via":"test"}', b'"via":""}'),
    (b'"cli:tester"', b'"tester"'), (b'"cli:tester"', b'"cli:\xff"'), (b'"cli:tester"', b'"cli:te\\u0007"'),
    (b'"data_digest":"', b'"data_digest":"0'), (b'"recorded_at":"', b'"recorded_at":"+'),
    (b'{"actor":"cli:tester",', b'{"actor":"cli:tester","causation":0,'), (b'{"actor":"cli:tester",', b'{"actor":"cli:tester","causation":4000,'),
    (b'{"actor":"cli:tester",', b'{"actor":"cli:tester","causation":null,'), (b'"x-a/', b'"a'), (b'"x-a/', b'"x-a/\\u0000'), (b'"x.a.', b'"X.a.'),
    (b'"x-a/', b'"x-a/u\xcc\x88'), (b'{"actor":"cli:tester",', b'{"actor":"cli:tester","content_digest":"00",'),
    (b'"seq"', b'"idempotency_key":"late","seq"'),
    (b'"v":1,', b'"v":9007199254740992,'), (b'"v":1,', b'"v":-9007199254740992,'),
]  # fmt: skip


@pytest.mark.parametrize("at", [1, CHUNK - 1, CHUNK, COUNT - 2])
@pytest.mark.parametrize(("old", "new"), ENVELOPES)
def test_an_envelope_that_is_not_format_1_is_wrong_though_every_hash_is_right(store, at, old, new):
    envelope = ROWS[at][1]
    assert old in envelope
    verdict = same(store, relinked(replaced(ROWS, at, "envelope", envelope.replace(old, new, 1)), at))
    assert isinstance(verdict, tuple)
    assert verdict[1] == at + 1


@pytest.mark.parametrize("at", PLACES)
@pytest.mark.parametrize("empty", [(b'"cli:tester"', b'"test"'), (b'"x.a.b"', b'"x.a.c"')])
def test_names_that_are_all_empty_are_wrong(store, at, empty):
    envelope = ROWS[at][1]
    for name in empty:
        envelope = envelope.replace(name, b'""')
    assert same(store, relinked(replaced(ROWS, at, "envelope", envelope), at))[:2] == (
        "content-mismatch",
        at + 1,
    )


TIMES = [
    "2026-02-30T00:00:00.000000", "2026-05-28T24:00:00.000000", "2026-05-28T23:59:60.000000", "2026-05-28T20:26:40.00000", "2026-05-28T20:26:40.0000000",
    "2026-05-28T20:26:40", "2026-05-28 20:26:40.000000", "2026-13-28T20:26:40.000000", "2026-05-28T20:60:40.000000", "2026-05-28t20:26:40.000000",
    "1969-12-31T23:59:59.999999", "2026-05-28T20:26:40,000000", "2026-5-28T20:26:40.000000", "0000-05-28T20:26:40.000000", "2026-05-28T20:26:4a.000000",
]  # fmt: skip


@pytest.mark.parametrize("at", [0, CHUNK - 1, COUNT - 1])
@pytest.mark.parametrize("time", TIMES)
def test_a_time_that_is_none_or_earlier_is_wrong(store, at, time):
    before, _, after = ROWS[at][1].partition(b'"recorded_at":"')
    envelope = before + b'"recorded_at":"' + time.encode() + after[26:]
    verdict = same(store, relinked(replaced(ROWS, at, "envelope", envelope), at))
    assert isinstance(verdict, tuple)
    assert verdict[1] == at + 1


@pytest.mark.parametrize("at", [0, CHUNK - 1, COUNT - 1])
@pytest.mark.parametrize("zone", [b"", b"-00:01", b"-12:00", b"+00:01", b"+00:00", b"z"])
def test_a_time_of_another_zone_or_of_none_is_wrong(store, at, zone):
    """Also one that comes later, by its zone, than the time before it."""
    before, _, after = ROWS[at][1].partition(b'"recorded_at":"')
    envelope = before + b'"recorded_at":"' + after[:26] + zone + after[27:]
    verdict = same(store, relinked(replaced(ROWS, at, "envelope", envelope), at))
    assert isinstance(verdict, tuple)
    assert verdict[1] == at + 1


def test_times_without_a_part_of_a_second_stand(store):
    whole = NOW + 1_000_000
    rows = rows_of(seal(drafts(2), Head(), lambda _stream: 0, ORIGIN, whole - whole % 1_000_000))
    assert b'.000000Z"' in rows[0][1]
    assert isinstance(same(store, rows), dict)


@pytest.mark.parametrize("at", PLACES)
def test_a_version_that_does_not_follow_is_named(store, at):
    version = read_envelope(ROWS[at][1]).version
    for other in (version + 1, version - 1, version + 10):
        envelope = ROWS[at][1].replace(b'"version":%d,' % version, b'"version":%d,' % other)
        verdict = same(store, relinked(replaced(ROWS, at, "envelope", envelope), at))
        if at > 2:
            assert verdict == ("order", at + 1, "version", version, other)
        else:  # the first of its stream is judged at the end, or by the second
            assert isinstance(verdict, dict) or verdict[2] == "version"


@given(st.data())
@settings(max_examples=300)
def test_chunks_and_single_events_agree_on_any_change(store, data):
    """Whatever byte of whatever cell is put in, taken out or changed, with the chain made anew or not."""
    rows = ROWS
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, COUNT - 1))
        column = data.draw(st.sampled_from(["envelope", "data", "hash"]))
        cell = rows[at][COLUMNS.index(column)]
        place = data.draw(st.integers(0, max(len(cell) - 1, 0)))
        put = data.draw(
            st.sampled_from(
                [
                    b"",
                    b"\n",
                    b" ",
                    b"0",
                    b"-",
                    b".",
                    b"e",
                    b'"',
                    b"\\",
                    b",",
                    b"{",
                    b"}",
                    b"\xc3\xbc",
                    b"1",
                    b"z",
                ]
            )
        )
        taken = data.draw(st.integers(0, 2))
        rows = replaced(rows, at, column, cell[:place] + put + cell[place + taken :])
        if column != "hash" and data.draw(st.booleans()):
            rows = relinked(rows, at)
    same(store, rows)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(
    st.lists(st.dictionaries(st.text(max_size=4), json_values, max_size=4), min_size=1, max_size=5),
    st.booleans(),
)
def test_chunks_and_single_events_agree_on_any_data(store, values, plainly):
    """JSON as our writer, or as another one writes it."""
    import json

    rows = ROWS
    for at, value in zip((0, 3, CHUNK - 1, CHUNK, COUNT - 1), values, strict=False):
        written = json.dumps(value, ensure_ascii=plainly, sort_keys=True, separators=(",", ":"))
        rows = replaced(rows, at, "data", written.encode("utf-8", "surrogatepass"))
    same(store, relinked(rows))


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A ledger whose pieces are small, so that several processes share a few events."""
    monkeypatch.setattr(sharing, "WORTH_A_PROCESS", 10)
    monkeypatch.setattr(sharing, "PIECE", 16)
    ledger, _ = create_ledger(str(tmp_path / "l"), ORIGIN)
    ledger.append(drafts(), ORIGIN)
    yield ledger
    ledger.close()


def forge(path, seq, **cells):
    """Write other cells into one row, past the triggers."""
    connection = apsw.Connection(path)
    kept = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in kept:
        connection.execute(f"DROP TRIGGER {name}")
    for column, value in cells.items():
        connection.execute(f"UPDATE events SET {column} = ? WHERE seq = ?", (value, seq))
    for _, sql in kept:
        connection.execute(sql)
    connection.close()


def reports(path, **more):
    store = SQLiteStore(path)
    try:
        return [verify(store, jobs=jobs, **more).as_json() for jobs in (1, 2, 3, 5)]
    finally:
        store.close()


def test_several_processes_say_what_one_says(shared):
    one, *others = reports(shared.path)
    assert one["ok"], one
    assert one["events"] == COUNT + 1
    assert others == [one] * 3
    since = shared.store.reader().event(40)
    one, *others = reports(shared.path, since=(40, since.hash))
    assert one["ok"], one
    assert others == [one] * 3


@pytest.mark.parametrize("seq", [1, 2, 16, 17, 33, 65, 70, 100, COUNT + 1])
@pytest.mark.parametrize("column", ["data", "hash", "envelope"])
def test_several_processes_name_the_first_wrong_event(shared, seq, column):
    event = shared.store.reader().event(seq)
    cell = getattr(event, column)
    changed = cell.replace(b"t", b"T", 1) if column == "envelope" else bytes([cell[0] ^ 1]) + cell[1:]
    forge(shared.path, seq, **{column: changed})
    if seq < COUNT - 5:
        forge(shared.path, COUNT - 2, data=b"{}")
    one, *others = reports(shared.path)
    assert not one["ok"]
    assert one["first_wrong"]["seq"] == seq
    assert others == [one] * 3


def test_several_processes_name_a_version_that_does_not_follow_at_a_border(shared):
    events = [shared.store.reader().event(seq) for seq in range(1, COUNT + 2)]
    for seq in (17, 33, 66):  # the first and second of a piece
        rows = rows_of(events)
        version = events[seq - 1].version
        envelope = events[seq - 1].envelope.replace(
            b'"version":%d,' % version, b'"version":%d,' % (version + 40)
        )
        changed = relinked(replaced(rows, seq - 1, "envelope", envelope), seq - 1)
        for number, raw, _data, _salt, _content, hash in changed[seq - 1 :]:
            forge(shared.path, number, envelope=raw, hash=hash)
        one, *others = reports(shared.path)
        assert one["first_wrong"]["seq"] == seq
        assert one["first_wrong"]["field"] == "version"
        assert others == [one] * 3
        for number, raw, _data, _salt, _content, hash in rows[seq - 1 :]:
            forge(shared.path, number, envelope=raw, hash=hash)


def test_a_tail_that_is_gone_is_found_by_several_processes_too(shared):
    connection = apsw.Connection(shared.path)
    connection.execute("DROP TRIGGER events_kept")
    connection.execute("DELETE FROM events WHERE seq BETWEEN 60 AND 80")
    connection.close()
    one, *others = reports(shared.path)
    assert (one["verdict"], one["first_wrong"]["seq"]) == ("gap", 60)
    assert others == [one] * 3


def test_a_process_that_dies_is_not_missed(shared, monkeypatch, capfd):
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    one, *others = reports(shared.path)
    assert one["ok"]
    assert others == [one] * 3
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("how", ["interrupted", "left alone"])
def test_another_process_that_is_interrupted_or_left_alone_ends_without_a_word(shared, capfd, how):
    process = sharing._start(shared.path, 1, COUNT + 2, 1)
    process.stdout.readline()
    if how == "interrupted":
        process.send_signal(signal.SIGINT)
    process.stdout.close()
    process.wait(30)
    assert capfd.readouterr().err == ""


def test_progress_comes_to_the_end(shared):
    for jobs in (1, 2, 3):
        seen = []
        assert verify(
            shared.store, jobs=jobs, progress=lambda done, of, seen=seen: seen.append((done, of))
        ).ok
        assert seen[-1] == (COUNT + 1, COUNT + 1)
        assert all(one <= two for one, two in itertools.pairwise(seen))


def test_what_another_process_walked_is_taken_over_whole(shared):
    other = sharing.Other(shared.path, 1, COUNT + 2)
    try:
        other._thread.join(60)
        walk = Walk(shared.store, 1, ZERO_HASH)
        assert list(other.meet(walk)) == []
    finally:
        other.stop()
    alone = Walk(shared.store, 1, ZERO_HASH)
    alone.rows(rows_of(shared.store.reader().event(seq) for seq in range(1, COUNT + 2)))
    assert walk.events == COUNT + 1
    assert walk.summary() == alone.summary()


def test_another_process_stops_at_what_is_wrong_and_says_nothing(shared, capfd):
    forge(shared.path, 70, data=b"{}")
    other = sharing.Other(shared.path, 1, COUNT + 2)
    try:
        other._thread.join(60)
        assert [b"wrong" in line for line in other._found] == [False] * 4 + [True]
    finally:
        other.stop()
    assert capfd.readouterr().err == ""
