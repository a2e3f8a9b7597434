"""A store against a model that is a Python list: hypothesis looks for a course of calls on which they part."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_contract import DAY, SECOND, Clock, add, check_chain, draft, whole

from ledger.errors import Conflict, Refused

STREAMS = st.sampled_from(["x-a/1", "x-a/2", "x-b/\u00fc"])
KEYS = st.none() | st.sampled_from(["k1", "k2", "k3"])
CONTENTS = st.sampled_from([None, b"", b"words", b"other words"])
DATA = st.sampled_from([b"{}", b'{"n":1}'])
ONE = st.tuples(STREAMS, DATA, CONTENTS, KEYS)


class StoreMachine(RuleBasedStateMachine):
    """Subclass with `make_place(folder) -> Place`."""

    @staticmethod
    def make_place(folder):
        raise NotImplementedError

    @initialize()
    def start(self):
        # In memory where that is possible: a thousand flushes say nothing about the order of calls.
        self.folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.place = self.make_place(self.folder)
        self.clock = Clock()
        self.store = self.place.open(self.clock)
        self.model = []  # (stream, data, content, key, clock): content "erased" after a redaction
        self.base = self.place.empty

    def teardown(self):
        self.store.close()
        shutil.rmtree(self.folder)

    def version(self, stream):
        return sum(one[0] == stream for one in self.model)

    def by_key(self, key):
        return next((i for i, one in enumerate(self.model) if one[3] == key), None)

    def drafts(self, batch, expect=None):
        return [
            draft(
                stream, data, content=content, idempotency_key=key, expect_version=expect if i == 0 else None
            )
            for i, (stream, data, content, key) in enumerate(batch)
        ]

    def expected(self, batch, expect):
        """What the model says: ("new" | "replayed", index of the first event) or an error class."""
        keys = [one[3] for one in batch if one[3] is not None]
        if len(set(keys)) != len(keys):
            return Conflict
        known = [self.by_key(key) for key in keys if self.by_key(key) is not None]
        if known:
            first = known[0] - next(i for i, one in enumerate(batch) if one[3] is not None)
            span = self.model[first : first + len(batch)] if first >= 0 else []
            same = [one[:4] for one in span] == batch
            return ("replayed", first) if same and len(known) == len(keys) else Conflict
        if self.model and self.model[-1][4] - self.clock.now > DAY:
            return Refused
        if expect is not None and expect != self.version(batch[0][0]):
            return Conflict
        return ("new", len(self.model))

    @rule(batch=st.lists(ONE, min_size=1, max_size=4), expect=st.none() | st.integers(0, 4))
    def append(self, batch, expect):
        outcome = self.expected(batch, expect)
        if not isinstance(outcome, tuple):
            with pytest.raises(outcome):
                add(self.store, *self.drafts(batch, expect))
            return
        done = add(self.store, *self.drafts(batch, expect))
        kind, first = outcome
        assert done.replayed == (kind == "replayed")
        assert [event.seq for event in done.events] == [self.base + first + 1 + i for i in range(len(batch))]
        if kind == "new":
            self.model += [(*one, self.clock.now) for one in batch]

    @precondition(lambda self: any(one[3] is not None for one in self.model))
    @rule(data=st.data())
    def call_again(self, data):
        """A client that lost the answer calls again with the same batch."""
        index = data.draw(st.sampled_from([i for i, one in enumerate(self.model) if one[3] is not None]))
        stream, given, content, key, _ = self.model[index]
        content = (
            b"words" if content == "erased" else content
        )  # what it was nobody can tell any more: a conflict
        self.append([(stream, given, content, key)], data.draw(st.none() | st.just(0)))

    @rule(by=st.sampled_from([0, 1, SECOND, -1, -SECOND, 3 * DAY, -DAY, -DAY - 1]))
    def move_the_clock(self, by):
        self.clock.now += by

    @precondition(lambda self: any(isinstance(one[2], bytes) for one in self.model))
    @rule(data=st.data())
    def redact(self, data):
        index = data.draw(
            st.sampled_from([i for i, one in enumerate(self.model) if isinstance(one[2], bytes)])
        )
        self.place.erase(self.store, self.base + index + 1)
        self.model[index] = (*self.model[index][:2], "erased", *self.model[index][3:])

    @rule()
    def reopen(self):
        self.store.close()
        self.store = self.place.open(self.clock)

    @invariant()
    def the_store_is_the_model(self):
        if not hasattr(self, "store"):
            return
        events = whole(self.store)
        check_chain(events)
        ours = events[self.base :]
        assert len(ours) == len(self.model)
        for event, (stream, data, content, key, clock) in zip(ours, self.model, strict=True):
            assert (event.stream, event.data, event.idempotency_key, event.clock) == (
                stream,
                data,
                key,
                clock,
            )
            assert event.redacted == (content == "erased")
            assert content == "erased" or event.content == content
        reader = self.store.reader()
        for stream in {one[0] for one in self.model}:
            assert reader.version(stream) == self.version(stream)
            assert len(reader.stream(stream)) == self.version(stream)
        assert reader.streams("x-a") == sorted({one[0] for one in self.model if one[0].startswith("x-a/")})
