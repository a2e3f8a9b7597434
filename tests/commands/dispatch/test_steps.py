"""The steps one by one, and the order that admission keeps: for an agent that dispatches by itself."""

import json
import os
import subprocess

import pytest
from bench import DONE, assert_complete

from commands import entry


class Steps:
    def __init__(self, bench):
        self.bench = bench
        self.id = None

    def do(self, *args, actor=None):
        globally = ["--actor", actor] if actor else []
        code, told, _ = self.bench.gatebook(*globally, "dispatch", *args)
        return code, told

    def open(self, document=None):
        code, told = self.do("open", self.bench.write(document or self.bench.request()))
        assert code == 0, told
        self.id = told["id"]
        return told

    def select(self, *more):
        return self.do(
            "select",
            self.id,
            "--rubric",
            self.bench.rubric,
            "--native-provider",
            "anthropic",
            "--executors",
            "gemini",
            *more,
        )

    def step(self, name, *more, actor=None):
        return self.do(name, self.id, *more, actor=actor)

    def work(self, text="done"):
        (self.bench.work / "out.txt").write_text(text)

    def until_returned(self, document=None, worker=None):
        self.open(document)
        assert self.select()[0] == 0
        assert self.step("attempt", *(["--worker", worker] if worker else []))[0] == 0
        self.work()
        assert self.step("returned", "--status", "succeeded")[0] == 0


@pytest.fixture
def steps(bench):
    return Steps(bench)


def test_the_whole_way_by_hand(steps, bench):
    bench.repository()
    assert steps.open() == {
        "status": "open",
        "id": steps.id,
        "route": "taste",
        "sandbox": "workspace-write",
        "outstanding_approvals": [],
    }
    code, chosen = steps.select()
    assert (code, chosen["candidate"], chosen["executor"]) == (0, "claude-a@high", "native")
    code, told = steps.step("attempt")
    assert (code, told["attempt"], told["packet"]["model"]) == (0, 1, "claude-a")
    steps.work()
    report = bench.folder / "report.md"
    report.write_text("Written.")
    code, told = steps.step("returned", "--status", "succeeded", "--report", report)
    assert (code, told["changed_files"], told["violation"]) == (0, 1, "")
    code, told = steps.step("verify")
    assert (code, told["status"]) == (0, "proven")
    code, result = steps.step("conclude")
    assert_complete(result)
    assert (code, result["status"], result["route"]["attempted"]) == (0, "accepted", ["claude-a@high"])


@pytest.mark.parametrize(
    "changed",
    [
        {"route": "x" * 70_000},
        {"authority": {"allowed_paths": [f"p{n}" for n in range(3000)]}, "artifacts": []},
    ],
    ids=["route", "paths"],
)
def test_a_request_that_names_more_than_an_event_holds_is_blocked_like_any_other(steps, bench, changed):
    code, result = steps.do("open", bench.write(bench.request(**changed)))
    assert_complete(result)
    assert (code, result["status"]) == (4, "blocked")
    assert "more than an event can hold" in result["blockers"][0]
    assert bench.types() == ["dispatch.blocked"]


def test_a_native_selection_without_a_command_awaits_the_caller(steps, bench):
    code, reply = bench.run(bench.request())
    assert (code, reply["status"], reply["executor"], reply["model"], reply["effort"]) == (
        0,
        "awaiting",
        "native",
        "claude-a",
        "high",
    )
    assert bench.run(bench.request())[1] == reply  # asking again changes nothing
    assert bench.types() == ["dispatch.requested", "route.selected"]
    steps.id = reply["id"]
    assert steps.step("attempt")[0] == 0
    steps.work()
    assert steps.step("returned", "--status", "succeeded")[0] == 0
    code, result = bench.run(bench.request())  # the rest is done for it
    assert (code, result["status"]) == (0, "accepted")


def test_the_active_candidate_does_it_itself(steps, bench):
    code, reply = bench.run(bench.request(), DONE, more=["--active-candidate", "claude-a@high"])
    assert (code, reply["status"], reply["executor"], reply["dispatch"]) == (
        0,
        "awaiting",
        "current",
        "direct",
    )
    again = bench.run(bench.request(), DONE, more=["--active-candidate", "claude-a@high"])
    assert again == (code, reply)  # nobody else is set to work because it was asked twice


def test_a_selection_that_may_not_follow_claims_no_probe(steps, bench):
    steps.open()
    steps.select()
    steps.step("attempt")
    endpoint = ["--provider", "anthropic", "--executor", "native", "--now", "2026-01-01T00:00:00Z"]
    bench.gatebook("route", "record-failure", *endpoint, "--reason", "rate_limit")
    code, told = steps.select()
    assert (code, told["status"]) == (4, "refused")
    assert "an attempt has no end" in told["blockers"][0]
    health = json.loads((bench.folder / "state" / "gatebook" / "provider-health.json").read_text())
    assert health["circuits"]["anthropic|native"]["probe_claimed_at"] is None


def test_an_outage_by_hand_leads_to_the_next_candidate(steps, bench):
    bench.executor("gemini", DONE)
    steps.open()
    steps.select()
    steps.step("attempt")
    code, told = steps.step(
        "returned",
        "--status",
        "availability_failure",
        "--reason",
        "quota",
        "--retry-at",
        "2099-01-01T00:00:00Z",
    )
    assert (code, told["reason"]) == (0, "quota")
    assert bench.circuits()["anthropic|native"]["unavailable_until"] == "2099-01-01T00:00:00Z"
    code, chosen = steps.select()
    assert (chosen["candidate"], chosen["reason"], chosen["skipped"]) == (
        "gem-c@low",
        "quota",
        ["claude-a@high"],
    )


def test_out_of_order_steps_are_refused_and_recorded(steps, bench):
    unknown = "0" * 32
    for name, more in (
        ("select", ()),
        ("attempt", ()),
        ("returned", ("--status", "failed")),
        ("verify", ()),
        ("conclude", ("--status", "accepted")),
    ):
        assert steps.do(name, unknown, *more)[0] == 4, name
    steps.open()
    assert steps.step("attempt")[0] == 4  # nothing selected
    assert steps.step("verify")[0] == 4
    assert steps.step("returned", "--status", "succeeded")[0] == 4
    assert steps.step("conclude", "--status", "accepted")[0] == 4
    assert steps.step("conclude", "--status", "failed")[0] == 4
    steps.select()
    steps.step("attempt")
    assert steps.select()[0] == 4  # an attempt is open
    assert steps.step("attempt")[0] == 4
    assert steps.step("verify")[0] == 4
    steps.work()
    steps.step("returned", "--status", "succeeded")
    assert steps.select()[0] == 4  # a success does not change the candidate
    assert steps.step("conclude", "--status", "accepted")[0] == 4  # not proven
    refusals = [fact for fact in bench.events("refusal") if fact.type == "admission.refused"]
    assert len(refusals) >= 5
    assert steps.step("verify")[0] == 0
    assert steps.step("conclude", "--status", "accepted")[0] == 0
    assert steps.step("conclude")[0] == 4


def test_a_failure_by_hand_changes_no_candidate(steps):
    steps.open()
    steps.select()
    steps.step("attempt")
    steps.step("returned", "--status", "failed")
    assert steps.select()[0] == 4
    code, result = steps.step("conclude")
    assert (code, result["status"]) == (1, "failed")


def test_a_proof_before_the_last_return_does_not_count(steps, bench):
    steps.until_returned()
    steps.work("broken")
    code, told = steps.step("verify")
    assert (code, told["status"]) == (1, "unproven")
    assert steps.step("conclude", "--status", "accepted")[0] == 4
    steps.work("done")
    assert steps.step("verify")[0] == 0  # the returned artifact itself is what holds
    assert steps.step("conclude")[1]["telemetry"]["verification_failures"] == 1


def test_the_target_as_returned_is_what_is_proven(steps):
    steps.until_returned()
    steps.work("done, and more was done to it")
    code, told = steps.step("verify")
    assert (code, told["checks"][0]["target_unchanged"]) == (1, False)


def test_the_executor_does_not_verify_or_accept_its_own_work(steps):
    steps.until_returned(worker="codex:thread-1")
    assert steps.step("verify", actor="codex:thread-1")[0] == 4
    assert steps.step("verify", actor="agent:parent")[0] == 0
    assert steps.step("conclude", actor="codex:thread-1")[0] == 4
    assert steps.step("conclude", actor="agent:parent")[0] == 0


def test_who_came_back_instead_of_the_dispatcher_is_the_executor(steps):
    steps.open()
    steps.select()
    steps.step("attempt")
    steps.work()
    steps.step("returned", "--status", "succeeded", actor="agent:worker")
    assert steps.step("verify", actor="agent:worker")[0] == 4
    assert steps.step("verify")[0] == 0
    assert steps.step("conclude", actor="agent:worker")[0] == 4
    assert steps.step("conclude")[0] == 0


@pytest.mark.parametrize("worker", ["nobody", "Agent:x", "agent:", ":x", "agent:ghp_" + "a" * 36])
def test_a_worker_that_no_event_could_name_is_a_bad_argument(steps, worker):
    steps.open()
    steps.select()
    assert steps.step("attempt", "--worker", worker)[0] == 2
    assert steps.step("attempt")[0] == 0


def test_an_attempt_may_be_narrower_and_the_next_never_wider(steps, bench):
    bench.executor("gemini", DONE)
    steps.open()
    steps.select()
    _, told = steps.step("attempt", "--sandbox", "read-only")
    assert told["sandbox"] == told["packet"]["authority"]["sandbox"] == "read-only"
    assert told["packet"]["authority"]["allowed_paths"] == []
    steps.step("returned", "--status", "availability_failure", "--reason", "quota")
    steps.select()
    code, told = steps.step("attempt")
    assert code == 4
    assert "wider" in told["blockers"][0]
    assert steps.step("attempt", "--sandbox", "read-only")[0] == 0
    steps.work()  # the request allows it, this attempt does not
    code, told = steps.step("returned", "--status", "succeeded")
    assert (code, told["violation"]) == (1, "path")


def test_a_narrower_attempt_is_watched_wherever_the_request_may_write(steps, bench):
    """Also above the working directory, which alone is watched for a request without allowed paths."""
    steps.open(bench.request(authority={"allowed_paths": [str(bench.folder)]}))
    steps.select()
    assert steps.step("attempt", "--sandbox", "read-only")[0] == 0
    (bench.folder / "stray.txt").write_text("x")
    code, told = steps.step("returned", "--status", "succeeded")
    assert (code, told["violation"]) == (1, "path")


@pytest.mark.parametrize(
    "more",
    [
        ["--status", "availability_failure"], ["--status", "failed", "--reason", "quota"], ["--status", "availability_failure", "--reason", "tired"], ["--status", "fine"], [],
        ["--status", "availability_failure", "--reason", "rate_limit", "--retry-at", "2099-01-01T00:00:00Z"],
        ["--status", "availability_failure", "--reason", "quota", "--retry-at", "soon"],
    ],
    ids=str,
)  # fmt: skip
def test_a_malformed_return_is_a_bad_call(steps, more):
    steps.open()
    steps.select()
    steps.step("attempt")
    assert steps.step("returned", *more)[0] == 2


@pytest.mark.parametrize("name", ["x", "0" * 31, "Z" * 32, "../" * 12, "0" * 65, ""])
def test_what_is_no_id_is_a_bad_call(steps, name):
    assert steps.do("verify", name)[0] == 2


def test_a_worker_that_comes_back_late_does_not_end_the_attempt_that_followed(steps, bench):
    steps.open(bench.request(repeatable=True))
    for number in (1, 2):
        assert steps.select()[0] == 0
        assert steps.step("attempt")[1]["attempt"] == number
    assert steps.step("returned", "--status", "succeeded", "--attempt", 1)[0] == 4
    steps.work()
    assert steps.step("returned", "--status", "succeeded", "--attempt", 2)[0] == 0


def test_opening_twice_is_the_same_request(steps, bench):
    first = steps.open()
    assert steps.open() == first
    assert bench.types() == ["dispatch.requested"]


def test_a_blocked_selection_ends_the_request(steps, bench):
    steps.open(bench.request(route="default"))
    code, result = steps.select()
    assert_complete(result)
    assert (code, result["status"]) == (4, "blocked")
    assert steps.step("attempt")[0] == 4


# -- approvals --------------------------------------------------------------------------------------------------------


def approvals(bench, seq=None, **more):
    return bench.request(authority={"approvals": [{"what": "push to origin", "approval_seq": seq}]}, **more)


def test_an_outstanding_approval_passes_every_worker_over(bench):
    bench.executor("gemini", DONE)
    code, result = bench.run(approvals(bench), DONE)
    assert (code, result["status"], result["route"]["attempted"]) == (4, "blocked", [])
    assert "approval is outstanding" in result["blockers"][1]
    assert bench.events()[-1].data.reason == "approval"
    assert bench.circuits() == {}


def test_a_recorded_approval_lets_the_work_begin_and_counts_for_one_run(steps, bench):
    code, told = steps.do("approve", bench.write(approvals(bench)), "--what", "push to origin")
    assert (code, told["status"], told["what"]) == (0, "approved", "push to origin")
    code, result = bench.run(approvals(bench, told["seq"]), DONE)
    assert (code, result["status"]) == (0, "accepted")
    attempted = next(fact for fact in bench.events() if fact.type == "dispatch.attempted")
    assert attempted.data.approvals == (told["seq"],)
    (bench.work / "out.txt").unlink()
    assert bench.run(approvals(bench, told["seq"]), DONE)[1]["status"] == "blocked"


def test_an_approval_for_the_request_counts_for_every_run(steps, bench):
    steps.do("approve", bench.write(approvals(bench)), "--what", "push to origin", "--scope", "request")
    for text in ("done", "done again"):
        assert bench.run(approvals(bench), DONE.replace("done", text))[0] == 0


def test_an_approval_that_does_not_exist_or_is_of_another_request_is_none(steps, bench):
    assert bench.run(approvals(bench, 1), DONE)[1]["status"] == "blocked"
    _, told = steps.do(
        "approve", bench.write(approvals(bench)), "--what", "push to origin", "--scope", "request"
    )
    assert bench.run(approvals(bench, told["seq"] + 1), DONE)[1]["status"] == "blocked"
    assert bench.run(approvals(bench, told["seq"], outcome="something else"), DONE)[1]["status"] == "blocked"


def test_the_native_caller_may_obtain_the_approval_itself_but_not_begin_without(steps, bench):
    code, reply = bench.run(approvals(bench))
    assert (code, reply["status"]) == (0, "awaiting")
    steps.id = reply["id"]
    code, told = steps.step("attempt")
    assert code == 4
    assert "approval is outstanding" in told["blockers"][0]
    _, approved = steps.do("approve", steps.id, "--what", "push to origin")
    code, told = steps.step("attempt")
    assert code == 0
    # null would tell the worker that it is outstanding still
    granted = [{"what": "push to origin", "approval_seq": approved["seq"]}]
    assert told["packet"]["authority"]["approvals"] == granted


def test_an_approved_deed_is_granted(steps, bench):
    bench.repository()
    document = bench.request(authority={"approvals": [{"what": "git commit", "approval_seq": None}]})
    _, told = steps.do("approve", bench.write(document), "--what", "git commit")
    commit = "import subprocess; subprocess.run('git add . && git -c user.name=w -c user.email=w@example.invalid commit -qm x', shell=True, check=True)"
    code, result = bench.run(document, DONE + f"\n    {commit}\n")
    assert (code, result["blockers"]) == (0, [])


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("git commit", ("commit", "refs")), ("Git  Commit", ("commit", "refs")), ("commit", ("commit", "refs")), ("Bash(git push:*)", ("push", "refs")),
        ("git", ()), ("bash", ()), ("push to origin", ()), ("git commit --amend", ()), ("", ()), ("config", ("config",)),
    ],
)  # fmt: skip
def test_only_a_plain_name_grants_a_deed(name, codes):
    from commands.dispatch.pins import grants_of

    assert grants_of(name) == codes


def test_only_what_the_request_names_can_be_approved(steps, bench):
    code, told = steps.do("approve", bench.write(approvals(bench)), "--what", "anything")
    assert code == 4
    assert "'push to origin'" in told["blockers"][0]
    assert steps.do("approve", "0" * 32, "--what", "x")[0] == 4


@pytest.fixture
def signer(bench):
    """A ledger whose policy wants dispatch.approved signed; returns the private key's path."""
    key = bench.folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)
    public = " ".join((bench.folder / "key.pub").read_text().split()[:2])
    signers = bench.folder / "signers"
    signers.write_text(f"# types: dispatch.approved\nalice@example.invalid {public}\n")
    code, _, told = bench.gatebook("authority", "require", "--signers", signers, "--single-key", "--key", key)
    assert code == 0, told
    return key


def test_a_policy_can_ask_for_a_signature(steps, bench, signer):
    path = bench.write(approvals(bench))
    code, told = steps.do("approve", path, "--what", "push to origin")
    assert code == 4
    assert "signed" in told["blockers"][0]
    other = bench.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    assert steps.do("approve", path, "--what", "push to origin", "--sign", "--key", other)[0] == 4
    assert [event.type for event in bench.events("refusal")] == ["admission.refused"] * 2
    code, told = steps.do("approve", path, "--what", "push to origin", "--sign", "--key", signer)
    assert (code, told["signed_by"]) == (0, "alice@example.invalid")
    assert bench.run(approvals(bench, told["seq"]), DONE)[0] == 0
    assert entry.run(["replay"]) == 0  # which verifies the signature again


def test_an_approval_can_be_signed_elsewhere_and_only_over_its_own_bytes(steps, bench, signer):
    path, statement = bench.write(approvals(bench)), bench.folder / "statement"
    assert steps.do("approve", path, "--what", "push to origin", "--out", statement)[0] == 0
    subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", "gatebook", "-f", str(signer), str(statement)], check=True
    )
    brought = ["--statement", statement, "--signature", f"{statement}.sig"]
    assert steps.do("approve", path, "--what", "push to origin", "--scope", "request", *brought)[0] == 4
    assert steps.do("approve", path, "--what", "push to origin", *brought)[0] == 0
    assert steps.do("approve", path, "--what", "push to origin", *brought)[0] == 4  # the nonce is spent


def test_every_step_has_help_with_an_example(capsys):
    from commands.table import COMMANDS

    for name in (name for name in COMMANDS if name.split()[0] in ("dispatch", "codex")):
        assert entry.run([*name.split(), "--help"]) == 0
        assert f"gatebook {name}" in capsys.readouterr().out.split("Example:")[1]


def test_the_events_carry_no_path_and_no_word_of_the_request(steps, bench):
    from ledger.access import open_ledger

    steps.until_returned(bench.request(outcome="a very personal outcome", authority={"tools": ["git"]}))
    steps.step("verify")
    steps.step("conclude")
    ledger = open_ledger(str(bench.work / ".gatebook"))
    data = b"".join(event.data for event in ledger.store.reader().stream(f"dispatch/{steps.id}"))
    ledger.close()
    assert os.fsencode(bench.work) not in data
    assert b"personal" not in data
    assert json.loads(b"[" + data.replace(b"}{", b"},{") + b"]")
