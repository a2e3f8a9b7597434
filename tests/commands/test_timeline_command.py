"""`timeline` of whole stories: spans begin and end with the events that made them."""

from __future__ import annotations

import pytest
import stories

from commands.timeline.command import picture
from ledger.access import open_ledger


@pytest.fixture
def told(cli):
    cli.run_seqs = stories.plan_run(cli)
    cli.session_seqs = stories.review(cli)
    cli.request_seqs = stories.dispatch(cli)
    return cli


def items(cli, correlation=None):
    ledger = open_ledger(cli.ledger)
    try:
        return picture(ledger, correlation)[0]
    finally:
        ledger.close()


def find(found, kind, lane=""):
    return [item for item in found if item.kind == kind and item.lane.startswith(lane)]


def test_lanes_come_in_their_order_and_hold_every_group(told):
    lanes = list(dict.fromkeys(item.lane for item in items(told)))
    wanted = [
        "approvals",
        "marker",
        "items",
        "attempts",
        "circuit",
        "rounds",
        "stage exec",
        "receipts",
        "delivery",
        "refusals",
        "other",
    ]
    places = [next(at for at, lane in enumerate(lanes) if lane.startswith(name)) for name in wanted]
    assert places == sorted(places)


def test_every_event_is_on_the_picture_or_ends_something_that_is(told):
    found = items(told)
    ends = {
        "receipt.revoked",
        "round.reviewed",
        "dispatch.returned",
        "dispatch.concluded",
        "result.recorded",
        "stages.cleared",
    }
    rows = told.sql("SELECT seq, type FROM events")
    missing = {kind for seq, kind in rows if seq not in {item.seq for item in found}}
    assert missing <= ends


def test_a_hold_lasts_from_claim_to_the_end_of_the_run(told):
    (hold,) = find(items(told), "hold", "marker")
    assert hold.seq == told.run_seqs["claimed"]
    assert hold.end is not None
    assert "run.finalized" in hold.detail


def test_an_item_is_an_attempt_from_hand_off_to_result(told):
    first, second = find(items(told), "attempt", "items")
    assert (first.label, second.label) == ("item 1", "item 2")
    assert "draft_ready" in first.detail
    assert first.start < first.end <= second.start


def test_a_failed_attempt_opens_a_circuit_that_cools_down(told):
    found = items(told)
    (failed,) = find(found, "failure", "attempts openai|codex")
    assert "availability_failure" in failed.detail
    (cooldown,) = find(found, "cooldown")
    assert cooldown.lane == "circuit openai|codex"
    (good,) = find(found, "attempt", "attempts anthropic|native")
    assert "succeeded" in good.detail


def test_stages_rise_and_fall(told):
    assert [item.end for item in find(items(told), "stage")] == [None] * 4
    told.record(stories.SESSION, "stages.cleared", {"fence": 1, "reason": "executor-round"})
    fallen = find(items(told), "stage")
    assert all(item.end is not None and "executor-round" in item.detail for item in fallen)


def test_a_receipt_is_open_until_its_terminal_use(told):
    (receipt,) = find(items(told), "receipt")
    (used,) = find(items(told), "consumed")
    assert receipt.end == used.start


def test_a_correlation_or_a_stream_selects(told):
    seqs = {item.seq for item in items(told, "plans-2026-11-30")}
    assert seqs <= set(told.run_seqs.values())
    assert {item.seq for item in items(told, stories.DISPATCH)} <= set(told.request_seqs.values())
    code, out, err = told("timeline", "nobody")
    assert (code, out) == (1, "")
    assert "nobody" in err


def test_a_redaction_is_said_where_it_lies(told):
    told.sql(f"UPDATE events SET content = NULL, salt = NULL WHERE seq = {told.run_seqs['approved']}")
    told.record("ledger", "ledger.redacted", {"events": [told.run_seqs["approved"]]}, "asked to")
    approval = next(item for item in items(told) if item.seq == told.run_seqs["approved"])
    assert "content redacted" in approval.detail
    (erased,) = find(items(told), "redaction")
    assert str(told.run_seqs["approved"]) in erased.label


def test_text_page_and_picture_are_made(told):
    assert "approvals" in told.ok("timeline")
    assert told.json("timeline", "--html", "t.html")["items"] == len(items(told))
    assert told.json("timeline", stories.RUN, "--svg", "t.svg")["path"] == "t.svg"
    with open("t.html", encoding="utf-8") as file:
        assert "plan approved" in file.read()
    with open("t.svg", encoding="utf-8") as file:
        assert file.read().startswith("<svg")
    assert told("timeline", "--html", "a", "--svg", "b")[0] == 2


def test_a_new_ledger_has_a_timeline(cli):
    assert "other events" in cli.ok("timeline")


def test_a_large_ledger_shows_its_newest_events_and_says_so(cli, monkeypatch):
    monkeypatch.setattr("commands.timeline.command.MOST", 50)
    cli.notes(80)
    assert "31 earlier ones are left out" in cli.ok("timeline")


def test_a_runs_timeline_shows_what_was_refused_in_it(cli):
    import stories

    stories.plan_run(cli)
    cli.record("refusal/2026-11-30", "marker.refused", {"type": "marker.claimed", "stream": stories.RUN, "reason": "taken", "digest": "0" * 64})  # fmt: skip
    assert "refusals" in cli.ok("timeline", stories.RUN)


def test_a_file_that_cannot_be_written_is_named_as_it_was_given(cli):
    cli.note(1)
    code, _, err = cli("timeline", "--svg", "nowhere/t.svg")
    assert code == 1
    assert "nowhere/t.svg" in err
    assert ".tmp" not in err


def test_control_characters_do_not_reach_the_terminal(cli):
    import stories

    data = stories.complete("dispatch.attempted", {"candidate": "a\x1b[31m\x9bb", "provider": "p\x1b[2J", "executor": "e"})  # fmt: skip
    cli.record("dispatch/d-1", "dispatch.attempted", data)
    out = cli.ok("timeline")
    assert "\x1b" not in out
    assert "\x9b" not in out
