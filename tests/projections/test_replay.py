"""Replay by two processes says what verification and then admission, event by event, would say."""

from __future__ import annotations

import shutil
import sys

import apsw
import pytest

from ledger import sharing
from ledger import verify as verification
from ledger.access import create_ledger
from ledger.canonical import encode
from ledger.clock import format_us
from ledger.event import Draft, Origin, chain_hash
from ledger.walk import CHUNK
from projections import replay as replaying
from projections.cooldowns import opening
from projections.replay import Replay, replay
from projections.times import parse_time, print_time, whole_seconds

ORIGIN = Origin("cli:tester", "test")
COUNT = 8 * CHUNK + 5
PLACES = [2, 3, CHUNK + 1, 2 * CHUNK, 4 * CHUNK + 1, 4 * CHUNK + 2, 6 * CHUNK, COUNT]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Pieces so small that two processes share a few hundred events."""
    monkeypatch.setattr(sharing, "WORTH_A_PROCESS", 10)
    monkeypatch.setattr(replaying, "FIRST_LOOK", 16)
    monkeypatch.setattr(sharing, "PIECE", 32)


def opened(number, at, *, count=None, executor="native", given=True):
    """A lawful failure of an endpoint that had failed `number` times; unlawful with another count."""
    moment = parse_time(at)
    right, until = opening(number, "rate_limit", moment)
    data = {
        "provider": "p", "executor": executor, "reason": "rate_limit", "at": at, "failure_count": count or right,
        "unavailable_until": print_time(until), **({"at_given": True} if given else {}),
    }  # fmt: skip
    return Draft(f"circuit/p|{executor}", "circuit.opened", encode(data))


def drafts(decided, wrong=()):
    """Events 2 to COUNT: those at `decided` fail an endpoint, unlawfully at `wrong`, and the others are open ones."""
    at, number, found = print_time(whole_seconds(1_700_000_000_000_000)), 0, []
    for seq in range(2, COUNT + 1):
        if seq in wrong:
            found.append(opened(number, at, count=9_999))
        elif seq in decided:
            found.append(opened(number, at))
            number += 1
        else:
            found.append(Draft(f"x-a/{seq % 3}", "x.a.b", encode({"n": seq})))
    return found


@pytest.fixture
def ledger_of(tmp_path):
    """Makes a ledger of drafts that no admission has seen; `now` is its clock."""
    made = []

    def make(events, **clock):
        ledger, _ = create_ledger(str(tmp_path / "l"), ORIGIN, **clock)
        made.append(ledger)
        ledger.append(events, ORIGIN)
        return ledger

    yield make
    for ledger in made:
        ledger.close()


def forge(path, statement, *values):
    """Change the file past its triggers."""
    connection = apsw.Connection(path)
    kept = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in kept:
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(statement, values)
    for _, sql in kept:
        connection.execute(sql)
    connection.close()


MIXES = {
    "all open": (),
    "all decided": range(2, COUNT + 1),
    "one in the middle": (COUNT // 2,),
    "first open": range(5 * CHUNK, COUNT + 1),
    "first decided": range(2, 3 * CHUNK),
    "every tenth": range(2, COUNT + 1, 10),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("alone", [False, True])
def test_every_event_is_taken_once_whoever_verified_it(ledger_of, monkeypatch, mix, alone):
    """`alone`: the other process dies at once."""
    decided = MIXES[mix]
    ledger = ledger_of(drafts(decided))
    if alone:
        monkeypatch.setattr(sys, "executable", shutil.which("false"))
    seen = []
    report, running = replay(ledger.store, progress=lambda done, of: seen.append((done, of)))
    assert report.ok, report.as_json()
    assert report.events == COUNT
    assert (running.admitted, running.open_events) == (len(decided) + 1, COUNT - 1 - len(decided))
    assert seen[-1] == (COUNT, COUNT)
    assert seen == sorted(seen)
    by_itself = Replay(ledger.store)
    by_itself.run(COUNT)
    assert (by_itself.wrong, by_itself.states) == (None, running.states)


@pytest.mark.parametrize("mix", ["all open", "all decided", "every tenth"])
@pytest.mark.parametrize("seq", PLACES)
def test_the_first_unlawful_event_is_named_in_whatever_piece_it_stands(ledger_of, mix, seq):
    ledger = ledger_of(drafts(MIXES[mix], wrong=(seq, COUNT)))
    report, running = replay(ledger.store)
    assert report.verdict == "not-lawful"
    assert report.first_wrong["seq"] == seq
    assert report.events == COUNT, "the others were verified all the same"
    assert running.admitted == len([n for n in MIXES[mix] if n < seq]) + 1


@pytest.mark.parametrize("mix", ["all open", "all decided", "every tenth"])
@pytest.mark.parametrize("seq", PLACES)
def test_a_changed_event_is_named_though_a_later_one_is_unlawful(ledger_of, mix, seq):
    ledger = ledger_of(drafts(MIXES[mix], wrong=(COUNT - 1,)))
    forge(ledger.path, "UPDATE events SET data = ? WHERE seq = ?", b'{"n":0}', seq)
    report, _ = replay(ledger.store)
    expected = ("not-lawful", COUNT - 1) if seq == COUNT else ("content-mismatch", seq)
    assert (report.verdict, report.first_wrong["seq"]) == expected


@pytest.mark.parametrize("mix", ["all open", "all decided", "every tenth"])
@pytest.mark.parametrize("between", [1, CHUNK, 3 * CHUNK])
@pytest.mark.parametrize("seq", PLACES[:-2])
def test_an_unlawful_event_is_named_though_a_later_one_was_changed(ledger_of, mix, seq, between):
    ledger = ledger_of(drafts(MIXES[mix], wrong=(seq,)))
    forge(ledger.path, "UPDATE events SET data = ? WHERE seq = ?", b'{"n":0}', min(seq + between, COUNT))
    report, _ = replay(ledger.store)
    assert (report.verdict, report.first_wrong["seq"]) == ("not-lawful", seq)


@pytest.mark.parametrize("processes", [1, 2])
def test_one_process_and_two_name_the_same_event(ledger_of, monkeypatch, processes):
    monkeypatch.setattr(sharing, "WORTH_A_PROCESS", 10 if processes == 2 else COUNT)
    ledger = ledger_of(drafts(MIXES["all decided"], wrong=(CHUNK,)))
    forge(ledger.path, "UPDATE events SET data = ? WHERE seq = ?", b'{"n":0}', 2 * CHUNK)
    report, running = replay(ledger.store)
    assert (report.verdict, report.first_wrong["seq"]) == ("not-lawful", CHUNK)
    assert running.admitted == CHUNK - 1


def test_an_unlawful_event_is_named_though_one_just_after_it_has_another_version(ledger_of):
    """Every cell of the later one is right by itself, so that both are looked at in one chunk."""
    seq = 5
    ledger = ledger_of(drafts((), wrong=(seq,)))
    rows = [ledger.store.reader().event(number) for number in range(1, COUNT + 1)]
    previous = rows[seq].hash
    for row in rows[seq + 1 :]:
        envelope = row.envelope
        if row.seq == seq + 2:
            envelope = envelope.replace(
                b'"version":%d,' % row.version, b'"version":%d,' % (row.version + 900)
            )
        previous = chain_hash(previous, envelope)
        forge(
            ledger.path, "UPDATE events SET envelope = ?, hash = ? WHERE seq = ?", envelope, previous, row.seq
        )
    report, running = replay(ledger.store)
    assert (report.verdict, report.first_wrong["seq"]) == ("not-lawful", seq)
    assert running.open_events == seq - 2


@pytest.mark.parametrize("claimed", [3, COUNT])
def test_an_envelope_that_names_another_event_blames_none_but_its_own(ledger_of, claimed):
    """Admission runs ahead of verification where most events are decided, and takes what nobody has verified."""
    seq = 6 * CHUNK
    ledger = ledger_of(drafts(MIXES["all decided"], wrong=(seq,)))
    envelope = ledger.store.reader().event(seq).envelope
    lying = envelope.replace(b'"seq":%d,' % seq, b'"seq":%d,' % claimed)
    assert lying != envelope
    forge(ledger.path, "UPDATE events SET envelope = ? WHERE seq = ?", lying, seq)
    report, _ = replay(ledger.store)
    assert (report.verdict, report.first_wrong["seq"]) == ("content-mismatch", seq)


@pytest.mark.parametrize("worth", [10, 10 * COUNT], ids=["two processes", "one"])
def test_an_event_that_comes_while_replay_begins_is_admitted_if_it_is_verified(ledger_of, monkeypatch, worth):
    """Never does a report reach further than what was judged."""
    monkeypatch.setattr(sharing, "WORTH_A_PROCESS", worth)
    ledger = ledger_of(drafts(()))

    def late(*given, **named):
        ledger.append([opened(0, print_time(whole_seconds(1_700_000_000_000_000)), count=9_999)], ORIGIN)
        return verification.verify(*given, **named)

    monkeypatch.setattr(replaying, "verify", late)
    report, _ = replay(ledger.store)
    assert (report.verdict, report.first_wrong["seq"], report.head_seq) == (
        "not-lawful",
        COUNT + 1,
        COUNT + 1,
    )


@pytest.mark.parametrize("seq", PLACES[:-1])
@pytest.mark.parametrize("mix", ["all open", "all decided"])
def test_a_missing_event_is_a_gap_there(ledger_of, mix, seq):
    ledger = ledger_of(drafts(MIXES[mix]))
    forge(ledger.path, "DELETE FROM events WHERE seq = ?", seq)
    report, _ = replay(ledger.store)
    assert (report.verdict, report.first_wrong["seq"]) == ("gap", seq)


def test_an_index_that_lies_is_found_after_the_events(ledger_of):
    ledger = ledger_of(drafts(()))
    connection = apsw.Connection(ledger.path)
    connection.execute("DROP INDEX events_type")
    connection.close()
    report, _ = replay(ledger.store)
    assert not report.ok
    assert report.verdict in ("schema-tampered", "unreadable")


def test_only_the_events_asked_for_are_taken(ledger_of):
    ledger = ledger_of(drafts(MIXES["all decided"], wrong=(COUNT - 2,)))
    report, running = replay(ledger.store, upto=COUNT - 3)
    assert report.ok, report.as_json()
    assert (report.events, running.admitted) == (COUNT - 3, COUNT - 3)


def test_pieces_of_open_events_that_another_process_verified_are_not_read_again(ledger_of, monkeypatch):
    """And a piece with a decided event among them is."""
    middle = COUNT - 40
    ledger = ledger_of(drafts((middle,)))
    other = sharing.Other(ledger.path, 1, COUNT + 1)
    try:
        other._thread.join(60)
        running, read = Replay(ledger.store), []
        whole = Replay._read
        monkeypatch.setattr(
            Replay, "_read", lambda self, connection, end: (read.append(end), whole(self, connection, end))
        )
        running.run(COUNT, other=other)
    finally:
        other.stop()
    assert read == [end for end in other.ends if end - 32 <= 1 or end - 32 <= middle < end]
    assert (running.admitted, running.open_events) == (2, COUNT - 2)


def test_times_are_judged_by_the_clock_as_read_whatever_second_it_was_in(ledger_of):
    """At the ends of a second, a day later, and behind: what is 5 s away is not marked as given, what is more is."""
    start, second, day = 1_700_000_000_000_000, 1_000_000, 86_400_000_000
    readings = [start + more for more in (1, second - 1, second, second + 1, day - 1, day, 0, day + second)]
    now = [start]
    ledger = ledger_of((), now=lambda: now[0])
    for number, reading in enumerate(readings):
        now[0] = reading
        for more in (0, 1):
            at = format_us(reading + 5 * second + more)
            failure = opened(0, at, executor=f"e{number}-{more}", given=bool(more))
            ledger.append([failure], ORIGIN, clock_jump=True)
    report, running = replay(ledger.store)
    assert report.verdict == "ok", report.as_json()
    assert running.admitted == 2 * len(readings) + 1


@pytest.mark.parametrize(
    ("type", "data", "field"),
    [
        ("ledger.restored", {"after": 3, "after_hash": "2" * 64}, "hash of the event before"),
        ("ledger.redacted", {"events": [2, 3]}, "event 3"),
    ],
)
def test_an_event_that_tells_of_others_what_is_not_so_is_not_lawful(tmp_path, type, data, field):
    ledger, _ = create_ledger(str(tmp_path / "l"), ORIGIN)
    before = [Draft("x-a/1", "x.a.b", b"{}", content=b"words"), Draft("x-a/1", "x.a.b", b"{}")]
    ledger.transact(lambda _reader: [*before, Draft("ledger", type, encode(data), content=b"why")], ORIGIN)
    report, _ = replay(ledger.store)
    assert (report.verdict, report.first_wrong["seq"], report.first_wrong["field"]) == (
        "not-lawful",
        4,
        field,
    )


def test_a_receipt_that_the_ledgers_key_did_not_sign_is_not_lawful(tmp_path):
    from projections.engine import Proposal, submit
    from projections.receipt import Issued, Reference

    def decide(world):
        begins, ends = print_time(world.clock), print_time(world.clock + 3_600_000_000)
        words = Reference("words", "b" * 32, "c" * 64)
        issued = Issued(
            "a" * 32,
            1,
            begins,
            ends,
            "https://c.edu",
            "1",
            "quiz",
            "7",
            ("quiz.start",),
            "s",
            "u",
            words,
            "d" * 32,
            "e" * 128,
        )
        return [Proposal(f"receipt/{'a' * 32}", "receipt.issued", issued)]

    ledger, _ = create_ledger(str(tmp_path / "l"), ORIGIN)
    submit(ledger, ORIGIN, decide)
    report, _ = replay(ledger.store)
    assert (report.verdict, report.first_wrong["seq"], report.first_wrong["field"]) == (
        "not-lawful",
        2,
        "signature",
    )
