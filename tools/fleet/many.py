"""Many ledgers on one cluster of three, and what an event costs, really run on loopback; docs/scale.md shows what it prints.

    .venv/bin/python tools/fleet/many.py [--ledgers 1,4,16,64] [--seconds N] [--events N]

Everything runs on this one machine: three servers, at most 16 writing processes (each with its share of the ledgers, one
append after the other, round and round) and their replicas. One JSON object a row: first one for each number of ledgers,
then the cost of one event, in bytes measured and in money by the price of `--price` a GB and month.
"""

from __future__ import annotations

# ruff: noqa: E402 - the path is set first
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", ".."), os.path.join(HERE, "..", "..", "tests", "ledger")]

from nats_servers import Cluster, eventually

from ledger.event import Draft, Origin
from ledger.fleet import create_fleet, open_fleet
from ledger.jetstream import Stream

ORIGIN = Origin("cli:many", "many")
DATA = b'{"note":"%b","who":"agent-7"}' % (b"the quick brown fox jumps over the lazy dog; " * 2)
CONTENT = 1000
WRITERS = 16
SOME = 500


def size_of(folder):
    """Bytes that the files below `folder` take."""
    return sum(
        os.stat(os.path.join(at, name)).st_blocks * 512 for at, _, names in os.walk(folder) for name in names
    )


def memory_of(server):
    """Bytes that a server holds in memory."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def write(seconds, urls):
    """One writing process: it says "ready", waits for a line, appends, and prints how many appends there were."""
    ledgers = [eventually(lambda url=url: open_fleet(url)) for url in urls]
    print("ready", flush=True)
    sys.stdin.readline()
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        ledgers[count % len(ledgers)].append([Draft("x-many/1", "x.many.done", DATA)], ORIGIN)
        count += 1
    print(count)
    for ledger in ledgers:
        ledger.close()


def home(root, name):
    """From here on we are a machine with a home of its own."""
    os.environ["XDG_STATE_HOME"] = os.path.join(root, "homes", name)


def many(root, cluster, count, seconds):
    """The row of `count` ledgers."""
    home(root, "operator")
    urls = [cluster.url(f"l{count}-{n}", n % 3) for n in range(count)]
    for url in urls:
        eventually(lambda url=url: create_fleet(url, ORIGIN, {}))
    writers = min(count, WRITERS)
    running = []
    for n in range(writers):
        command = [sys.executable, __file__, "--write", str(seconds), *urls[n::writers]]
        environment = {**os.environ, "XDG_STATE_HOME": os.path.join(root, "homes", f"w{count}-{n}")}
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
    appends = sum(int(each.communicate()[0]) for each in running)
    home(root, f"new{count}")
    began = time.monotonic()
    ledger = open_fleet(urls[0])
    opened, events = time.monotonic() - began, ledger.store.head().seq
    ledger.close()
    began = time.monotonic()
    open_fleet(urls[0]).close()
    again = time.monotonic() - began
    return {
        "ledgers": count, "writers": writers, "appends_s": round(appends / seconds),
        "server_memory_mb": [round(memory_of(server) / 1e6) for server in cluster.servers],
        "server_files_mb": [round(size_of(os.path.join(server.folder, "js")) / 1e6, 1) for server in cluster.servers],
        "new_machine_opens_ms": round(opened * 1e3, 1), "of_events": events, "opens_again_ms": round(again * 1e3, 1),
    }  # fmt: skip


def held(ledger, stream):
    """Bytes that the stream holds on each of its servers."""
    return Stream(ledger.store.link, stream).info()["state"]["bytes"]


def cost(root, cluster, events, price):
    """What one event costs: in the stream of each server, and in the replica of each machine that reads."""
    home(root, "operator")
    url = cluster.url("cost")
    eventually(lambda: create_fleet(url, ORIGIN, {}))
    ledger = open_fleet(url)
    before = held(ledger, "cost")
    for _ in range(SOME):
        ledger.append([Draft("x-many/1", "x.many.done", DATA)], ORIGIN)
    event = (held(ledger, "cost") - before) / SOME
    last = ledger.store.reader().event(ledger.store.head().seq)
    for _ in range(events // 1000):
        ledger.append([Draft("x-many/1", "x.many.done", DATA) for _ in range(1000)], ORIGIN)
    home(root, "reader")
    began = time.monotonic()
    reader = open_fleet(url)
    seconds, count = time.monotonic() - began, reader.store.head().seq
    kept = reader.store.query("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")[0][0]
    reader.close()
    home(root, "operator")
    for _ in range(SOME // 100):
        drafts = [Draft("x-many/1", "x.many.done", DATA, content=os.urandom(CONTENT)) for _ in range(100)]
        ledger.append(drafts, ORIGIN)
    content = held(ledger, "OBJ_cost") / SOME
    ledger.close()
    month = price * 3 / 1000  # a million events of one byte each, on three servers
    return {
        "event_bytes": len(last.envelope) + len(last.data), "stream_bytes": round(event),
        "content_of": CONTENT, "content_bytes": round(content), "replica_bytes": round(kept / count),
        "new_machine_events_s": round(count / seconds), "million_on_r3_gb": round(event * 3 / 1000, 2),
        "million_with_content_on_r3_gb": round((event + content) * 3 / 1000, 2), "price_gb_month": price,
        "million_a_month": round(event * month, 2), "million_with_content_a_month": round((event + content) * month, 2),
    }  # fmt: skip


def run(counts, seconds, events, price):
    """The rows, one after the other."""
    with tempfile.TemporaryDirectory() as root:
        cluster = Cluster(os.path.join(root, "servers")).start()
        try:
            for count in counts:
                yield many(root, cluster, count, seconds)
            yield cost(root, cluster, events, price)
        finally:
            cluster.kill()


def main():
    """Print one JSON object a row."""
    if sys.argv[1:2] == ["--write"]:
        write(float(sys.argv[2]), sys.argv[3:])
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ledgers", default="1,4,16,64", help="how many, several runs separated by commas")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument(
        "--events", type=int, default=20_000, help="that a new machine reads in, in thousands"
    )
    parser.add_argument("--price", type=float, default=0.10, help="of a GB and month")
    args = parser.parse_args()
    counts = [int(each) for each in args.ledgers.split(",")]
    for each in run(counts, args.seconds, args.events, args.price):
        print(json.dumps(each), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
