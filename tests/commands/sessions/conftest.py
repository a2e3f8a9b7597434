"""A real git repository for each test."""

import os
import pathlib
import subprocess

import pytest
from session_house import AGENT, APPROVAL, GATE_OK, IGNORES, NOOP, House, did


@pytest.fixture
def git(tmp_path, monkeypatch):
    """Run git in the test's repository; `git.root` is its path."""
    root = tmp_path / "repo"
    root.mkdir()
    for name, value in (("AUTHOR", "T"), ("COMMITTER", "T")):
        monkeypatch.setenv(f"GIT_{name}_NAME", value)
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "t@example.org")

    def run(*args, cwd=root, check=True, data=None):
        full = ["git", "-c", "protocol.file.allow=always", *args]
        return subprocess.run(full, cwd=cwd, check=check, capture_output=True, input=data).stdout

    run.root = root
    run("init", "-q", "-b", "main")
    return run


@pytest.fixture
def house(git, tmp_path):
    """A committed repository whose .gitignore is complete but for the starred categories, a ledger, scripted agents."""
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "agent.py").write_text(AGENT)
    source = pathlib.Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    for name in ("STATE", "CACHE", "CONFIG"):
        environment[f"XDG_{name}_HOME"] = str(tmp_path / f"xdg-{name.lower()}")
    (git.root / "src").mkdir()
    (git.root / "src/a.py").write_text("x = 1\n")
    (git.root / "README.md").write_text("# R\n")
    (git.root / ".gitignore").write_text(IGNORES)
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    made = House(git, folder, environment)
    made.ok("init")
    made.script(executor=[did("src/a.py", "x = 2\n"), NOOP], reviewer=[{"say": APPROVAL}], gate=[GATE_OK])
    return made
