"""What follows a chain and what is void: each rule broken alone, and any damage to a message that counts."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import Invalid
from ledger.event import Draft, Head, Origin, chain_hash, head_of, seal
from ledger.extension import Chain, Void, check_sealed, message_of

ORIGIN = Origin("cli:tester", "test")
NOW = 1_780_000_000_000_000


def nothing(_name):
    return 0


def chain(head: Head | None = None, versions=None, keys=()) -> Chain:
    return Chain(head or Head(), (versions or {}).get if versions else nothing, lambda key: key in keys)


def events(*drafts, head: Head | None = None, now=NOW, versions=nothing):
    return seal(drafts, head or Head(), versions, ORIGIN, now)


def genesis():
    return events(Draft("ledger", "ledger.opened", b'{"format":1}'))[0]


def after_genesis():
    first = genesis()
    walked = chain()
    walked.extend(message_of(first))
    return walked, head_of(first)


def resealed(event, previous: bytes, old: bytes, new: bytes) -> bytes:
    """The message of `event` with a part of its envelope replaced and its hash computed anew."""
    assert old in event.envelope
    envelope = event.envelope.replace(old, new)
    return b"%b\n%b\n%b" % (envelope, event.data, chain_hash(previous, envelope).hex().encode())


def test_what_seal_makes_extends_the_chain():
    walked, head = after_genesis()
    made = events(
        Draft("x-a/1", "x.thing.done", '{"k":"ü"}'.encode(), content=b"c", correlation='q"\\ü', causation=1),
        Draft("x-a/1", "x.thing.done", b'{"f":1.5}', idempotency_key="k"),
        Draft("x-b/ü", "x.thing.done"),
        head=head, now=NOW - 5,
    )  # fmt: skip
    for event in made:
        got = walked.extend(message_of(event))
        assert (got.envelope, got.data, got.hash) == (event.envelope, event.data, event.hash)
    assert walked.seq == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"seq":2', b'"seq":3'),
        (b'"version":1', b'"version":2'),
        (b'"version":1', b'"version":0'),
        (b'"v":1,', b'"v":0,'),
        (b'"v":1,', b'"v":"1",'),
        (b'"v":1,', b'"v":9007199254740992,'),
        (b'"stream":"x-a/1"', b'"stream":"x-a"'),
        (b'"stream":"x-a/1"', b'"stream":"x-a/\\u0031"'),
        (b'"stream":"x-a/1"', b'"stream":"x-a/u\xcc\x88"'),
        (b'"type":"x.thing.done"', b'"type":"X.thing"'),
        (b'"type":"x.thing.done"', b'"type":"ledger.opened"'),
        (b'"actor":"cli:tester"', b'"actor":"tester"'),
        (b'"actor":"cli:tester"', b'"actor": "cli:tester"'),
        (b'"actor":"cli:tester"', b'"actor":"cli:\xff"'),
        (b'"actor":"cli:tester",', b""),
        (b'{"actor"', b'{"aaa":1,"actor"'),
        (b'"via":"test"', b'"via":""'),
        (b'"via":"test"', b'"via":"a\\u0000b"'),
        (b'"causation":1', b'"causation":2'),
        (b'"causation":1', b'"causation":01'),
        (b'Z","seq"', b'z","seq"'),
        (b'"recorded_at":"2026', b'"recorded_at":"1026'),
        (b'"recorded_at":"2026-05', b'"recorded_at":"2026-15'),
        (b'"recorded_at":"2026', b'"recorded_at":"9999999'),
        (b'"data_digest":"', b'"data_digest":"A'),
        (b'"content_digest":"', b'"content_digest":"g'),
    ],
)
def test_each_broken_rule_makes_a_message_void_and_leaves_the_chain(old, new):
    walked, head = after_genesis()
    (event,) = events(Draft("x-a/1", "x.thing.done", causation=1, content=b"c"), head=head)
    with pytest.raises(Void):
        walked.extend(resealed(event, head.hash, old, new))
    assert walked.seq == 1
    walked.extend(message_of(event))


def test_data_must_be_canonical_and_of_its_digest():
    for data in (b'{"b":1,"a":2}', b'{"a": 1}', b"[1]", b"", b'{"a":1,"a":1}', b'{"a":NaN}', b'{"a":"\xff"}'):
        walked, head = after_genesis()
        (event,) = events(Draft("x-a/1", "x.thing.done", data), head=head)
        with pytest.raises(Void):
            walked.extend(message_of(event))
    (decided,) = events(Draft("ledger", "ledger.redacted", b'{"a":1.5}'), head=head, versions=lambda _s: 1)
    with pytest.raises(Void, match="canonical"):
        walked.extend(message_of(decided))
    (event,) = events(Draft("x-a/1", "x.thing.done", b'{"a":1}'), head=head)
    with pytest.raises(Void, match="data_digest"):
        walked.extend(message_of(event).replace(b'{"a":1}', b'{"a":2}'))
    assert blake3(b'{"a":1}').hexdigest() == event.members["data_digest"]


def test_a_key_counts_once():
    walked, head = after_genesis()
    one, two = events(
        Draft("x-a/1", "x.thing.done", idempotency_key="k"),
        Draft("x-a/1", "x.thing.done", idempotency_key="k"),
        head=head,
    )
    walked.extend(message_of(one))
    with pytest.raises(Void, match="key"):
        walked.extend(message_of(two))
    with pytest.raises(Void, match="key"):
        chain(head, keys=("k",)).extend(message_of(one))


def test_only_the_first_event_opens_a_ledger():
    (event,) = events(Draft("x-a/1", "x.thing.done"))
    with pytest.raises(Void):
        chain().extend(message_of(event))


@given(st.data())
def test_no_changed_message_counts(data):
    """Whatever byte is put in, taken out or changed."""
    walked, head = after_genesis()
    (event,) = events(Draft("x-a/1", "x.thing.done", b'{"a":"b"}', correlation="c"), head=head)
    body = message_of(event)
    place = data.draw(st.integers(0, len(body) - 1))
    change = data.draw(st.sampled_from(["put", "take", "change"]))
    byte = bytes([data.draw(st.integers(0, 255))])
    rest = body[place:] if change == "put" else body[place + 1 :]
    changed = body[:place] + (b"" if change == "take" else byte) + rest
    if changed == body:
        return
    with pytest.raises(Void):
        walked.extend(changed)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_void_never_an_error(raw):
    walked, _ = after_genesis()
    with pytest.raises(Void):
        walked.extend(raw)


@st.composite
def odd_drafts(draw):
    """Drafts whose members are of the right kind, or nearly."""
    text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)
    data = [
        b"{}",
        '{"k":"ü"}'.encode(),
        b'{"f":1.5}',
        b'{"b":1,"a":2}',
        b'{"n":9007199254740992}',
        b"[]",
        b"",
        b"\xff",
    ]
    made = []
    for _ in range(draw(st.integers(1, 3))):
        try:
            made.append(
                Draft(
                    draw(st.sampled_from(["x-a/1", "x-b/ü", "ledger"]) | text.map("x-c/{}".format)),
                    draw(
                        st.sampled_from(["x.thing.done", "x.thing-2.d_", "ledger.opened", "ledger.redacted"])
                    ),
                    draw(st.sampled_from(data)),
                    v=draw(st.sampled_from([1, 7, 2**53, 0, -1, True, 1.0])),
                    causation=draw(st.sampled_from([None, 1, 1.0, True])),
                    correlation=draw(st.none() | text),
                    content=draw(st.none() | st.just(b"c")),
                )
            )
        except Invalid:
            continue
    return made


@given(
    odd_drafts().filter(bool),
    st.sampled_from([NOW - 5, NOW + 5, NOW + 10**10, 0]),
    st.sampled_from([NOW, 253_000_000_000_000_000]),
)
def test_what_is_checked_after_sealing_is_what_every_replica_counts(drafts, clock, recorded):
    """The short check of one's own events lets nothing pass that the rule calls void, nor stops what it counts."""
    head = Head(1, b"\x01" * 32, recorded, recorded)
    try:
        sealed = seal(drafts, head, nothing, ORIGIN, clock, clock_jump=True)
    except Invalid:
        return
    try:
        check_sealed(drafts, head, clock)
        good = True
    except Void:
        good = False
    walked = chain(head)
    try:
        for event in sealed:
            walked.extend(message_of(event))
    except Void:
        assert not good
    else:
        assert good
