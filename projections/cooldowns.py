"""How long a provider's endpoint stays closed, and who may try it again (contract page dispatch, Circuits).

Pure rules over moments in microseconds; the circuit aggregate, the route command and the health view all
judge by these and by nothing else.
"""

from __future__ import annotations

from projections.times import DAY, HOUR, LATEST, MINUTE, SECOND, print_time, whole_seconds

REASONS = ("quota", "authentication", "rate_limit", "provider_unavailable")
PROBE_LEASE = 15 * MINUTE
STEPS = (15 * MINUTE, HOUR, 6 * HOUR, DAY)
MAX_COUNT = 2**53 - 1
_LAST_SECOND = LATEST - SECOND + 1


class Circuit:
    """A recorded failure of one `provider|executor`; moments in microseconds, `probe_claimed_at` None when nobody probes."""

    __slots__ = ("failure_count", "last_failure_at", "probe_claimed_at", "reason", "unavailable_until")

    def __init__(
        self,
        reason: str,
        failure_count: int,
        last_failure_at: int,
        unavailable_until: int,
        probe_claimed_at: int | None = None,
    ) -> None:
        self.reason = reason
        self.failure_count = failure_count
        self.last_failure_at = last_failure_at
        self.unavailable_until = unavailable_until
        self.probe_claimed_at = probe_claimed_at

    def _fields(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Circuit) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"Circuit({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


def shown(circuit: Circuit) -> dict[str, object]:
    """A circuit's fields as `state circuits`, the views and the health file have them: times in whole seconds."""
    claimed = circuit.probe_claimed_at
    return {
        "state": "open",
        "reason": circuit.reason,
        "failure_count": circuit.failure_count,
        "last_failure_at": print_time(circuit.last_failure_at),
        "unavailable_until": print_time(circuit.unavailable_until),
        "probe_claimed_at": None if claimed is None else print_time(claimed),
    }


def next_opening(
    circuit: Circuit | None, reason: str, at: int, retry_at: int | None = None
) -> tuple[int, int]:
    """(failure_count, unavailable_until) after a failure for `reason` at `at`, given the circuit before it."""
    again = circuit is not None and circuit.reason == reason
    return opening(circuit.failure_count if again and circuit is not None else 0, reason, at, retry_at)


def opening(failures: int, reason: str, at: int, retry_at: int | None = None) -> tuple[int, int]:
    """(failure_count, unavailable_until) after a failure for `reason` at `at`, with so many for the same reason just before.

    The end of the cooldown is in whole seconds, so that what is printed is exactly what holds.
    """
    count = failures + 1 if failures < MAX_COUNT else MAX_COUNT
    if reason == "quota" and retry_at is not None and retry_at > at:
        return count, whole_seconds(retry_at)
    if reason == "quota" or reason == "authentication":  # noqa: PLR1714 - no tuple to search, at every replayed event
        cooldown = DAY
    else:
        cooldown = STEPS[count - 1] if count < len(STEPS) else STEPS[-1]
    until = at - at % SECOND + cooldown
    return count, until if until < _LAST_SECOND else _LAST_SECOND  # noqa: FURB136 - as above


def is_open(circuit: Circuit, now: int) -> bool:
    """True while nobody may try the endpoint: it cools down, or somebody's probe is not answered yet."""
    if now < circuit.unavailable_until:
        return True
    return circuit.probe_claimed_at is not None and now < circuit.probe_claimed_at + PROBE_LEASE
