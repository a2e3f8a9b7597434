"""Many messages at once: a consumer of our own delivers them, and whatever is odd about it is read by direct gets."""

from __future__ import annotations

import itertools
import re

import apsw
import pytest
from store_contract import add, draft, whole

import ledger.follow as follow_module
import ledger.jetstream as jetstream_module
import ledger.nats_client as client_module
import ledger.replica as replica_module
from ledger.canonical import encode
from ledger.errors import Refused, Unavailable
from ledger.event import Origin
from ledger.extension import message_of
from ledger.fleet import _open_store, create_fleet, open_fleet
from ledger.follow import Keeping
from ledger.jetstream import Deliveries, Stream
from ledger.nats_client import Connection, Link, Silence
from ledger.nats_login import Login
from ledger.replica import FleetStore
from ledger.sqlite import connect

ORIGIN = Origin("cli:tester", "test")
EVENTS = 120
_names = (f"D{n}" for n in itertools.count())


@pytest.fixture
def filled(server, home, monkeypatch):
    """(url, the events): batches, contents, keys, floats, and messages of strangers."""
    url = f"nats://{server.address}/{next(_names)}"
    name = url.rpartition("/")[2]
    create_fleet(url, ORIGIN, {})
    ledger = open_fleet(url)
    link = Link([("127.0.0.1", server.port)], Login())
    for n in range(EVENTS // 10):
        add(ledger, *(draft(f"x-many/{k % 3}", data=b'{"n":%d}' % n) for k in range(7)))
        add(ledger, draft(idempotency_key=f"k{n}") if n % 4 else draft(content=b"words"))
        link.request(f"gatebook.{name}", b"a stranger's", b"Nats-Sequence: 3\r\nX: y\r\n")
        add(ledger, draft("x-b/1", data='{"é":1.5}'.encode()))
    events = [event.hash for event in whole(ledger.store)]
    ledger.close()
    link.drop()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "new-machine"))
    return url, events


@pytest.fixture
def small(monkeypatch):
    """Pages are small, so that few events are many."""
    monkeypatch.setattr(follow_module, "PAGE", 20)
    monkeypatch.setattr(follow_module, "WORTH_DELIVERING", 30)
    monkeypatch.setattr(follow_module, "MANY", 10)


def places_asked(monkeypatch, source):
    """Where pages that `source`, a Stream or Deliveries, is asked for begin."""
    asked = []
    ask = source.ask_from

    def note(self, place, limit):
        asked.append(place)
        return ask(self, place, limit)

    monkeypatch.setattr(source, "ask_from", note)
    return asked


@pytest.fixture
def gets(monkeypatch):
    """Where direct gets began."""
    return places_asked(monkeypatch, Stream)


def read(url):
    """What a new machine reads."""
    made = open_fleet(url)
    try:
        return [event.hash for event in whole(made.store)], made.store.voids
    finally:
        made.close()


def test_a_new_machine_asks_for_the_beginning_and_the_end_alone(filled, small, gets):
    url, events = filled
    assert read(url) == (events, EVENTS // 10)
    assert len(gets) == 2
    assert gets[0] == 1
    assert gets[1] == len(events) + EVENTS // 10 + 1


@pytest.mark.parametrize("room", [1, 63, 700])
def test_what_comes_in_pieces_is_put_together(filled, small, gets, monkeypatch, room):
    monkeypatch.setattr(client_module, "LEAST_ROOM", room)
    monkeypatch.setattr(client_module, "MOST_ROOM", room)
    url, events = filled
    assert read(url) == (events, EVENTS // 10)
    assert len(gets) == 2


def test_a_page_that_is_too_large_for_the_server_comes_in_smaller_ones(filled, small, gets, monkeypatch):
    monkeypatch.setattr(follow_module, "PAGE", 100)
    monkeypatch.setattr(jetstream_module, "PAGE_BYTES", 5000)
    asked = places_asked(monkeypatch, Deliveries)
    monkeypatch.setattr(follow_module, "WORTH_DELIVERING", 1)
    url, events = filled
    assert read(url) == (events, EVENTS // 10)
    assert len(asked) > 2
    assert len(gets) == 2


def test_a_ping_and_what_is_said_of_turns_in_between_end_no_delivery(filled, small, gets, monkeypatch):
    url, events = filled
    aside = b"PING\r\n+OK\r\nMSG gatebook.%b.turn 2 4\r\nwait\r\nMSG late.answer 1 0\r\n\r\n"
    delivered, heard = Connection.delivered, []

    def interrupted(self, control, place, deadline):
        if not heard or heard[-1] != place:
            heard.append(place)
            self._buffer = (
                self._buffer[: self._at] + aside % url.rpartition("/")[2].encode() + self._buffer[self._at :]
            )
        return delivered(self, control, place, deadline)

    monkeypatch.setattr(Connection, "delivered", interrupted)
    assert read(url) == (events, EVENTS // 10)
    assert len(heard) > 2
    assert len(gets) == 2


def test_a_message_without_headers_goes_on_by_direct_gets(filled, small, gets, server):
    """The control line of such a one is another: it is none of gatebook's, but it counts when it follows."""
    url, events = filled
    link = Link([("127.0.0.1", server.port)], Login())
    writer = open_fleet(url)
    for _ in range(30):
        link.request(f"gatebook.{url.rpartition('/')[2]}", b"no headers")
        add(writer, draft())
    new = [event.hash for event in whole(writer.store)]
    writer.store.follow(whole=True)
    assert new[: len(events)] == events
    assert [event.hash for event in whole(writer.store)] == new
    assert writer.store.voids == EVENTS // 10 + 30
    writer.close()


def skip_one(make):
    """A consumer that begins one message too late."""

    def late(self, stream, place):
        make(self, stream, place + 1)
        self._place = place

    return late


def other_names(make):
    """A server that writes its reply subjects in a way we do not know."""

    def odd(self, stream, place):
        make(self, stream, place)
        self._control = re.compile(rb"HMSG gatebook .(\d+)(\d+)(\d+)(\d+)").match

    return odd


def gone(make):
    """A consumer that the server has forgotten."""

    def forgotten(self, stream, place):
        make(self, stream, place)
        self._next += b"x"

    return forgotten


def refused(error):
    def wrap(_make):
        def refuse(self, stream, place):
            raise error("no consumers for this user")

        return refuse

    return wrap


@pytest.mark.parametrize("odd", [skip_one, other_names, gone, refused(Refused), refused(Unavailable)])
def test_whatever_is_odd_about_it_is_read_by_direct_gets(filled, small, gets, monkeypatch, odd):
    monkeypatch.setattr(Deliveries, "__init__", odd(Deliveries.__init__))
    url, events = filled
    assert read(url) == (events, EVENTS // 10)
    assert len(gets) > 5


def test_who_may_make_a_consumer_but_not_ask_it_reads_by_direct_gets(filled, small, gets, monkeypatch):
    def refused(self, *_):
        raise Refused("permissions violation")

    monkeypatch.setattr(Connection, "delivered", refused)
    url, events = filled
    assert read(url) == (events, EVENTS // 10)
    assert len(gets) > 5


def test_after_silence_the_next_reading_is_by_direct_gets(filled, small, gets, monkeypatch):
    calls = []

    def silent(self, *_):
        calls.append(1)
        raise Silence("nothing came")

    monkeypatch.setattr(Connection, "delivered", silent)
    url, events = filled
    assert read(url) == (events, EVENTS // 10)
    assert len(calls) == 1


@pytest.mark.parametrize("patience", [0.0, 8.0])
def test_silence_in_the_middle_of_a_long_reading_loses_nothing_and_is_not_the_end(
    filled, small, gets, monkeypatch, patience
):
    """What the reading before it kept counts as come, and whoever read for longer than is waited for silence reads on."""
    delivered, calls = Connection.delivered, []

    def dies(self, *given):
        calls.append(1)
        if len(calls) > 3:
            raise Silence("its server died")
        return delivered(self, *given)

    monkeypatch.setattr(Connection, "delivered", dies)
    monkeypatch.setattr(replica_module, "PATIENCE", patience)
    url, events = filled
    made = open_fleet(url)
    assert made.notice == ""
    assert [event.hash for event in whole(made.store)] == events
    assert made.store.came == len(events)
    assert len(calls) == 4
    made.close()


def test_a_hole_in_the_stream_is_found_after_deliveries(server, home, small, monkeypatch):
    """A message that was taken out: the consumer passes over it without a word."""
    name = next(_names)
    url = f"nats://{server.address}/{name}"
    link = Link([("127.0.0.1", server.port)], Login())
    config = Stream(link, name).config(1) | {"deny_delete": False}  # as an administrator may make it
    link.request(f"$JS.API.STREAM.CREATE.{name}", encode(config))
    create_fleet(url, ORIGIN, {})
    writer = open_fleet(url)
    add(writer, *(draft() for _ in range(EVENTS)))
    writer.close()
    assert b'"success":true' in link.request(f"$JS.API.STREAM.MSG.DELETE.{name}", b'{"seq":70}').payload
    link.drop()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "new-machine"))
    monkeypatch.setattr(FleetStore, "_look", lambda _self: 0)  # it would say so first
    made = open_fleet(url)
    assert made.store.fault.verdict == "gap"
    made.close()


def test_what_is_kept_is_told_while_more_comes(filled, small):
    url, events = filled
    told = []

    def tell(store, seq):
        beside = connect(
            store.path, readonly=True
        )  # the store's own connection may be in another thread's hands
        told.append((seq, beside.execute("SELECT max(seq) FROM events").fetchall()[0][0]))
        beside.close()

    made = open_fleet(url, kept=tell)
    assert told[-1][0] == len(events)
    assert len(told) > 3
    assert all(seq <= head for seq, head in told)
    assert told == sorted(told)
    made.close()


def test_a_message_forged_to_look_like_two_lines_of_events_counts_for_nothing(filled, small, server):
    """Each message is judged by its own lines, however many come at once."""
    url, _ = filled
    writer = open_fleet(url)
    link = Link([("127.0.0.1", server.port)], Login())
    (event,) = add(writer, draft()).events
    body = message_of(event)
    for at in (body.index(b"\n"), body.rindex(b"\n")):
        for part in (body[:at], body[at + 1 :]):
            link.request(f"gatebook.{url.rpartition('/')[2]}", part, b"X: y\r\n")
    before = writer.store.voids
    writer.store.follow(whole=True)
    assert writer.store.voids == before + 4
    writer.close()


@pytest.mark.parametrize("count", [3, follow_module.MANY])
@pytest.mark.parametrize("first", [1, 2])
def test_what_is_kept_follows_the_replicas_last_event_or_none_of_it_is_there(
    server, home, monkeypatch, first, count
):
    """Many rows are not looked at one by one by SQLite's trigger, but are refused as it would."""
    url = f"nats://{server.address}/{next(_names)}"
    create_fleet(url, ORIGIN, {})
    writer = open_fleet(url)
    add(writer, *(draft() for _ in range(count - 1)))  # and the genesis event
    bodies = [message_of(event) for event in whole(writer.store)]
    writer.close()
    starts = itertools.accumulate(map(len, bodies), initial=0)
    lines = [[len(line) for line in body.split(b"\n")] for body in bodies]
    where = [
        follow_module._where(at, envelope, data)
        for at, (envelope, data, _) in zip(starts, lines, strict=False)
    ]
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "new-machine"))
    store = _open_store(url, lambda: 0)
    keeping = Keeping(store, store._usable(), [(b"".join(bodies), where)], first, None)
    if first == 1:
        keeping.insert()
        assert [message_of(event) for event in whole(store)] == bodies
    else:
        with pytest.raises(apsw.ConstraintError):
            keeping.insert()
        assert store.head().seq == 0
    store.close()
