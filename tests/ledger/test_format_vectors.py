"""Golden vectors of format 1, kept for good (F37): recomputed here with blake3 and the standard library alone.

Only the last tests import our code, to hold it to the same bytes.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import json
import os
import re

import pytest
from blake3 import blake3

HERE = os.path.dirname(__file__)
ROOT = os.path.dirname(os.path.dirname(HERE))
with open(os.path.join(HERE, "vectors.json"), encoding="utf-8") as _file:
    VECTORS = json.load(_file)
EVENTS = VECTORS["events"]


def number(value):
    """RFC 8785 3.2.2.3, from Python's shortest digits."""
    if isinstance(value, int):
        return str(value)
    if value == 0:
        return "0"
    sign, digits = ("-", repr(-value)) if value < 0 else ("", repr(value))
    mantissa, _, power = digits.partition("e")
    whole, _, rest = mantissa.partition(".")
    rest = "" if rest == "0" else rest
    point = len(whole) + int(power or 0)
    figures = whole + rest
    lead = len(figures) - len(figures.lstrip("0"))
    figures, point = figures[lead:].rstrip("0"), point - lead
    if len(figures) <= point <= 21:
        return sign + figures.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{figures[:point]}.{figures[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{figures}"
    dot = "." if len(figures) > 1 else ""
    return f"{sign}{figures[0]}{dot}{figures[1:]}e{point - 1:+d}"


def jcs(value):
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{jcs(name)}:{jcs(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(jcs, value)) + "]"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number(value)
    return json.dumps(value, ensure_ascii=False)


def time_text(us):
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


def recompute():
    """(envelope, data, hash) of every event, from the inputs and the salts, by the rules of docs/format.md."""
    previous, last, versions = bytes(32), -1, {}
    for seq, vector in enumerate(EVENTS, 1):
        given = vector["input"]
        data = jcs(json.loads(given["data"])).encode()
        recorded = max(given["clock_us"], last + 1)
        last = recorded
        versions[given["stream"]] = versions.get(given["stream"], 0) + 1
        envelope = {
            "seq": seq, "stream": given["stream"], "version": versions[given["stream"]], "type": given["type"], "v": 1,
            "recorded_at": time_text(recorded), "actor": given["actor"], "via": given["via"],
            "data_digest": blake3(data).hexdigest(),
        }  # fmt: skip
        for name in ("correlation", "causation", "idempotency_key"):
            if name in given:
                envelope[name] = given[name]
        if recorded != given["clock_us"]:
            envelope["clock_behind"] = recorded - given["clock_us"]
        if "content" in given:
            envelope["content_digest"] = blake3(
                bytes.fromhex(vector["salt"]) + given["content"].encode()
            ).hexdigest()
        raw = jcs(envelope).encode()
        previous = blake3(previous + raw, derive_key_context="gatebook 2026 event v1").digest()
        yield raw, data, previous


def test_every_envelope_data_and_hash_is_recomputed_without_our_code():
    """F37"""
    for vector, (envelope, data, hash) in zip(EVENTS, recompute(), strict=True):
        assert envelope.decode() == vector["envelope"]
        assert data.decode() == vector["data"]
        assert hash.hex() == vector["hash"]
    assert len(EVENTS) == 6


def test_the_vectors_show_every_member_of_the_envelope():
    seen = {name for vector in EVENTS for name in json.loads(vector["envelope"])}
    assert seen == {
        "seq", "stream", "version", "type", "v", "recorded_at", "clock_behind", "actor", "via", "correlation",
        "causation", "idempotency_key", "data_digest", "content_digest",
    }  # fmt: skip
    assert not any(value is None for vector in EVENTS for value in json.loads(vector["envelope"]).values())


@pytest.mark.parametrize(("written", "canonical"), VECTORS["numbers"])
def test_each_number_is_recomputed_without_our_code(written, canonical):
    assert number(json.loads(written)) == canonical


def test_the_page_shows_these_vectors():
    """F20, F37: what docs/format.md prints is what the vectors hold."""
    with open(os.path.join(ROOT, "docs", "format.md"), encoding="utf-8") as file:
        page = file.read()
    for vector in EVENTS[:3]:
        assert vector["envelope"] in page
        assert vector["hash"] in page
    genesis = blake3(EVENTS[0]["envelope"].encode()).hexdigest()[:32]
    assert genesis in page


def test_the_script_on_the_page_verifies_a_real_ledger_and_finds_a_change(tmp_path, home):
    """The page's own checker, run as it stands there, in a process without our packages."""
    import subprocess
    import sys

    with open(os.path.join(ROOT, "docs", "format.md"), encoding="utf-8") as file:
        script = re.search(r"```python\n(.*?)```", file.read(), re.DOTALL)[1]
    assert "ledger." not in script.replace("ledger.db", "").replace("ledger.opened", "")
    from ledger.access import create_ledger
    from ledger.event import Draft, Origin

    made, _ = create_ledger(str(tmp_path / "l"), Origin("cli:t", "test"))
    made.append(
        [Draft("x-a/1", "x.a.b", b'{"a":1}', content=b"words") for _ in range(3)], Origin("cli:t", "test")
    )
    head, path = made.store.head(), made.path
    made.close()
    (tmp_path / "check.py").write_text(script, encoding="utf-8")

    def check():
        done = subprocess.run(
            [sys.executable, "-P", "check.py", path], cwd=tmp_path, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    assert check() == (0, f"4 events, head {head.hash.hex()}\n")
    import sqlite3

    with sqlite3.connect(path) as db:
        db.execute("DROP TRIGGER events_fixed")
        db.execute("UPDATE events SET data = CAST('{\"a\":2}' AS BLOB) WHERE seq = 3")
    db.close()
    code, text = check()
    assert code == 1
    assert "event 3" in text


def test_our_code_seals_the_same_inputs_to_the_same_bytes(monkeypatch):
    """F37, F73"""
    spec = importlib.util.spec_from_file_location(
        "format_vectors", os.path.join(ROOT, "tools", "format_vectors.py")
    )
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    monkeypatch.setattr(os, "urandom", os.urandom)  # the maker sets it; put back afterwards
    got = [(event.envelope.decode(), event.data.decode(), event.hash.hex()) for _, event in maker.sealed()]
    assert got == [(vector["envelope"], vector["data"], vector["hash"]) for vector in EVENTS]


@pytest.mark.parametrize(("written", "canonical"), VECTORS["numbers"])
def test_our_code_writes_each_number_so(written, canonical):
    from ledger.canonical import canonical as ours

    assert ours('{"n":' + written + "}") == b'{"n":' + canonical.encode() + b"}"


@pytest.mark.parametrize("raw", VECTORS["refused"].values(), ids=VECTORS["refused"].keys())
def test_our_code_refuses_each_text_that_must_be_refused(raw):
    from ledger.canonical import canonical as ours
    from ledger.errors import Invalid

    with pytest.raises(Invalid):
        ours(raw)
