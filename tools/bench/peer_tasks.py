"""One peer in its own interpreter, driven by lines on stdin (see peers.py): `append N`, `verify`, `count` and so on.

    peer_tasks.py PEER FOLDER [once]

Every peer keeps the same payload, and flushes each append if it can. `once` appends one record and leaves.
"""

from __future__ import annotations

import os
import sys
import time

FILL_SECONDS = 10
PAYLOAD = {
    "amount": 12345,
    "note": "the quick brown fox jumps over the lazy dog; " * 3,
    "tags": ["alpha", "beta"],
    "who": "agent-7",
}


class Gatebook:
    """This project, in process: a typed append with its flush."""

    def __init__(self, folder):
        import json

        from ledger.access import create_ledger, open_ledger
        from ledger.canonical import canonical
        from ledger.event import Draft, Origin

        self.origin = Origin("cli:bench", "bench")
        self.path = os.path.join(folder, "gatebook")
        if os.path.exists(os.path.join(self.path, "ledger.db")):
            self.ledger = open_ledger(self.path)
        else:
            self.ledger, _ = create_ledger(self.path, self.origin)
        self.dumps, self.canonical, self.draft = json.dumps, canonical, Draft

    def append(self, _number):
        self.ledger.append([self._event()], self.origin)

    def _event(self):
        return self.draft("x-bench/1", "x.bench.done", self.canonical(self.dumps(PAYLOAD)))

    def fill(self, count):
        for _ in range(0, count, 1000):
            self.ledger.append([self._event() for _ in range(1000)], self.origin)

    def count(self):
        return self.ledger.store.head().seq - 1

    def verify(self):
        """As `gatebook verify` does it: a process a core for a large ledger."""
        from commands.verify import jobs_for

        return self._verify(jobs_for(self.ledger.store.head().seq, None))

    def verify_alone(self):
        return self._verify(1)

    def _verify(self, jobs):
        from ledger.verify import verify

        report = verify(self.ledger.store, jobs=jobs)
        assert report.ok
        return report.events


class Eventsourcing:
    """The SQLite recorder of eventsourcing (WAL, synchronous FULL by default)."""

    def __init__(self, folder):
        import json
        import uuid

        from eventsourcing.persistence import StoredEvent
        from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

        self.recorder = SQLiteApplicationRecorder(SQLiteDatastore(db_name=os.path.join(folder, "es.db")))
        self.recorder.create_table()
        self.stored, self.dumps, self.id, self.number = StoredEvent, json.dumps, uuid.uuid4(), 0

    def append(self, _number):
        self.number += 1
        state = self.dumps(PAYLOAD).encode()
        event = self.stored(
            originator_id=self.id, originator_version=self.number, topic="bench:Done", state=state
        )
        self.recorder.insert_events([event])

    def count(self):
        return self.recorder.max_notification_id() or 0

    verify = None


class Dbos:
    """A step of a durable workflow on SQLite."""

    def __init__(self, folder):
        from dbos import DBOS

        DBOS(config={
            "name": "bench", "system_database_url": f"sqlite:///{folder}/dbos.db", "run_admin_server": False,
            "log_level": "ERROR",
        })  # fmt: skip

        @DBOS.step()
        def step(number):
            return PAYLOAD

        @DBOS.workflow()
        def work(count):
            for number in range(count):
                step(number)

        self.work, self.done = work, 0
        DBOS.launch()

    def many(self, count):
        self.work(count)
        self.done += count

    def append(self, _number):
        self.many(1)

    def count(self):
        return self.done

    verify = None


class Auditchain:
    """auditchain on SQLite with its lock file, as its documentation says for many writers."""

    def __init__(self, folder):
        import asyncio

        from auditchain.backends.sqlite import SqliteBackend
        from auditchain.log import AuditLog

        self.run = asyncio.new_event_loop().run_until_complete
        lock = os.path.join(folder, "auditchain.lock")
        self.log = AuditLog(SqliteBackend(os.path.join(folder, "auditchain.db")), lock_path=lock)
        self.run(self.log.init())

    def append(self, number):
        self.run(self.log.append("agent", "done", str(number), metadata=PAYLOAD))

    def count(self):
        return len(self.run(self.log.read()))

    def verify(self):
        report = self.run(self.log.verify())
        assert report.ok
        return self.count()


class Attestroot:
    """attestroot's index and raw files; it does not flush."""

    def __init__(self, folder):
        import json

        from attestroot import ledger, paths

        os.environ[paths.ENV_HOME] = folder
        self.ledger, self.dumps = ledger, json.dumps

    def append(self, number):
        if self.ledger.append_event("bench", {"n": number}, self.dumps(PAYLOAD).encode()) is None:
            raise RuntimeError("left out of the chain")

    def count(self):
        return sum(1 for _ in self.ledger.read_events("bench"))

    def verify(self):
        result = self.ledger.verify_chain("bench")
        assert result.ok
        return result.count


class Argus:
    """argus-ledger: one JSON line an event, flushed."""

    def __init__(self, folder):
        from argus_ledger import AppendOnlyLedger

        self.ledger = AppendOnlyLedger(os.path.join(folder, "argus.jsonl"))

    def append(self, _number):
        self.ledger.append("done", "agent", PAYLOAD)

    def count(self):
        return len(self.ledger)

    def verify(self):
        self.ledger.verify_chain()
        return len(self.ledger)


class Awdit:
    """awdit: one JSON line an event, flushed; reads its whole log for each append."""

    def __init__(self, folder):
        import awdit

        self.awdit, self.path = awdit, os.path.join(folder, "awdit.log")

    def append(self, _number):
        self.awdit.append(self.path, "done", **PAYLOAD)

    def count(self):
        return sum(1 for _ in self.awdit.read(self.path))

    def verify(self):
        assert self.awdit.verify(self.path)
        return self.count()


class Aat:
    """aat-mcp: signed records in memory, not kept anywhere."""

    def __init__(self, _folder):
        import aat

        self.aat = aat
        self.recorder = aat.Recorder(agent_id="agent", agent_version="1", private_key=aat.gen_key())

    def append(self, _number):
        self.recorder.record(
            action_type=self.aat.ACTION_TYPES[0] if isinstance(self.aat.ACTION_TYPES, (list, tuple)) else min(self.aat.ACTION_TYPES),
            action_detail=PAYLOAD, outcome="success", record_phase="post_execution",
        )  # fmt: skip

    def count(self):
        return len(self.recorder.records)

    def verify(self):
        good, _ = self.aat.verify_chain(self.recorder.records)
        assert good
        return self.count()


PEERS = {
    "gatebook": Gatebook, "eventsourcing": Eventsourcing, "dbos": Dbos, "auditchain": Auditchain,
    "attestroot": Attestroot, "argus-ledger": Argus, "awdit": Awdit, "aat-mcp": Aat,
}  # fmt: skip


def main():
    """Do what stdin says; each answer is one line, the seconds or the number."""
    if sys.argv[1] == "gatebook":
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    peer = PEERS[sys.argv[1]](sys.argv[2])
    if sys.argv[3:] == ["once"]:
        peer.append(0)
        return
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *words = line.split()
        began = time.perf_counter()
        if verb == "append":
            failed = 0
            if hasattr(peer, "many"):
                peer.many(int(words[0]))
            else:
                for number in range(int(words[0])):
                    try:
                        peer.append(number)
                    except Exception:
                        failed += 1
            print(time.perf_counter() - began, failed, flush=True)
        elif verb == "fill":
            if hasattr(peer, "fill"):
                peer.fill(int(words[0]) * 20)
            elif peer.verify:
                for number in range(int(words[0])):
                    peer.append(number)
                    if time.perf_counter() - began > FILL_SECONDS:
                        break
            print(time.perf_counter() - began, flush=True)
        elif verb in {"verify", "verify_alone"}:
            try:
                events = getattr(peer, verb)() if peer.verify else 0
                print(events / (time.perf_counter() - began), flush=True)
            except Exception as error:
                print(0, type(error).__name__, flush=True)
        elif verb == "count":
            print(peer.count(), flush=True)
        else:
            break
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
