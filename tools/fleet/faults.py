"""Faults really run against a three-node cluster under load, and the record checked afterwards.

    python tools/fleet/faults.py [--seconds N] [--writers N] [SCENARIO …]

Scenarios: leader (kill -9 the stream's leader, again and again), partition (cut the leader off from the others),
wipe (kill a follower, lose its disk, let it rejoin), all (kill -9 all three, start them again), ack (acknowledgements
do not arrive, again and again). Each ends with: nothing acknowledged lost, nothing recorded twice or against what was said, every
event lawful, every replica at one head, the chain verified, no void message, and the histories of claims and receipts
linearizable. Two end the ledger, and every replica must see it: tail (all three disks go back to an earlier state, what was
acknowledged after it is gone), rewritten (an administrator makes the stream anew with another history).
Prints one JSON object a scenario; exit 1 if one failed.
"""

from __future__ import annotations

# ruff: noqa: E402 - the path is set first
import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", ".."), os.path.join(HERE, "..", "..", "tests", "ledger")]

from linear import Operation, claim, linearizable, receipt
from nats_servers import Cluster
from proxy import Proxies

from ledger.errors import GatebookError, Refused, Tampered
from ledger.event import Draft, Origin
from ledger.fleet import create_fleet, open_fleet
from ledger.jetstream import Stream
from projections.replay import replay

NAME = "faults"
ORIGIN = Origin("cli:operator", "fault-run")
KEYS = 3
RECEIPTS = 20


class Run:
    """A cluster, a ledger on it and its writers, each with a home of its own."""

    def __init__(self, folder, *, writers=4):
        self.folder = folder
        self.cluster = Cluster(os.path.join(folder, "servers"), proxies=Proxies()).start()
        self.front = Proxies()
        self.writers = writers
        self.processes = []
        self.notes = []
        os.environ["XDG_STATE_HOME"] = self.home("operator")
        self.eventually(lambda: create_fleet(self.cluster.url(NAME), Origin("cli:operator", "init"), {}), 30)
        self.receipts = os.path.join(folder, "receipts")
        self.issue(RECEIPTS)

    def before_clients(self, first):
        """The ledger's name by way of proxies that can lose what a server answers."""
        ports = []
        for server in self.cluster.servers:
            listener = socket.create_server(("127.0.0.1", 0))
            self.front.add(server.name, "client", listener, server.port)
            ports.append(listener.getsockname()[1])
        return f"nats://{','.join(f'127.0.0.1:{port}' for port in ports[first:] + ports[:first])}/{NAME}"

    def home(self, who):
        """The state home of one machine."""
        return os.path.join(self.folder, "homes", who)

    def issue(self, count):
        """Receipts that allow one `quiz.start` each, as files that the writers present."""
        from commands.plan_runs.receipts import local_user, new_receipt, reference, write_receipt
        from projections.engine import Proposal, submit

        os.makedirs(self.receipts)
        ledger = open_fleet(self.cluster.url(NAME))
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        for number in range(count):
            issued = new_receipt(
                ledger, origin="http://127.0.0.1:8080", course="1", target_type="quiz", target="2",
                actions=["quiz.start"], session="fault-run", user=local_user(), expires=expires,
                authority=reference("a fault run"), synthetic_qa=True,
            )  # fmt: skip
            stream = f"receipt/{issued.receipt_id}"
            proposal = Proposal(stream, "receipt.issued", issued, correlation=stream)
            submit(ledger, Origin("cli:operator", "receipt issue"), lambda _world, made=proposal: [made])
            write_receipt(os.path.join(self.receipts, f"{number}.json"), issued)
        ledger.close()

    def eventually(self, what, seconds):
        """The value of `what()`, tried again until it does not raise (or is not falsy)."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = what()
                if found:
                    return found
            except GatebookError:
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(what)
            time.sleep(0.1)

    def info(self, stream=NAME):
        """What the stream's leader says."""
        ledger = open_fleet(self.cluster.url(NAME))
        try:
            ledger.store.stream.name = stream
            return ledger.store.stream.info()
        finally:
            ledger.close()

    def leader(self):
        """The server that leads the stream."""
        return self.cluster.named(self.eventually(lambda: self.info()["cluster"].get("leader"), 30))

    def current(self):
        """Whether all three have everything, events and contents."""
        for stream in (NAME, f"OBJ_{NAME}"):
            peers = self.info(stream)["cluster"].get("replicas") or []
            if len(peers) != 2 or any(not peer.get("current") or peer.get("offline") for peer in peers):
                return False
        return True

    def start(self, seconds, *, proxied):
        """Let the writers work for so long."""
        for n in range(self.writers):
            who = f"w{n}"
            command = [
                sys.executable,
                os.path.join(HERE, "worker.py"),
                self.before_clients(n % 3) if proxied else self.cluster.url(NAME, n % 3),
                who,
                str(seconds),
                str(KEYS),
                self.receipts,
            ]
            environment = {**os.environ, "XDG_STATE_HOME": self.home(who)}
            out = open(os.path.join(self.folder, f"{who}.jsonl"), "w")
            self.processes.append(
                subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.DEVNULL)
            )
            out.close()

    def records(self):
        """What all writers wrote down, once they are done."""
        for process in self.processes:
            process.wait(120)
        found = []
        for n in range(self.writers):
            with open(os.path.join(self.folder, f"w{n}.jsonl")) as lines:
                found += [json.loads(line) for line in lines]
        return found

    def machines(self, *more):
        """(who, ledger) of the operator's, each writer's and `more` machines, one after the other, each as its home has it."""
        for who in ("operator", *more, *(f"w{n}" for n in range(self.writers))):
            os.environ["XDG_STATE_HOME"] = self.home(who)
            ledger = open_fleet(self.cluster.url(NAME, int(who[1:]) % 3 if who[1:].isdigit() else 0))
            try:
                yield who, ledger
            finally:
                ledger.close()

    def verdicts(self):
        """What each machine says of the stream, and whether it refuses to write."""
        found = {}
        for who, ledger in self.machines():
            try:
                ledger.store.follow(whole=True)
                found[who] = "ok"
            except Tampered as error:
                found[who] = error.verdict
            try:
                ledger.append([Draft("x-work/late", "x.work.done")], ORIGIN)
                found[who] += ", written"
            except Refused:
                pass
        return found

    def check(self):
        """The verdict on everything that was acknowledged."""
        records = self.records()
        self.cluster.proxies.heal()
        self.eventually(self.current, 60)
        heads = set()
        for who, ledger in self.machines("fresh"):
            ledger.store.follow()
            head = ledger.store.head()
            heads.add((head.seq, head.hash))
            if who == "fresh":
                events = list(ledger.store.read())
                good, voids, promise = replay(ledger.store)[0], ledger.store.voids, ledger.store.promise
        hashes = [event.hash.hex() for event in events]
        places = {value: place for place, value in enumerate(hashes)}
        acknowledged = [each["hashes"] for each in records if each["hashes"]]
        lost = [batch for batch in acknowledged if any(each not in places for each in batch)]
        split = [
            b
            for b in acknowledged
            if b not in lost and [places[each] - places[b[0]] for each in b] != list(range(len(b)))
        ]
        doubled, denied = against_what_was_said(records, events)
        wrong = [each for each in records if each["answer"] == "wrong"]
        crooked = [key for key, history, model in histories(records) if linearizable(history, model) is None]
        answered = [each["answered"] - each["called"] for each in records if each["answer"] == "ok"]
        return {
            "ok": not (lost or split or doubled or denied or wrong or crooked) and len(heads) == 1 and good.ok and voids == 0 and promise == "replicated",
            "events": len(hashes),
            "acknowledged": sum(len(batch) for batch in acknowledged),
            "unknown": sum(each["answer"] is None for each in records),
            "unavailable": sum(each["answer"] == "unavailable" for each in records),
            "lost": len(lost), "split": len(split), "doubled": doubled, "denied": denied, "wrong": wrong[:2], "not_linearizable": crooked,
            "histories": len({(each["what"] == "consume", each["key"]) for each in records if each["what"] != "append"}),
            "answers": dict(sorted(Counter(f"{each['what']} {str(each['answer'])[:40]}" for each in records).items())),
            "heads": len(heads), "verdict": good.verdict, "void": voids,
            "longest_s": round(max(answered, default=0), 2), "faults": self.notes,
        }  # fmt: skip

    def close(self):
        """End everything that was started."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.cluster.kill()


def against_what_was_said(records, events):
    """How many appends are recorded more than once, and how many though "nothing was recorded" was said."""
    appends = Counter((event.stream, event.data) for event in events if event.type == "x.work.done")
    said = [each for each in records if each["what"] == "append" and each["answer"] == "unavailable"]
    denied = sum((f"x-work/{each['who']}", b'{"n":%d}' % each["n"]) in appends for each in said)
    return sum(count > 1 for count in appends.values()), denied


def histories(records):
    """(key, operations, model) of each claim and each receipt."""
    grouped = {}
    for each in records:
        if each["what"] == "append" or each["answer"] == "unavailable":
            continue
        group = ("receipt", each["key"]) if each["what"] == "consume" else ("claim", each["key"])
        operation = Operation(each["who"], each["what"], each["called"], each["answered"], each["answer"])
        grouped.setdefault(group, []).append(operation)
    for key, history in grouped.items():
        yield key, history, receipt if key[0] == "receipt" else claim


def kill_leader(run, seconds):
    """The leader dies and comes back, as often as there is time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        server = run.leader()
        server.kill()
        run.notes.append(f"killed leader {server.name}")
        time.sleep(min(2.0, seconds / 3))
        server.start()
        # An election takes some seconds; then writing goes on until the next kill.
        time.sleep(min(5.0, seconds / 2))


def partition(run, seconds):
    """The leader is alive and cut off; its clients, too, talk to it in vain."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        server = run.leader()
        run.cluster.proxies.cut(server.name)
        run.notes.append(f"cut off {server.name}")
        time.sleep(min(6.0, seconds / 2))
        run.cluster.proxies.heal()
        time.sleep(2.0)


def wipe(run, _seconds):
    """A follower loses its disk and comes back empty."""
    leader = run.leader()
    server = next(each for each in run.cluster.servers if each is not leader)
    server.kill()
    server.wipe()
    run.notes.append(f"wiped {server.name}")
    time.sleep(1.0)
    server.start()
    run.eventually(run.current, 60)
    run.notes.append(f"{server.name} is current again")


def kill_all(run, seconds):
    """All three die at once and come back."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for server in run.cluster.servers:
            server.kill()
        run.notes.append("killed all three")
        time.sleep(0.3)
        for server in run.cluster.servers:
            server.start()
        time.sleep(min(6.0, max(seconds / 2, 3.0)))


def lose_acknowledgements(run, seconds):
    """What a writer sent is stored, and its connection breaks before it hears so."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run.front.lose(1, b'{"stream":"%b"' % NAME.encode())
        time.sleep(0.3)
    run.front.lose(0, b"")
    run.notes.append(f"lost {run.front.lost} acknowledgements")


def lose_the_tail(run):
    """All three disks go back to an earlier state: what was acknowledged since is gone everywhere."""
    run.cluster.kill()
    for server in run.cluster.servers:
        shutil.copytree(os.path.join(server.folder, "js"), os.path.join(server.folder, "earlier"))
    for server in run.cluster.servers:
        server.start()
    run.eventually(run.current, 60)
    os.environ["XDG_STATE_HOME"] = run.home("operator")
    ledger = open_fleet(run.cluster.url(NAME))
    for n in range(3):
        ledger.append([Draft("x-work/tail", "x.work.done", b'{"n":%d}' % n)], ORIGIN)
    ledger.close()
    for _, each in run.machines():
        each.store.follow()
    run.cluster.kill()
    for server in run.cluster.servers:
        server.wipe()
        os.rename(os.path.join(server.folder, "earlier"), os.path.join(server.folder, "js"))
    for server in run.cluster.servers:
        server.start()
    run.eventually(run.leader, 60)
    return "truncated"


def rewrite(run):
    """An administrator makes the stream anew: its first half, then as many events as before, but others."""
    os.environ["XDG_STATE_HOME"] = run.home("operator")
    ledger = open_fleet(run.cluster.url(NAME))
    stream, link, last = ledger.store.stream, ledger.store.link, ledger.store.head().seq
    kept = [stream.at_leader(place)[1] for place in range(1, last // 2)]
    link.request(f"$JS.API.STREAM.DELETE.{NAME}", seconds=20)
    Stream(link, NAME).create()
    for body in kept:
        link.request(f"gatebook.{NAME}", body)
    ledger.close()
    os.environ["XDG_STATE_HOME"] = run.home("forger")
    forged = run.eventually(lambda: open_fleet(run.cluster.url(NAME)), 60)
    while forged.store.head().seq < last:
        forged.append([Draft("x-work/forged", "x.work.done")], ORIGIN)
    forged.close()
    return "forked"


SCENARIOS = {
    "leader": kill_leader, "partition": partition, "wipe": wipe, "all": kill_all, "ack": lose_acknowledgements,
}  # fmt: skip
ENDS = {"tail": lose_the_tail, "rewritten": rewrite}


def scenario(name, folder, *, seconds, writers):
    """Run one scenario, or several joined by +, on one ledger; the verdict as JSON values."""
    run = Run(folder, writers=writers)
    try:
        names = name.split("+")
        run.start(seconds * len(names) + 2, proxied="ack" in names)
        time.sleep(1.0)
        for each in names:
            if each in SCENARIOS:
                SCENARIOS[each](run, seconds)
        verdict = {"scenario": name, **run.check()}
        for each in names:
            if each in ENDS:
                wanted, seen = ENDS[each](run), run.verdicts()
                verdict |= {"seen": seen, "ok": verdict["ok"] and set(seen.values()) == {wanted}}
        return verdict
    finally:
        run.close()


def main():
    """Every scenario asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--writers", type=int, default=6)
    parser.add_argument(
        "scenario", nargs="*", help="one, or several joined by + on one ledger (default: each)"
    )
    args = parser.parse_args()
    unknown = {each for name in args.scenario for each in name.split("+")} - {*SCENARIOS, *ENDS}
    if unknown:
        parser.error(f"no scenario {min(unknown)}: {', '.join([*SCENARIOS, *ENDS])}")
    failed = False
    for name in args.scenario or [*SCENARIOS, *ENDS]:
        with tempfile.TemporaryDirectory() as folder:
            verdict = scenario(name, folder, seconds=args.seconds, writers=args.writers)
        print(json.dumps(verdict), flush=True)
        failed = failed or not verdict["ok"]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
