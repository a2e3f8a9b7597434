"""`dispatch run`: the loop from a request to its complete result, and every way in which it ends."""

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from bench import DONE, ROOT, assert_complete

OUTAGE = """
    print(json.dumps({"status": "availability_failure", "reason": REASON}))
    sys.exit(75)
"""


def outage(reason="quota", **more):
    return (
        f"print({json.dumps({'status': 'availability_failure', 'reason': reason, **more})!r}); sys.exit(75)"
    )


def test_a_proven_outcome_is_accepted_with_every_field(bench):
    bench.repository()
    code, result = bench.run(bench.request(), DONE)
    assert_complete(result)
    assert code == 0
    assert result["status"] == "accepted"
    assert result["route"] == {
        "requested": "taste", "actual_model": "claude-a", "effort": "high", "provider": "anthropic", "executor": "native",
        "resolution": "primary", "attempted": ["claude-a@high"], "fallback_reason": "",
    }  # fmt: skip
    assert result["artifacts"]["files"] == ["out.txt"]
    report = result["artifacts"]["report"]
    with open(report) as file:
        assert file.read() == "I did it.\n"
    assert stat.S_IMODE(os.stat(os.path.dirname(report)).st_mode) == 0o700
    assert result["evidence"]["outcome"] == "proven"
    assert [target["path"] for target in result["evidence"]["fixed_target"]] == ["out.txt"]
    [check] = result["evidence"]["checks"]
    assert (check["exit"], check["passed"]) == (0, True)
    assert (
        result["telemetry"]["attempts"],
        result["telemetry"]["verification_failures"],
        result["blockers"],
    ) == (1, 0, [])
    assert bench.types() == [
        "dispatch.requested", "route.selected", "dispatch.attempted", "dispatch.returned", "dispatch.verified", "dispatch.concluded",
    ]  # fmt: skip


def test_a_full_temporary_directory_loses_no_result(bench, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", "/dev/null/none")
    code, result = bench.run(bench.request(), DONE)
    assert_complete(result)
    assert (code, result["status"], result["artifacts"]["report"]) == (0, "accepted", "I did it.\n")


def test_a_ledger_that_cannot_be_locked_still_gives_a_complete_result(bench):
    (bench.work / ".gatebook" / "dispatch.lock").mkdir()
    code, result = bench.run(bench.request(), DONE)
    assert_complete(result)
    assert (code, result["status"], result["route"]["requested"]) == (4, "blocked", "taste")
    assert "dispatch.lock: Is a directory" in result["blockers"][0]


def test_a_ledger_that_is_refused_or_damaged_still_gives_a_complete_result(bench, monkeypatch):
    """The caller reads stdout, whatever stands in the way."""
    monkeypatch.setenv("XDG_STATE_HOME", str(bench.folder / "another machine"))
    code, result = bench.run(bench.request(), DONE)
    assert_complete(result)
    assert (code, result["status"], len(result["blockers"])) == (4, "blocked", 1)
    assert "found, not chosen" in result["blockers"][0]
    (bench.work / ".gatebook" / "ledger.db").write_bytes(b"garbage")
    monkeypatch.setenv("GATEBOOK_LEDGER", ".gatebook")
    code, result = bench.run(bench.request(), DONE)
    assert_complete(result)
    assert (code, result["status"]) == (3, "blocked")
    assert "not a readable ledger" in result["blockers"][0]


def test_a_malformed_request_that_cannot_be_recorded_still_gives_a_complete_result(bench, monkeypatch):
    assert bench.gatebook("export", "--out", bench.folder / "e.jsonl")[0] == 0
    assert bench.gatebook("import", bench.folder / "e.jsonl", "--to", bench.folder / "archive")[0] == 0
    monkeypatch.setenv("GATEBOOK_LEDGER", str(bench.folder / "archive"))
    code, result = bench.run(bench.request(outcome=...))
    assert_complete(result)
    assert (code, result["status"], result["route"]["requested"]) == (4, "blocked", "taste")
    assert "read-only" in result["blockers"][0]


def test_the_worker_gets_the_packet_and_the_directory_exactly_as_given(bench):
    link = bench.folder / "link"
    link.symlink_to(bench.work)
    request = bench.request(
        authority={"working_directory": str(link), "allowed_paths": ["."], "tools": ["git"]},
        context={"state": "half way", "files": ["a.txt"]}, constraints=["be brief"],
    )  # fmt: skip
    keep = bench.folder / "packet.json"
    bench.run(
        request,
        f"packet['cwd'] = os.environ.get('PWD'); json.dump(packet, open({str(keep)!r}, 'w'))"
        "\nopen('out.txt', 'w').write('done')",
    )
    packet = json.loads(keep.read_text())
    assert packet["authority"]["working_directory"] == str(link)
    assert set(packet) - {"cwd"} == {
        "outcome", "current_state", "relevant_files", "constraints", "verification_seam", "authority", "expected_return_shape", "model", "effort",
        "context_mode",
    }  # fmt: skip
    assert (packet["model"], packet["effort"], packet["context_mode"]) == ("claude-a", "high", "fresh")
    assert "route" in packet["expected_return_shape"]


def test_empty_optional_fields_are_not_in_the_packet(bench):
    code, reply = bench.run(bench.request())
    assert set(reply["packet"]) == {
        "outcome",
        "verification_seam",
        "authority",
        "expected_return_shape",
        "model",
        "effort",
        "context_mode",
    }


def test_model_and_effort_are_filled_into_the_command(bench):
    command = f"{sys.executable} -c \"import sys; sys.stdin.read(); open('out.txt','w').write('done '+' '.join(sys.argv[1:]))\" {{model}} x-{{effort}}"
    code, result, _ = bench.gatebook(
        "dispatch",
        "run",
        bench.write(bench.request()),
        "--rubric",
        bench.rubric,
        "--native-provider",
        "anthropic",
        "--native",
        command,
    )
    assert code == 0
    assert (bench.work / "out.txt").read_text() == "done claude-a x-high"


def test_an_outage_opens_the_circuit_and_the_next_candidate_finishes(bench):
    bench.executor("gemini", DONE)
    code, result = bench.run(bench.request(), outage("rate_limit"))
    assert code == 0
    assert result["route"] == {
        "requested": "taste", "actual_model": "gem-c", "effort": "low", "provider": "google", "executor": "gemini", "resolution": "fallback",
        "attempted": ["claude-a@high", "gem-c@low"], "fallback_reason": "rate_limit",
    }  # fmt: skip
    assert bench.circuits()["anthropic|native"]["reason"] == "rate_limit"
    assert bench.types().count("dispatch.attempted") == 2


def test_each_ledger_names_the_other_by_id_and_hash(bench):
    from ledger.access import open_ledger

    bench.executor("gemini", DONE)
    bench.run(bench.request(), outage())
    project = open_ledger(str(bench.work / ".gatebook"))
    state = open_ledger(str(bench.folder / "state" / "gatebook" / "provider-health.json.gatebook"))
    try:
        [opened] = state.store.reader().of_type("circuit.opened", 9)
        stream, _, named = opened.correlation.partition("@")
        ledger_id, _, head = named.partition(":")
        assert ledger_id == project.id
        [attempted] = [event for event in project.store.reader().stream(stream) if event.hash.hex() == head]
        assert attempted.type == "dispatch.attempted"
        returned = next(fact for fact in bench.events() if fact.type == "dispatch.returned")
        assert (returned.data.state_ledger, returned.data.state_hash) == (state.id, opened.hash.hex())
    finally:
        project.close()
        state.close()


def test_a_quotas_reset_time_reaches_the_circuit(bench):
    bench.run(bench.request(), outage("quota", retry_at="2099-01-01T00:00:00Z"))
    assert bench.circuits()["anthropic|native"]["unavailable_until"] == "2099-01-01T00:00:00Z"


def test_an_exhausted_chain_is_blocked_with_all_that_was_attempted(bench):
    bench.executor("gemini", outage("authentication"))
    code, result = bench.run(bench.request(), outage("quota"))
    assert_complete(result)
    assert (code, result["status"]) == (4, "blocked")
    assert result["route"]["attempted"] == ["claude-a@high", "gem-c@low"]
    assert "no candidate left" in result["blockers"][0]
    assert bench.types()[-1] == "dispatch.blocked"


def test_a_missing_executor_leaves_the_inventory_and_no_circuit(bench):
    bench.executor("gemini", DONE)
    code, result = bench.run(bench.request(), "sys.exit(69)")
    assert code == 0
    assert result["route"]["attempted"] == ["gem-c@low"]
    assert result["route"]["fallback_reason"] == "missing_executor"
    assert bench.circuits() == {}


@pytest.mark.parametrize(
    ("native", "word"),
    [
        ("sys.exit(1)", "exit 1"), ("sys.exit(3)", "exit 3"), ("print('{\"status\":\"failed\"}'); sys.exit(1)", "exit 1"),
    ],
)  # fmt: skip
def test_a_failure_of_an_executor_that_answered_stops_and_closes_the_circuit(bench, native, word):
    bench.gatebook(
        "route",
        "record-failure",
        "--provider",
        "anthropic",
        "--executor",
        "native",
        "--reason",
        "rate_limit",
        "--now",
        "2020-01-01T00:00:00Z",
    )
    bench.executor("gemini", DONE)
    code, result = bench.run(bench.request(), native)
    assert (code, result["status"], result["route"]["attempted"]) == (1, "failed", ["claude-a@high"])
    assert word in result["blockers"][0]
    assert bench.circuits() == {}


@pytest.mark.parametrize(
    ("native", "ending"),
    [
        ("sys.exit(2)", "refused"), ("sys.exit(4)", "refused"), ("os.kill(os.getpid(), 9)", "killed"), ("os.kill(os.getppid(), 9); import time; time.sleep(30)", "killed"),
        ("sys.exit(75)", "failed"), ("print('{\"status\":\"availability_failure\",\"reason\":\"tired\"}'); sys.exit(75)", "failed"),
        ("print('{\"reason\":\"quota\"}'); sys.exit(75)", "failed"), ("print('quota exceeded'); sys.exit(75)", "failed"),
        ("import time; time.sleep(60)", "timed_out"),
    ],
)  # fmt: skip
def test_an_ending_that_proves_nothing_leaves_the_circuits_as_they_are(bench, native, ending):
    bench.gatebook(
        "route",
        "record-failure",
        "--provider",
        "anthropic",
        "--executor",
        "native",
        "--reason",
        "rate_limit",
        "--now",
        "2020-01-01T00:00:00Z",
    )
    before = bench.circuits()
    code, result = bench.run(bench.request(), native, more=["--timeout", "2"])
    assert (code, result["status"]) == (1, "failed")
    after = bench.circuits()
    assert after["anthropic|native"].pop("probe_claimed_at")  # the selection did take the probe
    before["anthropic|native"].pop("probe_claimed_at")
    assert after == before
    returned = next(fact for fact in bench.events() if fact.type == "dispatch.returned")
    assert (returned.data.status, returned.data.healthy) == (ending, False)


def test_a_command_that_is_not_there_was_not_started(bench):
    code, result, _ = bench.gatebook(
        "dispatch",
        "run",
        bench.write(bench.request()),
        "--rubric",
        bench.rubric,
        "--native-provider",
        "anthropic",
        "--native",
        "/no/such/program",
    )
    assert (code, result["status"], result["route"]["attempted"]) == (1, "failed", [])
    assert "not started" in result["blockers"][0]


def test_success_that_changed_nothing_is_a_failure(bench):
    code, result = bench.run(bench.request(), "print('All done, trust me.')")
    assert (code, result["status"]) == (1, "failed")
    assert result["blockers"] == ["out.txt did not change"]
    assert result["evidence"]["outcome"] == "unproven"


def test_every_artifact_must_change(bench):
    request = bench.request(artifacts=["out.txt", "second.txt"])
    assert bench.run(request, DONE)[1]["blockers"] == ["second.txt did not change"]


def test_read_only_work_needs_no_change(bench):
    (bench.work / "out.txt").write_text("done")
    request = bench.request(artifacts=[], authority={"allowed_paths": []})
    code, result = bench.run(request, "print('It says done.')")
    assert (code, result["artifacts"]["files"]) == (0, [])


def test_a_deleted_artifact_and_one_in_a_directory_are_changes(bench):
    (bench.work / "old").mkdir()
    (bench.work / "old" / "a.txt").write_text("x")
    request = bench.request(
        artifacts=["old", "new"],
        verification={"seam": "test ! -e old/a.txt && test -e new/b", "fixed_target": []},
    )
    assert bench.run(request, "os.remove('old/a.txt'); os.mkdir('new'); open('new/b', 'w').close()")[0] == 0


# -- verification -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verification", "word"),
    [
        ({"seam": "exit 3"}, "exited with 3, expected 0"),
        ({"seam": "true", "expected": {"exit": 1}}, "exited with 0, expected 1"),
        ({"seam": "echo other", "expected": {"contains": "this"}}, "the expected text is not"),
        ({"seam": ["no-such-program-at-all"]}, "without an exit status (missing)"),
        ({"seam": "kill -9 $$"}, "without an exit status (killed)"),
        ({"seam": "kill -9 $PPID; sleep 60"}, "without an exit status (killed)"),
        ({"seam": "sleep 60"}, "without an exit status (timed out)"),
        ({"seam": "exec yes"}, "without an exit status (timed out)"),
        ({"seam": "echo changed >> out.txt"}, "fixed_target changed"),
        ({"seam": "echo ghp_" + "a" * 36, "fixed_target": []}, "credential"),
        ({"seam": "printf 'ghp_%s' $(printf 'a%.0s' $(seq 36))"}, "credential"),
    ],
)  # fmt: skip
def test_a_seam_that_does_not_hold_proves_nothing(bench, verification, word):
    code, result = bench.run(bench.request(verification=verification), DONE, more=["--seam-timeout", "1"])
    if verification["seam"].__class__ is str and "echo ghp_" in verification["seam"]:
        assert (code, result["status"]) == (4, "blocked")  # the request itself carries it
        return
    assert_complete(result)
    assert (code, result["status"], result["evidence"]["outcome"]) == (1, "failed", "unproven")
    assert result["telemetry"]["verification_failures"] == 1
    assert word in result["blockers"][-1]
    assert "aaaa" not in json.dumps(result["evidence"]["checks"][0]["output"])


def test_a_flooding_seam_leaves_bounded_evidence(bench):
    verification = {"seam": "yes | head -c 3000000; echo the end", "expected": {"contains": "the end"}}
    code, result = bench.run(bench.request(verification=verification), DONE)
    [check] = result["evidence"]["checks"]
    assert code == 0
    assert len(check["output"]) == 4096
    assert check["output_size"] == 3_000_008


def test_a_worker_that_rewrites_the_check_itself_proves_nothing(bench):
    (bench.work / "check.sh").write_text("grep -q excellent out.txt\n")
    request = bench.request(verification={"seam": ["sh", "check.sh"]})
    code, result = bench.run(request, DONE + "\n    open('check.sh', 'w').write('exit 0')\n")
    assert (code, result["status"]) == (1, "failed")
    assert "the seam's own files changed" in result["blockers"][-1]


def test_a_check_that_the_work_must_change_may_change(bench):
    (bench.work / "check.sh").write_text("exit 1\n")
    request = bench.request(verification={"seam": "sh check.sh"}, artifacts=["out.txt", "check.sh"])
    assert bench.run(request, DONE + "\n    open('check.sh', 'w').write('exit 0')\n")[0] == 0


def test_an_expected_exit_and_text_are_asked_of_the_seam(bench):
    request = bench.request(
        verification={"seam": "cat out.txt; exit 7", "expected": {"exit": 7, "contains": "done"}}
    )
    assert bench.run(request, DONE)[0] == 0


# -- authority --------------------------------------------------------------------------------------------------------

GIT = "import subprocess\ndef git(*a): subprocess.run(['git', '-c', 'user.name=w', '-c', 'user.email=w@example.invalid', *a], check=True, capture_output=True)\nopen('out.txt','w').write('done')\n"


@pytest.mark.parametrize(
    ("deed", "violation", "tool"),
    [
        ("git('add', '.'); git('commit', '-qm', 'mine')", "commit", "git commit"),
        (
            "git('commit', '-q', '--allow-empty', '-m', 'mine'); git('reset', '-q', '--hard', 'HEAD~1'); open('out.txt','w').write('done')",
            "commit",
            "git commit",
        ),
        ("git('checkout', '-q', '-b', 'side')", "refs", "git branch"),
        ("git('branch', 'side')", "refs", "git branch"),
        ("git('tag', 'v1')", "refs", "git tag"),
        ("git('add', 'out.txt'); git('stash'); open('out.txt','w').write('done')", "stash", "git stash"),
        ("git('config', 'core.pager', 'evil')", "config", "git config"),
        ("open('.git/hooks/post-commit', 'w').write('#!/bin/sh')", "config", "git config"),
        ("open('.git/info/exclude', 'a').write('evil')", "config", "git config"),
        ("open('.git/info/attributes', 'a').write('evil')", "config", "git config"),
        (
            "open(os.path.expanduser('~/.gitconfig'), 'w').write('[core] pager = evil')",
            "config",
            "git config",
        ),
        ("git('push', '-q', 'origin', 'HEAD:refs/heads/new')", "push", "git push"),
        ("git('push', '-q', 'bare', 'HEAD:refs/heads/new')", "push", "git push"),
    ],
)
def test_what_nobody_granted_is_an_authority_failure_and_what_was_granted_is_not(
    bench, deed, violation, tool
):
    bench.repository()
    remote = bench.folder / "remote.git"
    bench.git("clone", "-q", "--bare", str(bench.work), str(remote))
    bench.git("remote", "add", "origin", str(remote))
    bench.git("config", "remote.bare.url", str(remote))  # without a fetch line a push leaves no trace here
    bench.git("fetch", "-q", "origin")
    code, result = bench.run(bench.request(), GIT + deed)
    assert (code, result["status"]) == (1, "failed")
    assert "authority failure" in result["blockers"][0]
    [returned] = [fact for fact in bench.events() if fact.type == "dispatch.returned"]
    assert (returned.data.status, returned.data.violation) == ("succeeded", violation)
    (bench.work / "out.txt").unlink(missing_ok=True)
    bench.git("reset", "-q")
    if "add', '.'" in deed or "checkout" in deed or "'new'" in deed:
        return  # what it did stands now; doing it again would do nothing
    granted = bench.request(authority={"tools": [tool]}, outcome="again")
    assert (
        bench.run(
            granted,
            GIT
            + deed.replace("side", "side2")
            .replace("v1", "v2")
            .replace("/new", "/new2")
            .replace("evil", "worse")
            .replace("#!/bin/sh", "#!/bin/bash"),
        )[1]["blockers"]
        == []
    )


def _inner(bench, how):
    """A repository with a commit inside the work tree: a plain clone, or a submodule."""
    inner = bench.folder / "inner" if how == "submodule" else bench.work / "inner"
    inner.mkdir()
    bench.git("-C", str(inner), "init", "-q")
    bench.git("-C", str(inner), "commit", "-q", "--allow-empty", "-m", "first")
    if how == "submodule":
        bench.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "inner")
        bench.git("commit", "-qm", "with a submodule")


@pytest.mark.parametrize("how", ["clone", "submodule"])
@pytest.mark.parametrize(
    ("deed", "violation", "tool"),
    [
        ("git('-C', 'inner', 'commit', '-q', '--allow-empty', '-m', 'mine')", "commit", "git commit"),
        ("git('-C', 'inner', 'tag', 'v1')", "refs", "git tag"),
        ("git('-C', 'inner', 'config', 'core.pager', 'evil')", "config", "git config"),
    ],
)
def test_a_repository_inside_the_work_tree_is_watched_like_it(bench, how, deed, violation, tool):
    bench.repository()
    _inner(bench, how)
    granted = bench.request(authority={"tools": [tool]}, outcome="granted")
    assert bench.run(granted, GIT + deed)[1]["blockers"] == []
    (bench.work / "out.txt").unlink()
    code, result = bench.run(bench.request(), GIT + deed.replace("v1", "v2").replace("evil", "worse"))
    assert (code, result["status"], result["artifacts"]["files"]) == (1, "failed", ["out.txt"])
    assert result["blockers"][0].endswith("in 'inner'")
    returned = [fact for fact in bench.events() if fact.type == "dispatch.returned"][-1]
    assert returned.data.violation == violation


def test_looking_at_an_inner_repository_is_no_change_and_a_new_one_is_a_file_like_others(bench):
    bench.repository()
    _inner(bench, "clone")
    looked = bench.run(bench.request(outcome="look"), GIT + "git('-C', 'inner', 'status')")[1]
    assert (looked["blockers"], looked["artifacts"]["files"]) == ([], ["out.txt"])
    (bench.work / "out.txt").unlink()
    made = bench.run(bench.request(), GIT + "git('init', '-q', 'new')")[1]
    assert (made["blockers"], made["artifacts"]["files"]) == ([], ["new/.git", "out.txt"])


def test_a_file_that_the_users_git_configuration_includes_is_part_of_it(bench):
    bench.repository()
    home = bench.folder / "home"
    (home / ".gitconfig").write_text("[include]\n path = more\n")
    (home / "more").write_text("[core]\n pager = cat\n")
    deed = f"open({str(home / 'more')!r}, 'a').write(' editor = evil')\n"
    result = bench.run(bench.request(), GIT + deed)[1]
    assert result["blockers"] == ["authority failure: the user's configuration or the rubric changed"]


def test_housekeeping_of_git_is_no_change_of_its_configuration(bench):
    """A commit that was granted may start it by itself; it writes `.git/info/refs`, `packed-refs` and packs."""
    bench.repository()
    code, result = bench.run(bench.request(), GIT + "git('gc', '-q'); git('update-server-info')")
    assert (code, result["blockers"]) == (0, [])
    assert (bench.work / ".git" / "info" / "refs").exists()


@pytest.mark.parametrize("place", ["kept.txt", "new.txt", "ignored/x", "sub/deep/y"])
def test_a_file_outside_the_allowed_paths_is_an_authority_failure(bench, place):
    bench.repository()
    bench.config("[native]\nenforces_paths = true\n")
    (bench.work / "ok").mkdir()
    request = bench.request(
        authority={"allowed_paths": ["ok"]},
        artifacts=["ok/out.txt"],
        verification={"seam": "grep -q done ok/out.txt", "fixed_target": []},
    )
    deed = f"os.makedirs(os.path.dirname({place!r}) or '.', exist_ok=True); open({place!r}, 'a').write('x')"
    code, result = bench.run(request, f"open('ok/out.txt','w').write('done')\n{deed}")
    assert (code, result["status"]) == (1, "failed")
    assert f"outside allowed_paths, the first '{place}'" in result["blockers"][0]


def test_read_only_means_that_nothing_changes(bench):
    (bench.work / "out.txt").write_text("done")
    code, result = bench.run(
        bench.request(artifacts=[], authority={"allowed_paths": []}), DONE.replace("done", "more")
    )
    assert (code, result["status"]) == (1, "failed")
    assert "outside allowed_paths" in result["blockers"][0]


def test_a_change_of_the_repository_around_the_working_directory_is_seen(bench):
    bench.repository()
    sub = bench.work / "sub"
    sub.mkdir()
    request = bench.request(authority={"working_directory": str(sub), "allowed_paths": [str(sub)]})
    code, result = bench.run(request, DONE + "\n    open('../kept.txt', 'w').write('x')\n")
    assert (code, result["status"]) == (1, "failed")


def test_an_outage_after_a_broken_authority_is_recorded_but_nobody_follows(bench):
    bench.repository()
    bench.executor("gemini", DONE)
    code, result = bench.run(bench.request(), GIT + "git('branch', 'side')\n" + outage())
    assert (code, result["status"], result["route"]["attempted"]) == (1, "failed", ["claude-a@high"])
    assert "anthropic|native" in bench.circuits()


def test_staging_an_allowed_file_is_no_failure(bench):
    bench.repository()
    assert bench.run(bench.request(), GIT + "git('add', 'out.txt')")[0] == 0


# -- crash, concurrency -----------------------------------------------------------------------------------------------


def start(bench, request, native):
    environment = {**os.environ, "PYTHONPATH": ROOT}
    command = [
        sys.executable, "-m", "commands", "dispatch", "run", bench.write(request), "--rubric", str(bench.rubric), "--native-provider", "anthropic",
        "--executors", "gemini", "--native", bench.program(native),
    ]  # fmt: skip
    return subprocess.Popen(
        command, cwd=bench.work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def wait_for(path):
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


SLOW = "open('begun', 'w').close()\nimport time\ntime.sleep(60)"


def test_a_killed_run_leaves_an_attempt_without_an_end_that_is_shown_and_not_repeated(bench):
    child = start(bench, bench.request(), SLOW)
    wait_for(bench.work / "begun")
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = bench.types()
    assert before[-1] == "dispatch.attempted"
    code, result = bench.run(bench.request(), DONE)
    assert_complete(result)
    assert (code, result["status"]) == (4, "blocked")
    assert "attempt 1 (claude-a@high) has no recorded end" in result["blockers"][0]
    assert bench.types() == before
    name = bench.events()[0].stream.partition("/")[2]
    code, result, _ = bench.gatebook(
        "dispatch", "conclude", name, "--status", "abandoned", "--reason", "the machine died"
    )
    assert (code, result["status"], result["blockers"]) == (1, "abandoned", ["the machine died"])
    assert bench.run(bench.request(), DONE)[0] == 0  # and the same request may be made anew


def test_a_repeatable_request_goes_on_after_a_crash(bench):
    child = start(bench, bench.request(repeatable=True), SLOW)
    wait_for(bench.work / "begun")
    child.send_signal(signal.SIGKILL)
    child.wait()
    code, result = bench.run(bench.request(repeatable=True), DONE)
    assert (code, result["telemetry"]["attempts"], result["route"]["attempted"]) == (0, 2, ["claude-a@high"])


def test_a_terminated_run_takes_its_worker_with_it(bench):
    child = start(
        bench, bench.request(), "open('begun', 'w').write(str(os.getpid()))\nimport time\ntime.sleep(60)"
    )
    wait_for(bench.work / "begun")
    time.sleep(0.1)
    worker = int((bench.work / "begun").read_text())
    child.send_signal(signal.SIGTERM)
    assert child.wait(20) == 143
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(worker)], capture_output=True, text=True
    ).stdout.strip()
    assert state == "" or state.startswith("Z")


def test_the_same_request_is_not_run_twice_at_once(bench):
    child = start(bench, bench.request(repeatable=True), SLOW)
    wait_for(bench.work / "begun")
    code, result, told = bench.gatebook(
        "dispatch",
        "run",
        bench.write(bench.request(repeatable=True), "second.json"),
        "--rubric",
        bench.rubric,
        "--native-provider",
        "anthropic",
    )
    child.kill()
    child.wait()
    assert_complete(result)
    assert (code, result["status"]) == (5, "blocked")
    assert "being run by another process" in result["blockers"][0]


def test_a_run_that_died_after_the_return_goes_on_with_the_verification(bench, monkeypatch):
    from commands.dispatch.work import Work

    def die(self, timeout):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Work, "verified", die)
        bench.gatebook(
            "dispatch",
            "run",
            bench.write(bench.request()),
            "--rubric",
            bench.rubric,
            "--native-provider",
            "anthropic",
            "--native",
            bench.program(DONE),
        )
    assert bench.types()[-1] == "dispatch.returned"
    code, result = bench.run(bench.request(), "raise SystemExit('must not run again')")
    assert (code, result["status"], result["telemetry"]["attempts"]) == (0, "accepted", 1)


def test_a_selection_that_a_crash_left_behind_is_followed(bench, monkeypatch):
    from commands.dispatch.work import Work

    with monkeypatch.context() as patch:
        patch.setattr(Work, "attempted", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        bench.gatebook(
            "dispatch",
            "run",
            bench.write(bench.request()),
            "--rubric",
            bench.rubric,
            "--native-provider",
            "anthropic",
            "--native",
            bench.program(DONE),
        )
    assert bench.run(bench.request(), DONE)[0] == 0
    assert bench.types().count("route.selected") == 1


def test_a_finished_request_may_be_made_again(bench):
    assert bench.run(bench.request(), DONE)[0] == 0
    assert bench.run(bench.request(), DONE.replace("done", "done twice"))[0] == 0
    assert bench.types().count("dispatch.requested") == 2
    assert len({fact.stream for fact in bench.events()}) == 1


def test_health_that_cannot_be_recorded_is_a_failure_with_an_end(bench):
    bench.executor("gemini", DONE)
    state = bench.folder / "health.json"
    spoil = f"open({str(state)!r}, 'w').write('not json')\n" + outage()
    code, result = bench.run(bench.request(), spoil, more=["--state", str(state)])
    assert (code, result["status"]) == (1, "failed")
    assert "provider health cannot be recorded" in result["blockers"][0]
    assert state.read_text() == "not json"


def test_the_users_configuration_and_the_projects_rubric_are_watched(bench):
    bench.repository()
    for deed in (
        "os.makedirs(os.path.expanduser(os.environ['XDG_CONFIG_HOME'] + '/gatebook'), exist_ok=True)\nopen(os.environ['XDG_CONFIG_HOME'] + '/gatebook/config.toml', 'w').write('# more')",
        "open('.gatebook/rubric.yaml', 'w').write('models: []')",
    ):
        code, result = bench.run(
            bench.request(outcome=deed[:20]),
            DONE + "\n" + "\n".join("    " + line for line in deed.splitlines()) + "\n",
        )
        assert (code, result["status"]) == (1, "failed")
        assert "configuration or the rubric changed" in result["blockers"][0]


def test_a_repository_that_git_cannot_read_is_not_worked_in(bench):
    bench.repository()
    (bench.work / ".git" / "HEAD").write_text("nonsense")
    code, result = bench.run(bench.request(), DONE)
    assert_complete(result)
    assert (code, result["status"]) == (4, "blocked")
    assert "cannot be watched" in result["blockers"][0]


@pytest.mark.parametrize(
    "deed",
    [
        "open('.git/HEAD', 'w').write('nonsense')",
        "import shutil; shutil.rmtree('.git')",
    ],
)
def test_a_repository_that_was_broken_meanwhile_is_an_authority_failure(bench, deed):
    bench.repository()
    code, result = bench.run(bench.request(), DONE + f"\n    {deed}\n")
    assert (code, result["status"]) == (1, "failed")
    assert "authority failure" in result["blockers"][0]


def test_files_with_odd_names_are_told_apart(bench):
    bench.repository()
    deed = "open(b'odd \\xff\\n\"name', 'w').close()"
    code, result = bench.run(bench.request(), DONE + f"\n    {deed}\n")
    assert code == 0
    assert len(result["artifacts"]["files"]) == 2


def test_a_blocked_context_mode_takes_no_probe(bench):
    bench.gatebook(
        "route",
        "record-failure",
        "--provider",
        "google",
        "--executor",
        "gemini",
        "--reason",
        "rate_limit",
        "--now",
        "2020-01-01T00:00:00Z",
    )
    bench.executor("gemini", DONE)
    assert bench.run(bench.request(route="other", context={"mode": "fork"}))[0] == 4
    assert bench.circuits()["google|gemini"]["probe_claimed_at"] is None


def test_the_review_of_the_rubric_is_judged_at_the_given_time(bench):
    bench.rubric.write_text(bench.rubric.read_text().split("reviewed")[0] + "reviewed: 2026-08-20\n")
    assert bench.run(bench.request(), DONE, more=["--now", "2026-08-25T12:00:00Z"])[0] == 0
    assert bench.run(bench.request(), DONE, more=["--now", "2026-09-25T12:00:00Z"])[1]["status"] == "blocked"


def test_health_kept_in_the_working_directory_is_not_the_workers_doing(bench):
    (bench.work / "out.txt").write_text("done")
    bench.executor("gemini", "print('it says done')")
    request = bench.request(artifacts=[], authority={"allowed_paths": []})
    code, result = bench.run(request, outage(), more=["--state", str(bench.work / "health.json")])
    assert (code, result["blockers"], result["artifacts"]["files"]) == (0, [], [])
    assert (bench.work / "health.json").exists()


@pytest.mark.parametrize(
    ("command", "status", "ending"),
    [
        ("cat > /dev/null; echo done > out.txt && echo fine", "accepted", "succeeded"),
        ("cat | grep -q claude-a && echo done > out.txt", "accepted", "succeeded"),
        ("echo $(echo done) {model} {effort} > out.txt", "accepted", "succeeded"),
        ("X=1; no-such-program-here", "failed", "not_started"),
        ("no-such-program-here", "failed", "not_started"),
        ("sh -c 'kill -9 $$'; exit $?", "failed", "killed"),
        ("sh -c 'kill -9 $$'", "failed", "killed"),
        ("exit 3;", "failed", "failed"),
        ("exit 4;", "failed", "refused"),
    ],
)
def test_any_command_line_is_a_native_executor(bench, command, status, ending):
    args = [
        "dispatch",
        "run",
        bench.write(bench.request()),
        "--rubric",
        bench.rubric,
        "--native-provider",
        "anthropic",
        "--native",
        command,
    ]
    _, result, _ = bench.gatebook(*args)
    returned = next(fact for fact in bench.events() if fact.type == "dispatch.returned")
    assert (result["status"], returned.data.status) == (status, ending)


def test_a_models_name_is_never_read_by_a_shell(bench):
    text = bench.rubric.read_text().replace("claude-a@high", "'$(touch evil)@high'")
    bench.rubric.write_text(text.replace("claude-a,", "'$(touch evil)',"))
    args = [
        "dispatch",
        "run",
        bench.write(bench.request()),
        "--rubric",
        bench.rubric,
        "--native-provider",
        "anthropic",
    ]
    _, result, _ = bench.gatebook(*args, "--native", "echo done {model} > out.txt")
    assert (result["status"], result["route"]["attempted"]) == ("failed", [])
    _, result, _ = bench.gatebook(*args, "--native", bench.program(DONE) + " {model}")
    assert result["status"] == "accepted"
    assert not (bench.work / "evil").exists()


SECRET = "'ghp_' + 'b' * 36"


@pytest.mark.parametrize(
    "deed",
    [
        f"print({SECRET})",
        f"open({SECRET}, 'w').close()",
        f"os.symlink('loop', 'out2'); os.remove('out.txt'); os.symlink('out.txt', 'out.txt'); print({SECRET})",
    ],
    ids=["report", "name", "loop"],
)
def test_whatever_a_worker_leaves_behind_its_attempt_has_an_end_without_secrets(bench, deed, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(bench.folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    bench.repository()
    code, result = bench.run(bench.request(), DONE + f"\n    {deed}\n")
    assert_complete(result)
    assert (code, result["status"]) == (1, "failed")
    assert bench.types()[-1] == "dispatch.concluded"
    secret = b"ghp_" + b"b" * 36
    assert secret not in json.dumps(result).encode()
    for folder, _, names in os.walk(bench.folder):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    assert secret not in file.read(), path


def test_a_file_name_like_a_credential_is_told_before_anybody_works(bench):
    (bench.work / ("ghp_" + "b" * 36)).touch()
    code, result = bench.run(bench.request(), DONE)
    assert (code, result["status"]) == (4, "blocked")
    assert "rename it" in result["blockers"][0]


def test_what_a_fixed_target_leads_to_is_fixed_too(bench):
    deed = "open('real.txt', 'w').write('done')\nos.symlink('real.txt', 'out.txt')"
    request = bench.request(verification={"seam": "echo more >> real.txt; grep -q done out.txt"})
    code, result = bench.run(request, deed)
    assert (code, result["status"]) == (1, "failed")
    assert "fixed_target changed" in result["blockers"][0]


def test_a_directory_that_went_away_after_the_return_is_told_with_the_result(bench, monkeypatch):
    import shutil

    from commands.dispatch.work import Work

    elsewhere = bench.folder / "elsewhere"
    elsewhere.mkdir()
    request = bench.request(authority={"working_directory": str(elsewhere), "allowed_paths": ["."]})
    with monkeypatch.context() as patch:
        patch.setattr(Work, "verified", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        bench.gatebook(
            "dispatch",
            "run",
            bench.write(request),
            "--rubric",
            bench.rubric,
            "--native-provider",
            "anthropic",
            "--native",
            bench.program(DONE),
        )
    shutil.rmtree(elsewhere)
    code, result = bench.run(request, DONE)
    assert_complete(result)
    assert (code, result["status"], result["route"]["attempted"]) == (4, "blocked", ["claude-a@high"])
    assert bench.types()[-1] == "dispatch.returned"
    name = bench.events()[0].stream.partition("/")[2]
    assert bench.gatebook("dispatch", "conclude", name, "--status", "abandoned")[1]["status"] == "abandoned"
