"""Every command says what it does with an example, and the example really runs."""

from __future__ import annotations

import datetime as dt
import json
import os
import pathlib
import pty
import re
import subprocess
import sys

import pytest
from help_stories import PLACEHOLDERS, STORIES, UNTOLD
from program import ROOT, call, finish, start

from commands import entry
from commands.table import COMMANDS, GROUPS

EXECUTOR = """## Implementation Complete: retries

### Changes Made
Set x to 2.

### Files Modified / Created / Deleted
- `src/a.py` — as planned

### Deviations from Plan
None

### Notes for Reviewer
Small.
"""
NOTHING_TO_DO = EXECUTOR.replace("Set x to 2.", "No code changes were required.").replace(
    "- `src/a.py` — as planned", "None"
).replace("Small.", "No-op round.")  # fmt: skip
APPROVAL = "### VERDICT: APPROVE\n\n### Strengths\nSmall.\n"
VERDICT = '{"verdict":"approve","summary":"fine","findings":[],"next_steps":[]}\n'
IGNORED = """.env .env.* *.env *.pem *.key *.crt *.cert *.cer *.p12 *.pfx *.jks *.keystore id_rsa* id_dsa* id_ecdsa* id_ed25519*
*.ppk *.asc *.gpg *.pgp *.sqlite *.sqlite3 *.db *.dump *.sql.gz *.map *.tfstate *.tfstate.* *.tfvars .terraform/ *.log logs/"""
WORKER = """#!/bin/sh
cat > item.json
echo 'Answer: 42.' > draft.md
echo PASS > verification.log
echo '{"status":"draft_ready","draft_path":"draft.md"}' > result.json
"""
RUBRIC = """models:
  - {name: claude-a, effort: high, provider: anthropic}
  - {name: gpt-b, effort: high, provider: openai, via: codex}
routing: {orchestrator: claude-a@high, default: claude-a@high}
fallbacks: {default: [gpt-b@high]}
"""
FIELD = r"""field() { sed -n "s/.*\"$1\": *\"\([^\"]*\)\".*/\1/p" | tail -n 1; }"""
REQUEST = {
    "operation": "execute", "route": "default", "outcome": "NOTES.md holds the notes", "artifacts": ["NOTES.md"],
    "verification": {"seam": ["grep", "notes", "NOTES.md"]},
}  # fmt: skip


def today():
    return dt.datetime.now(dt.UTC)


def rubric(project):
    (project / "rubric.yaml").write_text(f"{RUBRIC}reviewed: {today():%Y-%m-%d}\n")


def request(project):
    approvals = [{"what": "push to origin", "approval_seq": None}]
    authority = {
        "working_directory": str(project),
        "allowed_paths": ["."],
        "approvals": approvals,
    }
    (project / "request.json").write_text(json.dumps({**REQUEST, "authority": authority}))


def plan(project):
    run = project / "runs" / f"{today():%Y-%m-%d}"
    run.mkdir(parents=True)
    known = {"course_id": 100001, "course_name": "Code A"}
    items = [
        {
            "index": n, **known, "bucket": "soon", "assignment_id": 200000 + n, "assignment_name": f"Set {n}", "due_at": None, "hours_left": 40.0,
            "live_state": "unsubmitted", "proposed_skill": "canvas-generic", "user_decision": None,
        }
        for n in (1, 2, 3)
    ]  # fmt: skip
    hour = dt.timedelta(hours=1)
    times = {"generated_at": (today() - hour).isoformat(), "expires_at": (today() + 20 * hour).isoformat()}
    (run / "plan.json").write_text(json.dumps({**times, "items": items}))
    seen = {"course_id": 100001, "skill": "canvas-generic", "submission_types": ["online_upload"]}
    (run / "assignments.json").write_text(
        json.dumps([{**seen, "assignment_id": item["assignment_id"]} for item in items])
    )
    skill = project / "skills" / "canvas-generic"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: canvas-generic\ndescription: any course\n---\nAnswer it.\n")
    (project / "worker.sh").write_text(WORKER)
    (project / "worker.sh").chmod(0o755)


def review(project):
    (project / "src").mkdir()
    (project / "src" / "a.py").write_text("x = 1\n")
    (project / ".gitignore").write_text("\n".join(IGNORED.split()) + "\n")
    for argv in (["add", "-A"], ["commit", "-q", "-m", "second"]):
        subprocess.run(["git", *argv], cwd=project, env=environment(project), check=True)
    files = {
        "plan.md": "Set x to 2 in src/a.py.\n", "report.md": EXECUTOR, "executor.md": EXECUTOR, "review.md": APPROVAL, "review.json": VERDICT, "focus.txt": "Look for races.\n",
        "gate.txt": "", "r.md": "agent: simplifier\ntool_uses: 3\n\nNothing to simplify.\n",
    }  # fmt: skip
    for name, text in files.items():
        (project / name).write_text(text)
    (project / ".git" / "info" / "exclude").write_text("\n".join(files))


def programs(folder):
    """`gatebook` as this tree has it, and agents that say what the examples' agents might."""
    folder.mkdir()
    scripts = {
        "gatebook": f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m commands "$@"',
        "codex": f"if [ $2 = - ]; then cat > /dev/null; cat <<'END'\n{NOTHING_TO_DO}END\nelse cat <<'END'\n{VERDICT}END\nfi",
        "claude": f"cat > /dev/null; cat <<'END'\n{APPROVAL}END\n",
        "node": f"cat > /dev/null; cat <<'END'\n{VERDICT}END\n",
    }
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def project(tmp_path, home):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "README.md").write_text("# A project\n")
    programs(tmp_path / "bin")
    return folder


def environment(project):
    found = {**os.environ, "HOME": str(project.parent), "TZ": "UTC", "OUT": str(project.parent / "out")}
    for name in ("CODEX_THREAD_ID", "CODEX_SESSION_ID", "CLAUDECODE", "GATEBOOK_LEDGER", "SSH_AUTH_SOCK"):
        found.pop(name, None)
    for role in ("AUTHOR", "COMMITTER"):
        found |= {f"GIT_{role}_NAME": "A", f"GIT_{role}_EMAIL": "a@example.org"}
    found["PATH"] = f"{project.parent / 'bin'}:{found['PATH']}"
    found["TODAY"] = f"{today():%Y-%m-%d}"
    found["LATER"] = f"{today() + dt.timedelta(hours=9):%Y-%m-%dT%H:%M:%SZ}"
    found["WORK"] = f"runs/{found['TODAY']}/course-100001__assignment-200001"
    found["PLACE"] = "--origin https://canvas.example.edu --course 100001"
    later = today() + dt.timedelta(hours=10)
    found["AT"] = f"{found['PLACE']} --session s1 --authority yes --expires {later:%Y-%m-%dT%H:%M:%SZ}"
    return found


def example_of(name):
    text = entry.load(name).example.strip()
    for placeholder, value in PLACEHOLDERS.items():
        text = text.replace(placeholder, value)
    return text


def script_of(story):
    """One shell script: every line of the story with, before it, what a failure is to be called."""
    lines = ["set -e", "trap 'echo \"failed: $STEP\" >&2' EXIT", FIELD]
    for step in story:
        text = example_of(step) if step in COMMANDS else step
        lines.append(f"STEP={json.dumps(step).replace('$', chr(92) + '$').replace('`', '')}")
        lines.append(text)
    return "\n".join([*lines, "trap - EXIT", ""])


@pytest.mark.parametrize("title", STORIES)
def test_the_examples_of_help_run_as_they_stand(title, project):
    prepared = {"RUBRIC": rubric, "REQUEST": request, "PLAN": plan, "REVIEW": review}
    around = environment(project)
    for argv in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *argv], cwd=project, env=around, check=True)
    steps = []
    for step in STORIES[title]:
        if step in prepared:
            prepared[step](project)
        else:
            steps.append(step)
    script = project.parent / "story.sh"
    script.write_text(script_of(steps))
    terminal, inner = (
        pty.openpty()
    )  # a person types: receipts are issued, and hooks changed, at a terminal only
    os.write(terminal, b"y\ny\n")
    with open(around["OUT"], "wb") as out:
        done = subprocess.run(
            ["bash", str(script)], cwd=project, env=around, stdin=inner, stdout=out, stderr=subprocess.PIPE, timeout=200,
        )  # fmt: skip
    os.close(inner)
    os.close(terminal)
    said = pathlib.Path(around["OUT"]).read_text()
    assert done.returncode == 0, (done.stderr.decode(), said[-2000:])
    assert "Traceback" not in said + done.stderr.decode()


def test_every_command_is_told_in_one_story_or_says_why_not():
    told = [step for story in STORIES.values() for step in story if step in COMMANDS]
    assert sorted(told + list(UNTOLD)) == sorted(COMMANDS)
    for reason in UNTOLD.values():
        for path in re.findall(r"tests/\S+\.py", reason):
            assert os.path.exists(os.path.join(ROOT, path)), path


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_what_it_takes_and_does_with_an_example(name):
    command = entry.load(name)
    assert command.text.strip()
    lines = command.example.strip().splitlines()
    assert lines
    assert any(re.search(rf"\bgatebook (--ledger \S+ )?{name}\b", line) for line in lines), lines
    for option in (*command.flags, *command.words):
        assert option.help, option.name
    done = call(*name.split(), "--help")
    assert done.code == 0
    assert done.out.startswith(f"usage: gatebook {name}")
    for flag in command.flags:
        assert f"  {flag.name}" in done.out or f", {flag.name}" in done.out
    assert all(len(line) <= 120 for line in command.text.splitlines())


def test_the_overview_lists_every_command_once_in_few_words():
    listed = [name for _, names in GROUPS for name in names]
    assert sorted(listed) == sorted(COMMANDS)
    overview = call("--help").out
    for name, (_, text) in COMMANDS.items():
        assert f"  {name:<24}{text}\n" in overview
        assert len(text) <= 75


def test_a_groups_help_lists_its_commands():
    for first in {name.split()[0] for name in COMMANDS if " " in name}:
        done = call(first, "--help")
        assert done.code == 0
        assert [line.split("  ")[1] for line in done.out.splitlines()[2:]] == [
            name for name in COMMANDS if name.split()[0] == first
        ]


def test_help_can_be_asked_in_either_order():
    for name in ("append", "route select"):
        assert call("help", *name.split()).out == call(*name.split(), "--help").out
    assert call("help", "route").out == call("route", "--help").out
    call("help", "nope").refused(2, "unknown command 'nope'")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_help_is_printed_whatever_the_terminal_can_show(encoding):
    for words in (["--help"], ["route", "--help"], ["append", "--help"]):
        done = finish(start(*words, env={"PYTHONIOENCODING": encoding}))
        assert done.code == 0, done.err
        assert done.out.startswith("usage: gatebook")
    assert finish(start(env={"PYTHONIOENCODING": encoding})).err.startswith("usage: gatebook")
