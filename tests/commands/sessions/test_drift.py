"""The drift tree: each reason in its order, and what is no drift."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.sessions.drift import Drift, check_drift


def check(then, now, *, head="h", commits=(), own=()):
    drift = check_drift(
        verified_head="h",
        verified_dirty=then,
        head=head,
        dirty=now,
        commits=commits,
        session_commits=list(own),
    )
    return drift and drift.reason


@pytest.mark.parametrize(
    ("then", "now", "head", "commits", "own", "reason"),
    [
        ({}, {}, "h", (), (), None),
        ({"a": "1"}, {"a": "1"}, "h", (), (), None),
        ({"a": "1"}, {"a": "2"}, "h", (), (), "content-or-deletion-changed"),
        ({"a": "1"}, {"a": "<deleted>"}, "h", (), (), "content-or-deletion-changed"),
        ({}, {"a": "1"}, "h", (), (), "newly-dirty"),
        ({"a": "1"}, {}, "h", (), (), "reverted-externally"),
        ({"a": "1"}, {}, "k", ("k",), ("k",), None),
        ({"a": "1"}, {"b": "1"}, "k", ("k",), ("k",), "newly-dirty"),
        ({"a": "1"}, {"a": "2"}, "k", ("k",), ("k",), "content-or-deletion-changed"),
        ({}, {}, "k", ("k",), (), "external-head"),
        ({}, {}, "k", ("k", "j"), ("k",), "external-head"),
        ({}, {}, "k", None, ("k",), "external-head"),
        ({"a": "1"}, {"a": "2"}, "k", None, (), "external-head"),
        ({"a": "1"}, {"b": "2"}, "h", (), (), "newly-dirty"),
    ],
)
def test_reason(then, now, head, commits, own, reason):
    assert check(then, now, head=head, commits=commits, own=own) == reason


MAPS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["1", "2", "<deleted>"]))


@given(MAPS, MAPS)
def test_with_the_same_head_only_the_same_map_is_no_drift(then, now):
    assert (check(then, now) is None) == (then == now)


@given(MAPS, MAPS)
def test_after_own_commits_only_vanished_entries_are_no_drift(then, now):
    assert (check(then, now, head="k", commits=("k",), own=("k",)) is None) == (now.items() <= then.items())


def test_the_text_is_short_however_many_paths():
    text = Drift("newly-dirty", [f"p{i}" for i in range(1000)]).text()
    assert text.splitlines()[0] == "drift: newly-dirty"
    assert text.endswith("and 990 more")
    assert len(text.splitlines()) == 12
