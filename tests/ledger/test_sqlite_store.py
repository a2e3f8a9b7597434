"""The SQLite store: the contract of every store, and what only a file can suffer."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings
from store_contract import Place, StoreContract
from store_machine import StoreMachine

from ledger.sqlite import SQLiteStore, connect, create_schema


class Folder(Place):
    """A store without a genesis, in a folder of its own."""

    def __init__(self, folder) -> None:
        self.path = os.path.join(str(folder), "ledger.db")
        connection = connect(self.path, create=True)
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        connection.execute("BEGIN")
        create_schema(connection)
        connection.execute("COMMIT")
        connection.close()

    def open(self, clock=None):
        return SQLiteStore(self.path, now=clock) if clock else SQLiteStore(self.path)

    def erase(self, store, seq):
        connection = connect(self.path)
        connection.execute("UPDATE events SET salt = NULL, content = NULL WHERE seq = ?", (seq,))
        connection.close()

    def content(self, store, event):
        return store.artifact(event)


class TestSQLiteStore(StoreContract):
    @pytest.fixture
    def place(self, tmp_path):
        return Folder(tmp_path)


class SQLiteMachine(StoreMachine):
    make_place = staticmethod(Folder)


TestCoursesOfCalls = pytest.mark.slow(SQLiteMachine.TestCase)
TestCoursesOfCalls.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
