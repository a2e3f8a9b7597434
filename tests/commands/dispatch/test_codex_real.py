"""The adapter against the real Codex binary and a provider on loopback: what the wire really says, and what we make of it."""

import json
import os
import time

import pytest
from loopback import Provider, codex_home, command, error, free_port, message

from commands import entry
from commands.dispatch import codex_turn

pytestmark = pytest.mark.xdist_group("codex")


@pytest.fixture
def run(codex, tmp_path, capsys):
    """`codex dispatch` on a provider's answers: (exit code, reply, the report or None)."""
    work, prompt, report = tmp_path / "work", tmp_path / "prompt.md", tmp_path / "report.md"
    work.mkdir()
    prompt.write_text("Do it.")

    def run(*answers, sandbox="read-only", port=None, timeout="30"):
        with Provider(*(answers or ["silent"])) as provider:
            codex_home(os.environ["CODEX_HOME"], port or provider.port)
            code = entry.run([
                "codex", "dispatch", "--operation", "execute", "--cwd", str(work), "--sandbox", sandbox, "--approval", "never",
                "--model", "gpt-b", "--effort", "high", "--prompt", str(prompt), "--report", str(report),
                "--skip-git-repo-check", "--timeout", timeout,
            ])  # fmt: skip
        run.requests = provider.requests
        return code, json.loads(capsys.readouterr().out), report.read_text() if report.exists() else None

    run.work = work
    return run


def test_check_finds_the_real_binary(codex, capsys):
    assert entry.run(["codex", "check"]) == 0
    assert capsys.readouterr().out == '{"status":"available"}\n'


def test_a_turn_succeeds_and_the_report_holds_the_final_text_only(run):
    assert run(message("All done.\n")) == (0, {"status": "succeeded"}, "All done.\n")
    assert (run.requests[0]["model"], run.requests[0]["reasoning"]["effort"]) == ("gpt-b", "high")


def test_a_file_is_written_in_the_workspace_write_sandbox(run):
    answers = [command("echo made > made.txt", run.work), message("Written.")]
    code, _, report = run(*answers, sandbox="workspace-write")
    assert (code, report) == (0, "Written.")
    if "exited with code 0" not in json.dumps(run.requests[1]):
        pytest.skip("the sandbox of Codex cannot run here (no user namespaces)")
    assert (run.work / "made.txt").read_text() == "made\n"


def test_the_read_only_sandbox_writes_nothing(run):
    code, _, _ = run(command("echo made > made.txt", run.work), message("Tried."))
    assert code == 0
    assert list(run.work.iterdir()) == []


def test_workspace_write_does_not_reach_the_users_files(run, tmp_path, monkeypatch):
    # The directory above the working directory lies in /tmp here, which the sandbox leaves writable; home does not.
    home = os.path.expanduser("~")
    target = os.path.join(home, f".gatebook-test-{os.getpid()}")
    run(command(f"echo made > {target}", run.work), message("Tried."), sandbox="workspace-write")
    assert not os.path.exists(target)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (error(429, "rate_limited"), "rate_limit"),
        (error(429, "usage_limit_reached"), "quota"),
        (error(429, "insufficient_quota"), "quota"),
        (error(401, "auth"), "authentication"),
        (error(403, "auth"), "authentication"),
        (error(500, "server"), "provider_unavailable"),
        (error(503, "server"), "provider_unavailable"),
    ],
)
def test_an_outage_of_the_provider_is_typed(run, answer, reason):
    assert run(answer) == (75, {"status": "availability_failure", "reason": reason}, None)


def test_a_quota_with_a_reset_time_says_when(run):
    status, body = error(429, "usage_limit_reached")
    headers = {
        "x-codex-primary-used-percent": "100",
        "x-codex-primary-window-minutes": "300",
        "x-codex-primary-reset-at": "1900000000",
    }
    code, reply, _ = run((status, body, headers))
    assert (code, reply) == (
        75,
        {"status": "availability_failure", "reason": "quota", "retry_at": "2030-03-17T17:46:40Z"},
    )


def test_a_refused_connection_is_an_outage(run):
    assert run(port=free_port()) == (
        75,
        {"status": "availability_failure", "reason": "provider_unavailable"},
        None,
    )


@pytest.mark.parametrize(
    "answer", ["cut", error(400, "invalid_request"), error(404, "model_not_found"), message("")], ids=str
)
def test_every_other_failure_is_plain_and_changes_no_provider(run, answer):
    assert run(answer) == (1, {"status": "failed"}, None)


def test_a_provider_that_never_answers_meets_the_deadline(run):
    started = time.monotonic()
    assert run("silent", timeout="2") == (1, {"status": "failed"}, None)
    assert time.monotonic() - started < 10


def test_a_servers_approval_request_is_refused_and_the_turn_fails(run, monkeypatch):
    """The real server asks only when it may; the test lets it ask, the adapter's answer is what is tested."""
    plain = codex_turn.Server.request

    def asking(self, method, params):
        return plain(
            self, method, {**params, "approvalPolicy": "untrusted"} if "approvalPolicy" in params else params
        )

    monkeypatch.setattr(codex_turn.Server, "request", asking)
    refused = []
    plain_refuse = codex_turn._refuse
    monkeypatch.setattr(
        codex_turn,
        "_refuse",
        lambda server, asked, progress: (
            refused.append(asked["method"]),
            plain_refuse(server, asked, progress),
        ),
    )
    code, reply, report = run(
        command("touch made.txt", run.work), message("After all."), sandbox="workspace-write"
    )
    assert refused == ["item/commandExecution/requestApproval"]
    assert (code, reply, report) == (1, {"status": "failed"}, None)
    assert list(run.work.iterdir()) == []


def test_a_report_that_carries_a_credential_is_not_kept(run):
    assert run(message("the token is ghp_" + "a" * 36)) == (1, {"status": "failed"}, None)


def test_no_process_is_left_behind(run):
    import subprocess

    run("silent", timeout="1")
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    mine = [
        line
        for line in listed.splitlines()
        if "app-server" in line and os.environ["GATEBOOK_CODEX_BIN"] in line
    ]
    assert mine == []
