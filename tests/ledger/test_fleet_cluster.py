"""A real cluster of three, shortly: the long runs are `python tools/fleet/faults.py`."""

from __future__ import annotations

import os
import sys
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tools", "fleet"))

import faults
from nats_servers import Cluster
from store_contract import add, draft, whole

from ledger.errors import Unavailable
from ledger.event import Origin
from ledger.fleet import create_fleet, open_fleet


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_and_histories_are_linearizable(tmp_path, home):
    """The leader is killed under load, then all three; then acknowledgements are lost."""
    verdict = faults.scenario("leader+all+ack", str(tmp_path), seconds=2, writers=3)
    assert verdict["ok"], verdict
    assert verdict["acknowledged"] > 0
    assert len(verdict["faults"]) >= 3


def test_the_check_finds_what_was_recorded_twice_or_against_what_was_said():
    said = [
        {"who": "a", "what": "append", "n": n, "answer": a}
        for n, a in ((1, "ok"), (2, "unavailable"), (3, None))
    ]

    class Event:
        type, stream = "x.work.done", "x-work/a"

        def __init__(self, n):
            self.data = b'{"n":%d}' % n

    assert faults.against_what_was_said(said, [Event(1), Event(3)]) == (0, 0)
    assert faults.against_what_was_said(said, [Event(1), Event(1), Event(2)]) == (1, 1)


@pytest.mark.slow
def test_without_a_majority_reading_goes_on_and_writing_is_refused_as_for_now(tmp_path, home, monkeypatch):
    """Exit 75, not 4: one server of three can say that it cannot, and that is no refusal."""
    monkeypatch.setattr("ledger.replica.PATIENCE", 1.0)
    monkeypatch.setattr("ledger.jetstream.PUBLISH_SECONDS", 1.0)
    cluster = Cluster(tmp_path / "servers").start()
    url = cluster.url("team")
    deadline = time.monotonic() + 30
    while True:
        try:
            create_fleet(url, Origin("cli:tester", "test"), {})
            break
        except Unavailable:
            assert time.monotonic() < deadline
    ledger = open_fleet(url)
    add(ledger, draft())
    for server in cluster.servers[:2]:
        server.kill()
    with pytest.raises(Unavailable, match="nothing was recorded|may or may not"):
        add(ledger, draft())
    ledger.close()
    again = open_fleet(url)
    assert len(whole(again.store)) == 2
    again.close()
    cluster.kill()
