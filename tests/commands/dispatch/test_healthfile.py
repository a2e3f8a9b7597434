"""The provider-health file: what we write reads back, and everything malformed is refused with its place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.dispatch.healthfile import MAX_BYTES, parse_health, render
from ledger.errors import Invalid
from projections.cooldowns import MAX_COUNT, REASONS, Circuit
from projections.times import LATEST, SECOND, parse_time

GOOD = {
    "state": "open",
    "reason": "quota",
    "failure_count": 2,
    "last_failure_at": "2026-08-25T12:00:00Z",
    "unavailable_until": "2026-08-26T12:00:00Z",
    "probe_claimed_at": None,
}


def file(circuit=GOOD, key="openai|codex", **top):
    return json.dumps({"version": 1, "circuits": {key: circuit}, **top}).encode()


seconds = st.integers(0, LATEST // SECOND).map(lambda n: n * SECOND)


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["openai", "anthropic", "é"]), st.sampled_from(["native", "codex"])).map(
            "|".join
        ),
        st.builds(
            Circuit,
            st.sampled_from(REASONS),
            st.integers(1, MAX_COUNT),
            seconds,
            seconds,
            st.none() | seconds,
        ),
    )
)
def test_what_is_written_reads_back_and_is_written_the_same(circuits):
    raw = render(circuits)
    assert parse_health(raw) == circuits
    assert render(parse_health(raw)) == raw
    assert render(dict(reversed(circuits.items()))) == raw


def test_the_view_has_the_contracts_shape():
    circuit = Circuit("quota", 2, parse_time("2026-08-25T12:00:00Z"), parse_time("2026-08-26T12:00:00Z"))
    assert json.loads(render({"openai|codex": circuit})) == {"version": 1, "circuits": {"openai|codex": GOOD}}
    assert json.loads(render({})) == {"version": 1, "circuits": {}}


def test_a_foreign_file_may_use_offsets_and_fractions():
    found = parse_health(file({**GOOD, "unavailable_until": "2026-08-26T14:00:00.5+02:00"}))
    assert found["openai|codex"].probe_claimed_at is None
    assert found["openai|codex"].unavailable_until == parse_time("2026-08-26T12:00:00.5Z")


@pytest.mark.parametrize("field", sorted(GOOD))
@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {},
        True,
        0,
        -1,
        1.5,
        "",
        "x",
        2**53,
        "2026-08-25",
        "2026-08-25T12:00:00",
        None,
        ["quota"],
        {"a": 1},
    ],
    ids=repr,
)
def test_every_field_of_a_wrong_type_is_refused_naming_the_circuit(field, wrong):
    if field == "probe_claimed_at" and wrong is None:
        return
    with pytest.raises(Invalid, match=field):
        parse_health(file({**GOOD, field: wrong}))


@pytest.mark.parametrize("field", sorted(GOOD))
def test_every_missing_field_is_refused(field):
    with pytest.raises(Invalid, match=f"has no {field}"):
        parse_health(file({key: value for key, value in GOOD.items() if key != field}))


@pytest.mark.parametrize("state", ["closed", "half_open", "half-open", "OPEN"])
def test_only_open_circuits_stand_in_the_file(state):
    with pytest.raises(Invalid, match="state"):
        parse_health(file({**GOOD, "state": state}))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "openai",
        "|",
        "openai|",
        "|codex",
        "a|b|c",
        " |x",
        "a|\u0000",
        "a|e\u0301",
        "a" * 97 + "|x",
        "\ud800|x",
    ],
)
def test_what_is_no_endpoint_is_refused(key):
    with pytest.raises(Invalid):
        parse_health(file(key=key))


@pytest.mark.parametrize(
    "raw",
    [
        b"", b" ", b"null", b"[]", b"{}", b"1", b'"x"', b"{", b"\xff", b"\xef\xbb\xbf{}", b'{"version":1}', b'{"circuits":{}}',
        b'{"version":2,"circuits":{}}', b'{"version":true,"circuits":{}}', b'{"version":1.0,"circuits":{}}', b'{"version":"1","circuits":{}}',
        b'{"version":1,"circuits":[]}', b'{"version":1,"circuits":null}', b'{"version":1,"circuits":{},"more":1}', b'{"version":1,"circuits":{}} x',
        b'{"version":1,"circuits":{"a|b":null}}', b'{"version":1,"circuits":{"a|b":[]}}', b'{"version":1,"version":1,"circuits":{}}',
        b'{"version":NaN,"circuits":{}}', b"[" * 100_000, b'{"version":1,"circuits":{"a|b":{},"a|b":{}}}', b"{" + b" " * MAX_BYTES + b"}",
    ],
    ids=lambda raw: raw[:40].decode("latin-1"),
)  # fmt: skip
def test_a_file_of_the_wrong_shape_is_refused(raw):
    with pytest.raises(Invalid):
        parse_health(raw)


def test_an_unknown_key_in_a_circuit_is_refused():
    with pytest.raises(Invalid, match="unknown key 'note'"):
        parse_health(file({**GOOD, "note": "raw provider text"}))


@given(st.binary(max_size=80))
def test_no_bytes_at_all_make_it_fall_over(raw):
    try:
        parse_health(raw)
    except Invalid:
        return
