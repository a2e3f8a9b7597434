"""One writer of a fault run: claims, releases, spends receipts and appends, and writes down what it was told.

    worker.py URL WHO SECONDS KEYS RECEIPTS   (its machine's home: $XDG_STATE_HOME; a folder of receipts' files)

Each line of stdout is one operation: what was asked, when (CLOCK_MONOTONIC, one clock for all processes), what was
answered, and the hashes of the events that were acknowledged.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))

from ledger.errors import Conflict, GatebookError, Unavailable
from ledger.event import Draft, Origin
from ledger.fleet import open_fleet


def holder_of(reader, stream):
    """Who holds the claim, from its events."""
    events = reader.stream(stream)
    last = events[-1] if events else None
    return last.correlation if last is not None and last.type == "x.claim.taken" else None


class Worker:
    """Operations on the ledger, one at a time."""

    def __init__(self, url, who, receipts):
        self.url = url
        self.receipts = receipts
        self.who = who
        self.origin = Origin(f"worker:{who}", "fault-run")
        self.ledger = None
        self.count = 0

    def claim(self, key):
        """Take the claim, or hear that it is held."""

        def decide(reader):
            if holder_of(reader, f"x-claim/{key}") is not None:
                raise Conflict("held")
            return [Draft(f"x-claim/{key}", "x.claim.taken", correlation=self.who)]

        return decide

    def release(self, key):
        """Give the claim back, or hear that it is not ours."""

        def decide(reader):
            if holder_of(reader, f"x-claim/{key}") != self.who:
                raise Conflict("not yours")
            return [Draft(f"x-claim/{key}", "x.claim.returned", correlation=self.who)]

        return decide

    def consume(self, key):
        """Use the receipt, by the product's own rules: quiz.start is allowed once."""
        from commands.plan_runs.authorization import DeniedError, Request, consume_receipt

        request = Request("http://127.0.0.1:8080", "1", "quiz", "2", "quiz.start", "fault-run")
        try:
            _, outcome = consume_receipt(
                self.ledger, self.origin, os.path.join(self.receipts, f"{key}.json"), request
            )
        except DeniedError as error:
            raise Conflict("spent" if "1 of 1 times already" in str(error) else f"denied: {error}") from None
        return [self.ledger.store.reader().event(outcome.seq)]

    def append(self, _key):
        """A batch of two with a content."""
        self.count += 1
        data = b'{"n":%d}' % self.count
        return lambda _reader: [
            Draft(f"x-work/{self.who}", "x.work.done", data, content=os.urandom(200)),
            Draft(f"x-work/{self.who}", "x.work.noted", data),
        ]

    def do(self, what, key):
        """One operation, as a record."""
        record = {
            "who": self.who,
            "what": what,
            "key": key,
            "called": time.monotonic(),
            "n": self.count + (what == "append"),
            "answer": None,
            "hashes": [],
        }
        try:
            if self.ledger is None:
                self.ledger = open_fleet(self.url)
            if what == "consume":
                events = self.consume(key)
            else:
                events = self.ledger.transact(getattr(self, what)(key), self.origin).events
            record["answer"] = "ok"
            record["hashes"] = [event.hash.hex() for event in events]
        except Conflict as error:
            record["answer"] = str(error)
        except Unavailable as error:
            record["error"] = str(error)
            if "nothing was recorded" in str(error):
                record["answer"] = "unavailable"
            time.sleep(random.uniform(0.02, 0.1))
        except GatebookError as error:
            record["answer"] = "wrong"
            record["error"] = f"{type(error).__name__}: {error}"
        record["answered"] = time.monotonic()
        return record


def main():
    """Work until the time is over."""
    url, who, seconds, keys = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
    receipts = sorted(os.listdir(sys.argv[5]))
    worker = Worker(url, who, sys.argv[5])
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        what = random.choice(["claim", "claim", "release", "consume", "append"])
        # All workers go through the same receipts at about the same time.
        receipt = min(int(passed / seconds * len(receipts)) + random.randrange(3), len(receipts) - 1)
        key = random.randrange(keys) if what in ("claim", "release") else receipt
        print(json.dumps(worker.do(what, key)), flush=True)
    if worker.ledger is not None:
        worker.ledger.close()


if __name__ == "__main__":
    main()
