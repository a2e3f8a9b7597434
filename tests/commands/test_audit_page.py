"""docs/audit.md is true: its commands are run in order, and what it shows of their answers holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from commands.audit.queries import NAMED

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = "-- the next block --"


def page() -> str:
    with open(os.path.join(ROOT, "docs", "audit.md"), encoding="utf-8") as file:
        return file.read()


def holds(shown, real) -> bool:
    """Whether everything shown stands in the real answer; more may stand beside it."""
    if isinstance(shown, dict):
        return isinstance(real, dict) and all(
            name in real and holds(value, real[name]) for name, value in shown.items()
        )
    return shown == real


def test_every_command_of_the_page_does_what_the_page_shows(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gatebook").write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m commands "$@"\n'
    )
    (programs / "gatebook").chmod(0o755)
    os.symlink(sys.executable, programs / "python3")
    place = tmp_path / "work"
    place.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **{f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("STATE", "CACHE", "CONFIG")},
    }
    for name in ("GATEBOOK_LEDGER", "GATEBOOK_ACTOR", "CODEX_THREAD_ID", "CODEX_SESSION_ID"):
        environment.pop(name, None)
    found = BLOCK.findall(page())
    script = "set -eu\n" + f"echo '{MARK}'\n".join(text for kind, text in found if kind == "sh")
    done = subprocess.run(
        ["bash", "-c", script], cwd=place, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    answers = iter(done.stdout.split(f"{MARK}\n"))
    answer = ""
    for kind, text in found:
        if kind == "sh":
            answer = next(answers)
        elif kind == "json":
            assert holds(json.loads(text), json.loads(answer.splitlines()[-1])), (text, answer)
        elif kind == "text":
            pattern = ".*".join(map(re.escape, re.split(r"\s*…\s*|\n", text.strip())))
            assert re.search(pattern, answer, re.DOTALL), (pattern, answer)


def test_every_named_query_is_on_the_page_with_what_it_answers_and_an_example():
    text = page()
    for name, query in NAMED.items():
        assert f"| `{name}` | {query.text} | `{query.example}` |" in text


def test_every_command_of_an_auditor_is_on_the_page():
    text = page()
    for name in ("verify", "replay", "checkpoint", "prove", "check-proof", "witness init", "witness cosign", "trace", "state", "diff", "query", "timeline", "serve", "redact", "backup"):  # fmt: skip
        assert f"gatebook {name}" in text or f"`{name}`" in text, name
