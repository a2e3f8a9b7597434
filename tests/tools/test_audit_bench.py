"""The rows of `tools/bench/audit.py` come from real commands: small here, the numbers do not matter, that they are there does."""

import json
import os
import sys

import pytest

BENCH = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "bench")
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


def test_every_step_of_each_kind_of_work_is_done_and_git_is_timed_apart(bench, tmp_path):
    steps = bench.steps
    house, found = steps.House(str(tmp_path)), {}
    steps._round(house, "1", found, shim=True)
    kinds = {step.kind for step in found.values()}
    assert kinds == {"route", "receipt", "plan run", "dispatch", "session"}
    with_git = {name for name, step in found.items() if step.git[0] > 0}
    assert "round executed" in with_git
    assert not with_git & {"plan parse", "receipt consume", "route select"}
