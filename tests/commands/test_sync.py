"""The commands on a fleet's ledger, as processes: init, append, sync, doctor; offline; a machine that joins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "ledger"))

from nats_servers import Server

from ledger.nats_client import Link
from ledger.nats_login import Login


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path / "server").start()
    yield made
    made.kill()


class Machine:
    """A home and the ledger's name."""

    def __init__(self, home, server) -> None:
        self.environment = {
            **os.environ,
            "XDG_STATE_HOME": str(home),
            "GATEBOOK_LEDGER": f"nats://{server.address}/team",
            "GATEBOOK_NATS_MONITOR": f"http://127.0.0.1:{server.monitor}",
        }
        self.command = [sys.executable, "-m", "commands"]

    def __call__(self, *words, code=0):
        done = subprocess.run(
            [*self.command, *words], env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, done.stderr
        return done

    def json(self, *words, code=0):
        return json.loads(self(*words, code=code).stdout)


def test_two_machines_one_ledger(server, tmp_path):
    one, two = Machine(tmp_path / "one", server), Machine(tmp_path / "two", server)
    assert "gatebook init" in two("log", code=2).stderr
    made = one.json("init")
    assert (made["created"], made["path"], made["seq"]) == (True, one.environment["GATEBOOK_LEDGER"], 1)
    assert two.json("init")["created"] is False
    first = one.json("append", "--stream", "x-a/1", "--type", "x.note.added", "--content", "a name")
    second = two.json("append", "--stream", "x-a/1", "--type", "x.note.added", "--expect-version", "1")
    assert (first["seq"], second["seq"], second["version"]) == (2, 3, 2)
    one("append", "--stream", "x-a/1", "--type", "x.note.added", "--expect-version", "1", code=5)
    assert "a name" in two("log", "--grep", "name").stdout
    one.json("redact", "2", "--reason", "personal")
    assert two.json("sync")["events"] == 1
    assert "a name" not in two("log").stdout
    for machine in (one, two):
        assert machine.json("verify", "--json")["verdict"] == "ok"
        machine("replay")
    assert two.json("sync") == {
        "ledger_id": made["ledger_id"], "url": made["path"], "replica": two.json("sync")["replica"], "events": 0,
        "void": 0, "head": one.json("sync")["head"],
    }  # fmt: skip
    found = one("doctor", "--json").stdout
    assert "flushes each message" in found
    joined = {(each["check"], each["level"]) for each in two.json("doctor", "--json")["checks"]}
    assert ("keys", "note") in joined  # they are where `init` ran
    assert "trust" not in {name for name, _ in joined}


def test_offline_the_replica_is_read_and_nothing_written(server, tmp_path):
    machine = Machine(tmp_path / "one", server)
    machine("init")
    machine("append", "--stream", "x-a/1", "--type", "x.note.added")
    server.kill()
    read = machine("log")
    assert "x.note.added" in read.stdout
    assert "reading this machine's replica" in read.stderr
    refused = machine("append", "--stream", "x-a/1", "--type", "x.note.added", code=75)
    assert "nothing was recorded" in refused.stderr
    machine("sync", code=75)
    replica = os.path.join(str(tmp_path / "one"), "gatebook", "fleet", f"team@{server.address}")
    aside = machine("--ledger", replica, "append", "--stream", "x-a/1", "--type", "x.note.added", code=4)
    assert "read-only" in aside.stderr


def test_follow_says_what_came(server, tmp_path):
    one, two = Machine(tmp_path / "one", server), Machine(tmp_path / "two", server)
    one("init")
    following = subprocess.Popen(
        [*two.command, "sync", "--follow"], env=two.environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert json.loads(following.stdout.readline())["head"]["seq"] == 1
        one("append", "--stream", "x-a/1", "--type", "x.note.added")
        assert json.loads(following.stdout.readline())["head"]["seq"] == 2
        two("append", "--stream", "x-a/1", "--type", "x.note.added")  # this one reads it in, not who follows
        line = json.loads(following.stdout.readline())
        assert (line["events"], line["head"]["seq"]) == (1, 3)
    finally:
        following.kill()
        following.wait()
        following.stdout.close()


def test_log_goes_on_with_what_other_machines_write_and_ends_when_the_stream_is_gone(server, tmp_path):
    one, two = Machine(tmp_path / "one", server), Machine(tmp_path / "two", server)
    one("init")
    following = subprocess.Popen(
        [*two.command, "log", "--follow", "--json"], env=two.environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert json.loads(following.stdout.readline())["seq"] == 1
        one("append", "--stream", "x-a/1", "--type", "x.note.added")
        assert json.loads(following.stdout.readline())["seq"] == 2
        server.kill()
        server.start()
        one("append", "--stream", "x-a/1", "--type", "x.note.added")
        assert json.loads(following.stdout.readline())["seq"] == 3
        link = Link([("127.0.0.1", server.port)], Login())
        link.request("$JS.API.STREAM.DELETE.team")
        link.drop()
        assert following.wait(30) == 3
    finally:
        following.kill()
        following.wait()
        following.stdout.close()


def test_a_lost_tail_is_refused_and_can_be_gone_on_from_as_a_successor(server, tmp_path):
    machine = Machine(tmp_path / "one", server)
    machine("init")
    for _ in range(3):
        machine("append", "--stream", "x-a/1", "--type", "x.note.added")
    state = tmp_path / "server" / "js"
    server.kill()
    kept = tmp_path / "kept"
    subprocess.run(["cp", "-a", str(state), str(kept)], check=True)
    server.start()
    machine("append", "--stream", "x-a/1", "--type", "x.note.added")
    server.kill()
    subprocess.run(["rm", "-rf", str(state)], check=True)
    subprocess.run(["cp", "-a", str(kept), str(state)], check=True)
    server.start()
    time.sleep(0.2)
    seen = machine("sync", code=3)
    assert "verdict truncated" in seen.stderr
    verdict = machine.json("verify", "--json", code=3)
    assert (verdict["ok"], verdict["verdict"], verdict["first_wrong"]["field"]) == (
        False,
        "truncated",
        "stream",
    )
    assert machine.json("replay", "--json", code=3)["verdict"] == "truncated"
    assert "x.note.added" in machine("log").stdout  # the evidence can be read
    for words in (
        ("append", "--stream", "x-a/1", "--type", "x.note.added"),
        ("resume", "--as-successor", "--reason", "r"),
    ):
        assert "verdict truncated" in machine(*words, code=4).stderr
    replica = os.path.join(str(tmp_path / "one"), "gatebook", "fleet", f"team@{server.address}")
    os.rename(replica, str(tmp_path / "evidence"))
    assert "truncated" in machine("append", "--stream", "x-a/1", "--type", "x.note.added", code=4).stderr
    resumed = machine.json("resume", "--as-successor", "--reason", "the cluster lost its tail")
    assert (resumed["path"], resumed["seq"], resumed["lost"]["seq"]) == (
        machine.environment["GATEBOOK_LEDGER"],
        5,
        5,
    )
    assert machine.json("append", "--stream", "x-a/1", "--type", "x.note.added")["seq"] == 6
    machine("replay")
    machine("sync")


def test_sync_is_for_fleets(tmp_path, monkeypatch):
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-m", "commands", "--ledger", str(tmp_path / "l")]
    subprocess.run([*command, "init"], env=environment, check=True, capture_output=True)
    done = subprocess.run([*command, "sync"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "nats://" in done.stderr
