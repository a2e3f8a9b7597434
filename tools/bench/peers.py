"""gatebook beside the peers of BASELINES (section 3), from PyPI, each in its own environment, in one run.

    .venv/bin/python tools/bench/peers.py [--json] [--quick] [PEER …]

Blocks alternate, so noise hits all. The environments are made when first needed, in $XDG_CACHE_HOME/gatebook-bench/.
The last line of output is {"rows":[…]} as tools/bench/report.py reads it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TASKS = os.path.join(HERE, "peer_tasks.py")
PEERS = {
    "eventsourcing": "9.5.6", "dbos": "3.4.0", "auditchain": "0.3.0", "attestroot": "0.2.0",
    "argus-ledger": "0.1.0a5", "awdit": "0.1.0", "aat-mcp": "0.1.0",
}  # fmt: skip
FLUSHES = ("eventsourcing", "dbos", "auditchain", "argus-ledger", "awdit")
ONE_SHOT = tuple(name for name in PEERS if name != "aat-mcp")  # which keeps nothing


def environment(name):
    """The interpreter of the peer's own environment, made if it is not there."""
    if name == "gatebook":
        return sys.executable
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.path.join(cache, "gatebook-bench", f"{name}-{PEERS[name]}")
    python = os.path.join(folder, "bin", "python")
    done = os.path.join(folder, "complete")
    if not os.path.exists(done):
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [
            python,
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            f"{name}=={PEERS[name]}",
        ]
        subprocess.run(install, check=True, timeout=600)
        open(done, "w").close()
    return python


class Peer:
    """A peer's process that does blocks of work when told."""

    def __init__(self, name, folder):
        self.name = name
        command = [environment(name), TASKS, name, folder]
        home = {**os.environ, "XDG_STATE_HOME": os.path.join(folder, "state")}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=home,
        )
        while True:
            line = self.process.stdout.readline()
            if line == "ready\n":
                break
            if not line:
                raise RuntimeError(f"{name} does not start")

    def tell(self, line):
        """Ask for work; `answer` waits for it."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self):
        """The words of its answer; what the peer itself prints is skipped."""
        while True:
            line = self.process.stdout.readline()
            words = line.split()
            if not line:
                return ["0", "died"]
            try:
                float(words[0])
            except (ValueError, IndexError):
                continue
            return words

    def close(self):
        """End it."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def row(work, measured, unit, limit, detail, *, at_most):
    """One row as report.py reads it."""
    kept = measured <= limit if at_most else measured >= limit
    return {"work": work, "measured": round(measured, 3), "unit": unit, "limit": limit, "at_most": at_most, "kept": kept, "detail": detail}  # fmt: skip


def one_shot(names, root, rounds):
    """Median seconds of: new interpreter, append one, exit."""
    times = {name: [] for name in ("gatebook", "gatebook append", *names)}
    home = {**os.environ, "XDG_STATE_HOME": os.path.join(root, "state")}
    for turn in range(rounds + 1):
        for name, seconds in times.items():
            folder = os.path.join(root, name.partition(" ")[0])
            os.makedirs(folder, exist_ok=True)
            if name == "gatebook append":  # the command itself, as an agent calls it
                command = [sys.executable, "-m", "commands", "--ledger", os.path.join(folder, "gatebook"), "append",
                           "--stream", "x-bench/1", "--type", "x.bench.done", "--data", '{"a":1}']  # fmt: skip
            else:
                command = [environment(name), TASKS, name, folder, "once"]
            began = time.perf_counter()
            subprocess.run(
                command, env=home, cwd=os.path.join(HERE, "..", ".."), check=True, capture_output=True
            )
            if turn:
                seconds.append(time.perf_counter() - began)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def in_process(names, root, blocks, size, fill):
    """(appends a second, verified events a second) of each, blocks alternating."""
    peers, rates, verified = [], {}, {"gatebook alone": []}
    for name in ("gatebook", *names):
        folder = os.path.join(root, f"in-{name}")
        os.makedirs(folder, exist_ok=True)
        peers.append(Peer(name, folder))
        rates[name], verified[name] = [], []
    for turn in range(blocks + 1):
        for peer in peers:
            count = size if peer.name not in ("dbos", "awdit") else max(size // 10, 20)
            peer.tell(f"append {count}")
            seconds = float(peer.answer()[0])
            if turn and seconds:
                rates[peer.name].append(count / seconds)
    for peer in peers:
        peer.tell(f"fill {fill}")
        peer.answer()
    for _ in range(3):
        for peer in peers:
            peer.tell("verify")
            verified[peer.name].append(float(peer.answer()[0]))
        peers[0].tell("verify_alone")
        verified["gatebook alone"].append(float(peers[0].answer()[0]))
    for peer in peers:
        peer.close()
    return (
        {name: statistics.median(found) if found else 0.0 for name, found in rates.items()},
        {name: statistics.median(found) for name, found in verified.items()},
    )


def sixteen_writers(names, root, each):
    """(asked, counted afterwards, errors said, chain good) with 16 processes at once."""
    found = {}
    for name in ("gatebook", *names):
        folder = os.path.join(root, f"many-{name}")
        os.makedirs(folder, exist_ok=True)
        first = Peer(name, folder)
        first.tell("append 1")
        first.answer()
        peers = [Peer(name, folder) for _ in range(16)]
        for peer in peers:
            peer.tell(f"append {each}")
        failed = sum(
            int(words[1]) if words[1:2] and words[1].isdigit() else each
            for words in [p.answer() for p in peers]
        )
        for peer in peers:
            peer.close()
        last = Peer(name, folder)
        last.tell("count")
        count = int(float(last.answer()[0]))
        last.tell("verify")
        good = float(last.answer()[0]) > 0
        last.close()
        first.close()
        found[name] = (16 * each + 1, count, failed, good)
    return found


def measure(names, *, quick):
    """The rows."""
    rows = []
    with tempfile.TemporaryDirectory() as root:
        shots = one_shot([n for n in names if n in ONE_SHOT], root, 3 if quick else 11)
        own = max(shots.pop("gatebook"), shots.pop("gatebook append"))
        for name, seconds in shots.items():
            rows.append(row(f"append, one process: gatebook / {name}", own / seconds, "x", 1.0,
                            f"{own * 1e3:.1f} ms; {name} {seconds * 1e3:.1f} ms", at_most=True))  # fmt: skip
        rates, verified = in_process(names, root, *((3, 50, 500) if quick else (8, 300, 5000)))
        own = rates["gatebook"]
        rows += [
            row(
                f"append, in process: gatebook / {name}",
                own / (rates[name] or 1e-9),
                "x",
                1.0,
                f"{own:,.0f}/s; {name} {rates[name]:,.0f}/s",
                at_most=False,
            )
            for name in names
            if name in FLUSHES
        ]
        alone = verified.pop("gatebook alone")
        others = {name: rate for name, rate in verified.items() if name != "gatebook" and rate}
        if others:
            best = max(others, key=others.get)
            rows.append(row("verify: gatebook / the best of them", verified["gatebook"] / others[best], "x", 4.0,
                            f"{verified['gatebook']:,.0f}/s, {alone:,.0f}/s in one process; " + ", ".join(f"{n} {r:,.0f}/s" for n, r in others.items()),
                            at_most=False))  # fmt: skip
        durable = [name for name in names if name not in ("dbos", "aat-mcp", "eventsourcing")]
        many = sixteen_writers(durable, root, 10 if quick else 50)
        asked, count, failed, good = many.pop("gatebook")
        said = "; ".join(
            f"{n}: {f} refused, {a - f - c} more missing, chain {'good' if g else 'broken'}"
            for n, (a, c, f, g) in many.items()
        )
        rows.append(row("16 writers at once: gatebook's writes lost or refused", asked - count + failed + (not good), "", 0,
                        f"{count} of {asked} recorded, chain {'good' if good else 'broken'}; {said}", at_most=True))  # fmt: skip
    return rows


def flags(about):
    """The flags that the tools beside this file share."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="only the last line matters")
    parser.add_argument("--quick", action="store_true", help="little and few rounds: does it run?")
    return parser


def show(rows, *, machine):
    """Print the rows, one a line unless a `machine` reads them, and last as report.py reads them."""
    if not machine:
        for each in rows:
            kept = "ok " if each["kept"] else "NOT"
            print(f"{kept} {each['work']}: {each['measured']} {each['unit']} ({each['detail']})")
    print(json.dumps({"rows": rows}))


def main():
    """Measure and print."""
    parser = flags(__doc__)
    parser.add_argument("peers", nargs="*", default=[])
    args = parser.parse_args()
    show(measure(args.peers or list(PEERS), quick=args.quick), machine=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
