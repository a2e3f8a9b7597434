"""What another machine erased goes from this machine's files too, be it later."""

from __future__ import annotations

import fcntl
import os

import apsw
import pytest

from commands.fleet_checks import check_fleet
from ledger.event import Draft, Origin
from ledger.fleet import create_fleet, open_fleet
from ledger.replica import FleetStore

ORIGIN = Origin("cli:tester", "test")
WORDS = b"SECRET words"


@pytest.fixture
def machines(server, tmp_path, monkeypatch, request):
    """Two machines' ledgers, the second of which has followed one content; `open_as(n)` opens again."""
    url = f"nats://{server.address}/{request.node.name[:40].replace('[', '-').replace(']', '')}"

    def open_as(n):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / f"machine-{n}"))
        return open_fleet(url)

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "machine-1"))
    create_fleet(url, ORIGIN, {})
    one = open_as(1)
    one.append([Draft("x-a/1", "x.a", b"{}", content=WORDS)], ORIGIN)
    two = open_as(2)
    assert WORDS in everything(two)
    yield one, two, open_as
    one.close()
    two.close()


def everything(ledger) -> bytes:
    found = b""
    for folder, _, names in os.walk(ledger.folder):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                found += file.read()
    return found


def erase(ledger):
    from projections.engine import Proposal, submit
    from projections.ledger_stream import Redacted

    def decide(world):
        world.reader.erase(2)
        return [Proposal("ledger", "ledger.redacted", Redacted((2,)), content=b"personal")]

    submit(ledger, ORIGIN, decide)


def test_while_somebody_reads_an_old_snapshot_the_purge_is_owed(machines):
    one, two, open_as = machines
    reader = apsw.Connection(two.path)
    reader.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    reader.execute("BEGIN; SELECT count(*) FROM events").fetchall()
    erase(one)
    two.store.follow()
    assert WORDS in everything(two)
    assert [each.level for each in check_fleet(two) if each.name == "contents"] == ["problem"]
    reader.execute("ROLLBACK")
    reader.close()
    two.store.follow()
    assert WORDS not in everything(two)
    assert not os.path.lexists(two.store.owed)


def test_views_that_are_being_made_meanwhile_are_removed_later(machines):
    one, two, open_as = machines
    views = os.path.join(two.folder, "views.db")
    with open(os.path.join(two.folder, "views.lock"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        erase(one)
        two.store.follow()
        with open(views, "wb") as file:
            file.write(WORDS)
    two.store.follow()
    assert WORDS not in everything(two)


def test_whoever_dies_before_the_purge_leaves_it_to_the_next(machines, monkeypatch):
    one, two, open_as = machines
    erase(one)

    def dies(_self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FleetStore, "_purge", dies)
        with pytest.raises(KeyboardInterrupt):
            two.store.follow()
    again = open_as(2)
    assert WORDS not in everything(again)
    again.close()
