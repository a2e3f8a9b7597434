"""Kill commands at random moments and look at what is left: `init`, `append`, and `route` with its shared file.

    python tools/soak/kills.py [ROUNDS]

Each round makes a new ledger by a command that is killed, then goes on with more commands that are killed. Whatever
was left, the next command must work, every acknowledged event must be there, the ledger must verify, and the health
file must say what the ledger says. Prints one JSON report; exit 1 if anything is wrong.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATH = os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH"))))


class Round:
    """One folder, and the commands killed in it."""

    def __init__(self, folder: str, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.acknowledged: list[dict[str, object]] = []
        self.killed = 0
        self.problems: list[str] = []

    def run(self, *words: str, within: float | None = None) -> dict[str, object] | None:
        """The command's JSON; None when it was killed `within` that many seconds."""
        process = subprocess.Popen(
            [sys.executable, "-m", "commands", *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": PATH, "XDG_STATE_HOME": os.path.join(self.folder, "state")},
        )  # fmt: skip
        if within is not None:
            time.sleep(self.chance.uniform(0, within))
            process.kill()
        out, err = process.communicate()
        if process.returncode == -9:
            self.killed += 1
            return None
        if process.returncode:
            self.problems.append(f"{words[:2]}: exit {process.returncode}: {err.decode() or out.decode()}")
            return None
        return json.loads(out)

    def ledger(self, within: float) -> None:
        """`init` and `append` killed, then run to their end."""
        for _ in range(3):
            self.run("init", within=within)
        made = self.run("init")
        again = self.run("init")
        if (
            made is not None
            and again is not None
            and (again["created"] or again["ledger_id"] != made["ledger_id"])
        ):
            self.problems.append(f"init made another ledger: {made} {again}")
        for n in range(6):
            words = (
                "append",
                "--stream",
                "x-k/1",
                "--type",
                "x.k.step",
                "--data",
                json.dumps({"n": n}),
                "--idempotency-key",
                f"k{n}",
            )
            done = self.run(*words, within=within)
            if done is None and not self.problems:
                done = self.run(*words)
            if done is not None:
                self.acknowledged.append(done)
        found = self.run("verify", "--json")
        if found is not None and (not found["ok"] or found["events"] != 7):
            self.problems.append(f"verify: {found}")
        if [one["version"] for one in self.acknowledged] != list(range(1, 7)):
            self.problems.append(f"appended: {self.acknowledged}")

    def health(self, within: float) -> None:
        """`route record-failure` killed between its event and its file, then read by the next command."""
        words = (
            "route",
            "record-failure",
            "--provider",
            "p",
            "--executor",
            "native",
            "--reason",
            "rate_limit",
            "--state",
            "s.json",
        )
        told = 0
        for _ in range(6):
            done = self.run(*words, within=within)
            told += done is not None
        last = self.run(*words)
        path = os.path.join(self.folder, "s.json")
        if last is None or last["failure_count"] < told + 1:
            self.problems.append(f"{told} failures were acknowledged, then {last}")
            return
        with open(path, "rb") as file:
            stated = json.load(file)["circuits"]["p|native"]["failure_count"]
        if stated != last["failure_count"]:
            self.problems.append(f"the file says {stated}, the ledger {last}")
        found = self.run("--ledger", "s.json.gatebook", "replay", "--json")
        if found is not None and (not found["ok"] or found["events"] != stated + 1):
            self.problems.append(f"replay: {found}")


def soak(rounds: int, seed: int = 1) -> dict[str, object]:
    """Run it and report."""
    chance = random.Random(seed)
    killed, problems = 0, []
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        took = []
        for n in range(rounds):
            folder = os.path.join(scratch, str(n))
            os.mkdir(folder)
            one = Round(folder, chance)
            start = time.monotonic()
            one.run("--version-of-nothing")  # how long a process takes here, now
            one.problems.clear()
            took.append(time.monotonic() - start)
            one.ledger(within=took[-1] * 2)
            one.health(within=took[-1] * 2)
            killed += one.killed
            problems += one.problems
            shutil.rmtree(folder)
    return {
        "rounds": rounds,
        "killed": killed,
        "problems": problems[:20],
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    report = soak(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
    print(json.dumps(report))
    sys.exit(1 if report["problems"] else 0)
