"""The aggregate of `refusal/<utc date>`: a count by type and reason; every refusal may follow any other."""

from __future__ import annotations

from msgspec import Struct, field

from projections.fact import Fact, Law, digest_text


class Refusal(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was refused: its type and stream, why, BLAKE3 of its data, and how many before it were only counted."""

    type: str
    stream: str
    reason: str
    digest: str
    suppressed: int = 0


class State(Struct):
    """How often each (event type, reason) came up on that day, `TYPE reason` -> count; `suppressed` were not written."""

    counts: dict[str, int] = field(default_factory=dict)
    suppressed: int = 0


EVENTS = {"admission.refused": Refusal, "marker.refused": Refusal, "receipt.denied": Refusal}


def initial(_stream: str) -> State:
    """No refusal yet."""
    return State()


def evolve(state: State, fact: Fact) -> State:
    """Count one."""
    name = f"{fact.type} {fact.data.reason}"
    state.counts[name] = state.counts.get(name, 0) + 1
    state.suppressed += fact.data.suppressed
    return state


def admit(_state: State, fact: Fact, law: Law) -> None:
    """The day in the stream's name is the clock's; the digest is one."""
    digest_text(fact.data.digest, fact)
    if fact.stream != f"refusal/{law.day(fact.clock)}":
        law.refuse(fact, "a refusal belongs to the day of its clock")
