"""`session start`: flags before any file, the lock, drift, import, resume."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from session_house import NOOP, did

PLAN = ("--plan", "Set x.", "--title", "Set x")
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def sessions_folder(house):
    return house.root / ".review-loop/sessions"


@pytest.mark.parametrize(
    "flags",
    [
        (),
        (*PLAN, "--review-only"),
        ("--session", UUID, *PLAN),
        ("--session", UUID, "--review-only"),
        ("--session", "not-a-uuid"),
        ("--session", "../../etc/passwd"),
        ("--session", UUID.replace("-", "")),
        ("--plan", "x"),
        ("--plan", "x", "--title", " "),
        ("--plan", " ", "--title", "t"),
        ("--plan", "x", "--title", "two\nlines"),
        ("--review-only", "--title", "t"),
        ("--plan", "x", "--title", "caf\udce9"),
        ("--review-only", "--description", "caf\udce9"),
        ("--session", UUID, "--description", "d"),
        (*PLAN, "--stop-after", "polish"),
        (*PLAN, "--stop-after", ""),
        (*PLAN, "--runtime", "gpt"),
        (*PLAN, "--owner-pid", "4194999"),
        (*PLAN, "--continue", "--abort"),
        (*PLAN, "--abort"),
        (*PLAN, "--unknown"),
    ],
    ids=str,
)
def test_a_wrong_call_is_exit_2_before_anything_exists(house, flags):
    done = house("session", "start", *flags)
    assert done.returncode == 2, done.stderr
    assert not sessions_folder(house).exists()
    assert house.sessions() == []


def test_a_wrong_stop_point_names_runtime_and_set(house):
    done = house("session", "start", *PLAN, "--stop-after", "never", "--runtime", "codex")
    for word in (
        b"codex",
        b"exec-round",
        b"before-polish",
        b"before-docs",
        b"before-security",
        b"before-delivery",
        b"delivery",
    ):
        assert word in done.stderr


def test_the_help_calls_accept_external_state_unsafe(house):
    help_text = house("session", "start", "--help").stdout.decode()
    assert "UNSAFE" in help_text[help_text.index("--accept-external-state") :]


def test_a_bad_config_value_is_an_error_before_the_lock(house):
    house.config("soft_limit_exec: many\n")
    done = house("session", "start", *PLAN)
    assert done.returncode == 1
    assert b"soft_limit_exec" in done.stderr
    assert not sessions_folder(house).exists()
    house.config("odd: 1\n")
    done = house("session", "start", *PLAN, process=True)
    assert done.returncode == 0
    assert b"unknown key" in done.stderr


def test_reviewer_codex_needs_its_binary(house, tmp_path):
    house.config("reviewer: codex\n")
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("git", "sh"):
        os.symlink(
            subprocess.run(["which", name], capture_output=True, text=True).stdout.strip(), bare / name
        )
    assert house("session", "start", *PLAN, PATH=str(bare)).returncode == 69
    assert not sessions_folder(house).exists()


def test_an_unknown_uuid_is_released_and_exit_1(house):
    done = house("session", "start", "--session", UUID.upper())
    assert done.returncode == 1
    assert UUID.encode() in done.stderr
    assert not list(sessions_folder(house).glob("*"))
    assert house.sessions() == []
    assert house("session", "status", "--session", UUID).returncode == 2


def test_without_a_ledger_or_outside_git_nothing_begins(house, tmp_path):
    assert house("session", "start", *PLAN, cwd=tmp_path).returncode == 1
    bare = tmp_path / "other"
    bare.mkdir()
    house.git("init", "-q", cwd=bare)
    done = house("session", "start", *PLAN, cwd=bare)
    assert done.returncode == 2
    assert b"gatebook init" in done.stderr


def test_a_plan_may_be_a_file_and_is_kept_to_the_letter(house, tmp_path):
    plan = tmp_path / "plan.md"
    text = (
        "# Plan\n\n## Context\n\nfake section\n\n## Review History\n\n```\n## Session Metadata\n```\n- last"
    )
    plan.write_text(text + "\n")
    started = house.ok("session", "start", "--plan", str(plan), "--title", "T", "--description", "Why.")
    assert started["session"] == started["session"].lower()
    view = house.view()
    assert f"- Source: user-supplied\n\n{text}\n" in view
    assert "User-supplied plan; no planning-phase context captured.\n\nWhy." in view
    assert "Implementation matches the user-supplied plan in ## Approved Plan." in view
    house.ok("session", "end", "--owner", started["owner"])
    assert f"- Source: user-supplied\n\n{text}\n" in house.view()
    assert house.ok("session", "start", "--session", started["session"])["next"] == "round"


# --- the lock ---------------------------------------------------------------------------------------------


def lock_of(house, uuid):
    return json.loads((sessions_folder(house) / f"{uuid}.lock").read_text())


def test_the_detached_lock_follows_the_calling_agent(house):
    started = house.ok("session", "start", *PLAN, "--stop-after", "before-docs", process=True)
    lock = lock_of(house, started["session"])
    assert lock["pid"] == os.getpid()
    assert {
        "pid",
        "started_at",
        "entry_point",
        "stop_after",
        "host",
        "process_start",
        "claim_nonce",
    } <= lock.keys()
    assert (lock["entry_point"], lock["stop_after"]) == ("execute-from-plan", "before-docs")
    log = (house.root / ".gatebook/ledger.db").read_bytes()
    assert started["owner"].encode() not in log
    house.ok("session", "end", "--owner", started["owner"])
    assert not (sessions_folder(house) / f"{started['session']}.lock").exists()
    done = house("session", "end", "--owner", started["owner"])
    assert done.returncode == 5


def test_a_second_start_is_refused_while_the_first_owner_lives_and_does_not_read_the_file(house):
    started = house.ok("session", "start", *PLAN, process=True)
    (sessions_folder(house) / f"{started['session']}.md").write_bytes(b"\xff broken")
    done = house("session", "start", "--session", started["session"])
    assert done.returncode == 5
    assert f"pid {os.getpid()} since 20".encode() in done.stderr
    assert house("session", "start", "--session", started["session"], "--recover-lock").returncode == 5


def dead_pid():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def rewrite_lock(house, uuid, **changes):
    path = sessions_folder(house) / f"{uuid}.lock"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def start_under(house, *flags):
    """Start with an owner that is dead when this returns."""
    child = subprocess.Popen(["sleep", "60"])
    try:
        return house.ok("session", "start", *flags, "--owner-pid", str(child.pid))
    finally:
        child.kill()
        child.wait()


def test_a_dead_owners_lock_is_recovered_by_the_flag_and_the_old_token_is_fenced_out(house):
    started = start_under(house, *PLAN)
    uuid = started["session"]
    done = house("session", "start", "--session", uuid)
    assert done.returncode == 4
    assert b"--recover-lock" in done.stderr
    again = house.ok("session", "start", "--session", uuid, "--recover-lock")
    assert again["fence"] == started["fence"] + 1
    assert "session.lock_recovered" in house.types(uuid)
    done = house("round", "start", "--owner", started["owner"])
    assert done.returncode == 5
    assert house.ok("round", "start", "--owner", again["owner"])["round"] == 1


def test_a_recycled_pid_is_not_taken_for_the_owner(house):
    """The log and the lock file name this very process' number, but an earlier start time."""
    started = start_under(house, *PLAN)
    uuid = started["session"]
    code = """
import sys
from commands.sessions import owner
real = owner._start_of
owner._start_of = lambda pid: "1" if pid == {pid} else real(pid)
from commands.entry import run
sys.exit(run(sys.argv[1:]))
"""
    # Play an operating system that has given the dead owner's number to somebody else meanwhile.
    pid = lock_of(house, uuid)["pid"]
    done = subprocess.run(
        [sys.executable, "-c", code.format(pid=pid), "session", "start", "--session", uuid, "--recover-lock"],
        cwd=house.root, env=house.environment, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("changes", "code"), [({"host": "elsewhere"}, 5), ({"pid_namespace": "pid:[1]"}, 5)])
def test_a_lock_of_another_host_or_namespace_counts_as_alive_until_recovered(house, changes, code):
    uuid = house.ok("session", "start", *PLAN)["session"]
    lock = lock_of(house, uuid)
    # An older tool's lock of a session that is not locked in our log.
    other = "11111111-2222-3333-4444-555555555555"
    path = sessions_folder(house) / f"{other}.lock"
    path.write_text(json.dumps({**lock, "claim_nonce": "", **changes}))
    (sessions_folder(house) / f"{other}.md").write_text(house.view(uuid))
    assert house("session", "start", "--session", other).returncode == code
    assert house("session", "start", "--session", other, "--recover-lock").returncode == 0


@pytest.mark.parametrize(
    "body", ["pid: {pid}\nstarted_at: 2026-01-01T00:00:00Z\nentry_point: plan\nstop_after: delivery\n",
             "- pid: {pid}\n", "pid={pid}\n", "PID: {pid}\n", "{pid}\n", '{{"pid": {pid}, "started_at": "x"}}']
)  # fmt: skip
def test_an_older_tools_lock_is_respected_in_its_forms(house, body):
    started = house.ok("session", "start", *PLAN)
    house.ok("session", "end", "--owner", started["owner"])
    path = sessions_folder(house) / f"{started['session']}.lock"
    path.write_text(body.format(pid=os.getpid()))
    assert house("session", "start", "--session", started["session"]).returncode == 5
    path.write_text(body.format(pid=dead_pid()))
    assert house("session", "start", "--session", started["session"]).returncode == 4
    assert house("session", "start", "--session", started["session"], "--recover-lock").returncode == 0


def test_of_many_starts_at_once_one_wins(house):
    started = house.ok("session", "start", *PLAN)
    house.ok("session", "end", "--owner", started["owner"])
    command = [sys.executable, "-m", "commands", "session", "start", "--session", started["session"]]
    children = [
        subprocess.Popen(
            command,
            cwd=house.root,
            env=house.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(6)
    ]
    codes = sorted(child.wait(60) for child in children)
    assert codes == [0, 5, 5, 5, 5, 5]
    assert house.types().count("session.locked") == 2


def test_a_claim_without_its_event_is_redone(house):
    started = house.ok("session", "start", *PLAN)
    lock = (sessions_folder(house) / f"{started['session']}.lock").read_text()
    house.ok("session", "end", "--owner", started["owner"])
    path = sessions_folder(house) / f"{started['session']}.lock"
    path.write_text(
        json.dumps({**json.loads(lock), "claim_nonce": "ab" * 16, "pid": dead_pid(), "process_start": "1"})
    )
    assert house("session", "start", "--session", started["session"]).returncode == 0


def test_a_token_of_another_session_or_form_is_refused(house):
    started = house.ok("session", "start", *PLAN)
    for token, code in (
        ("x", 2),
        (f"{UUID}.{'0' * 32}", 5),
        (started["owner"][:-1], 2),
        (started["owner"][:-1] + "z", 2),
    ):
        assert house("round", "start", "--owner", token).returncode == code
    assert house("round", "start").returncode == 2


# --- drift ------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(house):
    """A session stopped after an approved round: src/a.py is dirty."""
    assert house.run(*PLAN, "--stop-after", "before-polish").returncode == 0
    return house


DRIFTS = {
    "newly-dirty": lambda h: h.write("new.txt", "n\n"),
    "content-or-deletion-changed": lambda h: h.write("src/a.py", "x = 77\n"),
    "reverted-externally": lambda h: h.git("checkout", "-q", "--", "src/a.py"),
    "external-head": lambda h: h.git("commit", "-qam", "foreign"),
    "config-changed": lambda h: h.config("skip_quality_polish: true\n"),
}


@pytest.mark.parametrize("reason", sorted(DRIFTS))
def test_drift_stops_until_it_is_accepted(stopped, reason):
    house = stopped
    uuid = house.uuid()
    DRIFTS[reason](house)
    before = house.view()
    for flags in ((), ("--handsfree",)):
        done = house("session", "start", "--session", uuid, *flags)
        assert done.returncode == 4
        assert f"drift: {reason}".encode() in done.stderr
        assert house.sessions()[0]["completed_stages"] == ["exec"]
        assert house.sessions()[0]["locked_by"] is None
        assert house.view() == before
    started = house.ok("session", "start", "--session", uuid, "--accept-external-state")
    assert (started["completed_stages"], started["next"]) == ([], "round")
    head = house.git("rev-parse", "HEAD").decode().strip()
    assert f"- base_head: {head}\n" in house.view()
    assert f"- last_verified_head: {head}\n" in house.view()
    assert house.types()[-2:] == ["drift.detected", "drift.accepted"]


def test_unmerged_paths_are_an_error_that_no_flag_answers(stopped):
    house = stopped
    house.git("stash", "-q")
    house.git("checkout", "-q", "-b", "side")
    house.write("README.md", "side\n")
    house.git("commit", "-qam", "side")
    house.git("checkout", "-q", "main")
    house.write("README.md", "main\n")
    house.git("commit", "-qam", "main")
    house.git("merge", "-q", "side", check=False)
    done = house("session", "start", "--session", house.uuid(), "--accept-external-state")
    assert done.returncode == 1
    assert b"unmerged: README.md" in done.stderr
    assert house.sessions()[0]["locked_by"] is None


def test_the_log_says_who_accepted_drift(stopped):
    house = stopped
    house.write("new.txt", "n\n")
    house.ok("session", "start", "--session", house.uuid(), "--accept-external-state")
    accepted = [event for event in house.events() if event.type == "drift.accepted"][0]
    assert json.loads(accepted.data)["answered_by"] == "flag"


# --- files of other tools ---------------------------------------------------------------------------------

FOREIGN = """# Session notes

## Problem Description

The lock is lost.

## Context

- odd   spacing	and tabs
## Acceptance Criteria
None yet.

## Current Phase

execution

## Approved Plan

- Source: reviewer-approved

### Steps
1. Fix it.

## My Own Section

kept   exactly

## Review History

### Round 1
- by the older tool

## Files Changed

## Key Related Files

## Timing Log

| step | t |
|---|---|

## Session Metadata
- entry_point: review-loop
- plan_source: reviewer-approved
- base_head: {head}
- base_dirty: {{}}
- last_verified_head: {head}
- last_verified_dirty: {dirty}
- session_commits: []
- completed_stages: [exec, polish]  # set
- delivery_blocked_by: null
"""


def foreign(house, text=None, dirty="{}", drop=()):
    head = house.git("rev-parse", "HEAD").decode().strip()
    made = (text or FOREIGN).format(head=head, dirty=dirty)
    for name in drop:
        made = re.sub(rf"- {name}:.*\n", "", made)
    sessions_folder(house).mkdir(parents=True, exist_ok=True)
    (sessions_folder(house) / f"{UUID}.md").write_text(made)
    return made


def test_a_file_of_the_older_tool_resumes_and_keeps_its_text(house):
    before = foreign(house)
    started = house.ok("session", "start", "--session", UUID)
    assert (started["completed_stages"], started["next"]) == (["exec", "polish"], "docs project-docs")
    assert started["entry_point"] == "review-loop"
    house.ok("session", "end", "--owner", started["owner"])
    after = house.view(UUID)
    head, _, _ = before.partition("## Session Metadata")
    assert after.startswith(head)
    done = house.run("--session", UUID)
    assert done.returncode == 0, done.stderr.decode()
    text = house.view(UUID)
    for kept in (
        "# Session notes\n",
        "- odd   spacing\tand tabs\n## Acceptance Criteria",
        "## My Own Section\n\nkept   exactly\n",
        "- by the older tool",
    ):
        assert kept in text
    assert text.rindex("## Session Metadata") > text.rindex("## Timing Log")


def test_lines_of_others_in_the_metadata_are_read_over_and_kept(house):
    text = FOREIGN.replace("- plan_source", "- created_at: 2026-01-01\n- plan_source") + "- tool: x\n"
    foreign(house, text.replace("- base_dirty", "- note: base\n- base_dirty"))
    started = house.ok("session", "start", "--session", UUID)
    house.ok("round", "start", "--owner", started["owner"])
    metadata = house.view(UUID).partition("## Session Metadata")[2]
    assert metadata.endswith(
        "- delivery_blocked_by: null\n- created_at: 2026-01-01\n- note: base\n- tool: x\n"
    )
    house.ok("session", "end", "--owner", started["owner"])
    house.ok("session", "start", "--session", UUID)


def test_a_baseline_field_without_a_value_is_missing(house):
    foreign(house, re.sub(r"- base_head:.*", "- base_head: null", FOREIGN))
    done = house("session", "start", "--session", UUID)
    assert (done.returncode, b"missing-baseline" in done.stderr) == (4, True)


def test_a_foreign_file_with_other_line_ends_is_read(house):
    text = FOREIGN.replace("\n", "\r\n").replace("## Review History", "## Review History  ")
    head = house.git("rev-parse", "HEAD").decode().strip()
    made = text.format(head=head, dirty="{}")
    sessions_folder(house).mkdir(parents=True)
    path = sessions_folder(house) / f"{UUID}.md"
    path.write_bytes(made.encode())
    started = house.ok("session", "start", "--session", UUID)
    assert (started["plan_source"], started["completed_stages"]) == ("reviewer-approved", ["exec", "polish"])
    before, _, _ = made.partition("## Session Metadata")
    assert path.read_bytes().decode().startswith(before)


def test_rounds_of_a_foreign_review_only_session_go_on_with_an_executor(house):
    text = FOREIGN.replace("- Source: reviewer-approved", "- Source: review-only").replace(
        "completed_stages: [exec, polish]", "completed_stages: []"
    )
    foreign(house, text)
    started = house.ok("session", "start", "--session", UUID)
    assert started["plan_source"] == "review-only"
    begun = house.ok("round", "start", "--owner", started["owner"])
    assert (begun["round"], begun["executor"]) == (2, True)


def test_a_foreign_file_over_a_changed_tree_is_drift(house):
    foreign(house)
    house.write("src/a.py", "x = 5\n")
    done = house("session", "start", "--session", UUID)
    assert (done.returncode, b"drift: newly-dirty" in done.stderr) == (4, True)
    assert house("session", "start", "--session", UUID, "--accept-external-state").returncode == 0


def test_a_foreign_dirty_map_is_compared(house):
    house.write("src/a.py", "x = 5\n")
    sha = house.git("hash-object", "src/a.py").decode().strip()
    foreign(house, dirty=json.dumps({"src/a.py": sha}))
    assert house.ok("session", "start", "--session", UUID)["completed_stages"] == ["exec", "polish"]


@pytest.mark.parametrize(
    "field", ["base_head", "base_dirty", "last_verified_head", "last_verified_dirty", "session_commits"]
)
def test_a_missing_baseline_field_is_asked_about(house, field):
    before = foreign(house, drop=[field])
    for flags in ((), ("--handsfree",)):
        done = house("session", "start", "--session", UUID, *flags)
        assert (done.returncode, b"missing-baseline" in done.stderr) == (4, True)
        assert house.view(UUID) == before
    started = house.ok("session", "start", "--session", UUID, "--accept-external-state")
    assert started["completed_stages"] == []
    accepted = [json.loads(event.data) for event in house.events(UUID) if event.type == "drift.accepted"][0]
    assert (accepted["reason"], accepted["answered_by"]) == ("missing-baseline", "flag")
    assert f"- {field}:" in house.view(UUID)


def test_other_missing_fields_have_defaults(house):
    foreign(house, drop=["plan_source", "completed_stages", "delivery_blocked_by", "entry_point"])
    started = house.ok("session", "start", "--session", UUID)
    assert (started["plan_source"], started["completed_stages"]) == ("reviewer-approved", [])
    assert started["entry_point"] == "execute-from-session"


def test_a_plan_without_a_source_is_invalid(house):
    foreign(house, FOREIGN.replace("- Source: reviewer-approved\n", ""))
    done = house("session", "start", "--session", UUID)
    assert (done.returncode, b"Source" in done.stderr) == (1, True)
    assert not list(sessions_folder(house).glob("*.lock"))


def test_a_foreign_block_is_asked_about(house):
    foreign(house, FOREIGN.replace("delivery_blocked_by: null", 'delivery_blocked_by: "user-abort"'))
    assert house("session", "start", "--session", UUID).returncode == 4
    assert house.ok("session", "start", "--session", UUID, "--continue")["delivery_blocked_by"] is None


def test_abort_never_goes_on(house):
    started = house.ok("session", "start", *PLAN)
    house.ok("session", "end", "--owner", started["owner"])
    done = house.run("--session", started["session"], "--abort")
    assert (done.returncode, b"not blocked" in done.stderr) == (4, True)
    assert "round.started" not in house.types()
    assert not list(sessions_folder(house).glob("*.lock"))


def test_our_sections_changed_by_somebody_else_are_refused_theirs_are_kept(house):
    assert house.run(*PLAN, "--stop-after", "before-polish").returncode == 0
    uuid = house.uuid()
    path = sessions_folder(house) / f"{uuid}.md"
    text = path.read_text()
    path.write_text(text.replace("## Files Changed", "## Ours\n\nx\n\n## Files Changed"))
    assert house.run("--session", uuid, "--stop-after", "before-docs").returncode == 0
    assert "## Ours\n\nx\n\n## Files Changed" in path.read_text()
    path.write_text(
        path.read_text().replace(
            'completed_stages: ["exec", "polish"]', 'completed_stages: ["exec", "polish", "docs"]'
        )
    )
    done = house("session", "start", "--session", uuid)
    assert done.returncode == 4
    assert b"doctor --adopt" in done.stderr
    assert house.sessions()[0]["completed_stages"] == ["exec", "polish"]


def test_a_missing_or_lagging_file_is_written_again(house):
    assert house.run(*PLAN, "--stop-after", "exec-round").returncode == 0
    uuid = house.uuid()
    path = sessions_folder(house) / f"{uuid}.md"
    early = path.read_text()
    assert house.run("--session", uuid, "--stop-after", "before-docs").returncode == 0
    late = path.read_text()
    for state in (early, None):
        path.unlink()
        if state is not None:
            path.write_text(state)
        started = house.ok("session", "start", "--session", uuid)
        assert (
            path.read_text().partition("## Session Metadata")[0] == late.partition("## Session Metadata")[0]
        )
        house.ok("session", "end", "--owner", started["owner"])


def test_a_link_in_place_of_our_folder_is_refused(house, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (house.root / ".review-loop").mkdir()
    os.symlink(outside, house.root / ".review-loop/sessions")
    assert house("session", "start", *PLAN).returncode != 0
    assert not list(outside.iterdir())


def test_the_agents_reports_are_scanned_for_credentials(house):
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    house.script(
        executor=[
            {"write": {"src/a.py": "x = 2\n"}, "say": did("src/a.py", "")["say"].replace("Look.", token)},
            NOOP,
        ]
    )
    done = house.run(*PLAN)
    assert done.returncode == 4
    assert b"credential" in done.stderr
    assert token.encode() not in (house.root / ".gatebook/ledger.db").read_bytes()


def test_where_the_policy_wants_a_signature_drift_is_accepted_only_signed(house, tmp_path):
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    signers = tmp_path / "signers"
    public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
    signers.write_text(f"# types: drift.accepted\nme@example.org {public}\n")
    import shutil

    shutil.rmtree(house.root / ".gatebook")
    made = house("init", "--signers", str(signers), "--single-key")
    assert made.returncode == 0, made.stderr
    assert house.run(*PLAN, "--stop-after", "before-polish").returncode == 0
    uuid = house.uuid()
    house.write("new.txt", "n\n")
    start = ("session", "start", "--session", uuid, "--accept-external-state")
    done = house(*start)
    assert (done.returncode, b"--sign" in done.stderr) == (4, True)
    assert house(*start, "--sign", "--key", str(other)).returncode == 4
    refused = house("log", "--type", "admission.refused", "--json").stdout.splitlines()
    assert [json.loads(one)["data"]["type"] for one in refused] == ["drift.accepted"] * 2
    assert house.sessions()[0]["completed_stages"] == ["exec"]
    started = house.ok(*start, "--sign", "--key", str(key))
    accepted = [json.loads(event.data) for event in house.events() if event.type == "drift.accepted"][0]
    assert (accepted["answered_by"], accepted["principal"]) == ("signature", "me@example.org")
    assert house("replay").returncode == 0
    house.ok("session", "end", "--owner", started["owner"])
    _accept_by_a_signature_from_elsewhere(house, start, key, tmp_path / "drift")


def _accept_by_a_signature_from_elsewhere(house, start, key, statement):
    """The statement is of the drift as it stands: with another one, or a start in between, it is none."""

    def signed():
        house.write("new.txt", os.urandom(4).hex())
        done = house(*start, "--statement-out", str(statement))
        assert (done.returncode, b"ssh-keygen -Y sign" in done.stderr) == (4, True), done.stderr
        Path(f"{statement}.sig").unlink(missing_ok=True)
        subprocess.run(
            ["ssh-keygen", "-Y", "sign", "-q", "-n", "gatebook", "-f", str(key), str(statement)], check=True
        )

    brought = ("--statement", str(statement), "--signature", f"{statement}.sig")
    signed()
    house.write("new.txt", "something else\n")
    assert b"tree differs" in house(*start, *brought).stderr
    signed()
    assert house(*start).returncode == 4
    assert b"fence differs" in house(*start, *brought).stderr
    signed()
    assert house(*start, *brought, "--sign").returncode == 2
    house.ok(*start, *brought)
    accepted = [json.loads(event.data) for event in house.events() if event.type == "drift.accepted"][-1]
    assert (accepted["answered_by"], accepted["principal"]) == ("signature", "me@example.org")
    assert house("replay").returncode == 0


@pytest.mark.parametrize(
    ("place", "fits"),
    [
        ("drift", False),
        ("src/drift", False),
        ("half.txt", False),
        ("out/drift", True),
        (".review-loop/tmp/drift", True),
        ("../drift", True),
    ],
)
def test_a_statement_in_the_tree_that_it_is_about_would_never_be_of_it(house, place, fits):
    house.write(".gitignore", "out/\nhalf.txt\n")
    done = house("session", "start", "--session", str(uuid4()), "--statement-out", place)
    assert (done.returncode, b"would be a change itself" in done.stderr) == (
        (1, False) if fits else (2, True)
    )


def test_a_session_with_redacted_content_goes_on(house):
    assert house.run(*PLAN, "--stop-after", "before-polish").returncode == 0
    uuid = house.uuid()
    for event in house.events(uuid):
        if event.content is not None:
            assert house("redact", str(event.seq), "--reason", "test").returncode == 0
    done = house("session", "start", "--session", uuid)
    assert (done.returncode, b"missing-baseline" in done.stderr) == (4, True)
    done = house.run("--session", uuid, "--accept-external-state")
    assert done.returncode == 0, done.stderr.decode()
    assert house.sessions()[0]["delivered"]
    assert house("replay").returncode == 0


def at_a_terminal(house, answer, *args):
    """Run a command at a terminal and type `answer`; (exit code, what the terminal showed)."""
    import pty

    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "commands", *args], cwd=house.root, env=house.environment, stdin=theirs,
        stdout=subprocess.DEVNULL, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, answer.encode())
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    return child.wait(60), shown.decode()


def test_a_person_at_a_terminal_answers_drift(stopped):
    house = stopped
    house.write("new.txt", "n\n")
    code, shown = at_a_terminal(house, "what?\nb\n", "session", "start", "--session", house.uuid())
    assert (code, shown.count("[a/b]")) == (4, 2)
    assert "drift: newly-dirty" in shown
    code, _ = at_a_terminal(house, "A\n", "session", "start", "--session", house.uuid())
    assert code == 0
    accepted = [json.loads(event.data) for event in house.events() if event.type == "drift.accepted"][0]
    assert accepted["answered_by"] == "person"


def test_handsfree_asks_nobody_even_at_a_terminal(stopped):
    house = stopped
    house.write("new.txt", "n\n")
    code, shown = at_a_terminal(house, "a\n", "session", "start", "--session", house.uuid(), "--handsfree")
    assert (code, "[a/b]" in shown) == (4, False)


def test_a_person_recovers_a_dead_owners_lock(house):
    uuid = start_under(house, *PLAN)["session"]
    code, shown = at_a_terminal(house, "n\n", "session", "start", "--session", uuid)
    assert (code, "[y/n]" in shown) == (4, True)
    assert at_a_terminal(house, "y\n", "session", "start", "--session", uuid)[0] == 0
