"""Receipts: issued by people, checked in order, consumed once, delegated downwards."""

import json
import os
import pty
import re
import time
from datetime import UTC, datetime, timedelta

import pytest

from commands.plan_runs import require_mutation_authorization
from ledger.errors import Refused

URL = "https://canvas.example.edu"


class Desk:
    """Issues receipts as a person at a terminal, uses them as session `s1`."""

    def __init__(self, house):
        self.house = house
        self.work = house.run / house.key(1)
        self.work.mkdir()
        (self.work / "verification.log").write_text("PASS\n")
        (self.work / "draft.md").write_text("Answer: 42.\n")

    def issue(
        self,
        *actions,
        code=0,
        target=("assignment", "200001"),
        seconds=3600.0,
        name="r.json",
        at=URL,
        synthetic=False,
    ):
        """Through a terminal of its own, as a person without a session."""
        words = [
            "receipt", "issue", "--origin", at, "--course", "100001", "--target-type", target[0], "--target", target[1], "--session", "s1",
            *[part for action in actions for part in ("--action", action)], "--expires", (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(),
            "--authority", "yes, hand it in", "--out", self.house.folder / name, *(["--synthetic-qa"] if synthetic else []),
        ]  # fmt: skip
        main, other = pty.openpty()
        process = self.house.start(*words, stdin=other, env={"CODEX_THREAD_ID": ""})
        out, err = process.communicate()
        os.close(main)
        os.close(other)
        assert process.returncode == code, err
        return json.loads(out) if out else err

    def flags(
        self,
        action="assignment.submit_text",
        target=("assignment", "200001"),
        course="100001",
        at=URL,
        work=True,
    ):
        found = [
            "--origin",
            at,
            "--course",
            course,
            "--target-type",
            target[0],
            "--target",
            target[1],
            "--action",
            action,
        ]
        return [*found, "--work-dir", str(self.work)] if work else found

    def use(self, *words, verb="consume", name="r.json", **more):
        code, found, _ = self.house.cli(
            "receipt", verb, self.house.folder / name, *self.flags(**more), *words
        )
        assert (code == 0) == found["allowed"]
        return found

    def denied(self, *words, **more):
        found = self.use(*words, **more)
        assert found["allowed"] is False
        return found["reason"].split(":")[0]


@pytest.fixture
def desk(house):
    return Desk(house)


def test_a_person_at_a_terminal_issues_and_the_session_uses_it_once(desk):
    issued = desk.issue("assignment.submit_text")
    assert set(issued) == {"receipt_id", "expires_at", "actions", "seq"}
    assert desk.use(verb="check") == {
        "allowed": True,
        "reason": None,
        "receipt_id": issued["receipt_id"],
        "action": "assignment.submit_text",
        "count": 1,
        "terminal": True,
        "seq": None,
    }
    used = desk.use()
    assert (used["count"], used["terminal"], used["seq"]) == (1, True, issued["seq"] + 1)
    assert desk.denied() == "usage"
    assert desk.denied(action="assignment.comment") == "action"
    assert desk.house.types() == [
        "ledger.opened",
        "receipt.issued",
        "receipt.consumed",
        "receipt.denied",
        "receipt.denied",
    ]


def test_a_receipt_whose_file_cannot_be_written_is_told_by_its_id(desk, house):
    """It is open in the log, and nobody holds it. A name that no folder takes stands for a full disk."""
    said = desk.issue("assignment.submit_text", code=1, name="r" * 300)
    assert said.count("\n") == 1
    known = re.search(r"receipt ([0-9a-f]{32}) is issued \(event \d+\)", said)[1]
    assert house.cli("receipt", "revoke", known, "--reason", "its file is lost")[0] == 0


def test_an_agent_and_a_process_without_a_terminal_issue_nothing(desk, house):
    words = [
        "receipt",
        "issue",
        *desk.flags(work=False),
        "--session",
        "s1",
        "--expires",
        (house.now + timedelta(hours=1)).isoformat(),
        "--authority",
        "yes",
        "--out",
        house.folder / "r.json",
    ]
    for session in ("s1", None):
        house.be(session)
        assert house.cli(*words)[0] == 4
    assert house.cli("--actor", "codex:x", *words)[0] == 4
    assert not (house.folder / "r.json").exists()
    assert house.types() == ["ledger.opened", *["admission.refused"] * 3]


def test_neither_the_words_nor_a_key_enter_the_log(desk, house):
    desk.issue("assignment.submit_text")
    desk.use()
    raw = b"".join(path.read_bytes() for path in (house.folder / ".gatebook").iterdir() if path.is_file())
    assert b"hand it in" not in raw
    for path in (house.folder / "home").rglob("receipt"):
        assert path.read_bytes().strip() not in raw


def test_each_check_has_its_own_message(desk, house):
    desk.issue("assignment.submit_text")
    assert desk.denied(at="https://other.example.edu") == "origin"
    assert desk.denied(course="9") == "course"
    assert desk.denied(target=("assignment", "9")) == "target"
    assert desk.denied(target=("quiz", "200001")) == "target"
    assert desk.denied(action="assignment.submit_url") == "action"
    house.be("s2")
    assert desk.denied() == "session"
    house.be(None)
    assert desk.denied() == "session"
    assert desk.use("--session", "s1", verb="check")["allowed"]
    house.be("s1")
    assert desk.use(at="HTTPS://Canvas.Example.EDU:443/")["allowed"]


def test_a_changed_receipt_names_the_field_that_differs(desk, house):
    desk.issue("assignment.submit_text")
    path = house.folder / "r.json"
    whole = json.loads(path.read_text())
    changes = {
        "target_id": "9",
        "expires_at": "2099-01-01T00:00:00Z",
        "actions": ["assignment.comment"],
        "signature": "0" * 128,
        "user": "root2",
        "extra": 1,
    }
    for field, value in changes.items():
        path.write_text(json.dumps({**whole, field: value}))
        found = desk.use()
        assert found["reason"].startswith("signature")
        assert field in found["reason"]
    for value in (2, True, "1", None):
        path.write_text(json.dumps({**whole, "version": value}))
        assert desk.denied() == "version"
    path.write_text(json.dumps({**whole, "receipt_id": "0" * 32}))
    assert "issued no such receipt" in desk.use()["reason"]
    path.write_text(json.dumps(whole))
    assert desk.use()["allowed"]


@pytest.mark.parametrize("fault", ["missing", "fail", "no pass", "no folder"])
def test_the_verification_gate_comes_before_consumption(desk, fault):
    desk.issue("assignment.submit_text")
    log = desk.work / "verification.log"
    if fault == "missing":
        log.unlink()
    elif fault == "fail":
        log.write_text("PASS\nFAIL\n")
    elif fault == "no pass":
        log.write_text("ok\n")
    assert desk.denied(work=fault != "no folder") == "verification_missing"
    log.write_text("PASS\n")
    assert desk.use()["allowed"]


def test_evidence_digests_stand_in_the_consumption(desk, house):
    from blake3 import blake3

    from ledger.access import open_ledger

    desk.issue("assignment.submit_text")
    desk.use()
    opened = open_ledger(str(house.folder / ".gatebook"))
    data = json.loads(opened.store.reader().of_type("receipt.consumed", 1)[0].data)
    opened.close()
    assert data["verification"] == blake3(b"PASS\n").hexdigest()
    assert data["draft"] == blake3(b"Answer: 42.\n").hexdigest()


def test_an_expired_receipt_allows_nothing(desk):
    desk.issue("assignment.submit_text", seconds=1)
    time.sleep(1)
    assert desk.denied() == "expired"


def test_a_quiz_is_started_answered_and_completed_once(desk):
    quiz = ("quiz", "7")
    desk.issue("quiz.start", "quiz.answer", "quiz.complete", target=quiz)
    assert desk.use(action="quiz.start", target=quiz, work=False)["terminal"] is False
    assert desk.denied(action="quiz.start", target=quiz, work=False) == "usage"
    for count in (1, 2):
        assert desk.use(action="quiz.answer", target=quiz)["count"] == count
    assert desk.denied(action="quiz.complete", target=quiz, work=False) == "verification_missing"
    assert desk.use(action="quiz.complete", target=quiz)["terminal"] is True
    assert desk.denied(action="quiz.answer", target=quiz) == "usage"


def test_a_receipt_with_a_retake_is_finalized_only_after_a_complete(desk, house):
    quiz = ("quiz", "7")
    desk.issue("quiz.complete", "quiz.retake", target=quiz)
    words = ("receipt", "finalize", house.folder / "r.json", "--reason", "kept the first")
    assert house.cli(*words)[0] == 4
    assert desk.use(action="quiz.complete", target=quiz)["terminal"] is False
    assert house.cli(*words)[0] == 0
    assert desk.denied(action="quiz.retake", target=quiz, work=False) == "usage"
    assert house.cli(*words)[0] == 4


def test_a_template_is_delegated_downwards_and_never_consumed(desk, house):
    template = ("automation_template", "weekly")
    desk.issue("assignment.comment", "assignment.submit_text", target=template, name="t.json")
    assert desk.denied(target=template, name="t.json") == "target"

    def delegate(*more, action="assignment.comment", target=("assignment", "200001"), hours=0.5, code=0):
        expires = (house.now + timedelta(hours=hours)).isoformat()
        found = house.cli("receipt", "delegate", house.folder / "t.json", "--target-type", target[0], "--target", target[1], "--action", action, "--session", "s1", "--expires", expires, "--out", house.folder / "c.json", *more)  # fmt: skip
        assert found[0] == code, found
        return found

    delegate()
    assert desk.use(action="assignment.comment", name="c.json")["allowed"]
    delegate(hours=2, code=4)
    delegate(action="quiz.start", target=("quiz", "1"), code=4)
    delegate(target=template, code=4)
    delegate(action="assignment.submit_text")
    told = {"origin": desk.flags()[1], "target_type": "assignment", "target_id": "200001"}
    assert checked(house, "c.json").items() >= told.items()
    whole = (house.folder / "t.json").read_text()
    (house.folder / "t.json").write_text(whole.replace('"weekly"', '"daily"'))
    assert "target_id differs" in delegate(code=4)[2]
    assert house.types()[-1] == "receipt.denied"
    (house.folder / "t.json").write_text(whole)
    parent = json.loads((house.folder / "t.json").read_text())["receipt_id"]
    assert house.cli("receipt", "revoke", parent, "--reason", "changed my mind")[0] == 0
    assert desk.denied(name="c.json") == "usage"
    with pytest.raises(Refused, match="parent was closed"):
        checked(house, "c.json")
    delegate(code=4)


def test_a_receipt_that_a_restore_voided_is_shown_as_closed(desk, house):
    issued = desk.issue("assignment.comment")
    assert house.cli("backup", house.folder / "copy.db")[0] == 0
    assert desk.use(action="assignment.comment")["allowed"]
    house.restore(house.folder / "copy.db")
    shown = house.cli("state", "receipts", issued["receipt_id"], "--json")[1]["state"]
    assert shown["closed"] == f"voided by the restore at event {issued['seq'] + 1}"
    assert desk.denied(action="assignment.comment") == "usage"


def checked(house, name):
    """What `run next --receipt` passes on, or its refusal."""
    from commands.plan_runs.authorization import checked_for_hand_off
    from ledger.access import open_ledger

    opened = open_ledger(str(house.folder / ".gatebook"))
    try:
        return checked_for_hand_off(opened, str(house.folder / name), "s1")
    finally:
        opened.close()


def test_a_revoked_receipt_is_shown_and_allows_nothing(desk, house):
    issued = desk.issue("assignment.submit_text")
    assert house.cli("receipt", "revoke", issued["receipt_id"], "--reason", "no")[0] == 0
    code, shown, _ = house.cli("receipt", "show", issued["receipt_id"])
    assert code == 0
    assert "revoked" in shown["closed"]
    assert "signature" not in shown
    assert desk.denied() == "usage"
    assert house.cli("receipt", "show", "0" * 32)[0] == 4


def test_a_synthetic_receipt_is_issued_for_loopback_only(desk):
    desk.issue("assignment.submit_text", synthetic=True, code=1)
    desk.issue("assignment.submit_text", synthetic=True, at="http://127.0.0.1:8080")
    assert desk.use(at="http://127.0.0.1:8080")["allowed"]


def test_eight_processes_consuming_one_receipt_have_one_winner(desk, house):
    desk.issue("assignment.submit_text")
    racers = [house.start("receipt", "consume", house.folder / "r.json", *desk.flags()) for _ in range(8)]
    ends = [(json.loads(racer.communicate()[0]), racer.returncode) for racer in racers]
    assert sorted(code for _, code in ends) == [0, *[4] * 7]
    assert [found["allowed"] for found, _ in ends].count(True) == 1
    assert house.types().count("receipt.consumed") == 1
    assert house.types().count("receipt.denied") == 7


def test_the_python_call_is_the_same_and_raises(desk, house):
    desk.issue("assignment.submit_text")
    asked = {
        "origin": URL,
        "course_id": 100001,
        "target_type": "assignment",
        "target_id": 200001,
        "action": "assignment.submit_text",
        "work_dir": str(desk.work),
    }
    assert require_mutation_authorization(str(house.folder / "r.json"), **asked)["allowed"] is True
    with pytest.raises(Refused, match="usage"):
        require_mutation_authorization(str(house.folder / "r.json"), **asked)


def test_a_submitted_result_needs_its_consumption_in_the_log(desk, house):
    issued = desk.issue("assignment.submit_text", seconds=9000)
    house.ready("1")
    assert (
        house.ok("run", "next", "--receipt", house.folder / "r.json")["receipt"]["receipt_id"]
        == issued["receipt_id"]
    )
    submitted = {
        "status": "submitted", "submitted_at": (house.now + timedelta(minutes=1)).isoformat(), "authorization_receipt_id": issued["receipt_id"],
        "authorization_consumed": True, "metadata": {"canvas_workflow_state": "submitted", "readback_verified": True},
    }  # fmt: skip
    house.put(1, submitted)
    assert "consumption" in house.ok("run", "next")["result_fault"]
    desk.use()
    assert house.ok("run", "next")["done"] is True
    entry = house.processed()[house.key(1)]
    assert (entry["status"], entry["authorization_receipt_id"], entry["authorization_consumed"]) == (
        "submitted",
        issued["receipt_id"],
        True,
    )
    assert "nonce" not in json.dumps(entry)
    house.ok("run", "report")
    house.ok("run", "finalize")


def test_a_quiz_that_was_completed_is_submitted_although_its_retake_was_left(desk, house):
    snapshot = json.loads((house.run / "assignments.json").read_text())
    snapshot[0] |= {"quiz_id": 7, "kind": "quiz"}
    (house.run / "assignments.json").write_text(json.dumps(snapshot))
    issued = desk.issue("quiz.complete", "quiz.retake", target=("quiz", "7"))
    house.ready("1")
    house.ok("run", "next")
    desk.use(action="quiz.complete", target=("quiz", "7"))
    house.put(1, {
        "status": "submitted", "kind": "quiz", "submitted_at": (house.now + timedelta(minutes=1)).isoformat(), "authorization_receipt_id": issued["receipt_id"],
        "authorization_consumed": True, "metadata": {"canvas_workflow_state": "graded", "readback_verified": True}, "kept_score": 4.5, "points_possible": 5,
        "attempts_used": 1, "allowed_attempts": 2, "scoring_policy": "keep_highest", "agent_passes_count": 4,
    })  # fmt: skip
    assert house.ok("run", "next")["accepted"]["status"] == "submitted"


def test_a_profiles_own_action_comes_from_the_users_config(desk, house):
    config = house.folder / "home" / "config" / "gatebook"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.toml").write_text(
        '[receipt_actions."assignment.peer_review"]\nlimit = 2\nterminal = false\n'
    )
    desk.issue("assignment.peer_review")
    (config / "config.toml").unlink()
    assert [desk.use(action="assignment.peer_review")["count"] for _ in range(2)] == [1, 2]
    assert desk.denied(action="assignment.peer_review") == "usage"
    desk.issue("assignment.peer_review", code=1)
    desk.issue("assignment.*", code=1)


def test_work_that_waits_for_a_profiles_own_action_is_a_canonical_result(house):
    """The notes name an action that only the user's config knows; the report offers a receipt for it."""
    config = house.folder / "home" / "config" / "gatebook"
    config.mkdir(parents=True, exist_ok=True)
    (config / "config.toml").write_text(
        '[receipt_actions."assignment.peer_review"]\nlimit = 2\nterminal = false\n'
    )
    house.ready("1")
    waits = {
        "status": "skipped",
        "reason_code": "authorization_required",
        "notes": "needs assignment.peer_review on 200001",
    }
    house.ok("run", "next")
    house.put(1, waits)
    assert house.ok("run", "next")["accepted"]["status"] == "skipped"
    report = (house.run / "REPORT.md").read_text()
    assert "--target 200001 --action assignment.peer_review --session" in report


def test_nothing_is_issued_where_the_receipts_file_cannot_be_made(desk, house):
    for name in ("gone/r.json", "runs"):
        err = desk.issue("assignment.submit_text", name=name, code=1)
        assert err.count("\n") == 1
        assert f"--out {house.folder / name}" in err
    assert "receipt.issued" not in house.types()
    desk.issue("assignment.comment", target=("automation_template", "weekly"), name="t.json")
    expires = (house.now + timedelta(hours=0.5)).isoformat()
    code, _, err = house.cli("receipt", "delegate", house.folder / "t.json", "--target-type", "assignment", "--target", "200001", "--action", "assignment.comment", "--session", "s1", "--expires", expires, "--out", house.folder / "gone" / "c.json")  # fmt: skip
    assert (code, err.count("\n")) == (1, 1)
    assert house.types().count("receipt.issued") == 1


def test_a_receipt_of_another_ledger_is_unknown_here(desk, house):
    desk.issue("assignment.submit_text")
    house.cli("--ledger", house.folder / "other", "init")
    code, found, _ = house.cli(
        "--ledger", house.folder / "other", "receipt", "consume", house.folder / "r.json", *desk.flags()
    )
    assert (code, found["reason"].split(":")[0]) == (4, "signature")
