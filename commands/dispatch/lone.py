"""A `codex dispatch` of its own, on record: one attempt and its return, in a stream that no request shares."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context
    from commands.dispatch.codex_turn import Turn
    from commands.dispatch.record import Record
    from commands.dispatch.returned import Returned

ROUTE = "codex"


class Lone:
    """The record of one call; without a ledger it records nothing."""

    def __init__(self, record: Record | None, turn: Turn) -> None:
        self._record = record
        self.worker = "" if record is None else f"codex-turn:{record.stream.partition('/')[2][:12]}"
        if record is not None:
            self._begin(record, turn)

    def _begin(self, record: Record, turn: Turn) -> None:
        from blake3 import blake3

        from projections.dispatch_events import Attempted, Requested, Selected, mark
        from projections.engine import Proposal, submit

        name = record.stream.partition("/")[2] * 2
        prompt, nothing = blake3(turn.prompt.encode()).hexdigest(), blake3(b"").hexdigest()
        folder = os.path.realpath(turn.cwd)
        paths = (mark(name, folder),) if turn.sandbox == "workspace-write" else ()
        candidate = f"{turn.model}@{turn.effort}"
        requested = Requested(
            name, prompt, len(turn.prompt.encode()), ROUTE, "fresh", turn.sandbox, blake3(os.fsencode(folder)).hexdigest(), nothing, paths
        )  # fmt: skip
        attempted = Attempted(1, candidate, ROUTE, ROUTE, turn.sandbox, self.worker, prompt, nothing, paths)
        events = (
            ("dispatch.requested", requested),
            ("route.selected", Selected(candidate, ROUTE, ROUTE, "primary")),
            ("dispatch.attempted", attempted),
        )
        proposals = [Proposal(record.stream, type, data, correlation=record.stream) for type, data in events]
        submit(record.ledger, record.origin, lambda _world: proposals)

    def returned(self, outcome: Returned) -> None:
        """Record how it ended; its report stays in the report file alone."""
        from blake3 import blake3

        from commands.dispatch.work import printed
        from projections.dispatch_events import Returned as Event

        if self._record is not None:
            data = Event(
                1, outcome.ending, blake3(b"").hexdigest(), outcome.reason or "", printed(outcome.retry_at), healthy=outcome.healthy
            )  # fmt: skip
            self._record.add("dispatch.returned", data)


def record_of(context: Context) -> Record | None:
    """A new stream in the ledger that is here, None where there is none; one that was found but is not trusted is not used."""
    from commands.dispatch.record import Record, stream_of
    from ledger.errors import Refused

    try:
        ledger = context.ledger_if_any()
    except Refused as error:
        if context.ledger_given or os.environ.get("GATEBOOK_LEDGER"):
            raise
        context.log().warning(f"not recorded: {error}")
        return None
    return None if ledger is None else Record(ledger, context.origin(), stream_of(os.urandom(16).hex()))
