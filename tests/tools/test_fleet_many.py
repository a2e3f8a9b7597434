"""Many ledgers on one cluster, small; and that docs/scale.md shows the streams as `init` makes them."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")


@pytest.mark.slow
def test_rows_and_costs_are_measured_on_real_ledgers(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [os.path.join(ROOT, "tools", "fleet"), *sys.path])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    import many

    monkeypatch.setattr(many, "SOME", 100)
    one, two, cost = many.run([1, 2], 0.5, 1000, 0.1)
    assert (one["ledgers"], two["writers"]) == (1, 2)
    assert one["appends_s"] > 0
    assert one["of_events"] > 1
    assert all(size > 1 for size in two["server_memory_mb"])
    assert cost["stream_bytes"] > cost["event_bytes"] > 300
    assert cost["content_bytes"] > many.CONTENT
    # A million events of so many bytes on three servers: gigabytes, and their price.
    assert cost["million_on_r3_gb"] == pytest.approx(cost["stream_bytes"] * 3e6 / 1e9, abs=0.01)
    assert cost["million_a_month"] == pytest.approx(cost["million_on_r3_gb"] * 0.1, abs=0.01)


def test_the_page_shows_stream_and_bucket_as_init_makes_them():
    from ledger.jetstream import Stream
    from ledger.nats_client import Link
    from ledger.nats_login import Login
    from ledger.objects import Objects

    with open(os.path.join(ROOT, "docs", "scale.md"), encoding="utf-8") as file:
        shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", file.read(), re.DOTALL)][-2:]
    link = Link([("127.0.0.1", 1)], Login())
    assert shown == [Stream(link, "NAME").config(3), Objects(link, "NAME").config(3)]
