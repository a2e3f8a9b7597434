"""Fixtures of the command line's tests."""

from __future__ import annotations

import pytest
from auditing import Cli


@pytest.fixture
def cli(tmp_path, capfd, monkeypatch):
    """The command line with a new ledger in a scratch directory."""
    made = Cli(tmp_path, capfd, monkeypatch)
    made.ok("init")
    return made
