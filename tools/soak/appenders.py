"""Many processes append to one ledger at once, and (with --kill) are killed with SIGKILL at random and started again.

    python tools/soak/appenders.py                         32 processes x 200 appends
    python tools/soak/appenders.py --kill 200 --processes 4   four writers, 200 kills

Checks that every acknowledged event is there with its hash, none is there twice, the numbers have no hole,
the chain verifies, and that no caller ever saw an error. Prints one JSON report; exit 1 if anything is wrong.
Each append has a key, and a writer that was killed calls again with the key whose answer it lost.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from blake3 import blake3

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATH = os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH"))))


def worker(folder: str, number: int, first: int, count: int) -> None:
    """Append `count` events in stream x-w/NUMBER; print a line `i seq hash us` after each acknowledgement."""
    from ledger.access import open_ledger
    from ledger.event import Draft, Origin

    ledger = open_ledger(folder)
    origin = Origin(f"soak:{number}", "soak")
    for i in range(first, count):
        data = b'{"i":%d,"w":%d}' % (i, number)
        draft = Draft(
            f"x-w/{number}", "x.soak.step", data, content=b"c" * (i % 300), idempotency_key=f"{number}-{i}"
        )
        began = time.perf_counter_ns()
        (event,) = ledger.append([draft], origin).events
        took = (time.perf_counter_ns() - began) // 1000
        os.write(1, b"%d %d %s %d\n" % (i, event.seq, event.hash.hex().encode(), took))


class Writer:
    """One worker process that is started again where it stopped, and what it was told."""

    def __init__(self, folder: str, number: int, count: int) -> None:
        self.folder, self.number, self.count = folder, number, count
        self.log = os.path.join(folder, f"acknowledged-{number}")
        self.errors: list[str] = []
        open(self.log, "wb").close()
        self.process: subprocess.Popen | None = None

    def told(self) -> list[tuple[int, int, str, int]]:
        """(i, seq, hash, us) of every acknowledgement; a line cut off by a kill was not received."""
        with open(self.log, "rb") as file:
            whole = file.read().rpartition(b"\n")[0]
        rows = [line.split() for line in whole.split(b"\n") if line]
        return [(int(i), int(seq), text.decode(), int(us)) for i, seq, text, us in rows]

    def start(self) -> None:
        """Go on after the last acknowledged append."""
        done = max((i for i, *_ in self.told()), default=-1) + 1
        command = [
            sys.executable,
            os.path.abspath(__file__),
            "--worker",
            self.folder,
            str(self.number),
            str(done),
            str(self.count),
        ]
        with open(self.log, "ab") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.PIPE, cwd=HERE, env={**os.environ, "PYTHONPATH": PATH}
            )

    def wait(self) -> None:
        """Let it finish; keep what it said on stderr."""
        assert self.process is not None
        said = self.process.communicate(timeout=600)[1].decode()
        if self.process.returncode not in (0, -signal.SIGKILL) or said:
            self.errors.append(said or f"exit {self.process.returncode}")


def check(folder: str, writers: list[Writer]) -> dict[str, object]:
    """The log against what the writers were told, with hashes computed here."""
    from ledger.access import open_ledger

    problems = [error for writer in writers for error in writer.errors]
    ledger = open_ledger(folder)
    previous, seq, by_seq, seen, last = bytes(32), 0, {}, set(), ""
    for event in ledger.store.read():
        seq += 1
        previous = blake3(previous + event.envelope, derive_key_context="gatebook 2026 event v1").digest()
        by_seq[event.seq] = event.hash.hex()
        if event.seq != seq or event.hash != previous or event.recorded_at <= last:
            problems.append(f"event {event.seq} (place {seq}) is not in the chain")
        last = event.recorded_at
        if event.idempotency_key in seen and event.idempotency_key is not None:
            problems.append(f"{event.idempotency_key} is there twice")
        seen.add(event.idempotency_key)
    for writer in writers:
        told = writer.told()
        problems += [
            f"{writer.number}-{i} was acknowledged as {number} and is not there"
            for i, number, text, _ in told
            if by_seq.get(number) != text
        ]
        if [i for i, *_ in told] != list(range(writer.count)):
            problems.append(f"writer {writer.number} was not told of each append once, in order")
        problems += [
            f"{writer.number}-{i} is lost" for i in range(writer.count) if f"{writer.number}-{i}" not in seen
        ]
    expected = 1 + sum(writer.count for writer in writers)
    if seq != expected:
        problems.append(f"{seq} events, {expected} expected")
    ledger.close()
    waits = sorted(us for writer in writers for *_, us in writer.told())
    return {
        "events": seq, "problems": problems[:20], "worst_wait_ms": round(waits[-1] / 1000, 1),
        "median_ms": round(waits[len(waits) // 2] / 1000, 2), "p99_ms": round(waits[len(waits) * 99 // 100] / 1000, 1),
    }  # fmt: skip


def soak(folder: str, processes: int, appends: int, kills: int = 0, seed: int = 1) -> dict[str, object]:
    """Run it in `folder` (made anew) and report."""
    from ledger.access import create_ledger
    from ledger.event import Origin

    create_ledger(folder, Origin("soak:0", "soak"))[0].close()
    chance = random.Random(seed)
    writers = [Writer(folder, number, appends) for number in range(processes)]
    began = time.monotonic()
    for writer in writers:
        writer.start()
    killed = 0
    for _ in range(kills):
        time.sleep(chance.uniform(0.005, 0.12))
        busy = [writer for writer in writers if writer.process is not None and writer.process.poll() is None]
        if not busy:
            break
        writer = chance.choice(busy)
        assert writer.process is not None
        writer.process.kill()
        killed += writer.process.wait() == -signal.SIGKILL
        writer.process.communicate()
        writer.start()
    for writer in writers:
        writer.wait()
    took = time.monotonic() - began
    return {
        "processes": processes,
        "appends": appends,
        "killed": killed,
        "seconds": round(took, 2),
        **check(folder, writers),
    }


def main(argv: list[str]) -> int:
    """Parse the few options; see the module's text."""
    if argv[:1] == ["--worker"]:
        worker(argv[1], int(argv[2]), int(argv[3]), int(argv[4]))
        return 0
    options = {"--processes": 32, "--appends": 200, "--kill": 0, "--seed": 1}
    for name, value in zip(argv[::2], argv[1::2], strict=True):
        options[name] = int(value)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_STATE_HOME"] = os.path.join(scratch, "state")
        report = soak(
            os.path.join(scratch, "ledger"),
            options["--processes"],
            options["--appends"],
            options["--kill"],
            options["--seed"],
        )
    print(json.dumps(report))
    return 1 if report["problems"] else 0


if __name__ == "__main__":
    sys.path.insert(0, HERE)
    sys.exit(main(sys.argv[1:]))
