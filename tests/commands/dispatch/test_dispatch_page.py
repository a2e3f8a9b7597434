"""docs/dispatch.md is true: its commands are run in order, and what it shows of their answers holds."""

import json
import os
import re
import subprocess
import sys

from bench import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def holds(shown, real):
    """Whether everything shown stands in the real answer; more may stand beside it."""
    if isinstance(shown, dict):
        return isinstance(real, dict) and all(
            name in real and holds(value, real[name]) for name, value in shown.items()
        )
    if isinstance(shown, list):
        return isinstance(real, list) and len(shown) == len(real) and all(map(holds, shown, real))
    return shown == real


def blocks():
    with open(os.path.join(ROOT, "docs", "dispatch.md"), encoding="utf-8") as file:
        return BLOCK.findall(file.read())


def test_every_command_of_the_page_does_what_the_page_shows(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gatebook").write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m commands "$@"\n'
    )
    (programs / "gatebook").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "GATEBOOK_ACTOR": "agent:reader",
    }
    environment |= {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("STATE", "CACHE", "CONFIG")}
    environment.pop("GATEBOOK_LEDGER", None)
    mark = "-- the next block --"
    found = blocks()
    script = "set -eu\n" + f"echo '{mark}'\n".join(text for kind, text in found if kind == "sh")
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    answers = iter(done.stdout.split(f"{mark}\n"))
    answer = ""
    for kind, text in found:
        if kind == "sh":
            answer = next(answers)
        elif kind == "json":
            assert holds(json.loads(text), json.loads(answer.splitlines()[-1])), (text, answer)
        elif kind == "ndjson":
            shown, real = ([json.loads(line) for line in lines.splitlines()] for lines in (text, answer))
            assert holds(shown, real), answer
    assert {kind for kind, _ in found} == {"sh", "json", "ndjson", "toml"}
