"""One turn, driven by a server that says each thing a server may say, and each thing it may not."""

import json
import os
import sys
import time

import pytest

from commands import entry
from commands.dispatch.codex_check import fault_of_schema
from commands.dispatch.codex_errors import NEEDED_ERRORS, availability_reason, quota_reset
from commands.dispatch.codex_turn import Turn, run_turn
from ledger.errors import Refused

HERE = os.path.dirname(os.path.abspath(__file__))
INITIALIZED = {"result": {"userAgent": "fake", "codexHome": "/x", "new": 1}}
THREAD = {"result": {"thread": {"id": "T", "more": None}, "model": "m"}}
TURN = {"result": {"turn": {"id": "U", "status": "inProgress", "items": []}}}


def said(text, phase=None, turn="U", thread="T", **more):
    item = {"type": "agentMessage", "id": "i", "text": text, "phase": phase}
    return {"method": "item/completed", "params": {"item": item, "threadId": thread, "turnId": turn, **more}}


def completed(status="completed", error=None, items=(), turn="U", thread="T"):
    ended = {"id": turn, "items": list(items), "status": status, "error": error, "unknown": [1]}
    return {"method": "turn/completed", "params": {"threadId": thread, "turn": ended}}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Install a script; returns a function that runs one turn against it."""
    heard = tmp_path / "heard"

    def install(script):
        heard.write_text("")
        path = tmp_path / "script.json"
        path.write_text(json.dumps({"heard": str(heard), **script}))
        program = tmp_path / "codex"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE}/fake_codex.py" "{path}" "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("GATEBOOK_CODEX_BIN", str(program))

    def run(*after_turn, timeout=10, before=(), **steps):
        script = {
            "initialize": [INITIALIZED],
            "thread/start": [THREAD],
            "turn/start": [*before, TURN, *after_turn],
        }
        install({"steps": {**script, **steps}})
        return run_turn(
            Turn(cwd="/w", sandbox="workspace-write", model="m", effort="low", prompt="é"), timeout=timeout
        )

    run.install = install
    run.heard = lambda: [json.loads(line) for line in heard.read_text().splitlines()]
    return run


def test_the_thread_is_ephemeral_and_read_only_and_the_turn_alone_is_wider(fake):
    assert fake(said("hi"), completed()).report == "hi"
    asked = {message["method"]: message.get("params") for message in fake.heard()}
    assert asked["thread/start"] == {
        "cwd": "/w",
        "sandbox": "read-only",
        "approvalPolicy": "never",
        "ephemeral": True,
        "model": "m",
    }
    assert asked["turn/start"] == {
        "threadId": "T", "input": [{"type": "text", "text": "é"}], "cwd": "/w", "model": "m", "effort": "low", "approvalPolicy": "never",
        "sandboxPolicy": {"type": "workspaceWrite", "writableRoots": [], "networkAccess": False, "excludeTmpdirEnvVar": False, "excludeSlashTmp": False},
    }  # fmt: skip
    assert list(asked) == ["initialize", "initialized", "thread/start", "turn/start"]


def test_null_says_no_more_than_an_absent_member(fake):
    """The schema is open: a response may carry `"error":null`, a notification `"id":null` or a turn it does not name."""
    nothing = {"method": None, "error": None}
    done = fake(
        {**said("done", "final_answer", turn=None, thread=None), "id": None},
        {**completed(turn=None, thread=None), "id": None},
        **{
            "initialize": [{"id": 1, **INITIALIZED, **nothing}],
            "thread/start": [{"id": 2, **THREAD, **nothing}],
        },
    )
    assert (done.status, done.report) == ("succeeded", "done")


def test_the_final_answer_wins_over_what_was_said_after_it(fake):
    assert fake(said("thinking"), said("final", "final_answer"), said("ps"), completed()).report == "final"


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_final_answer_is_none_and_no_other_message_takes_its_place(fake, text):
    done = fake(said("thinking"), said(text, "final_answer"), completed())
    assert (done.status, done.report) == ("failed", "")


def test_without_a_phase_the_last_message_is_the_report(fake):
    assert fake(said("first"), said("last"), completed()).report == "last"


def test_a_message_that_only_the_completed_turn_carries_counts(fake):
    assert (
        fake(
            completed(items=[{"type": "agentMessage", "id": "x", "text": "only here", "phase": None}])
        ).report
        == "only here"
    )


@pytest.mark.parametrize("items", [[], [said("")], [said("  \n")]])
def test_a_turn_without_a_final_text_has_failed(fake, items):
    result = fake(*items, completed())
    assert (result.status, result.healthy) == ("failed", True)


def test_messages_may_come_before_the_answer_to_turn_start(fake):
    before = [
        {"method": "turn/started", "params": {"threadId": "T", "turn": {"id": "U"}}},
        said("early"),
        completed(),
    ]
    assert fake(before=before).report == "early"


def test_what_belongs_to_other_threads_and_turns_is_not_ours(fake):
    strangers = [
        said("x", thread="other"),
        said("y", turn="other"),
        completed(thread="other"),
        completed(turn="other"),
    ]
    assert fake(said("mine"), *strangers, completed()).report == "mine"


def test_ids_that_a_server_leaves_out_are_ours(fake):
    bare = [
        {"method": "item/completed", "params": {"item": {"type": "agentMessage", "text": "bare"}}},
        {"method": "turn/completed", "params": {"turn": {"status": "completed"}}},
    ]
    assert fake(*bare).report == "bare"


def test_unknown_messages_nulls_and_empty_lines_are_let_pass(fake):
    noise = [
        {"method": "new/thing", "params": None}, {"method": "x"}, "", "[]", "7", {"id": 99, "result": {}}, {"params": {}},
        {"method": "item/completed", "params": {"item": None, "threadId": "T", "turnId": "U"}},
        {"method": "item/completed", "params": {"item": {"type": "agentMessage", "text": None}, "threadId": "T", "turnId": "U"}},
        {"method": "error", "params": {"error": {"message": "no"}, "willRetry": True, "threadId": "T", "turnId": "U"}},
        {"method": "account/rateLimits/updated", "params": {"rateLimits": None}},
        {"method": "turn/completed", "params": {"threadId": "T", "turn": None}},
    ]  # fmt: skip
    assert fake(*noise, said("ok"), completed()).report == "ok"


@pytest.mark.parametrize(
    "after",
    [["exit"], ["die"], ["not json"], ["{"], [said("half"), "exit"], [said("half"), "[" * 100_000]],
    ids=["exit", "die", "text", "brace", "half", "deep"],
)  # fmt: skip
def test_a_server_that_breaks_off_is_a_failure_that_says_nothing_of_the_endpoint(fake, after):
    result = fake(*after)
    assert (result.status, result.healthy, result.report) == ("failed", False, "")


@pytest.mark.parametrize("status", ["interrupted", "inProgress", "new", None, 5, []])
def test_a_turn_that_ends_otherwise_than_completed_has_failed(fake, status):
    assert fake(said("text"), completed(status)).status == "failed"


def test_a_completed_turn_with_an_error_has_failed(fake):
    assert fake(said("text"), completed(error={"message": "x"})).status == "failed"


@pytest.mark.parametrize("method", ["initialize", "thread/start", "turn/start"])
@pytest.mark.parametrize(
    "answer",
    [[{"error": {"code": -32600, "message": "no"}}], [{"result": None}], ["exit"], ["die"], ["garbage"]],
    ids=str,
)
def test_a_refused_or_broken_step_is_missing_at_the_handshake_and_a_failure_later(fake, method, answer):
    result = fake(said("x"), completed(), **{method: answer})
    assert result.status == ("missing_executor" if method == "initialize" else "failed")
    assert not result.healthy


@pytest.mark.parametrize(
    "result", [{}, {"thread": None}, {"thread": {}}, {"thread": {"id": ""}}, {"thread": {"id": 5}}]
)
def test_a_thread_without_an_id_is_a_failure(fake, result):
    assert fake(completed(), **{"thread/start": [{"result": result}]}).status == "failed"


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("item/commandExecution/requestApproval", {"result": {"decision": "cancel"}}),
        ("item/fileChange/requestApproval", {"result": {"decision": "cancel"}}),
        ("execCommandApproval", {"result": {"decision": "abort"}}),
        ("applyPatchApproval", {"result": {"decision": "abort"}}),
        ("item/permissions/requestApproval", None),
        ("item/tool/requestUserInput", None),
        ("mcpServer/elicitation/request", None),
        ("something/new", None),
    ],
)
@pytest.mark.parametrize("params", [{"threadId": "T", "turnId": "U"}, None])
def test_every_request_of_the_server_is_answered_with_a_refusal_and_fails_the_turn(
    fake, method, answer, params
):
    asked = {"id": 0, "method": method, "params": params}
    result = fake(asked, answer=[said("done after all"), completed()])
    assert (result.status, result.healthy, result.report) == ("failed", True, "")
    reply = fake.heard()[-1]
    assert reply["id"] == 0
    if answer is None:
        assert "refused" in reply["error"]["message"]
    else:
        assert reply == {"id": 0, **answer}


@pytest.mark.parametrize("step", ["initialize", "thread/start", "turn/start"])
def test_a_server_that_asks_before_it_answers_us_is_refused_at_once(fake, step):
    asked = {"id": 0, "method": "item/fileChange/requestApproval", "params": {"threadId": "T"}}
    answer = {"initialize": INITIALIZED, "thread/start": THREAD, "turn/start": TURN}[step]
    number = {"initialize": 1, "thread/start": 2, "turn/start": 3}[step]
    after = [completed(items=[said("done")["params"]["item"]])]
    result = fake(
        *after,
        timeout=60,
        **{step: [asked], "answer": [{"id": number, **answer}, *(after if step == "turn/start" else [])]},
    )
    assert (result.status, result.healthy, result.ending) == ("failed", True, "failed")
    assert {"id": 0, "result": {"decision": "cancel"}} in fake.heard()


def test_a_server_that_goes_on_waiting_after_a_refusal_is_not_waited_for(fake, monkeypatch):
    monkeypatch.setattr("commands.dispatch.codex_turn.GRACE", 0.5)
    started = time.monotonic()
    assert (
        fake({"id": 0, "method": "item/fileChange/requestApproval", "params": {}}, timeout=60).status
        == "failed"
    )
    assert time.monotonic() - started < 10


def test_a_time_limit_of_years_is_one(fake):
    assert fake(said("done"), completed(), timeout=2**53 - 1).report == "done"


def test_a_silent_server_is_interrupted_at_the_deadline(fake, monkeypatch):
    monkeypatch.setattr("commands.dispatch.codex_turn.GRACE", 0.5)
    started = time.monotonic()
    result = fake(timeout=1)
    assert (result.status, result.healthy) == ("failed", False)
    assert time.monotonic() - started < 10
    assert fake.heard()[-1]["method"] == "turn/interrupt"
    assert fake.heard()[-1]["params"] == {"threadId": "T", "turnId": "U"}


def test_a_server_that_never_shakes_hands_meets_the_deadline(fake):
    result = fake(timeout=1, initialize=["wait"])
    assert (result.status, result.healthy) == ("failed", False)


def test_tokens_are_reported_from_the_numbers_alone(fake):
    usage = {"total": {"totalTokens": 5, "inputTokens": 3, "outputTokens": 2}, "last": {}}
    updated = {
        "method": "thread/tokenUsage/updated",
        "params": {"threadId": "T", "turnId": "U", "tokenUsage": usage},
    }
    assert fake(updated, said("x"), completed()).usage == "total 5 input 3 output 2"


def test_the_reset_time_before_the_error_becomes_the_retry_time(fake):
    limits = {
        "primary": {"usedPercent": 100, "windowDurationMins": 300, "resetsAt": 1_900_000_000},
        "secondary": None,
    }
    updated = {"method": "account/rateLimits/updated", "params": {"rateLimits": limits}}
    result = fake(
        updated, completed("failed", {"message": "resets at 5 pm", "codexErrorInfo": "usageLimitExceeded"})
    )
    assert result.reply() == {
        "status": "availability_failure",
        "reason": "quota",
        "retry_at": "2030-03-17T17:46:40Z",
    }


def test_an_error_notice_is_not_the_end_nor_a_reason(fake):
    notice = {
        "method": "error",
        "params": {
            "error": {"message": "x", "codexErrorInfo": "usageLimitExceeded"},
            "willRetry": False,
            "threadId": "T",
            "turnId": "U",
        },
    }
    assert (
        fake(
            notice, completed("failed", {"message": "429 quota unauthorized", "codexErrorInfo": None})
        ).status
        == "failed"
    )


ERRORS = [
    ("usageLimitExceeded", "quota"), ("rateLimitExceeded", "rate_limit"), ("unauthorized", "authentication"),
    ("serverOverloaded", "provider_unavailable"), ("internalServerError", "provider_unavailable"),
    *((name, None) for name in (
        "contextWindowExceeded", "sessionBudgetExceeded", "flexUnavailable", "modelNotFound", "policyCapacityUnavailable", "inferenceHookDenied",
        "cyberPolicy", "bioPolicy", "misalignmentPolicyViolation", "tooManyDenials", "badRequest", "threadRollbackFailed", "sandboxError", "other",
        "somethingNew", "", "quota", "UsageLimitExceeded",
    )),
    *(({name: {"httpStatusCode": status}}, reason) for name in (
        "httpConnectionFailed", "responseStreamConnectionFailed", "responseStreamDisconnected", "responseTooManyFailedAttempts",
    ) for status, reason in (
        (401, "authentication"), (403, "authentication"), (429, "rate_limit"), (500, "provider_unavailable"), (503, "provider_unavailable"),
        (529, "provider_unavailable"), (599, "provider_unavailable"), (None, "provider_unavailable"), (400, None), (404, None), (402, None), (600, None),
        (200, None), ("429", None), (True, None), (429.0, None), ([], None),
    )),
    ({"httpConnectionFailed": {}}, "provider_unavailable"), ({"httpConnectionFailed": None}, "provider_unavailable"),
    ({"httpConnectionFailed": {"httpStatusCode": 429, "new": 1}}, "rate_limit"), ({"activeTurnNotSteerable": {"turnKind": "review"}}, None),
    *((name, "provider_unavailable") for name in ("httpConnectionFailed", "responseStreamDisconnected", "responseTooManyFailedAttempts")),
    ({"newConnectionError": {"httpStatusCode": 429}}, None), ({}, None), ([], None), (None, None), (5, None), (True, None),
]  # fmt: skip


@pytest.mark.parametrize(("info", "reason"), ERRORS, ids=str)
def test_only_the_typed_error_names_an_outage(info, reason):
    assert availability_reason({"message": "usage limit 429 unauthorized", "codexErrorInfo": info}) == reason


@pytest.mark.parametrize("error", [None, "usageLimitExceeded", [], {}, {"message": "usageLimitExceeded"}, 5])
def test_an_error_without_a_type_names_none(error):
    assert availability_reason(error) is None


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        (
            {
                "primary": {"usedPercent": 100, "resetsAt": 2000},
                "secondary": {"usedPercent": 40, "resetsAt": 9000},
            },
            2000,
        ),
        (
            {
                "primary": {"usedPercent": 10, "resetsAt": 2000},
                "secondary": {"usedPercent": 100.0, "resetsAt": 9000},
            },
            9000,
        ),
        (
            {
                "primary": {"usedPercent": 100, "resetsAt": 2000},
                "secondary": {"usedPercent": 101, "resetsAt": 9000},
            },
            9000,
        ),
        ({"primary": {"usedPercent": 10, "resetsAt": 2000}}, 2000),
        ({"primary": {"resetsAt": 2000}}, 2000),
        ({"primary": {"usedPercent": 100, "resetsAt": None}}, None),
        ({"primary": {"usedPercent": 100, "resetsAt": "soon"}}, None),
        ({"primary": {"usedPercent": 100, "resetsAt": True}}, None),
        ({"primary": {"usedPercent": 100, "resetsAt": -5}}, None),
        ({"primary": {"usedPercent": 100, "resetsAt": 1_900_000_000_000}}, None),
        ({"primary": {"usedPercent": 100, "resetsAt": float("inf")}}, None),
        ({"primary": None, "secondary": None}, None),
        ({"primary": []}, None),
        ({}, None),
        (None, None),
        ([], None),
    ],
)
def test_the_reset_is_that_of_the_used_up_window(limits, seconds):
    found = quota_reset(limits)
    assert found == (None if seconds is None else seconds * 1_000_000)


def whole_schema():
    def fields(*names):
        return {"type": "object", "properties": {name: {} for name in names}}

    return {
        "ThreadStartParams": fields("cwd", "sandbox", "approvalPolicy", "ephemeral", "model"),
        "TurnStartParams": fields(
            "threadId", "input", "cwd", "model", "effort", "approvalPolicy", "sandboxPolicy"
        ),
        "TurnError": fields("message", "codexErrorInfo"),
        "CodexErrorInfo": {
            "oneOf": [
                {"enum": list(NEEDED_ERRORS[:4])},
                *({"properties": {name: {}}} for name in NEEDED_ERRORS[4:]),
            ]
        },
    }


def test_a_schema_with_everything_needed_has_no_fault():
    assert fault_of_schema({name: [definition] for name, definition in whole_schema().items()}) == ""


@pytest.mark.parametrize("name", sorted(whole_schema()))
def test_a_schema_without_a_needed_definition_or_field_is_named(name):
    schema = whole_schema()
    found = {other: [definition] for other, definition in schema.items() if other != name}
    assert fault_of_schema(found)
    for field in list(schema[name].get("properties", {})):
        if field == "message":
            continue
        lacking = {key: value for key, value in schema[name]["properties"].items() if key != field}
        assert field in fault_of_schema({**found, name: [{"properties": lacking}]})


@pytest.mark.parametrize("variant", NEEDED_ERRORS)
def test_a_schema_without_a_needed_error_is_named(variant):
    text = json.dumps(whole_schema()).replace(variant, "another")
    assert variant in fault_of_schema({name: [definition] for name, definition in json.loads(text).items()})


def check(capsys):
    code = entry.run(["codex", "check"])
    return code, json.loads(capsys.readouterr().out)["status"]


SCHEMA_FILES = [
    {"v2/all.json": {"definitions": {"v2": whole_schema()}}},
    {"all.json": {"definitions": whole_schema()}},
    {f"v2/{name}.json": {"title": name, **definition} for name, definition in whole_schema().items()},
]


@pytest.mark.parametrize("files", SCHEMA_FILES, ids=["namespace", "definitions", "files"])
def test_check_reads_the_schema_however_it_is_laid_out(fake, capsys, files):
    fake.install({"schema": files, "steps": {"initialize": [INITIALIZED]}})
    assert check(capsys) == (0, "available")


@pytest.mark.parametrize(
    "script",
    [
        {"schema": {}, "steps": {"initialize": [INITIALIZED]}},
        {"schema": {"a.json": "not json"}, "steps": {"initialize": [INITIALIZED]}},
        {"schema": SCHEMA_FILES[1], "schema_exit": 2, "steps": {"initialize": [INITIALIZED]}},
        {"schema": SCHEMA_FILES[1], "steps": {"initialize": ["exit"]}},
        {"schema": SCHEMA_FILES[1], "steps": {"initialize": [{"error": {"code": -32600, "message": "x"}}]}},
        {"schema": SCHEMA_FILES[1], "steps": {"initialize": ["garbage"]}},
    ],
    ids=["no schema", "no json", "exit 2", "silent end", "refusal", "garbage"],
)
def test_check_misses_a_codex_without_the_needed_seam(fake, capsys, script):
    fake.install(script)
    assert check(capsys) == (69, "missing_executor")


@pytest.mark.parametrize("binary", ["/no/such/codex", "no-such-codex-anywhere", "/", "/etc/passwd"])
def test_a_codex_that_cannot_be_started_is_missing(monkeypatch, capsys, tmp_path, binary):
    monkeypatch.setenv("GATEBOOK_CODEX_BIN", binary)
    assert check(capsys) == (69, "missing_executor")
    (tmp_path / "p").write_text("x")
    code = entry.run(arguments(tmp_path))
    assert (code, json.loads(capsys.readouterr().out)) == (69, {"status": "missing_executor"})


@pytest.mark.parametrize("words", [["extra"], ["--nope"]])
def test_a_bad_call_of_check_is_told_on_stdout_like_every_answer_of_the_adapter(capsys, words):
    code = entry.run(["codex", "check", *words])
    assert (code, json.loads(capsys.readouterr().out)["status"]) == (2, "error")


def arguments(tmp_path, **changed):
    values = {
        "operation": "execute", "cwd": str(tmp_path), "sandbox": "read-only", "approval": "never", "model": "m", "effort": "high",
        "prompt": str(tmp_path / "p"), "report": str(tmp_path / "report"),
    } | changed  # fmt: skip
    return [
        "codex",
        "dispatch",
        *(part for name, value in values.items() if value is not None for part in (f"--{name}", value)),
    ]


@pytest.mark.parametrize(
    "name", ["operation", "cwd", "sandbox", "approval", "model", "effort", "prompt", "report"]
)
def test_every_flag_is_needed(tmp_path, capsys, name):
    (tmp_path / "p").write_text("x")
    assert entry.run(arguments(tmp_path, **{name: None})) == 2
    assert json.loads(capsys.readouterr().out)["status"] == "error"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"operation": "review"}, 4), ({"operation": "computer-use"}, 4), ({"operation": "x"}, 2), ({"operation": ""}, 2),
        ({"sandbox": "danger-full-access"}, 4), ({"sandbox": "x"}, 2), ({"sandbox": "READ-ONLY"}, 2),
        ({"approval": "on-request"}, 4), ({"approval": "untrusted"}, 4), ({"approval": "x"}, 2),
        ({"cwd": "/no/such/directory"}, 2), ({"cwd": "/etc/passwd"}, 2), ({"cwd": ""}, 2),
        ({"model": ""}, 2), ({"model": " "}, 2), ({"model": "a\nb"}, 2), ({"effort": ""}, 2), ({"effort": "\x1b[0m"}, 2), ({"model": "ghp_" + "a" * 36}, 4),
        ({"prompt": "/no/such/file"}, 2), ({"prompt": "/"}, 2), ({"report": "/no/such/directory/report"}, 2), ({"report": "/tmp"}, 2), ({"report": ""}, 2),
        ({"timeout": "x"}, 2), ({"timeout": "-1"}, 2),
    ],
)  # fmt: skip
def test_a_bad_call_and_a_refused_authority_are_told_before_anything_runs(
    tmp_path, capsys, monkeypatch, changed, code
):
    monkeypatch.setenv("GATEBOOK_CODEX_BIN", "/no/such/codex")
    (tmp_path / "p").write_text("x")
    assert entry.run(arguments(tmp_path, **changed)) == code
    reply = json.loads(capsys.readouterr().out)
    assert reply["status"] == ("error" if code == 2 else "blocked")
    assert len(reply["blockers"]) == 1


@pytest.mark.parametrize(
    ("raw", "code"),
    [(b"", 2), (b" \n", 2), (b"\xff", 2), (b"x" * (1024 * 1024 + 1), 2), (b"use ghp_" + b"a" * 36, 4)],
)
def test_a_prompt_that_is_empty_odd_or_secret_is_not_sent(tmp_path, capsys, raw, code):
    (tmp_path / "p").write_bytes(raw)
    assert entry.run(arguments(tmp_path)) == code
    assert "aaaa" not in capsys.readouterr().out


def test_the_report_replaces_a_file_whole_and_a_failure_leaves_it(fake, tmp_path, capsys):
    (tmp_path / "p").write_text("x")
    (tmp_path / "report").write_text("old")
    script = {"initialize": [INITIALIZED], "thread/start": [THREAD]}
    fake.install(
        {
            "steps": {
                **script,
                "turn/start": [TURN, completed("failed", {"codexErrorInfo": "other", "message": "raw text"})],
            }
        }
    )
    assert entry.run(arguments(tmp_path)) == 1
    assert (tmp_path / "report").read_text() == "old"
    fake.install({"steps": {**script, "turn/start": [TURN, said("new \ud800"), completed()]}})
    assert entry.run(arguments(tmp_path)) == 0
    assert (tmp_path / "report").read_bytes() == b"new ?"
    assert capsys.readouterr().out == '{"status":"failed"}\n{"status":"succeeded"}\n'
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_a_return_that_cannot_be_recorded_is_said_and_its_caller_still_gets_the_result(
    fake, tmp_path, capsys, monkeypatch
):
    """The turn is over and paid for; the log shows an attempt without an end."""
    (tmp_path / "p").write_text("x")
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    ledger = str(tmp_path / "ledger")
    assert entry.run(["--ledger", ledger, "init"]) == 0
    steps = {"initialize": [INITIALIZED], "thread/start": [THREAD]}
    fake.install({"steps": {**steps, "turn/start": [TURN, said("done", "final_answer"), completed()]}})

    def refused(_self, _outcome):
        raise Refused("the ledger takes no writes")

    monkeypatch.setattr("commands.dispatch.lone.Lone.returned", refused)
    capsys.readouterr()
    assert entry.run(["--ledger", ledger, *arguments(tmp_path)]) == 0
    told = capsys.readouterr()
    assert told.out == '{"status":"succeeded"}\n'
    assert "the ledger takes no writes" in told.err
    assert (tmp_path / "report").read_text() == "done"
