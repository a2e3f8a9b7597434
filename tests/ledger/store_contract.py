"""What every store must keep: subclass `StoreContract` and give it a `place` fixture (see `Place`).

Neutral about where the events lie: a test here knows `Store` and `Reader` of `ledger.store`, and `Place`.
"""

from __future__ import annotations

import threading

import pytest
from blake3 import blake3

from ledger.errors import Conflict, GatebookError, Invalid, Refused
from ledger.event import Draft, Head, Origin

ORIGIN = Origin("cli:tester", "test")
SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_780_000_000 * SECOND


class Clock:
    """A clock that a test moves: microseconds since 1970; each reading may advance it by `step`."""

    def __init__(self, now: int = START, step: int = 0) -> None:
        self.now = now
        self.step = step

    def __call__(self) -> int:
        self.now += self.step
        return self.now


class Place:
    """Where one store's events lie. `empty` tells how many events a new one holds (0, or 1 with a genesis)."""

    empty = 0

    def open(self, clock=None):
        """Open the store; every call opens the same events again."""
        raise NotImplementedError

    def erase(self, store, seq: int) -> None:
        """Erase the content and salt of one event, as a redaction does."""
        raise NotImplementedError

    def content(self, store, event) -> bytes | None:
        """The content of an event, wherever it lies."""
        raise NotImplementedError


def draft(stream="x-a/1", data=b'{"n":1}', **more) -> Draft:
    return Draft(stream, "x.thing.done", data, **more)


def add(store, *drafts, **more):
    """Append drafts that need no look at the store; the events."""
    return store.transact(lambda _reader: drafts, ORIGIN, **more)


def whole(store):
    return list(store.read())


def check_chain(events) -> None:
    """Numbers, versions, times and hashes as docs/format.md says, computed here."""
    previous, last, versions = bytes(32), "", {}
    for place, event in enumerate(events, 1):
        assert event.seq == event.members["seq"] == place
        versions[event.stream] = versions.get(event.stream, 0) + 1
        assert event.version == versions[event.stream]
        assert event.recorded_at > last
        last = event.recorded_at
        previous = blake3(previous + event.envelope, derive_key_context="gatebook 2026 event v1").digest()
        assert event.hash == previous
        assert event.members["data_digest"] == blake3(event.data).hexdigest()


class StoreContract:
    """The promises of `ledger.store.Store`."""

    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    @pytest.fixture
    def clock(self):
        return Clock(step=10)

    @pytest.fixture
    def store(self, place, clock):
        opened = place.open(clock)
        yield opened
        opened.close()

    # -- appending and reading back

    def test_a_new_store_holds_nothing_but_its_genesis(self, place, store):
        assert store.head().seq == place.empty
        assert len(whole(store)) == place.empty
        if not place.empty:
            assert (store.head().seq, store.head().hash) == (0, Head().hash)

    def test_what_was_appended_is_read_back_whole_by_every_opener(self, place, store):
        done = add(
            store,
            draft(data='{"k":"ü"}'.encode(), content=b"\x00\xffwords", correlation="c", idempotency_key="k"),
        )
        again = place.open()
        (event,) = whole(again)[place.empty :]
        again.close()
        (first,) = done.events
        assert not done.replayed
        assert (event.envelope, event.data, event.salt, event.content, event.hash) == (
            first.envelope, first.data, first.salt, first.content, first.hash,
        )  # fmt: skip
        assert event.content == b"\x00\xffwords"
        assert len(event.salt) == 16
        assert event.content_digest == blake3(event.salt + event.content).hexdigest()
        assert (event.actor, event.via, event.correlation, event.causation) == (
            "cli:tester",
            "test",
            "c",
            None,
        )
        assert store.head().seq == event.seq
        assert store.head().hash == event.hash

    def test_events_are_one_chain_over_appends_batches_and_openers(self, place, store):
        add(store, draft(), draft("x-b/1"), draft())
        second = place.open(Clock(START - SECOND))
        add(second, draft("x-b/1"))
        add(store, draft("x-b/1", content=b""), draft())
        second.close()
        events = whole(store)
        check_chain(events)
        assert [event.stream for event in events[place.empty :]] == [
            "x-a/1",
            "x-b/1",
            "x-a/1",
            "x-b/1",
            "x-b/1",
            "x-a/1",
        ]

    def test_two_drafts_with_the_same_content_have_different_digests(self, store):
        """F96: a digest of "yes" must not be recognisable."""
        one, two = add(store, draft(content=b"yes"), draft(content=b"yes")).events
        assert one.content_digest != two.content_digest

    def test_reading_can_begin_and_stop_anywhere(self, place, store):
        add(store, *[draft() for _ in range(7)])
        first = place.empty + 1
        assert [event.seq for event in store.read(first + 2, first + 5)] == [first + 2, first + 3, first + 4]
        assert list(store.read(first + 7)) == []
        assert len(list(store.read(0))) == place.empty + 7

    def test_a_reader_of_a_growing_store_sees_whole_events_in_order(self, place, store):
        """F27"""
        add(store, *[draft() for _ in range(3)])
        seen = []
        reading = store.read()
        seen.append(next(reading))
        add(store, draft(content=b"late"))
        seen += list(reading)
        check_chain(seen + list(store.read(len(seen) + 1)))

    def test_an_append_of_nothing_is_nothing(self, place, store):
        assert add(store).events == []
        assert store.head().seq == place.empty

    def test_content_over_512_kib_comes_back_whole(self, place, store):
        """F40: at the limit, one byte over."""
        limit = 512 * 1024
        events = add(
            store, draft(content=b"a" * limit), draft(content=b"b" * (limit + 1)), draft(content=b"")
        ).events
        again = place.open()
        got = [place.content(again, again.reader().event(event.seq)) for event in events]
        again.close()
        assert got == [b"a" * limit, b"b" * (limit + 1), b""]

    def test_content_over_64_mib_is_refused_and_takes_its_whole_batch_along(self, place, store):
        """F40"""
        with pytest.raises(Invalid):
            add(store, draft(), draft(content=bytes(64 * 1024 * 1024 + 1)), draft())
        assert store.head().seq == place.empty
        assert add(store, draft()).events[0].seq == place.empty + 1

    # -- all or nothing

    def test_a_batch_with_one_wrong_draft_records_nothing_and_leaves_no_gap(self, place, store):
        """F71"""
        add(store, draft())
        with pytest.raises(Conflict):
            add(store, draft(), draft("x-b/1"), draft("x-b/1", expect_version=7))
        with pytest.raises(Invalid):
            add(store, draft(), draft(causation=place.empty + 3))
        (event,) = add(store, draft("x-b/1")).events
        assert (event.seq, event.version) == (place.empty + 2, 1)
        check_chain(whole(store))

    def test_whatever_decide_raises_leaves_the_store_as_it_was(self, place, store):
        class Odd(BaseException):
            pass

        def decide(_reader):
            raise Odd

        for _ in range(2):
            with pytest.raises(Odd):
                store.transact(decide, ORIGIN)
        assert store.head().seq == place.empty
        add(store, draft())

    def test_decide_sees_the_head_that_its_drafts_follow(self, place, store):
        add(store, draft(), draft("x-b/1"))

        def decide(reader):
            head = reader.head()
            assert reader.version("x-a/1") == 1
            assert reader.stream("x-a/1")[-1].version == 1
            return [draft(data=b'{"after":%d}' % head.seq)]

        (event,) = store.transact(decide, ORIGIN).events
        assert event.data == b'{"after":%d}' % (event.seq - 1)

    def test_then_runs_after_the_commit_and_also_when_nothing_was_recorded(self, place, store):
        seen = []
        store.transact(lambda _reader: [draft()], ORIGIN, then=lambda: seen.append(store.head().seq))
        store.transact(lambda _reader: [], ORIGIN, then=lambda: seen.append(store.head().seq))
        assert seen == [place.empty + 1, place.empty + 1]

    def test_then_does_not_run_when_nothing_could_be_recorded(self, store):
        with pytest.raises(Conflict):
            store.transact(lambda _reader: [draft(expect_version=3)], ORIGIN, then=lambda: pytest.fail("ran"))

    # -- expected versions

    def test_an_expected_version_must_be_the_streams(self, store):
        add(store, draft(expect_version=0), draft(expect_version=1), draft("x-b/1", expect_version=0))
        for wrong in (0, 1, 3, 2**53 - 1):
            with pytest.raises(Conflict, match="at version 2"):
                add(store, draft(expect_version=wrong))
        assert add(store, draft(expect_version=2)).events[0].version == 3

    def test_a_causation_must_be_an_earlier_event(self, place, store):
        first = add(store, draft()).events[0].seq
        assert add(store, draft(causation=first)).events[0].causation == first
        for wrong in (0, first + 2, 2**53 - 1):
            with pytest.raises(Invalid, match="causation"):
                add(store, draft(causation=wrong))
        one, two = add(store, draft(), draft(causation=first + 2)).events
        assert two.causation == one.seq

    # -- idempotency keys

    def test_the_same_call_under_the_same_key_returns_the_first_event(self, store):
        (first,) = add(store, draft(content=b"c", idempotency_key="k")).events
        add(store, draft())
        for changed in ({}, {"correlation": "other"}, {"expect_version": 0}, {"causation": 1}):
            again = add(store, draft(content=b"c", idempotency_key="k", **changed))
            assert again.replayed
            assert [event.hash for event in again.events] == [first.hash]

    @pytest.mark.parametrize(
        "other",
        [
            {"data": b'{"n":2}'}, {"content": b"d"}, {"content": None}, {"content": b""}, {"stream": "x-b/1"}, {"v": 2},
        ],
    )  # fmt: skip
    def test_other_content_under_a_used_key_is_a_conflict(self, store, other):
        add(store, draft(content=b"c", idempotency_key="k"))
        with pytest.raises(Conflict, match="'k' was used by event"):
            add(store, draft(**{"content": b"c", **other}, idempotency_key="k"))
        with pytest.raises(Conflict):
            add(store, Draft("x-a/1", "x.other.done", b'{"n":1}', content=b"c", idempotency_key="k"))

    def test_a_key_whose_content_was_redacted_is_a_conflict(self, place, store):
        (event,) = add(store, draft(content=b"c", idempotency_key="k")).events
        (plain,) = add(store, draft(idempotency_key="p")).events
        place.erase(store, event.seq)
        for content in (b"c", b"d", None):
            with pytest.raises(Conflict, match="redacted"):
                add(store, draft(content=content, idempotency_key="k"))
        assert add(store, draft(idempotency_key="p")).events[0].seq == plain.seq

    def test_large_content_is_compared_too(self, store):
        big = b"z" * (600 * 1024)
        (event,) = add(store, draft(content=big, idempotency_key="k")).events
        assert add(store, draft(content=big, idempotency_key="k")).events[0].seq == event.seq
        with pytest.raises(Conflict):
            add(store, draft(content=big[1:] + b"y", idempotency_key="k"))

    def test_a_batch_replays_whole_or_conflicts(self, place, store):
        batch = [draft(idempotency_key="a"), draft("x-b/1"), draft(idempotency_key="b")]
        first = add(store, *batch).events
        again = add(store, *batch)
        assert again.replayed
        assert [event.seq for event in again.events] == [event.seq for event in first]
        head = store.head().seq
        for wrong in (
            [batch[0], batch[1], draft(idempotency_key="new")],
            [batch[2], batch[1], batch[0]],
            [batch[0], draft("x-b/1", b'{"n":9}'), batch[2]],
            [batch[0], batch[2]],
            [draft(idempotency_key="n"), draft(idempotency_key="n")],
            [draft(), *batch],
        ):
            with pytest.raises(Conflict):
                add(store, *wrong)
        assert store.head().seq == head

    def test_the_event_of_a_key_can_be_found(self, store):
        (event,) = add(store, draft(idempotency_key="k\u00fc")).events
        assert store.reader().by_key("k\u00fc").hash == event.hash
        assert store.reader().by_key("other") is None

    # -- the clock

    def test_a_clock_that_stands_gives_each_event_its_own_time(self, store, clock):
        clock.step = 0
        events = add(store, draft(), draft()).events + add(store, draft()).events
        times = [event.recorded_us for event in events]
        assert times == [times[0], times[0] + 1, times[0] + 2]
        assert [event.clock for event in events] == [clock.now] * 3
        assert [event.clock_behind for event in events][1:] == [
            times[0] + 1 - clock.now,
            times[0] + 2 - clock.now,
        ]
        assert "clock_behind" not in events[0].members or events[0].clock_behind > 0

    def test_a_clock_that_ran_back_is_recorded_as_it_was_read(self, store, clock):
        (first,) = add(store, draft()).events
        clock.now -= 3600 * SECOND
        (second,) = add(store, draft()).events
        assert second.recorded_us == first.recorded_us + 1
        assert second.clock == clock.now
        clock.now += 7200 * SECOND
        (third,) = add(store, draft()).events
        assert "clock_behind" not in third.members
        assert third.recorded_us == clock.now

    def test_a_clock_over_24_h_behind_is_refused_unless_told_otherwise(self, store, clock):
        clock.step = 0
        add(store, draft())
        clock.now -= DAY
        add(store, draft())  # exactly 24 h is not over 24 h
        clock.now -= DAY + 1
        with pytest.raises(Refused, match="clock"):
            add(store, draft())
        (jumped,) = add(store, draft(), clock_jump=True).events
        assert jumped.clock == clock.now
        assert (
            add(store, draft()).events[0].clock == clock.now
        )  # judged by the last clock as read, not by recorded_at
        check_chain(whole(store))

    def test_each_step_back_is_judged_by_the_clock_read_before_it(self, store, clock):
        clock.step = 0
        for _ in range(3):
            add(store, draft())
            clock.now -= DAY - 1
        check_chain(whole(store))

    def test_a_gap_ahead_is_never_refused(self, store, clock):
        add(store, draft())
        clock.now += 400 * DAY
        assert add(store, draft()).events[0].recorded_us == clock.now

    def test_decide_sees_the_clock_that_its_events_carry(self, store, clock):
        seen = []

        def decide(reader):
            seen.append(reader.clock)
            return [draft(), draft()]

        assert {event.clock for event in store.transact(decide, ORIGIN).events} == set(seen[-1:])

    # -- readers

    def test_a_stream_can_be_read_in_part(self, store):
        add(store, *[draft(data=b'{"n":%d}' % n) for n in range(1, 6)], draft("x-b/1"))
        reader = store.reader()
        assert [event.version for event in reader.stream("x-a/1")] == [1, 2, 3, 4, 5]
        assert [event.version for event in reader.stream("x-a/1", after=1, upto=3)] == [2, 3]
        assert reader.stream("x-a/1", after=5) == []
        assert reader.stream("x-a/2") == []
        assert (reader.version("x-a/1"), reader.version("x-a/2"), reader.version("x-a")) == (5, 0, 0)

    def test_streams_of_a_kind_are_named_without_those_of_a_similar_kind(self, store):
        names = ["x-a/1", "x-a/2", "x-a/\u00fc", "x-a/'\";--", "x-ab/1", "x-a-b/1", "x-a0/1"]
        add(store, *[draft(name) for name in names], draft("x-a/1"))
        assert store.reader().streams("x-a") == sorted(names[:4])
        assert store.reader().streams("x-none") == []

    def test_events_of_a_type_come_newest_first(self, store):
        events = add(store, draft(), Draft("x-a/1", "x.other.done"), draft(), draft()).events
        found = store.reader().of_type("x.thing.done", 2)
        assert [event.seq for event in found] == [events[3].seq, events[2].seq]
        earlier = store.reader().of_type("x.thing.done", 9, before=events[2].seq)
        assert [event.seq for event in earlier] == [events[0].seq]

    def test_an_event_is_found_by_its_number_only(self, place, store):
        (event,) = add(store, draft()).events
        reader = store.reader()
        assert reader.event(event.seq).hash == event.hash
        assert reader.event(event.seq + 1) is None
        assert reader.event(0) is None

    def test_a_reader_outside_a_transaction_follows_the_store(self, place, store):
        reader = store.reader()
        before = reader.head().seq
        add(store, draft())
        assert (reader.head().seq, reader.version("x-a/1")) == (before + 1, 1)

    # -- snapshots

    def test_a_snapshot_is_kept_with_what_its_transaction_appends(self, place, store):
        def decide(reader):
            reader.save_snapshot("x-a/1", 1, "fold/1", b"state")
            return [draft()]

        store.transact(decide, ORIGIN)
        again = place.open()
        reader = again.reader()
        assert reader.snapshot("x-a/1", "fold/1") == (1, b"state")
        assert reader.snapshot("x-a/1", "fold/2") is None  # F65: another fold's state is never used
        assert reader.snapshot("x-a/1", "fold/1", upto=0) is None
        assert reader.snapshot("x-b/1", "fold/1") is None
        again.close()

    def test_a_snapshot_of_a_transaction_that_failed_is_not_kept(self, store):
        def decide(reader):
            reader.save_snapshot("x-a/1", 1, "fold/1", b"state")
            return [draft(expect_version=5)]

        with pytest.raises(Conflict):
            store.transact(decide, ORIGIN)
        add(store, draft())
        assert store.reader().snapshot("x-a/1", "fold/1") is None

    # -- redaction

    def test_erased_content_leaves_chain_numbers_and_the_other_reads_as_they_were(self, place, store):
        one, two = add(store, draft(content=b"words"), draft(content=b"other")).events
        place.erase(store, one.seq)
        check_chain(whole(store))
        erased = store.reader().event(one.seq)
        assert (erased.envelope, erased.data, erased.hash) == (one.envelope, one.data, one.hash)
        assert erased.redacted
        assert (erased.content, erased.salt) == (None, None)
        assert place.content(store, store.reader().event(two.seq)) == b"other"
        add(store, draft())

    # -- many at once

    @pytest.mark.slow
    def test_sixteen_threads_on_one_object_lose_nothing_and_see_no_unfinished_event(self, place, store):
        """F3"""
        problems, start = [], threading.Barrier(16)

        def work(n):
            start.wait()
            try:
                for i in range(12):
                    add(store, draft(f"x-t/{n}", b'{"i":%d}' % i, expect_version=2 * i), draft(f"x-t/{n}"))
                    if n % 4 == 0:
                        events = whole(store)
                        check_chain(events)
                        assert (len(events) - place.empty) % 2 == 0  # never half a batch
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        events = whole(store)
        check_chain(events)
        assert len(events) == place.empty + 16 * 24

    def test_no_thread_sees_what_another_has_not_committed(self, place, store):
        """F3, F43: a reader during somebody's transaction sees the state before it, or waits."""
        inside, seen = threading.Event(), []

        def decide(reader):
            inside.set()
            return [draft(idempotency_key="late")]

        def watch():
            inside.wait()
            found = store.reader().by_key("late")
            seen.append(found is None or store.head().seq >= found.seq)

        watcher = threading.Thread(target=watch)
        watcher.start()
        with pytest.raises(Conflict):
            store.transact(lambda reader: [*decide(reader), draft(expect_version=9)], ORIGIN)
        watcher.join()
        assert seen == [True]
        assert store.reader().by_key("late") is None

    def test_what_another_opener_committed_is_seen_before_deciding(self, place, store, clock):
        """F43: read, another commits, write: no lost update and no spurious failure."""
        other = place.open(clock)
        assert store.reader().version("x-a/1") == 0
        add(other, draft())
        other.close()

        def decide(reader):
            return [draft(expect_version=reader.version("x-a/1"))]

        assert store.transact(decide, ORIGIN).events[0].version == 2

    # -- the end

    def test_a_closed_store_refuses_everything(self, store):
        store.close()
        store.close()
        for use in (store.head, store.reader, lambda: add(store, draft()), lambda: whole(store)):
            with pytest.raises(GatebookError):
                use()
