"""The circuit aggregate: `circuit/<provider>|<executor>`, opened by typed failures, probed once a cooldown, closed by success.

Contract page dispatch, Circuits. The model of the others: structs, state, evolve and admission side by side.
"""

from __future__ import annotations

from msgspec import Struct

from projections.cooldowns import MAX_COUNT, REASONS, Circuit, is_open, opening, shown
from projections.fact import Fact, Law, digest_text
from projections.times import SECOND, parse_time

KIND = "circuit"
FOLD = "circuit/1"
AT_TOLERANCE = 5 * SECOND


class Opened(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A typed failure of an endpoint. Times are RFC 3339; `at_given`: `at` is more than 5 s from the ledger's clock."""

    provider: str
    executor: str
    reason: str
    at: str
    failure_count: int
    unavailable_until: str
    retry_at: str = ""
    at_given: bool = False


class Probed(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One selector took the half-open probe at `at`; it holds it for 15 minutes."""

    provider: str
    executor: str
    at: str
    at_given: bool = False


class Closed(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The endpoint answered (or was forgotten by `route reset`)."""

    provider: str
    executor: str
    at: str
    at_given: bool = False


class Health(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A circuit as the shared JSON view states it."""

    reason: str
    failure_count: int
    last_failure_at: str
    unavailable_until: str
    probe_claimed_at: str = ""


class Imported(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The shared JSON view, written by another tool, said something else: `circuit` None where it no longer stood."""

    provider: str
    executor: str
    at: str
    file_digest: str
    circuit: Health | None = None
    at_given: bool = False


EVENTS = {
    "circuit.opened": Opened,
    "circuit.probed": Probed,
    "circuit.closed": Closed,
    "circuit.imported": Imported,
}


class State(Struct, omit_defaults=True, gc=False):
    """The circuit now; `reason` empty when it is closed. Moments in us; `probe_seq` the event that claimed the probe."""

    reason: str = ""
    failure_count: int = 0
    last_failure_at: int = 0
    unavailable_until: int = 0
    probe_claimed_at: int | None = None
    probe_seq: int = 0

    def circuit(self, void_before: int = 0) -> Circuit | None:
        """The circuit as the rules see it, None when closed; a probe claimed before a restore is void."""
        if not self.reason:
            return None
        probe = None if self.probe_seq < void_before else self.probe_claimed_at
        return Circuit(self.reason, self.failure_count, self.last_failure_at, self.unavailable_until, probe)


def initial(_stream: str) -> State:
    """Closed."""
    return State()


def evolve(_state: State, fact: Fact) -> State:
    """The circuit after one event; what was before is in the event's own fields."""
    data = fact.data
    if isinstance(data, Opened):
        return State(data.reason, data.failure_count, parse_time(data.at), parse_time(data.unavailable_until))
    if isinstance(data, Probed):
        state = _state
        state.probe_claimed_at, state.probe_seq = parse_time(data.at), fact.seq
        return state
    if isinstance(data, Imported) and data.circuit is not None:
        health = data.circuit
        probe = parse_time(health.probe_claimed_at) if health.probe_claimed_at else None
        return State(
            health.reason, health.failure_count, parse_time(health.last_failure_at),
            parse_time(health.unavailable_until), probe, fact.seq if probe is not None else 0,
        )  # fmt: skip
    return State()


def admit(state: State, fact: Fact, law: Law) -> None:
    """Counts and cooldowns follow the table; one probe a cooldown; only an open circuit closes."""
    data = fact.data
    if fact.stream != f"circuit/{data.provider}|{data.executor}":
        law.refuse(fact, "the endpoint is not the stream's")
    if not data.provider or not data.executor or fact.stream.count("|") != 1:
        law.refuse(fact, "an endpoint is a provider and an executor")
    at = parse_time(data.at)
    if data.at_given == (abs(at - fact.clock) <= AT_TOLERANCE):
        law.refuse(fact, "at_given must say whether the time is more than 5 s from the clock")
    if isinstance(data, Opened):
        _admit_opened(state, data, at, fact, law)
    elif isinstance(data, Probed):
        circuit = state.circuit(law.void_before)
        if circuit is None or is_open(circuit, at):
            law.refuse(fact, "only an open circuit past its cooldown and without a running probe is probed")
    elif isinstance(data, Closed):
        if not state.reason:
            law.refuse(fact, "the circuit is not open")
    else:
        digest_text(data.file_digest, fact)
        if data.circuit is not None and data.circuit.reason not in REASONS:
            law.refuse(fact, "unknown reason")
        if data.circuit is not None and not 1 <= data.circuit.failure_count <= MAX_COUNT:
            law.refuse(fact, "failures are counted from 1")


def _admit_opened(state: State, data: Opened, at: int, fact: Fact, law: Law) -> None:
    reason = data.reason
    if reason not in REASONS:
        law.refuse(fact, "unknown reason")
    retry_at = parse_time(data.retry_at) if data.retry_at else None
    if retry_at is not None and reason != "quota":
        law.refuse(fact, "only quota has a retry time")
    count, until = opening(state.failure_count if state.reason == reason else 0, reason, at, retry_at)
    if data.failure_count != count or parse_time(data.unavailable_until) != until:
        law.refuse(fact, "the count or the cooldown is not what the table gives")


VIEWS = {
    "circuits": {
        "provider": str,
        "executor": str,
        "state": str,
        "reason": str,
        "failure_count": int,
        "last_failure_at": str,
        "unavailable_until": str,
        "probe_claimed_at": str,
    }
}


def show(stream: str, state: State) -> dict[str, object]:
    """One circuit as `state circuits` prints it."""
    provider, _, executor = stream.partition("/")[2].rpartition("|")
    circuit = state.circuit()
    if circuit is None:
        return {"provider": provider, "executor": executor, "state": "closed"}
    return {"provider": provider, "executor": executor, **shown(circuit)}


def voided(state: State, before: int) -> State:
    """The circuit after a restore at event `before`: a probe from before it is nobody's."""
    from msgspec.structs import replace

    return replace(state, probe_claimed_at=None) if state.probe_seq < before else state


STATES = {"circuits": show}


def rows(stream: str, state: State) -> dict[str, list[dict[str, object]]]:
    """The row of `circuits`."""
    return {"circuits": [show(stream, state)]}
