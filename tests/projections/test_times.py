"""Moments: what is accepted, what is refused, and that printing is the inverse of reading."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import Invalid
from projections.times import LATEST, SECOND, parse_date, parse_time, print_time, whole_seconds

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@given(
    st.datetimes(timezones=st.timezones().map(lambda _: dt.UTC), min_value=dt.datetime(1, 1, 1)),
    st.integers(-1439, 1439),
)
def test_every_moment_reads_as_the_standard_library_reads_it(moment, minutes):
    zoned = (
        moment.astimezone(dt.timezone(dt.timedelta(minutes=minutes))) if 2 <= moment.year <= 9998 else moment
    )
    expected = (zoned - EPOCH) // dt.timedelta(microseconds=1)
    assert parse_time(zoned.isoformat()) == expected


@given(st.integers(-62_135_596_800, LATEST // SECOND))
def test_printing_and_reading_are_inverse(seconds):
    assert parse_time(print_time(seconds * SECOND)) == seconds * SECOND


@given(st.integers(0, LATEST))
def test_a_printed_time_is_the_whole_second_before(moment):
    assert parse_time(print_time(moment)) == whole_seconds(moment) <= moment < whole_seconds(moment) + SECOND


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-08-25T12:00:00Z", "2026-08-25T12:00:00Z"),
        ("2026-08-25t12:00:00z", "2026-08-25T12:00:00Z"),
        ("2026-08-25 12:00:00+02:00", "2026-08-25T10:00:00Z"),
        ("2026-08-25T12:00:00-00:00", "2026-08-25T12:00:00Z"),
        ("2026-08-25T12:00:00.999999999Z", "2026-08-25T12:00:00Z"),
        ("2026-08-25T12:00:00,5Z", "2026-08-25T12:00:00Z"),
        ("2026-08-25T12:00Z", "2026-08-25T12:00:00Z"),
        ("20260825T120000+0530", "2026-08-25T06:30:00Z"),
        ("2026-08-25T12:00:00+02", "2026-08-25T10:00:00Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ("2017-01-01T05:29:60+05:30", "2017-01-01T00:00:00Z"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
    ],
)
def test_odd_but_lawful_forms_are_read(text, shown):
    assert print_time(parse_time(text)) == shown


def test_a_day_met_in_another_form_does_not_change_how_later_texts_are_read():
    """A leap second without separators is of the day after; a date without separators is no date with them."""
    assert print_time(parse_time("2016-12-31T235960.0Z")) == "2017-01-01T00:00:00Z"
    assert print_time(parse_time("2016-12-31T10:00:00Z")) == "2016-12-31T10:00:00Z"
    assert print_time(parse_time("20260825T120000.000Z")) == "2026-08-25T12:00:00Z"
    with pytest.raises(Invalid):
        parse_time("20260825T1T12:00:00Z")


def test_every_second_of_a_day_met_before_is_read_as_printed():
    midnight = parse_time("2026-08-25T00:00:00Z")
    moments = [midnight + number * SECOND for number in range(0, 86_400, 7)]
    assert [parse_time(print_time(moment)) for moment in moments] == moments


@pytest.mark.parametrize("text", [None, 1, 1.5, True, b"2026-08-25T12:00:00Z", [], {}])
def test_what_is_no_text_is_no_time(text):
    with pytest.raises(Invalid, match="as text"):
        parse_time(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Z",
        "now",
        "2026-08-25",
        "2026-08-25T12:00:00",  # no zone
        "2026-08-25T12:00:00 Z",
        " 2026-08-25T12:00:00Z",
        "2026-08-25T12:00:00Z\n",
        "2026-08-25T24:00:00Z",
        "2026-08-25T12:60:00Z",
        "2026-08-25T12:00:61Z",
        "2026-08-25T12:00:60Z",  # no leap second in the middle of a day
        "2026-08-25T23:59:60Z",  # nor in the middle of a month
        "2026-02-29T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-00-01T12:00:00Z",
        "2026-08-00T12:00:00Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
        "2026-08-25T12:00:00+24:00",
        "2026-08-25T12:00:00+02:60",
        "2026-08-25T12:00:00+2:00",
        "2026-08-25T12:00:00+02:0",
        "2026-08-25T12:00:00.Z",
        "2026-08-25T12:00:00.1.2Z",
        "2026-08-25T12:00:0xZ",
        "2026-8-25T12:00:00Z",
        "٢٠٢٦-08-25T12:00:00Z",
        "+2026-08-25T12:00:00Z",
        "2026-08-25T12:00:00." + "1" * 100 + "Z",
        None,
        1756123200,
        True,
        ["2026-08-25T12:00:00Z"],
    ],
)
def test_what_is_no_moment_is_refused_by_name(text):
    with pytest.raises(Invalid, match="^--now"):
        parse_time(text, "--now")


@given(st.text(max_size=40))
def test_no_text_at_all_makes_it_fall_over(text):
    try:
        moment = parse_time(text)
    except Invalid:
        return
    assert moment <= LATEST


@pytest.mark.parametrize("text", ["2026-11-31", "2026-1-1", "20261130", "2026-11-30T00:00:00Z", "", None, 5])
def test_what_is_no_date_is_refused(text):
    with pytest.raises(Invalid, match="reviewed"):
        parse_date(text, "reviewed")
