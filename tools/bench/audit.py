"""Rows of audit, time travel, proofs and steps, on a ledger of a million events, as whole processes.

    .venv/bin/python tools/bench/audit.py [--json] [--quick]

A ledger of EVENTS events (--quick: 20,000) is made by batches: open ones, and every tenth a decided one that its
admission let in (circuits, receipts with their uses, each caused by the one before). `state --at` and `trace` are compared
with the same interpreter and imports that only open the ledger, in turn. The steps are of `steps.py` beside this
file. The last line of output is {"rows":[…]}.
"""

from __future__ import annotations

# ruff: noqa: E402 - the path is set first
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..")]

import steps
from msgspec.structs import replace
from peers import flags, row, show
from steps import GATEBOOK

from commands.plan_runs.receipts import sign_receipt
from ledger.access import create_ledger
from ledger.event import Draft, Origin
from projections.circuit import Opened
from projections.cooldowns import next_opening
from projections.engine import Proposal, submit
from projections.receipt import Consumed, Issued, Reference
from projections.receipt_form import file_fields, receipt_digest
from projections.times import print_time, whole_seconds

ORIGIN = Origin("cli:bench", "bench")
DATA = b'{"text":"' + b"y" * 287 + b'"}'
CIRCUITS, GROUPS, RECEIPTS, USES = 80, 25, 4, 4
OPENS = "import os,sys\nimport commands.entry\nfrom commands.context import Context\nimport {}\nc=Context()\nc.ledger_given=sys.argv[1]\nc.ledger()\nc.close()\nos._exit(0)"


def _failures(world, turn):
    """One more failure of each endpoint of a group."""
    at = whole_seconds(world.clock)
    for number in range(CIRCUITS):
        provider = f"p{turn % GROUPS}-{number}"
        stream = f"circuit/{provider}|native"
        count, until = next_opening(world.state(stream).circuit(), "rate_limit", at)
        data = Opened(provider, "native", "rate_limit", print_time(at), count, print_time(until))
        yield Proposal(stream, "circuit.opened", data)


def _uses(world, turn, ledger):
    """Receipts, each used a few times; every use names the event before it as its cause."""
    seq = world.reader.head().seq + CIRCUITS
    begins, ends = print_time(world.clock), print_time(world.clock + 3_600_000_000)
    place = ("https://c.edu", "1", "quiz", "7")
    for number in range(RECEIPTS):
        name = f"{turn:016x}{number:016x}"
        issued = Issued(
            name, 1, begins, ends, *place, ("quiz.answer",), "s", "u", Reference("words", "b" * 32, "c" * 64), "d" * 32, "e" * 128,
        )  # fmt: skip
        issued = replace(issued, signature=sign_receipt(ledger, file_fields(issued)))
        seq += 1
        digest = receipt_digest(file_fields(issued))
        yield Proposal(f"receipt/{name}", "receipt.issued", issued)
        for count in range(1, USES + 1):
            used = Consumed("quiz.answer", digest, count, False, *place, "s", "u", "0" * 64)
            yield Proposal(f"receipt/{name}", "receipt.consumed", used, causation=seq)
            seq += 1


def fill(folder, events):
    """Make the ledger; returns the number of its events."""
    ledger, _ = create_ledger(folder, ORIGIN)
    batch = [Draft(f"x-bench/{number % 7}", "x.bench.ran", DATA) for number in range(900)]
    turn = 0
    while ledger.store.head().seq < events:
        turn += 1
        ledger.append(batch[: max(1, min(900, events - ledger.store.head().seq))], ORIGIN)
        submit(ledger, ORIGIN, lambda world: [*_failures(world, turn), *_uses(world, turn, ledger)])  # noqa: B023
    count = ledger.store.head().seq
    ledger.close()
    return count


def run(ledger, *words):
    """(seconds, highest resident memory in MB, stdout) of one command on `ledger`."""
    command = [*GATEBOOK, "--ledger", ledger, *words]
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    out = child.stdout.read()
    child.stdout.close()
    _, status, used = os.wait4(child.pid, 0)
    spent = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(words)}: exit {child.returncode}")
    return spent, used.ru_maxrss / 1024, out


def rebuild_rows(large, small):
    """How fast the views are made from nothing, and whether memory grows with the ledger."""
    _, little, _ = run(small, "rebuild")
    spent, much, out = run(large, "rebuild")
    events = json.loads(out)["events"]
    size = os.path.getsize(os.path.join(large, "views.db")) >> 20
    return [
        row("rebuild of all views", events / spent, "events/s", 50_000,
            f"{events:,} events in {spent:.1f} s; views of {size} MB", at_most=False),
        row(f"rebuild: memory at {events:,} events / at a fifth", much / little, "x", 1.2, f"{much:.0f} MB / {little:.0f} MB", at_most=True),
    ]  # fmt: skip


def beyond(ledger, module, words, rounds):
    """Median seconds of opening the ledger alone, of the same with the imports of `module`, of the command."""
    alone, loaded, whole = [], [], []
    for _ in range(rounds + 2):
        for seconds, imported in ((alone, "os"), (loaded, module)):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", OPENS.format(imported), ledger], check=True)
            seconds.append(time.perf_counter() - began)
        whole.append(run(ledger, *words)[0])
    return [statistics.median(seconds[2:]) for seconds in (alone, loaded, whole)]


def travel_rows(ledger, events, rounds):
    """As-of at a time in the middle, and the trace of a receipt's first use, with and without the views."""
    middle = json.loads(run(ledger, "show", str(events // 2), "--json")[2])["recorded_at"]
    used = next(  # an early one: whatever came after it might rest on it
        seq
        for seq in range(1 + 900 + CIRCUITS + 1, events)
        if json.loads(run(ledger, "show", str(seq), "--json")[2])["type"] == "receipt.consumed"
    )
    rows = []
    for name, module, words in (
        ("state --at", "commands.state,commands.moments,projections.timetravel,projections.circuit", ("state", "circuits", "p1-1|native", "--at", middle, "--json")),
        ("trace", "commands.trace,commands.intact,_sqlite3,heapq", ("trace", str(used), "--json")),
    ):  # fmt: skip
        alone, opened, whole = beyond(ledger, module, words, rounds)
        rows.append(row(f"{name} on {events:,} events: work beyond start-up", (whole - opened) * 1e3, "ms", 10,
                        f"{whole * 1e3:.1f} ms; opening the ledger with the same imports {opened * 1e3:.1f} ms, with none {alone * 1e3:.1f} ms", at_most=True))  # fmt: skip
    views = os.path.join(ledger, "views.db")
    os.rename(views, views + ".away")
    without = statistics.median(run(ledger, "trace", str(used), "--json")[0] for _ in range(3))
    os.rename(views + ".away", views)
    rows[-1]["detail"] += f"; where no views stand the log is read through once: {without * 1e3:.0f} ms"
    return rows


def proof_rows(ledger, small, rounds):
    """A checkpoint after each new event, and a proof under it; on the large ledger and on one of 1,000 events."""
    spent = {}
    for turn in range(rounds + 2):
        for name, at in (("large", ledger), ("small", small)):
            run(at, "append", "--stream", "x-bench/1", "--type", "x.bench.ran")
            signed, _, _ = run(at, "checkpoint")
            proved, _, _ = run(at, "prove", "500")
            if turn > 1:  # the first one makes the tiles
                spent.setdefault((name, "checkpoint"), []).append(signed)
                spent.setdefault((name, "prove"), []).append(proved)
    events = json.loads(run(ledger, "log", "-n", "1", "--json")[2])["seq"]
    rows = []
    for what in ("checkpoint", "prove"):
        large, little = (statistics.median(spent[name, what]) for name in ("large", "small"))
        rows.append(row(f"{what} at {events:,} events / at 1,000", large / little, "x", 3, f"{large * 1e3:.1f} ms / {little * 1e3:.1f} ms", at_most=True))  # fmt: skip
    return rows


def step_rows(rounds):
    """Each kind of work's slowest step, without its git and signing, against a typed append; all steps in the details."""
    kinds = {}
    for name, (kind, own, besides, typed) in steps.measure(rounds).items():
        kinds.setdefault(kind, []).append((own / typed, name, own, besides, typed))
    rows = []
    for kind, found in kinds.items():
        worst, name, own, besides, typed = max(found)
        each = ", ".join(f"{step} {ratio:.2f}" for ratio, step, *_ in found)
        rows.append(row(f"a step of a {kind} / a typed append, the slowest: {name}", worst, "x", 1.5,
                        f"{own * 1e3:.1f} ms besides {besides * 1e3:.1f} ms of git, signing or programs / {typed * 1e3:.1f} ms; {each}", at_most=True))  # fmt: skip
    return rows


def measure(*, quick):
    """The rows."""
    events, rounds = (20_000, 3) if quick else (1_000_000, 11)
    with tempfile.TemporaryDirectory() as root:
        os.environ["XDG_STATE_HOME"] = os.path.join(root, "state")
        large, fifth, small = (os.path.join(root, name) for name in ("large", "fifth", "small"))
        count = fill(large, events)
        fill(fifth, events // 5)
        fill(small, 1_000)
        rows = rebuild_rows(large, fifth)
        rows += travel_rows(large, count, rounds)
        rows += proof_rows(large, small, rounds)
    return rows + step_rows(2 if quick else 7)


def main():
    """Measure and print."""
    args = flags(__doc__).parse_args()
    show(measure(quick=args.quick), machine=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
