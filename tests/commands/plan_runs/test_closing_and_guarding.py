"""Report, delivery, finalisation; recovery of past days; the Stop guard."""

import io
import json
import os
import time
from datetime import timedelta

import pytest

from commands.plan_runs import plan_digest

SKIP = {"status": "skipped", "notes": "The course is closed."}


def load(path):
    return json.loads(path.read_bytes())


def finished(house, text="1,2"):
    house.ready(text)
    house.ok("run", "execute", "--handoff", house.script())


def test_a_run_ends_when_everything_holds_and_the_marker_goes_last(house):
    finished(house)
    (house.run / "REPORT.md").unlink()
    assert "REPORT.md" in house.refused(4, "run", "finalize")
    assert house.marker().exists()
    house.ok("run", "report")
    found = house.ok("run", "finalize")
    assert found["statuses"] == {"draft_ready": 2, "skipped": 3}
    assert not house.marker().exists()
    assert house.types()[-2:] == ["run.finalized", "marker.released"]
    assert house.ok("run", "finalize") == found
    house.be("s2")
    assert "was finalized by session s1" in house.refused(4, "run", "finalize")


@pytest.mark.parametrize("step", ["execute", "next", "pause", "finalize"])
def test_the_step_that_brings_the_last_result_writes_the_report(house, step):
    house.ready("1")
    if step == "execute":
        house.ok("run", "execute", "--handoff", house.script())
    elif step == "pause":
        house.ok("run", "pause", "--reason", "no quota")
    else:
        house.ok("run", "next")
        assert not (house.run / "REPORT.md").exists()
        house.put(1, SKIP)
        if step == "next":
            assert house.ok("run", "next")["done"] is True
    if step != "finalize":
        assert (house.run / "REPORT.md").read_text().startswith("✅")
    house.ok("run", "finalize")
    assert house.types().count("run.reported") == 1
    assert (house.run / "REPORT.md").read_text().startswith("✅")


def test_a_report_that_a_crash_kept_from_its_file_is_written_by_the_same_command(house):
    finished(house)
    report = (house.run / "REPORT.md").read_bytes()
    for left in (None, b"older"):
        if left is None:
            (house.run / "REPORT.md").unlink()
        else:
            (house.run / "REPORT.md").write_bytes(left)
        house.ok("run", "execute", "--handoff", house.script())
        assert (house.run / "REPORT.md").read_bytes() == report


def test_a_report_of_somebody_else_without_the_urgent_block_is_kept_and_refused(house):
    house.ready("1")
    house.ok("run", "next")
    house.put(1, SKIP)
    (house.run / "REPORT.md").write_text("# Mine\n")
    assert "urgent block" in house.refused(4, "run", "finalize")
    assert (house.run / "REPORT.md").read_text() == "# Mine\n"


def test_a_report_waits_for_every_result(house):
    house.ready("1,2")
    house.ok("run", "next")
    assert "item 1" in house.refused(4, "run", "report")
    assert not (house.run / "REPORT.md").exists()
    house.put(1, SKIP)
    assert "item 2" in house.refused(4, "run", "finalize")


def test_finalize_says_the_first_missing_piece_and_keeps_the_marker(house):
    finished(house)
    house.ok("run", "report")
    (house.run / "REPORT.md").write_text("# Mine\n")
    assert "urgent block" in house.refused(4, "run", "finalize")
    house.ok("run", "report")
    draft = house.result(1).parent / "draft.md"
    text = draft.read_text()
    draft.write_text("[answer needed]")
    assert "placeholder" in house.refused(4, "run", "finalize")
    draft.write_text(text)
    raw = house.result(3).read_bytes()
    house.result(3).unlink()
    assert "is gone" in house.refused(4, "run", "finalize")
    house.result(3).write_bytes(raw)
    assert house.marker().exists()
    house.ok("run", "finalize")


def test_a_crash_between_the_last_event_and_the_markers_removal_is_completed(house):
    finished(house)
    house.ok("run", "report")
    raw = house.marker().read_bytes()
    house.ok("run", "finalize")
    house.marker().write_bytes(raw)
    assert house.ok("run", "finalize")["finalized"] is True
    assert not house.marker().exists()
    house.marker().write_bytes(raw)
    house.ok("plan", "approve", "--text", "1")
    assert house.ok("run", "claim")["outcome"] == "created"


def test_a_draft_that_a_deferred_item_keeps_is_a_draft_everywhere(house):
    """Report, delivery, counts and state say the same of a valid result of before."""
    house.put(2, {"status": "draft_ready", "draft_path": "draft.md"})
    (house.result(2).parent / "draft.md").write_text("Answer: 41.")
    (house.result(2).parent / "verification.log").write_text("PASS\n")
    house.ready("1")
    house.ok("run", "execute", "--handoff", house.script())
    assert house.state().results[house.key(2)].status == "draft_ready"
    delivered = house.ok("run", "deliver")["drafts"]
    assert [draft["source"] for draft in delivered] == [
        f"{house.key(1)}/draft.md",
        f"{house.key(2)}/draft.md",
    ]
    assert house.ok("run", "finalize")["statuses"] == {"draft_ready": 2, "skipped": 3}
    assert house.cli("replay", "--json")[0] == 0


def test_drafts_are_delivered_under_stable_names_and_the_sources_stay(house):
    finished(house)
    found = house.ok("run", "deliver")
    names = [f"{house.key(place)}__draft.md" for place in (1, 2)]
    assert [draft["name"] for draft in found["drafts"]] == names
    for place, name in zip((1, 2), names, strict=True):
        assert (house.run / "final_drafts" / name).read_text() == (
            house.result(place).parent / "draft.md"
        ).read_text()
    assert names[0] in (house.run / "final_drafts" / "README.md").read_text()
    assert house.ok("run", "deliver")["drafts"] == found["drafts"]


def test_a_cancelled_plan_is_a_run_that_ends_at_once(house):
    house.ready("skip")
    assert house.ok("run", "next")["done"] is True
    house.ok("run", "report")
    assert house.ok("run", "finalize")["statuses"] == {"skipped": 5}


def test_a_plan_without_items_is_a_run_too(house):
    house.plan(house.run, 0)
    house.ready("all")
    house.ok("run", "report")
    house.ok("run", "finalize")


def abandoned(house, days=1, prepared=True, session="old"):
    """A run of a past day, claimed and left by `session`."""
    day = (house.now - timedelta(days=days)).date().isoformat()
    when = (house.now - timedelta(days=days)).isoformat()
    run = house.day(day, generated_at=(house.now - timedelta(days=days, hours=1)).isoformat(), expires_at=(house.now - timedelta(days=days, hours=-20)).isoformat())  # fmt: skip
    house.be(session)
    house.ok("plan", "approve", "--text", "1,2", "--now", when, run=run)
    house.ok("run", "claim", "--now", when, run=run)
    if prepared:
        house.ok("run", "prepare-results", "--now", when, run=run)
    house.be("s1")
    return run, day, when


def test_a_past_days_marker_is_recovered_before_a_claim(house):
    run, day, when = abandoned(house)
    house.be("old")
    house.ok("run", "next", "--now", when, run=run)
    house.put(1, SKIP, run)
    house.ok("run", "next", "--now", when, run=run)
    house.be("s1")
    house.ok("plan", "approve", "--text", "1")
    assert house.ok("run", "claim")["recovered"] == [day]
    assert not house.marker(run).exists()
    assert load(house.result(1, run)) == SKIP
    deferred = load(house.result(2, run))
    assert (deferred["status"], deferred["deferred_to_next_run"]) == ("skipped", True)
    assert (run / "REPORT.md").exists()
    assert house.processed()[house.key(2)]["run"] == day
    assert house.state(day).claim is None


def test_a_result_of_a_run_that_was_never_prepared_is_replaced(house):
    run, day, _ = abandoned(house, prepared=False)
    house.put(1, SKIP, run)
    kept = house.put(3, SKIP, run)
    code, found, _ = house.cli("run", "recover", "--runs", house.runs)
    assert (code, found["recovered"]) == (0, [day])
    assert load(house.result(1, run))["deferred_to_next_run"] is True
    assert load(house.result(1, run).parent / "result-history" / "rejected-1.json") == SKIP
    assert house.result(3, run).read_bytes() == kept


def test_another_tools_past_marker_is_recovered_too(house):
    day = (house.now - timedelta(days=1)).date().isoformat()
    run = house.day(day)
    plan = load(run / "plan.json")
    for item in plan["items"]:
        item["user_decision"] = "approve"
    (run / "plan.json").write_text(json.dumps(plan))
    keys = [house.key(place) for place in range(1, 6)]
    marker = {
        "session_id": "theirs",
        "owner_kind": "codex",
        "created_at": "2026-11-30T09:00:00Z",
        "plan_digest": plan_digest(plan),
    }
    marker |= {
        "results_prepared_at": "2026-11-30T09:00:01Z",
        "results_archive_count": 0,
        "prepared_approved_result_keys": keys,
    }
    house.marker(run).write_text(json.dumps(marker))
    house.put(1, SKIP, run)
    assert house.cli("run", "recover", "--runs", house.runs)[1]["recovered"] == [day]
    assert load(house.result(1, run)) == SKIP
    assert load(house.result(2, run))["deferred_to_next_run"] is True
    assert house.types() == ["ledger.opened", "plan.proposed", "marker.recovered"]


@pytest.mark.parametrize("fault", ["malformed", "mismatched", "no snapshot"])
def test_a_past_marker_that_must_be_looked_at_is_kept_and_named(house, fault):
    run, day, _ = abandoned(house)
    if fault == "malformed":
        house.marker(run).write_bytes(b"")
    elif fault == "mismatched":
        plan = load(run / "plan.json")
        plan["items"][0]["user_decision"] = "defer"
        (run / "plan.json").write_text(json.dumps(plan))
    else:
        (run / "assignments.json").unlink()
    raw = house.marker(run).read_bytes()
    code, found, err = house.cli("run", "recover", "--runs", house.runs)
    assert (code, found["recovered"], found["kept"][0]["date"]) == (4, [], day)
    assert day in err
    house.ok("plan", "approve", "--text", "1")
    assert day in house.refused(4, "run", "claim")
    assert house.marker(run).read_bytes() == raw
    assert not house.marker().exists()


def test_a_recovery_that_crashed_after_its_event_is_completed(house):
    run, day, _ = abandoned(house)
    raw = house.marker(run).read_bytes()
    house.cli("run", "recover", "--runs", house.runs)
    house.marker(run).write_bytes(raw)
    house.result(2, run).unlink()
    (run / "REPORT.md").unlink()
    assert house.cli("run", "recover", "--runs", house.runs)[1]["recovered"] == [day]
    assert load(house.result(2, run))["deferred_to_next_run"] is True
    assert (run / "REPORT.md").exists()
    assert not house.marker(run).exists()
    assert house.types().count("marker.recovered") == 1


def test_todays_marker_is_never_recovered(house):
    house.ready("1")
    assert house.cli("run", "recover", "--runs", house.runs)[1] == {"recovered": [], "kept": []}
    assert house.marker().exists()


def hook(house, document, *words):
    process = house.start("guard", "stop", *words, stdin=-1)
    raw = document if isinstance(document, str) else json.dumps(document)
    out, err = process.communicate(raw, timeout=20)
    assert process.returncode == 0
    return json.loads(out), err


def test_the_guard_blocks_the_owner_once_until_every_result_is_valid(house):
    asked = {"session_id": "s1", "stop_hook_active": False}
    assert hook(house, asked) == ({}, "")
    house.ok("plan", "approve", "--text", "1")
    house.ok("run", "claim")
    answer, _ = hook(house, asked)
    assert answer["decision"] == "block"
    assert "prepare-results" in answer["reason"]
    house.ok("run", "prepare-results")
    assert "item 1" in hook(house, asked)[0]["reason"]
    house.ok("run", "next")
    house.put(1, SKIP)
    assert hook(house, asked)[0] == {}
    house.result(1).unlink()
    assert hook(house, {**asked, "stop_hook_active": True})[0] == {}
    assert hook(house, {**asked, "session_id": "s2"})[0] == {}
    house.ok("run", "execute", "--handoff", house.script())
    assert hook(house, asked) == ({}, "")
    plan = load(house.run / "plan.json")
    plan["items"][0]["user_decision"] = "defer"
    (house.run / "plan.json").write_text(json.dumps(plan))
    assert "kept for inspection" in hook(house, asked)[0]["reason"]
    house.marker().write_bytes(b"")
    assert hook(house, asked)[0]["decision"] == "block"


@pytest.mark.parametrize(
    "document", ["", "[]", "{", '{"session_id":""}', '{"session_id":3}', "{}", "\x00" * 100]
)
def test_the_guard_lets_go_with_one_line_when_it_cannot_tell(house, document):
    house.ready("1")
    answer, err = hook(house, document)
    assert answer == {}
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("guard", "stop", "--bogus"),
        ("guard", "stop", "word"),
        ("guard", "stop", "--runs"),
        ("guard", "capture", "--runs", "x"),
        ("--log-level", "loud", "guard", "stop"),
        ("--ledger=", "guard", "stop"),
        ("--bogus", "guard", "stop"),
    ],
)
def test_a_hook_that_is_called_wrongly_lets_the_agent_go_on_too(house, words):
    """An agent takes exit 2 of a Stop hook for a veto: a mistyped flag would keep it from ever stopping."""
    house.ready("1")
    code, answer, err = house.cli(*words)
    assert (code, answer) == (0, {})
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [("guard", "stop"), ("guard", "capture"), ("guard", "stop", "--bogus")])
def test_a_hook_answers_though_stderr_takes_nothing(house, monkeypatch, words):
    """A log file on a full disk: what is wrong cannot be told, and the agent goes on all the same."""

    class Full:
        def write(self, _text):
            raise OSError(28, "No space left on device")

        def flush(self):
            pass

    monkeypatch.setattr("sys.stderr", Full())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    assert house.cli(*words)[:2] == (0, {})


def test_a_word_that_only_looks_like_a_hook_keeps_its_own_exit_code(house):
    for words in (("guard",), ("guard", "stopp"), ("show", "guard", "stop"), ("--ledger", "guard", "stop")):
        assert house.cli(*words)[:2] == (2, None)


def test_the_guard_lets_go_without_a_ledger_and_with_a_broken_one(house, tmp_path):
    house.ready("1")
    asked = {"session_id": "s1"}
    for log in (house.folder / ".gatebook").glob("ledger.db-*"):
        log.unlink()
    (house.folder / ".gatebook" / "ledger.db").write_bytes(b"no database")
    assert hook(house, asked)[0] == {}
    os.rename(house.folder / ".gatebook", house.folder / "gone")
    answer, err = hook(house, asked)
    assert answer == {}
    assert "no ledger here" in err


def test_the_guard_answers_in_five_seconds_when_nobody_ends_its_stdin(house):
    process = house.start("guard", "stop", stdin=-1)
    began = time.monotonic()
    process.wait(10)
    assert time.monotonic() - began < 5.5
    assert json.loads(process.stdout.read()) == {}
    process.communicate()


def test_the_guard_judges_another_tools_run_of_this_session_by_its_files(house):
    plan = load(house.run / "plan.json")
    for item in plan["items"]:
        item["user_decision"] = "approve"
    (house.run / "plan.json").write_text(json.dumps(plan))
    marker = {
        "session_id": "s9",
        "owner_kind": "codex",
        "created_at": "2026-11-30T09:00:00Z",
        "plan_digest": plan_digest(plan),
    }
    house.marker().write_text(json.dumps(marker))
    asked = {"session_id": "s9", "cwd": str(house.folder)}
    assert "not prepared" in hook(house, asked)[0]["reason"]
    marker |= {
        "results_prepared_at": "2026-11-30T09:00:01Z",
        "results_archive_count": 0,
        "prepared_approved_result_keys": [house.key(place) for place in range(1, 6)],
    }
    house.marker().write_text(json.dumps(marker))
    assert "item 1" in hook(house, asked, "--runs", house.runs)[0]["reason"]
    assert hook(house, {**asked, "session_id": "s8"})[0] == {}
    for place in range(1, 6):
        house.put(place, SKIP)
    assert hook(house, asked) == ({}, "")


def test_a_claim_that_a_restore_voided_holds_nothing_and_nobody(house):
    house.ready()
    copy = house.folder / "copy.db"
    assert house.cli("backup", copy)[0] == 0
    before = house.types()
    house.cli("append", "--stream", "x-a/1", "--type", "x.a")
    assert hook(house, {"session_id": "s1"})[0]["decision"] == "block"
    house.restore(copy)
    assert house.marker().exists()
    assert hook(house, {"session_id": "s1"})[0] == {}
    key = f"1-{house.today}"
    assert house.cli("state", "marker", key, "--json")[1]["state"] is None
    assert house.cli("state", "marker", key, "--at", str(len(before)), "--json")[1]["state"] is not None
    assert house.cli("state", "plan", key, "--json")[1]["state"]["approval_used"] is True
    told = house.cli(
        "diff", "marker", key, "--from", str(len(before)), "--to", str(len(before) + 1), "--json"
    )
    assert told[1]["events"] == [len(before) + 1]
    house.ready()
    assert hook(house, {"session_id": "s1"})[0]["decision"] == "block"
