"""A NATS connection: the few verbs of the client protocol that a ledger needs, synchronous, without threads.

Our own because a store's call is synchronous, a command line call is one event, and following must keep up
with verification: the asyncio client costs 80 ms to import and 15 us a message. Protocol: NATS client
protocol 1 with headers (docs.nats.io/reference/reference-protocols/nats-protocol).
"""

from __future__ import annotations

import os
import socket
import time

from ledger.canonical import encode, load
from ledger.errors import GatebookError, Refused, Unavailable, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    import ssl
    from collections.abc import Callable, Iterator

    from ledger.nats_login import Login

    Matcher = Callable[[bytes, int], re.Match[bytes] | None]

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
MAX_LINE = 64 * 1024
MAX_MESSAGE = 96 << 20  # the largest payload that a server takes (64 MiB), as base64 in an answer
UNKNOWN_ISSUER = (2, 18, 19, 20, 21)  # X509_V_ERR: no issuer found, or one that nobody here believes
PORT = 4222
LEAST_ROOM, MOST_ROOM = 1 << 14, 1 << 20  # bytes received at once


class Silence(Unavailable):
    """No answer in time, or the connection broke after sending: what the server did with it is not known."""


class Message:
    """One received message; `headers` are the raw header bytes, empty when there are none."""

    __slots__ = ("headers", "payload", "subject")

    def __init__(self, subject: bytes, headers: bytes, payload: bytes) -> None:
        self.subject = subject
        self.headers = headers
        self.payload = payload

    @property
    def status(self) -> int:
        """The status of a `NATS/1.0 503` header line, 0 where there is none."""
        text = self.headers[9:12]
        return int(text) if self.headers[:9] == b"NATS/1.0 " and text.isdigit() else 0

    def header(self, name: bytes) -> bytes:
        """The value of the last header `name`, empty when it is not there; the server adds its own after a publisher's."""
        at = self.headers.rfind(b"\r\n" + name + b":")
        if at < 0:
            return b""
        start = at + len(name) + 3
        return self.headers[start : self.headers.find(b"\r\n", start)].strip()


class Burst:
    """Messages that came together: their bytes, and where the headers, the payload and the end of each are.

    `place`: of the first in the stream, where they are stored one after the other; 0: each one's headers say it.
    """

    __slots__ = ("buffer", "place", "spans")

    def __init__(self, buffer: bytes, spans: list[tuple[int, int, int]], place: int = 0) -> None:
        self.buffer = buffer
        self.spans = spans
        self.place = place


def parse_location(url: str) -> tuple[list[tuple[str, int]], str]:
    """The servers and the ledger's name of `nats://host:port[,host:port…]/NAME`.

    Raises:
        Usage: any other form; credentials in it (they would stand in process lists).
    """
    rest = url.removeprefix("nats://")
    hosts, slash, name = rest.partition("/")
    if "@" in hosts:
        raise Usage("credentials do not belong in a ledger's name: use a NATS context or $NATS_CREDS")
    plain = name.replace("-", "").replace("_", "")
    if not slash or not hosts or not plain.isascii() or not plain.isalnum() or len(name) > 64:
        raise Usage(f"{url[:200]}: must be nats://host:port/NAME, NAME of letters, digits, - and _")
    return [parse_server(text) for text in hosts.split(",")], name


def parse_server(text: str) -> tuple[str, int]:
    """`host`, `host:port` or `[v6]:port` as (host, port).

    Raises:
        Usage: not such a text.
    """
    host, port = text, str(PORT)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":") or port
    elif ":" in text:
        host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise Usage(f"{text[:200]!r}: not a server's host:port")
    return host, int(port)


def _of_certificates(error: OSError) -> bool:
    reason = str(getattr(error, "reason", ""))
    return "_ALERT_" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def _is_old(version: str) -> bool:
    """Whether a server of this version knows no atomic batches: it does not refuse them, but ignores what makes them one."""
    numbers = version[:9].split(".")[:2]
    return len(numbers) == 2 and all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) < (2, 12)


class Connection:
    """One TCP or TLS connection to one server. Any failure leaves it unusable; `Link` makes the next."""

    def __init__(self, host: str, port: int, login: Login, *, tls_name: str = "") -> None:
        """Connect and log in.

        Raises:
            Unavailable: not reachable. Refused: the server does not accept the login.
        """
        self.server = f"{host}:{port}"
        self._buffer = b""
        self._at = 0
        self._out: list[bytes] = []
        self._room = LEAST_ROOM
        self._deadline = time.monotonic() + CONNECT_SECONDS
        try:
            self._socket = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
        except OSError as error:
            raise Unavailable(f"nats {self.server}: {error.strerror or error}") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._greet(login, tls_name or host)
        except BaseException:
            self._socket.close()
            raise

    def _greet(self, login: Login, tls_name: str) -> None:
        if login.tls_first:
            self._secure(login, tls_name)
        try:
            line = self._line()
        except Silence as error:
            if login.tls_first:
                raise
            raise Unavailable(
                f"{error}: a slow network, no NATS server, or one that wants TLS first (tls_first)"
            ) from None
        if not line.startswith(b"INFO "):
            raise Unavailable(f"nats {self.server}: not a NATS server")
        try:
            info = load(line[5:])
        except Exception:  # noqa: BLE001 - the C scanner raises several kinds for bytes that are no JSON
            info = None
        if not isinstance(info, dict):
            raise Unavailable(f"nats {self.server}: not a NATS server")
        self.info: dict[str, object] = info
        tls = bool(self.info.get("tls_required")) or (login.tls and bool(self.info.get("tls_available")))
        if not login.tls_first and (tls or login.tls):
            if not tls:
                raise Refused(
                    f"nats {self.server}: the context asks for TLS, the server offers none; nothing was sent"
                )
            self._secure(login, tls_name)
        version = str(self.info.get("version"))
        if not self.info.get("headers") or _is_old(version):
            raise Unavailable(
                f"nats {self.server}: nats-server {version[:20]} is too old, it stores the events of a batch one by one: "
                "2.12 or newer is needed"
            )
        options: dict[str, object] = {
            "echo": True, "headers": True, "lang": "python", "name": "gatebook", "no_responders": True,
            "pedantic": False, "protocol": 1, "tls_required": tls, "verbose": False, "version": "1",
        }  # fmt: skip
        options.update(login.answer(str(self.info.get("nonce") or "")))
        self.inbox = f"{login.inbox_prefix}.{os.urandom(11).hex()}".encode()
        self.send(b"CONNECT " + encode(options) + b"\r\nSUB " + self.inbox + b".* 1\r\nPING\r\n")
        self.flush()
        while self._line() != b"PONG":
            pass

    def _secure(self, login: Login, tls_name: str) -> None:
        import ssl

        context: ssl.SSLContext = login.tls_context()
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=tls_name)
        except (OSError, ssl.SSLError) as error:
            unknown = getattr(error, "verify_code", 0) in UNKNOWN_ISSUER
            hint = ": a NATS context's `ca` names the file of whom to believe" if unknown else ""
            raise Refused(f"nats {self.server}: TLS failed: {error}{hint}") from None

    def send(self, text: bytes) -> None:
        """Queue protocol bytes; `flush` or waiting for an answer sends them."""
        self._out.append(text)

    def flush(self) -> None:
        """Send what was queued.

        Raises:
            Silence: the connection is broken.
        """
        if not self._out:
            return
        out, self._out = b"".join(self._out), []
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.sendall(out)
        except OSError as error:
            raise Silence(f"nats {self.server}: {error.strerror or error}") from None

    def publish(self, subject: bytes, payload: bytes, headers: bytes = b"", reply: bytes = b"") -> None:
        """Queue a message; `headers` are `Name: value` lines, each ended by CRLF."""
        if headers:
            head = b"NATS/1.0\r\n" + headers + b"\r\n"
            total = len(head) + len(payload)
            self._out.append(
                b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(head), total, head, payload)
            )
        else:
            self._out.append(b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))

    @property
    def has_more(self) -> bool:
        """Whether bytes are here that nobody has looked at."""
        return self._at < len(self._buffer)

    def _fill(self) -> None:
        self.flush()
        left = self._deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError("no answer in time")
            self._socket.settimeout(left)
            more = self._socket.recv(self._room)
        except OSError as error:
            if _of_certificates(error):  # said after the handshake by TLS 1.3
                raise Refused(f"nats {self.server}: TLS: it does not take our certificate: {error}") from None
            raise Silence(f"nats {self.server}: {error.strerror or error}") from None
        if not more:
            raise Silence(f"nats {self.server}: the server closed the connection")
        # One answer takes little room, a page of messages as much as there is; much room costs to make.
        self._room = MOST_ROOM if len(more) >= LEAST_ROOM else LEAST_ROOM
        self._buffer = self._buffer[self._at :] + more
        self._at = 0

    def _line(self) -> bytes:
        """The next control line that is not a PING, INFO update or +OK."""
        while True:
            end = self._buffer.find(b"\r\n", self._at)
            if end < 0:
                if len(self._buffer) - self._at > MAX_LINE:
                    raise Unavailable(f"nats {self.server}: not a NATS server")
                self._fill()
                continue
            line = self._buffer[self._at : end]
            self._at = end + 2
            if not self._is_aside(line):
                return line

    def _is_aside(self, line: bytes) -> bool:
        """Whether a control line is a PING, INFO update or +OK; errors of the server are raised."""
        if line == b"PING":
            self._out.append(b"PONG\r\n")
            return True
        if line.startswith(b"-ERR"):
            if b'.turn"' in line:
                return True  # a writer that may not take part in the queue writes without it
            raise self._error(line[4:].strip(b" '").decode("utf-8", "replace"))
        return line == b"+OK" or (line.startswith(b"INFO ") and hasattr(self, "info"))

    def _error(self, text: str) -> GatebookError:
        low = text.lower()
        if low.startswith("permissions violation"):
            return Refused(f"nats {self.server}: {text}: this NATS user may not do that")
        if "authorization" in low or "authentication" in low or "account" in low or "expired" in low:
            return Refused(
                f"nats {self.server}: {text}: choose a NATS context ($NATS_CONTEXT) or $NATS_CREDS"
            )
        return Silence(f"nats {self.server}: {text}")

    def next(self, deadline: float) -> Message:
        """The next message, waiting until `deadline` (monotonic seconds).

        Raises:
            Silence: none came, or the connection broke. Refused: the server said that something was not allowed.
        """
        self._deadline = deadline
        while True:
            end = self._buffer.find(b"\r\n", self._at)
            if end > 0 and self._buffer.startswith(b"HMSG ", self._at):
                line = self._buffer[self._at : end]
                self._at = end + 2
            else:
                line = self._line()
            words = line.split(b" ")
            try:
                total = int(words[-1])
                head = int(words[-2]) if words[0] == b"HMSG" else 0
                if words[0] not in (b"MSG", b"HMSG") or not 0 <= head <= total <= MAX_MESSAGE:
                    raise ValueError
            except (ValueError, IndexError):
                raise Silence(f"nats {self.server}: unexpected {line[:40]!r}") from None
            while len(self._buffer) - self._at < total + 2:
                self._fill()
            start = self._at
            stop = start + total
            self._at = stop + 2
            if self._buffer[stop : stop + 2] != b"\r\n":
                raise Silence(f"nats {self.server}: a message that does not end where it says")
            return Message(words[1], self._buffer[start : start + head], self._buffer[start + head : stop])

    def burst(self, inbox: bytes) -> Burst | None:
        """The messages to `inbox` that are here whole, up to the first thing that is not one of them; None: not one."""
        start, buffer = b"HMSG %b 1 " % inbox, self._buffer
        at, size, skip = self._at, len(buffer), len(start)
        spans: list[tuple[int, int, int]] = []
        sizes: dict[bytes, tuple[int, int]] = {}  # few different ones come again and again
        find, startswith = buffer.find, buffer.startswith
        while startswith(start, at):
            line = find(b"\r\n", at)
            if line < 0:
                break
            text = buffer[at + skip : line]
            found = sizes.get(text)
            if found is None:
                try:
                    head, total = map(int, text.split(b" "))
                except ValueError:
                    break  # `next` says what is wrong
                found = sizes[text] = (head, total)
            begin = line + 2
            middle, end = begin + found[0], begin + found[1]
            if not begin <= middle <= end <= size - 2:
                break
            spans.append((begin, middle, end))
            at = end + 2
        self._at = at
        return Burst(buffer, spans) if spans else None

    def delivered(self, control: Matcher, place: int, deadline: float) -> tuple[Burst, int] | None:
        """The next messages that are here whole, at least one, stored from `place` on, and how many follow them.

        `control` finds (place, how many follow, size of the headers, size) in a control line. None: the next message is
        another one.

        Raises:
            Silence: none came by `deadline`, or the connection broke.
        """
        self._deadline = deadline
        spans: list[tuple[int, int, int]] = []
        left, expected = 0, place
        while True:
            buffer, at = self._buffer, self._at
            size = len(buffer)
            while (found := control(buffer, at)) is not None:
                stored, pending, head, total = map(int, found.groups())
                begin = found.end()
                end = begin + total
                if stored != expected or head > total or end > size - 2:
                    break
                spans.append((begin, begin + head, end))
                left, expected, at = pending, stored + 1, end + 2
            self._at = at
            if spans:
                return Burst(buffer, spans, place), left
            line = buffer.find(b"\r\n", at)
            if line >= 0 and (found is None or stored != expected):
                if buffer.startswith((b"MSG ", b"HMSG "), at):
                    return None
                self._at = line + 2
                if not self._is_aside(buffer[at:line]):
                    raise Silence(f"nats {self.server}: unexpected {buffer[at:line][:40]!r}")
            elif size - at > MAX_MESSAGE:
                raise Silence(f"nats {self.server}: a message that is too large")
            else:
                self._fill()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class Link:
    """A connection to whichever server of a cluster answers, made when first needed and again after a failure."""

    def __init__(self, servers: list[tuple[str, int]], login: Login) -> None:
        self.servers = list(servers)
        self._seed = servers[0][0]
        self.login = login
        self._connection: Connection | None = None
        self._count = 0
        self._topic = b""
        self._hear: Callable[[bytes], None] | None = None
        self._early: dict[bytes, Message | None] = {}

    @property
    def connected(self) -> bool:
        """Whether a connection is open now."""
        return self._connection is not None

    def connection(self) -> Connection:
        """The open connection, or a new one to the first server that answers.

        Raises:
            Unavailable: none answers. Refused: none takes us, one at least because of the login or its certificate.
        """
        if self._connection is not None:
            return self._connection
        problems: list[str] = []
        kind: type[Refused | Unavailable] = Unavailable
        for host, port in list(self.servers):
            try:
                numeric = host.replace(".", "").isdigit() or ":" in host
                made = Connection(host, port, self.login, tls_name=self._seed if numeric else host)
            except (Unavailable, Refused) as error:
                kind = Refused if isinstance(error, Refused) else kind
                problems.append(str(error))
                self.servers.append(self.servers.pop(0))  # the next call begins with another one
                continue
            self._connection = made
            if self._topic:
                made.send(b"SUB " + self._topic + b" 2\r\n")
            self._learn(made.info.get("connect_urls"))
            return made
        raise kind("; ".join(problems))

    def _learn(self, urls: object) -> None:
        for text in urls if isinstance(urls, list) else []:
            try:
                server = parse_server(str(text))
            except Usage:
                continue
            if server not in self.servers:
                self.servers.append(server)

    def listen(self, subject: bytes, hear: Callable[[bytes], None]) -> None:
        """Call `hear` with each message to `subject` that comes while something is waited for."""
        self._topic, self._hear = subject, hear
        if self._connection is not None:
            self._connection.send(b"SUB " + subject + b" 2\r\n")

    def next(self, deadline: float) -> Message:
        """The next message that is an answer.

        Raises:
            Silence: none came by `deadline`, or the connection broke: it is dropped then.
        """
        connection = self.connection()
        try:
            while True:
                message = connection.next(deadline)
                if not self._is_aside(message):
                    return message
        except Silence:
            self.drop()
            raise

    def _is_aside(self, message: Message) -> bool:
        """Whether a message is none that is waited for now: it is heard, or kept."""
        if message.subject in self._early:
            self._early[message.subject] = message
        elif message.subject == self._topic and self._hear is not None:
            self._hear(message.payload)
        else:
            return False
        return True

    def burst(self, inbox: bytes, seconds: float = ANSWER_SECONDS) -> Burst:
        """The next messages to `inbox`, at least one, as many as are here; errors as `next`."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.connection().burst(inbox)
            if found is not None:
                return found
            message = self.next(deadline)
            if message.subject == inbox:
                head, whole = len(message.headers), message.headers + message.payload
                return Burst(whole, [(0, head, len(whole))])

    def delivered(
        self, control: Matcher, place: int, others: tuple[bytes, ...], seconds: float = ANSWER_SECONDS
    ) -> tuple[Burst, int] | Message:
        """As `Connection.delivered`, or another message when that came to one of `others`."""
        deadline = time.monotonic() + seconds
        connection = self.connection()
        try:
            while True:
                found = connection.delivered(control, place, deadline)
                if found is not None:
                    return found
                message = connection.next(deadline)
                if not self._is_aside(message) and message.subject in others:
                    return message
        except Silence:
            self.drop()
            raise

    def hear(self, deadline: float) -> None:
        """Wait for a message to the subject of `listen`, and hear all that came with it; late answers are dropped.

        Raises:
            Silence: none came by `deadline`; with the connection dropped when that broke.
        """
        connection = self.connection()
        heard = False
        while not heard or connection.has_more:
            try:
                message = connection.next(deadline)
            except Silence:
                if time.monotonic() < deadline - 0.005:
                    self.drop()
                raise
            if message.subject == self._topic and self._hear is not None:
                self._hear(message.payload)
                heard = True

    def drop(self) -> None:
        """Forget the connection; the next use makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._early.clear()

    def open_inbox(self, *, early: bool = False) -> bytes:
        """A fresh reply subject of this connection.

        `early`: what comes is kept until `answers` asks for it, or the next such inbox is opened: who does not ask for an
        answer any more has nothing to tidy up.
        """
        self._count += 1
        inbox = self.connection().inbox + b".%d" % self._count
        if early:
            self._early = {inbox: None}
        return inbox

    def answers(self, inbox: bytes, seconds: float = ANSWER_SECONDS) -> Iterator[Message]:
        """The messages sent to `inbox`, each waited for `seconds`; what comes for others is dropped.

        Raises:
            Silence: none came, or the connection broke; the connection is dropped then.
        """
        came = self._early.pop(inbox, None)
        if came is not None:
            yield came
        while True:
            deadline = time.monotonic() + seconds
            message = self.next(deadline)
            while message.subject != inbox:
                message = self.next(deadline)
            yield message

    def request(
        self, subject: str, payload: bytes = b"", headers: bytes = b"", seconds: float = ANSWER_SECONDS
    ) -> Message:
        """Publish and wait for the one answer.

        Raises:
            Silence: the outcome is not known. Unavailable: no connection, or (status 503) nobody there answers.
            Refused: not allowed.
        """
        inbox = self.open_inbox()
        self.connection().publish(subject.encode(), payload, headers, inbox)
        answer = next(self.answers(inbox, seconds))
        if answer.status == 503:
            why = " (no JetStream for this account, or no leader now)" if subject.startswith("$JS.") else ""
            raise Unavailable(f"nats {self.connection().server}: nobody answers on {subject}{why}")
        return answer
