"""The rows on JetStream: real servers from PyPI on loopback, `sync_interval: always`, in one run.

    .venv/bin/python tools/bench/fleet.py [--json] [--quick]

The bare publish is the same bytes on a plain stream with the same replicas and flushing, by the usual client
(nats-py) and, in the details, by ours; blocks alternate. The last line of output is {"rows":[…]}.
"""

from __future__ import annotations

# ruff: noqa: E402 - the path is set first
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", ".."), os.path.join(HERE, "..", "..", "tests", "ledger")]

from nats_servers import Cluster, Server, eventually
from peers import flags, row, show

from ledger.event import Draft, Origin
from ledger.extension import message_of
from ledger.fleet import create_fleet, open_fleet
from ledger.nats_client import Link
from ledger.nats_login import Login

ORIGIN = Origin("cli:bench", "bench")
DATA = (
    b'{"amount":12345,"note":"the quick brown fox jumps over the lazy dog; the quick brown fox jumps over the lazy'
    b' dog","tags":["alpha","beta"],"who":"agent-7"}'
)


def drafts(count, stream="x-bench/1"):
    """So many events of about 300 bytes."""
    return [Draft(stream, "x.bench.done", DATA) for _ in range(count)]


def lead(ports, streams):
    """Let the first server lead these streams, so that all of them have the same way to go."""
    link = Link([("127.0.0.1", port) for port in ports], Login())
    name = str(link.connection().info["server_name"])
    for stream in streams:
        for _ in range(20):
            info = json.loads(link.request(f"$JS.API.STREAM.INFO.{stream}").payload)
            if info.get("cluster", {}).get("leader") == name:
                break
            link.request(
                f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}",
                json.dumps({"placement": {"preferred": name}}).encode(),
            )
            time.sleep(0.5)
    link.drop()


class Bare:
    """A plain publish with its acknowledgement, by nats-py."""

    def __init__(self, ports, replicas):
        import nats

        self.loop = asyncio.new_event_loop()
        servers = [f"nats://127.0.0.1:{port}" for port in ports]
        self.connection = self.loop.run_until_complete(nats.connect(servers))
        self.stream = self.connection.jetstream()
        added = self.stream.add_stream(name="BARE", subjects=["bare"], num_replicas=replicas)
        self.loop.run_until_complete(added)

    def block(self, body, count):
        """Seconds for so many publishes, one after the other."""

        async def publish():
            began = time.perf_counter()
            for _ in range(count):
                await self.stream.publish("bare", body)
            return time.perf_counter() - began

        return self.loop.run_until_complete(publish())

    def close(self):
        """Leave."""
        self.loop.run_until_complete(self.connection.close())
        self.loop.close()


def appends(url, ports, replicas, blocks, size):
    """Medians of (append, bare by nats-py, bare by our client) in appends a second."""
    ledger = open_fleet(url)
    body = message_of(ledger.append(drafts(1), ORIGIN).events[0])
    bare = Bare(ports[:1], replicas)
    lead(ports[:1], ["BARE", "bench"])
    link = Link([("127.0.0.1", port) for port in ports], Login())
    rates = ([], [], [])
    for turn in range(blocks + 1):
        began = time.perf_counter()
        for _ in range(size):
            ledger.append(drafts(1), ORIGIN)
        own = time.perf_counter() - began
        usual = bare.block(body, size)
        began = time.perf_counter()
        for _ in range(size):
            link.request("bare", body)
        ours = time.perf_counter() - began
        if turn:
            for found, seconds in zip(rates, (own, usual, ours), strict=True):
                found.append(size / seconds)
    bare.close()
    link.drop()
    ledger.close()
    return tuple(statistics.median(found) for found in rates)


def append_row(name, url, ports, replicas, *, quick):
    """append / bare publish."""
    own, usual, ours = appends(url, ports, replicas, *((3, 50) if quick else (8, 300)))
    detail = f"{own:,.0f}/s; bare publish by nats-py {usual:,.0f}/s, by our own client {ours:,.0f}/s ({own / ours:.2f})"
    return row(f"append on JetStream {name} / bare publish", own / usual, "x", 0.8, detail, at_most=False)


WRITER = """
import json, sys, time
sys.path[:0] = sys.argv[3:]
from fleet import ORIGIN, drafts, open_fleet
ledger = open_fleet(sys.argv[1])
ledger.append(drafts(1), ORIGIN)
print("ready", flush=True)
sys.stdin.readline()
end = time.perf_counter() + float(sys.argv[2])
waits = []
while (began := time.perf_counter()) < end:
    ledger.append(drafts(1), ORIGIN)
    waits.append(time.perf_counter() - began)
ledger.store.turns.leave()
print(json.dumps([len(waits), max(waits, default=0.0)]), flush=True)
sys.stdin.readline()
ledger.close()
"""


def writers(url, count, seconds, root, *, machines):
    """(appends a second in total, worst wait in ms, fewest, most) of `count` writers at once."""
    running = []
    for n in range(count):
        home = os.path.join(root, f"w{n}" if machines else "w")
        command = [sys.executable, "-c", WRITER, url, str(seconds), *sys.path[:3]]
        environment = {**os.environ, "XDG_STATE_HOME": home}
        running.append(
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        )
    for each in running:
        each.stdout.readline()
    for each in running:
        each.stdin.write("go\n")
        each.stdin.flush()
    found = [json.loads(each.stdout.readline()) for each in running]
    # On machines of their own nobody would feel that others flush their replicas and end: they do when all are done.
    for each in running:
        each.communicate()
    counts = [each[0] for each in found]
    return sum(counts) / seconds, max(each[1] for each in found) * 1e3, min(counts), max(counts)


def contention_rows(url, root, *, quick):
    """16 writers on 16 machines, and on one."""
    seconds = 2 if quick else 8
    one = writers(url, 1, seconds, os.path.join(root, "one"), machines=True)[0]
    total, worst, fewest, most = writers(url, 16, seconds, os.path.join(root, "apart"), machines=True)
    near, near_worst, _, _ = writers(url, 16, seconds, os.path.join(root, "near"), machines=False)
    detail = f"16 machines (a replica each): {total:,.0f}/s, {fewest} to {most} each; on one machine: {near:,.0f}/s, {near_worst:.0f} ms"
    return [
        row("16 writers on R3: worst wait", worst, "ms", 500, detail, at_most=True),
        row(
            "16 writers on R3: total / one writer",
            total / one,
            "x",
            0.6,
            f"one writer {one:,.0f}/s",
            at_most=False,
        ),
    ]


def fill(url, events):
    """Put lawful circuits' events (a decided type, so that there is something to fold) into the ledger, 1,000 a batch."""
    from projections.circuit import EVENTS
    from projections.cooldowns import opening
    from projections.engine import encode_data
    from projections.times import print_time, whole_seconds

    ledger = open_fleet(url)
    counts = [0] * 50
    for start in range(0, events, 1000):
        at = whole_seconds(time.time_ns() // 1000)
        batch = []
        for number in range(start, start + 1000):
            place = number % len(counts)
            counts[place], until = opening(counts[place], "rate_limit", at)
            failure = EVENTS["circuit.opened"](
                f"p{place}", "m", "rate_limit", print_time(at), counts[place], print_time(until)
            )
            data = encode_data(failure, "circuit.opened")
            batch.append(Draft(f"circuit/p{place}|m", "circuit.opened", data))
        ledger.append(batch, ORIGIN)
    ledger.close()


FOLDER = """
import sys
sys.path[:0] = sys.argv[2:]
from ledger.sqlite import SQLiteStore
from projections.replay import Replay
folding = Replay(SQLiteStore(sys.argv[1]))
for line in sys.stdin:
    folding.run(int(line))
print(folding.admitted)
"""


class Folder:
    """Another process of a new machine, which admits and folds what the first one has kept while that reads on."""

    def __init__(self):
        self._process = None

    def kept(self, store, seq):
        """The replica has the events up to `seq`."""
        if self._process is None:
            command = [sys.executable, "-c", FOLDER, store.path, *sys.path[:3]]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        self._process.stdin.write(f"{seq}\n")
        self._process.stdin.flush()

    def admitted(self):
        """How many events were admitted, once it is done."""
        return int(self._process.communicate()[0])


NEW_MACHINE = """
import json, sys, time
sys.path[:0] = sys.argv[2:]
from fleet import Folder, open_fleet
folder = Folder()
began = time.perf_counter()
ledger = open_fleet(sys.argv[1], kept=folder.kept)
kept = time.perf_counter() - began
admitted = folder.admitted()
both = time.perf_counter() - began
count = ledger.store.head().seq
assert admitted == count
ledger.store.kept = None
began = time.perf_counter()
ledger.store.follow(whole=True)
print(json.dumps([count, kept, both, time.perf_counter() - began]))
ledger.close()
"""


def catch_up_row(server_url, root, *, quick):
    """A new replica, in a new process: every message checked and kept, and every event admitted and folded, in their order."""
    fill(server_url, 10_000 if quick else 200_000)
    command = [sys.executable, "-c", NEW_MACHINE, server_url, *sys.path[:3]]
    environment = {**os.environ, "XDG_STATE_HOME": os.path.join(root, "replica")}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    count, kept, both, compared = json.loads(done.stdout)
    return row("replica catch-up from JetStream, verified and folded", count / both, "events/s", 50_000,
               f"{count:,} events; verified and kept by {kept / both:.0%} of the time; compared again {count / compared:,.0f}/s",
               at_most=False)  # fmt: skip


def measure(*, quick):
    """The rows."""
    rows = []
    with tempfile.TemporaryDirectory() as root:
        os.environ["XDG_STATE_HOME"] = os.path.join(root, "state")
        server = Server(os.path.join(root, "r1")).start()
        try:
            url = f"nats://{server.address}/bench"
            create_fleet(url, ORIGIN, {})
            rows.append(append_row("R1", url, [server.port], 1, quick=quick))
            big = f"nats://{server.address}/big"
            create_fleet(big, ORIGIN, {})
            rows.append(catch_up_row(big, root, quick=quick))
        finally:
            server.kill()
        cluster = Cluster(os.path.join(root, "r3")).start()
        try:
            url = cluster.url("bench")
            eventually(lambda: create_fleet(url, ORIGIN, {}))
            rows.append(append_row("R3", url, [each.port for each in cluster.servers], 3, quick=quick))
            rows += contention_rows(url, root, quick=quick)
        finally:
            cluster.kill()
    return rows


def main():
    """Measure and print."""
    args = flags(__doc__).parse_args()
    show(measure(quick=args.quick), machine=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
