"""Words become decisions in the log and then in plan.json; one session claims the run."""

import json
import os
import shutil
from datetime import timedelta

import pytest

from commands.plan_runs import plan_digest


def load(path):
    return json.loads(path.read_bytes())


def test_parse_says_what_the_words_decide_and_changes_no_file(house):
    before = (house.run / "plan.json").read_bytes()
    found = house.ok("plan", "parse", "--text", "1,3")
    assert found["decisions"] == {"1": "approve", "2": "defer", "3": "approve", "4": "defer", "5": "defer"}
    assert (found["approved_indices"], found["deferred_indices"]) == ([1, 3], [2, 4, 5])
    assert (found["scope"], found["grants_canvas_mutation"], found["raw_text"]) == (
        "execution_only",
        False,
        "1,3",
    )
    assert (house.run / "plan.json").read_bytes() == before
    assert house.types() == ["ledger.opened", "plan.proposed"]


def test_parse_that_asks_exits_2_and_writes_nothing(house):
    code, found, _ = house.on("plan", "parse", "--text", "do the important ones")
    assert (code, found["kind"], found["decisions"]) == (2, "clarify", {})
    code, found, _ = house.on("plan", "approve", "--text", "swap 1/2")
    assert (code, found["kind"]) == (2, "clarify")
    assert house.types() == ["ledger.opened"]


def test_parse_needs_no_ledger(house):
    shutil.rmtree(house.folder / ".gatebook")
    assert house.ok("plan", "parse", "--text", "all")["kind"] == "apply"
    house.refused(2, "plan", "approve", "--text", "all")


def test_words_may_come_on_stdin(house):
    done = house.start("plan", "parse", "--run-dir", house.run, "--text", "-", stdin=-1)
    out, _ = done.communicate("全部做。\n")
    assert json.loads(out)["kind"] == "apply"


def test_a_swap_needs_a_discoverable_skill_that_the_routes_keep(house):
    skill = house.folder / "skills" / "canvas-essay"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: canvas-essay\n---\n")
    words = ("plan", "parse", "--text", "swap 1 to canvas-essay")
    assert house.on(*words)[0] == 2
    assert house.ok(*words, "--skills", house.folder / "skills")["decisions"]["1"] == "swap:canvas-essay"
    routes = house.folder / "routes.toml"
    routes.write_text('[routes]\n100001 = "canvas-generic"\n[aliases]\ncanvas-essay = "canvas-writing"\n')
    code, found, _ = house.on(*words, "--skills", house.folder / "skills", "--routes", routes)
    assert code == 2
    assert "canvas-writing" in found["clarification"]
    routes.write_text('[routes]\n100001 = "canvas-other"\n')
    assert "the routes give canvas-other" in house.refused(1, *words, "--routes", routes)


def test_an_invalid_or_stale_plan_asks_for_a_new_scan(house):
    for words in (("plan", "parse", "--text", "all"), ("plan", "approve", "--text", "all")):
        house.plan(house.run, expires_at=(house.now - timedelta(minutes=1)).isoformat())
        code, found, err = house.on(*words)
        assert (code, found["next_step"]) == (1, "run canvas-scan again")
        assert "has passed" in err
        (house.run / "plan.json").write_text("{")
        assert house.on(*words)[0] == 1
        (house.run / "assignments.json").unlink()
        assert house.on(*words)[0] == 1
        house.plan(house.run)
    assert house.types() == ["ledger.opened"]


def test_a_full_disk_after_the_event_is_told_with_what_is_recorded_and_the_next_command_completes(
    house, monkeypatch
):
    from ledger import files

    def full(*_given, **_more):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "rename", full)
        said = house.refused(1, "plan", "approve", "--text", "all")
    assert "plan.json: No space left on device: event 3 is recorded; once that is mended the next" in said
    assert house.types()[-1] == "plan.approved"
    house.ok("run", "claim")
    assert (house.run / "plan.json").read_bytes().count(b'"user_decision": "approve"') == 5


def test_recording_needs_a_valid_plan_of_any_day(house):
    house.plan(house.run, expires_at=(house.now - timedelta(minutes=1)).isoformat())
    assert house.ok("plan", "record")["recorded"] is True
    (house.run / "plan.json").write_text("{")
    code, found, _ = house.on("plan", "record")
    assert (code, found["next_step"]) == (1, "run canvas-scan again")


def test_only_todays_run_is_approved(house):
    yesterday = house.day((house.now - timedelta(days=1)).date().isoformat())
    assert house.on("plan", "parse", "--text", "all", run=yesterday)[0] == 1
    when = (house.now - timedelta(days=1)).isoformat()
    house.plan(yesterday, generated_at=(house.now - timedelta(days=2)).isoformat())
    assert house.ok("plan", "parse", "--text", "all", "--now", when, run=yesterday)["kind"] == "apply"


def test_approving_decides_every_item_in_the_log_and_then_in_the_file(house):
    before = plan_digest(load(house.run / "plan.json"))
    found = house.ok("plan", "approve", "--text", "all; defer 2")
    plan = load(house.run / "plan.json")
    assert [item["user_decision"] for item in plan["items"]] == [
        "approve",
        "defer",
        "approve",
        "approve",
        "approve",
    ]
    assert (found["digest_before"], found["plan_digest"]) == (before, plan_digest(plan))
    state = house.state()
    assert (state.current, state.approval.session_id) == (plan_digest(plan), "s1")
    assert house.types() == ["ledger.opened", "plan.proposed", "plan.approved"]


def test_a_plan_is_recorded_once_and_a_re_scan_voids_the_approval(house):
    assert house.ok("plan", "record")["recorded"] is True
    assert house.ok("plan", "record")["recorded"] is False
    house.ok("plan", "approve", "--text", "all")
    assert house.ok("plan", "record")["recorded"] is False
    house.plan(house.run, note="a new scan")
    assert house.ok("plan", "record")["recorded"] is True
    assert house.state().approval is None
    assert "undecided" in house.refused(4, "run", "claim")


def test_without_a_session_nothing_is_approved_or_claimed(house):
    house.be(None)
    for words in (("plan", "approve", "--text", "all"), ("run", "claim")):
        assert "no session id" in house.refused(4, *words)
    house.ok("plan", "approve", "--text", "all", "--session", "hooked")
    assert house.ok("run", "claim", "--session", "hooked")["session_id"] == "hooked"
    house.be("s1")
    assert "is not this session" in house.refused(4, "run", "claim", "--session", "hooked")


def test_a_crash_between_event_and_file_is_completed_by_the_next_command(house):
    before = (house.run / "plan.json").read_bytes()
    house.ok("plan", "approve", "--text", "1")
    decided = (house.run / "plan.json").read_bytes()
    (house.run / "plan.json").write_bytes(before)
    assert house.ok("run", "claim")["outcome"] == "created"
    assert (house.run / "plan.json").read_bytes() == decided


def test_a_claim_makes_the_marker_of_the_contract(house):
    house.ok("plan", "approve", "--text", "1,2")
    found = house.ok("run", "claim")
    marker = load(house.marker())
    assert found["outcome"] == "created"
    assert (marker["session_id"], marker["owner_kind"], marker["plan_digest"]) == (
        "s1",
        "codex",
        plan_digest(load(house.run / "plan.json")),
    )
    assert marker["claim_nonce"] == found["claim_nonce"]
    assert "results_prepared_at" not in marker
    assert house.ok("run", "claim")["outcome"] == "resumed"
    assert house.types()[-2:] == ["marker.claimed", "marker.resumed"]


def test_another_session_is_told_who_holds_the_run_and_touches_nothing(house):
    house.ready()
    raw, plan = house.marker().read_bytes(), (house.run / "plan.json").read_bytes()
    house.be("s2")
    for words in (
        ("run", "claim"),
        ("plan", "approve", "--text", "all"),
        ("run", "prepare-results"),
        ("run", "next"),
        ("run", "finalize"),
        ("run", "pause", "--reason", "x"),
    ):
        # `run finalize` refuses whatever does not hold with 4, the owner too; every other step says 5.
        err = house.refused(4 if words[1] == "finalize" else 5, *words)
        assert "s1" in err
        assert load(house.marker())["created_at"] in err
    assert (house.marker().read_bytes(), (house.run / "plan.json").read_bytes()) == (raw, plan)
    assert house.types().count("marker.refused") == 5
    assert house.types().count("admission.refused") == 1


def test_the_plan_of_a_held_run_is_recorded_already_and_another_one_waits(house):
    house.ready()
    assert house.ok("plan", "record")["recorded"] is False
    house.plan(house.run, 4)
    assert "s1 holds the run" in house.refused(5, "plan", "record")


def test_an_approval_belongs_to_its_session_plan_and_turn(house):
    assert "undecided" in house.refused(4, "run", "claim")
    house.ok("plan", "approve", "--text", "skip")
    house.be("s2")
    assert "approved in session s1" in house.refused(4, "run", "claim")
    house.be("s1")
    edited = load(house.run / "plan.json")
    edited["items"][0]["user_decision"] = "approve"
    (house.run / "plan.json").write_text(json.dumps(edited))
    assert "changed plan" in house.refused(4, "run", "claim")
    assert not house.marker().exists()
    edited["items"][0]["user_decision"] = "defer"
    (house.run / "plan.json").write_text(json.dumps(edited))
    house.ok("run", "claim")
    house.ok("run", "prepare-results")
    house.ok("run", "report")
    house.ok("run", "finalize")
    assert "no unused approval" in house.refused(4, "run", "claim")
    house.ok("plan", "approve", "--text", "skip")
    assert house.ok("run", "claim")["outcome"] == "created"


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"session_id":"s1"}', b"\xff"])
def test_a_malformed_marker_is_kept_byte_for_byte(house, raw):
    house.ok("plan", "approve", "--text", "all")
    house.marker().write_bytes(raw)
    assert "kept" in house.refused(4, "run", "claim")
    assert house.on("plan", "approve", "--text", "all")[0] == 4
    assert house.marker().read_bytes() == raw
    assert house.types()[-2:] == ["marker.refused", "admission.refused"]


def foreign(house, session, **more):
    raw = json.dumps({"session_id": session, "owner_kind": "codex", "created_at": "2026-11-30T09:00:00Z", "plan_digest": plan_digest(load(house.run / "plan.json")), "their": "field", **more}).encode()  # fmt: skip
    house.marker().write_bytes(raw)
    return raw


@pytest.mark.parametrize("nonce", ["another tool's", "0" * 32, None, 5])
def test_another_ledgers_claim_of_this_session_is_resumed_and_goes_on(house, nonce):
    house.ok("plan", "approve", "--text", "all")
    foreign(house, "s1", claim_nonce=nonce)
    claim = house.ok("run", "claim")
    assert claim["outcome"] == "resumed"
    assert json.loads(house.marker().read_bytes())["claim_nonce"] == claim["claim_nonce"]
    house.ok("run", "prepare-results")
    house.ok("run", "next")


def test_an_owner_or_a_digest_that_was_changed_in_the_marker_is_believed_to_nobody(house):
    house.ready("all")
    fields = json.loads(house.marker().read_bytes())
    for change, code in ({"session_id": "s2"}, 5), ({"plan_digest": "0" * 64}, 4):
        raw = json.dumps({**fields, **change}).encode()
        house.marker().write_bytes(raw)
        for words in (("run", "claim"), ("run", "prepare-results"), ("run", "next")):
            house.refused(code, *words)
        assert house.marker().read_bytes() == raw
        guard = house.start("guard", "stop", stdin=-1)
        assert "block" in guard.communicate(json.dumps({"session_id": "s1"}), timeout=20)[0]


def test_another_tools_marker_is_another_owner_or_is_resumed_by_its_own_session(house):
    house.ok("plan", "approve", "--text", "1")
    raw = foreign(house, "other")
    assert "other" in house.refused(5, "run", "claim")
    assert house.on("plan", "approve", "--text", "1")[0] == 5
    assert house.marker().read_bytes() == raw
    raw = foreign(house, "s1", plan_digest="0" * 64)
    assert "kept for inspection" in house.refused(4, "run", "claim")
    assert house.marker().read_bytes() == raw
    foreign(house, "s1")
    assert house.ok("run", "claim")["outcome"] == "resumed"
    assert load(house.marker())["their"] == "field"
    house.ok("run", "prepare-results")


def test_a_claim_that_crashed_before_its_event_is_made_again(house):
    house.ok("plan", "approve", "--text", "1")
    nonce = house.cli("init")[1]["ledger_id"][:8] + "0" * 24
    foreign(house, "dead", claim_nonce=nonce)
    assert house.ok("run", "claim")["outcome"] == "created"
    assert load(house.marker())["session_id"] == "s1"


def test_a_lost_marker_file_is_told_and_put_back_by_a_claim(house):
    house.ready()
    house.marker().unlink()
    assert "run claim" in house.refused(4, "run", "next")
    house.ok("run", "claim")
    assert "not prepared" in house.refused(4, "run", "next")
    house.ok("run", "prepare-results")
    house.ok("run", "next")


def test_eight_processes_claiming_have_one_winner(house):
    house.ok("plan", "approve", "--text", "all")
    env = {"CODEX_THREAD_ID": "s1"}
    racers = [house.start("run", "claim", "--run-dir", house.run, env=env) for _ in range(4)]
    racers += [
        house.start("run", "claim", "--run-dir", house.run, env={"CODEX_THREAD_ID": f"other{n}"})
        for n in range(4)
    ]
    ends = [(racer.communicate()[0], racer.returncode) for racer in racers]
    mine = [json.loads(out)["outcome"] for out, code in ends[:4] if code == 0]
    assert sorted(mine) == ["created", "resumed", "resumed", "resumed"]
    assert all(code in (4, 5) for _, code in ends[4:])
    assert house.types().count("marker.claimed") == 1
    assert load(house.marker())["session_id"] == "s1"
    assert not [name for name in os.listdir(house.run) if name.endswith(".tmp")]


def test_two_runs_folders_on_one_day_never_share_a_stream(house):
    other = house.folder / "more" / house.today
    other.mkdir(parents=True)
    house.plan(other)
    house.ok("plan", "record")
    house.ok("plan", "record", run=other)
    house.ok("plan", "record")
    from ledger.access import open_ledger

    opened = open_ledger(str(house.folder / ".gatebook"))
    assert opened.store.reader().streams("run") == [f"run/1-{house.today}", f"run/2-{house.today}"]
    opened.close()


def test_a_credential_in_the_words_or_the_plan_is_refused(house):
    house.plan(house.run, note="ghp_" + "a1B2" * 9)
    assert "credential" in house.refused(4, "plan", "record")
    assert house.types() == ["ledger.opened"]
