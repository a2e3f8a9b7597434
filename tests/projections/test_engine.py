"""Fold, decide, admit, record: the path of every decided event, tried with the circuit aggregate and real ledgers."""

from __future__ import annotations

import json

import apsw
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.access import create_ledger
from ledger.canonical import canonical
from ledger.errors import Conflict, Invalid, Refused, Tampered
from ledger.event import Draft, Origin
from projections import circuit, engine, registry
from projections.cooldowns import next_opening
from projections.engine import (
    Proposal,
    World,
    decode,
    encode_data,
    fact_of,
    load,
    state_of,
    submit,
)
from projections.fact import Unlawful
from projections.times import parse_time, print_time

ORIGIN = Origin("cli:tester", "test")
STREAM = "circuit/p|native"
START = 1_780_000_000_000_000


class Clock:
    def __init__(self):
        self.now = START

    def __call__(self):
        self.now += 1_000_000
        return self.now


@pytest.fixture
def ledger(tmp_path, home):
    made, _ = create_ledger(str(tmp_path / "l"), ORIGIN, now=Clock())
    yield made
    made.close()


def opened(world, reason="rate_limit", executor="native", **change):
    stream = f"circuit/p|{executor}"
    at = world.clock - world.clock % 1_000_000
    count, until = next_opening(world.state(stream).circuit(world.void_before), reason, at)
    fields = {
        "provider": "p",
        "executor": executor,
        "reason": reason,
        "at": print_time(at),
        "failure_count": count,
        "unavailable_until": print_time(until),
    }
    return Proposal(stream, "circuit.opened", circuit.Opened(**{**fields, **change}))


def fail(ledger, **change):
    return submit(ledger, ORIGIN, lambda world: [opened(world, **change)])


def refusals(ledger):
    return [json.loads(event.data) for event in ledger.store.read(2) if event.type == "admission.refused"]


def test_a_lawful_proposal_is_recorded_as_its_structs_canonical_bytes(ledger):
    (event,) = fail(ledger).events
    assert canonical(event.data, floats=False) == event.data
    assert "retry_at" not in json.loads(event.data)
    state, version = state_of(ledger, STREAM)
    assert (state.failure_count, version) == (1, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"failure_count": 3}, {"failure_count": 0}, {"unavailable_until": "2026-05-28T20:00:00Z"}, {"at_given": True}, {"retry_at": "2030-01-01T00:00:00Z"},
        {"reason": "bored"}, {"provider": "q"},
    ],
)  # fmt: skip
def test_an_unlawful_proposal_is_refused_rolled_back_and_recorded_as_a_refusal(ledger, change):
    """F86"""
    fail(ledger)
    with pytest.raises(Unlawful) as refused:
        fail(ledger, **change) if "reason" not in change else submit(
            ledger,
            ORIGIN,
            lambda world: [
                Proposal(
                    STREAM,
                    "circuit.opened",
                    circuit.Opened(
                        "p", "native", "bored", print_time(world.clock), 1, print_time(world.clock)
                    ),
                )
            ],
        )
    assert refused.value.exit_code == 4
    assert ledger.store.reader().version(STREAM) == 1
    (found,) = refusals(ledger)
    assert (found["type"], found["stream"]) == ("circuit.opened", STREAM)
    assert set(found) == {"digest", "reason", "stream", "type"}
    assert found["reason"] in str(refused.value)


def test_what_a_batch_of_proposals_did_before_is_seen_by_the_next_and_undone_with_it(ledger):
    """F71"""
    done = submit(ledger, ORIGIN, lambda world: [opened(world), opened(world, executor="x")])
    assert [event.version for event in done.events] == [1, 1]

    def twice(world):
        first = opened(world)
        second = opened(
            world,
            failure_count=3,
            unavailable_until=print_time(world.clock - world.clock % 1_000_000 + 6 * 3600 * 1_000_000),
        )
        return [first, second]

    done = submit(ledger, ORIGIN, twice)
    assert [event.version for event in done.events] == [2, 3]
    with pytest.raises(Unlawful):
        submit(
            ledger, ORIGIN, lambda world: [opened(world), opened(world)]
        )  # the second has the first one's count
    assert ledger.store.reader().version(STREAM) == 3


def test_a_refusal_of_decide_itself_is_not_recorded_by_submit(ledger):
    def plainly(_world):
        raise Refused("no")

    with pytest.raises(Refused):
        submit(ledger, ORIGIN, plainly)
    assert ledger.store.head().seq == 1


def test_an_event_in_a_stream_of_another_kind_is_refused(ledger):
    wrong = circuit.Closed("p", "native", print_time(START))
    for stream in ("run/1", "x-a/1", "ledger"):
        with pytest.raises(Invalid, match="does not belong"):
            submit(ledger, ORIGIN, lambda _world, stream=stream: [Proposal(stream, "circuit.closed", wrong)])
    assert ledger.store.head().seq == 1


def test_a_struct_with_values_of_a_wrong_type_is_not_written(ledger):
    for bad in (circuit.Closed("p", "native", 5), circuit.Opened("p", "native", "quota", "x", True, "y")):
        with pytest.raises((Tampered, Invalid)):
            submit(
                ledger,
                ORIGIN,
                lambda _world, bad=bad: [
                    Proposal(
                        STREAM, "circuit.closed" if isinstance(bad, circuit.Closed) else "circuit.opened", bad
                    )
                ],
            )
    assert ledger.store.head().seq == 1


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20) | st.sampled_from(
    ["\x7f", "\x00\x1f\b\f\t", "\u2028", "\U00010000", "\ue000", '"\\/']
)


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    z: str
    a: int
    m: dict[str, int] = {}
    s: tuple[str, ...] = ()
    t: str = ""


@given(
    texts,
    st.integers(-(2**53) + 1, 2**53 - 1),
    st.dictionaries(texts, st.integers(-9, 9), max_size=4),
    st.lists(texts, max_size=3),
)
@settings(max_examples=200, deadline=None)
def test_structs_are_written_as_canonical_bytes(z, a, m, s):
    """msgspec's own order, escapes and integers are not JCS."""
    written = encode_data(Sample(z, a, m, tuple(s)), "sample")
    assert canonical(written, floats=False) == written
    assert msgspec.json.decode(written, type=Sample) == Sample(z, a, m, tuple(s))


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63])
def test_an_integer_that_no_reader_could_keep_is_not_written(number):
    """F32"""
    with pytest.raises(Invalid):
        encode_data(Sample("", number), "sample")


# -- unknown, older and newer types


def forge(ledger, name, v, data, stream=STREAM):
    """An event as another version of gatebook would have written it."""
    return ledger.append([Draft(stream, name, data, v=v)], ORIGIN).events[0]


def test_an_unknown_type_stops_a_projection_with_a_clear_error(ledger):
    """F67"""
    fail(ledger)
    forge(ledger, "circuit.melted", 1, b"{}")
    with pytest.raises(Tampered, match="unknown event type circuit.melted: upgrade"):
        state_of(ledger, STREAM)
    with pytest.raises(Tampered):
        fail(ledger)


def test_a_newer_schema_version_stops_a_projection_with_a_clear_error(ledger):
    """F67"""
    event = forge(ledger, "circuit.closed", 2, b"{}")
    with pytest.raises(
        Tampered, match=f"event {event.seq}: circuit.closed has schema version 2, this gatebook knows 1"
    ) as stop:
        state_of(ledger, STREAM)
    assert stop.value.seq == event.seq


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        b'{"provider":"p","executor":"native","at":5}',
        b'{"provider":"p","executor":"native","at":"x","more":1}',
        b"[]",
        b'{"provider":"p"',
    ],
)
def test_data_that_breaks_its_schema_stops_a_projection(ledger, data):
    forge(ledger, "circuit.closed", 1, data)
    with pytest.raises(Tampered, match="breaks its schema"):
        state_of(ledger, STREAM)


def test_an_older_schema_version_is_upcast_when_read_and_never_rewritten(ledger, monkeypatch):
    """F17"""
    old = forge(ledger, "circuit.closed", 1, b'{"endpoint":"p|native","at":"2026-05-28T20:00:00Z"}')

    def split(data):
        provider, _, executor = data.pop("endpoint").partition("|")
        return {**data, "provider": provider, "executor": executor}

    monkeypatch.setattr(circuit, "VERSIONS", {"circuit.closed": 2}, raising=False)
    monkeypatch.setattr(circuit, "UPCASTS", {("circuit.closed", 1): split}, raising=False)
    monkeypatch.setattr(engine, "_readers", {})
    assert decode("circuit.closed", 1, old.data) == circuit.Closed("p", "native", "2026-05-28T20:00:00Z")
    assert state_of(ledger, STREAM) == (circuit.State(), 1)
    assert ledger.store.reader().event(old.seq).hash == old.hash
    (new,) = submit(ledger, ORIGIN, lambda world: [opened(world)]).events
    assert new.v == 1
    monkeypatch.setattr(circuit, "UPCASTS", {}, raising=False)
    with pytest.raises(Tampered, match="schema version 1 is unknown"):
        decode("circuit.closed", 1, old.data)


# -- snapshots and moments


def many(ledger, count):
    for done in range(0, count, 100):
        submit(ledger, ORIGIN, lambda world, done=done: list(_some(world, min(100, count - done))))


def _some(world, count):
    at = world.clock - world.clock % 1_000_000
    state = world.state(STREAM).circuit()
    for _ in range(count):
        n, until = next_opening(state, "quota", at)
        yield Proposal(
            STREAM,
            "circuit.opened",
            circuit.Opened("p", "native", "quota", print_time(at), n, print_time(until)),
        )
        state = type("S", (), {"reason": "quota", "failure_count": n})


def test_a_state_is_kept_every_256_versions_and_used(ledger):
    """F41: an append folds at most 255 events, however long the stream is."""
    many(ledger, 600)
    kept = ledger.store.query("SELECT version, fold FROM snapshots ORDER BY version")
    assert kept == [(256, "circuit/1"), (512, "circuit/1")]
    read = []
    reader = ledger.store.reader()
    reader_stream = type(reader).stream

    class Watched(type(reader)):
        def stream(self, *args, **more):
            found = reader_stream(self, *args, **more)
            read.append(len(found))
            return found

    watched = Watched(ledger.store, 0)
    assert load(watched, STREAM)[0].failure_count == 600
    assert read == [600 - 512]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE snapshots SET state = CAST('{\"reason\":\"quota\",\"failure_count\":7}' AS BLOB)", "UPDATE snapshots SET hash = zeroblob(32)", "UPDATE snapshots SET digest = zeroblob(32)",
        "UPDATE snapshots SET fold = 'circuit/0'", "UPDATE snapshots SET version = version + 1", "UPDATE snapshots SET state = x'7b'", "DELETE FROM snapshots",
    ],
)  # fmt: skip
def test_a_snapshot_that_does_not_match_is_never_used(ledger, damage):
    """F65: and a fold that changed its version folds from the beginning."""
    many(ledger, 300)
    connection = apsw.Connection(ledger.path)
    connection.execute(damage)
    connection.close()
    state, version = state_of(ledger, STREAM)
    assert (state.failure_count, version) == (300, 300)
    many(ledger, 1)
    assert state_of(ledger, STREAM)[0].failure_count == 301


def test_a_changed_fold_does_not_use_the_states_of_the_old_one(ledger, monkeypatch):
    """F65"""
    many(ledger, 300)
    monkeypatch.setattr(circuit, "FOLD", "circuit/2")
    monkeypatch.setattr(
        circuit, "evolve", lambda state, _fact: circuit.State("quota", state.failure_count + 10)
    )
    assert state_of(ledger, STREAM)[0].failure_count == 3000


def test_states_as_of_each_version(ledger):
    """F66: at 0, 1, last - 1, last, and beyond."""
    many(ledger, 300)
    reader = ledger.store.reader()
    for version, count in (
        (0, 0),
        (1, 1),
        (255, 255),
        (256, 256),
        (257, 257),
        (299, 299),
        (300, 300),
        (10_000, 300),
    ):
        state, seen = load(reader, STREAM, version)
        assert (state.failure_count, seen) == (count, min(version, 300))


def test_a_fold_with_and_without_snapshots_gives_the_same_bytes(ledger):
    """F72"""
    many(ledger, 520)
    with_snapshots = msgspec.json.encode(state_of(ledger, STREAM)[0])
    connection = apsw.Connection(ledger.path)
    connection.execute("DELETE FROM snapshots")
    connection.close()
    assert msgspec.json.encode(state_of(ledger, STREAM)[0]) == with_snapshots


def test_another_stream_and_another_version_are_not_the_ones_asked_for(ledger):
    """F68"""
    submit(ledger, ORIGIN, lambda world: [opened(world, executor="a")])
    submit(ledger, ORIGIN, lambda world: [opened(world, executor="b", reason="quota")])
    assert state_of(ledger, "circuit/p|b")[0].reason == "quota"
    assert state_of(ledger, "circuit/p|a")[0].reason == "rate_limit"
    assert state_of(ledger, "circuit/p|c") == (circuit.State(), 0)


def test_everything_open_is_void_after_a_restore(ledger):
    submit(ledger, ORIGIN, lambda world: [opened(world)])
    ledger.store._now.now += 3_600_000_000

    def probe(world):
        data = circuit.Probed("p", "native", print_time(world.clock))
        return [Proposal(STREAM, "circuit.probed", data)]

    submit(ledger, ORIGIN, probe)
    with pytest.raises(Unlawful):
        submit(ledger, ORIGIN, probe)
    head = ledger.store.head()
    from projections.ledger_stream import Restored

    submit(
        ledger,
        ORIGIN,
        lambda world: [
            Proposal(
                "ledger", "ledger.restored", Restored(world.reader.head().seq, world.reader.head().hash.hex())
            )
        ],
    )
    assert World(ledger.store.reader()).void_before == head.seq + 1
    submit(ledger, ORIGIN, probe)


# -- the vocabulary


def test_every_aggregate_that_is_there_keeps_the_shape_and_the_vocabulary():
    for kind, module_name in registry.AGGREGATES.items():
        try:
            module = registry.aggregate(kind)
        except ModuleNotFoundError:
            continue
        assert kind == module.KIND
        assert module.FOLD.startswith(f"{kind}/"), module_name
        named = {name for name, (owner, _) in registry.TYPES.items() if owner == kind}
        assert set(module.EVENTS) == named, kind
        state = module.initial(f"{kind}/1" if kind != "ledger" else "ledger")
        assert msgspec.json.decode(msgspec.json.encode(state), type=type(state)) == state
        for struct in module.EVENTS.values():
            config = struct.__struct_config__
            assert config.frozen, struct
            assert config.forbid_unknown_fields, struct
            assert not any(
                name in ("blob", "payload", "text", "json") for name in struct.__struct_fields__
            ), struct


def test_no_struct_of_the_vocabulary_has_a_free_form_or_float_field():
    """Contract page ledger: not one of these is a free-form blob."""
    import typing

    def leaves(kind):
        inner = typing.get_args(kind)
        if not inner:
            yield kind
        for one in inner:
            yield from leaves(one)

    for kind in registry.AGGREGATES:
        try:
            module = registry.aggregate(kind)
        except ModuleNotFoundError:
            continue
        for name, struct in module.EVENTS.items():
            for field, annotation in typing.get_type_hints(struct).items():
                found = list(leaves(annotation))
                assert typing.Any not in found, (name, field)
                assert float not in found, (name, field)
                assert object not in found, (name, field)


def test_a_fact_carries_content_wherever_it_lies(ledger):
    def decide(world):
        one = opened(world)
        one.content = b"z" * 600_000
        return [one]

    (event,) = submit(ledger, ORIGIN, decide).events
    again = ledger.store.reader().event(event.seq)
    assert fact_of(again).content is None
    assert fact_of(again, ledger.store.artifact).content == b"z" * 600_000
    assert fact_of(again).clock == again.clock
    assert parse_time(fact_of(again).data.at) <= again.clock


def test_two_callers_that_decide_at_once_are_decided_one_after_the_other(ledger):
    """F43, F82: in two threads on two handles; one gets the probe."""
    import threading

    from ledger.access import open_ledger

    submit(ledger, ORIGIN, lambda world: [opened(world)])
    outcomes, start = [], threading.Barrier(4)

    def claim():
        mine = open_ledger(ledger.path, now=lambda: START + 7_200_000_000)
        start.wait()
        try:
            submit(
                mine,
                ORIGIN,
                lambda world: [
                    Proposal(STREAM, "circuit.probed", circuit.Probed("p", "native", print_time(world.clock)))
                ],
            )
            outcomes.append("claimed")
        except (Unlawful, Conflict):
            outcomes.append("refused")
        mine.close()

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["claimed", "refused", "refused", "refused"]
    assert len(refusals(ledger)) == 3
