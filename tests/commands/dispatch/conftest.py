"""The real Codex binary for the tests: installed once by npm into the user's cache, outside the tree."""

import fcntl
import os
import pathlib
import shutil
import subprocess

import pytest

CODEX_VERSION = "0.171.0"
# Read before any test moves XDG_CACHE_HOME.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "gatebook-tests"


def _installed(folder):
    return next(folder.glob("node_modules/@openai/codex-*/vendor/*/bin/codex"), None)


def _install(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _installed(folder) is None:
            command = [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--fetch-retries=1",
                "--prefix",
                str(folder),
                f"@openai/codex@{CODEX_VERSION}",
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=280)
    return _installed(folder)


@pytest.fixture(scope="session")
def codex_binary():
    """The native Codex binary; skipped where npm is not here, never in CI."""
    found = _installed(CACHE / f"codex-{CODEX_VERSION}")
    if found is not None:
        return str(found)
    if shutil.which("npm") is None:
        pytest.skip("npm is not here, so the real Codex cannot be installed")
    try:
        found = _install(CACHE / f"codex-{CODEX_VERSION}")
    except (subprocess.SubprocessError, OSError) as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"npm could not install Codex: {error}")
    assert found is not None, "npm installed Codex without its platform package"
    return str(found)


@pytest.fixture
def codex(codex_binary, monkeypatch, tmp_path):
    """Codex as gatebook will find it, with a home of its own and a dummy key."""
    monkeypatch.setenv("GATEBOOK_CODEX_BIN", codex_binary)
    (tmp_path / "codex-home").mkdir()
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex-home"))
    monkeypatch.setenv("FAKE_PROVIDER_KEY", "dummy")
    for name in ("CODEX_THREAD_ID", "GATEBOOK_LEDGER", "GATEBOOK_ACTOR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    return codex_binary


@pytest.fixture
def bench(tmp_path, capsys, monkeypatch):
    """A project in which dispatches are run."""
    from bench import Bench

    return Bench(tmp_path, capsys, monkeypatch)
