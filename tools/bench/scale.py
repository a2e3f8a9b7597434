"""Many writers on one ledger, simulated from the time of one publish (tools/fleet/many.py really runs many ledgers).

    .venv/bin/python tools/bench/scale.py [--publish MS]

The simulation is of the turns that writers of one ledger take (ledger/turns.py): whoever has the turn appends for 14 ms,
then calls the next; a call costs a message, a catch-up and the first publish. Times are in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys

TURN_MS = 14.0


def simulate(writers, publish, *, think=0.0, catch_up=0.4, seconds=30.0, seed=1):
    """(appends a second, worst wait ms, 99th percentile ms): each writer thinks, appends, thinks …

    `publish`: mean of one publish with its flush, exponential above a floor of 70 %; `think`: mean pause between a
    writer's appends, exponential.
    """
    rng = random.Random(seed)
    now, end = 0.0, seconds * 1000
    wants = [rng.expovariate(1 / think) if think else 0.0 for _ in range(writers)]
    waits = []
    holder, turn_ends = 0, TURN_MS
    while now < end:
        ready = [n for n in range(writers) if wants[n] <= now]
        if not ready:
            now = min(wants)
            continue
        waiting = sorted((n for n in ready if n != holder), key=wants.__getitem__)
        if holder not in ready or (waiting and now >= turn_ends):
            if waiting:
                holder = waiting[0]
                now += catch_up
                turn_ends = now + TURN_MS
            elif holder not in ready:
                holder = ready[0]
        now += 0.7 * publish + rng.expovariate(1 / (0.3 * publish))
        waits.append(now - wants[holder])
        wants[holder] = now + (rng.expovariate(1 / think) if think else 0.0)
    waits.sort()
    return len(waits) / seconds, waits[-1], waits[int(len(waits) * 0.99)]


def simulated(publish):
    """Rows for writers that never rest and for agents that append every two seconds."""
    rows = []
    for think, counts in ((0.0, (1, 4, 16, 64)), (2000.0, (16, 256, 1024, 2048))):
        for writers in counts:
            rate, worst, late = simulate(writers, publish, think=think)
            rows.append({"writers": writers, "pause_ms": think, "appends_s": round(rate), "p99_ms": round(late, 1), "worst_ms": round(worst, 1)})  # fmt: skip
    return rows


def main():
    """Print one JSON object a row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--publish", type=float, default=1.2, help="ms of one publish with its flush")
    args = parser.parse_args()
    for each in simulated(args.publish):
        print(json.dumps(each))
    return 0


if __name__ == "__main__":
    sys.exit(main())
