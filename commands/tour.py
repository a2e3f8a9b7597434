"""`tour`: gatebook at its real work, in a scratch directory: separate processes, a real git repository, a real tampering.

Nothing is simulated but the agents' brains: providers and workers are small shell scripts.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

from commands.context import Context, say
from commands.entry import AS_PROCESS
from commands.flags import Args, Command, Flag
from ledger.errors import Invalid

SHOWN = 14

RUBRIC = """models:
  - {{name: claude-a, effort: high, provider: anthropic, taste: 10}}
  - {{name: gem-c, effort: low, provider: google, via: gemini, taste: 9}}
routing: {{orchestrator: claude-a@high, default: claude-a@high, taste: claude-a@high, taste_min: 9}}
fallbacks: {{taste: [gem-c@low]}}
reviewed: {today}
"""
LIMITED = """#!/bin/sh
cat > /dev/null
echo '{"status":"availability_failure","reason":"rate_limit"}'
exit 75
"""
WORKER = """#!/bin/sh
cat > /dev/null
printf 'def greet(name):\\n    return f"Hello, {name}!"\\n' > greet.py
echo 'greet() now greets by name.'
"""
GREET = 'def greet(name):\n    return "Hello, " + nam\n'
TEST = """import unittest
from greet import greet


class Greeting(unittest.TestCase):
    def test_it_names_the_one_it_greets(self):
        self.assertEqual(greet("Ada"), "Hello, Ada!")


unittest.main()
"""
HOOK = """#!/bin/sh
# a git hook records every commit as an event
{gatebook} append --stream x-commits/main --type x.commit.made \\
  --data "{{\\"sha\\":\\"$(git rev-parse HEAD)\\"}}" --content "$(git log -1 --format=%s)" > /dev/null
"""
HANDOFF = """#!/bin/sh
# any program that leaves result.json in its working directory can be the worker
cat > item.json
printf '# Answer\\n\\nThe loop ends when the queue is empty.\\n' > draft.md
echo 'PASS: draft checked' > verification.log
echo '{"status":"draft_ready","draft_path":"draft.md","notes":"drafted and checked"}' > result.json
"""
EXECUTOR = """#!/bin/sh
cat > /dev/null
notes='Look at farewell.py'
if [ ! -f farewell.py ]; then
  printf 'def farewell(name):\\n    return f"Goodbye, {name}."\\n' > farewell.py
  made='Added farewell().' files='- `farewell.py` — say goodbye by name'
elif ! grep -q strip farewell.py; then
  printf 'def farewell(name):\\n    return f"Goodbye, {name.strip()}."\\n' > farewell.py
  made='Stripped the name.' files='- `farewell.py` — strip the name'
else
  made='No code changes were required.' files=None notes='No-op round. Already satisfied.'
fi
cat <<EOF
## Implementation Complete: farewell

### Changes Made
$made

### Files Modified / Created / Deleted
$files

### Deviations from Plan
None

### Notes for Reviewer
$notes
EOF
"""
REVIEWER = """#!/bin/sh
cat > /dev/null
if grep -q strip farewell.py; then
  printf '### VERDICT: APPROVE\\n\\n### Issues\\n- None.\\n\\n### Strengths\\nSmall and clear.\\n'
else
  printf '### VERDICT: REQUEST_CHANGES\\n\\n### Issues\\n- [CRITICAL] A name with spaces around it is greeted with them\\n'
  printf '  File: `farewell.py`, around line 2\\n\\n### Strengths\\nSmall.\\n'
fi
"""
GATE = """#!/bin/sh
echo '{"verdict":"approve","summary":"No way found to break it.","findings":[],"next_steps":[]}'
"""


class Tour:
    """The scratch directory, its environment, and how each step is shown and checked."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.project = os.path.join(folder, "project")
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("GATEBOOK_", "CODEX_", "GIT_", "XDG_"))
        }
        self.env.update(
            {
                "XDG_STATE_HOME": os.path.join(folder, "state"),
                "XDG_CONFIG_HOME": os.path.join(folder, "config"),
                "XDG_CACHE_HOME": os.path.join(folder, "cache"),
                "CODEX_THREAD_ID": "tour",
                "GIT_AUTHOR_NAME": "tour", "GIT_AUTHOR_EMAIL": "tour@localhost",
                "GIT_COMMITTER_NAME": "tour", "GIT_COMMITTER_EMAIL": "tour@localhost",
                "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            }
        )  # fmt: skip
        self.step = 0

    def title(self, text: str) -> None:
        """Begin a step."""
        self.step += 1
        say(f"\n\033[1m{self.step}. {text}\033[0m" if sys.stdout.isatty() else f"\n{self.step}. {text}")

    def note(self, text: str) -> None:
        """Say what just happened."""
        say(f"   {text}")

    def write(self, name: str, text: str, mode: int = 0o644) -> str:
        """A file of the scratch directory's."""
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def run(self, command: list[str], *, code: int = 0, show: int = SHOWN, where: str | None = None) -> str:
        """Run one process, show it and its output, and insist on its exit code."""
        done = subprocess.run(
            command, env=self.env, cwd=where or self.project, capture_output=True, text=True, check=False
        )
        lines = (done.stdout + done.stderr).splitlines()
        for line in lines[:show]:
            say(f"   | {line if len(line) < 170 else line[:167] + '…'}")
        if len(lines) > show > 0:
            say(f"   | … {len(lines) - show} more lines")
        if done.returncode != code:
            raise Invalid(
                f"tour: {' '.join(command)} ended with {done.returncode}, not {code}: {done.stderr.strip()[-400:]}"
            )
        if code:
            say(f"   (exit {code})")
        return done.stdout

    def gatebook(self, *words: str, code: int = 0, show: int = SHOWN) -> str:
        """Run one gatebook command as its own process."""
        shown = " ".join(
            word if word.isascii() and not set(word) & set(" '\"{}*;|&$") else f"'{word}'" for word in words
        )
        say(f"   $ gatebook {shown.replace(self.folder + os.sep, '')}")
        return self.run([*AS_PROCESS, *words], code=code, show=show)

    def git(self, *words: str, show: int = 0) -> str:
        """Run git in the project."""
        say(f"   $ git {' '.join(words)}")
        return self.run(["git", *words], show=show)


def _begin(tour: Tour) -> None:
    tour.title("A repository, a ledger, and a git hook that records every commit")
    os.makedirs(tour.project)
    tour.git("init", "-q", "-b", "main", ".")
    tour.gatebook("init")
    gatebook = f"PYTHONPATH='{tour.env['PYTHONPATH']}' '{sys.executable}' -m commands"
    tour.write("project/.git/hooks/post-commit", HOOK.format(gatebook=gatebook), 0o755)
    tour.write("project/greet.py", GREET)
    tour.write("project/test_greet.py", TEST)
    tour.write("project/.gitignore", "__pycache__/\n.gatebook/\n")
    tour.git("add", "greet.py", "test_greet.py", ".gitignore")
    tour.git("commit", "-q", "-m", "A greeting with a fault in it")
    tour.gatebook("log", "--type", "x.*")


def _dispatch(tour: Tour) -> None:
    tour.title(
        "A dispatch: the provider is limited, its circuit opens, the fallback does the work, the check is run here"
    )
    today = time.strftime("%Y-%m-%d", time.gmtime())
    rubric = tour.write("rubric.yaml", RUBRIC.format(today=today))
    worker = tour.write("agents/worker.sh", WORKER, 0o755)
    limited = tour.write("agents/limited.sh", LIMITED, 0o755)
    tour.write(
        "config/gatebook/config.toml",
        f"[executors.gemini]\ncommand = [{json.dumps(worker)}]\nenforces_paths = false\n",
    )
    request = {
        "operation": "execute",
        "route": "taste",
        "outcome": "greet() greets by name",
        "authority": {"working_directory": tour.project, "allowed_paths": ["."]},
        "verification": {
            "seam": [sys.executable, "test_greet.py"],
            "expected": {"exit": 0},
            "fixed_target": ["greet.py"],
        },
        "artifacts": ["greet.py"],
    }
    path = tour.write("request.json", json.dumps(request))
    reply = tour.gatebook(
        "dispatch",
        "run",
        path,
        "--rubric",
        rubric,
        "--native-provider",
        "anthropic",
        "--executors",
        "gemini",
        "--native",
        limited,
        show=0,
    )
    result = json.loads(reply)
    route = result["route"]
    tour.note(
        f"status {result['status']}: {' -> '.join(route['attempted'])}, because of {route['fallback_reason']}; proof: {result['evidence']['outcome']}"
    )
    tour.gatebook("log", "--stream", "dispatch/*")
    select = (
        "route",
        "select",
        "--rubric",
        rubric,
        "--route",
        "taste",
        "--native-provider",
        "anthropic",
        "--executors",
        "gemini",
    )
    tour.note("Now the circuit is open; a quarter of an hour later exactly one selector gets the probe:")
    later = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 16 * 60))
    tour.gatebook(*select)
    tour.gatebook(*select, "--now", later)
    tour.gatebook(*select, "--now", later)
    tour.gatebook(
        "route", "record-success", "--provider", "anthropic", "--executor", "native", "--now", later
    )
    tour.git("commit", "-q", "-a", "-m", "Greet by name")


def _plan(tour: Tour) -> None:
    tour.title("A plan run: a person's words decide, one owner claims it, a program does the items in order")
    day = time.strftime("%Y-%m-%d")
    begun, ends = time.time() - 3600, time.time() + 86_400
    items, snapshot = [], []
    for index, (bucket, name) in enumerate(
        (("urgent", "Set 3"), ("soon", "Essay 2"), ("later", "Reading")), 1
    ):
        due = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + index * 30 * 3600))
        items.append({"index": index, "bucket": bucket, "course_id": 100, "course_name": "Algorithms", "assignment_id": 200 + index,
                      "assignment_name": name, "due_at": due, "hours_left": index * 30.0, "live_state": "unsubmitted",
                      "proposed_skill": "canvas-generic", "user_decision": None})  # fmt: skip
        snapshot.append({"course_id": 100, "assignment_id": 200 + index, "skill": "canvas-generic", "name": name, "due_at": due,
                         "submission_types": ["online_upload"], "points_possible": 10})  # fmt: skip

    def stamp(moment: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))

    plan = {"generated_at": stamp(begun), "expires_at": stamp(ends), "items": items}
    tour.write(f"runs/{day}/plan.json", json.dumps(plan))
    tour.write(f"runs/{day}/assignments.json", json.dumps(snapshot))
    tour.write("skills/canvas-generic/SKILL.md", "---\nname: canvas-generic\n---\nDraft it.\n")
    handoff = tour.write("agents/handoff.sh", HANDOFF, 0o755)
    run, skills = os.path.join(tour.folder, "runs", day), os.path.join(tour.folder, "skills")
    tour.gatebook("plan", "parse", "--run-dir", run, "--text", "do the important ones", code=2, show=1)
    tour.gatebook("plan", "approve", "--run-dir", run, "--skills", skills, "--text", "all; defer 3", show=1)
    tour.gatebook("run", "claim", "--run-dir", run, show=1)
    tour.gatebook("run", "claim", "--run-dir", run, "--session", "someone-else", code=4, show=1)
    tour.gatebook("run", "prepare-results", "--run-dir", run, show=1)
    tour.gatebook("run", "execute", "--run-dir", run, "--handoff", handoff, "--skills", skills, show=2)
    tour.gatebook("run", "deliver", "--run-dir", run, show=1)
    tour.gatebook("run", "finalize", "--run-dir", run, show=1)
    tour.note("REPORT.md begins:")
    with open(os.path.join(run, "REPORT.md"), encoding="utf-8") as file:
        for line in file.read().splitlines()[:6]:
            say(f"   | {line}")


def _session(tour: Tour) -> None:
    tour.title(
        "A review session: execute, review, changes asked for, a gate, and delivery only when every stage stands"
    )
    names = {
        name: tour.write(f"agents/{name}.sh", text, 0o755)
        for name, text in (("executor", EXECUTOR), ("reviewer", REVIEWER), ("gate", GATE))
    }
    tour.write(
        "project/.review-loop/config.md",
        "auto_commit: true\ncommit_message_prefix: feat\nskip_quality_polish: true\nhandsfree: true\n",
    )
    tour.gatebook(
        "session", "run", "--plan", "Add farewell(name), which says goodbye.", "--title", "Say goodbye",
        "--executor", names["executor"], "--reviewer", names["reviewer"], "--gate", names["gate"], "--handsfree", show=30,
    )  # fmt: skip
    tour.gatebook("state", "stages")


def _audit(tour: Tour) -> str:
    tour.title("The audit: what happened, why it was allowed, and is it all as recorded?")
    tour.gatebook("log", "-n", "6")
    runs = json.loads(tour.gatebook("state", "runs", "--json", show=0))["state"]
    if runs:
        tour.gatebook("trace", f"run/{next(iter(runs))}", show=24)
    note = os.path.join(tour.folder, "kept-elsewhere.note")
    tour.gatebook("checkpoint", "--out", note)
    tour.gatebook("verify")
    tour.gatebook("replay", "--rate")
    tour.gatebook("timeline", show=26)
    page = os.path.join(tour.folder, "timeline.html")
    tour.gatebook("timeline", "--html", page)
    return note


def _tampering(tour: Tour, note: str) -> None:
    tour.title("A tampering: somebody with the file and SQL changes what a person approved")
    copy = os.path.join(tour.folder, "before.db")
    tour.gatebook("backup", copy)
    seq = json.loads(tour.gatebook("log", "--type", "plan.approved", "-n", "1", "--json", show=0))["seq"]
    database = os.path.join(tour.project, ".gatebook", "ledger.db")
    connection = sqlite3.connect(database)
    connection.execute("DROP TRIGGER events_fixed")
    connection.execute(
        "UPDATE events SET data = CAST(replace(CAST(data AS TEXT), 'defer', 'approve') AS BLOB) WHERE seq = ?",
        (seq,),
    )
    connection.commit()
    connection.close()
    tour.note(f"(event {seq}: the trigger that forbids it was dropped, `defer` became `approve`)")
    tour.gatebook("verify", code=3, show=2)

    tour.title("The file is put back from the backup; and a tail that was cut off is noticed too")
    for ending in ("", "-wal", "-shm"):
        if os.path.exists(database + ending):
            os.unlink(database + ending)
    shutil.copy(copy, database)
    tour.gatebook("verify", "--against", note, show=1)
    tour.gatebook(
        "append",
        "--stream",
        "x-notes/tour",
        "--type",
        "x.note.added",
        "--data",
        '{"text":"after the backup"}',
        show=1,
    )
    for ending in ("", "-wal", "-shm"):
        if os.path.exists(database + ending):
            os.unlink(database + ending)
    shutil.copy(copy, database)
    tour.gatebook(
        "append", "--stream", "x-notes/tour", "--type", "x.note.added", "--data", "{}", code=4, show=1
    )
    tour.gatebook("resume", "--as-successor", "--reason", "the tour restored its backup", show=1)
    tour.gatebook("verify", show=1)
    tour.note("And nobody writes an approval by hand:")
    tour.gatebook(
        "append", "--stream", "run/1-today", "--type", "plan.approved", "--data", "{}", code=4, show=1
    )
    tour.gatebook("query", "denials", show=8)


def run(args: Args, _context: Context) -> int:
    """Take the tour; exit 1 when any step did not end as it must."""
    if shutil.which("git") is None:
        raise Invalid("tour: needs git, and there is none on PATH")
    if args.dir is not None:
        folder = os.path.realpath(args.dir)
        if os.path.isdir(folder) and os.listdir(folder):
            raise Invalid(f"{folder}: is not empty: the tour wants a new directory")
        os.makedirs(folder, exist_ok=True)
    else:
        folder = os.path.realpath(tempfile.mkdtemp(prefix="gatebook-tour-"))
    tour = Tour(folder)
    began = time.monotonic()
    _begin(tour)
    _dispatch(tour)
    _plan(tour)
    _session(tour)
    note = _audit(tour)
    _tampering(tour, note)
    say(
        f"\nThat was gatebook, in {time.monotonic() - began:.0f} s. Everything is in {folder}; timeline.html there opens in a browser."
    )
    state, ledger = (
        shlex.quote(os.path.join(folder, *place)) for place in (("state",), ("project", ".gatebook"))
    )
    say(f"Look around: XDG_STATE_HOME={state} gatebook --ledger {ledger} log")
    return 0


COMMANDS = {
    "tour": Command(
        run,
        "A real run in a scratch directory: a git repository, a dispatch with a fallback and a probe, a plan run, a review\n"
        "session, the audit, a tampering and its detection. Each step is a process of its own and must end as it should.",
        flags=(Flag("--dir", "D", "a new directory to keep it in (default: a temporary one)"),),
        example="gatebook tour",
    )
}
