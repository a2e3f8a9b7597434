"""The house that plan runs are tried in."""

import pytest
from plan_house import House, in_utc


@pytest.fixture
def house(tmp_path, home, capfd, monkeypatch):
    """A new ledger beside a runs folder whose today has a plan of five items."""
    with in_utc():
        made = House(tmp_path, capfd, monkeypatch)
        assert made.cli("init")[0] == 0
        yield made
