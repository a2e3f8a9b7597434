"""A runs folder with a plan of five items, and the command line over a ledger of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from commands.entry import run as call

ROOT = str(Path(__file__).parents[3])
BUCKETS = ["urgent", "urgent", "soon", "soon", "later"]
DRAFT = '#!/bin/sh\ncat > item.json\necho x >> ../ran\nprintf \'Answer: 42.\\n\' > draft.md\necho PASS > verification.log\necho \'{"status":"draft_ready","draft_path":"draft.md"}\' > result.json\n'


@contextlib.contextmanager
def in_utc():
    """The machine's zone is UTC, for this process and those that it starts."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()


class House:
    """`gatebook` in this process (`cli`, `ok`) or in its own (`start`), today's run directory, and who calls."""

    def __init__(self, folder: Path, capfd, monkeypatch) -> None:
        self.folder = folder
        self.capture = capfd
        self.monkeypatch = monkeypatch
        monkeypatch.chdir(folder)
        for name in ("CODEX_SESSION_ID", "CLAUDECODE", "GATEBOOK_LEDGER", "GATEBOOK_ACTOR"):
            monkeypatch.delenv(name, raising=False)
        self.be("s1")
        self.now = datetime.now(UTC)
        self.today = self.now.date().isoformat()
        self.runs = folder / "runs"
        self.run = self.day(self.today)

    def be(self, session: str | None) -> None:
        """Call as that Codex session, or as nobody."""
        if session is None:
            self.monkeypatch.delenv("CODEX_THREAD_ID", raising=False)
        else:
            self.monkeypatch.setenv("CODEX_THREAD_ID", session)

    def day(self, name: str, count: int = 5, **more) -> Path:
        """A run directory with a fresh plan and its snapshot."""
        path = self.runs / name
        path.mkdir(parents=True, exist_ok=True)
        self.plan(path, count, **more)
        return path

    def plan(self, path: Path, count: int = 5, **more) -> None:
        items = [
            {
                "index": place, "bucket": BUCKETS[(place - 1) % 5], "course_id": 100001, "course_name": "Code A", "assignment_id": 200000 + place,
                "assignment_name": f"Set {place}", "due_at": None, "hours_left": 38.98, "live_state": "unsubmitted", "proposed_skill": "canvas-generic",
                "user_decision": None,
            }
            for place in range(1, count + 1)
        ]  # fmt: skip
        document = {
            "generated_at": (self.now - timedelta(hours=1)).isoformat(), "expires_at": (self.now + timedelta(hours=20)).isoformat(), "items": items, **more,
        }  # fmt: skip
        (path / "plan.json").write_text(json.dumps(document))
        (path / "assignments.json").write_text(
            json.dumps(
                [
                    {
                        "course_id": 100001,
                        "assignment_id": 200000 + place,
                        "skill": "canvas-generic",
                        "submission_types": ["online_upload"],
                    }
                    for place in range(1, count + 1)
                ]
            )  # fmt: skip
        )

    def cli(self, *words: str) -> tuple[int, dict | None, str]:
        self.capture.readouterr()
        code = call([str(word) for word in words])
        out, err = self.capture.readouterr()
        assert "internal error" not in err, err
        return code, json.loads(out) if out.strip() else None, err

    def on(self, *words: str, run: Path | None = None) -> tuple[int, dict | None, str]:
        """A command on the run directory."""
        return self.cli(*words[:2], "--run-dir", run or self.run, *words[2:])

    def ok(self, *words: str, run: Path | None = None) -> dict:
        code, document, err = self.on(*words, run=run)
        assert code == 0, (words, code, document, err)
        assert document is not None
        return document

    def refused(self, code: int, *words: str, run: Path | None = None) -> str:
        found, document, err = self.on(*words, run=run)
        assert found == code, (words, found, document, err)
        assert err.count("\n") == 1, err
        return err

    def ready(self, text: str = "all; defer 2") -> None:
        """Approved, claimed and prepared."""
        self.ok("plan", "approve", "--text", text)
        self.ok("run", "claim")
        self.ok("run", "prepare-results")

    def start(self, *words: str, **more) -> subprocess.Popen:
        """The command as a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "commands", *map(str, words)], env={**os.environ, "PYTHONPATH": ROOT, **more.pop("env", {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more,
        )  # fmt: skip

    def key(self, place: int) -> str:
        return f"course-100001__assignment-{200000 + place}"

    def result(self, place: int, run: Path | None = None) -> Path:
        return (run or self.run) / self.key(place) / "result.json"

    def put(self, place: int, result: dict, run: Path | None = None) -> bytes:
        path = self.result(place, run)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result))
        return path.read_bytes()

    def script(self, text: str = DRAFT, name: str = "worker.sh") -> str:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def ran(self) -> int:
        """How often the worker of `DRAFT` was started in today's run."""
        path = self.run / "ran"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def types(self) -> list[str]:
        """The types of all events, in order."""
        from ledger.access import open_ledger

        opened = open_ledger(str(self.folder / ".gatebook"))
        found = [event.type for event in opened.store.read()]
        opened.close()
        return found

    def state(self, day: str | None = None):
        from ledger.access import open_ledger
        from projections.engine import state_of

        opened = open_ledger(str(self.folder / ".gatebook"))
        found = state_of(opened, f"run/1-{day or self.today}")[0]
        opened.close()
        return found

    def restore(self, copy: Path) -> None:
        """The ledger as a backup had it, resumed as the successor of what was lost."""
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
            (self.folder / ".gatebook" / name).unlink(missing_ok=True)
        shutil.copy(copy, self.folder / ".gatebook" / "ledger.db")
        code, _, err = self.cli("resume", "--as-successor", "--reason", "test")
        assert code == 0, err

    def marker(self, run: Path | None = None) -> Path:
        return (run or self.run) / ".scan_in_progress"

    def processed(self) -> dict:
        return json.loads((self.runs / "_processed.json").read_text())
