"""A server that lies: whatever it sends, a call ends soon, with an error of ours, and with little memory."""

from __future__ import annotations

import json
import resource
import socket
import threading
import time

import pytest
from store_contract import add, draft, whole

from ledger.errors import GatebookError
from ledger.event import Origin
from ledger.fleet import create_fleet, open_fleet
from ledger.nats_client import Connection, Link
from ledger.nats_login import Login

ORIGIN = Origin("cli:tester", "test")
STAMP = b"Nats-Time-Stamp: 2026-01-01T00:00:00Z\r\n"
LATE = 14.0  # a write that gets no sense out of a server is given up after 8 s, and one answer's 5 s may be on top


class Liar:
    """As much of a server with JetStream as a ledger asks for; `lies` are asked first what to answer."""

    def __init__(self):
        self.info = {
            "server_id": "N",
            "version": "2.15.1",
            "headers": True,
            "max_payload": 1 << 20,
            "proto": 1,
        }
        self.greeting = None
        self.stored = {}  # stream -> [(subject, headers, payload)]
        self.lies = {}  # the first words of a subject -> function(reply, payload) -> bytes to send, or None: the truth
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self):
        self._listener.close()

    def _listen(self):
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one):
        try:
            if self.greeting is not None:
                for chunk in self.greeting():
                    one.sendall(chunk)
                return
            one.sendall(b"INFO " + json.dumps(self.info).encode() + b"\r\n")
            lines = one.makefile("rb")
            for line in lines:
                words = line.split()
                if words[0] == b"PING":
                    one.sendall(b"PONG\r\n")
                elif words[0] in (b"PUB", b"HPUB"):
                    raw = lines.read(int(words[-1]) + 2)[:-2]
                    head = int(words[-2]) if words[0] == b"HPUB" else 0
                    reply = words[2] if len(words) == (5 if head else 4) else b""
                    for chunk in self._answer(words[1].decode(), reply, raw[:head], raw[head:]):
                        one.sendall(chunk)
        except OSError:
            pass
        finally:
            one.close()

    def _answer(self, subject, reply, headers, payload):
        for start, lie in self.lies.items():
            if reply and subject.startswith(start):
                told = lie(reply, payload)
                if told is not None:
                    return [told] if isinstance(told, bytes) else told
        return [b"".join(self._truth(subject, reply, headers, payload))]

    def _truth(self, subject, reply, headers, payload):
        stream = subject.rpartition(".")[2]
        if subject.startswith("$JS.API.STREAM.CREATE."):
            self.stored.setdefault(stream, [])
            yield msg(reply, b"{}")
        elif subject.startswith("$JS.API.STREAM.INFO."):
            if stream not in self.stored:
                yield msg(reply, b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}')
            else:
                yield msg(reply, json.dumps(self.of(stream)).encode())
        elif subject.startswith("$JS.API.DIRECT.GET."):
            wanted = json.loads(payload)
            found = self.stored[stream]
            for place in range(wanted["seq"], len(found) + 1):
                name, head, body = found[place - 1]
                if wanted.get("next_by_subj", name) == name:
                    yield stored(reply, place, body, head)
            yield hmsg(reply, b"NATS/1.0 204 EOB\r\n\r\n")
        elif subject.startswith("gatebook.") and stream != "turn":
            self.stored[stream].append((subject, headers[10:-2], payload))
            if not reply:
                return
            yield msg(reply, json.dumps({"stream": stream, "seq": len(self.stored[stream])}).encode())
        elif subject.startswith("$O."):
            self.stored[f"OBJ_{subject.split('.')[1]}"].append((subject, headers[10:-2], payload))
            yield msg(reply, b'{"stream":"x","seq":1}')
        elif subject.startswith("$JS.API.STREAM.MSG.GET."):
            yield msg(reply, b'{"error":{"code":404,"err_code":10037,"description":"no message found"}}')

    def of(self, stream):
        """What STREAM.INFO says."""
        last = len(self.stored[stream])
        state = {"messages": last, "first_seq": min(1, last), "last_seq": last}
        return {
            "config": {"name": stream, "num_replicas": 1},
            "created": "2026-01-01T00:00:00Z",
            "state": state,
        }


def msg(reply, payload, size=None):
    return b"MSG %b 1 %b\r\n%b\r\n" % (reply, str(len(payload) if size is None else size).encode(), payload)


def hmsg(reply, headers, payload=b""):
    return b"HMSG %b 1 %d %d\r\n%b%b\r\n" % (
        reply,
        len(headers),
        len(headers) + len(payload),
        headers,
        payload,
    )


def stored(reply, place, body, more=b""):
    head = b"NATS/1.0\r\n%bNats-Stream: x\r\nNats-Sequence: %b\r\n%b\r\n"
    return hmsg(reply, head % (more, place if isinstance(place, bytes) else b"%d" % place, STAMP), body)


@pytest.fixture
def liar(home, monkeypatch):
    monkeypatch.setattr("ledger.replica.PATIENCE", 0.2)
    monkeypatch.setattr("ledger.jetstream.PUBLISH_SECONDS", 0.5)
    monkeypatch.setattr("ledger.jetstream.API_SECONDS", 0.5)
    monkeypatch.setattr("ledger.objects.ANSWER_SECONDS", 0.5)
    for name in ("answers", "burst", "request"):  # ANSWER_SECONDS
        method = getattr(Link, name)
        monkeypatch.setattr(method, "__defaults__", (*method.__defaults__[:-1], 0.5))
    made = Liar()
    yield made
    made.close()


@pytest.fixture
def ledger(liar):
    """An open ledger on it, of which all was the truth until now."""
    create_fleet(f"nats://127.0.0.1:{liar.port}/team", ORIGIN, {})
    opened = open_fleet(f"nats://127.0.0.1:{liar.port}/team")
    add(opened, draft(content=b"words"), draft())
    yield opened
    opened.close()


def endure(do):
    """Do it: an error of ours or none, soon, in little memory."""
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        done, error = do(), None
    except GatebookError as caught:
        done, error = None, caught
    assert time.monotonic() - began < LATE
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000
    return done, error


def test_the_server_of_these_tests_serves_while_it_says_the_truth(liar, ledger, monkeypatch, home):
    assert add(ledger, draft()).events[0].seq == 4
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "other"))
    other = open_fleet(ledger.store.url)
    assert [event.content for event in whole(other.store)] == [None, b"words", None, None]
    other.close()


def endless(chunk):
    def send():
        while True:
            yield chunk

    return send


@pytest.mark.parametrize(
    "chunks",
    [
        endless(b"x" * 65536),
        endless(b"PING\r\n" * 9999),
        endless(b"+OK\r\n" * 9999),
        lambda: [b"INFO {}\r\n" * 9],
        lambda: [b"INFO " + b"[" * 60_000 + b"\r\n"],
        lambda: [b"INFO 1\r\n"],
        lambda: [b"INFO []\r\n"],
        lambda: [b'INFO {"headers":true,"headers":1e999}\r\n'],
        lambda: [b"-ERR\r\n"],
        lambda: [b"-ERR '\xff\x1b[2J'\r\n"],
        lambda: [b"MSG a 1 5\r\nhello\r\n"],
        lambda: [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
        lambda: [b"\x15\x03\x01\x00\x02\x02\x50"],
        list,
    ],
)
def test_a_greeting_that_is_none(liar, chunks):
    liar.greeting = chunks
    assert isinstance(endure(lambda: Connection("127.0.0.1", liar.port, Login()))[1], GatebookError)


ODD = [None, True, -1, 1.5, 10**30, "\x1b[2J", [{}], {"a": []}]


@pytest.mark.parametrize(
    "name", ["headers", "max_payload", "nonce", "connect_urls", "tls_available", "proto"]
)
def test_a_greeting_with_a_member_of_another_type(liar, ledger, name):
    for odd in ODD:
        liar.info[name] = odd
        ledger.store.link.drop()
        endure(lambda: add(ledger, draft()))


def bent(liar, change):
    """The truth of STREAM.INFO with something changed."""

    def lie(reply, _payload):
        info = liar.of("team")
        change(info)
        return msg(reply, json.dumps(info).encode())

    return lie


MEMBERS = [
    ("created",), ("config",), ("state",), ("config", "num_replicas"), ("state", "last_seq"), ("state", "first_seq"),
    ("state", "num_deleted"), ("error",), ("error", "err_code"), ("error", "description"),
]  # fmt: skip


@pytest.mark.parametrize("path", MEMBERS, ids=".".join)
def test_stream_info_with_a_member_of_another_type(liar, ledger, path, monkeypatch, home):
    for odd in ODD:

        def change(info, odd=odd):
            for name in path[:-1]:
                info = info.setdefault(name, {})
            info[path[-1]] = odd

        liar.lies["$JS.API.STREAM.INFO.team"] = bent(liar, change)
        ledger.store.link.drop()
        endure(ledger.store.follow)
        endure(lambda: add(ledger, draft()))


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"1", b"\xff", b"[" * 99_999, b'{"seq":1}', b'{"stream":"team"}', b'{"stream":"team","seq":true}',
     b'{"stream":"team","seq":"4"}', b'{"stream":"team","seq":-1}', b'{"stream":"team","seq":99}', b'{"stream":"other","seq":4}',
     b'{"stream":"team","seq":1e400}', b'{"stream":"team","seq":' + b"9" * 5000 + b"}", b'{"error":1}', b'{"error":{"err_code":"x"}}'],
)  # fmt: skip
def test_an_acknowledgement_that_is_none(liar, ledger, body):
    liar.lies["gatebook.team"] = lambda reply, _: msg(reply, body)
    before = len(whole(ledger.store))
    done, error = endure(lambda: add(ledger, draft()))
    assert done is None
    assert error is not None
    assert len(whole(ledger.store)) == before


FRAMES = [
    lambda reply: b"MSG %b 1 -40\r\n" % reply,
    lambda reply: b"MSG x 1 -9\r\n",
    lambda reply: b"MSG %b 1 99999999999\r\n" % reply,
    lambda reply: b"MSG %b 1 1_0\r\n0123456789\r\n" % reply,
    lambda reply: b"MSG %b 1 +2\r\n{}\r\n" % reply,
    lambda reply: b"MSG %b 1\r\n" % reply,
    lambda reply: b"MSG\r\n",
    lambda reply: b"MSG %b 1 " % reply + b"9" * 5000 + b"\r\n",
    lambda reply: b"HMSG %b 1 12 2\r\nNATS/1.0\r\n\r\n\r\n" % reply,
    lambda reply: b"HMSG %b 1 -3 2\r\n{}\r\n" % reply,
    lambda reply: b"HMSG %b 1 2\r\n{}\r\n" % reply,
    lambda reply: b"MSG %b 1 2\r\n{}xxMSG y 1 2\r\n{}\r\n" % reply,
    lambda reply: b"\r\n",
    lambda reply: b"NONSENSE\r\n",
    lambda reply: b"x" * 200_000,
    lambda reply: b"-ERR 'Stale Connection'\r\n",
    lambda reply: b"INFO \xff\r\n",
    lambda reply: hmsg(reply, b"NATS/1.0 503\r\n\r\n"),
    lambda reply: hmsg(reply, b"NATS/1.0 999 what\r\n\r\n"),
    lambda reply: hmsg(reply, b"NATS/1.0 4\xb22\r\n\r\n"),
    lambda reply: endless(b"+OK\r\n" * 9999)(),
    lambda reply: endless(msg(b"somebody.else", b"x" * 9999))(),
    lambda reply: endless(b"y" * 65536)(),
    lambda reply: (b"MSG %b 1 999999999\r\n" % reply if n == 0 else bytes(1 << 20) for n in range(1 << 20)),
]


@pytest.mark.parametrize(
    "subject", ["$JS.API.STREAM.INFO.team", "$JS.API.DIRECT.GET.team", "gatebook.team", "$O.team."]
)
@pytest.mark.parametrize("frame", range(len(FRAMES)))
def test_a_frame_that_is_none(liar, ledger, monkeypatch, home, subject, frame):
    liar.lies[subject] = lambda reply, _: FRAMES[frame](reply)
    ledger.store.link.drop()
    if subject != "$O.team.":
        endure(lambda: ledger.store.follow(whole=True))
    endure(lambda: add(ledger, draft(content=b"more")))


PAGES = [
    lambda reply: stored(reply, 3, b"x") + hmsg(reply, b"NATS/1.0 204 EOB\r\n\r\n"),
    lambda reply: stored(reply, 10**30, b"x"),
    lambda reply: stored(reply, b"-1", b"x"),
    lambda reply: stored(reply, b"one", b"x"),
    lambda reply: stored(reply, b"\xb2", b"x"),
    lambda reply: stored(reply, b"9" * 5000, b"x"),
    lambda reply: stored(reply, b"", b"x"),
    lambda reply: hmsg(reply, b"NATS/1.0\r\n\r\n"),
    lambda reply: hmsg(reply, b"", b"x"),
    lambda reply: msg(reply, b"x"),
    lambda reply: (stored(reply, n, b"x" * 1000) for n in range(1, 1 << 40)),
    lambda reply: endless(stored(reply, 1, b"x" * 1000))(),
]


@pytest.mark.parametrize("page", range(len(PAGES)))
@pytest.mark.parametrize("stream", ["team", "OBJ_team"])
def test_a_page_that_is_none(liar, ledger, monkeypatch, home, page, stream):
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "other"))
    liar.lies[f"$JS.API.DIRECT.GET.{stream}"] = lambda reply, _: PAGES[page](reply)

    def read():
        other = open_fleet(ledger.store.url)
        other.close()

    endure(read)


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"message":1}', b'{"message":{}}', b'{"message":{"seq":"x"}}', b'{"message":{"seq":3,"data":"?"}}',
     b'{"message":{"seq":1,"data":"eA=="}}', b'{"message":{"seq":3,"hdrs":1,"data":2}}', b'{"message":{"seq":1e400}}'],
)  # fmt: skip
def test_a_message_of_the_leader_that_is_none(liar, ledger, monkeypatch, home, body):
    """What is asked after a lost acknowledgement, for an object that a replica does not show, and to erase one."""
    liar.lies["$JS.API.STREAM.MSG.GET."] = lambda reply, _: msg(reply, body)
    (event,) = [event for event in whole(ledger.store) if event.content]
    endure(lambda: ledger.store.erase([event]))
    liar.lies["$JS.API.DIRECT.GET.OBJ_team"] = lambda reply, _: hmsg(reply, b"NATS/1.0 404\r\n\r\n")
    endure(lambda: ledger.store.objects.get([event.content_digest]))
    given = []

    def lose_the_first(reply, _payload):
        given.append(1)
        return (
            b""
            if len(given) == 1
            else msg(reply, b'{"error":{"err_code":10071,"description":"wrong last sequence"}}')
        )

    liar.lies["gatebook.team"] = lambda reply, payload: lose_the_first(reply, payload)
    endure(lambda: add(ledger, draft()))
