"""The chain with real programs: Codex's provider fails by type, its circuit opens, another finishes, one of 8 probes."""

import json
import os
import subprocess
import sys

import pytest
from bench import DONE, ROOT, Bench
from loopback import Provider, codex_home, command, error, message

pytestmark = pytest.mark.xdist_group("codex")


@pytest.fixture
def bench(codex, tmp_path, capsys, monkeypatch):
    found = Bench(tmp_path, capsys, monkeypatch)
    monkeypatch.setenv("GATEBOOK_CODEX_BIN", codex)
    found.repository()
    return found


def run(bench, document, *answers, more=()):
    with Provider(*answers) as provider:
        codex_home(os.environ["CODEX_HOME"], provider.port)
        done = bench.run(document, executors="codex,gemini", more=("--timeout", "30", *more))
        bench.requests = provider.requests
        return done


def test_codex_does_the_work_in_its_sandbox_and_the_result_is_proven(bench):
    answers = [command("printf done > out.txt", bench.work), message("I wrote it.")]
    code, result = run(bench, bench.request(route="default"), *answers)
    if "exited with code 0" not in json.dumps(bench.requests[1]):
        pytest.skip("the sandbox of Codex cannot run here (no user namespaces)")
    assert (code, result["status"], result["evidence"]["outcome"]) == (0, "accepted", "proven")
    assert result["route"]["executor"] == "codex"
    assert result["telemetry"]["token_or_quota_usage"] == "total 240 input 200 output 40"
    prompt = json.dumps(bench.requests[0])
    assert "out.txt says done" in prompt
    assert "FAKE_PROVIDER_KEY" not in prompt
    with open(result["artifacts"]["report"]) as report:
        assert report.read() == "I wrote it."


def test_codex_that_reports_success_and_changed_nothing_has_failed(bench):
    code, result = run(bench, bench.request(route="default"), message("All done."))
    assert (code, result["status"], result["blockers"]) == (1, "failed", ["out.txt did not change"])


def test_codex_without_a_commit_right_cannot_keep_one_quietly(bench):
    deed = "printf done > out.txt; git -c user.name=w -c user.email=w@example.invalid commit -qam mine || git update-ref refs/heads/side HEAD"
    code, result = run(
        bench, bench.request(route="default"), command(deed, bench.work), message("Committed.")
    )
    head = bench.git("log", "--oneline").count("\n")
    refs = bench.git("for-each-ref").count("\n")
    # Codex' own sandbox keeps .git read-only; where it does not, the pins see it.
    assert (head, refs) == (1, 1) or (code, result["status"]) == (1, "failed")


def test_narrower_paths_and_other_contexts_are_not_for_codex(bench):
    (bench.work / "ok").mkdir()
    narrow = bench.request(route="default", authority={"allowed_paths": ["ok"]}, artifacts=[])
    code, result = run(bench, narrow, message("x"))
    assert (code, result["status"]) == (4, "blocked")
    assert bench.requests == []
    code, result = run(bench, bench.request(route="default", context={"mode": "hybrid"}), message("x"))
    assert (code, result["status"]) == (4, "blocked")
    assert "codex cannot give context mode hybrid" in result["blockers"][0]


def test_the_first_opens_its_circuit_the_second_finishes_and_one_of_eight_gets_the_probe(bench):
    bench.rubric.write_text(
        bench.rubric.read_text().replace("fallbacks: {", "fallbacks: {default: [gem-c@low], ")
    )
    bench.executor("gemini", DONE)
    code, result = run(
        bench,
        bench.request(route="default"),
        error(429, "rate_limited"),
        more=("--now", "2026-01-01T12:00:00Z"),
    )
    assert (code, result["status"]) == (0, "accepted")
    assert result["route"]["attempted"] == ["gpt-b@high", "gem-c@low"]
    assert result["route"]["fallback_reason"] == "rate_limit"
    assert bench.circuits()["openai|codex"]["unavailable_until"] == "2026-01-01T12:15:00Z"

    select = [
        sys.executable, "-m", "commands", "route", "select", "--rubric", str(bench.rubric), "--route", "default", "--native-provider", "anthropic",
        "--executors", "codex,gemini", "--now", "2026-01-01T12:15:00Z",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": ROOT}
    children = [
        subprocess.Popen(select, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    replies = [json.loads(child.communicate(timeout=60)[0]) for child in children]
    assert [child.returncode for child in children] == [0] * 8
    assert sum(reply.get("probe", False) for reply in replies) == 1
    assert sorted(reply["candidate"] for reply in replies) == ["gem-c@low"] * 7 + ["gpt-b@high"]

    # The one that probes finds it healthy: the circuit closes.
    (bench.work / "out.txt").unlink()
    answers = [command("printf done > out.txt", bench.work), message("Back again.")]
    code, result = run(
        bench, bench.request(route="default"), *answers, more=("--now", "2026-01-01T12:30:00Z")
    )
    assert result["route"]["attempted"] == ["gpt-b@high"]
    assert bench.circuits() == {}


def test_codex_that_vanished_after_the_check_leaves_the_inventory(bench, monkeypatch):
    from commands.dispatch import codex_check

    bench.rubric.write_text(
        bench.rubric.read_text().replace("fallbacks: {", "fallbacks: {default: [gem-c@low], ")
    )
    bench.executor("gemini", DONE)
    monkeypatch.setattr(codex_check, "codex_is_missing", lambda: "")
    monkeypatch.setenv("GATEBOOK_CODEX_BIN", "/no/such/codex")
    code, result = bench.run(bench.request(route="default"), executors="codex,gemini")
    assert (code, result["route"]["attempted"]) == (0, ["gem-c@low"])
    assert bench.circuits() == {}
    assert [fact.data.status for fact in bench.events() if fact.type == "dispatch.returned"] == [
        "missing_executor",
        "succeeded",
    ]


def test_a_lone_codex_dispatch_is_on_record_where_a_ledger_is(bench):
    prompt = bench.folder / "prompt.md"
    prompt.write_text("Do it.")
    with Provider(message("Done.")) as provider:
        codex_home(os.environ["CODEX_HOME"], provider.port)
        code, reply, _ = bench.gatebook(
            "codex", "dispatch", "--operation", "execute", "--cwd", bench.work, "--sandbox", "workspace-write", "--approval", "never", "--model", "gpt-b",
            "--effort", "high", "--prompt", prompt, "--report", bench.folder / "report.md",
        )  # fmt: skip
    assert (code, reply) == (0, {"status": "succeeded"})
    assert bench.types() == [
        "dispatch.requested",
        "route.selected",
        "dispatch.attempted",
        "dispatch.returned",
    ]
    assert bench.events()[-1].data.status == "succeeded"


def test_a_lone_codex_dispatch_needs_no_ledger(bench, monkeypatch):
    (bench.folder / "plain").mkdir()
    monkeypatch.chdir(bench.folder / "plain")
    (bench.folder / "plain" / "p").write_text("Do it.")
    with Provider(error(401, "auth")) as provider:
        codex_home(os.environ["CODEX_HOME"], provider.port)
        code, reply, _ = bench.gatebook(
            "codex", "dispatch", "--operation", "execute", "--cwd", ".", "--sandbox", "read-only", "--approval", "never", "--model", "m", "--effort", "low",
            "--prompt", "p", "--report", "r",
        )  # fmt: skip
    assert (code, reply) == (75, {"status": "availability_failure", "reason": "authentication"})
    assert bench.types() == []
