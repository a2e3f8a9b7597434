"""The handed circuit cases, each step a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(__file__)


def handed(name):
    with open(os.path.join(HERE, "..", "conformance", name), encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


@pytest.mark.parametrize("case", handed("circuits.jsonl"), ids=lambda case: case["name"])
def test_each_step_of_a_handed_case_replies_as_given(case, tmp_path):
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text(case["rubric"], encoding="utf-8")
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for step in case["steps"]:
        args = [str(rubric) if word == "RUBRIC" else word for word in step["args"]]
        done = subprocess.run(
            [sys.executable, "-m", "commands", "route", *args],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == step["exit"], done
        reply = json.loads(done.stdout)
        assert {key: reply.get(key) for key in step["reply"]} == step["reply"]
        assert done.stdout.count("\n") == 1
