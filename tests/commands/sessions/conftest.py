"""A real git repository for each test."""

import subprocess

import pytest


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
