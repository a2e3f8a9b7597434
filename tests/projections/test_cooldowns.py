"""The breaker's arithmetic: how long it stays open, and when one probe may pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections import circuit as aggregate
from projections.cooldowns import MAX_COUNT, PROBE_LEASE, REASONS, STEPS, Circuit, is_open, next_opening
from projections.fact import Fact, Law, Unlawful
from projections.times import DAY, HOUR, MINUTE, SECOND, parse_time, print_time

NOON = parse_time("2026-08-25T12:00:00Z")


def fail(reasons, at=NOON, retry_at=None):
    circuit = None
    for reason in reasons:
        count, until = next_opening(circuit, reason, at, retry_at)
        circuit = Circuit(reason, count, at, until)
    return circuit


@pytest.mark.parametrize("reason", ["rate_limit", "provider_unavailable"])
@pytest.mark.parametrize(
    ("failures", "cooldown"), [(1, 15 * MINUTE), (2, HOUR), (3, 6 * HOUR), (4, DAY), (5, DAY), (40, DAY)]
)
def test_repeated_failures_step_up_to_a_day(reason, failures, cooldown):
    circuit = fail([reason] * failures)
    assert (circuit.failure_count, circuit.unavailable_until) == (failures, NOON + cooldown)


@pytest.mark.parametrize("reason", ["quota", "authentication"])
def test_quota_and_authentication_close_for_a_day_however_often(reason):
    assert [fail([reason] * times).unavailable_until for times in (1, 2, 7)] == [NOON + DAY] * 3


def test_another_reason_begins_at_one():
    circuit = fail(["rate_limit", "rate_limit", "provider_unavailable"])
    assert (circuit.failure_count, circuit.unavailable_until) == (1, NOON + 15 * MINUTE)


def test_the_first_reason_again_after_another_begins_at_one_too():
    assert fail(["rate_limit", "quota", "rate_limit"]).failure_count == 1


def test_quota_waits_for_a_reset_in_the_future_near_or_far():
    assert fail(["quota"], retry_at=NOON + SECOND).unavailable_until == NOON + SECOND
    assert fail(["quota"], retry_at=NOON + 90 * DAY).unavailable_until == NOON + 90 * DAY


def test_a_reset_that_is_not_in_the_future_is_ignored():
    assert fail(["quota"], retry_at=NOON).unavailable_until == NOON + DAY
    assert fail(["quota"], retry_at=NOON - HOUR).unavailable_until == NOON + DAY


def test_a_reset_time_means_nothing_to_other_reasons():
    assert fail(["rate_limit"], retry_at=NOON + 9 * HOUR).unavailable_until == NOON + 15 * MINUTE


def test_a_cooldown_never_leaves_the_calendar():
    late = parse_time("9999-12-31T23:59:59Z")
    assert print_time(fail(["quota"], at=late).unavailable_until) == "9999-12-31T23:59:59Z"


def test_the_count_stays_an_integer_the_log_can_hold():
    assert next_opening(Circuit("quota", MAX_COUNT, NOON, NOON), "quota", NOON)[0] == MAX_COUNT


@given(st.sampled_from(REASONS), st.integers(NOON, NOON + 10 * DAY))
def test_the_printed_end_of_a_cooldown_is_the_exact_end(reason, at):
    _, until = next_opening(None, reason, at)
    assert parse_time(print_time(until)) == until


def test_the_cooldown_ends_at_its_second_and_not_before():
    circuit = fail(["rate_limit"])
    assert is_open(circuit, circuit.unavailable_until - SECOND)
    assert not is_open(circuit, circuit.unavailable_until)


def test_a_claimed_probe_keeps_others_out_for_its_lease_and_no_longer():
    circuit = fail(["rate_limit"])
    claimed = circuit.unavailable_until
    circuit.probe_claimed_at = claimed
    assert is_open(circuit, claimed)
    assert is_open(circuit, claimed + PROBE_LEASE - 1)
    assert not is_open(circuit, claimed + PROBE_LEASE)


def test_a_clock_that_ran_back_does_not_hand_out_a_second_probe():
    circuit = Circuit("rate_limit", 1, NOON, NOON + STEPS[0], NOON + HOUR)
    assert is_open(circuit, NOON + 20 * MINUTE)


@pytest.mark.parametrize(
    ("provider", "executor", "count"), [("a|b", "c", 1), ("a", "b|c", 1), ("", "c", 1), ("a", "", 1), ("a", "c", 0), ("a", "c", -1)]
)  # fmt: skip
def test_no_circuit_is_imported_that_the_shared_file_could_not_state(provider, executor, count):
    at = "2026-11-30T10:00:00Z"
    health = aggregate.Health("quota", count, at, at)
    data = aggregate.Imported(provider, executor, at, "a" * 64, health)
    fact = Fact(
        2, f"circuit/{provider}|{executor}", 1, "circuit.imported", data, parse_time(at), "cli:t", "t"
    )
    with pytest.raises(Unlawful, match="may not follow"):
        aggregate.admit(aggregate.initial(fact.stream), fact, Law(lambda _stream: None))
