"""An envelope read by msgspec says what `Event` says of it, and what is none is said in the same words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import Tampered
from ledger.event import Draft, Head, Origin, seal
from projections.members import clock_of, members_of

NAMES = [
    "stream",
    "version",
    "type",
    "v",
    "actor",
    "via",
    "recorded_at",
    "correlation",
    "causation",
    "clock_behind",
    "content_digest",
    "idempotency_key",
]


def one(clock, behind=0, **more):
    """An event recorded at `clock` us by a clock that ran `behind` us."""
    head = Head(seq=4, recorded_us=clock - 1 if behind else -1)
    draft = Draft("x-a/é", "x.a.done", b'{"a":1}', **more)
    return seal([draft], head, lambda _stream: 6, Origin("cli:ü", "append"), clock - behind)[0]


@given(st.lists(st.integers(0, 4_102_444_800_000_000), min_size=1), st.integers(0, 50))
def test_members_and_clock_are_those_of_the_event(clocks, behind):
    for clock in clocks:
        event = one(clock + 100, behind, content=b"words", correlation="c", causation=3, idempotency_key="k")
        members = members_of(event.seq, event.envelope)
        assert [getattr(members, name) for name in NAMES] == [getattr(event, name) for name in NAMES]
        assert clock_of(members) == event.clock


def test_what_may_be_absent_is_none():
    members = members_of(5, one(1_800_000_000_000_000).envelope)
    absent = (members.correlation, members.causation, members.content_digest, members.idempotency_key)
    assert (*absent, members.clock_behind) == (None, None, None, None, 0)


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"seq":1', b"\xff", b'{"actor":1}', None])
def test_what_is_no_envelope_is_tampered(raw):
    with pytest.raises(Tampered, match="event 7: what is stored is not its envelope"):
        members_of(7, raw)


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2027-01-15T08:00:00.00000Z", "2027-01-15T08:00:00.0000001Z", "2027-01-15T08:00:00.00000 Z",
     "2027-01-15T08:00:00.000000z", "2027-01-15T08:00:00.-00001Z", "2027-01-15T08:00:00.٠٠٠٠٠٠Z", "2027-01-15T08:60:00.000000Z"],
)  # fmt: skip
def test_a_time_in_another_form_is_tampered(text):
    event = one(1_800_000_000_000_000)
    assert event.recorded_at.startswith("2027-01-15T08:00:00.")
    assert clock_of(members_of(5, event.envelope)) == 1_800_000_000_000_000
    changed = event.envelope.replace(event.recorded_at.encode(), text.encode())
    with pytest.raises(Tampered, match="event 5: its recorded_at is not a time"):
        clock_of(members_of(5, changed))
