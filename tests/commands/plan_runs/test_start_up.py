"""What a step of a run loads: nothing that it does not use, for each step is a process of its own."""

import json
import os
import subprocess
import sys

from plan_house import ROOT

HEAVY = (
    "typing_extensions",
    "structlog",
    "sqlite_utils",
    "rich",
    "cryptography",
    "yaml",
    "argparse",
    "logging",
    "pathlib",
    "dataclasses",
    "inspect",
    "pypdf",
    "hashlib",
    "tomllib",
)
CODE = """
import json, os, sys
from commands.entry import run
sys.stdout, kept = open(os.devnull, "w"), sys.stdout
code = run(sys.argv[1:])
json.dump([code, sorted(sys.modules)], kept)
"""


def loaded(*words):
    done = subprocess.run(
        [sys.executable, "-c", CODE, *map(str, words)],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
    )
    code, modules = json.loads(done.stdout)
    return code, [name for name in HEAVY if name in modules]


def test_no_step_loads_what_it_does_not_use(house):
    (house.folder / "hook").write_text(json.dumps({"session_id": "s1"}))
    steps = (
        ("plan", "parse", "--text", "all"),
        ("plan", "approve", "--text", "all"),
        ("run", "claim"),
        ("run", "prepare-results"),
        ("run", "next"),
        ("run", "pause", "--reason", "enough"),
        ("run", "report"),
        ("run", "finalize"),
    )
    for words in steps:
        assert loaded(*words[:2], "--run-dir", house.run, *words[2:]) == (0, []), words
    assert loaded("receipt", "show", "0" * 32) == (4, [])
