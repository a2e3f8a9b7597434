"""Commands killed at random moments; the long run is tools/soak/kills.py."""

from __future__ import annotations

import importlib.util
import os

import pytest
from program import ROOT

_spec = importlib.util.spec_from_file_location("kills", os.path.join(ROOT, "tools", "soak", "kills.py"))
kills = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kills)


@pytest.mark.slow
def test_whatever_a_killed_command_leaves_the_next_one_goes_on(tmp_path):
    """F1, F102: init, append and route with its shared file."""
    report = kills.soak(3, seed=7)
    assert report["problems"] == []
    assert report["killed"] > 6
