"""Scripted agents and a repository for session tests."""

import io
import json
import os
import pathlib
import subprocess
import sys

from commands.entry import run
from ledger.sqlite import SQLiteStore

AGENT = '''
"""A scripted agent: the n-th call of a role does the n-th thing of its script (the last one again and again)."""
import json, os, sys, time, signal, pathlib
sys.stdin.reconfigure(encoding="utf-8")
sys.stdout.reconfigure(encoding="utf-8")
role, folder = sys.argv[1], pathlib.Path(sys.argv[2])
prompt = sys.stdin.read()
count = len(list(folder.glob(f"{role}-*.prompt")))
(folder / f"{role}-{count + 1}.prompt").write_text(prompt, encoding="utf-8")
script = json.loads((folder / f"{role}.json").read_text(encoding="utf-8"))
step = script[min(count, len(script) - 1)]
for name, text in step.get("write", {}).items():
    path = pathlib.Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
for name in step.get("delete", []):
    os.unlink(name)
ours = b"commands" in pathlib.Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
assert ours or not (step.get("kill_parent") or step.get("term_parent")), "run this as a process of its own"
if step.get("kill_parent"):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(0.2)
if step.get("term_parent"):
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(30)
if "git" in step:
    import subprocess
    subprocess.run(["git", *step["git"]], check=True, capture_output=True)
sys.stdout.write(step.get("say", ""))
sys.exit(step.get("exit", 0))
'''


def executor_says(*paths, deviations="None"):
    listed = "\n".join(f"- `{p}` — done" for p in paths) or "None"
    changes = "Did it." if paths else "No code changes were required."
    notes = "Look." if paths else "No-op round."
    return (
        f"## Implementation Complete: T\n\n### Changes Made\n{changes}\n\n### Files Modified / Created / Deleted\n{listed}\n\n"
        f"### Deviations from Plan\n{deviations}\n\n### Notes for Reviewer\n{notes}\n"
    )


APPROVAL = "### VERDICT: APPROVE\n\n### Strengths\nSmall.\n"


def request_changes(what="Lost update", path="src/a.py"):
    return f"### VERDICT: REQUEST_CHANGES\n\n### Issues\n- [CRITICAL] {what}\n  File: `{path}`, around line 1\n\n### Strengths\nx\n"


def did(path, text, *more):
    return {"write": {path: text}, "say": executor_says(path, *more)}


NOOP = {"say": executor_says()}
GATE_OK = {"say": '{"verdict":"approve","summary":"fine","findings":[],"next_steps":[]}'}


def gate_finding(title="Race", severity="high"):
    finding = {
        "severity": severity,
        "title": title,
        "body": "b",
        "file": "src/a.py",
        "line_start": 1,
        "line_end": 2,
    }
    finding |= {"confidence": 0.5, "recommendation": "fix it"}
    verdict = {"verdict": "needs-attention", "summary": "no", "findings": [finding], "next_steps": []}
    return {"say": json.dumps(verdict)}


class House:
    """A repository with a ledger, scripted agents and the command line."""

    def __init__(self, git, folder, environment):
        self.git, self.root, self.folder, self.environment = git, git.root, folder, environment

    def script(self, **roles):
        for role, steps in roles.items():
            (self.folder / f"{role}.json").write_text(json.dumps(steps))

    def agent(self, role):
        return f"{sys.executable} {self.folder / 'agent.py'} {role} {self.folder}"

    def prompts(self, role):
        files = sorted(self.folder.glob(f"{role}-*.prompt"), key=lambda p: int(p.stem.rpartition("-")[2]))
        return [file.read_text() for file in files]

    def __call__(self, *args, data=b"", cwd=None, process=False, **env):
        """Run a command: in this process, or as one of its own (`process`)."""
        environment = {**self.environment, **env}
        if process or env:
            return subprocess.run(
                [sys.executable, "-m", "commands", *args], input=data, cwd=cwd or self.root, capture_output=True,
                env=environment, timeout=120,
            )  # fmt: skip
        before = os.getcwd(), sys.stdin, sys.stdout, sys.stderr, dict(os.environ)
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        try:
            os.chdir(cwd or self.root)
            os.environ.update(environment)
            sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(data)), out, err
            code = run(list(args))
        finally:
            os.chdir(before[0])
            sys.stdin, sys.stdout, sys.stderr = before[1:4]
            os.environ.clear()
            os.environ.update(before[4])
        return subprocess.CompletedProcess(args, code, out.buffer.getvalue(), err.buffer.getvalue())

    def ok(self, *args, **options):
        done = self(*args, **options)
        assert done.returncode == 0, (done.returncode, done.stdout.decode(), done.stderr.decode())
        return json.loads(done.stdout) if done.stdout.startswith(b"{") else done.stdout.decode()

    def run(self, *args, gate=True, **options):
        more = ("--gate", self.agent("gate")) if gate else ()
        return self(
            "session",
            "run",
            "--executor",
            self.agent("executor"),
            "--reviewer",
            self.agent("reviewer"),
            *more,
            *args,
            **options,
        )

    def sessions(self):
        return self.ok("session", "status")["sessions"]

    def uuid(self):
        return self.sessions()[-1]["session"]

    def view(self, uuid=None):
        return (self.root / ".review-loop/sessions" / f"{uuid or self.uuid()}.md").read_text()

    def events(self, uuid=None):
        store = SQLiteStore(str(self.root / ".gatebook/ledger.db"), readonly=True)
        try:
            return store.reader().stream(f"session/{uuid or self.uuid()}")
        finally:
            store.close()

    def types(self, uuid=None):
        return [event.type for event in self.events(uuid)]

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def config(self, text):
        self.write(".review-loop/config.md", text)

    def user_config(self, text):
        folder = pathlib.Path(self.environment["XDG_CONFIG_HOME"]) / "gatebook"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.md").write_text(text)


IGNORES = """.env
.env.*
*.env
*.pem
*.key
*.crt
*.cert
*.cer
*.p12
*.pfx
*.jks
*.keystore
id_rsa*
id_dsa*
id_ecdsa*
id_ed25519*
*.ppk
*.asc
*.gpg
*.pgp
*.sqlite
*.sqlite3
*.db
*.dump
*.sql.gz
*.map
*.tfstate
*.tfstate.*
*.tfvars
.terraform/
*.log
logs/
"""
