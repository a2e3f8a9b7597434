"""Which candidate is chosen, what is said about those passed over, and what blocks."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.dispatch.routing import Blocked, parse_attempted, parse_list, select, validate
from commands.dispatch.rubric import build_rubric
from ledger.errors import Usage
from projections.cooldowns import PROBE_LEASE, REASONS, Circuit
from projections.times import DAY, HOUR, MINUTE, SECOND, parse_time

NOON = parse_time("2026-08-25T12:00:00Z")
RUBRIC = build_rubric({
    "models": [
        {"name": "claude-a", "effort": "high", "provider": "anthropic", "via": "claude", "taste": 10},
        {"name": "gpt-b", "effort": "high", "provider": "openai", "via": "codex", "taste": 9},
        {"name": "gem-c", "effort": "low", "provider": "google", "via": "gemini", "taste": 9},
        {"name": "lone", "effort": "low", "provider": "solo"},
    ],
    "routing": {
        "orchestrator": "gpt-b@high", "default": "gpt-b@high", "taste": "claude-a@high", "independent": "claude-a@high",
        "solo": "lone@low", "taste_min": 9, "fallback": "gem-c@low",
    },
    "fallbacks": {"taste": ["gpt-b@high", "gem-c@low"], "independent": ["gem-c@low"]},
})  # fmt: skip
ALL = ("codex", "gemini", "claude")


def choose(route="taste", native="anthropic", executors=ALL, circuits=None, now=NOON, **more):
    return select(RUBRIC, route, native, executors, circuits=circuits or {}, now=now, **more)


def shut(reason="quota", until=NOON + HOUR, claimed=None):
    return Circuit(reason, 1, NOON - HOUR, until, claimed)


def test_the_primary_is_taken_when_nothing_speaks_against_it():
    assert choose().reply() == {
        "status": "resolved", "resolution": "primary", "candidate": "claude-a@high", "model": "claude-a", "effort": "high",
        "provider": "anthropic", "executor": "native", "dispatch": "delegated",
    }  # fmt: skip


def test_a_row_of_the_native_provider_runs_natively_even_with_a_via():
    assert choose().executor == "native"
    assert choose(native="openai").executor == "claude"


def test_an_open_circuit_is_passed_over_and_named():
    reply = choose(circuits={"anthropic|native": shut()}).reply()
    assert (reply["status"], reply["resolution"], reply["candidate"]) == (
        "fallback",
        "fallback",
        "gpt-b@high",
    )
    assert (reply["reason"], reply["skipped"]) == ("quota", ["claude-a@high"])


def test_a_circuit_counts_for_its_own_executor_only():
    assert choose(circuits={"anthropic|claude": shut()}).row.name == "claude-a"
    assert choose(native="x", circuits={"anthropic|native": shut()}).row.name == "claude-a"
    assert choose(native="x", circuits={"anthropic|claude": shut()}).row.name == "gpt-b"


def test_the_reason_is_that_of_the_first_skip():
    reply = choose(executors=["gemini"], native="x", circuits={}).reply()
    assert (reply["candidate"], reply["reason"], reply["skipped"]) == (
        "gem-c@low",
        "missing_executor",
        ["claude-a@high", "gpt-b@high"],
    )
    reply = choose(executors=["gemini"], circuits={"anthropic|native": shut("rate_limit")}).reply()
    assert (reply["candidate"], reply["reason"]) == ("gem-c@low", "rate_limit")


def test_a_row_without_via_runs_only_natively():
    assert choose("solo", native="solo").executor == "native"
    with pytest.raises(Blocked) as blocked:
        choose("solo")
    assert blocked.value.reply["skipped"] == ["lone@low"]


def test_the_edge_of_a_cooldown_is_exact_and_the_first_after_it_probes():
    circuits = {"anthropic|native": shut(until=NOON)}
    assert choose(circuits=circuits, now=NOON - 1).row.name == "gpt-b"
    assert choose(circuits=circuits, now=NOON).reply()["probe"] is True


def test_a_claimed_probe_sends_others_on_until_its_lease_ends():
    circuits = {"anthropic|native": shut(until=NOON, claimed=NOON)}
    assert choose(circuits=circuits, now=NOON + PROBE_LEASE - SECOND).reply()["reason"] == "quota"
    assert choose(circuits=circuits, now=NOON + PROBE_LEASE).probe


def test_a_clock_that_ran_back_hands_out_no_second_probe():
    assert (
        choose(circuits={"anthropic|native": shut(until=NOON, claimed=NOON + 5 * MINUTE)}).row.name == "gpt-b"
    )


def test_a_healthy_candidate_is_no_probe():
    assert "probe" not in choose().reply()


def test_years_of_failures_old_are_decayed_to_one_probe():
    assert choose(circuits={"anthropic|native": shut(until=NOON - 2000 * DAY)}).probe


def test_the_active_candidate_goes_on_itself():
    reply = choose(active_candidate="claude-a@high").reply()
    assert (reply["executor"], reply["dispatch"]) == ("current", "direct")


def test_another_active_candidate_changes_nothing():
    assert choose(active_candidate="claude-z@low").reply()["dispatch"] == "delegated"
    assert choose("default", active_candidate="claude-a@high").reply()["executor"] == "codex"


def test_the_active_candidate_is_passed_over_like_any_other():
    assert choose(active_candidate="claude-a@high", circuits={"anthropic|native": shut()}).executor == "codex"


@pytest.mark.parametrize(
    "active", ["", "claude-a", "@high", "claude-a@", " @ ", "gpt-b@high", "a\udcff@high"]
)
def test_a_malformed_or_foreign_active_candidate_blocks(active):
    with pytest.raises(Blocked, match="active candidate"):
        choose(active_candidate=active)


def test_an_attempted_candidate_is_passed_over_for_its_circuits_reason():
    circuits = {
        "anthropic|native": shut("authentication", until=NOON - HOUR)
    }  # even when a probe would be due
    reply = choose(circuits=circuits, attempted=["claude-a@high"]).reply()
    assert (reply["candidate"], reply["reason"], reply["skipped"]) == (
        "gpt-b@high",
        "authentication",
        ["claude-a@high"],
    )
    assert "probe" not in reply


@pytest.mark.parametrize("attempted", [["claude-a@high"], ["gpt-b@high"], ["lone@low"], ["gone@x"]])
def test_an_attempt_without_a_recorded_failure_or_outside_the_chain_blocks(attempted):
    with pytest.raises(Blocked) as blocked:
        choose(circuits={"anthropic|claude": shut()}, attempted=attempted)
    assert blocked.value.reply["status"] == "blocked"
    assert blocked.value.exit_code == 4


def test_a_failure_outside_the_asked_route_does_not_excuse_an_attempt():
    with pytest.raises(Blocked, match="not a candidate of route 'default'"):
        choose("default", circuits={"anthropic|native": shut()}, attempted=["claude-a@high"])


def test_an_exhausted_chain_names_everything():
    circuits = {"anthropic|native": shut(), "openai|codex": shut("rate_limit")}
    with pytest.raises(Blocked) as blocked:
        choose(executors=["codex"], circuits=circuits, attempted=["claude-a@high"])
    assert blocked.value.reply == {
        "status": "blocked",
        "blockers": [
            "route taste has no candidate left (claude-a@high: quota, gpt-b@high: rate_limit, gem-c@low: missing_executor)"
        ],
        "attempted": ["claude-a@high"],
        "skipped": ["claude-a@high", "gpt-b@high", "gem-c@low"],
    }


@pytest.mark.parametrize("route", ["nope", "", "taste_min", "fallback", "b\udcff"])
def test_what_is_no_route_blocks(route):
    with pytest.raises(Blocked, match="no route"):
        choose(route)


def test_independent_refuses_the_authors_provider_anywhere_in_its_chain():
    assert choose("independent", authoring_providers=["openai"]).row.name == "claude-a"
    for author in ("anthropic", "google"):
        with pytest.raises(Blocked, match=f"authoring provider {author}"):
            choose("independent", authoring_providers=[author])


def test_authors_are_judged_whatever_route_is_asked_for():
    """As the script did: a rubric whose independent candidate wrote the target blocks as a whole."""
    with pytest.raises(Blocked, match="authoring provider anthropic"):
        choose("taste", authoring_providers=["anthropic"])


def test_validate_wants_every_candidate_reachable_by_itself():
    validate(RUBRIC, "solo", ALL)
    with pytest.raises(Blocked) as blocked:
        validate(RUBRIC, "anthropic", ["codex", "gemini"])
    assert blocked.value.reply["blockers"] == ["route solo candidate lone@low has no reachable executor"]
    with pytest.raises(Blocked) as blocked:
        validate(RUBRIC, "solo", ["claude", "gemini"])
    assert "route default candidate gpt-b@high has no reachable executor" in blocked.value.reply["blockers"]


def test_validate_refuses_authors_in_independent():
    with pytest.raises(Blocked, match="authoring provider google"):
        validate(RUBRIC, "solo", ALL, authoring_providers=["google"])


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("", []), ("  ", []), ("[]", []), (" [ ] ", []), ("codex", ["codex"]), ("codex, gemini", ["codex", "gemini"]), ("a,,b,", ["a", "b"]),
        ('["a", "b,c"]', ["a", "b,c"]), ("3m-x", ["3m-x"]), ("1,2", ["1", "2"]), ("nullable", ["nullable"]), ("-x", ["-x"]),
    ],
)  # fmt: skip
def test_a_list_is_json_or_commas(text, items):
    assert parse_list(text, "--executors") == items


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[1]",
        "[null]",
        '[["a"]]',
        "[",
        '["a"',
        '"a"',
        "null",
        "true",
        "5",
        "-1.5",
        '{"a": "b"}',
        '["a"] x',
        '[""]',
        '["a", " "]',
    ],
)
def test_what_is_no_list_of_text_is_a_bad_argument(text):
    with pytest.raises(Usage, match="--executors"):
        parse_list(text, "--executors")


@pytest.mark.parametrize("text", ["x", "a@b,x", '["@b"]', "a@", '["a@b", ""]', '["\\ud800@x"]'])
def test_an_attempted_entry_that_is_no_reference_is_a_bad_argument(text):
    with pytest.raises(Usage, match="--attempted"):
        parse_attempted(text)


circuits_strategy = st.dictionaries(
    st.sampled_from(["anthropic|native", "openai|codex", "google|gemini"]),
    st.builds(
        Circuit,
        st.sampled_from(REASONS),
        st.integers(1, 9),
        st.just(NOON - HOUR),
        st.integers(-2, 2).map(lambda n: NOON + n * SECOND),
        st.none() | st.integers(-2, 2).map(lambda n: NOON - PROBE_LEASE + n * SECOND),
    ),
)


@given(circuits_strategy, st.sets(st.sampled_from(["codex", "gemini"])))
def test_the_choice_is_the_first_candidate_that_may_be_tried(circuits, executors):
    """Said again without the code's own words: walk the chain, stop at the first that is reachable and not shut."""
    chain = [("claude-a@high", "anthropic|native", True), ("gpt-b@high", "openai|codex", "codex" in executors), ("gem-c@low", "google|gemini", "gemini" in executors)]  # fmt: skip
    skipped = []
    for reference, key, reachable in chain:
        circuit = circuits.get(key)
        waits = circuit is not None and (circuit.unavailable_until > NOON or (circuit.probe_claimed_at is not None and NOON - circuit.probe_claimed_at < 15 * MINUTE))  # fmt: skip
        if reachable and not waits:
            chosen = choose(executors=executors, circuits=circuits)
            assert (chosen.row.reference, chosen.endpoint, chosen.skipped, chosen.probe) == (
                reference,
                key,
                skipped,
                circuit is not None,
            )
            return
        skipped.append(reference)
    with pytest.raises(Blocked):
        choose(executors=executors, circuits=circuits)


def test_the_handed_circuit_cases_hold():
    from projections.cooldowns import next_opening
    from projections.times import print_time

    def play(rubric, circuits, command, flags):
        now = parse_time(flags["now"])
        key = f"{flags.get('provider')}|{flags.get('executor')}"
        if command == "record-success":
            circuits.pop(key, None)
            return 0, {"status": "cleared"}
        if command == "record-failure":
            count, until = next_opening(circuits.get(key), flags["reason"], now)
            circuits[key] = Circuit(flags["reason"], count, now, until)
            return 0, {"failure_count": count, "unavailable_until": print_time(until)}
        try:
            chosen = select(
                rubric, flags["route"], flags["native-provider"], parse_list(flags["executors"], ""),
                attempted=parse_attempted(flags.get("attempted", "")), circuits=circuits, now=now,
            )  # fmt: skip
        except Blocked as blocked:
            return 4, blocked.reply
        if chosen.probe:
            circuits[chosen.endpoint].probe_claimed_at = now
        return 0, chosen.reply()

    from commands.dispatch.rubric_formats import parse_document

    path = os.path.join(os.path.dirname(__file__), "..", "..", "conformance", "circuits.jsonl")
    with open(path) as cases:
        for case in map(json.loads, cases):
            rubric, circuits = build_rubric(parse_document(case["rubric"].encode(), ".yaml")), {}
            for step in case["steps"]:
                command, *rest = step["args"]
                flags = {
                    name.removeprefix("--"): value for name, value in zip(rest[::2], rest[1::2], strict=True)
                }
                exit_code, reply = play(rubric, circuits, command, flags)
                assert (exit_code, {**reply, **step["reply"]}) == (step["exit"], reply), (case["name"], step)
