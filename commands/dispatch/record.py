"""The events of one request's stream: reading where it stands, and adding to them."""

from __future__ import annotations

from commands.dispatch.result import result_of
from ledger.errors import Refused, Usage
from projections.dispatch_events import MARK, Blocked
from projections.engine import Proposal, state_of, submit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commands.dispatch.preflight import Stop
    from ledger.access import Ledger
    from ledger.event import Event, Origin
    from projections.dispatch import State


def stream_of(request: str) -> str:
    """The stream of a request, by its identity or by the id that `dispatch open` printed."""
    if not MARK <= len(request) <= 64 or request.strip("0123456789abcdef"):
        raise Usage(
            f"{request!r} is not a dispatch id (32 hex digits, as `gatebook dispatch open` prints it)"
        )
    return f"dispatch/{request[:MARK]}"


class Record:
    """The events of one request's stream, and how to add to them."""

    __slots__ = ("ledger", "origin", "stream")

    def __init__(self, ledger: Ledger, origin: Origin, stream: str) -> None:
        self.ledger = ledger
        self.origin = origin
        self.stream = stream

    @property
    def state(self) -> State:
        """Where the request stands now."""
        found: State = state_of(self.ledger, self.stream)[0]
        return found

    @property
    def void_before(self) -> int:
        """The seq before which everything open is void."""
        from projections.engine import World

        return World(self.ledger.store.reader()).void_before

    def add(self, type: str, data: Any, content: dict[str, Any] | str | None = None) -> Event:
        """Record one event; `content` is a document (JSON) or text. Refused when it or `data` carries a credential."""
        from commands.context import dumps

        text = content if content is None or isinstance(content, str) else dumps(content)
        raw = None if text is None else text.encode("utf-8", "replace")
        proposal = Proposal(self.stream, type, data, content=raw, correlation=self.stream)
        return submit(self.ledger, self.origin, lambda _world: [proposal]).events[0]

    def content(self, event: Event) -> dict[str, Any]:
        """An event's content as the document it is; Refused when it was redacted."""
        from ledger.canonical import load

        raw = self.ledger.store.artifact(event) if event.in_artifact else event.content
        if raw is None:
            raise Refused(
                f"event {event.seq} was redacted: the request cannot go on from it; conclude it as abandoned"
            )
        return load(raw)

    def newest(self, type: str, since: int) -> Event | None:
        """The newest event of a type in this run of the request."""
        events = self.ledger.store.reader().stream(self.stream)
        found = [event for event in events if event.type == type and event.seq >= since]
        return found[-1] if found else None

    def named(self) -> str:
        """How an event of another ledger names this stream: with this ledger's id and head."""
        return f"{self.stream}@{self.ledger.id}:{self.ledger.store.head().hash.hex()}"

    def block(self, request: str, stop: Stop, route: str) -> dict[str, Any]:
        """Record that nobody may work on the request; returns the complete result."""
        state = self.state
        running = state if state.phase == "open" else None
        result = result_of(
            "blocked", stop.blockers, requested=route, state=running, elapsed=self.elapsed(state)
        )
        self.add("dispatch.blocked", Blocked(request, stop.code), result)
        return result

    def elapsed(self, state: State) -> float:
        """Seconds since this run of the request was opened."""
        event = self.ledger.store.reader().event(state.requested_seq) if state.phase == "open" else None
        return 0.0 if event is None else max(self.ledger.store.reader().clock - event.clock, 0) / 1e6
