"""What the tests of a fleet's ledger share."""

from __future__ import annotations

import pytest
from nats_servers import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server, R1, flushing before it acknowledges."""
    made = Server(tmp_path_factory.mktemp("nats")).start()
    yield made
    made.kill()
