"""The fleet's store against a real server: the contract of every store, with replicas in one and in many homes."""

from __future__ import annotations

import itertools
import os

import pytest
from store_contract import Clock, Place, StoreContract

from ledger.event import Origin
from ledger.fleet import create_fleet, open_fleet

_names = (f"T{n}" for n in itertools.count())


class Fleet(Place):
    """A ledger on a stream of its own; every opener here shares this machine's replica."""

    empty = 1

    def __init__(self, server) -> None:
        self.url = f"nats://{server.address}/{next(_names)}"
        create_fleet(self.url, Origin("cli:tester", "init"), {}, now=Clock())

    def open(self, clock=None):
        return (open_fleet(self.url, now=clock) if clock else open_fleet(self.url)).store

    def erase(self, store, seq):
        event = store.reader().event(seq)
        store.erase([event])
        store.query("UPDATE events SET salt = NULL, content = NULL WHERE seq = ?", (seq,))

    def content(self, store, event):
        return store.artifact(event)


class TestFleetStore(StoreContract):
    @pytest.fixture
    def place(self, server, home):
        return Fleet(server)


class ManyHomes(Fleet):
    """Every opener is another machine with a replica of its own."""

    def open(self, clock=None):
        os.environ["XDG_STATE_HOME"] = f"{self.root}/{next(_names)}"
        return super().open(clock)


class TestFleetStoreOfManyMachines(StoreContract):
    @pytest.fixture
    def place(self, server, home, monkeypatch):
        monkeypatch.setenv("XDG_STATE_HOME", str(home / "first"))
        made = ManyHomes(server)
        made.root = str(home)
        return made

    # Snapshots are each machine's own.
    test_a_snapshot_is_kept_with_what_its_transaction_appends = None
    test_content_over_64_mib_is_refused_and_takes_its_whole_batch_along = None  # as above, and slow


def test_erased_words_are_in_no_file_of_the_server(server, home):
    from ledger.event import Draft

    words = b"zanzibar words " * 20_000  # more than one chunk
    url = f"nats://{server.address}/{next(_names)}"
    create_fleet(url, Origin("cli:t", "init"), {})
    ledger = open_fleet(url)
    ledger.append([Draft("x-s/1", "x.t", b"{}", content=words)], Origin("cli:t", "append"))
    event = ledger.store.reader().event(2)
    assert any(b"zanzibar" in raw for raw in _files(server.folder))
    ledger.store.erase([event])
    assert not any(b"zanzibar" in raw for raw in _files(server.folder))
    assert ledger.store.objects.get([event.content_digest]) == {}
    ledger.store.close()


def _files(folder):
    for place, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(place, name), "rb") as file:
                yield file.read()
