"""One JetStream stream as a ledger's total order: compare-and-swap publishing, atomic batches, reading by number.

Facts of the server that this rests on (2.12 and later): `Nats-Expected-Last-Sequence` is compared when the message is
applied, on every replica, so at most one message ever gets a place; an atomic batch (`Nats-Batch-*` headers,
at most 1,000 messages) is stored whole, in consecutive places, or not at all. Message ids are not used: their
window acknowledges other content under the same id.
"""

from __future__ import annotations

import os

from ledger.canonical import encode, load
from ledger.errors import Invalid, Refused, Tampered, Unavailable
from ledger.nats_client import Burst, Link, Message, Silence

API = "$JS.API."
MAX_BATCH = 1000
FEW = 1000  # messages that are joined where they came in pieces
PUBLISH_SECONDS = 3.0
CONSUMER_SECONDS = 1.0
PAGE_BYTES = 16 << 20  # delivered at once: a server breaks with a client that lets 64 MiB wait
IDLE_NS = 5_000_000_000  # after that without a request the server forgets a consumer
API_SECONDS = 3.0
_WRONG_LAST = 10071
_STREAM_NOT_FOUND = 10059
_NO_REPLICAS = (10074, 10005)  # replicas without a cluster; no suitable peers
_NAME_IN_USE = 10058
_NOT_FOUND = 10037
_NO_JETSTREAM = 10039  # for this account
_TOO_LARGE = 10054
_SEALED = 10109
_NO_BATCHES = 10174
_NOT_ONE = "nats: an answer that is not JetStream's"


class WrongLast(Exception):
    """Another message has the place that was asked for."""


class NoStream(Exception):
    """There is no stream of that name (or none that this account sees)."""


def place_in(headers: bytes) -> int:
    """The place of the stored message that came with these headers; 0 when it is not one, but says how a request went.

    The server's own headers stand after a publisher's, and a stored message always carries the time of its storing.
    """
    at = headers.rfind(b"\r\nNats-Sequence: ")
    if at < 0 or b"\r\nNats-Time-Stamp: " not in headers[at:]:
        return 0
    place = headers[at + 17 : at + 37].partition(b"\r")[0]
    return int(place) if place.isdigit() else 0


def as_stored(place: int, headers: bytes, body: bytes) -> Burst:
    """The message at `place`, with the headers and the body of `at_leader`, as `page` gives one."""
    head = b"%bNats-Sequence: %d\r\nNats-Time-Stamp: \r\n\r\n" % (headers[:-2] or b"NATS/1.0\r\n", place)
    return Burst(head + body, [(0, len(head), len(head) + len(body))])


def _joined(bursts: list[Burst]) -> Burst:
    """The same messages as one burst: few come in pieces, and each piece costs to look at."""
    spans: list[tuple[int, int, int]] = []
    size = 0
    for burst in bursts:
        spans += [(start + size, middle + size, end + size) for start, middle, end in burst.spans]
        size += len(burst.buffer)
    return Burst(b"".join([burst.buffer for burst in bursts]), spans)


def goes_on(headers: bytes) -> bool:
    """Whether the rest of the message's batch follows."""
    return b"\r\nNats-Batch-Id:" in headers and b"\r\nNats-Batch-Commit:" not in headers


def _for_now(answer: dict[str, object]) -> bool:
    """Whether JetStream says that it cannot serve now (no leader, too few servers)."""
    error = answer.get("error")
    return isinstance(error, dict) and error.get("code") == 503


def problem(answer: dict[str, object]) -> tuple[int, str]:
    """(JetStream's error code, its text) of an answer; (0, "") when it is none."""
    error = answer.get("error")
    if not isinstance(error, dict):
        return 0, ""
    code = error.get("err_code")
    return code if isinstance(code, int) else -1, str(error.get("description"))


def read_answer(message: Message) -> dict[str, object]:
    """The JSON object that JetStream answered; Silence when the bytes are none."""
    try:
        found = load(message.payload)
    except Exception:  # noqa: BLE001 - the C scanner raises several kinds for bytes that are no JSON
        found = None
    if not isinstance(found, dict):
        raise Silence(_NOT_ONE)
    return found


def message_from(answer: dict[str, object], first: int) -> tuple[int, bytes, bytes] | None:
    """(place, headers, body) in an answer to STREAM.MSG.GET for a message at `first` or later; None: there is none.

    Raises:
        Unavailable: an answer to something else.
    """
    from base64 import b64decode

    code, text = problem(answer)
    if code == _NOT_FOUND:
        return None
    message = answer.get("message")
    given = message if isinstance(message, dict) and not code else {}
    place = given.get("seq")
    try:
        headers, body = (b64decode(str(given.get(name) or "")) for name in ("hdrs", "data"))
    except ValueError:
        place = None
    if type(place) is not int or place < first:
        raise Unavailable(f"nats: {text}" if code else _NOT_ONE)
    return place, headers, body


class Stream:
    """The stream `name` with the one subject `gatebook.NAME`."""

    def __init__(self, link: Link, name: str) -> None:
        self.link = link
        self.name = name
        self.subject = f"gatebook.{name}".encode()
        self._inbox = b""
        # The place of the last message on its way, and the acknowledgement of it as servers write that.
        self._last, self._expected = 0, b""
        self.delivers = True
        """Whether many messages may be delivered; False once something was odd about that."""
        self._get = f"{API}DIRECT.GET.{name}".encode()
        self._message_get = f"{API}STREAM.MSG.GET.{name}".encode()

    def config(self, replicas: int) -> dict[str, object]:
        """What the stream must be: every message kept for good, each setting by the accident that it prevents."""
        return {
            "name": self.name,
            "subjects": [self.subject.decode()],
            "num_replicas": replicas,
            "storage": "file",
            "retention": "limits",
            "discard": "new",  # full: the writer is refused, never the oldest event dropped
            "max_age": 0,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_msgs_per_subject": -1,
            "deny_delete": True,  # no single event can be taken out
            "deny_purge": True,
            "allow_rollup_hdrs": False,  # a rollup header would erase the log
            "allow_direct": True,
            "allow_atomic": True,
        }

    def api(self, verb: str, body: bytes = b"") -> dict[str, object]:
        """The answer of a JetStream API request about this stream.

        Raises:
            NoStream: it does not exist. Refused: not allowed. Unavailable: no answer.
        """
        answer = read_answer(self.link.request(f"{API}STREAM.{verb}.{self.name}", body, seconds=API_SECONDS))
        code, text = problem(answer)
        if code == _STREAM_NOT_FOUND:
            raise NoStream(self.name)
        if _for_now(answer) and code != _NO_JETSTREAM:
            raise Unavailable(f"nats: stream {self.name}: {text}")
        if code:
            raise Refused(f"nats: stream {self.name}: {text}")
        return answer

    def info(self) -> dict[str, object]:
        """Configuration and state, from the stream's leader; the numbers of its state are numbers. Errors as `api`."""
        answer = self.api("INFO")
        state = answer.get("state")
        names = ("first_seq", "last_seq", "num_deleted")
        if not isinstance(state, dict) or any(type(state.get(name) or 0) is not int for name in names):
            raise Silence(_NOT_ONE)
        return answer

    def create(self) -> None:
        """Make the stream on three servers where there are, else on one; one that exists is left as it is.

        Raises:
            Refused: not allowed, or the server is too old. Unavailable: no answer.
        """
        create_stream(self.link, self.name, self.config)

    def publish(self, bodies: list[bytes], last: int, attempt: bytes) -> None:
        """Send `bodies` for the places after `last`, as one piece; `acknowledged` says how it went.

        `attempt` marks the first message, so that a writer knows its own one whatever others wrote at the same moment.

        Raises:
            Invalid: more than one batch can hold. Unavailable: no connection: nothing was sent.
        """
        if len(bodies) > MAX_BATCH:
            raise Invalid(f"{len(bodies)} events in one batch; a nats:// ledger takes {MAX_BATCH} at most")
        connection = self.link.connection()
        limit = connection.info.get("max_payload")
        for body in bodies:
            if isinstance(limit, int) and len(body) + 512 > limit:
                raise Invalid(f"an event of {len(body)} bytes; this NATS server takes {limit} at most")
        self._inbox = self.link.open_inbox()
        self._last = last + len(bodies)
        self._expected = b'{"stream":"%b","seq":%d}' % (self.name.encode(), self._last)
        expected = b"Nats-Expected-Last-Sequence: %d\r\nGatebook-Attempt: %b\r\n" % (last, attempt)
        if len(bodies) == 1:
            connection.publish(self.subject, bodies[0], expected, self._inbox)
        else:
            batch = os.urandom(16).hex().encode()
            for number, body in enumerate(bodies, 1):
                head = b"Nats-Batch-Id: %b\r\nNats-Batch-Sequence: %d\r\n" % (batch, number)
                final = number == len(bodies)
                head += expected if number == 1 else b""
                head += b"Nats-Batch-Commit: 1\r\n" if final else b""
                connection.publish(self.subject, body, head, self._inbox if final else b"")
        try:
            connection.flush()
        except Silence:
            self.link.drop()
            raise

    def acknowledged(self) -> int:
        """The place of the last message of what `publish` sent, once it is stored as durably as the stream promises.

        Raises:
            WrongLast: somebody else has the place; nothing was stored. Silence: not known whether it was stored.
            Unavailable: nothing was stored. Refused: not allowed, nothing was stored.
        """
        message = next(self.link.answers(self._inbox, PUBLISH_SECONDS))
        if message.payload == self._expected:
            return self._last
        if message.status == 503:
            raise Unavailable(f"nats: no stream takes {self.subject.decode()} now")
        answer = read_answer(message)
        code, text = problem(answer)
        if code == _WRONG_LAST:
            raise WrongLast
        if code == _TOO_LARGE:
            raise Invalid(f"nats: stream {self.name}: {text}: its administrator set max_msg_size")
        if code == _SEALED:
            raise Refused(f"nats: stream {self.name}: {text}: it was ended; nothing was recorded")
        if code == _NO_BATCHES:
            raise Refused(
                f"nats: stream {self.name}: {text}; nothing was recorded: its administrator sets allow_atomic (docs/scale.md)"
            )
        if code:
            # Full, no leader, batch given up: all said before anything is stored.
            raise Unavailable(f"nats: stream {self.name}: {text}")
        place = answer.get("seq")
        if not isinstance(place, int) or answer.get("stream") != self.name:
            raise Tampered(f"nats: an acknowledgement from another stream than {self.name}", verdict="forked")
        return place

    def ask_from(self, place: int, limit: int) -> bytes:
        """Ask for up to `limit` messages from `place` on; the inbox for `page`."""
        return self.ask(self._get, b'{"seq":%d,"batch":%d}' % (place, limit))

    def ask(self, subject: bytes, body: bytes) -> bytes:
        """Ask for what comes in many messages; the inbox to which they come.

        Raises:
            Unavailable: no connection.
        """
        inbox = self.link.open_inbox()
        connection = self.link.connection()
        connection.publish(subject, body, b"", inbox)
        try:
            connection.flush()
        except Silence:
            self.link.drop()
            raise
        return inbox

    def page(self, inbox: bytes, limit: int) -> tuple[list[Burst], int]:
        """What `ask_from` asked for with this limit, in order, and how many messages follow in the stream.

        It comes from whichever replica answers: that may lag behind.

        Raises:
            Silence: not all came. Refused: not allowed.
        """
        bursts: list[Burst] = []
        count = 0
        headers = b""
        while count <= limit:
            burst = self.link.burst(inbox)
            bursts.append(burst)
            count += len(burst.spans)
            begin, middle, _ = burst.spans[-1]
            headers = burst.buffer[begin:middle]
            if not place_in(headers):
                del burst.spans[-1]
                break
        status = headers[9:12]
        if status == b"503":
            raise Silence(f"nats: nobody serves stream {self.name}")
        if status not in (b"204", b"404"):
            raise Unavailable(f"nats: reading stream {self.name}: {headers[:80]!r}")
        pending = headers.partition(b"\r\nNats-Num-Pending: ")[2][:20].partition(b"\r")[0]
        if count <= FEW:
            bursts = [_joined(bursts)]
        return bursts, int(pending) if pending.isdigit() else 0

    def deliver_from(self, place: int) -> Deliveries | None:
        """Many messages, from `place` on; None where this user, or this server, does not do that."""
        if self.delivers:
            try:
                return Deliveries(self, place)
            except (Refused, Unavailable):
                self.delivers = False
        return None

    def ask_last(self) -> bytes:
        """Ask the stream's leader for the last message, together with what is asked next; the inbox for `last`."""
        inbox = self.link.open_inbox(early=True)
        self.link.connection().publish(
            self._message_get, encode({"last_by_subj": self.subject.decode()}), b"", inbox
        )
        return inbox

    def last(self, inbox: bytes) -> tuple[int, bytes, bytes] | None:
        """(place, headers, body) of the message that `ask_last` asked for; None when there is none. Errors as `at_leader`."""
        return message_from(read_answer(next(self.link.answers(inbox, API_SECONDS))), 1)

    def at_leader(self, place: int) -> tuple[bytes, bytes] | None:
        """(headers, body) of the message at `place` as the stream's leader has it; None when there is none."""
        answer = read_answer(self.link.request(f"{API}STREAM.MSG.GET.{self.name}", encode({"seq": place})))
        found = message_from(answer, place)
        return found and found[1:]


class Deliveries:
    """The bulk of a stream, from one place on, through a consumer of our own: it costs the server a third of direct gets.

    Whatever is not as it must be ends it, and so does the last message that the consumer knows: from there on it is
    asked for by direct gets, which alone say what is missing and where the stream ends.
    """

    def __init__(self, stream: Stream, place: int) -> None:
        """Make the consumer: it is forgotten by the server when nothing was asked of it for some seconds.

        Raises:
            Refused: not allowed. Unavailable: no answer, or another than one consumer.
        """
        import re

        self._stream, self._link = stream, stream.link
        self._place = place
        self._over = False
        name = os.urandom(8).hex()
        config = {
            "name": name, "deliver_policy": "by_start_sequence", "opt_start_seq": place, "ack_policy": "none",
            "replay_policy": "instant", "num_replicas": 1, "mem_storage": True, "inactive_threshold": IDLE_NS,
        }  # fmt: skip
        answer = read_answer(
            self._link.request(
                f"{API}CONSUMER.CREATE.{stream.name}.{name}",
                encode({"stream_name": stream.name, "config": config}),
                seconds=CONSUMER_SECONDS,
            )
        )
        code, text = problem(answer)
        if code or answer.get("name") != name:
            raise Unavailable(f"nats: stream {stream.name}: {text}")
        self._next = f"{API}CONSUMER.MSG.NEXT.{stream.name}.{name}".encode()
        # The reply subject of a message says its place in the stream, in the consumer, when, and how many follow. One
        # without headers is none of gatebook's.
        self._control = re.compile(
            re.escape(b"HMSG %b 1 $JS.ACK.%b.%b.1." % (stream.subject, stream.name.encode(), name.encode()))
            + rb"(\d{1,15})\.\d+\.\d+\.(\d{1,15}) (\d{1,9}) (\d{1,9})\r\n"
        ).match

    def ask_from(self, place: int, limit: int) -> bytes:
        """As `Stream.ask_from`."""
        if self._over:
            return self._stream.ask_from(place, limit)
        return self._stream.ask(
            self._next, b'{"batch":%d,"max_bytes":%d,"no_wait":true}' % (limit, PAGE_BYTES)
        )

    def page(self, inbox: bytes, limit: int) -> tuple[list[Burst], int]:
        """As `Stream.page`; never the end of the stream unless by direct gets."""
        if self._over:
            return self._stream.page(inbox, limit)
        bursts: list[Burst] = []
        end = self._place + limit
        try:
            while self._place < end and not self._over:
                found = self._link.delivered(self._control, self._place, (inbox, self._stream.subject))
                if isinstance(found, Message):
                    # The server ended the page, for its size or for want of messages; where it has none, for good.
                    if not bursts or found.subject != inbox:
                        self._end()
                    break
                burst, left = found
                bursts.append(burst)
                self._place += len(burst.spans)
                self._over = left == 0
        except Refused:
            self._end()
        except Silence:
            self._end()
            raise
        if not bursts:
            return self._stream.page(self._stream.ask_from(self._place, limit), limit)
        return bursts, 1

    def _end(self) -> None:
        """Something was not as it must be: no more of it in this process."""
        self._over = True
        self._stream.delivers = False


def create_stream(link: Link, name: str, config: object) -> None:
    """Create stream `name`; `config(replicas)` is tried with three replicas, then with one.

    Raises:
        Refused: not allowed, or not possible. Unavailable: no answer.
    """
    assert callable(config)
    for replicas in (3, 1):
        try:
            answer = read_answer(link.request(f"{API}STREAM.CREATE.{name}", encode(config(replicas))))
        except Refused as error:
            raise Refused(f"{error}: an administrator makes the stream first (docs/scale.md)") from None
        code, text = problem(answer)
        if code in (0, _NAME_IN_USE):
            return
        if code not in _NO_REPLICAS:
            break
    if _for_now(answer) and code != _NO_JETSTREAM:
        raise Unavailable(f"nats: stream {name} could not be made: {text}")
    raise Refused(
        f"nats: stream {name} could not be made: {text}: an administrator can make it (docs/scale.md)"
    )
