"""`trace`: every step leads back to the person's words, and the words lead forward to every step."""

from __future__ import annotations

import pytest
import stories


def causes(answer) -> set[int]:
    return {node["seq"] for node in answer["causes"]}


def effects(answer) -> set[int]:
    return {node["seq"] for node in answer["effects"]}


@pytest.mark.parametrize(
    "name", ["claimed", "prepared", "handed1", "result1", "deferred", "result2", "reported", "finalized"]
)
def test_each_step_of_a_plan_run_goes_back_to_the_approval(cli, name):
    seqs = stories.plan_run(cli)
    answer = cli.json("trace", seqs[name], "--json")
    assert {seqs["approved"], seqs["proposed"]} <= causes(answer)
    assert "“approve 1-2; defer 3”" in answer["answer"]


def test_a_submitted_result_goes_back_to_the_receipt_and_its_label_too(cli):
    seqs = stories.plan_run(cli)
    answer = cli.json("trace", seqs["result2"], "--json")
    assert {seqs["consumed"], seqs["issued"], seqs["approved"], seqs["handed2"]} <= causes(answer)
    assert seqs["handed1"] not in causes(answer)
    assert "anna/friday" in answer["answer"]


def test_an_approval_leads_forward_to_all_it_caused_and_to_nothing_else(cli):
    seqs = stories.plan_run(cli)
    others = stories.review(cli)
    answer = cli.json("trace", seqs["approved"], "--json")
    expected = {
        seqs[n]
        for n in (
            "claimed",
            "prepared",
            "deferred",
            "handed1",
            "result1",
            "handed2",
            "result2",
            "reported",
            "finalized",
        )
    }
    assert effects(answer) == expected
    assert not effects(answer) & set(others.values())


def test_a_receipt_is_traced_by_its_stream(cli):
    seqs = stories.plan_run(cli)
    answer = cli.json("trace", stories.RECEIPT, "--json")
    assert answer["asked"] == [seqs["issued"], seqs["consumed"]]
    assert seqs["result2"] in effects(answer)
    assert "anna/friday" in answer["answer"]


@pytest.mark.parametrize(
    "name", ["executed", "reviewed", "gate", "exec", "polish", "docs", "security", "commit", "completed"]
)
def test_each_stage_and_delivery_of_a_session_goes_back_to_what_was_asked(cli, name):
    seqs = stories.review(cli)
    answer = cli.json("trace", seqs[name], "--json")
    assert seqs["opened"] in causes(answer)
    assert "“Sort the notes”" in answer["answer"]


def test_a_delivery_rests_on_each_of_the_four_stages(cli):
    seqs = stories.review(cli)
    answer = cli.json("trace", seqs["completed"], "--json")
    last = answer["causes"][0]
    assert {reason["seq"] for reason in last["because"]} == {
        seqs[n] for n in ("exec", "polish", "docs", "security", "commit")
    }


def test_a_stage_that_was_cleared_since_is_no_ground_of_a_delivery(cli):
    seqs = stories.review(cli)
    cleared = cli.record(stories.SESSION, "stages.cleared", {"fence": 1, "reason": "executor-round"})
    again = cli.record(
        stories.SESSION, "stage.minted", {"fence": 1, "stage": "exec", "fingerprint": "1" * 64, "by": "gate"}
    )
    done = cli.record(
        stories.SESSION,
        "delivery.completed",
        {"fence": 1, "fingerprint": "1" * 64, "summary_digest": "2" * 64},
    )
    because = {reason["seq"] for reason in cli.json("trace", done, "--json")["causes"][0]["because"]}
    assert again in because
    assert cleared > seqs["polish"]
    assert not because & {seqs[n] for n in ("exec", "polish", "docs", "security")}


def test_a_commit_is_found_by_the_beginning_of_its_sha(cli):
    seqs = stories.review(cli)
    assert cli.json("trace", "feedface", "--json")["asked"] == [seqs["commit"]]
    event_hash = cli.sql(f"SELECT lower(hex(hash)) FROM events WHERE seq = {seqs['gate']}")[0][0]
    assert cli.json("trace", event_hash, "--json")["asked"] == [seqs["gate"]]


@pytest.mark.parametrize(
    "name",
    ["selected", "attempted", "returned", "selected2", "attempted2", "returned2", "verified", "concluded"],
)
def test_each_step_of_a_dispatch_goes_back_to_the_request(cli, name):
    seqs = stories.dispatch(cli)
    answer = cli.json("trace", seqs[name], "--json")
    assert seqs["requested"] in causes(answer)
    assert "“Make it green”" in answer["answer"]


def test_a_refusal_says_what_was_refused_and_why(cli):
    seqs = stories.dispatch(cli)
    assert "receipt.consumed was refused, expired" in cli.json("trace", seqs["denied"], "--json")["answer"]


def test_given_causation_is_followed_across_streams(cli):
    first = cli.note(1)
    second = cli.json("append", "--stream", "x-b/1", "--type", "x.b", "--causation", str(first))["seq"]
    third = cli.json("append", "--stream", "x-c/1", "--type", "x.c", "--causation", str(second))["seq"]
    assert causes(cli.json("trace", third, "--json")) == {first, second, third}
    assert effects(cli.json("trace", first, "--json")) == {second, third}
    assert "no person's words stand behind" in cli.json("trace", third, "--json")["answer"]


def test_redacted_words_are_said_to_be_redacted(cli):
    seqs = stories.plan_run(cli)
    cli.sql(f"UPDATE events SET content = NULL, salt = NULL WHERE seq = {seqs['approved']}")
    answer = cli.json("trace", seqs["finalized"], "--json")
    assert "(redacted)" in answer["answer"]
    assert [node["seq"] for node in answer["causes"] if node.get("redacted")] == [seqs["approved"]]


def test_text_shows_the_answer_the_tree_and_what_followed(cli):
    seqs = stories.plan_run(cli)
    text = cli.ok("trace", seqs["result2"])
    assert text.startswith(f"event {seqs['result2']} (result.recorded) goes back to plan.approved")
    assert f"under receipt {seqs['consumed']} receipt.consumed" in text
    assert f"{seqs['reported']} run.reported" in text.split("What followed:")[1]
    assert "Nothing rests on it." in cli.ok("trace", seqs["finalized"])


@pytest.mark.parametrize("what", ["0", "999", "nowhere/x", "zz", "abc", "ffffffffffff", "9" * 30, ""])
def test_what_names_nothing_is_refused(cli, what):
    code, out, _ = cli("trace", "--", what)
    assert code in (1, 2)
    assert out == ""


def test_tracing_a_long_stream_stays_quick(cli):
    import time

    cli.notes(3000)
    seqs = stories.plan_run(cli)
    cli.notes(3000)
    start = time.perf_counter()
    cli.json("trace", seqs["approved"], "--json")
    assert time.perf_counter() - start < 2


def test_effects_are_the_same_with_views_without_and_with_views_that_lag(cli):
    import os

    from ledger.leftovers import VIEWS

    seqs = stories.plan_run(cli)
    first = cli.note(1, causation=str(seqs["approved"]))
    without = cli.json("trace", seqs["approved"], "--json")
    cli.json("rebuild")
    assert cli.json("trace", seqs["approved"], "--json") == without
    second = cli.note(2, causation=str(first))
    third = cli.note(3, causation=str(seqs["approved"]))
    lagging = cli.json("trace", seqs["approved"], "--json")
    assert effects(lagging) == effects(without) | {second, third}
    assert effects(cli.json("trace", second, "--json")) == set()
    with open(os.path.join(cli.ledger, VIEWS), "r+b") as file:
        file.write(b"not a database")
    assert cli.json("trace", seqs["approved"], "--json") == lagging


def test_where_views_stand_only_what_follows_them_is_searched(cli, monkeypatch):
    from ledger.access import open_ledger
    from projections.causes import Causes

    first = cli.note(1)
    second = cli.note(2, causation=str(first))
    cli.json("rebuild")
    last = cli.note(3, causation=str(first))
    ledger = open_ledger(cli.ledger)
    causes = Causes(ledger)
    assert causes.standing == second
    assert causes.of(first) == [second, last]
    causes.close()
    ledger.store.close()


def test_a_chain_of_causes_longer_than_python_nests_is_followed_both_ways(cli):
    import json

    cli.note(0)
    lines = [
        json.dumps({"stream": "x-notes/1", "type": "x.note", "data": {"n": n}, "causation": n + 2})
        for n in range(3000)
    ]
    cli.ok("append", "--batch", cli.write("chain.ndjson", "\n".join(lines)))
    assert len(effects(cli.json("trace", "2", "--json"))) == 3000
    assert len(causes(cli.json("trace", "3002", "--json"))) == 3001
    assert len(cli.ok("trace", "3002").splitlines()) < 50


def test_every_type_that_names_a_receipt_is_looked_for_among_the_effects():
    from commands.trace import UNDER_RECEIPT
    from projections.registry import TYPES, aggregate

    naming = {
        type
        for type, (kind, *_) in TYPES.items()
        if kind != "receipt" and "receipt_id" in aggregate(kind).EVENTS[type].__struct_fields__
    }
    assert naming == set(UNDER_RECEIPT)


def test_a_commit_whose_beginning_has_digits_only_is_found(cli):
    seqs = stories.review(cli)
    commit = cli.record(stories.SESSION, "commit.recorded", {"fence": 1, "sha": "1234567" + "a" * 33})
    assert cli.json("trace", "1234567", "--json")["asked"] == [commit]
    assert cli.json("trace", str(seqs["gate"]), "--json")["asked"] == [seqs["gate"]]
    assert "no commit or event begins with 7654321" in cli("trace", "7654321")[2]


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("content", "content = CAST('all; approve 3' AS BLOB)"),
        ("data", "data = CAST('{}' AS BLOB)"),
        ("envelope", "hash = zeroblob(32)"),
    ],
)
def test_words_that_were_changed_are_not_shown_as_if_they_had_been_said(cli, part, change):
    seqs = stories.plan_run(cli)
    cli.sql(f"UPDATE events SET {change} WHERE seq = {seqs['approved']}")
    for command, seq in (("show", seqs["approved"]), ("trace", seqs["finalized"])):
        code, out, err = cli(command, str(seq))
        assert code == 3
        assert out
        assert f"event {seqs['approved']}: its {part} is not what was recorded" in err
    assert cli("show", str(seqs["proposed"]))[0] == 0


def test_show_finds_the_same_effects_with_views_and_without(cli):
    first = cli.note(1)
    second = cli.note(2, causation=str(first))
    without = cli.json("show", str(first), "--json")["effects"]
    cli.json("rebuild")
    third = cli.note(3, causation=str(first))
    assert without == [second]
    assert cli.json("show", str(first), "--json")["effects"] == [second, third]


def test_control_characters_in_a_persons_words_do_not_reach_the_terminal(cli):
    seq = cli.record(stories.SESSION, "session.opened", stories.complete("session.opened", {}), content='{"title":"a\\u001b[31m b\\u009b c"}')  # fmt: skip
    out = cli.ok("trace", str(seq))
    assert "\x1b" not in out
    assert "\x9b" not in out
    assert "a\\x1b[31m b\\x9b c" in out


def test_a_receipts_words_are_said_to_be_a_digest_only_and_who_signed_is_named(cli):
    data = {"receipt_id": "r-5", "principal": "anna@x", "authority_reference": {"label": "words"}}
    seq = cli.record("receipt/r-5", "receipt.issued", stories.complete("receipt.issued", data))
    answer = cli.json("trace", str(seq), "--json")["answer"]
    assert "signed by anna@x" in answer
    assert "“(words of which only a digest was kept)”" in answer


def test_receipts_under_a_receipt_are_found_with_views_without_and_with_views_that_lag(cli):
    def issue(name: str, parent: str) -> int:
        data = stories.complete("receipt.issued", {"receipt_id": name, "parent_id": parent})
        return cli.record(f"receipt/{name}", "receipt.issued", data)

    parent, other, first, second = "a" * 32, "b" * 32, "c" * 32, "d" * 32
    seq = issue(parent, "")
    issue(other, "")
    child = issue(first, parent)
    issue("e" * 32, other)
    without = cli.json("trace", str(seq), "--json")
    assert child in effects(without)
    cli.json("rebuild")
    assert cli.json("trace", str(seq), "--json") == without
    asked = cli.json(
        "query", "SELECT count(*) AS n FROM receipts WHERE parent_id IS NOT NULL", "--format", "json"
    )
    assert "2" in str(asked), "the views do know them"
    later = issue(second, parent)
    assert effects(cli.json("trace", str(seq), "--json")) == effects(without) | {later}
