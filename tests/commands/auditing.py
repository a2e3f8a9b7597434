"""A ledger in a scratch directory, driven through the command line in this process, and ways to damage it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3

from commands.entry import run
from ledger.event import ZERO_HASH, chain_hash
from ledger.sqlite import SCHEMA


class Cli:
    """Runs `gatebook ARGUMENTS` in this process; `ledger` is where its ledger lies."""

    def __init__(self, folder, capfd, monkeypatch) -> None:
        self.folder = str(folder)
        self.ledger = os.path.join(self.folder, ".gatebook")
        self.database = os.path.join(self.ledger, "ledger.db")
        self.capture = capfd
        self.monkeypatch = monkeypatch
        self.home(folder)
        for name in ("GATEBOOK_LEDGER", "GATEBOOK_ACTOR", "CODEX_THREAD_ID"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.chdir(self.folder)

    def home(self, folder) -> None:
        """Be another machine (or this one again): its state, configuration and cache lie below `folder`."""
        for name in ("STATE", "CONFIG", "CACHE"):
            self.monkeypatch.setenv(f"XDG_{name}_HOME", os.path.join(str(folder), name.lower()))

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self.capture.readouterr()
        code = run([*map(str, arguments)])
        out, err = self.capture.readouterr()
        assert "Traceback" not in err
        assert "internal error" not in err, err
        return code, out, err

    def ok(self, *arguments: str) -> str:
        code, out, err = self(*arguments)
        assert code == 0, (arguments, code, out, err)
        return out

    def json(self, *arguments: str):
        return json.loads(self.ok(*arguments))

    def note(self, number: int, **more: str) -> int:
        """Append one note; its seq."""
        flags = [part for name, value in more.items() for part in (f"--{name}", value)]
        data = json.dumps({"n": number})
        return self.json("append", "--stream", "x-notes/1", "--type", "x.note", "--data", data, *flags)["seq"]

    def notes(self, count: int) -> None:
        """Append `count` notes as one batch."""
        lines = [
            json.dumps({"stream": "x-notes/1", "type": "x.note", "data": {"n": n}}) for n in range(count)
        ]
        path = os.path.join(self.folder, "batch.ndjson")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        self.ok("append", "--batch", path)

    def write(self, name: str, text: str) -> str:
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def plain(self, statement: str) -> list[tuple]:
        """Rows of a statement; the ledger stays as it is."""
        connection = sqlite3.connect(self.database, isolation_level=None)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    @contextlib.contextmanager
    def _forging(self):
        """Whoever can write the file: the triggers are away meanwhile, and back afterwards."""
        connection = sqlite3.connect(self.database, isolation_level=None)
        triggers = ("events_in_order", "events_fixed", "events_kept")
        try:
            for name in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            yield connection
            for name in triggers:
                connection.execute(SCHEMA[name])
        finally:
            connection.close()

    def sql(self, *statements: str) -> list[tuple]:
        """Run statements that no trigger stops; the rows of the last one."""
        with self._forging() as connection:
            rows: list[tuple] = []
            for statement in statements:
                rows = connection.execute(statement).fetchall()
            return rows

    def rewrite(self, seq: int, old: bytes, new: bytes) -> None:
        """Change event `seq`'s envelope and make every hash after it fit: a new history, whole in itself."""
        with self._forging() as connection:
            previous = ZERO_HASH
            for number, envelope in connection.execute(
                "SELECT seq, envelope FROM events ORDER BY seq"
            ).fetchall():
                if number == seq:
                    assert old in envelope
                    envelope = envelope.replace(old, new)
                previous = chain_hash(previous, envelope)
                connection.execute(
                    "UPDATE events SET envelope = ?, hash = ? WHERE seq = ?", (envelope, previous, number)
                )

    def record(
        self, stream: str, type: str, data: dict | None = None, content: str | None = None, **more
    ) -> int:
        """Append an event past all admission, as if its command had recorded it; its seq."""
        from ledger.access import open_ledger
        from ledger.canonical import encode
        from ledger.event import Draft, Origin

        actor = more.pop("actor", "cli:anna")
        ledger = open_ledger(self.ledger)
        try:
            raw = None if content is None else content.encode()
            draft = Draft(stream, type, encode(data or {}), content=raw, **more)
            return ledger.append([draft], Origin(actor, "test")).events[0].seq
        finally:
            ledger.close()
