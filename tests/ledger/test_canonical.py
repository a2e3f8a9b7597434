"""Canonical bytes against two independent implementations: one written here, one from PyPI (rfc8785)."""

from __future__ import annotations

import json
import math
import struct
import sys
from decimal import Decimal

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ledger import canonical as ours
from ledger.errors import Invalid

SAFE = 2**53 - 1


def ecmascript(value: float) -> str:
    """Number::toString (ECMA-262 6.1.6.1.20) by decimal digits: not the way our code goes."""
    if value == 0:
        return "0"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    exponent += len(digits) - len(text)
    k, n = len(text), exponent + len(text)
    if k <= n <= 21:
        out = text + "0" * (n - k)
    elif 0 < n <= 21:
        out = text[:n] + "." + text[n:]
    elif -6 < n <= 0:
        out = "0." + "0" * -n + text
    else:
        tail = f"e{'+' if n > 0 else '-'}{abs(n - 1)}"
        out = (text if k == 1 else f"{text[0]}.{text[1:]}") + tail
    return "-" * sign + out


def jcs(value) -> str:
    """RFC 8785, small and slow."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, str):
        short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
        return '"' + "".join(short.get(ord(c), c if c >= " " else f"\\u{ord(c):04x}") for c in value) + '"'
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return ecmascript(value)
    if isinstance(value, list):
        return "[" + ",".join(map(jcs, value)) + "]"
    names = sorted(
        value,
        key=lambda name: struct.unpack(f">{len(name.encode('utf-16-be')) // 2}H", name.encode("utf-16-be")),
    )
    return "{" + ",".join(f"{jcs(name)}:{jcs(value[name])}" for name in names) + "}"


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.text(
    st.sampled_from('a"\\\b\f\n\r\t\x00\x1f\x7f\u0080\u2028\ue000\ufffd\U00010000\U0010ffff'), max_size=6
)
numbers = st.integers(-SAFE, SAFE) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)
objects = st.dictionaries(texts, values, max_size=6)
whole = st.recursive(
    st.none() | st.booleans() | st.integers(-SAFE, SAFE) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(objects)
@example({"\ue000": 1, "\U00010000": 2})
@example({"a": 1e16, "b": -0.0, "c": 5e-324, "d": 1e21, "e": 1e-7, "f": 0.000001})
@settings(max_examples=200, deadline=None)
def test_written_bytes_are_those_of_two_independent_implementations(value):
    written = ours.encode(value)
    assert written == jcs(value).encode()
    assert written == rfc8785.dumps(value)
    assert ours.is_canonical(written, floats=True)


@given(objects, st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=200, deadline=None)
def test_the_fast_path_and_the_careful_path_give_the_same_bytes(value, escaped, indent):
    raw = json.dumps(value, ensure_ascii=escaped, indent=indent).encode()
    careful = ours._canonical(raw, what="data", floats=True, stored=False)
    assert ours.canonical(raw) == careful == jcs(json.loads(raw)).encode()
    assert ours._fast_canonical(raw) in (None, careful)
    assert ours.is_canonical(careful, floats=True)


@given(st.dictionaries(texts, whole, max_size=5))
@settings(max_examples=200, deadline=None)
def test_core_data_is_written_alike_with_and_without_floats_allowed(value):
    raw = json.dumps(value).encode()
    assert ours.canonical(raw, floats=False) == ours.canonical(raw, floats=True)
    assert ours.is_canonical(ours.canonical(raw), floats=False)


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=400, deadline=None)
def test_doubles_are_written_as_ecmascript_writes_them(value):
    assert ours.number(value) == ecmascript(value)
    assert float(ours.number(value)) == value
    stored = b'{"a":%b}' % ours.number(value).encode()
    assert ours.is_canonical(stored, floats=True)


@pytest.mark.parametrize(
    ("bits", "text"),
    [  # RFC 8785 appendix B
        ("0000000000000000", "0"), ("8000000000000000", "0"), ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"), ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"), ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"), ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"), ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"), ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"), ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"), ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"), ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)  # fmt: skip
def test_the_numbers_of_rfc_8785_appendix_b(bits, text):
    assert ours.number(struct.unpack(">d", bytes.fromhex(bits))[0]) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused_in_python_values_too(value):
    """F31"""
    with pytest.raises(Invalid):
        ours.encode({"a": value})


@pytest.mark.parametrize(
    "word", ["NaN", "Infinity", "-Infinity", "nan", "1e999", "-1e400", "0x10", "01", "+1", ".5", "1.", "--1"]
)
@pytest.mark.parametrize("form", ["%s", "[%s]", '{"b":[1,%s]}', "[[[%s]]]"])
def test_nan_infinity_and_other_non_numbers_are_refused_and_never_become_null(word, form):
    """F31"""
    raw = '{"a":%s}' % (form % word)
    for floats in (True, False):
        with pytest.raises(Invalid):
            ours.canonical(raw, floats=floats)
    assert not ours.is_canonical(raw.encode(), floats=True)


@pytest.mark.parametrize("number", [SAFE, -SAFE, 10**15, 0])
def test_integers_up_to_two_to_the_53_minus_1_are_kept(number):
    """F32"""
    raw = b'{"a":%d}' % number
    assert ours.canonical(raw, floats=False) == ours.canonical(raw) == raw
    assert ours.is_canonical(raw, floats=False)


@pytest.mark.parametrize("digits", [str(2**53), str(-(2**53)), str(2**63), str(2**64), "1" * 4301, "-" + "9" * 4301, "1" + "0" * 100_000], ids=lambda digits: f"{digits[:5]}…{len(digits)}")  # fmt: skip
@pytest.mark.parametrize("form", ['{"a":N}', '{"b":[{"a":N}]}'])
def test_larger_integers_are_refused_with_their_place(digits, form):
    """F32: also those that Python itself refuses to read (4301 digits)."""
    for floats in (True, False):
        with pytest.raises(Invalid, match=r"2\^53-1.* at \$\.") as refused:
            ours.canonical(form.replace("N", digits), floats=floats)
        assert len(str(refused.value)) < 200
    if len(digits) < 30:
        with pytest.raises(Invalid):
            ours.encode({"a": int(digits)})


@pytest.mark.parametrize("word", ["1.0", "1e3", "-0", "-0.0", "0.1", "1E2"])
def test_core_data_has_integers_only(word):
    with pytest.raises(Invalid, match=r"\$\.a\[0\]"):
        ours.canonical('{"a":[N]}'.replace("N", word), floats=False)


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        ("-0", "0"),
        ("-0.0", "0"),
        ("1.0", "1"),
        ("1E2", "100"),
        ("1e16", "10000000000000000"),
        ("1e-7", "1e-7"),
    ],
)
def test_custom_data_writes_numbers_as_jcs_says(raw, written):
    assert ours.canonical('{"a":N}'.replace("N", raw)) == b'{"a":%b}' % written.encode()
    assert ours.is_canonical(b'{"a":%b}' % written.encode(), floats=True)


@pytest.mark.parametrize("stored", [b'{"a":1.0}', b'{"a":-0}', b'{"a":1e2}', b'{"a":1E+21}', b'{"b":1,"a":2}', b'{"a": 1}', b'{"a":1}\n', b' {"a":1}', b'{"a":"\\u0041"}', b'{"a":"\\/"}', b'{"\xee\x80\x80":1,"\xf0\x90\x80\x80":2}', b'{"a":"\\u001F"}', b"[1]", b'"a"', b"", b'{"a":1e16}', b'{"a":9007199254740993}', b"\xef\xbb\xbf{}"])  # fmt: skip
def test_bytes_in_any_other_form_are_not_canonical(stored):
    assert not ours.is_canonical(stored, floats=True)


@pytest.mark.parametrize(
    "raw",
    [
        '{"a":1,"a":1}', '{"b":{"a":1,"a":2}}', '{"b":[[{"a":null,"a":null}]]}', '{"\\u0061":1,"a":2}',
        '{"é":1,"é":2}', '{"":1,"":2}', '{"c":{"a":1,"b":2,"a":3},"d":{"x":1,"x":1}}',
    ],
)  # fmt: skip
def test_a_key_twice_is_refused_at_any_depth(raw):
    with pytest.raises(Invalid, match="stands twice"):
        ours.canonical(raw)
    assert not ours.is_canonical(raw.encode(), floats=True)


def test_keys_that_differ_only_in_unicode_form_are_two_keys():
    """F36: what canonical bytes keep apart stays apart."""
    raw = '{"\u00e9":1,"e\u0301":2}'
    assert ours.canonical(raw) == '{"e\u0301":2,"\u00e9":1}'.encode()


@pytest.mark.parametrize(
    "raw",
    [
        '{"a":"\\ud800"}',
        '{"a":"\\udc00x"}',
        '{"\\ud800":1}',
        '{"a":["\\udfff\\ud800"]}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\xff"}',
        b"\xff",
        b'{"a":"\xc3"}',
    ],
)
def test_text_that_is_not_unicode_is_refused(raw):
    with pytest.raises(Invalid):
        ours.canonical(raw)


def test_a_surrogate_pair_is_one_character():
    assert ours.canonical('{"a":"\\ud83d\\ude00"}') == '{"a":"😀"}'.encode()


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_64_is_allowed_and_65_is_not(opening):
    closing = "]" if opening == "[" else "}"

    def nested(depth):
        return '{"k":' + opening * (depth - 1) + "1" + closing * (depth - 1) + "}"

    assert ours.canonical(nested(64)) == nested(64).encode()
    assert ours.is_canonical(nested(64).encode(), floats=False)
    for depth in (65, 66, 1000, 100_000):
        with pytest.raises(Invalid, match="deeper than 64"):
            ours.canonical(nested(depth))
        assert not ours.is_canonical(nested(depth).encode(), floats=True)
    with pytest.raises(Invalid):
        ours.canonical(opening * 100_000)


def test_brackets_in_text_and_side_by_side_are_not_depth():
    raw = json.dumps({"a": "[" * 500, "b": [[]] * 200}, separators=(",", ":")).encode()
    assert ours.canonical(raw) == raw


@pytest.mark.parametrize(
    "raw",
    [
        "",
        " ",
        "{",
        '{"a"',
        '{"a":}',
        "{} {}",
        "{}x",
        '{"a":1,}',
        "[1]",
        "null",
        "1",
        '"a"',
        "{'a':1}",
        '{"a":"\n"}',
        '{"a":"\\x"}',
        "﻿{}",
        '{"a":"\\u12"}',
        "\x00",
        "{}\x00",
        '{"a":tru}',
    ],
)
def test_what_is_not_one_json_object_is_refused_in_one_line(raw):
    with pytest.raises(Invalid) as refused:
        ours.canonical(raw, what="--data")
    assert str(refused.value).startswith("--data")
    assert "\n" not in str(refused.value)


def test_a_refusal_names_line_and_column():
    with pytest.raises(Invalid, match="line 3, column 2"):
        ours.canonical('{"a":1,\n"b":2,\n x}')


@pytest.mark.parametrize("value", [{1: 2}, {"a": b"x"}, {"a": {1}}, {"a": object()}, {None: 1}])
def test_python_values_without_a_json_form_are_refused(value):
    with pytest.raises(Invalid):
        ours.encode(value)


@given(st.binary(max_size=40) | texts.map(str.encode))
@settings(max_examples=200, deadline=None)
def test_any_bytes_at_all_are_canonicalised_or_refused(raw):
    try:
        written = ours.canonical(raw)
    except Invalid:
        return
    assert json.loads(written) == json.loads(raw)


def test_the_scanner_works_without_the_json_module(tmp_path):
    """A malformed text in a process that never imported json: one clear refusal, not CPython's SystemError."""
    import subprocess

    code = "import sys; from ledger.canonical import canonical; from ledger.errors import Invalid\nassert 'json' not in sys.modules\ntry: canonical('{x')\nexcept Invalid as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("data: "), done
