"""A real cluster of three, shortly: the long runs are `python tools/fleet/faults.py`."""

from __future__ import annotations

import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tools", "fleet"))

import faults


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_and_histories_are_linearizable(tmp_path, home):
    """The leader is killed under load, then all three."""
    verdict = faults.scenario("leader+all", str(tmp_path), seconds=2, writers=3)
    assert verdict["ok"], verdict
    assert verdict["acknowledged"] > 0
    assert len(verdict["faults"]) >= 2
