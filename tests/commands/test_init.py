"""`init`: where a ledger is made, and that nothing is made twice or half."""

from __future__ import annotations

import os
import stat
import subprocess

import pytest
from program import call, finish, start

from ledger.access import open_ledger


@pytest.fixture
def here(tmp_path, home, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_prints_the_ledger_and_again_the_same_one(here):
    first = call("init").json()
    assert list(first) == ["ledger_id", "path", "created", "seq", "hash"]
    assert (first["created"], first["seq"], first["path"]) == (True, 1, str(here / ".gatebook"))
    assert len(first["ledger_id"]) == 32
    assert call("init").json() == {**first, "created": False}
    assert call("--ledger", ".gatebook", "init").json() == {**first, "created": False}
    assert stat.S_IMODE(os.stat(".gatebook").st_mode) == 0o700
    assert (here / ".gatebook" / ".gitignore").read_text().splitlines()[-1] == "*"


def test_where_it_is_made_is_the_first_that_is_given(here, monkeypatch):
    assert call("--ledger", "a", "init").json()["path"] == str(here / "a")
    monkeypatch.setenv("GATEBOOK_LEDGER", str(here / "b"))
    assert call("init").json()["path"] == str(here / "b")
    assert call("--ledger", "c/ledger.db", "init").json()["path"] == str(here / "c")
    assert not (here / ".gatebook").exists()


def test_in_the_common_git_directory_it_survives_git_clean(here):
    subprocess.run(["git", "init", "-q"], check=True)
    assert call("init", "--git-dir").json()["path"] == str(here / ".git" / ".gatebook")
    subprocess.run(["git", "clean", "-fdxq", "-e", "home"], check=True)
    assert call("append", "--stream", "x-n/1", "--type", "x.n.a").json()["seq"] == 2
    call("--ledger", "x", "init", "--git-dir").refused(2)


@pytest.mark.parametrize(("first", "then"), [(["--git-dir"], []), ([], ["--git-dir"])])
def test_again_with_or_without_the_git_directory_is_no_change(here, first, then):
    """Two ledgers of one repository would hide each other."""
    subprocess.run(["git", "init", "-q"], check=True)
    made = call("init", *first).json()
    again = call("init", *then)
    assert again.json() == {**made, "created": False}
    assert again.err.count("\n") == len(then), again.err
    assert call("append", "--stream", "x-n/1", "--type", "x.n.a").json()["seq"] == 2
    assert call("--ledger", "own", "init").json()["created"]


@pytest.mark.parametrize(
    "words",
    [
        ["--git-dir"],
        ["--signers", "missing"],
        ["--signers", "."],
        ["--single-key"],
        ["word"],
        ["--signers", "empty"],
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(here, words):
    (here / "empty").write_text("")
    done = call("init", *words)
    assert done.code in (1, 2), done.err
    assert done.err.count("\n") == 1
    assert not (here / ".gatebook").exists()
    assert not (here / "home").exists() or "ledgers.json" not in os.listdir(
        here / "home" / "state" / "gatebook"
    )


def test_a_state_folder_that_takes_nothing_is_named_and_can_be_mended(here):
    (here / "home" / "state").mkdir(parents=True, exist_ok=True)
    (here / "home" / "state" / "gatebook").write_text("a file")
    call("init").refused(75, "home/state/gatebook", "no ledger was made")
    (here / "home" / "state" / "gatebook").unlink()
    assert call("init").json()["created"]


def test_sixteen_at_once_make_one_ledger(here):
    replies = [finish(process).json() for process in [start("init", cwd=here) for _ in range(16)]]
    assert len({reply["ledger_id"] for reply in replies}) == 1
    assert sum(reply["created"] for reply in replies) == 1
    assert call("append", "--stream", "x-n/1", "--type", "x.n.a").json()["seq"] == 2
    assert sorted(os.listdir(here / ".gatebook"))[:3] == [".gitignore", "ledger.db", "ledger.db-shm"]
    ledger = open_ledger(str(here))
    assert ledger.id == replies[0]["ledger_id"]
    ledger.close()


def test_a_stale_log_of_a_database_that_is_gone_is_not_replayed_into_a_new_one(here):
    """F50: files left by a copy or a cleaner that took only some of them."""
    call("--ledger", "old", "init").json()
    for _ in range(3):
        call("--ledger", "old", "append", "--stream", "x-n/1", "--type", "x.n.a").json()
    os.mkdir("new")
    for side in ("-wal", "-shm"):
        os.rename(f"old/ledger.db{side}", f"new/ledger.db{side}")
    assert call("--ledger", "new", "init").json()["seq"] == 1
    assert call("--ledger", "new", "append", "--stream", "x-n/1", "--type", "x.n.a").json()["seq"] == 2
    assert call("--ledger", "new", "verify").code == 0


@pytest.mark.parametrize(
    "content", [b"some text, not a database, but long enough to be read as one " * 90, b"x"]
)
def test_a_file_that_is_no_ledger_is_not_written_over(here, content):
    (here / ".gatebook").mkdir()
    (here / ".gatebook" / "ledger.db").write_bytes(content)
    call("init").refused(3)
    assert (here / ".gatebook" / "ledger.db").read_bytes() == content


def test_a_umask_of_others_does_not_open_what_is_private(here):
    before = os.umask(0)
    try:
        call("init").json()
        call("append", "--stream", "x-n/1", "--type", "x.n.a", "--content", "@big") if (
            here / "big"
        ).write_bytes(b"z" * 600_000) else None
        call("route", "record-failure", "--provider", "p", "--executor", "e", "--reason", "quota").json()
        call("query", "SELECT 1")
    finally:
        assert os.umask(before) == 0
    for root, folders, files in os.walk(here):
        for name in folders + files:
            path = os.path.join(root, name)
            if "gatebook" in path and name not in ("home", "state"):
                assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0, path


@pytest.mark.parametrize(
    "words",
    [
        ("--ledger", "tls://127.0.0.1:4222/team", "init"),
        ("--ledger", "NATS://127.0.0.1:4222/team", "log"),
        ("import", "e.jsonl", "--to", "nats://127.0.0.1:4222/team"),
        ("trust", "nats://127.0.0.1:4222/team"),
    ],
)
def test_a_url_where_a_path_is_needed_is_said_and_makes_no_directory(here, words):
    (here / "e.jsonl").write_text("")
    call(*words).refused(2, "nats://host:port/NAME")
    assert os.listdir(here) == ["e.jsonl"]


def test_signers_given_for_a_ledger_that_was_there_are_said_to_change_nothing(here):
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMl7K2nq1pPBBLS5gAZ1b0sxxh0b6eFw0mXvUsOJrCxH"
    (here / "signers").write_text(f"ada {key}\n")
    assert call("init", "--signers", "signers", "--single-key").err == ""
    again = call("init", "--signers", "signers", "--single-key")
    assert (again.code, again.json()["created"]) == (0, False)
    assert again.err.count("\n") == 1
    assert "signers changed nothing" in again.err
