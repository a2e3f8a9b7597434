"""What only a fleet can suffer: void messages, lost acknowledgements, killed servers, wiped and rewritten streams."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from nats_servers import Server
from store_contract import add, check_chain, draft, whole

from commands.fleet_checks import check_fleet
from ledger.errors import Conflict, GatebookError, Invalid, Refused, Tampered, Unavailable, Usage
from ledger.event import Draft, Origin
from ledger.extension import message_of
from ledger.fleet import create_fleet, open_fleet, replica_folder
from ledger.follow import Keeping
from ledger.nats_client import Link, Silence
from ledger.nats_login import Login
from ledger.verify import verify
from projections.replay import replay

ORIGIN = Origin("cli:tester", "test")
_names = (f"F{n}" for n in itertools.count())


@pytest.fixture
def url(server, home):
    made = f"nats://{server.address}/{next(_names)}"
    create_fleet(made, ORIGIN, {})
    return made


@pytest.fixture
def machine(home, monkeypatch, request):
    """machine(n): from here on we are machine n, with a home of its own."""

    def become(n):
        monkeypatch.setenv("XDG_STATE_HOME", str(home / f"machine{n}"))

    become(0)
    return become


@pytest.fixture
def opened(request):
    """Open ledgers that are closed at the end."""
    made = []

    def open_one(url):
        ledger = open_fleet(url)
        made.append(ledger)
        return ledger

    yield open_one
    for ledger in made:
        ledger.close()


def stranger(server) -> Link:
    """Somebody with a NATS client and no gatebook."""
    return Link([("127.0.0.1", server.port)], Login())


def name_of(url):
    return url.rpartition("/")[2]


def test_messages_that_extend_nothing_take_no_seq_and_are_counted_by_every_replica(
    server, url, machine, opened
):
    machine(1)
    first = opened(url)
    (event,) = add(first, draft()).events
    link = stranger(server)
    subject = f"gatebook.{name_of(url)}"
    for body in (b"", b"hello", b"a\nb\nc", message_of(event), message_of(event)[:-1] + b"0"):
        link.request(subject, body)
    link.request(subject, b"x", b"Nats-Sequence: 9\r\nNats-Batch-Id: \r\n")
    (after,) = add(first, draft()).events
    assert after.seq == event.seq + 1
    machine(2)
    second = opened(url)
    assert [e.hash for e in whole(second.store)] == [e.hash for e in whole(first.store)]
    assert second.store.voids == 6
    first.store.follow()
    assert first.store.voids == 6
    assert verify(second.store).ok
    link.drop()


def test_two_machines_write_in_turn_and_decide_again_on_what_the_other_wrote(url, machine, opened):
    machine(1)
    one = opened(url)
    machine(2)
    two = opened(url)
    for n in range(6):
        ledger = (one, two)[n % 2]

        def decide(reader):
            return [draft(data=b'{"n":%d}' % reader.version("x-a/1"), expect_version=reader.version("x-a/1"))]

        (event,) = ledger.transact(decide, ORIGIN).events
        assert (event.version, event.data) == (n + 1, b'{"n":%d}' % n)


@pytest.mark.parametrize("hidden", [1, 3, 40])
def test_what_the_leader_alone_shows_yet_is_read_from_it(url, machine, opened, monkeypatch, hidden):
    """The other servers of a cluster lag: a writer that lost a race does not lose the next by that too."""
    machine(1)
    first = opened(url)
    add(first, draft())
    machine(2)
    second = opened(url)
    (before,) = add(first, draft()).events
    add(first, *[draft() for _ in range(hidden)])
    stream = second.store.stream
    page, publish = stream.page, stream.publish
    lagging, published = [True], []

    def show(inbox, limit):
        bursts, more = page(inbox, limit)
        shown = not lagging
        for burst in reversed(bursts):
            while burst.spans and not shown:
                shown = burst.buffer[slice(*burst.spans[-1][1:])] == message_of(before)
                if not shown:
                    del burst.spans[-1]
        if len(published) > 1:
            lagging.clear()
        return bursts, more

    monkeypatch.setattr(stream, "page", show)
    monkeypatch.setattr(stream, "publish", lambda *args: (published.append(1), publish(*args))[1])
    (event,) = add(second, draft()).events
    assert event.seq == before.seq + hidden + 1
    assert len(published) == (2 if hidden < 32 else 3)
    first.store.follow()
    assert [e.hash for e in whole(first.store)] == [e.hash for e in whole(second.store)]


def test_a_refusal_on_an_old_head_is_not_final(url, machine, opened):
    """The claim was given back elsewhere: whoever asks now must get it."""
    machine(1)
    one = opened(url)
    machine(2)
    two = opened(url)
    add(one, draft("x-claim/1"))
    two.store.follow()
    add(one, draft("x-claim/1"))

    def claim(reader):
        if reader.version("x-claim/1") % 2:
            raise Conflict("held")
        return [draft("x-claim/1")]

    assert two.transact(claim, ORIGIN).events[0].version == 3
    with pytest.raises(Conflict, match="held"):
        two.transact(claim, ORIGIN)


def test_a_lost_acknowledgement_is_resolved_by_looking_at_the_place(url, machine, opened, monkeypatch):
    """Failed but stored: recorded once, and the caller gets that very event."""
    ledger = opened(url)
    stream = ledger.store.stream
    ask = stream.acknowledged
    lost = []

    def lose_the_first():
        place = ask()
        if not lost:
            lost.append(place)
            raise Silence("lost on the way")
        return place

    monkeypatch.setattr(stream, "acknowledged", lose_the_first)
    done = add(ledger, draft(content=b"once"), draft())
    assert lost == [done.events[-1].seq]
    assert len(whole(ledger.store)) == 3
    monkeypatch.undo()
    ledger.store.follow()
    add(ledger, draft())
    check_chain(whole(ledger.store))


def test_courtesy_that_fails_fails_no_write(url, machine, opened, monkeypatch):
    """The turn cannot be passed on: the event is recorded all the same."""
    ledger = opened(url)
    add(ledger, draft())
    turns = ledger.store.turns
    turns._queue[b"0123456789abcdef"] = time.monotonic()
    turns._done = 0.0  # long ago: the turn is passed on after the write
    link = ledger.store.link

    def broken(*_):
        raise Silence("broken")

    connection = link.connection()
    publish = connection.publish
    monkeypatch.setattr(
        connection,
        "publish",
        lambda subject, *rest: broken() if b".turn" in subject else publish(subject, *rest),
    )
    turns.must_wait = lambda: False
    (event,) = add(ledger, draft()).events
    assert event.seq == 3
    assert not link.connected
    assert add(ledger, draft()).events[0].seq == 4


def test_a_publish_that_was_not_stored_is_sent_again(url, machine, opened, monkeypatch):
    """Failed, and not stored."""
    ledger = opened(url)
    stream = ledger.store.stream
    send, sent = stream.publish, []

    def drop_the_first(bodies, last, attempt):
        sent.append(last)
        if len(sent) == 1:
            ledger.store.link.drop()
            raise Silence("the connection broke")
        send(bodies, last, attempt)

    monkeypatch.setattr(stream, "publish", drop_the_first)
    (event,) = add(ledger, draft()).events
    assert sent == [event.seq - 1] * 2


def test_somebody_elses_event_at_the_place_after_a_lost_acknowledgement_is_not_taken_for_ours(
    url, machine, opened, monkeypatch
):
    machine(1)
    one = opened(url)
    machine(2)
    two = opened(url)
    stream = one.store.stream
    send, sent = stream.publish, []

    def first_comes_the_other(bodies, last, attempt):
        sent.append(last)
        if len(sent) == 1:
            add(two, draft("x-b/1"))
            raise Silence("the connection broke before it was sent")
        send(bodies, last, attempt)

    monkeypatch.setattr(stream, "publish", first_comes_the_other)
    (event,) = add(one, draft("x-a/1")).events
    assert event.seq == 3
    two.store.follow()
    assert [e.stream for e in whole(two.store)] == ["ledger", "x-b/1", "x-a/1"]


def test_a_wiped_replica_is_made_again_from_the_stream(url, machine, opened):
    ledger = opened(url)
    add(ledger, draft(content=b"words"), draft())
    before = [(e.hash, e.salt, e.content) for e in whole(ledger.store)]
    ledger.close()
    for name in os.listdir(replica_folder(url)):
        path = os.path.join(replica_folder(url), name)
        if os.path.isfile(path):
            os.unlink(path)
    again = opened(url)
    assert [(e.hash, e.salt, e.content) for e in whole(again.store)] == before
    assert add(again, draft()).events[0].seq == 4


def test_a_replica_that_lost_its_last_commits_reads_them_again(url, machine, opened):
    """Power loss: the replica's commits are not flushed, the stream's are."""
    ledger = opened(url)
    add(ledger, draft())
    ledger.close()
    kept = open(os.path.join(replica_folder(url), "ledger.db"), "rb").read()
    wal = open(os.path.join(replica_folder(url), "ledger.db-wal"), "rb").read()
    ledger = opened(url)
    add(ledger, draft(), draft("x-b/1"))
    heads = [e.hash for e in whole(ledger.store)]
    ledger.close()
    for name, raw in (("ledger.db", kept), ("ledger.db-wal", wal)):
        with open(os.path.join(replica_folder(url), name), "wb") as file:
            file.write(raw)
    os.unlink(os.path.join(replica_folder(url), "ledger.db-shm"))
    again = opened(url)
    assert [e.hash for e in whole(again.store)] == heads


def test_processes_that_start_together_on_a_new_machine_share_one_replica(url, home, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "new-machine"))
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from store_contract import add, draft\nfrom ledger.fleet import open_fleet\n"
        "sys.stdin.readline()\nl = open_fleet(sys.argv[1])\nprint(add(l, draft()).events[0].seq)\nl.close()"
    )
    command = [sys.executable, "-c", code, url, os.path.dirname(__file__)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(8)
    ]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    assert sorted(int(worker.communicate()[0]) for worker in workers) == list(range(2, 10))


def test_writers_on_many_machines_lose_no_event_and_none_is_starved(url, machine, opened, home):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[2])\n"
        "from store_contract import add, draft\nfrom ledger.fleet import open_fleet\n"
        "l = open_fleet(sys.argv[1])\nprint('ready', flush=True)\nsys.stdin.readline()\nworst = 0\n"
        "for n in range(15):\n"
        "    began = time.monotonic(); add(l, draft('x-m/1')); worst = max(worst, time.monotonic() - began)\n"
        "l.close()\nprint(worst)"
    )
    command = [sys.executable, "-c", code, url, os.path.dirname(__file__)]
    workers = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "XDG_STATE_HOME": str(home / f"writer{n}")},
        )
        for n in range(6)
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    worst = [float(worker.communicate()[0]) for worker in workers]
    events = whole(opened(url).store)
    check_chain(events)
    assert [event.version for event in events[1:]] == list(range(1, 91))
    assert max(worst) < 10  # without turns it takes longer than the whole test may


@pytest.mark.parametrize("damage", [b"", b"garbage", b"9" * 125, None])
def test_a_damaged_anchor_only_costs_reading_everything_again(url, machine, opened, damage):
    ledger = opened(url)
    add(ledger, draft(), draft())
    ledger.close()
    path = os.path.join(replica_folder(url), "anchor")
    if damage is None:
        os.unlink(path)
    else:
        with open(path, "wb") as file:
            file.write(damage)
    again = opened(url)
    assert not again.store.offline
    assert add(again, draft()).events[0].seq == 4


@pytest.mark.parametrize("many", [0, 10**9])
@pytest.mark.parametrize("taken", ["seq = 2", "seq BETWEEN 2 AND 4"])
def test_a_replica_with_a_hole_is_said_not_followed(url, machine, opened, monkeypatch, many, taken):
    ledger = opened(url)
    add(ledger, *[draft() for _ in range(5)])
    ledger.close()
    import apsw

    connection = apsw.Connection(os.path.join(replica_folder(url), "ledger.db"))
    connection.execute(f"DROP TRIGGER events_kept; DELETE FROM events WHERE {taken}")
    connection.close()
    monkeypatch.setattr("ledger.follow.MANY", many)
    monkeypatch.setattr("ledger.follow.CHUNK", 1)
    with pytest.raises(Tampered, match="event 2 is missing"):
        opened(url).store.follow(whole=True)


def rewrite(server, url, keep: int, extra: int) -> None:
    """An administrator deletes the stream and makes it again with its first `keep` messages and others after them."""
    link = stranger(server)
    name = name_of(url)
    kept = []
    for place in range(1, keep + 1):
        answer = link.request(f"$JS.API.DIRECT.GET.{name}", b'{"seq":%d}' % place)
        kept.append(answer.payload)
    assert b'"success":true' in link.request(f"$JS.API.STREAM.DELETE.{name}").payload
    from ledger.jetstream import Stream

    Stream(link, name).create()
    for body in kept:
        link.request(f"gatebook.{name}", body)
    link.drop()
    if extra:
        home = os.environ["XDG_STATE_HOME"]
        os.environ["XDG_STATE_HOME"] = f"{home}-administrator-{name}"
        ledger = open_fleet(url)
        for n in range(extra):
            add(ledger, draft("x-forged/1", b'{"n":%d}' % n))
        ledger.close()
        os.environ["XDG_STATE_HOME"] = home


@pytest.mark.parametrize(
    ("keep", "extra", "verdict"), [(3, 0, "truncated"), (3, 2, "forked"), (3, 9, "forked")]
)
@pytest.mark.parametrize("lost", ["nothing", "anchor", "replica"])
def test_what_was_lost_or_rewritten_is_seen_by_a_machine_that_had_it(
    server, url, machine, opened, monkeypatch, keep, extra, verdict, lost
):
    """Also with the same number of events (F11), and by the memory alone when the replica is gone."""
    monkeypatch.setattr("ledger.replica.PATIENCE", 0.3)
    machine(1)
    ledger = opened(url)
    add(ledger, *[draft(data=b'{"n":%d}' % n) for n in range(4)])
    held = [e.hash for e in whole(ledger.store)]
    ledger.close()
    rewrite(server, url, keep, extra)
    if lost != "nothing":
        for name in ("anchor",) if lost == "anchor" else os.listdir(replica_folder(url)):
            os.unlink(os.path.join(replica_folder(url), name))
    again = opened(url)
    with pytest.raises(Refused, match=verdict):
        add(again, draft())
    if lost == "replica":
        with pytest.raises(Refused, match=verdict):
            again.check_memory(again.store.reader())
        return
    with pytest.raises(Tampered) as seen:
        again.store.follow()
    assert seen.value.verdict == verdict
    assert [e.hash for e in whole(again.store)] == held  # the evidence stands


def test_a_rewrite_behind_an_open_handle_is_seen_within_its_second(server, url, machine, opened, monkeypatch):
    monkeypatch.setattr("ledger.replica.PATIENCE", 0.3)
    ledger = opened(url)
    add(ledger, draft(), draft())
    rewrite(server, url, 2, 1)
    deadline = time.monotonic() + 5
    with pytest.raises(GatebookError, match="forked|truncated"):
        while time.monotonic() < deadline:
            add(ledger, draft())


def test_a_message_taken_out_is_a_gap_not_a_skip(server, url, machine, opened):
    machine(1)
    add(opened(url), draft(), draft(), draft())
    link = stranger(server)
    name = name_of(url)
    kept = [link.request(f"$JS.API.DIRECT.GET.{name}", b'{"seq":%d}' % n).payload for n in (1, 2, 3, 4)]
    link.request(f"$JS.API.STREAM.DELETE.{name}")
    config = b'{"name":"%b","subjects":["gatebook.%b"],"storage":"file","allow_direct":true}'
    link.request(f"$JS.API.STREAM.CREATE.{name}", config % (name.encode(), name.encode()))
    for body in kept:
        link.request(f"gatebook.{name}", body)
    assert b'"success":true' in link.request(f"$JS.API.STREAM.MSG.DELETE.{name}", b'{"seq":3}').payload
    link.drop()
    machine(2)
    with pytest.raises(Tampered, match="gap"):
        open_fleet(url)


def test_a_message_cannot_be_taken_out_of_the_stream_that_init_makes(server, url):
    link = stranger(server)
    for verb, body in (("MSG.DELETE", b'{"seq":1}'), ("PURGE", b"")):
        assert b'"error"' in link.request(f"$JS.API.STREAM.{verb}.{name_of(url)}", body).payload
    rollup = link.request(f"gatebook.{name_of(url)}", b"x", b"Nats-Rollup: all\r\n")
    assert b'"error"' in rollup.payload
    link.drop()


def test_offline_reading_goes_on_and_writing_is_refused_clearly(tmp_path, home):
    server = Server(tmp_path / "s").start()
    url = f"nats://{server.address}/L"
    create_fleet(url, ORIGIN, {})
    ledger = open_fleet(url)
    add(ledger, draft(content=b"words"))
    server.kill()
    with pytest.raises(Unavailable, match="may or may not be recorded"):
        add(ledger, draft())  # it was sent on a connection that had just died: nobody can know
    with pytest.raises(Unavailable, match="nothing was recorded"):
        add(ledger, draft())
    ledger.close()
    began = time.monotonic()
    again = open_fleet(url)
    assert "reading this machine's replica" in again.notice
    assert whole(again.store)[-1].content == b"words"
    with pytest.raises(Unavailable, match="nothing was recorded"):
        add(again, draft())
    assert time.monotonic() - began < 5
    server.start()
    (event,) = add(again, draft()).events
    assert event.seq == 3
    again.close()
    server.kill()


def test_a_name_without_a_ledger_and_a_machine_without_a_replica_are_told_apart(server, home):
    with pytest.raises(Usage, match="gatebook init"):
        open_fleet(f"nats://{server.address}/none")
    with pytest.raises(Unavailable):
        open_fleet("nats://127.0.0.1:9/none")
    for bad in (
        "nats://u:p@127.0.0.1:9/x",
        "nats://127.0.0.1:9",
        "nats://127.0.0.1:x/y",
        "nats://h/a b",
        "nats:///x",
    ):
        with pytest.raises(Usage):
            open_fleet(bad)


def test_a_batch_of_a_thousand_is_one_piece_and_a_larger_one_refused(url, opened):
    ledger = opened(url)
    done = add(ledger, *[draft(data=b'{"n":%d}' % n) for n in range(1000)])
    assert [e.seq for e in done.events] == list(range(2, 1002))
    with pytest.raises(GatebookError, match="1000 at most"):
        add(ledger, *[draft() for _ in range(1001)])
    assert len(whole(ledger.store)) == 1001


def test_a_new_machine_reads_many_events_as_they_were(server, url, machine, opened):
    """Several pages, with contents, keys, void messages and a redaction among them."""
    machine(1)
    ledger = opened(url)
    link = stranger(server)
    for n in range(7):
        batch = [draft(f"x-s/{n * 10 + i % 30}", b'{"i":%d}' % i) for i in range(900)]
        batch[5] = draft("x-s/k", idempotency_key=f"k{n}")
        if n in (2, 5):
            batch[7] = draft(content=b"words %d" % n)
        add(ledger, *batch)
        link.request(f"gatebook.{name_of(url)}", b"void")
    link.drop()
    ledger.store.follow()
    machine(2)
    other = opened(url)
    assert [(e.seq, e.envelope, e.data, e.salt, e.content, e.hash) for e in whole(other.store)] == [
        (e.seq, e.envelope, e.data, e.salt, e.content, e.hash) for e in whole(ledger.store)
    ]
    assert other.store.voids == 7
    assert verify(other.store).ok
    assert add(other, draft(idempotency_key="k3", data=b'{"n":1}', stream="x-s/k")).replayed
    assert add(other, draft()).events[0].seq == 6302
    other.store.follow(whole=True)


def test_by_the_chunk_a_machine_reads_what_it_reads_one_by_one(server, url, machine, opened, monkeypatch):
    """Void messages at each place of chunks and pages, batches over their ends, bytes that look like the protocol's."""
    machine(1)
    ledger = opened(url)
    link = stranger(server)
    (event,) = add(ledger, draft()).events
    body = message_of(event)
    like = b"HMSG _INBOX.a.1 1 10 20\r\nNATS/1.0\r\n\r\n"
    voids = [
        b"",
        b"\n",
        b"\n\n",
        b"x" * 70,
        body,
        like + body,
        body + b"\r\n" + like,
        b"\n\n" + b"0" * 64,
        body.replace(b"\n", b"\r\n"),
    ]
    for n in range(14):
        add(
            ledger,
            *[
                draft(f"x-s/{i % 2}", b'{"f":1.5}' if (n, i) == (3, 0) else b'{"i":%d}' % i)
                for i in range(n % 6 + 1)
            ],
        )
        for number, void in enumerate(voids[: n % 10]):
            headers = (
                b"Nats-Sequence: 5\r\nNats-Time-Stamp: x\r\nNats-Num-Pending: 0\r\n" if number == 3 else b""
            )
            link.request(f"gatebook.{name_of(url)}", void, headers)
    link.drop()
    add(ledger, draft(content=b"words"), draft())
    ledger.store.follow()
    expected = [(e.seq, e.envelope, e.data, e.salt, e.content, e.hash) for e in whole(ledger.store)]
    monkeypatch.setattr("ledger.follow.MANY", 0)
    for number, (page, chunk) in enumerate(((4000, 128), (7, 3), (12, 1), (5, 4), (7, 0))):
        machine(2 + number)
        monkeypatch.setattr("ledger.follow.PAGE", page)
        monkeypatch.setattr("ledger.follow.CHUNK", chunk or 1)
        if not chunk:
            monkeypatch.setattr("ledger.follow.Walk._take_chunk", lambda *_: 0)
        other = opened(url)
        assert [
            (e.seq, e.envelope, e.data, e.salt, e.content, e.hash) for e in whole(other.store)
        ] == expected
        assert other.store.voids == ledger.store.voids == 51
        for name in ("place", "seq", "voids", "tip", "tip_seq", "tip_voids"):
            assert getattr(other.store.anchor, name) == getattr(ledger.store.anchor, name)
        assert other.store.follow(whole=True) == 0
        assert other.store.voids == 51


def forty_events_that_another_machine_lacks(url, machine, opened):
    """The first machine's ledger; the second is the one that opens from now on."""
    machine(1)
    ledger = opened(url)
    for _ in range(40):
        add(ledger, draft())
    machine(2)
    return ledger


@pytest.mark.parametrize("page", [2, 3, 5])
def test_a_disk_that_fills_while_much_is_followed_leaves_whole_pages(url, machine, opened, monkeypatch, page):
    """What comes after the page that could not be kept is not kept either; the next call goes on from there."""
    import apsw

    ledger = forty_events_that_another_machine_lacks(url, machine, opened)
    monkeypatch.setattr("ledger.follow.PAGE", 6)
    inserted = []
    insert = Keeping.insert

    def fail(keeping):
        inserted.append(keeping)
        if len(inserted) == page:
            raise apsw.FullError("no room")
        insert(keeping)

    monkeypatch.setattr(Keeping, "insert", fail)
    other = opened(url)
    assert "the disk is full" in other.store.offline
    assert len(inserted) == page
    assert other.store.head().seq == 6 * (page - 1)
    other.store.follow()
    assert [e.hash for e in whole(other.store)] == [e.hash for e in whole(ledger.store)]
    assert verify(other.store).ok


@pytest.mark.parametrize(("room", "most"), [(0, 1), (64 << 20, 10)])
def test_as_much_waits_for_the_disk_as_there_is_room_for(url, machine, opened, monkeypatch, room, most):
    """A disk that takes long holds up the reading only when much waits for it; what is kept is said as soon as it is."""
    ledger = forty_events_that_another_machine_lacks(url, machine, opened)
    monkeypatch.setattr("ledger.follow.PAGE", 4)
    monkeypatch.setattr("ledger.follow.QUEUE_BYTES", room)
    begun, waiting = threading.Event(), []
    insert, start = Keeping.insert, Keeping.start

    def count(keeping):
        waiting.append(keeping)
        start(keeping)
        if len(waiting) == most:
            begun.set()

    def slowly(keeping):
        assert begun.wait(20)
        insert(keeping)

    monkeypatch.setattr(Keeping, "start", count)
    monkeypatch.setattr(Keeping, "insert", slowly)
    other = opened(url)
    assert len(waiting) == 10
    assert [e.hash for e in whole(other.store)] == [e.hash for e in whole(ledger.store)]


def test_a_content_that_the_bucket_lost_is_seen_by_a_new_machine(url, machine, opened):
    machine(1)
    ledger = opened(url)
    (event, _) = add(ledger, draft(content=b"words"), draft(content=b"kept")).events
    ledger.store.objects.erase([event.content_digest])
    machine(2)
    other = opened(url)
    report = verify(other.store)
    assert (report.verdict, report.first_wrong["seq"]) == ("content-mismatch", event.seq)
    assert verify(ledger.store).ok  # who has it, has it
    [found] = [each for each in check_fleet(other) if each.name == "contents"]
    assert found.level == "problem"
    assert f"1 contents, the first of event {event.seq}, are not here" in found.found


def test_a_bucket_that_is_gone_is_said_and_an_empty_one_in_its_place_is_content_lost(
    server, url, machine, opened
):
    machine(1)
    ledger = opened(url)
    add(ledger, draft(content=b"words"))
    link = stranger(server)
    link.request(f"$JS.API.STREAM.DELETE.OBJ_{name_of(url)}")
    link.drop()
    machine(2)
    with pytest.raises(Unavailable, match="there is no bucket"):
        open_fleet(url)
    create_fleet(url, ORIGIN, {})
    assert verify(opened(url).store).verdict == "content-mismatch"
    assert verify(ledger.store).ok


def test_a_stream_that_its_administrator_ended_or_limits_refuses_for_good(server, url, opened):
    """Not exit 75: trying again helps nobody."""
    ledger = opened(url)
    link = stranger(server)

    def change(**settings):
        config = {**ledger.store.stream.info()["config"], **settings}
        answer = link.request(f"$JS.API.STREAM.UPDATE.{name_of(url)}", json.dumps(config).encode())
        assert b'"error"' not in answer.payload

    change(max_msg_size=700)
    with pytest.raises(Invalid, match="max_msg_size"):
        add(ledger, draft(data=b'{"text":"%b"}' % (b"x" * 900)))
    add(ledger, draft())
    change(allow_atomic=False)
    with pytest.raises(Refused, match="sets allow_atomic"):
        add(ledger, draft(), draft())
    change(max_bytes=ledger.store.stream.info()["state"]["bytes"] + 100)
    with pytest.raises(Unavailable, match=r"maximum bytes exceeded; nothing was recorded"):
        add(ledger, draft())
    change(sealed=True)
    with pytest.raises(Refused, match="nothing was recorded"):
        add(ledger, draft())
    assert [event.seq for event in whole(opened(url).store)] == [1, 2]
    link.drop()


def test_a_server_that_takes_small_messages_only_gets_contents_in_smaller_chunks(tmp_path, machine, opened):
    server = Server(tmp_path / "small", extra="max_payload: 20000").start()
    url = f"nats://{server.address}/L"
    machine(1)
    create_fleet(url, ORIGIN, {})
    content = os.urandom(70_000)
    ledger = opened(url)
    add(ledger, draft(content=content))
    with pytest.raises(Invalid, match="takes 20000 at most"):
        add(ledger, draft(data=b'{"text":"%b"}' % (b"x" * 25_000)))
    machine(2)
    assert whole(opened(url).store)[-1].content == content
    server.kill()


def test_an_event_that_links_well_and_was_not_lawful_is_found_by_replay_on_any_machine(url, machine, opened):
    """A publisher with a program of its own: no rule of the format refuses it, the rules of the aggregate do."""
    machine(1)
    add(opened(url), Draft(f"receipt/{'0' * 32}", "receipt.consumed", b"{}"))
    machine(2)
    store = opened(url).store
    assert (store.voids, verify(store).verdict) == (0, "ok")
    assert replay(store)[0].verdict == "not-lawful"


def test_what_the_rule_calls_void_is_never_sent(url, opened):
    ledger = opened(url)
    with pytest.raises(GatebookError, match="canonical"):
        add(ledger, Draft("x-a/1", "x.thing.done", b'{"b":1,"a":2}'))
    assert add(ledger, draft()).events[0].seq == 2
    assert ledger.store.voids == 0


def test_contents_of_a_refused_write_are_not_left_in_the_bucket(server, url, opened, monkeypatch):
    ledger = opened(url)
    store = ledger.store
    monkeypatch.setattr(store, "publish", lambda *_: (_ for _ in ()).throw(Refused("no")))
    digests = []
    put = store.objects.put
    monkeypatch.setattr(
        store.objects, "put", lambda events: (digests.extend(e.content_digest for e in events), put(events))
    )
    with pytest.raises(Refused):
        add(ledger, draft(content=b"a secret nobody recorded"))
    assert len(digests) == 1
    assert store.objects.get(digests) == {}


def test_contents_of_a_write_whose_outcome_is_unknown_are_kept(url, machine, opened, monkeypatch):
    machine(1)
    ledger = opened(url)
    monkeypatch.setattr("ledger.replica.PATIENCE", 0.2)
    ask = ledger.store.stream.acknowledged

    def lose_every_one():
        try:
            ask()
        finally:
            raise Silence("lost on the way")

    monkeypatch.setattr(ledger.store.stream, "acknowledged", lose_every_one)
    with pytest.raises(Unavailable, match="may or may not"):
        add(ledger, draft(content=b"perhaps"))
    monkeypatch.undo()
    machine(2)
    assert whole(opened(url).store)[-1].content == b"perhaps"


def test_killed_again_and_again_under_load_nothing_acknowledged_is_lost_or_doubled(tmp_path, home):
    """kill -9 of the one server while writers write: R1 with sync_interval always keeps every acknowledged event."""
    server = Server(tmp_path / "s").start()
    url = f"nats://{server.address}/L"
    create_fleet(url, ORIGIN, {})
    acknowledged, stop = [], threading.Event()

    def work(n):
        ledger = open_fleet(url)
        count = 0
        while not stop.is_set():
            count += 1
            try:
                done = add(
                    ledger, draft(f"x-w/{n}", b'{"n":%d}' % count), draft(f"x-w/{n}", b'{"n":%d}' % count)
                )
                acknowledged.append([e.hash for e in done.events])
            except Unavailable:
                time.sleep(0.02)
        ledger.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.5)
        server.kill()
        server.start()
    time.sleep(0.3)
    stop.set()
    for thread in threads:
        thread.join()
    ledger = open_fleet(url)
    events = whole(ledger.store)
    check_chain(events)
    hashes = [e.hash for e in events]
    assert len(acknowledged) > 10
    for batch in acknowledged:
        at = hashes.index(batch[0])
        assert hashes[at : at + 2] == batch
    assert verify(ledger.store).ok
    ledger.close()
    server.kill()


def test_a_killed_writer_leaves_a_replica_that_goes_on(url, machine, opened):
    """kill -9 of writers between the stream's acknowledgement and the replica's commit."""
    machine(1)
    code = (
        "import sys, os; sys.path.insert(0, sys.argv[2])\n"
        "from store_contract import add, draft\nfrom ledger.fleet import open_fleet\n"
        "l = open_fleet(sys.argv[1])\nprint('ready', flush=True)\n"
        "while True: print(add(l, draft()).events[0].hash.hex(), flush=True)\n"
    )
    seen = []
    for _ in range(4):
        worker = subprocess.Popen(
            [sys.executable, "-c", code, url, os.path.dirname(__file__)], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout.readline() == "ready\n"
        seen += [worker.stdout.readline().strip() for _ in range(20)]
        worker.kill()
        seen += [line.strip() for line in worker.stdout if line.endswith("\n")]
        worker.wait()
        worker.stdout.close()
    ledger = opened(url)
    events = whole(ledger.store)
    check_chain(events)
    assert set(seen) <= {e.hash.hex() for e in events}
    add(ledger, draft())


def test_the_bucket_is_natss_own_object_store(server, url, opened):
    """What NATS' client says of it, not ours: names, sizes, bytes, and that an erased one is gone."""
    import asyncio

    import nats
    from nats.js.errors import NotFoundError

    ledger = opened(url)
    small, large, gone = add(
        ledger, draft(content=b"words"), draft(content=os.urandom(300_000)), draft(content=b"secret")
    ).events
    ledger.store.objects.erase([gone.content_digest])

    async def look():
        connection = await nats.connect(f"nats://127.0.0.1:{server.port}")
        bucket = await connection.jetstream().object_store(name_of(url))
        listed = {each.name: each.size for each in await bucket.list(ignore_deletes=True)}
        for event in (small, large):
            found = await bucket.get(event.content_digest)
            assert found.data == event.salt + event.content
        with pytest.raises(NotFoundError):
            await bucket.get(gone.content_digest)
        message = await connection.jetstream().get_msg(name_of(url), seq=2)
        await connection.close()
        return listed, message

    listed, message = asyncio.run(look())
    assert listed == {
        small.content_digest: len(small.content) + 16, large.content_digest: len(large.content) + 16,
    }  # fmt: skip
    assert message.data == message_of(small)
    assert b"words" not in message.data
    assert small.salt not in message.data


@pytest.mark.parametrize("hidden", [1, 3])
def test_what_only_the_leader_shows_yet_is_read_before_a_write(url, machine, opened, monkeypatch, hidden):
    """Other servers show the last messages late."""
    machine(1)
    one = opened(url)
    machine(2)
    two = opened(url)
    add(one, draft())
    for _ in range(4):
        add(one, draft())
    page = two.store.stream.page

    def late(inbox, limit):
        (burst,), _ = page(inbox, limit)
        del burst.spans[-hidden:]
        return [burst], False

    monkeypatch.setattr(two.store.stream, "page", late)
    with two.store._mutex:
        assert two.store._catch_up(two.store._usable()) == 5 - hidden
        assert two.store._catch_up(two.store._usable(), newest=True) == hidden
    assert [event.hash for event in whole(two.store)] == [event.hash for event in whole(one.store)]


def test_of_answers_that_nobody_asks_for_any_more_none_is_kept(url, opened):
    """A reading that finds more than a page gives its question for the end up and asks it again later."""
    store = opened(url).store
    for _ in range(5):
        asked = store.stream.ask_last()
    store.stream.page(store.stream.ask_from(1, 10), 10)
    assert list(store.link._early) == [asked]
    assert store.stream.last(asked)[0] == 1
    assert store.link._early == {}
