"""The rows of `tools/bench/audit.py` come from real commands: small here, the numbers do not matter, that they are there does."""

import json
import os
import sys

import pytest

BENCH = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "bench")
HEAVY = {
    "typing_extensions", "structlog", "sqlite_utils", "rich", "yaml", "argparse", "logging", "pathlib", "dataclasses", "inspect", "hashlib", "tomllib",
    "shutil", "tempfile", "random", "threading", "sqlite3", "urllib", "asyncio",
}  # fmt: skip
PROBE = """
import os, sys
from commands.entry import run
code = run(sys.argv[1:])
sys.stdout.flush()
with open(os.environ["XDG_STATE_HOME"] + "/../loaded", "a") as file:
    print(" ".join(sys.argv[1:4]), "|", *sys.modules, file=file)
os._exit(code)
"""
SHAPE = {"work", "measured", "unit", "limit", "at_most", "kept", "detail"}


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The module, with a state directory of its own."""
    monkeypatch.setattr(sys, "path", [BENCH, *sys.path])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    import audit

    return audit


def test_views_time_travel_and_proofs_are_measured_on_a_real_ledger(bench, tmp_path):
    large, small = str(tmp_path / "large"), str(tmp_path / "small")
    count = bench.fill(large, 2_000)
    bench.fill(small, 1_000)
    rows = bench.rebuild_rows(large, small)
    rows += bench.travel_rows(large, count, rounds=1)
    rows += bench.proof_rows(large, small, rounds=1)
    assert [set(row) for row in rows] == [SHAPE] * 6
    assert rows[0]["detail"].startswith(f"{count:,} events")
    assert all(row["measured"] > 0 for row in (rows[0], rows[1], *rows[4:]))
    assert json.loads(bench.run(large, "replay", "--json")[2])["ok"]


def test_every_step_of_each_kind_of_work_is_done_and_git_is_timed_apart(bench, tmp_path, monkeypatch):
    """And none loads what it does not use; the program that `dispatch verify` runs, and `receipt issue`, are another matter."""
    steps = bench.steps
    monkeypatch.setattr(steps, "GATEBOOK", [sys.executable, "-c", PROBE])
    house, found = steps.House(str(tmp_path)), {}
    steps._round(house, "1", found, shim=True)
    kinds = {step.kind for step in found.values()}
    assert kinds == {"route", "receipt", "plan run", "dispatch", "session"}
    with_git = {name for name, step in found.items() if step.git[0] > 0}
    assert "round executed" in with_git
    assert not with_git & {"plan parse", "receipt consume", "route select"}
    lines = (tmp_path / "loaded").read_text().splitlines()
    assert len(lines) > len(found)
    for line in lines:
        words, _, modules = line.partition(" | ")
        spared = {"dispatch verify": {"threading"}, "receipt issue": {"hashlib"}}.get(
            " ".join(words.split()[:2]), set()
        )
        assert not HEAVY.intersection(modules.split()) - spared, words
