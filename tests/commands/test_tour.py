"""`tour`, really taken once: a stranger's first command must work and must show what it says."""

from __future__ import annotations

import os
import re

import pytest
from program import call, finish, start

pytestmark = pytest.mark.xdist_group("tour")  # one tour for all of them


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tour")
    home = {f"XDG_{name}_HOME": str(folder / "home" / name) for name in ("STATE", "CONFIG", "CACHE")}
    done = finish(start("tour", "--dir", str(folder / "kept"), cwd=folder, env=home))
    assert done.code == 0, (done.out[-3000:], done.err)
    return folder, done


def test_it_shows_each_part_and_no_fault(taken):
    _, done = taken
    assert re.findall(r"^(\d)\. ", done.out, re.MULTILINE) == list("1234567")
    for word in ("Traceback", "internal error"):
        assert word not in done.out + done.err
    assert done.err == ""


def test_it_shows_a_fallback_and_a_single_probe(taken):
    assert "claude-a@high -> gem-c@low" in taken[1].out
    answers = re.findall(r'"status":"(resolved|fallback)"', taken[1].out)
    assert answers == ["fallback", "resolved", "fallback"]


def test_it_shows_the_tampering_found_and_the_cut_tail_refused(taken):
    out = taken[1].out
    found = out.index("content-mismatch: event ")
    assert out.index("(exit 3)", found) > found
    refused = out.index("verdict truncated")
    assert out.index("(exit 4)", refused) > refused
    assert "plan.approved is decided by gatebook" in out


def test_what_it_leaves_behind_verifies_and_can_be_looked_at(taken, monkeypatch):
    kept = taken[0] / "kept"
    for name in ("STATE", "CONFIG", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(kept / name.lower()))
    ledger = str(kept / "project" / ".gatebook")
    assert call("--ledger", ledger, "verify", "--json").json()["ok"] is True
    assert call("--ledger", ledger, "replay", "--json").json()["ok"] is True
    assert "<html" in (kept / "timeline.html").read_text()


def test_its_last_line_is_a_command_that_looks_around(taken):
    last = taken[1].out.splitlines()[-1]
    state, ledger = re.fullmatch(
        r"Look around: XDG_STATE_HOME=(\S+) gatebook --ledger (\S+) log", last
    ).groups()
    assert (state, ledger) == (str(taken[0] / "kept/state"), str(taken[0] / "kept/project/.gatebook"))
    assert os.path.isdir(state)
    assert call("--ledger", ledger, "log", "-n", "1").code == 0


def test_it_leaves_the_users_own_state_alone(taken):
    assert not os.path.exists(taken[0] / "home")
    assert sorted(os.listdir(taken[0])) == ["kept"]


def test_a_directory_in_use_is_refused(tmp_path):
    (tmp_path / "a").write_text("mine")
    call("tour", "--dir", str(tmp_path)).refused(1, "is not empty")
    assert sorted(os.listdir(tmp_path)) == ["a"]
