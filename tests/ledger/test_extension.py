"""What follows a chain and what is void: each rule broken alone, and any damage to a message that counts."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from ledger.canonical import canonical
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


BROKEN = [
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
    (b'Z","seq"', b'-00:01","seq"'),
    (b'"recorded_at":"2026', b'"recorded_at":"1026'),
    (b'"recorded_at":"2026-05', b'"recorded_at":"2026-15'),
    (b'"recorded_at":"2026', b'"recorded_at":"9999999'),
    (b'"data_digest":"', b'"data_digest":"A'),
    (b'"content_digest":"', b'"content_digest":"g'),
]


@pytest.mark.parametrize(("old", "new"), BROKEN)
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


TEXTS = st.text(st.characters(codec="utf-8"), max_size=4) | st.sampled_from(
    ["\x7f", "\u2028", "\x1f\b", 'a"\\/']
)
VALUES = st.recursive(
    TEXTS
    | st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def messages(draw):
    """Messages of events that follow one another, some of them changed in a byte, left out, twice or with odd data."""
    made: list[bytes] = []
    drafts = []
    for number in range(draw(st.integers(1, 6))):
        data = draw(
            st.sampled_from([b"{}", b'{"a":1}', b'{"b":1,"a":2}', b'{"a":-0}', b'{"a":1.0}', b'{"a": 1}'])
        )
        if draw(st.booleans()):
            try:
                data = canonical(json.dumps(draw(st.dictionaries(TEXTS, VALUES, max_size=3))))
            except Invalid:
                data = b"{}"
        drafts.append(
            Draft(
                draw(st.sampled_from(["x-a/1", "x-b/ü", "ledger"])),
                draw(st.sampled_from(["x.thing.done", "ledger.redacted", "circuit.opened"])),
                data,
                causation=draw(st.sampled_from([None, None, 1])),
                correlation=draw(st.sampled_from([None, None, 'q"\\ü'])),
                idempotency_key=draw(st.sampled_from([None, None, "k", f"k{number}"])),
                content=draw(st.sampled_from([None, None, b"c"])),
            )
        )
    _, head = after_genesis()
    clock = draw(st.sampled_from([NOW + 5, NOW - 5, NOW // 10**6 * 10**6 + 10**6 - 1]))
    sealed = seal(drafts, head, lambda name: int(name == "ledger"), ORIGIN, clock)
    for event in sealed:
        body = message_of(event)
        how = draw(st.sampled_from(["right"] * 6 + ["put", "take", "change", "resealed", "twice", "missing"]))
        place = draw(st.integers(0, len(body) - 1))
        byte = bytes([draw(st.integers(0, 255))])
        if how == "resealed":
            old, new = draw(st.sampled_from(BROKEN + ODD))
            previous = sealed[event.seq - 3].hash if event.seq > 2 else head.hash
            envelope = event.envelope.replace(old, new, 1)
            body = b"%b\n%b\n%b" % (envelope, event.data, chain_hash(previous, envelope).hex().encode())
        elif how in ("put", "take", "change"):
            rest = body[place:] if how == "put" else body[place + 1 :]
            body = body[:place] + (b"" if how == "take" else byte) + rest
        made += {"twice": [body, body], "missing": []}.get(how, [body])
    return made


ODD = [
    (b'"v":1,', b'"v":01,'), (b'"v":1,', b'"v":9007199254740992,'), (b'"v":1,', b'"v":null,'), (b'"v":1,', b'"v":1.0,'),
    (b'"v":1,', b'"v":true,'), (b'{"actor"', b'{ "actor"'), (b"cli:", b"cli:\x7f"), (b"tester", b"te\\u0073ter"),
    (b'Z","seq"', b'","seq"'), (b'Z","seq"', b'+00:00","seq"'), (b'Z","seq"', b'1Z","seq"'), (b"T", b" "), (b":40.000012Z", b":41Z"),
    (b'"recorded_at":"2026-05', b'"recorded_at":"2026-02-30T00:00:00.000000Z","x":"'), (b":20.", b":60."),
    (b'"causation":1', b'"causation":0'), (b'"causation":1', b'"causation":99'), (b'"via":"test"', b'"via":""'),
    (b'"correlation":"c"', b'"correlation":"u\xcc\x88"'), (b'"actor":"cli:tester"', b'"actor":"tester"'),
    (b'"content_digest":"', b'"content_digest":"A'), (b',"seq":', b',"seq":0'), (b'"stream":"x-a/1"', b'"stream":"x-a/9"'),
    (b'"type":"x.thing.done"', b'"type":"ledger.opened"'), (b'"type":"x.thing.done"', b'"type":"X.thing"'),
    (b'"version":1', b'"version":2'), (b'"clock_behind":', b'"clock_behind":0'), (b'"idempotency_key":"k', b'"idempotency_key":"u\xcc\x88'),
]  # fmt: skip


def state(walked: Chain):
    return (walked.seq, walked.hash, walked.recorded_at, walked.versions, walked.keys, walked.bare)


@given(messages(), st.integers(1, 4))
def test_the_fast_way_takes_only_what_the_careful_way_takes_and_ends_alike(bodies, size):
    """Many at once: all of them as one by one, or nothing happens."""
    fast, _ = after_genesis()
    careful, _ = after_genesis()
    for start in range(0, len(bodies), size):
        chunk = bodies[start : start + size]
        lines = [body.split(b"\n") for body in chunk]
        before = state(fast)
        taken = all(len(parts) == 3 for parts in lines) and fast.extend_all(
            *map(list, zip(*lines, strict=True))
        )
        if not taken:
            assert (*state(fast)[:3], fast.keys) == (*before[:3], before[4])
        for body in chunk:
            try:
                careful.extend(body)
            except Void:
                assert not taken
            if not taken:
                with contextlib.suppress(Void):
                    fast.extend(body)
        assert state(fast)[:5] == state(careful)[:5]
        assert fast.bare <= careful.bare


def test_the_fast_way_takes_what_is_usual():
    walked, head = after_genesis()
    made = events(
        *[Draft(f"x-a/{n % 3}", "x.thing.done", b'{"a":[1,{"b":"c"}],"n":%d}' % n, correlation="c", causation=1) for n in range(9)],
        Draft("x-b/ü", "circuit.opened", content=b"c", idempotency_key="k"),
        head=head, now=NOW - 5,
    )  # fmt: skip
    lines = [message_of(event).split(b"\n") for event in made]
    assert walked.extend_all(*map(list, zip(*lines, strict=True)))
    assert (walked.seq, walked.hash, walked.bare, walked.keys) == (11, made[-1].hash, False, {"k"})


def taken_alike(head, good, bad, *, keys=()):
    """Whether the careful way counts `bad` after `good`; the fast way must not take it, alone or among others, unless."""
    for bodies in ([bad], [bad, *good], [*good[:1], bad, *good[1:]], [*good, bad]):
        careful, fast = chain(head, keys=keys), chain(head, keys=keys)
        counted = True
        for body in bodies:
            try:
                careful.extend(body)
            except Void:
                counted = False
        lines = [body.split(b"\n") for body in bodies]
        taken = fast.extend_all(*map(list, zip(*lines, strict=True)))
        assert not taken or (counted and state(fast) == state(careful))
        if not taken:
            assert state(fast)[:3] == (head.seq, head.hash, chain(head).recorded_at)
    return counted


@pytest.mark.parametrize(("old", "new"), BROKEN + ODD)
def test_no_broken_rule_passes_the_fast_way_wherever_it_stands(old, new):
    _, head = after_genesis()
    good = events(*[Draft("x-b/1", "x.thing.done") for _ in range(3)], head=head, now=NOW + 9)
    members = ({}, {"correlation": "c"}, {"idempotency_key": "k"}, {"content": b"c"})
    for after, stream, more in itertools.product((0, 1, 3), ("x-a/1", "x-b/1"), members):
        last = head_of(good[after - 1]) if after else head
        draft = Draft(stream, "x.thing.done", causation=1, **more)
        (event,) = events(
            draft,
            head=last,
            now=NOW + 5 - 20 * (after == 0),
            versions=lambda name, known=after: known if name == "x-b/1" else 0,
        )
        if old in event.envelope:
            taken_alike(
                head, [message_of(each) for each in good[:after]], resealed(event, last.hash, old, new)
            )


@pytest.mark.parametrize(
    "data",
    [b'{"b":1,"a":2}', b'{"a": 1}', b"[1]", b"", b'{"a":1,"a":1}', b'{"a":NaN}', b'{"a":"\xff"}', b'{"a":1.0}', b'{"a":1e5}',
     b'{"a":-0}', b'{"a":9007199254740992}', b'{"a":"\\u0041"}', b'{"a":"\\u000a"}', b'{"a":"\\/"}', b'{"a":1} ', b"null",
     '{"\uffff":1,"\U00010000":2}'.encode(), '{"\U00010000":1,"\uffff":2}'.encode(), b'{"a":' * 5 + b"{}" + b"}" * 5],
)  # fmt: skip
@pytest.mark.parametrize("name", ["x.thing.done", "circuit.opened"])
def test_no_odd_data_passes_the_fast_way_wherever_it_stands(data, name):
    _, head = after_genesis()
    good = events(*[Draft("x-b/1", "x.thing.done") for _ in range(3)], head=head, now=NOW + 9)
    for after in (0, 1, 3):
        last = head_of(good[after - 1]) if after else head
        event, other = (
            events(Draft("x-a/1", name, text), head=last, now=NOW + 10)[0] for text in (data, b'{"z":1}')
        )
        before = [message_of(each) for each in good[:after]]
        taken_alike(head, before, message_of(event))
        assert not taken_alike(head, before, message_of(event).replace(data + b"\n", b'{"z":1}\n'))
        assert taken_alike(head, before, message_of(other))


def test_what_stands_before_counts_on_the_fast_way():
    """Keys used before or twice, versions of streams, times, and who opens a ledger."""
    _, head = after_genesis()
    first, again = events(
        Draft("x-a/1", "x.thing.done", idempotency_key="k"),
        Draft("x-a/1", "x.thing.done", idempotency_key="k"),
        head=head,
    )
    assert not taken_alike(head, [], message_of(first), keys=("k",))
    assert not taken_alike(head, [message_of(first)], message_of(again))
    late = Head(head.seq, head.hash, head.recorded_us + 7, head.clock)
    for now in (NOW + 7, NOW + 6):
        (event,) = events(Draft("x-a/1", "x.thing.done"), head=head, now=now)
        assert not taken_alike(late, [], message_of(event))
    (event,) = events(Draft("x-a/1", "x.thing.done"), head=head, versions=lambda _name: 4)
    assert not taken_alike(head, [], message_of(event))
    (event,) = events(Draft("x-a/1", "x.thing.done"), head=head)
    assert not taken_alike(Head(0, head.hash, head.recorded_us, head.clock), [], message_of(event))
    assert not taken_alike(Head(head.seq, b"\1" * 32, head.recorded_us, head.clock), [], message_of(event))
    assert not taken_alike(Head(7, head.hash, head.recorded_us, head.clock), [], message_of(event))
