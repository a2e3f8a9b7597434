"""`session run` from plan to delivered commit, with scripted agents in a real repository."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from session_house import APPROVAL, GATE_OK, NOOP, did, executor_says, gate_finding, request_changes

PLAN = ("--plan", "Set x.", "--title", "Set x")


def test_a_plan_becomes_a_delivered_commit_through_every_kind_of_correction(house):
    house.config("auto_commit: true\ncommit_message_prefix: fix\ndocs_file: docs/sessions.md\n")
    house.user_config(
        "\n".join(
            f"{name}: {house.agent(role)}"
            for name, role in (("simplify_command", "simplify"), ("project_docs_command", "docs"))
        )
    )
    house.script(
        executor=[
            did("src/a.py", "x = 2\n"),
            did("src/a.py", "x = 3\n"),
            did("src/a.py", "x = 4\n"),
            NOOP,
        ],
        reviewer=[{"say": request_changes()}, {"say": APPROVAL}],
        gate=[gate_finding(), GATE_OK],
        simplify=[
            {"write": {"src/a.py": "x = 5\n"}, "say": "agent: simplifier\ntool_uses: 3\n"},
            {"say": "agent: simplifier\ntool_uses: 2\n"},
        ],
        docs=[
            {"write": {"README.md": "# R\n\nx is 5.\n"}, "say": "agent: docs\ntool_uses: 3\n"},
            {"say": "agent: docs\ntool_uses: 1\n"},
        ],
    )
    done = house.run(*PLAN)
    assert done.returncode == 0, done.stderr.decode()
    types = house.types()
    assert types.count("round.started") == 5  # RC, repaired, gate's findings repaired, replay, fast replay
    assert types.count("gate.returned") == 2  # once in each convergence
    assert types.index("stages.cleared") < types.index("stages.carried")
    assert types[types.index("stages.carried") - 1] == "round.reviewed"
    log = house.git("log", "--format=%s").decode().splitlines()
    assert log == ["fix: Set x", "first"]
    assert house.git("show", "--name-only", "--format=", "HEAD").decode().split() == ["src/a.py"]
    assert house.git("show", "HEAD:src/a.py") == b"x = 5\n"
    status = house.git("status", "--porcelain").decode().splitlines()
    assert sorted(status) == [" M README.md", "?? .review-loop/", "?? docs/"]
    (session,) = house.sessions()
    assert session["delivered"]
    assert session["session_commits"] == [house.git("rev-parse", "HEAD").decode().strip()]
    summary = done.stdout.decode()
    for heading in (
        "# 交付总结：Set x",
        "## 质量打磨",
        "## 审查发现",
        "## 变更文件",
        "## 自主决定",
        "## 耗时",
        "## 后续步骤",
    ):
        assert heading in summary
    assert summary.strip() in (house.root / "docs/sessions.md").read_text()
    view = house.view()
    assert "- Current" not in view
    assert (
        view.index("## Approved Plan") < view.index("## Review History") < view.index("## Session Metadata")
    )
    assert '- completed_stages: ["exec", "polish", "docs", "security"]' in view
    assert not list((house.root / ".review-loop/tmp").glob("*.txt"))
    for audit in ("verify", "replay"):
        assert house(audit).returncode == 0
    assert house.ok("state", "sessions", "--json")


def test_the_prompts_carry_the_findings_and_one_block(house):
    house.config("review_focus: |\n  Locks.\nreview_style: terse\n")
    house.script(
        executor=[did("src/a.py", "x = 2\n"), did("src/a.py", "x = 3\n")],
        reviewer=[{"say": request_changes("Wrong sign")}, {"say": APPROVAL}],
    )
    assert house.run(*PLAN).returncode == 0
    second = house.prompts("executor")[1]
    assert "[CRITICAL] Wrong sign" in second
    for prompt in house.prompts("reviewer"):
        assert "(plan_source: user-supplied — plan conformance is advisory/MINOR)" in prompt
        assert "Locks." in prompt
        assert "terse" in prompt
        assert "every deviation from the plan" not in prompt
        assert "Review Target" not in prompt


def test_review_only_has_no_executor_in_its_first_round(house):
    house.write("src/a.py", "x = 7\n")
    house.script(
        executor=[did("src/a.py", "x = 8\n")], reviewer=[{"say": request_changes()}, {"say": APPROVAL}]
    )
    assert house.run("--review-only", "--stop-after", "before-polish").returncode == 0
    assert len(house.prompts("executor")) == 1
    view = house.view()
    assert "- Executor backend: skipped (review-only first round)" in view
    assert (
        "- Source: review-only\n\n(none — review-only mode)\n\nScope: see `## Review Target` section below.\n"
        in view
    )
    assert "Review-only pass over current working tree." in view
    assert "- `src/a.py`" in view
    assert "plan conformance" not in house.prompts("reviewer")[0]
    (prompt,) = house.prompts("executor")
    assert "Resolve the findings below" in prompt
    assert "approved plan" not in prompt


def test_review_only_approved_at_once_never_runs_the_executor(house):
    house.write("src/a.py", "x = 7\n")
    assert house.run("--review-only").returncode == 0
    assert house.prompts("executor") == []
    assert house.sessions()[0]["delivered"]


@pytest.mark.parametrize(
    ("point", "stages", "gates", "following"),
    [
        ("exec-round", [], 0, "gate"),
        ("before-polish", ["exec"], 1, "polish static-analysis"),
        ("before-docs", ["exec", "polish"], 1, "docs project-docs"),
        ("before-security", ["exec", "polish", "docs"], 1, "security"),
        ("before-delivery", ["exec", "polish", "docs", "security"], 1, "delivery"),
    ],
)
def test_each_stop_point_is_a_clean_stop_that_resumes(house, point, stages, gates, following):
    assert house.run(*PLAN, "--stop-after", point).returncode == 0
    (session,) = house.sessions()
    assert (session["completed_stages"], session["next"], session["locked_by"]) == (stages, following, None)
    assert house.types().count("gate.returned") == gates
    assert house.types()[-3:-1] == ["session.stopped", "baseline.verified"]
    assert not list((house.root / ".review-loop/sessions").glob("*.lock"))
    assert json.loads(re.search(r"last_verified_dirty: (.*)", house.view())[1]).keys() == {"src/a.py"}
    assert house.run("--session", session["session"]).returncode == 0
    assert house.sessions()[0]["delivered"]
    assert len(house.prompts("executor")) == 1


@pytest.mark.parametrize("point", ["before-polish", "before-docs", "before-security"])
def test_a_stop_point_that_lies_behind_stops_at_once(house, point):
    assert house.run(*PLAN, "--stop-after", "before-delivery").returncode == 0
    assert house.run("--session", house.uuid(), "--stop-after", point).returncode == 0
    (session,) = house.sessions()
    assert (session["delivered"], session["next"], session["locked_by"]) == (False, "delivery", None)


def test_exec_round_stops_after_request_changes_too(house):
    house.script(reviewer=[{"say": request_changes()}])
    assert house.run(*PLAN, "--stop-after", "exec-round").returncode == 0
    (session,) = house.sessions()
    assert (session["round"], session["next"]) == (1, "round")


def test_skip_quality_polish_mints_polish_by_config(house):
    house.config("skip_quality_polish: true\n")
    assert house.run(*PLAN, "--stop-after", "before-polish").returncode == 0
    assert house.sessions()[0]["completed_stages"] == ["exec"]
    assert house.run("--session", house.uuid()).returncode == 0
    assert "stage.step_recorded" in house.types()  # docs still runs
    assert "polish" in house.sessions()[0]["completed_stages"]


def test_an_invalid_report_is_asked_for_once_more_and_then_stops(house):
    house.script(executor=[{"say": "done"}, did("src/a.py", "x = 2\n"), NOOP])
    assert house.run(*PLAN).returncode == 0
    assert (
        "Rule broken: missing-section: no heading `## Implementation Complete" in house.prompts("executor")[1]
    )
    house.script(executor=[{"say": "done"}])
    done = house.run("--plan", "Set y.", "--title", "Set y")
    assert done.returncode == 4
    assert b"second report is invalid" in done.stderr


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ({"write": {"src/a.py": "x = 2\n"}, "say": executor_says("src/b.py")}, "claim-not-in-delta"),
        (
            {"write": {"src/a.py": "x = 2\n", "src/b.py": "y\n"}, "say": executor_says("src/a.py")},
            "unlisted-change",
        ),
        ({"write": {"src/a.py": "x = 2\n"}, "say": executor_says()}, "unlisted-change"),
        ({"say": executor_says("src/a.py")}, "claim-not-in-delta"),
        (
            {
                "write": {"src/a.py": "2\n"},
                "git": ["commit", "-qam", "own"],
                "say": executor_says("src/a.py"),
            },
            "head-moved",
        ),
    ],
)
def test_a_round_that_says_what_it_did_not_do_is_rejected(house, step, reason):
    house.script(executor=[step, {"say": step["say"]}])
    done = house.run(*PLAN)
    assert done.returncode == 4
    assert f"invalid: {reason}".encode() in done.stderr


def test_a_round_that_touches_the_session_file_is_rejected_and_the_file_written_again(house):
    house.script(executor=[{"say": "x"}])
    house.run(*PLAN, "--stop-after", "exec-round")
    uuid = house.uuid()
    path = f".review-loop/sessions/{uuid}.md"
    house.script(
        executor=[
            {
                "write": {path: "## Approved Plan\n\n- Source: user-supplied\n\nAnything.\n"},
                "say": executor_says(),
            }
        ]
    )
    done = house.run("--session", uuid)
    assert b"session-files-changed" in done.stderr
    assert "Set x." in house.view(uuid)


@pytest.mark.parametrize(
    "name", [".review-loop/tmp/notes.txt", ".review-loop/sessions/x.md", ".gatebook/notes"]
)
def test_a_round_that_leaves_files_in_our_folders_is_rejected(house, name):
    house.script(
        executor=[
            {"write": {name: "x", "src/a.py": "x = 2\n"}, "say": executor_says("src/a.py")},
            did("src/a.py", "x = 2\n"),
            NOOP,
        ]
    )
    done = house.run(*PLAN)
    assert done.returncode == 0, done.stderr.decode()
    assert b"session-files-changed" in done.stderr
    assert house.types().count("round.rejected") == 1


def test_nothing_of_a_hostile_repository_runs_in_a_whole_session(house, tmp_path):
    mark = tmp_path / "ran"
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    trap.chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.pager",
        "diff.external",
        "diff.evil.textconv",
        "filter.evil.clean",
        "filter.evil.smudge",
        "filter.evil.process",
    ):
        house.git("config", key, str(trap))
    hooks = house.root / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-commit", "post-commit", "reference-transaction", "post-index-change", "post-checkout"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {mark}\n")
        (hooks / name).chmod(0o755)
    (house.root / ".git/info").mkdir(exist_ok=True)
    (house.root / ".git/info/attributes").write_text("*.py filter=evil diff=evil\n")
    house.config("auto_commit: true\n")
    done = house.run(*PLAN, process=True)
    assert done.returncode == 0, done.stderr.decode()
    assert not mark.exists()
    assert house.sessions()[0]["delivered"]


def test_the_round_limit_blocks_delivery_and_continue_lifts_it(house):
    house.config("soft_limit_exec: 2\n")
    house.script(
        executor=[did("src/a.py", "x = 2\n"), did("src/a.py", "x = 3\n"), did("src/a.py", "x = 4\n"), NOOP],
        reviewer=[
            {"say": request_changes("A thing")},
            {"say": request_changes("Another")},
            {"say": APPROVAL},
        ],
    )
    done = house.run(*PLAN, "--handsfree")
    assert done.returncode == 4
    assert b"stuck at exec" in done.stderr
    assert f"stuck: session {house.uuid()} at exec".encode() in done.stderr
    (session,) = house.sessions()
    assert (session["delivery_blocked_by"], session["round"]) == ("exec", 2)
    assert "- delivery_blocked_by: exec" in house.view()
    assert house.run("--session", session["session"]).returncode == 4
    assert house.run("--session", session["session"], "--abort").returncode == 4
    assert house.sessions()[0]["delivery_blocked_by"] == "exec"
    assert house.run("--session", session["session"], "--continue").returncode == 0
    assert house.sessions()[0]["delivered"]


def test_the_same_critical_three_times_is_stuck(house):
    house.config("soft_limit_exec: 9\n")
    house.script(
        executor=[did("src/a.py", f"x = {i}\n") for i in range(2, 9)],
        reviewer=[{"say": request_changes(f"Lost update at line {i}")} for i in (1, 2, 3, 4)],
    )
    done = house.run(*PLAN)
    assert done.returncode == 4
    assert b"3 rounds in a row" in done.stderr
    assert house.sessions()[0]["round"] == 3


def test_tracked_secrets_halt_and_say_how_to_untrack(house):
    house.write("config/secrets.yaml", "k: v\n")
    house.git("add", "-f", "config/secrets.yaml")
    house.git("commit", "-q", "-m", "oops")
    done = house.run(*PLAN)
    assert done.returncode == 4
    assert b"[CRITICAL] config/secrets.yaml" in done.stderr
    assert b"git rm --cached" in done.stderr
    assert house.sessions()[0]["delivery_blocked_by"] == "security"
    house.git("rm", "-q", "--cached", "config/secrets.yaml")
    house.git("commit", "-q", "-m", "untrack")
    done = house.run("--session", house.uuid(), "--continue")
    assert (done.returncode, b"drift: external-head" in done.stderr) == (4, True)
    (house.root / "config/secrets.yaml").unlink()
    assert house.run("--session", house.uuid(), "--accept-external-state").returncode == 0


def test_gaps_in_gitignore_are_filled_once_and_everything_is_replayed(house):
    house.write(".gitignore", "*.log")
    house.git("commit", "-qam", "less")
    assert house.run(*PLAN).returncode == 0
    text = (house.root / ".gitignore").read_text()
    assert text.startswith("*.log\n\n# Environment files\n.env\n")
    assert "*credentials*" not in text
    assert "*.log" not in text.split("\n", 2)[2]
    types = house.types()
    assert types.count("security.scanned") == 3  # planned, written, clean
    assert types.count("stages.cleared") == 1
    assert types.count("gate.returned") == 2


def test_an_edit_after_security_blocks_delivery(house):
    assert house.run(*PLAN, "--stop-after", "before-delivery").returncode == 0
    token = house.ok("session", "start", "--session", house.uuid())["owner"]
    house.write("src/a.py", "x = 99\n")
    done = house("session", "deliver", "--owner", token)
    assert done.returncode == 4
    assert b"stuck at exec" in done.stderr
    assert f"stuck: session {house.uuid()} at exec".encode() in done.stderr
    (session,) = house.sessions()
    assert (session["delivery_blocked_by"], session["delivered"], session["locked_by"]) == (
        "exec",
        False,
        None,
    )
    done = house.run("--session", session["session"], "--continue", "--accept-external-state")
    assert done.returncode == 0, done.stderr.decode()
    assert house.sessions()[0]["delivered"]


def test_staging_after_security_blocks_delivery_too(house):
    assert house.run(*PLAN, "--stop-after", "before-delivery").returncode == 0
    house.git("add", "src/a.py")
    done = house.run("--session", house.uuid())
    assert done.returncode == 4
    assert house.sessions()[0]["delivery_blocked_by"] == "exec"


def test_staging_between_batches_replays_what_was_minted_for_another_index(house):
    assert house.run(*PLAN, "--stop-after", "before-docs").returncode == 0
    house.git("add", "src/a.py")
    done = house.run("--session", house.uuid())
    assert done.returncode == 0, done.stderr.decode()
    assert house.types().count("stages.cleared") == 1
    assert house.sessions()[0]["round"] == 2


def test_what_the_user_staged_stays_out_of_the_commit(house):
    house.write("other.txt", "staged\n")
    house.git("add", "other.txt")
    house.config("auto_commit: true\n")
    assert house.run(*PLAN).returncode == 0
    assert house.git("show", "--name-only", "--format=", "HEAD").decode().split() == ["src/a.py"]
    assert house.git("status", "--porcelain").decode().splitlines()[0] == "A  other.txt"
    assert house.git("diff", "--cached", "--name-only").decode().split() == ["other.txt"]


def test_nothing_listed_no_commit(house):
    house.config("auto_commit: true\n")
    house.script(executor=[NOOP])
    assert house.run(*PLAN).returncode == 0
    assert house.git("log", "--format=%s").decode().splitlines() == ["first"]


def test_hooks_of_the_repository_do_not_run_at_the_commit(house, tmp_path):
    mark = tmp_path / "ran"
    for name in ("pre-commit", "post-commit", "commit-msg", "reference-transaction", "post-index-change"):
        hook = house.root / ".git/hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
        hook.chmod(0o755)
    house.config("auto_commit: true\n")
    done = house.run(*PLAN)
    assert done.returncode == 0
    assert not mark.exists()
    assert "git hooks" in done.stdout.decode()


def test_deleted_and_renamed_files_are_committed_as_they_are(house):
    house.config("auto_commit: true\n")
    house.script(
        executor=[
            {
                "delete": ["src/a.py"],
                "write": {"src/b c.py": "x = 1\n"},
                "say": executor_says("src/a.py", "src/b c.py"),
            },
            NOOP,
        ]
    )
    assert house.run(*PLAN).returncode == 0
    assert house.git("show", "--no-renames", "--name-status", "--format=", "HEAD").decode().splitlines() == [
        "D\tsrc/a.py",
        "A\tsrc/b c.py",
    ]
    assert house.git("status", "--porcelain", "src").decode() == ""


# --- agents that quit, hang, or are cut off ---------------------------------------------------------------


def test_a_failing_agent_stops_the_run_and_leaves_a_session_that_resumes(house):
    house.script(reviewer=[{"exit": 3, "say": APPROVAL}, {"say": APPROVAL}])
    done = house.run(*PLAN)
    assert done.returncode == 75
    assert b"the reviewer ended with exit code 3" in done.stderr
    (session,) = house.sessions()
    assert (session["next"], session["locked_by"], session["delivery_blocked_by"]) == ("reviewer", None, None)
    assert house.run("--session", session["session"]).returncode == 0
    assert len(house.prompts("executor")) == 1


def test_a_missing_agent_is_exit_69(house):
    done = house("session", "run", *PLAN, "--executor", "no-such-agent", "--reviewer", "true")
    assert done.returncode == 69
    assert house.sessions()[0]["locked_by"] is None


def test_sigterm_releases_the_lock_and_blocks_by_user_abort(house):
    house.script(executor=[{"term_parent": True}, did("src/a.py", "x = 2\n"), NOOP])
    done = house.run(*PLAN, process=True)
    assert done.returncode == 130
    (session,) = house.sessions()
    assert (session["delivery_blocked_by"], session["locked_by"]) == ("user-abort", None)
    assert '- delivery_blocked_by: "user-abort"' in house.view()
    assert house.run("--session", session["session"], "--continue").returncode == 0


@pytest.mark.parametrize("role", ["executor", "reviewer", "gate", "simplify", "docs"])
def test_kill_9_while_a_program_runs_resumes_to_the_same_end(house, role):
    house.config("auto_commit: true\n")
    house.user_config(
        f"simplify_command: {house.agent('simplify')}\nproject_docs_command: {house.agent('docs')}\n"
    )
    scripts = {
        "executor": [did("src/a.py", "x = 2\n"), NOOP],
        "reviewer": [{"say": APPROVAL}],
        "gate": [GATE_OK],
        "simplify": [{"say": "agent: s\ntool_uses: 1\n"}],
        "docs": [{"say": "agent: d\ntool_uses: 1\n"}],
    }
    scripts[role] = [{**scripts[role][0], "kill_parent": True}, *scripts[role]]
    house.script(**scripts)
    assert house.run(*PLAN, process=True).returncode == -signal.SIGKILL
    uuid = house.uuid()
    done = house.run("--session", uuid)
    assert done.returncode == 4
    assert b"--recover-lock" in done.stderr
    done = house.run("--session", uuid, "--recover-lock")
    assert done.returncode == 0, done.stderr.decode()
    assert house.git("log", "--format=%s").decode().splitlines() == ["feat: Set x", "first"]
    assert house.git("show", "HEAD:src/a.py") == b"x = 2\n"


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_an_executor_does_not_outlive_a_killed_run(house):
    pid = house.folder / "pid"
    (house.folder / "slow.py").write_text(
        f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n"
    )
    command = [
        "session",
        "run",
        *PLAN,
        "--executor",
        f"{sys.executable} {house.folder / 'slow.py'}",
        "--reviewer",
        "true",
    ]
    child = subprocess.Popen(
        [sys.executable, "-m", "commands", *command],
        cwd=house.root,
        env=house.environment,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 30
    while not pid.exists() or not pid.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.kill()
    child.wait()
    while os.path.exists(f"/proc/{pid.read_text()}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


CRASH_AT = """
import os, sys
sys.path.insert(0, {source!r})
from commands.sessions import writer
count = {count}
real = writer.submit
def submit(*args, **kwargs):
    global count
    if {before} and count == 0:
        os._exit(9)
    out = real(*args, **kwargs)
    if not {before} and count == 0:
        os._exit(9)
    count -= 1
    return out
writer.submit = submit
from commands.entry import run
os._exit(run(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False])
def test_a_crash_before_or_after_every_single_record_resumes_to_the_same_end(house, before):
    """One session, killed at every event in turn: each life does one step more."""
    house.config("auto_commit: true\nskip_quality_polish: true\n")
    command = [
        "session",
        "run",
        "--executor",
        house.agent("executor"),
        "--reviewer",
        house.agent("reviewer"),
        "--gate",
        house.agent("gate"),
    ]
    house.script(executor=[did("src/a.py", "x = 2\n"), did("src/a.py", "x = 2\n")])
    source = house.environment["PYTHONPATH"]
    lives, uuid = 0, None
    while True:
        lives += 1
        assert lives < 40
        code = CRASH_AT.format(source=source, count=0 if before and lives == 1 else 1, before=before)
        opening = ["--session", uuid, "--recover-lock"] if uuid else list(PLAN)
        done = subprocess.run(
            [sys.executable, "-c", code, *command, *opening],
            cwd=house.root,
            env=house.environment,
            capture_output=True,
            timeout=60,
        )
        if uuid is None:
            found = list((house.root / ".review-loop/sessions").glob("*.lock"))
            uuid = found[0].name.removesuffix(".lock")
            if not house.ok("session", "status", "--session", uuid)["next"]:
                uuid = None  # it died before it was opened: nothing to resume
                house.git("clean", "-fdqx", ".review-loop/sessions")
        if done.returncode != 9:
            break
    assert done.returncode == 0, done.stderr.decode()
    assert house.git("log", "--format=%s").decode().splitlines() == ["feat: Set x", "first"]
    assert house.git("status", "--porcelain", "src").decode() == ""
    assert lives > 6


@pytest.mark.parametrize(
    ("patch", "config"),
    [
        ("from commands.sessions import preflight as m; real = m._record\nm._record = lambda w, o, *a: os._exit(9) if o == 'written' else real(w, o, *a)", ""),
        (("from commands.sessions import preflight as m\nimport ledger.files as f; real = f.write_whole\n"
         "f.write_whole = lambda p, *a, **k: os._exit(9) if p.endswith('.gitignore') else real(p, *a, **k)"), ""),
        ("from commands.sessions import delivery as m; m._append_to_docs = lambda *a: os._exit(9)", "docs_file: docs/s.md\n"),
        ("from commands.sessions import delivery as m; m.remove_round_files = lambda *a: os._exit(9)", "docs_file: docs/s.md\n"),
    ],
    ids=["gitignore-written", "gitignore-planned", "docs-unwritten", "docs-written"],
)  # fmt: skip
def test_a_crash_around_our_own_writes_resumes_to_the_same_end(house, patch, config):
    house.config(f"auto_commit: true\n{config}")
    house.write(".gitignore", "*.log\n")
    house.git("commit", "-qam", "less")
    house.write("app.sqlite", "untracked until it is ignored")
    command = [
        "session",
        "run",
        *PLAN,
        "--executor",
        house.agent("executor"),
        "--reviewer",
        house.agent("reviewer"),
    ]
    code = f"import os, sys\n{patch}\nfrom commands.entry import run\nrun(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=house.root, env=house.environment, capture_output=True
    )
    assert done.returncode == 9, done.stderr
    done = house.run("--session", house.uuid(), "--recover-lock")
    assert done.returncode == 0, done.stderr.decode()
    assert (house.root / ".gitignore").read_text().count("# Environment files") == 1
    assert house.types().count("stages.cleared") == 1
    assert house.sessions()[0]["delivered"]
    assert house.git("log", "--format=%s").decode().splitlines() == ["feat: Set x", "less", "first"]
    if config:
        assert (house.root / "docs/s.md").read_text().count("# 交付总结") == 1
        assert not list((house.root / ".review-loop/tmp").glob("*.txt"))


def test_a_step_killed_after_it_wrote_is_run_again_over_the_same_starting_point(house):
    house.user_config(f"simplify_command: {house.agent('simplify')}\n")
    wrote = {"write": {"src/a.py": "x = 1 + 1\n"}, "say": "agent: s\ntool_uses: 1\n"}
    house.script(simplify=[{**wrote, "kill_parent": True}, wrote, {"say": "agent: s\ntool_uses: 1\n"}])
    assert house.run(*PLAN, process=True).returncode == -signal.SIGKILL
    done = house.run("--session", house.uuid(), "--recover-lock")
    assert done.returncode == 0, done.stderr.decode()
    assert house.types().count("stages.cleared") == 1
    assert len(house.prompts("simplify")) == 3
    assert house("replay").returncode == 0


def test_a_crash_between_head_and_index_is_finished_at_the_next_start(house):
    """HEAD is at the delivery's commit already, the index still shows its parent."""
    house.config("auto_commit: true\nskip_quality_polish: true\n")
    code = """
import os, sys
from commands.sessions import delivery
delivery._settle_index = lambda *a: os._exit(9)
from commands.entry import run
run(sys.argv[1:])
"""
    command = [
        "session",
        "run",
        *PLAN,
        "--executor",
        house.agent("executor"),
        "--reviewer",
        house.agent("reviewer"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *command], cwd=house.root, env=house.environment, capture_output=True
    )
    assert done.returncode == 9
    assert house.git("status", "--porcelain", "src").decode() == "MM src/a.py\n"
    assert house.run("--session", house.uuid(), "--recover-lock").returncode == 0
    assert house.git("status", "--porcelain", "src").decode() == ""
    assert house.git("log", "--format=%s").decode().splitlines() == ["feat: Set x", "first"]
    assert house.sessions()[0]["delivered"]


def test_a_second_run_is_refused_while_the_first_lives(house):
    flag = house.folder / "wait"
    code = f"import time, pathlib; p = pathlib.Path({str(flag)!r}); p.write_text('x')\nwhile p.exists(): time.sleep(0.05)"
    slow = f'{sys.executable} -c "{code}"'
    (house.folder / "slow.py").write_text(code)
    slow = f"{sys.executable} {house.folder / 'slow.py'}"
    first = subprocess.Popen(
        [sys.executable, "-m", "commands", "session", "run", *PLAN, "--executor", slow, "--reviewer", "true"],
        cwd=house.root, env=house.environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while not flag.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    uuid = house.uuid()
    done = house.run("--session", uuid)
    assert done.returncode == 5
    assert f"locked by pid {first.pid} since".encode() in done.stderr
    assert house.run("--session", uuid, "--recover-lock").returncode == 5
    first.send_signal(signal.SIGTERM)
    first.wait(20)
    assert not os.path.exists(house.root / f".review-loop/sessions/{uuid}.lock")
    flag.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "name",
    ["../outside.md", ".git/hooks/pre-commit", "/etc/gatebook-docs", "link/x.md", "src", "src/a.py/x.md"],
)
def test_a_docs_file_that_is_no_file_of_the_work_tree_is_a_bad_value(house, tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", house.root / "link")
    house.config(f"docs_file: {name}\n")
    done = house.run(*PLAN)
    assert (done.returncode, b"docs_file" in done.stderr) == (1, True)
    assert not house.sessions()
    assert not list((tmp_path / "elsewhere").iterdir())
    assert not (house.root / ".git/hooks/pre-commit").exists()


def test_a_docs_file_that_became_a_wrong_one_is_said_before_anything_is_delivered(house):
    house.config("auto_commit: true\ndocs_file: late\n")
    house.script(executor=[did("late/a.py", "x = 2\n")])
    assert house.run(*PLAN).returncode == 4
    session = house.sessions()[-1]
    assert (session["delivered"], session["commit"], session["next"]) == (False, None, "delivery")
    assert house.git("log", "--format=%s") == b"first\n"


def test_a_docs_file_in_another_encoding_is_appended_to(house):
    (house.root / "log.md").write_bytes(b"caf\xe9")
    house.config("docs_file: log.md\n")
    assert house.run(*PLAN).returncode == 0
    kept = (house.root / "log.md").read_bytes()
    assert kept.startswith(b"caf\xe9\n# ")
    assert house.run("--session", house.uuid()).returncode == 0
    assert (house.root / "log.md").read_bytes() == kept


def test_simplify_that_breaks_the_build_is_taken_back(house):
    house.user_config(
        f"simplify_command: {house.agent('simplify')}\nbuild_check_command: grep -q 'x = 2' src/a.py\n"
    )
    house.script(
        simplify=[
            {
                "write": {"src/a.py": "broken\n", "new.txt": "n\n"},
                "delete": ["README.md"],
                "say": "agent: s\ntool_uses: 3\n",
            }
        ]
    )
    done = house.run(*PLAN)
    assert done.returncode == 0, done.stderr.decode()
    assert (house.root / "src/a.py").read_text() == "x = 2\n"
    assert (house.root / "README.md").read_text() == "# R\n"
    assert not (house.root / "new.txt").exists()
    assert "polish / simplify：已撤回" in done.stdout.decode()


def test_a_lint_command_that_prints_something_else_stops_the_fast_replay(house):
    house.user_config(f"project_docs_command: {house.agent('docs')}\nlint_command: grep -c words README.md\n")
    house.script(
        executor=[did("src/a.py", "x = 2\n"), NOOP],
        docs=[
            {"write": {"README.md": "# R\n\nMore words.\n"}, "say": "agent: d\ntool_uses: 3\n"},
            {"say": "agent: d\ntool_uses: 1\n"},
        ],
    )
    assert house.run(*PLAN).returncode == 0
    assert "stages.carried" not in house.types()
    assert house.types().count("stages.cleared") == 1


def test_a_terminal_that_is_not_utf_8_still_gets_the_delivery(house):
    done = house.run(*PLAN, process=True, LC_ALL="POSIX", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert b"stages" in done.stdout
    assert house.sessions()[0]["delivered"]
