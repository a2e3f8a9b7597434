"""Turns among writers, without a network: what is said, and whose turn it is, by what was heard."""

from __future__ import annotations

import pytest

from ledger.turns import Turns

OTHER, THIRD = b"0123456789abcdef", b"fedcba9876543210"


class Said:
    """A link that keeps what is published."""

    connected = True

    def __init__(self):
        self.words = []

    def listen(self, _subject, _hear):
        pass

    def connection(self):
        return self

    def publish(self, _subject, payload):
        self.words.append(payload)

    def flush(self):
        pass


@pytest.fixture
def said():
    return Said()


@pytest.fixture
def turns(said):
    return Turns(said, b"gatebook.team")


def hear(turns, *words):
    for each in words:
        turns._hear(each)


def test_a_turn_that_is_over_is_passed_to_who_waits_longest(turns, said):
    turns.wrote()
    hear(turns, b"wait " + OTHER, b"wait " + THIRD)
    assert not turns.must_wait()
    turns._ends -= 1
    turns.wrote()
    assert said.words == [b"next " + OTHER]
    assert turns.must_wait()


def test_who_hears_another_called_in_its_own_turn_has_it_no_more(turns, said):
    """The other waited in vain while our message took long: two that write in turn would lose against each other."""
    turns.wrote()
    hear(turns, b"wait " + OTHER, b"wait " + THIRD, b"next " + OTHER)
    turns.wrote()
    assert turns.must_wait()
    turns.leave()
    assert said.words == []


def test_who_was_called_and_hears_another_called_before_its_first_message_is_stored_begins_no_turn(
    turns, said
):
    hear(turns, b"wait " + THIRD, b"next " + turns._me, b"next " + OTHER)
    turns.wrote()
    assert turns.must_wait()
    assert said.words == []


def test_whoever_is_called_again_has_a_turn(turns):
    turns.wrote()
    hear(turns, b"wait " + THIRD, b"next " + OTHER, b"next " + turns._me)
    turns.wrote()
    assert not turns.must_wait()
