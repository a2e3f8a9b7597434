"""The table of grounds names types and fields that exist, and leads every decided event somewhere."""

from __future__ import annotations

import pytest

from projections.reasons import _MINTS, GROUNDS, WORDS
from projections.registry import TYPES, aggregate

# Steps that rest on nothing earlier: a person or the world begins here.
BEGINNINGS = {
    "ledger.opened", "ledger.redacted", "plan.proposed", "receipt.issued", "dispatch.requested", "session.opened",
    "session.imported", "session.locked", "circuit.imported", "admission.refused", "marker.refused", "receipt.denied",
}  # fmt: skip
BY_FIELD = {"stage.minted", "stages.carried"}


def struct_of(name: str):
    return aggregate(TYPES[name][0]).EVENTS[name]


def test_every_decided_type_has_grounds_or_is_a_beginning():
    assert set(TYPES) == set(GROUNDS) | BEGINNINGS | BY_FIELD
    assert not set(GROUNDS) & BEGINNINGS


@pytest.mark.parametrize("name", sorted(GROUNDS))
def test_grounds_name_types_of_the_same_stream_and_fields_that_exist(name):
    for ground in GROUNDS[name]:
        for other in (*ground.types, *ground.since):
            assert TYPES[other][0] == TYPES[name][0]
        for field in (*ground.same, *([ground.each] if ground.each else [])):
            for other in ground.types:
                assert field in struct_of(other).__struct_fields__
        for field in ground.same:
            assert field in struct_of(name).__struct_fields__


def test_mints_are_told_apart_by_the_four_stages():
    assert set(_MINTS) == {"exec", "polish", "docs", "security"}
    assert "stage" in struct_of("stage.minted").__struct_fields__
    assert "review" in struct_of("stages.carried").__struct_fields__


def test_words_are_of_known_types():
    assert set(WORDS) <= set(TYPES)
