"""`append`: what it takes, what it prints, what it refuses and that a refusal records nothing."""

from __future__ import annotations

import json
import os

import pytest
from program import call

from ledger.access import open_ledger
from ledger.canonical import canonical

NOTE = ("append", "--stream", "x-n/1", "--type", "x.n.added")


@pytest.fixture
def here(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEBOOK_ACTOR", "cli:tester")
    assert call("init").json()["created"] is True
    return tmp_path


def events(here):
    ledger = open_ledger(str(here))
    found = list(ledger.store.read(2))
    ledger.close()
    return found


def refusals(here):
    return [json.loads(event.data) for event in events(here) if event.type == "admission.refused"]


def test_one_event_is_printed_as_the_contract_says(here):
    reply = call(*NOTE, "--data", '{ "b": 1, "a": "ü" }', "--correlation", "c", "--causation", "1").json()
    (event,) = events(here)
    assert list(reply) == ["seq", "stream", "version", "type", "recorded_at", "hash", "replayed"]
    assert reply == {
        "seq": 2, "stream": "x-n/1", "version": 1, "type": "x.n.added", "recorded_at": event.recorded_at,
        "hash": event.hash.hex(), "replayed": False,
    }  # fmt: skip
    assert event.data == '{"a":"ü","b":1}'.encode()
    assert (event.actor, event.via, event.correlation, event.causation) == ("cli:tester", "append", "c", 1)


@pytest.mark.parametrize("raw", [b'{"a":1}', b'\n{"a"\t:1}\r\n'])
def test_data_may_come_from_a_file_or_from_stdin(here, raw):
    (here / "d").write_bytes(raw)
    call(*NOTE, "--data", "@d").json()
    call(*NOTE, "--data", "-", stdin=raw).json()
    call(*NOTE, f"--data={raw.decode()}").json()
    assert [event.data for event in events(here)] == [b'{"a":1}'] * 3


def test_without_data_it_is_the_empty_object(here):
    call(*NOTE).json()
    assert events(here)[0].data == b"{}"


def test_content_is_kept_byte_for_byte(here):
    (here / "c").write_bytes(b"\x00\xff\r\n")
    call(*NOTE, "--content", "words and ü").json()
    call(*NOTE, "--content", "@c").json()
    call(*NOTE, "--content", "").json()
    call(*NOTE, "--content", os.fsdecode(b"not \xff utf-8")).json()
    assert [event.content for event in events(here)] == [
        "words and ü".encode(),
        b"\x00\xff\r\n",
        b"",
        b"not \xff utf-8",
    ]


def test_numbers_of_custom_events_are_written_as_jcs_says(here):
    call(*NOTE, "--data", '{"a":[1e16,1.0,-0.0,1e-7,0.1]}').json()
    assert events(here)[0].data == b'{"a":[10000000000000000,1,0,1e-7,0.1]}'


@pytest.mark.parametrize(
    "data",
    [
        "", "{", "[]", "1", "null", '{"a":1}{"b":2}', '{"a":1,"a":2}', '{"a":NaN}', '{"a":Infinity}', '{"a":\'x\'}',
        '{"a":"\\ud800"}', '{"a":9007199254740992}', '{"a":' + "1" * 4301 + "}", '{"a":' * 65 + "1" + "}" * 65, "[" * 60_000,
        '{"a":"' + "z" * 65_530 + '"}', os.fsdecode(b'{"a":"\xff"}'), "\ufeff{}", "@/nowhere/at/all", "@", "@.",
    ],
)  # fmt: skip
def test_bad_data_is_one_line_exit_1_and_nothing_written(here, data):
    """F31, F32, F40"""
    call(*NOTE, "--data", data).refused(1, "data")
    assert events(here) == []


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ('{"a":[1,{"b":"\\ud800"}]}', "a lone surrogate is not text, at $.a[1].b"), ('{"a":[{"\\udc00":1}]}', "at a key of $.a[0]"),
        ('{"x":1,"a":' + "[" * 64 + "]" * 64 + "}", "nested deeper than 64, in $.a"), ("@", "the file's name is missing"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_place(here, data, place):
    call(*NOTE, "--data", data).refused(1, place)


def test_a_name_that_is_too_long_is_told_so(here):
    call("append", "--stream", "x-n/1", "--type", f"x.{'a' * 127}").refused(1, "129 characters; 128 at most")
    call("append", "--stream", f"{'x' * 65}/1", "--type", "x.a").refused(1, "65 characters; 1 to 64")
    call("append", "--stream", f"{'x' * 64}/1", "--type", f"x.{'a' * 126}").json()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--stream", "x-n", "--type", "x.n.a"], 1), (["--stream", "x-n/1", "--type", "x.N"], 1), (["--stream", "x-n/1", "--type", "note.added"], 1),
        (["--stream", "run/1", "--type", "x.n.a"], 1), (["--stream", "ledger", "--type", "x.n.a"], 1), (["--stream", "x-n/a\nb", "--type", "x.n.a"], 1),
        (["--stream", os.fsdecode(b"x-n/\xff"), "--type", "x.n.a"], 1), (["--stream", "x-n/" + "i" * 201, "--type", "x.n.a"], 1),
        (["--stream", "x-n/1"], 2), (["--type", "x.n.a"], 2), ([], 2), (["--stream", "x-n/1", "--type", "x.n.a", "word"], 2),
        (["--stream", "x-n/1", "--stream", "x-n/1", "--type", "x.n.a"], 2), (["--stream"], 2), (["--stram", "x"], 2),
        (["--stream", "x-n/1", "--type", "x.n.a", "--clock-jump=yes"], 2), (["--stream", "x-n/1", "--type", "x.n.a", "--correlation", ""], 1),
        (["--stream", "x-n/1", "--type", "x.n.a", "--idempotency-key", "k" * 201], 1), (["--stream", "x-n/1", "--type", "x.n.a", "--content", "@/nowhere"], 1),
        (["--stream", "x-n/1", "--type", "x.n.a", "--causation", "0"], 1), (["--stream", "x-n/1", "--type", "x.n.a", "--causation", "2"], 1),
        (["--stream", "x-n/1", "--type", "x.n.a", "--expect-version", "1"], 5),
    ],
)  # fmt: skip
def test_a_bad_call_is_one_line_its_exit_code_and_nothing_written(here, words, code):
    call("append", *words).refused(code)
    assert events(here) == []


@pytest.mark.parametrize("flag", ["--expect-version", "--causation"])
@pytest.mark.parametrize(
    "number",
    [
        "-1",
        "+1",
        "1.0",
        "1e3",
        "",
        " 1",
        "0x1",
        "one",
        "9007199254740992",
        "9223372036854775808",
        "18446744073709551616",
        "1" * 4301,
        "\u0661",
    ],
)
def test_numeric_options_take_whole_numbers_up_to_two_to_the_53_minus_1(here, flag, number):
    """F32"""
    done = call(*NOTE, flag, number).refused(2, flag)
    assert len(done.err) < 200
    largest = call(*NOTE, flag, "9007199254740991")
    assert largest.code in (1, 5)
    assert events(here) == []


def test_the_expected_version_is_the_streams(here):
    call(*NOTE, "--expect-version", "0").json()
    call(*NOTE, "--expect-version", "0").refused(5, "at version 1, not 0")
    assert call(*NOTE, "--expect-version", "1").json()["version"] == 2


def test_a_key_makes_a_call_repeatable(here):
    first = call(*NOTE, "--data", '{"a":1.0}', "--idempotency-key", "k", "--expect-version", "0").json()
    again = call(*NOTE, "--data", '{"a":1}', "--idempotency-key", "k", "--expect-version", "0").json()
    assert again == {**first, "replayed": True}
    call(*NOTE, "--data", '{"a":2}', "--idempotency-key", "k").refused(5, "'k'")
    assert len(events(here)) == 1


def test_a_decided_type_is_refused_naming_its_command_and_the_refusal_is_recorded(here):
    done = call(
        "append",
        "--stream",
        "circuit/a|b",
        "--type",
        "circuit.opened",
        "--data",
        '{"provider":"secret words"}',
        "--correlation",
        "c",
    )
    done.refused(4, "gatebook route record-failure")
    (event,) = events(here)
    assert event.stream == f"refusal/{event.recorded_at[:10]}"
    assert json.loads(event.data) == {
        "digest": __import__("blake3").blake3(b'{"provider":"secret words"}').hexdigest(),
        "reason": "decided-type", "stream": "circuit/a|b", "type": "circuit.opened",
    }  # fmt: skip
    assert b"secret" not in event.envelope + event.data


def test_every_decided_type_is_refused_and_names_a_writer(here):
    from projections.registry import TYPES

    for name, (kind, writer) in TYPES.items():
        stream = "ledger" if kind == "ledger" else f"{kind}/1"
        call("append", "--stream", stream, "--type", name).refused(4, name, writer.strip("()"))
    assert len(TYPES) > 60
    assert len(refusals(here)) == len(TYPES)
    call("append", "--stream", "x-n/1", "--type", "plan.approved").refused(4)
    call("append", "--stream", "run/1", "--type", "plan.approvedd").refused(1, "unknown type")


def test_refusals_are_recorded_at_most_100_a_minute_and_then_counted(here):
    """F86, F97"""
    from commands.context import Context
    from projections.refusals import record_refusal, suppressed

    ledger, context = open_ledger(str(here)), Context("append")
    before = ledger.store._now
    clock = [before()]
    ledger.store._now = lambda: clock[0]

    def refuse(count):
        recorded = 0
        for _ in range(count):
            clock[0] += 1000
            done = record_refusal(
                ledger, context.origin(), type="plan.approved", stream="run/1", reason="r", refused=b"{}"
            )
            recorded += done is not None
        return recorded

    assert refuse(103) == 100
    assert suppressed(ledger) == 3
    clock[0] += 59_800_000  # the first hundred's first is still within a minute
    assert refuse(1) == 0
    clock[0] += 200_000
    assert refuse(1) == 1
    assert suppressed(ledger) == 0
    last = json.loads(events(here)[-1].data)
    assert last["suppressed"] == 4
    assert "suppressed" not in json.loads(events(here)[-2].data)
    ledger.close()


def test_the_limit_of_refusals_holds_over_midnight_and_over_a_clock_that_runs_back(here):
    from ledger.clock import DAY, format_us
    from ledger.event import Origin
    from projections.refusals import record_refusal

    ledger = open_ledger(str(here))
    clock = [(ledger.store._now() // DAY + 2) * DAY - 30_000_000]
    ledger.store._now = lambda: clock[0]

    def refuse(count):
        done = [
            record_refusal(
                ledger, Origin("cli:t", "t"), type="plan.approved", stream="run/1", reason="r", refused=b"{}"
            )
            for _ in range(count)
        ]
        return sum(event is not None for event in done)

    assert refuse(60) == 60
    clock[0] += 40_000_000
    today = format_us(clock[0])[:10]
    assert refuse(60) == 40
    assert {event.stream[8:] for event in events(here)} == {format_us(clock[0] - DAY)[:10], today}
    clock[0] -= 20_000_000
    assert refuse(5) == 0
    clock[0] -= 3600_000_000
    assert refuse(2) == 2
    ledger.close()


def test_a_refusal_that_cannot_be_recorded_is_counted_and_still_a_refusal(here):
    """F97"""
    from projections.refusals import suppressed

    ledger = open_ledger(str(here))
    ledger._memory.write(99, bytes(32))  # this machine saw more: the ledger takes no writes
    call("append", "--stream", "run/1", "--type", "plan.approved").refused(4, "plan approve")
    assert suppressed(ledger) == 1
    assert events(here) == []
    ledger.close()


@pytest.mark.parametrize("field", ["--data", "--content"])
def test_a_credential_is_refused_naming_the_field_and_not_the_value(here, field):
    """F94"""
    secret = "ghp_" + "Ab1" * 12
    value = json.dumps({"note": f"use {secret}"}) if field == "--data" else f"use {secret}"
    done = call(*NOTE, field, value).refused(4, field.strip("-"))
    assert secret not in done.err
    for name in os.listdir(here / ".gatebook"):
        assert secret.encode() not in (here / ".gatebook" / name).read_bytes()


# -- batches


def lines(*batch):
    return b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in batch)


ONE = {"stream": "x-n/1", "type": "x.n.added"}


def test_a_batch_is_recorded_whole_and_printed_in_order(here):
    raw = lines(
        {**ONE, "data": {"b": 1, "a": 2}, "content": "ü"},
        {**ONE, "causation": 2, "correlation": "c"},
        {**ONE, "stream": "x-m/1", "expect_version": 0, "idempotency_key": "k"},
    )
    reply = call("append", "--batch", "-", stdin=b"\n" + raw.replace(b"\n", b"\r\n") + b"  \n").json()
    assert [(one["seq"], one["stream"], one["version"], one["replayed"]) for one in reply["events"]] == [
        (2, "x-n/1", 1, False), (3, "x-n/1", 2, False), (4, "x-m/1", 1, False),
    ]  # fmt: skip
    assert reply["replayed"] is False
    assert list(reply) == ["events", "replayed"]
    first, second, _ = events(here)
    assert (first.data, first.content, second.causation) == (b'{"a":2,"b":1}', "ü".encode(), 2)


def test_a_batch_with_keys_replays_whole(here):
    raw = lines({**ONE, "idempotency_key": "a"}, {**ONE, "idempotency_key": "b"})
    (here / "b").write_bytes(raw)
    first = call("append", "--batch", "b").json()
    again = call("append", "--batch", "b").json()
    assert again["replayed"] is True
    assert [one["hash"] for one in again["events"]] == [one["hash"] for one in first["events"]]
    call("append", "--batch", "-", stdin=raw + lines(ONE)).refused(5)
    call("append", "--batch", "-", stdin=raw + lines({**ONE, "idempotency_key": "c"})).refused(5)
    assert len(events(here)) == 2


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"{", 1), (b"[]", 1), (b"null", 1), (b'{"stream":"x-n/1"}', 1), (b'{"type":"x.n.added"}', 1), (b'{"stream":1,"type":"x.n.added"}', 1),
        (lines({**ONE, "extra": 1}), 1), (lines({**ONE, "data": []}), 1), (lines({**ONE, "data": None}), 1), (lines({**ONE, "data": "{}"}), 1),
        (lines({**ONE, "content": 5}), 1), (lines({**ONE, "content": None}), 1), (lines({**ONE, "expect_version": True}), 1), (lines({**ONE, "expect_version": -1}), 1),
        (lines({**ONE, "expect_version": 1.5}), 1), (lines({**ONE, "expect_version": "0"}), 1), (lines({**ONE, "expect_version": 2**53}), 1),
        (lines({**ONE, "causation": None}), 1), (lines({**ONE, "idempotency_key": 1}), 1), (lines({**ONE, "correlation": ["c"]}), 1),
        (b'{"stream":"x-n/1","type":"x.n.added","type":"x.n.added"}', 1), (b'{"stream":"x-n/1","type":"x.n.added","data":{"a":NaN}}', 1),
        (b'{"stream":"x-n/1","type":"x.n.added","content":"\\ud800"}', 1), (b'{"stream":"x-n/1","type":"x.n.added","data":{"a":{"b":1,"b":1}}}', 1),
        (b'{"stream":"x-n/1","type":"x.n.added","data":{"a":"\xff"}}', 1), (lines({**ONE, "data": {"a": "z" * 70_000}}), 1), (lines({**ONE, "stream": "run/1"}), 1),
        (lines({**ONE, "type": "circuit.opened"}), 4), (lines({**ONE, "content": "ghp_" + "Ab1" * 12}), 4),
    ],
)  # fmt: skip
def test_a_bad_line_names_its_number_and_nothing_is_written(here, bad, code):
    """F26"""
    raw = lines(ONE, ONE) + b"\n" + bad.rstrip(b"\n") + b"\n" + lines(ONE)
    done = call("append", "--batch", "-", stdin=raw).refused(code, "line 4")
    assert len(done.err) < 400
    assert [event for event in events(here) if event.type != "admission.refused"] == []


def test_a_line_at_the_depth_limit_of_its_data_is_taken(here):
    """64 levels of data in a line that wraps them, as `--data` takes 64."""
    deep = '{"a":' * 63 + "{}" + "}" * 63
    call(*NOTE, "--data", deep).json()
    raw = ('{"stream":"x-n/1","type":"x.n.added","data":' + deep + "}\n").encode()
    call("append", "--batch", "-", stdin=raw).json()
    assert [event.data.decode() for event in events(here)] == [deep, deep]
    raw = raw.replace(b'"data":{"a":', b'"data":{"a":{"a":', 1).replace(b"}\n", b"}}\n")
    call("append", "--batch", "-", stdin=raw).refused(1, "nested deeper")


def test_a_conflict_or_a_bad_cause_in_a_batch_records_nothing(here):
    """F71"""
    call("append", "--batch", "-", stdin=lines(ONE, {**ONE, "expect_version": 0})).refused(5)
    call("append", "--batch", "-", stdin=lines(ONE, {**ONE, "causation": 9})).refused(1)
    call(*NOTE).json()
    assert [event.seq for event in events(here)] == [2]


@pytest.mark.parametrize("raw", [b"", b"\n\n", b"  \r\n"])
def test_an_empty_batch_is_refused(here, raw):
    call("append", "--batch", "-", stdin=raw).refused(1, "no event")


def test_a_batch_goes_with_no_other_field(here):
    for flag, value in (
        ("--stream", "x-n/1"),
        ("--type", "x.n.a"),
        ("--data", "{}"),
        ("--content", ""),
        ("--expect-version", "0"),
        ("--idempotency-key", "k"),
        ("--correlation", "c"),
        ("--causation", "1"),
    ):
        call("append", "--batch", "-", flag, value, stdin=lines(ONE)).refused(2, flag)
    call("append", "--batch", "/nowhere").refused(1, "/nowhere")
    assert events(here) == []


def test_what_append_stored_is_canonical_when_read_back(here):
    call(*NOTE, "--data", '{"\ue000":1,"\U00010000":{"z":[1.50,"\\u0041\\/"],"a":null}}').json()
    (event,) = events(here)
    assert (
        event.data == canonical(event.data) == '{"\U00010000":{"a":null,"z":[1.5,"A/"]},"\ue000":1}'.encode()
    )
