"""A project with a ledger, a rubric and a git history, and `gatebook dispatch …` run in it."""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time

from commands import entry

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
RUBRIC = """models:
  - {name: claude-a, effort: high, provider: anthropic, taste: 10}
  - {name: gpt-b, effort: high, provider: openai, via: codex, taste: 9}
  - {name: gem-c, effort: low, provider: google, via: gemini, taste: 9}
routing: {orchestrator: gpt-b@high, default: gpt-b@high, taste: claude-a@high, independent: claude-a@high, other: gem-c@low, taste_min: 9}
fallbacks: {taste: [gem-c@low], other: [claude-a@high]}
"""
KEYS = {
    "status": str,
    "route": {
        "requested": str, "actual_model": str, "effort": str, "provider": str, "executor": str, "resolution": str, "attempted": list,
        "fallback_reason": str,
    },
    "artifacts": {"files": list, "report": str},
    "evidence": {"fixed_target": list, "checks": list, "outcome": str},
    "telemetry": {"attempts": int, "elapsed": (int, float), "verification_failures": int, "token_or_quota_usage": str},
    "shelby": {"project_id": str, "run_id": str, "checkpoint_ids": list},
    "blockers": list,
}  # fmt: skip


def assert_complete(result, keys=KEYS):
    assert list(result) == list(keys)
    for name, kind in keys.items():
        if isinstance(kind, dict):
            assert_complete(result[name], kind)
        else:
            assert isinstance(result[name], kind), (name, result[name])


class Bench:
    """`run(...)` does one command in-process; `native` and `executor` make programs out of Python text."""

    def __init__(self, folder, capsys, monkeypatch):
        self.folder = folder
        self.capsys = capsys
        self.work = folder / "project"
        self.work.mkdir()
        for name in ("STATE", "CACHE", "CONFIG"):
            monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
        monkeypatch.setenv("HOME", str(folder / "home"))
        (folder / "home").mkdir()
        (folder / "tmp").mkdir()
        monkeypatch.setattr(
            tempfile, "tempdir", str(folder / "tmp")
        )  # reports are kept, and tests keep nothing
        monkeypatch.setenv("GATEBOOK_ACTOR", "agent:parent")
        monkeypatch.delenv("GATEBOOK_LEDGER", raising=False)
        monkeypatch.delenv("GATEBOOK_CODEX_BIN", raising=False)
        monkeypatch.delenv("CODEX_THREAD_ID", raising=False)
        self.rubric = folder / "rubric.yaml"
        today = time.strftime("%Y-%m-%d", time.gmtime())
        self.rubric.write_text(f"{RUBRIC}reviewed: {today}\n")
        monkeypatch.chdir(self.work)
        assert entry.run(["init"]) == 0
        capsys.readouterr()

    def git(self, *args, cwd=None):
        quiet = ["-c", "user.name=n", "-c", "user.email=e@example.invalid", "-c", "init.defaultBranch=main"]
        done = subprocess.run(
            ["git", *quiet, *args], cwd=cwd or self.work, capture_output=True, text=True, check=True
        )
        return done.stdout

    def repository(self):
        (self.work / "kept.txt").write_text("kept\n")
        (self.work / ".gitignore").write_text("ignored/\n")
        self.git("init", "-q")
        self.git("add", ".")
        self.git("commit", "-q", "-m", "first")

    def request(self, **changed):
        document = {
            "operation": "execute",
            "route": "taste",
            "outcome": "out.txt says done",
            "authority": {"working_directory": str(self.work), "allowed_paths": [str(self.work)]},
            "verification": {"seam": ["grep", "-q", "done", "out.txt"], "fixed_target": ["out.txt"]},
            "artifacts": ["out.txt"],
        }
        for name, value in changed.items():
            if isinstance(value, dict) and isinstance(document.get(name), dict):
                document[name] = {**document[name], **value}
            elif value is ...:
                del document[name]
            else:
                document[name] = value
        return document

    def write(self, document, name="request.json"):
        path = self.folder / name
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    def program(self, text, name="native.py"):
        path = self.folder / name
        path.write_text("import json, os, sys\npacket = json.load(sys.stdin)\n" + textwrap.dedent(text))
        return f"{sys.executable} {path}"

    def config(self, text):
        path = self.folder / "config" / "gatebook" / "config.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    def executor(self, name, text, **more):
        command = json.dumps(self.program(text, f"{name}.py").split())
        extra = "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
        self.config(f"[executors.{name}]\ncommand = {command}\n{extra}")

    def gatebook(self, *args):
        """(exit code, the JSON on stdout, stderr)."""
        code = entry.run([str(arg) for arg in args])
        told = self.capsys.readouterr()
        return code, json.loads(told.out) if told.out else None, told.err

    def run(self, document, native=None, executors="gemini", provider="anthropic", more=()):
        """`dispatch run` of a request: (exit code, the result)."""
        path = document if isinstance(document, str) and document.startswith("/") else self.write(document)
        args = [
            "dispatch",
            "run",
            path,
            "--rubric",
            self.rubric,
            "--native-provider",
            provider,
            "--executors",
            executors,
            *more,
        ]
        if native is not None:
            args += ["--native", self.program(native)]
        code, result, told = self.gatebook(*args)
        assert result is not None, told
        return code, result

    def events(self, kind="dispatch"):
        from ledger.access import open_ledger
        from projections.engine import fact_of

        ledger = open_ledger(str(self.work / ".gatebook"))
        try:
            reader = ledger.store.reader()
            facts = [fact_of(event) for stream in reader.streams(kind) for event in reader.stream(stream)]
            return sorted(facts, key=lambda fact: fact.seq)
        finally:
            ledger.close()

    def types(self):
        return [fact.type for fact in self.events()]

    def circuits(self):
        path = self.folder / "state" / "gatebook" / "provider-health.json"
        return json.loads(path.read_text())["circuits"] if path.exists() else {}


DONE = """
    open("out.txt", "w").write("done")
    print("I did it.")
"""
