"""The Codex App Server over stdio: one JSON object a line, with a deadline (contract page codex-app-server)."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator, Sequence

MAX_LINE = 32 * 1024 * 1024
GRACE = 10.0  # seconds in which an interrupted turn may still end by itself


class WireError(Exception):
    """The server is gone, silent past the deadline, or speaks no JSON; `late` tells the second from the others."""

    def __init__(self, why: str, *, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


class RequestError(Exception):
    """The server answered a request of ours with an error."""


def binary() -> str:
    """The Codex program to run: `$GATEBOOK_CODEX_BIN`, else `codex`."""
    return os.environ.get("GATEBOOK_CODEX_BIN") or "codex"


class Server:
    """A running server that speaks JSON lines, in a session of its own; `close` ends it and everything it started.

    `argv` is `codex app-server` unless another is given; `extra` stands in every message (MCP wants `jsonrpc`).
    `on_request` answers what the server asks of us while we wait for it: it may not go on before that.
    """

    def __init__(
        self,
        timeout: float,
        actor: str = "",
        argv: Sequence[str] = (),
        extra: dict[str, object] | None = None,
    ) -> None:
        """Start it, as `actor` for what it may write itself; every wait for it ends `timeout` seconds from now. FileNotFoundError or OSError when it cannot start."""
        import subprocess

        self.deadline = time.monotonic() + timeout
        self._buffer = b""
        self._pending: list[dict[str, object]] = []
        self._number = 0
        self.on_request: Callable[[dict[str, object]], None] | None = None
        self._extra = extra or {}
        self._child = subprocess.Popen(
            list(argv) or [binary(), "app-server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # never read: it may hold anything
            start_new_session=True,
            env={**os.environ, "GATEBOOK_ACTOR": actor} if actor else None,
        )

    def close(self) -> None:
        """Kill the server's whole session; what it still had to say is not heard."""
        from commands.dispatch.processes import end_group

        end_group(self._child)

    def send(self, message: dict[str, object]) -> None:
        """One message, whole; WireError when the server does not take it."""
        from ledger.canonical import encode

        data = encode({**self._extra, **message}) + b"\n"
        pipe = _pipe(self._child.stdin)
        os.set_blocking(pipe, False)
        while data:
            try:
                data = data[os.write(pipe, data) :]
            except BlockingIOError:
                self._wait(writable=pipe)
            except OSError:
                raise WireError("the server closed its input") from None

    def request(self, method: str, params: dict[str, object]) -> dict[str, object]:
        """The result of a request of ours; other messages that come before it are kept for `messages`.

        Raises:
            RequestError: the server refused it.
            WireError: it did not answer.
        """
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})
        while True:
            message = self._next()
            if self.on_request is not None and "method" in message and "id" in message:
                self.on_request(message)
                continue
            if "method" in message or message.get("id") != self._number:
                self._pending.append(message)
                continue
            result = message.get("result")
            if "error" in message or not isinstance(result, dict):
                raise RequestError(method)
            return result

    def tell(self, method: str, params: dict[str, object]) -> None:
        """A request whose answer nobody waits for."""
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})

    def messages(self) -> Iterator[dict[str, object]]:
        """Every message from here on, those kept by `request` first; WireError at the end or past the deadline."""
        while True:
            yield self._pending.pop(0) if self._pending else self._next()

    def _next(self) -> dict[str, object]:
        import json

        while b"\n" not in self._buffer:
            self._buffer += self._read()
            if len(self._buffer) > MAX_LINE:
                raise WireError("the server sent a line over 32 MiB")
        line, _, self._buffer = self._buffer.partition(b"\n")
        if not line.strip():
            return {}
        try:
            message = json.loads(line)  # leniently: the protocol is open, and none of it is kept
        except (ValueError, RecursionError):
            raise WireError("the server sent a line that is not JSON") from None
        # A member that is null says no more than one that is absent: `"error":null` refuses nothing.
        return {k: v for k, v in message.items() if v is not None} if isinstance(message, dict) else {}

    def _read(self) -> bytes:
        pipe = _pipe(self._child.stdout)
        self._wait(readable=pipe)
        part = os.read(pipe, 1 << 20)
        if not part:
            raise WireError("the server ended")
        return part

    def _wait(self, *, readable: int | None = None, writable: int | None = None) -> None:
        import select

        from commands.dispatch.processes import LONGEST_WAIT

        readers, writers = [readable] if readable else [], [writable] if writable else []
        while True:
            left = max(self.deadline - time.monotonic(), 0)
            if any(select.select(readers, writers, [], min(left, LONGEST_WAIT))):
                return
            if left <= LONGEST_WAIT:
                raise WireError("the server did not answer in time", late=True)


def _pipe(stream: subprocess.Popen[bytes] | object) -> int:
    assert hasattr(stream, "fileno")
    number: int = stream.fileno()
    return number


def initialize(server: Server) -> None:
    """The handshake; RequestError or WireError when this is no App Server."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        ours = version("gatebook")
    except PackageNotFoundError:  # run from a source tree
        ours = "0"
    server.request(
        "initialize",
        {
            "clientInfo": {"name": "gatebook", "title": None, "version": ours},
            "capabilities": {"experimentalApi": True, "requestAttestation": False},
        },
    )
    server.send({"method": "initialized"})
