"""Every command on a fleet's ledger does what it does on a ledger of files: two machines, one real server.

A machine is a home, state, cache and configuration of its own. `day` is one day's work with every group of commands;
it is told once on each kind of ledger, and what was printed is compared, apart from ids, times, hashes and places.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request

import pytest
from program import call, finish, start
from test_help import VERDICT, environment, plan, programs, request, review, rubric, today

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "ledger"))

from nats_servers import Server

from commands.audit.queries import NAMED
from ledger.replica import FleetStore

VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|"
    r'\b(?=[0-9a-f]*\d)[0-9a-f]{6,64}\b|[A-Za-z0-9+/]{40,}=*|"(seconds|bytes|elapsed)":[\d.]+|\d+ 秒'
)
NOTE = ("append", "--stream", "x-notes/1", "--type", "x.note.added")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("server")).start()
    yield made
    made.kill()


class Machine:
    """Calls `gatebook` in this process, as on a machine of its own; `told` is what all of a scene's calls printed."""

    def __init__(self, scene, name: str) -> None:
        self.folder = scene.folder / name
        self.tree = self.folder / "project"
        self.tree.mkdir(parents=True)
        programs(self.folder / "bin")
        self.environment = {
            **environment(self.tree),
            **{f"XDG_{each.upper()}_HOME": str(self.folder / each) for each in ("state", "cache", "config")},
            "GATEBOOK_ACTOR": f"cli:{name}",
            "GATEBOOK_LEDGER": scene.ledger,
            "GATEBOOK_NATS_MONITOR": scene.monitor,
        }
        self._scene = scene
        for argv in (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "first"]):
            subprocess.run(["git", *argv], cwd=self.tree, env=self.environment, check=True)

    def __call__(self, *words, code=0, stdin: bytes = b""):
        """The call, which must end with `code`."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.tree)
            for name in os.environ.keys() - self.environment.keys():
                patch.delenv(name)
            for name, text in self.environment.items():
                patch.setenv(name, text)
            done = call(*map(str, words), stdin=stdin)
        return self._tell(words, code, done)

    def process(self, *words, code=0):
        """The same as a process of its own, for what hands its stdin, stdout or stderr on."""
        return self._tell(words, code, finish(self.start(*words)))

    def _tell(self, words, code, done):
        assert done.code == code, (words, done.out, done.err)
        assert "Traceback" not in done.err
        if words[0] != "doctor":  # a fleet's has more to look at
            said = f"$ {' '.join(map(str, words))}  # exit {done.code}\n{done.out}{done.err}"
            self._scene.told.append(self._scene.plain(said))
        return done

    def json(self, *words, code=0, stdin: bytes = b""):
        return self(*words, code=code, stdin=stdin).json()

    def be(self, session: str) -> None:
        """Call as that agent session from now on."""
        self.environment["CODEX_THREAD_ID"] = session

    def start(self, *words):
        """The call, as a process."""
        return start(*map(str, words), cwd=self.tree, env=self.environment)


class Scene:
    """Two machines and the name of their ledger."""

    def __init__(self, folder, ledger: str = "", monitor: str = "") -> None:
        self.folder = folder
        self.ledger = ledger or str(folder / "files" / "ledger")
        self.monitor = monitor
        self.told: list[str] = []
        self.one, self.two = Machine(self, "one"), Machine(self, "two")

    def plain(self, text: str) -> str:
        """What was printed without what two ledgers cannot have in common."""
        replica = rf"{re.escape(str(self.folder))}/(one|two)/state/gatebook/fleet/[^/\s\"]+"
        text = re.sub(rf"{re.escape(self.ledger)}|{replica}", "LEDGER", text)
        return VOLATILE.sub("@", text.replace(str(self.folder), "FOLDER"))


@pytest.fixture
def scenes(tmp_path, server):
    """One scene on a ledger of files, one on a fleet's."""
    monitor = f"http://127.0.0.1:{server.monitor}"
    url = f"nats://{server.address}/day"
    return Scene(tmp_path / "files"), Scene(tmp_path / "fleet", url, monitor)


@pytest.fixture
def fleet(tmp_path, server, request):
    """A scene on a fleet's ledger of its own."""
    name = re.sub(r"\W", "-", request.node.name)[:60]
    return Scene(tmp_path, f"nats://{server.address}/{name}", f"http://127.0.0.1:{server.monitor}")


def notes(scene):
    one, two = scene.one, scene.two
    two("log", code=2)
    assert one.json("init")["created"]
    assert not two.json("init")["created"]
    one(*NOTE, "--data", '{"a":1}', "--content", "a name")
    two(*NOTE, "--expect-version", 1, "--idempotency-key", "k", "--causation", 2, "--correlation", "c")
    one(*NOTE, "--expect-version", 1, "--idempotency-key", "k", "--causation", 2, "--correlation", "c")
    one(*NOTE, "--expect-version", 1, code=5)
    two(*NOTE, "--idempotency-key", "k", "--content", "other", code=5)
    lines = [
        {"stream": "x-b/1", "type": "x.b", "content": f"c{n}", "idempotency_key": f"b{n}"} for n in range(20)
    ]
    for machine in (two, one):
        machine("append", "--batch", "-", stdin="\n".join(map(json.dumps, lines)).encode())
    two("append", "--batch", "-", stdin=json.dumps({**lines[0], "content": "other"}).encode(), code=5)
    large = scene.folder / "large"
    large.write_text("large " * 100_000)
    one(*NOTE, "--content", f"@{large}")
    one("append", "--stream", "run/1", "--type", "plan.approved", code=4)
    assert (
        "a name"
        in two("log", "--stream", "x-n*/1", "--since", 2, "--until", 9, "--grep", "nam", "--json").out
    )
    two("log", "--actor", "cli:t*", "--correlation", "c", "-n", 3, "--reverse")
    assert json.loads(two("show", 24, "--json").out)["content"] == "large " * 100_000
    two("redact", 2, 24, "--reason", "personal")
    two("redact", 2, "--reason", "personal")
    one("redact", 1, "--reason", "personal", code=1)
    for machine in (one, two):
        machine("show", 2)
        assert "a name" not in machine("log", "--grep", "name").out
        machine("trace", 2, "--json")
    for kept in (scene.folder / "one" / "state", scene.folder / "two" / "state"):
        for folder, _, names in os.walk(kept):
            for name in names:
                assert b"large large" not in open(os.path.join(folder, name), "rb").read(), name


def proofs(scene):
    one, two, folder = scene.one, scene.two, scene.folder
    one("checkpoint", "--out", folder / "first")
    two("checkpoint", code=4)
    two("prove", 3, "--out", folder / "proof")
    two("check-proof", folder / "proof", "--key", one("checkpoint", "--key").out.strip())
    two(*NOTE)
    one("checkpoint", "--out", folder / "second")
    two("prove", "--consistency", folder / "first", folder / "second", "--out", folder / "growth")
    two("witness", "init", folder / "witness", "--name", "w")
    two("witness", "cosign", folder / "first", "--dir", folder / "witness")
    two("witness", "cosign", folder / "second", "--dir", folder / "witness", "--proof", folder / "growth")
    for machine in (one, two):
        machine("verify", "--against", folder / "first")
        machine("verify", "--json", "--since-checkpoint", folder / "second")
    one("authority", "rotate", "checkpoint")
    two("authority", "rotate", "checkpoint", code=4)


def authority(scene):
    one, two, folder = scene.one, scene.two, scene.folder
    for name in ("ann", "bob"):
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(key, check=True)
    signers = folder / "signers"
    signers.write_text(
        "".join(f"{name} {(folder / name).with_suffix('.pub').read_text()}" for name in ("ann", "bob"))
    )
    two("authority", "require", "--signers", signers, "--key", folder / "ann")
    assert one.json("authority", "show")["policy"]
    one("authority", "signers")


def runs(scene):
    one, two, key = scene.one, scene.two, scene.folder / "bob"
    plan(one.tree)
    where = ("--run-dir", f"runs/{today():%Y-%m-%d}")
    one.be("s1")
    one("plan", "parse", *where, "--text", "the first", code=2)
    one("plan", "record", *where)
    one("plan", "approve", *where, "--text", "1,2; defer 3", code=4)
    one("plan", "approve", *where, "--text", "1,2; defer 3", "--sign", "--key", key)
    one("run", "claim", *where)
    there = ("--run-dir", one.tree / "runs" / f"{today():%Y-%m-%d}")
    two.be("s2")
    two("run", "claim", *there, code=5)
    one("run", "prepare-results", *where)
    hook = json.dumps({"session_id": "s1", "hook_event_name": "Stop"}).encode()
    for machine in (one, two):
        assert machine.json("guard", "stop", stdin=hook)["decision"] == "block"
    two("guard", "capture", stdin=hook)
    one("run", "next", *where, "--skills", "skills")
    one.process("run", "execute", *where, "--handoff", "./worker.sh")
    for step in ("report", "deliver", "finalize"):
        one("run", step, *where)
    two("run", "finalize", *there, code=4)
    for name in ("plan", "results", "runs"):
        assert two.json("state", name, "--json")["state"]


PLACE = (
    "--origin", "https://canvas.example.edu", "--course", "100001", "--target-type", "assignment", "--target", "200001",
    "--action", "assignment.submit_text",
)  # fmt: skip


def work(machine) -> str:
    """The folder of an item whose draft may be handed in."""
    folder = machine.tree / machine.environment["WORK"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verification.log").write_text("PASS\n")
    (folder / "draft.md").write_text("text\n")
    (folder / "result.json").write_text('{"status":"draft_ready","draft_path":"draft.md"}')
    return str(folder)


def issued(scene, name="receipt", *more):
    path = scene.folder / f"{name}.json"
    later = scene.one.environment["LATER"]
    words = ("--session", "s1", "--expires", later, "--authority", "yes", "--out", path)
    return path, scene.one.json("receipt", "issue", *PLACE, *words, *more)["receipt_id"]


def receipts(scene):
    one, two = scene.one, scene.two
    signed = ("--sign", "--key", scene.folder / "ann")
    path, known = issued(scene, "receipt", *signed)
    two.be("s1")
    use = (*PLACE, "--work-dir", work(one))
    two("receipt", "check", path, *use)
    two("receipt", "consume", path, *use)
    one("receipt", "consume", path, *use, code=4)
    one("receipt", "show", known)
    one("trace", f"receipt/{known}")
    _, other = issued(scene, "other", *signed)
    two("receipt", "revoke", other, "--reason", "no")
    for receipt in (known, other):
        assert one.json("state", "receipts", receipt, "--json")["state"]["closed"]


def dispatches(scene):
    one, two = scene.one, scene.two
    rubric(one.tree), request(one.tree)
    known = one.json("dispatch", "open", "request.json")["id"]
    two("dispatch", "approve", known, "--what", "push to origin", "--sign", "--key", scene.folder / "ann")
    one("dispatch", "attempt", known, code=4)
    document = json.loads((one.tree / "request.json").read_text())
    document["authority"]["approvals"] = []
    (one.tree / "request.json").write_text(json.dumps(document))
    known = one.json("dispatch", "open", "request.json")["id"]
    choice = ("--native-provider", "anthropic", "--rubric", "rubric.yaml", "--executors", "")
    one("dispatch", "select", known, *choice)
    one("dispatch", "attempt", known)
    (one.tree / "NOTES.md").write_text("notes\n")
    one("dispatch", "returned", known, "--status", "succeeded")
    one("dispatch", "verify", known)
    one("dispatch", "conclude", known)
    assert two.json("state", "dispatches", known, "--json")["state"]["status"] == "accepted"
    options = (
        "--rubric",
        one.tree / "rubric.yaml",
        "--route",
        "default",
        "--native-provider",
        "anthropic",
        "--executors",
        "codex",
    )
    named = ("--ledger", scene.ledger, "route")
    outage = ("record-failure", "--reason", "quota", "--provider")
    one(*named, *outage, "anthropic", "--executor", "native")
    assert two.json(*named, "select", *options)["status"] == "fallback"
    assert list(one.json("state", "circuits", "--json")["state"]) == ["anthropic|native"]
    one(
        "diff", "circuits", "anthropic|native", "--from", 1, "--to", f"{today():%Y-%m-%d}T23:59:59Z", "--json"
    )
    two(*named, "reset")
    assert one.json(*named, "select", *options)["status"] == "resolved"


def sessions(scene):
    one, two = scene.one, scene.two
    review(one.tree)
    opened = one.json(
        "session", "start", "--plan", "plan.md", "--title", "Retries", "--owner-pid", os.getpid()
    )
    owner = ("--owner", opened["owner"])
    assert two.json("session", "status")["sessions"][0]["locked_by"]
    one("round", "start", *owner)
    (one.tree / "src" / "a.py").write_text("x = 2\n")
    one("round", "executed", *owner, "--report", "report.md")
    one("round", "reviewed", *owner, "--report", "review.md")
    verdict = one("gate", "adapt", stdin=VERDICT.encode()).out
    (one.tree / "gate.txt").write_text(verdict)
    one("gate", "record", *owner, "--report", "gate.txt")
    for step in ("static-analysis", "code-review", "simplify", "test-consolidation", "summary"):
        one("polish", "step", step, *owner, "--report", "r.md")
    for step in ("project-docs", "comments"):
        one("docs", "step", step, *owner, "--report", "r.md")
    one("security", "scan", *owner)
    one("session", "deliver", *owner)
    assert two.json("session", "status")["sessions"][0]["delivered"]
    two("state", "stages")
    two("state", "sessions", "--at", 30)


def audit(scene):
    one, two, folder = scene.one, scene.two, scene.folder
    for machine in (one, two):
        machine("rebuild")
        machine("verify")
        assert json.loads(machine("replay", "--json").out)["ok"]
        machine("rebuild", "--check")
    for name in NAMED:
        rows = two.json("query", name, "--format", "json")
        if "seconds DESC" in NAMED[name].sql:  # which of two lasted longer is not the same on both
            in_order = json.dumps(sorted(rows, key=lambda row: row["seq"]), separators=(",", ":"))
            scene.told[-1] = scene.plain(in_order)
    one("query", "SELECT type, count(*) AS n FROM events GROUP BY type ORDER BY type")
    two("timeline", "--svg", folder / "picture.svg")
    assert two.json("export", "--out", folder / "copy.jsonl")["events"] > 60
    two("import", folder / "copy.jsonl", "--to", folder / "copy")
    two("--ledger", folder / "copy", *NOTE, code=4)
    two("--ledger", folder / "copy", "verify")
    one("backup", folder / "backup.db")
    one("--ledger", folder / "backup.db", "verify")
    one("resume", "--as-successor", "--reason", "r", code=4)
    two("trust", code=2)
    one("schema", "plan.approved")
    assert one.json("doctor", "--json")["ok"]


DAY = (notes, proofs, authority, runs, receipts, dispatches, sessions, audit)


def test_a_day_on_a_fleets_ledger_prints_what_it_prints_on_a_ledger_of_files(scenes):
    files, fleet = scenes
    for part in DAY:
        for scene in scenes:
            part(scene)
        for one, other in zip(files.told, fleet.told, strict=True):
            assert one == other
        files.told.clear()
        fleet.told.clear()


def before_publishing(monkeypatch, type: str, happens) -> None:
    """`happens()` on the other machine once this one has decided to record an event of `type`, and before it does."""
    publish, waiting = FleetStore.publish, [happens]

    def overtaken(self, events, *rest):
        if events[0].type == type and waiting:
            waiting.pop()()
        return publish(self, events, *rest)

    monkeypatch.setattr(FleetStore, "publish", overtaken)


def events(machine, of: str) -> list[dict]:
    return [json.loads(line) for line in machine("log", "--type", of, "--json").out.splitlines()]


def types(machine, of: str) -> list[str]:
    return [event["type"] for event in events(machine, of)]


def approved(scene) -> tuple[str, ...]:
    """Today's plan, approved for session s1 of machine one; the words that name its folder on either machine."""
    scene.one("init")
    plan(scene.one.tree)
    where = ("--run-dir", str(scene.one.tree / "runs" / f"{today():%Y-%m-%d}"))
    scene.one.be("s1")
    scene.one("plan", "approve", *where, "--text", "all")
    return where


def test_who_is_overtaken_in_a_claim_is_told_who_holds_the_run(fleet, monkeypatch):
    """Each machine has a folder of its own at the same path: only the log says who was first."""
    one, two, where = fleet.one, fleet.two, approved(fleet)
    two.be("s2")
    marker = os.path.join(where[1], ".scan_in_progress")

    def two_claims():
        with open(marker, "rb") as file:
            mine = file.read()
        two("plan", "approve", *where, "--text", "all")
        two("run", "claim", *where)
        with open(marker, "wb") as file:
            file.write(mine)

    before_publishing(monkeypatch, "marker.claimed", two_claims)
    one("run", "claim", *where, code=5).refused(5, "session s2 holds the run")
    assert not os.path.exists(marker)
    assert types(two, "marker.*") == ["marker.claimed", "marker.refused"]


def test_two_machines_that_claim_at_once_make_one_claim(fleet):
    """The same session on two machines that share the folder: one claims, the other comes back to that claim."""
    where = approved(fleet)
    fleet.two.be("s1")
    calls = [machine.start("run", "claim", *where) for machine in (fleet.one, fleet.two)]
    done = [finish(each) for each in calls]
    assert {each.code for each in done} <= {0, 5}, [each.err for each in done]
    assert [each.json()["outcome"] for each in done if each.code == 0].count("created") == 1
    (claim,) = events(fleet.two, "marker.claimed")
    fleet.one("run", "claim", *where)
    with open(os.path.join(where[1], ".scan_in_progress"), encoding="utf-8") as file:
        assert json.load(file)["claim_nonce"] == claim["data"]["nonce"]


def test_two_machines_that_use_a_receipt_at_once_use_it_once(fleet):
    fleet.one("init")
    authority(fleet)
    path, known = issued(fleet, "receipt", "--sign", "--key", fleet.folder / "ann")
    words = ("receipt", "consume", path, *PLACE, "--session", "s1", "--work-dir", work(fleet.one))
    done = [finish(each) for each in [machine.start(*words) for machine in (fleet.one, fleet.two)]]
    assert sorted(each.code for each in done) == [0, 4], [each.err for each in done]
    assert "spent" in next(each for each in done if each.code).out
    assert types(fleet.one, "receipt.[cd]*") == ["receipt.consumed", "receipt.denied"]
    assert fleet.two.json("receipt", "show", known)["uses"] == {"assignment.submit_text": 1}


def test_a_machines_own_provider_health_is_none_of_the_fleets(fleet):
    """Its file, taken for a foreign edit of the fleet's, would close and open endpoints to all."""
    fleet.one("init")
    named, outage = (
        ("--ledger", fleet.ledger, "route"),
        ("record-failure", "--reason", "quota", "--executor", "e"),
    )
    fleet.two("route", *outage, "--provider", "own")
    fleet.one(*named, *outage, "--provider", "shared")
    fleet.two(*named, *outage, "--provider", "third")
    assert sorted(fleet.one.json("state", "circuits", "--json")["state"]) == ["shared|e", "third|e"]


def test_a_key_that_another_machine_replaced_signs_nothing_and_doctor_says_so(fleet):
    one, two = fleet.one, fleet.two
    known = one.json("init")["ledger_id"]
    authority(fleet)
    keys = one.folder / "state" / "gatebook" / "keys" / known
    subprocess.run(["cp", "-a", keys.parent, two.folder / "state" / "gatebook"], check=True)
    for name in ("checkpoint", "receipt"):
        two("authority", "rotate", name)
        one("authority", "rotate", name, code=4).refused(4, "not the ledger's current one")
    one("checkpoint", code=4).refused(4, "not the ledger's current one")
    words = ("--session", "s1", "--expires", one.environment["LATER"], "--authority", "yes", "--sign")
    one("receipt", "issue", *PLACE, *words, "--key", fleet.folder / "ann", "--out", "r", code=4)
    assert sorted(os.listdir(keys)) == ["checkpoint", "receipt"]
    found = one.json("doctor", "--json", code=1)["checks"]
    assert [each["level"] for each in found if each["check"] == "keys"] == ["problem", "problem"]
    assert types(one, "admission.refused") == []


def test_without_the_cluster_reading_goes_on_and_each_write_is_refused_in_one_line(tmp_path):
    server = Server(tmp_path / "server").start()
    fleet = Scene(tmp_path, f"nats://{server.address}/away")
    one, where = fleet.one, approved(fleet)
    one("append", "--stream", "x-notes/1", "--type", "x.note.added", "--content", "words")
    one("checkpoint", "--out", tmp_path / "note")
    server.kill()
    for words in (
        ("log", "--grep", "words"), ("show", 4), ("verify", "--against", tmp_path / "note"), ("replay",), ("state", "plan"),
        ("query", "approvals"), ("rebuild", "--check"), ("trace", 4), ("timeline",), ("prove", 4), ("export",),
        ("backup", tmp_path / "copy.db"), ("authority", "show"), ("session", "status"),
    ):  # fmt: skip
        assert one(*words).err.endswith("reading this machine's replica\n"), words
    one("doctor", code=1)
    request(one.tree)
    for words in (
        NOTE, (*NOTE, "--content", "words"), ("redact", 4, "--reason", "r"), ("checkpoint",), ("authority", "rotate", "receipt"),
        ("plan", "approve", *where, "--text", "all"), ("run", "claim", *where), ("session", "start", "--review-only", "--description", "x"),
        ("resume", "--as-successor", "--reason", "r"), ("sync",), ("init",),
    ):  # fmt: skip
        one(*words, code=75).refused(75)
    assert one("dispatch", "open", "request.json", code=75).err == ""
    hook = json.dumps({"session_id": "s1", "hook_event_name": "Stop"}).encode()
    assert one.json("guard", "capture", stdin=hook) == one.json("guard", "stop", stdin=hook) == {}
    server.start()
    assert one.json("run", "claim", *where)["outcome"] == "created"
    assert fleet.two.json(*NOTE)["version"] == 2
    one("replay")
    server.kill()


def test_a_clock_that_is_a_day_ahead_stops_the_others_until_one_says_it_was_wrong(fleet, monkeypatch):
    one, two, now = fleet.one, fleet.two, time.time_ns
    one("init")

    def ahead(minutes):
        monkeypatch.setattr(time, "time_ns", lambda: now() + minutes * 60 * 10**9)

    for minutes in (5, 0, 0):  # minutes apart the one behind goes on from the other's time
        ahead(minutes)
        (two if minutes else one)(*NOTE)
    ahead(25 * 60)
    two(*NOTE)
    ahead(0)
    one("checkpoint", code=4).refused(4, "`gatebook append --clock-jump`")
    hook = json.dumps({"session_id": "s1", "hook_event_name": "Stop"}).encode()
    assert one.json("guard", "capture", stdin=hook) == {}
    one(*NOTE, "--clock-jump")
    one("checkpoint")
    for machine in (one, two):
        machine("replay")


def test_serve_shows_what_other_machines_write_and_not_what_they_erase(fleet):
    one, two = fleet.one, fleet.two
    one("init")
    served = one.start("serve", "--port", "0")
    try:
        page = served.stdout.readline().decode().strip() + "views/events.json?_shape=array"

        def shown() -> list[dict]:
            time.sleep(1.1)  # pages are brought up to the log once a second
            with urllib.request.urlopen(page, timeout=30) as answer:
                return json.load(answer)

        two(*NOTE, "--content", "a name")
        assert [event["content"] for event in shown() if event["type"] == "x.note.added"] == ["a name"]
        two("redact", 2, "--reason", "personal")
        assert [event["content"] for event in shown() if event["type"] == "x.note.added"] == [None]
    finally:
        served.kill()
        finish(served)


def test_a_replica_named_by_its_path_says_what_it_is(fleet):
    fleet.one("init")
    (replica,) = (fleet.one.folder / "state" / "gatebook" / "fleet").iterdir()
    fleet.one("--ledger", replica, *NOTE, code=4).refused(4, "a fleet's replica is read-only")
    fleet.one("--ledger", "nats:/127.0.0.1/x", "init", code=2).refused(2, "nats://host:port/NAME")
