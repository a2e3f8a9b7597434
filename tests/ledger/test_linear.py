"""The checker of recorded histories: it accepts what some order explains and refuses what none does."""

from __future__ import annotations

import itertools
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tools", "fleet"))

from hypothesis import given
from hypothesis import strategies as st
from linear import Operation, claim, linearizable, receipt


def test_overlapping_claims_with_one_winner_are_fine_and_with_two_are_not():
    one = Operation("a", "claim", 0, 2, "ok")
    assert linearizable([one, Operation("b", "claim", 1, 3, "held")], claim)
    assert linearizable([one, Operation("b", "claim", 1, 3, "ok")], claim) is None


def test_an_answer_that_was_true_only_before_the_call_is_refused():
    """A stale refusal: the claim was given back before the question was asked."""
    history = [
        Operation("a", "claim", 0, 1, "ok"),
        Operation("a", "release", 2, 3, "ok"),
        Operation("b", "claim", 4, 5, "held"),
    ]
    assert linearizable(history, claim) is None
    history[2].called = 2.5
    assert linearizable(history, claim)


def test_an_unknown_outcome_may_have_happened_later_or_never():
    lost = Operation("a", "claim", 0)
    assert linearizable([lost, Operation("b", "claim", 5, 6, "held")], claim)
    assert linearizable([lost, Operation("b", "claim", 5, 6, "ok")], claim)
    assert linearizable([Operation("b", "claim", 1, 2, "held"), Operation("a", "claim", 3)], claim) is None


def test_a_receipt_is_spent_once():
    spent = [Operation(who, "consume", 0, 9, "ok" if who == "c" else "spent") for who in "abcd"]
    assert linearizable(spent, receipt)
    spent[0].answer = "ok"
    assert linearizable(spent, receipt) is None


@given(st.integers(0, 2**32))
def test_it_agrees_with_trying_every_order(seed):
    rng = random.Random(seed)
    history = []
    for n in range(rng.randint(1, 5)):
        start = rng.uniform(0, 5)
        answer = rng.choice(["ok", "held", "not yours", None])
        history.append(
            Operation(
                rng.choice("ab"), rng.choice(["claim", "release"]), start, start + rng.uniform(0.1, 4), answer
            )
        )
        del n

    def explained(order):
        state = None
        for place, each in enumerate(order):
            if any(later.answered < each.called for later in order[place + 1 :]):
                return False
            answer, state = claim(state, each)
            if each.answer is not None and answer != each.answer:
                return False
        return True

    known = [each for each in history if each.answer is not None]
    lost = [each for each in history if each.answer is None]
    every = any(
        explained(order)
        for count in range(len(lost) + 1)
        for some in itertools.combinations(lost, count)
        for order in itertools.permutations(known + list(some))
    )
    assert (linearizable(history, claim) is not None) == every
