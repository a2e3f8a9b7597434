"""For every test: a home of its own, so that none reads or writes what the user's machine keeps about ledgers."""

from __future__ import annotations

import os
import signal
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# No time limits on a busy machine; in CI the same examples each time, so that a landing does not depend on luck.
settings.register_profile(
    "gatebook",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    database=None,
)
settings.load_profile("gatebook")

# A suite that was started in the background of a shell inherits an ignored SIGINT, and so would what it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

_MEMORY = "/dev/shm"


def _room(folder: str) -> int:
    """Free bytes at `folder`, 0 where it is not there, cannot be written, or runs no programs (tests put some there)."""
    if not os.access(folder, os.W_OK):
        return 0
    disk = os.statvfs(folder)
    if disk.f_flag & getattr(os, "ST_NOEXEC", 0):
        return 0
    return disk.f_bavail * disk.f_frsize


# Thousands of small ledgers are flushed: where there is plenty of memory, their folders lie in it. What a flush does
# is tested under strace, what a full disk does on disks made for it.
if _room(_MEMORY) > 8 * 1024**3:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)

_OURS = ("GATEBOOK_LEDGER", "GATEBOOK_ACTOR", "CODEX_THREAD_ID", "GATEBOOK_CODEX_BIN")


@pytest.fixture(scope="session", autouse=True)
def _no_test_touches_the_users_home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    before = dict(os.environ)
    for name in _OURS:
        os.environ.pop(name, None)
    for name in ("STATE", "CACHE", "CONFIG"):
        os.environ[f"XDG_{name}_HOME"] = str(home / name.lower())
    (home / "tmp").mkdir()
    os.environ["TMPDIR"], tempfile.tempdir = str(home / "tmp"), None  # dispatches leave their reports there
    yield
    os.environ.clear()
    os.environ.update(before)
    tempfile.tempdir = None


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A machine that has seen no ledger yet: its state, cache and configuration lie in the folder returned."""
    for name in ("state", "cache", "config"):
        monkeypatch.setenv(f"XDG_{name.upper()}_HOME", str(tmp_path / "home" / name))
    return tmp_path / "home"
