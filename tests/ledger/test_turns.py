"""Turns among writers, without a network: what is said, and whose turn it is, by what was heard."""

from __future__ import annotations

import pytest

from ledger.nats_client import Link, Message, Silence
from ledger.nats_login import Login
from ledger.turns import Turns

OTHER, THIRD = b"0123456789abcdef", b"fedcba9876543210"


class Said:
    """A link that keeps what is published, and each time that something is sent."""

    connected = True

    def __init__(self, clock):
        self.clock = clock
        self.words = []
        self.sent = []
        self.to_hear = []
        self.hears = 0

    def listen(self, _subject, hear):
        self._hear = hear

    def connection(self):
        return self

    def publish(self, _subject, payload):
        self.words.append(payload)

    def flush(self):
        self.sent.append(list(self.words))

    def hear(self, deadline):
        """What has come by now, or else the next; after the last, silence."""
        self.hears += 1
        if not self.to_hear:
            self.clock.sleep(deadline - self.clock.now)
            raise Silence("nothing")
        self.clock.now = max(self.clock.now, self.to_hear[0][0])
        while self.to_hear and self.to_hear[0][0] <= self.clock.now:
            self._hear(self.to_hear.pop(0)[1])


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("ledger.turns.time", made)
    return made


@pytest.fixture
def said(clock):
    return Said(clock)


@pytest.fixture
def turns(said):
    return Turns(said, b"gatebook.team")


def hear(turns, *words):
    for each in words:
        turns._hear(each)


def nothing():
    """What is done by who is next, where that is not what the test is about."""


def test_a_turn_that_is_over_is_passed_to_who_waits_longest(turns, said, clock):
    turns.wrote()
    hear(turns, b"wait " + OTHER, b"wait " + THIRD)
    assert not turns.must_wait()
    clock.sleep(0.02)
    assert turns.must_wait()
    assert said.words == [b"next " + OTHER]
    assert turns.must_wait()
    assert said.words == [b"next " + OTHER]


def test_calling_the_next_and_queueing_up_again_is_sent_at_once(turns, said, clock):
    """Each sending wakes all that wait."""
    turns.wrote()
    hear(turns, b"wait " + OTHER)
    clock.sleep(0.02)
    assert turns.must_wait()
    said.to_hear = [(0, b"next " + turns._me)]
    turns.wait(nothing)
    assert said.sent == [[b"next " + OTHER, b"wait " + turns._me]]


def test_of_a_turn_that_is_long_over_nothing_is_passed_on(turns, said, clock):
    """Writers that had paused and begin together would each call another, and those lose against each other."""
    turns.wrote()
    hear(turns, b"wait " + OTHER)
    clock.sleep(0.5)
    assert turns.must_wait()
    turns.leave()
    assert said.words == []


def test_who_paused_before_a_write_calls_the_next_after_it(turns, said, clock):
    """It pauses again, for all we know: nobody would hear of it before its next write."""
    turns.begin()
    hear(turns, b"wait " + OTHER, b"wait " + THIRD)
    turns.wrote()
    assert said.sent == [[b"next " + OTHER]]
    turns.done()
    clock.sleep(0.001)
    turns.begin()
    turns.wrote()
    assert said.sent == [[b"next " + OTHER]]
    assert not turns.must_wait()


def test_who_goes_on_after_a_refusal_has_not_paused(turns, said, clock):
    """It was refused after a long look, and writes now: its turn is as long as any."""
    turns.begin()
    clock.sleep(1)
    turns.done()
    turns.begin()
    hear(turns, b"wait " + OTHER)
    turns.wrote()
    assert said.words == []
    assert not turns.must_wait()


def test_who_is_called_tries_again_as_long_as_the_others_leave_it_the_turn(turns, said, clock):
    """Somebody out of turn may need long for its message, against which all of ours lose."""
    hear(turns, b"next " + turns._me)
    for _ in range(10):
        turns.wait(nothing)
    assert said.words == []
    clock.sleep(0.2)
    said.to_hear = [(0, b"next " + turns._me)]
    turns.wait(nothing)
    assert said.words == [b"wait " + turns._me]


def test_who_is_next_reads_in_the_middle_of_the_others_turn(turns, said, clock):
    """At its beginning the other one reads."""
    hear(turns, b"wait " + OTHER, b"wait " + THIRD)
    began = clock.now
    said.to_hear = [
        (began, b"wait " + turns._me),
        (began + 0.02, b"next " + OTHER),
        (began + 0.04, b"next " + THIRD),
        (began + 0.05, b"wait " + OTHER),
    ]
    read = []

    def when_next():
        read.append(clock.now - began)
        hear(turns, b"next " + turns._me)

    turns.wait(when_next)
    assert [0.045 < after < 0.06 for after in read] == [True]


def test_who_has_long_to_wait_hears_many_words_at_once(turns, said, clock):
    others = [b"%016d" % n for n in range(8)]
    hear(turns, *(b"wait " + other for other in others))
    began = clock.now
    said.to_hear = [(began, b"wait " + turns._me)]
    said.to_hear += [(began + 0.01 * n, b"next " + other) for n, other in enumerate(others, 1)]
    said.to_hear.append((began + 0.1, b"next " + turns._me))
    turns.wait(nothing)
    assert clock.now == pytest.approx(began + 0.1)
    assert said.hears < 9


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


class Came:
    """A connection on which words came together, and a late answer among them."""

    def __init__(self, *messages):
        self.messages = list(messages)

    @property
    def has_more(self):
        return bool(self.messages)

    def next(self, _deadline):
        return self.messages.pop(0)


def test_words_that_came_together_are_heard_together():
    words = [b"wait " + OTHER, b"next " + OTHER]
    link = Link([("127.0.0.1", 1)], Login())
    heard = []
    link.listen(b"gatebook.team.turn", heard.append)
    late = Message(b"_INBOX.1", b"", b"late")
    link._connection = Came(late, *(Message(b"gatebook.team.turn", b"", word) for word in words), late)
    link.hear(0.0)
    assert heard == words
    assert not link.connection().has_more
