"""Names, actors, times and limits of an event."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_contract import ORIGIN

from ledger import clock
from ledger.canonical import canonical
from ledger.errors import Invalid, Refused
from ledger.event import Draft, Head, Origin, check_names, head_of, seal


@pytest.mark.parametrize(
    "stream",
    [
        "ledger",
        "x-a/1",
        "x/1",
        "circuit/openai|codex",
        "run/a/b-2026-11-30",
        "x-a0-b/" + "i" * 200,
        "x-a/" + "\u00fc" * 100,
        "x-a/ ",
        "x-a/.",
        "x-a/../..",
        "x-a/\u4e16\u754c \U0001f600",
    ],
)
def test_lawful_stream_names(stream):
    check_names(stream, "x.a.b")


@pytest.mark.parametrize(
    "stream",
    [
        "", "x-a", "/1", "x-a/", "X-a/1", "1x/1", "-x/1", "x_a/1", "x.a/1", "\u00fc/1", "x-a/" + "i" * 201, "x-a/" + "\u00fc" * 101,
        "x-a/a\nb", "x-a/\x00", "x-a/\x7f", "x-a/\x85", "x-a/e\u0301", "x-a/\u212b", "x-a/\ud800", " x-a/1", "x" * 65 + "/1", "ledger/1x\x1b", "x-a\n/1", "\x00",
    ],
)  # fmt: skip
def test_unlawful_stream_names_are_refused_in_one_printable_line(stream):
    """F36: an id is NFC, so one name has one form."""
    for _ in range(2):  # what was refused is not remembered as checked
        with pytest.raises(Invalid) as refused:
            check_names(stream, "x.a.b")
        assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["x.a", "x.note.added", "plan.approved", "x.a-b.c_d", "a1.b2"])
def test_lawful_types(name):
    check_names("x-a/1", name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        "x.",
        ".x",
        "x..a",
        "X.a",
        "x.A",
        "x.1a",
        "x.a b",
        "x.\u00fc",
        "x.a\n",
        "x." + "a" * 127,
        "x.a\x00",
        "x/a.b",
        "x._a",
        "x.-a",
    ],
)
def test_unlawful_types_are_refused(name):
    with pytest.raises(Invalid):
        check_names("x-a/1", name)


@pytest.mark.parametrize("actor", ["cli:root", "codex:0199-ab", "a-b1:x", "cli:a:b", "cli:\u00fc"])
def test_lawful_actors(actor):
    assert Origin(actor, "append").actor == actor


@pytest.mark.parametrize(
    "actor",
    [
        "",
        "cli",
        ":a",
        "cli:",
        "CLI:a",
        "1:a",
        "cli:\n",
        "cli:" + "a" * 201,
        "cli:e\u0301",
        "c i:a",
        "cli:\udc80",
        "cli:\x1b[2J",
    ],
)
def test_unlawful_actors_are_refused_in_one_printable_line(actor):
    with pytest.raises(Invalid) as refused:
        Origin(actor, "append")
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("field", ["correlation", "idempotency_key"])
@pytest.mark.parametrize("value", ["", "a" * 201, "a\tb", "\ud800", "e\u0301"])
def test_keys_and_correlations_are_names_too(field, value):
    with pytest.raises(Invalid, match=field.replace("_", " ")):
        Draft("x-a/1", "x.a.b", **{field: value})


def test_data_has_a_limit_of_64_kib():
    """F40: at the limit, and one byte over."""
    frame = len(b'{"a":""}')
    assert Draft("x-a/1", "x.a.b", b'{"a":"%b"}' % (b"z" * (65_536 - frame)))
    with pytest.raises(Invalid, match="65537 bytes; 65536 at most"):
        Draft("x-a/1", "x.a.b", b'{"a":"%b"}' % (b"z" * (65_537 - frame)))


moments = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


@given(moments)
@settings(max_examples=300, deadline=None)
def test_a_moment_is_written_as_rfc_3339_with_six_decimals_and_read_back(us):
    text = clock.format_us(us)
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us)
    assert text == moment.isoformat(timespec="microseconds") + "Z"
    assert clock.parse_us(text) == us


@pytest.mark.parametrize(
    "text",
    ["2026-11-30T16:00:00Z", "2026-11-30T16:00:00.123456789Z", "2026-11-30T16:00:00.123456+00:00", "2026-11-30 16:00:00.123456Z", "2026-02-30T16:00:00.123456Z", "2026-11-30T16:00:60.123456Z", "2026-11-30T24:00:00.000000Z", "2026-11-30t16:00:00.123456z", "", "20261130T160000.123456Z", "\u0662\u0660\u0662\u0666-11-30T16:00:00.123456Z"],
)  # fmt: skip
def test_a_recorded_time_has_one_form_only(text):
    """F4: finer digits than are stored cannot stand in an envelope."""
    with pytest.raises(ValueError):
        clock.parse_us(text)


names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)


@given(
    names,
    names,
    names,
    st.dictionaries(names, st.integers(-9, 9), max_size=3),
    st.binary(max_size=9) | st.none(),
    st.integers(0, clock.LATEST_CLOCK - 1),
    st.integers(0, 5),
)
@settings(max_examples=200, deadline=None)
def test_an_envelope_is_canonical_whatever_the_names_are(stream, actor, key, data, content, now, behind):
    """The members stand in their places by hand: the careful writer must agree."""
    import unicodedata

    stream, actor, key = (unicodedata.normalize("NFC", text) for text in (stream, actor, key))
    one = Draft(
        f"x-a/{stream}", "x.a.b", canonical(__import__("json").dumps(data)), content=content, correlation=key,
        causation=1, idempotency_key=key,
    )  # fmt: skip
    head = Head(7, bytes(32), now + behind, now)
    (event,) = seal([one], head, lambda _stream: 3, Origin(f"cli:{actor}", "append"), now)
    assert canonical(event.envelope, floats=False) == event.envelope
    assert (event.seq, event.version, event.stream, event.actor) == (8, 4, f"x-a/{stream}", f"cli:{actor}")
    assert event.clock == now
    assert event.recorded_us == now + behind + 1
    assert None not in event.members.values()


@pytest.mark.parametrize("now", [-1, clock.LATEST_CLOCK, 2**62])
def test_a_clock_outside_the_years_1970_to_2254_is_refused_jump_or_not(now):
    for jump in (False, True):
        with pytest.raises(Refused, match="set the clock"):
            seal([Draft("x-a/1", "x.a.b")], Head(), lambda _stream: 0, ORIGIN, now, clock_jump=jump)


def test_the_clock_may_run_back_from_its_last_moment_to_its_first_and_it_can_be_said():
    """The integer that says so has no more than 53 bits."""
    from ledger.lines import read_envelope

    (late,) = seal([Draft("x-a/1", "x.a.b")], Head(), lambda _stream: 0, ORIGIN, clock.LATEST_CLOCK - 1)
    (early,) = seal([Draft("x-a/1", "x.a.b")], head_of(late), lambda _stream: 1, ORIGIN, 0, clock_jump=True)
    assert read_envelope(early.envelope).clock_behind == clock.LATEST_CLOCK


def test_events_of_a_batch_count_versions_by_stream():
    drafts = [Draft("x-a/1", "x.a.b"), Draft("x-b/1", "x.a.b"), Draft("x-a/1", "x.a.b")]
    events = seal(drafts, Head(), lambda stream: 5 if stream == "x-a/1" else 0, ORIGIN, 10)
    assert [(event.stream, event.version) for event in events] == [("x-a/1", 6), ("x-b/1", 1), ("x-a/1", 7)]
