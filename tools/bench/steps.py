"""One step of each kind of work, as whole processes, beside a typed append (`route record-failure`), in turn.

    .venv/bin/python tools/bench/steps.py [--rounds N]      every step: its time, git's part of it, the ratio

What a step does besides is taken off: the git commands that it calls, timed one by one in rounds of their own (a shim
named `git` runs the real one), the signature library that a receipt's check loads, and the small process under which
`dispatch verify` runs a program. File work is left in.
`tools/bench/audit.py` makes rows of this.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

GATEBOOK = [sys.executable, "-c", "from commands.entry import main; main()"]
SHIM = """#!{python} -ISE
import os, sys, time
began = time.perf_counter()
code = os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn({git!r}, ["git", *sys.argv[1:]], os.environ), 0)[1])
handle = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(handle, b"%r\\n" % (time.perf_counter() - began))
os._exit(code if code >= 0 else 1)
"""
RUBRIC = """{{"models":[{{"name":"claude-a","effort":"high","provider":"anthropic","taste":10}},
{{"name":"gem-c","effort":"low","provider":"google","via":"gemini","taste":9}}],
"routing":{{"orchestrator":"claude-a@high","default":"claude-a@high","taste":"claude-a@high","taste_min":9}},
"fallbacks":{{"taste":["gem-c@low"]}},"reviewed":"{today}"}}
"""
EXECUTED = (
    "## Implementation Complete: T\n\n### Changes Made\nDid it.\n\n### Files Modified / Created / Deleted\n- `src/a.py` — done\n\n"
    "### Deviations from Plan\nNone\n\n### Notes for Reviewer\nLook.\n"
)
APPROVED = "### VERDICT: APPROVE\n\n### Strengths\nSmall.\n"
CLEAN = "agent: a\ntool_uses: 4\n\nNothing found.\n"
IGNORED = (
    ".env .env.* *.env *.pem *.key *.crt *.cert *.cer *.p12 *.pfx *.jks *.keystore id_rsa* id_dsa* id_ecdsa* id_ed25519* *.ppk *.asc "
    "*.gpg *.pgp *.sqlite *.sqlite3 *.db *.dump *.sql.gz *.map *.tfstate *.tfstate.* *.tfvars .terraform/ *.log logs/ "
).replace(" ", "\n")
ED25519 = "from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey"


class House:
    """A repository with a ledger, a rubric, a person's receipt, and how a step is run and timed."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.project = os.path.join(root, "project")
        self.gits = os.path.join(root, "gits")
        self.env = {n: v for n, v in os.environ.items() if not n.startswith(("GATEBOOK_", "CODEX_", "GIT_"))}
        for name in ("STATE", "CONFIG", "CACHE"):
            self.env[f"XDG_{name}_HOME"] = os.path.join(root, name.lower())
        self.env |= {
            f"GIT_{who}_{what}": "t@localhost"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        self.env |= {"CODEX_THREAD_ID": "s1", "GIT_CONFIG_GLOBAL": os.devnull, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # fmt: skip
        self.shimmed = {**self.env, "PATH": os.path.join(root, "shim") + os.pathsep + self.env["PATH"]}
        shim = f"{SHIM.format(python=sys.executable, git=shutil.which('git'), log=self.gits)}"
        os.chmod(self.write("shim/git", shim), 0o755)
        self.rubric = self.write("rubric.json", RUBRIC.format(today=time.strftime("%Y-%m-%d", time.gmtime())))
        self.health = os.path.join(root, "health.json")
        self.write("project/src/a.py", "x = 1\n")
        self.write("project/README.md", "# R\n")
        self.write("project/.gitignore", IGNORED)
        for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "first")):
            subprocess.run(["git", *words], cwd=self.project, env=self.env, check=True)
        self.step("init")
        self.work = os.path.join(root, "work")
        self.write("work/verification.log", "PASS\n")
        self.receipt = os.path.join(root, "receipt.json")
        self.issue()

    def write(self, name: str, text: str) -> str:
        """A file below the root."""
        path = os.path.join(self.root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def step(self, *words: str, report: str = "", shim: bool = False) -> tuple[float, str]:
        """(seconds, stdout) of one command, which has to succeed."""
        began = time.perf_counter()
        done = subprocess.run(
            [*GATEBOOK, *words], input=report, cwd=self.project, env=self.shimmed if shim else self.env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        spent = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: exit {done.returncode}: {done.stdout}{done.stderr}")
        return spent, done.stdout

    def issue(self) -> None:
        """A receipt, issued by a person at a terminal."""
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        words = ["receipt", "issue", *self.target(), "--session", "s1", "--expires", until, "--authority", "yes", "--out", self.receipt]  # fmt: skip
        main, other = pty.openpty()
        person = {**self.env, "CODEX_THREAD_ID": ""}
        subprocess.run([*GATEBOOK, *words], stdin=other, cwd=self.project, env=person, capture_output=True, check=True)  # fmt: skip
        os.close(main)
        os.close(other)

    def target(self) -> list[str]:
        """What the receipt is for."""
        return ["--origin", "https://canvas.example.edu", "--course", "1", "--target-type", "quiz", "--target", "7", "--action", "quiz.answer"]  # fmt: skip

    def gits_spent(self) -> float:
        """Seconds that git took since the last call, in a shimmed step."""
        try:
            with open(self.gits, encoding="ascii") as file:
                return sum(map(float, file))
        except FileNotFoundError:
            return 0.0
        finally:
            if os.path.exists(self.gits):
                os.unlink(self.gits)


def plan_run(house, turn):
    """The steps of a run of two items: (kind, words, report, what the step before it leaves to be done)."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    folder = os.path.join("runs" + turn, day)
    items = [
        {"index": n, "bucket": "soon", "course_id": 100, "course_name": "A", "assignment_id": 200 + n, "assignment_name": f"Set {n}", "due_at": None,
         "hours_left": 30.0, "live_state": "unsubmitted", "proposed_skill": "canvas-generic", "user_decision": None}
        for n in (1, 2)
    ]  # fmt: skip
    begun, ends = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + s)) for s in (-3600, 72_000))
    plan = {"generated_at": begun, "expires_at": ends, "items": items}
    house.write(f"{folder}/plan.json", json.dumps(plan))
    seen = [{"course_id": 100, "assignment_id": 200 + n, "skill": "canvas-generic", "submission_types": ["online_upload"]} for n in (1, 2)]  # fmt: skip
    path = os.path.dirname(house.write(f"{folder}/assignments.json", json.dumps(seen)))
    house.write("skills/canvas-generic/SKILL.md", "---\nname: canvas-generic\n---\nDraft it.\n")
    skills = ("--skills", os.path.join(house.root, "skills"))
    here = ("--run-dir", path)

    def work():
        slot = f"{folder}/course-100__assignment-201"
        house.write(f"{slot}/draft.md", "Answer: 42.\n")
        house.write(f"{slot}/verification.log", "PASS\n")
        house.write(f"{slot}/result.json", '{"status":"draft_ready","draft_path":"draft.md"}')

    yield "plan run", ("plan", "parse", *here, "--text", "1; defer 2", *skills), "", None
    yield "plan run", ("plan", "approve", *here, "--text", "1; defer 2", *skills), "", None
    yield "plan run", ("run", "claim", *here), "", None
    yield "plan run", ("run", "prepare-results", *here), "", None
    yield "plan run", ("run", "next", *here, *skills), "", None
    yield "plan run", ("run", "next", *here, *skills), "", work
    yield "plan run", ("run", "report", *here), "", None
    yield "plan run", ("run", "deliver", *here), "", None
    yield "plan run", ("run", "finalize", *here), "", None


def receipts(house, _turn):
    """Checking and using a receipt."""
    use = (house.receipt, *house.target(), "--work-dir", house.work)
    yield "receipt", ("receipt", "check", *use), "", None
    yield "receipt", ("receipt", "consume", *use), "", None


def routes(house, _turn):
    """A typed append, and the selection."""
    yield (
        "route",
        ("route", "record-success", "--provider", "p", "--executor", "e", "--state", house.health),
        "",
        None,
    )
    yield "route", ("route", "record-failure", "--provider", "p", "--executor", "e", "--reason", "rate_limit", "--state", house.health), "", None  # fmt: skip
    yield "route", ("route", "select", "--rubric", house.rubric, "--route", "taste", "--native-provider", "anthropic", "--executors", "gemini",
                    "--state", house.health), "", None  # fmt: skip


def dispatch(house, turn):
    """One dispatch by single steps."""
    request = {
        "operation": "execute", "route": "taste", "outcome": f"out.txt says done {turn}",
        "authority": {"working_directory": house.project, "allowed_paths": [house.project]},
        "verification": {"seam": ["/bin/true"], "fixed_target": ["src/a.py"]}, "artifacts": ["src/a.py"],
    }  # fmt: skip
    path = house.write("request.json", json.dumps(request))
    yield "dispatch", ("dispatch", "open", path), "", None
    name = json.loads(house.said)["id"]
    yield "dispatch", ("dispatch", "select", name, "--rubric", house.rubric, "--native-provider", "anthropic", "--executors", "gemini"), "", None  # fmt: skip
    yield "dispatch", ("dispatch", "attempt", name), "", None
    change = lambda: house.write("project/src/a.py", f"x = {turn!r}\n")  # noqa: E731
    yield "dispatch", ("dispatch", "returned", name, "--status", "succeeded"), "", change
    yield "dispatch", ("dispatch", "verify", name), "", None
    yield "dispatch", ("dispatch", "conclude", name, "--status", "accepted"), "", None


def session(house, turn):
    """A review session by single steps."""
    yield "session", ("session", "start", "--plan", f"Set x {turn}.", "--title", "Set x"), "", None
    owner = ("--owner", json.loads(house.said)["owner"])
    yield "session", ("round", "start", *owner), "", None
    change = lambda: house.write("project/src/a.py", f"x = {turn!r} + 1\n")  # noqa: E731
    yield "session", ("round", "executed", *owner, "--report", "-"), EXECUTED, change
    yield "session", ("round", "reviewed", *owner, "--report", "-"), APPROVED, None
    yield "session", ("gate", "record", *owner, "--report", "-"), "adversarial-gate: APPROVE\n", None
    for name in ("static-analysis", "code-review", "simplify", "test-consolidation", "summary"):
        yield "session", ("polish", "step", name, *owner, "--report", "-"), CLEAN, None
    for name in ("project-docs", "comments"):
        yield "session", ("docs", "step", name, *owner, "--report", "-"), CLEAN, None
    yield "session", ("security", "scan", *owner), "", None
    yield "session", ("session", "deliver", *owner), "", None


def name_of(words):
    """A step's name: the command, and which polish or docs step."""
    return " ".join(words[: 3 if words[1] == "step" else 2])


class Measured:
    """One step: its kind; seconds of each round, of the typed append just before it, of git in each shimmed round."""

    def __init__(self, kind):
        self.kind = kind
        self.seconds = []
        self.typed = []
        self.git = []


def _round(house, turn, found, *, shim):
    typed = ("route", "record-failure", "--provider", "q", "--executor", "e", "--reason", "rate_limit", "--state", house.health)  # fmt: skip
    for work in (routes, receipts, plan_run, dispatch, session):
        for kind, words, report, before in work(house, turn):
            if before is not None:
                before()
            step = found.setdefault(name_of(words), Measured(kind))
            if not shim:
                step.typed.append(house.step(*typed)[0])
            spent, house.said = house.step(*words, report=report, shim=shim)
            if shim:
                step.git.append(house.gits_spent())
            else:
                step.seconds.append(spent)


def alone(rounds, *commands):
    """Median seconds of each of these, in turn."""
    spent = [[] for _ in commands]
    for _ in range(rounds + 1):
        for command, seconds in zip(commands, spent, strict=True):
            began = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True)
            seconds.append(time.perf_counter() - began)
    return [statistics.median(seconds[1:]) for seconds in spent]


def measure(rounds):
    """{step: (kind, s of its own, s of git or signing besides, s of a typed append)}, medians."""
    found = {}
    with tempfile.TemporaryDirectory() as root:
        house = House(os.path.realpath(root))
        _round(house, "shim", found, shim=True)
        for turn in range(rounds + 1):
            if turn == 1:
                for step in found.values():
                    step.seconds.clear(), step.typed.clear()  # the first round fills caches
            _round(house, str(turn), found, shim=False)
        _round(house, "last", found, shim=True)
    bare, loaded, warden = alone(rounds, ("-c", "pass"), ("-c", ED25519), ("-I", "-S", "-c", "pass"))
    steps = {}
    for name, step in found.items():
        besides = statistics.median(step.git)
        if step.kind == "receipt":
            besides += max(0.0, loaded - bare)
        elif name == "dispatch verify":
            besides += warden
        steps[name] = (
            step.kind,
            statistics.median(step.seconds) - besides,
            besides,
            statistics.median(step.typed),
        )
    return steps


def main():
    """Print every step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    for name, (_, own, besides, typed) in measure(parser.parse_args().rounds).items():
        print(
            f"{name:<32} {own * 1e3:7.1f} ms, besides {besides * 1e3:6.1f} ms; typed append {typed * 1e3:7.1f} ms: {own / typed:5.2f} x"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
