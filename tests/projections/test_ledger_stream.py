"""The stream `ledger` and the refusals: what may follow what."""

from __future__ import annotations

import pytest
from msgspec import json as msgjson
from msgspec import structs

from projections import ledger_stream as ls
from projections import refusal_stream as rs
from projections.fact import Fact, Law, Unlawful

KEYS = ls.Keys("11" * 32, "22" * 32)
OPENED = ls.Opened(1, KEYS)
LAW = Law(lambda _stream: None)
DAY = 86_400_000_000


def fact(data, seq=2, name=None, stream="ledger", clock=0):
    names = {kind: name for name, kind in ls.EVENTS.items()}
    return Fact(seq, stream, 1, name or names[type(data)], data, clock, "cli:t", "t", content_digest="d" * 64)


def state(*facts):
    now = ls.initial("ledger")
    for one in facts:
        ls.admit(now, one, LAW)
        now = ls.evolve(now, one)
        assert msgjson.decode(msgjson.encode(now), type=ls.State) == now  # a snapshot of it is the same state
    return now


def refused(before, one):
    with pytest.raises(Unlawful):
        ls.admit(before, one, LAW)


def test_genesis_is_the_first_event_and_comes_once():
    opened = state(fact(OPENED, 1))
    assert (opened.checkpoint_key, opened.receipt_key) == (KEYS.checkpoint, KEYS.receipt)
    refused(opened, fact(OPENED, 2))
    refused(ls.initial("ledger"), fact(OPENED, 2))
    refused(ls.initial("ledger"), fact(ls.Checkpointed(1, "00" * 32), 2))


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": 0},
        {"keys": ls.Keys("", "22" * 32)},
        {"keys": ls.Keys("AA" * 32, "22" * 32)},
        {"keys": ls.Keys("11" * 32, "22" * 31)},
    ],
)
def test_a_genesis_of_another_format_or_without_its_keys_is_refused(change):
    refused(ls.initial("ledger"), fact(structs.replace(OPENED, **change), 1))


def test_a_genesis_with_a_policy_that_nobody_could_require_is_refused():
    policy = ls.Policy((ls.Signer("ann", "ssh-ed25519 AAAA"),), ("plan.approved",))
    refused(ls.initial("ledger"), fact(structs.replace(OPENED, authority=policy), 1))


def test_a_checkpoint_covers_earlier_events_and_never_fewer_than_the_last():
    opened = state(fact(OPENED, 1))
    now = ls.evolve(opened, fact(ls.Checkpointed(5, "ab" * 32), 6))
    assert (now.checkpointed, now.checkpoint_root) == (5, "ab" * 32)
    for size, seq in ((4, 9), (9, 9), (10, 9), (-1, 9)):
        refused(now, fact(ls.Checkpointed(size, "ab" * 32), seq))
    refused(now, fact(ls.Checkpointed(8, "xy" * 32), 9))
    ls.admit(now, fact(ls.Checkpointed(5, "ab" * 32), 9), LAW)
    refused(now, fact(ls.Checkpointed(5, "cd" * 32), 9))
    refused(now, structs.replace(fact(ls.Checkpointed(8, "ab" * 32), 9), content_digest=None))
    ls.admit(now, fact(ls.Checkpointed(8, "ab" * 32), 9), LAW)


def test_a_redaction_names_earlier_events_in_order_once_each():
    opened = state(fact(OPENED, 1))
    for events in ((), (1,), (5,), (6,), (3, 2), (2, 2), (0,), (-1,), (2, 9)):
        refused(opened, fact(ls.Redacted(events), 5))
    ls.admit(opened, fact(ls.Redacted((2, 4)), 5), LAW)
    assert ls.evolve(opened, fact(ls.Redacted((2, 4)), 5)).redacted == 2


def test_a_restore_follows_the_event_that_it_names_and_may_bring_new_keys():
    opened = state(fact(OPENED, 1))
    for after, digest in ((3, "ab" * 32), (5, "ab" * 32), (4, "AB" * 32), (4, "")):
        refused(opened, fact(ls.Restored(after, digest), 5))
    new = ls.Keys("33" * 32, "44" * 32)
    restored = fact(ls.Restored(4, "ab" * 32, keys=new), 5)
    ls.admit(opened, restored, LAW)
    now = ls.evolve(opened, restored)
    assert (now.restored, now.receipt_key) == (5, new.receipt)
    assert now.receipt_keys == [KEYS.receipt, new.receipt]  # receipts of before can still be checked


def test_a_key_changes_only_with_the_old_ones_signature():
    opened = state(fact(OPENED, 1))
    for name, key, signature in (
        ("checkpoint", "33" * 32, "00" * 64),
        ("receipt", "33" * 32, ""),
        ("other", "33" * 32, "00" * 64),
        ("receipt", "short", "00" * 64),
    ):
        refused(opened, fact(ls.KeyChanged(name, key, signature), 5))


REFUSAL = rs.Refusal("plan.approved", "run/1", "not-yours", "ab" * 32)


def test_every_refusal_may_follow_any_other_and_is_counted_by_type_and_reason():
    now = rs.initial("refusal/1970-01-02")
    for n, name in enumerate(("admission.refused", "receipt.denied", "admission.refused", "marker.refused")):
        one = fact(structs.replace(REFUSAL, suppressed=n), 2 + n, name, "refusal/1970-01-02", DAY)
        rs.admit(now, one, LAW)
        now = rs.evolve(now, one)
    assert now.counts == {
        "admission.refused not-yours": 2,
        "receipt.denied not-yours": 1,
        "marker.refused not-yours": 1,
    }
    assert now.suppressed == 0 + 1 + 2 + 3


def test_a_refusal_stands_under_the_day_of_its_clock():
    now = rs.initial("refusal/1970-01-02")
    for stream, clock in (
        ("refusal/1970-01-02", 0),
        ("refusal/1970-01-02", 2 * DAY),
        ("refusal/1970-1-2", DAY),
        ("refusal/x", DAY),
    ):
        with pytest.raises(Unlawful):
            rs.admit(now, fact(REFUSAL, 2, "admission.refused", stream, clock), LAW)
    rs.admit(now, fact(REFUSAL, 2, "admission.refused", "refusal/1970-01-02", 2 * DAY - 1), LAW)
    with pytest.raises(Unlawful):
        rs.admit(
            now,
            fact(structs.replace(REFUSAL, digest="words"), 2, "admission.refused", "refusal/1970-01-02", DAY),
            LAW,
        )
