"""What every store promises, and the part of an append that is the same for all of them.

A store keeps sealed events in order. `transact` is its one way to write: it calls `decide` with a reader
that sees the head under the store's own exclusion, seals what `decide` returns and makes it durable.
A store without a lock (JetStream) may call `decide` again after it lost the race, so `decide` has no
side effects.
"""

from __future__ import annotations

from ledger.errors import Conflict
from ledger.event import Draft, Event, Head, Origin, content_digest, seal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Protocol

    class Reader(Protocol):
        """A consistent view of the events: inside `transact`, as of the head that the drafts will follow."""

        clock: int
        """The clock as read for this transaction, us since 1970."""

        def head(self) -> Head:
            """The last event's place, `Head()` when there is none."""

        def version(self, stream: str) -> int:
            """The version of `stream`, 0 when it has no event."""

        def stream(self, stream: str, after: int = 0, upto: int | None = None) -> list[Event]:
            """The events of `stream` with after < version <= upto, in order."""

        def event(self, seq: int) -> Event | None:
            """The event with that number."""

        def by_key(self, key: str) -> Event | None:
            """The event that carries this idempotency key."""

        def streams(self, kind: str) -> list[str]:
            """The names of all streams of one kind, sorted."""

        def of_type(self, name: str, limit: int, before: int = 2**62) -> list[Event]:
            """The last `limit` events of one type before seq `before`, newest first."""

        def snapshot(self, stream: str, fold: str, upto: int | None = None) -> tuple[int, bytes] | None:
            """(version, state bytes) of the newest snapshot of `stream` that this fold made and the chain confirms."""

        def erase(self, seq: int) -> None:
            """Erase content and salt of event `seq`, in one piece with what is appended."""

        def save_snapshot(self, stream: str, version: int, fold: str, state: bytes) -> None:
            """Keep `state` (at `version`, whose event is in this transaction or before) with what is appended."""

    class Store(Protocol):
        """A durable, totally ordered, hash-chained log of events."""

        def transact(
            self,
            decide: Callable[[Reader], Sequence[Draft]],
            origin: Origin,
            *,
            clock_jump: bool = False,
            then: Callable[[], None] | None = None,
        ) -> Recorded:
            """Append what `decide` returns: all of it durably, in one piece, or nothing.

            `then` runs after that (also when there was nothing to append) while other writers still wait: for
            views in shared files, whose order must be the events' order.

            Raises whatever `decide` raises, and Conflict, Refused, Invalid, Unavailable as `seal` and the store say.
            """

        def read(self, start: int = 1, stop: int | None = None) -> Iterator[Event]:
            """Events with start <= seq < stop, in order, as of some moment at or after the call."""

        def reader(self) -> Reader:
            """A reader outside any transaction."""

        def head(self) -> Head:
            """The last event's place."""

        def close(self) -> None:
            """Let go of files and connections; a closed store refuses everything."""


class Recorded:
    """What `transact` did: the events, whether they had been there before (`replayed`), and their streams' versions after them."""

    __slots__ = ("events", "replayed", "versions")

    def __init__(
        self, events: list[Event], versions: dict[str, int] | None = None, *, replayed: bool = False
    ) -> None:
        self.events = events
        self.replayed = replayed
        self.versions = versions or {}


def _same(draft: Draft, event: Event, artifact: Callable[[Event], bytes | None]) -> bool:
    if (event.stream, event.type, event.v, event.data) != (draft.stream, draft.type, draft.v, draft.data):
        return False
    if draft.content is None or event.content_digest is None:
        return draft.content is None and event.content_digest is None
    if event.redacted or event.salt is None:
        return False  # what was erased can no longer be compared: a conflict, never a silent second copy
    if event.in_artifact and artifact(event) is None:
        return False
    return content_digest(event.salt, draft.content) == event.content_digest


def replayed(
    drafts: Sequence[Draft], reader: Reader, artifact: Callable[[Event], bytes | None]
) -> list[Event] | None:
    """The recorded events when `drafts` were appended before under the same keys; None when all are new.

    A batch replays whole or not at all (DESIGN, The log).

    Raises:
        Conflict: a key is known with other content, twice in the batch, or only part of the batch is known.
    """
    for draft in drafts:
        if draft.idempotency_key is not None:
            break
    else:
        return None
    keys = [draft.idempotency_key for draft in drafts if draft.idempotency_key is not None]
    if len(set(keys)) != len(keys):
        raise Conflict("an idempotency key stands twice in one batch")
    found: list[Event] = []
    for draft in drafts:
        if draft.idempotency_key is None:
            continue
        event = reader.by_key(draft.idempotency_key)
        if event is None:
            continue
        if not _same(draft, event, artifact):
            why = "its content was redacted" if event.redacted else "with other content"
            raise Conflict(
                f"idempotency key {draft.idempotency_key!r} was used by event {event.seq}, {why}: take a new key"
            )
        found.append(event)
    if not found:
        return None
    if len(found) != len(keys):
        raise Conflict(
            f"{len(found)} of {len(keys)} idempotency keys of this batch were used before (event {found[0].seq} first): a batch replays whole"
        )
    if len(keys) == len(drafts):
        _in_one_piece(found)
        return found
    return _whole_batch(drafts, found, reader, artifact)


def _in_one_piece(found: list[Event]) -> None:
    if any(event.seq != found[0].seq + place for place, event in enumerate(found)):
        raise Conflict("the idempotency keys of this batch were used in other batches or another order")


def _whole_batch(
    drafts: Sequence[Draft], found: list[Event], reader: Reader, artifact: Callable[[Event], bytes | None]
) -> list[Event]:
    # Some drafts carry no key: they must stand beside the ones that do, as they did the first time.
    place = next(i for i, draft in enumerate(drafts) if draft.idempotency_key is not None)
    first = found[0].seq - place
    events = [reader.event(first + i) for i in range(len(drafts))]
    for draft, event in zip(drafts, events, strict=True):
        if (
            event is None
            or not _same(draft, event, artifact)
            or event.idempotency_key != draft.idempotency_key
        ):
            raise Conflict("the idempotency keys of this batch were used before in a different batch")
    return [event for event in events if event is not None]


def prepare(
    drafts: Sequence[Draft],
    reader: Reader,
    origin: Origin,
    artifact: Callable[[Event], bytes | None],
    *,
    clock_jump: bool,
) -> Recorded:
    """Drafts as sealed events after the reader's head, or the recorded ones of an earlier identical call.

    A key is looked up before any expected version is compared (DESIGN, The log).
    """
    before = replayed(drafts, reader, artifact)
    if before is not None:
        return Recorded(before, replayed=True)
    known: dict[str, int] = {}
    return Recorded(
        seal(
            drafts,
            reader.head(),
            reader.version,
            origin,
            reader.clock,
            clock_jump=clock_jump,
            known=known,
        ),
        known,
    )
