"""Whose turn it is among the writers of a fleet's stream: they queue by courtesy, so that few lose a race.

The stream alone decides who gets a place. But writers that all try at once mostly lose, and one that has just won
knows the head first and wins again. So each message names its writer, and under contention a writer lets those go
first that wrote longer ago than it did: about one publish's time for each. Nothing breaks when one does not.
"""

from __future__ import annotations

import os
import time

ACTIVE_SECONDS = 0.3  # a writer not seen for so long is not waited for
_SLOWEST = 0.05
HEADER = b"\r\nGatebook-Attempt: "


def jitter(low: float, high: float) -> float:
    """Seconds between two bounds, so that writers that lost together do not try again together."""
    return low + (high - low) * int.from_bytes(os.urandom(4), "big") / 2**32


class Turns:
    """Who wrote lately, longest ago first, and how long one publish takes."""

    __slots__ = ("_count", "_seen", "_service", "me")

    def __init__(self) -> None:
        self.me = os.urandom(8).hex().encode()
        self._count = 0
        self._seen: dict[bytes, float] = {}
        self._service = 0.001

    def attempt(self) -> bytes:
        """A mark for one write, unique; its first part names this writer."""
        self._count += 1
        return b"%b-%d" % (self.me, self._count)

    def saw(self, headers: bytes) -> None:
        """A message with these headers was read from the stream."""
        at = headers.find(HEADER)
        if at >= 0:
            start = at + len(HEADER)
            self._move(headers[start : start + 16])

    def _move(self, writer: bytes) -> None:
        self._seen.pop(writer, None)
        self._seen[writer] = time.monotonic()

    def wrote(self, seconds: float) -> None:
        """This writer's own publish was acknowledged after `seconds`."""
        self._service += (min(seconds, _SLOWEST) - self._service) / 8
        if self._seen:
            self._move(self.me)

    def delay(self) -> float:
        """How long to let others go first, seconds; 0 where nobody else writes."""
        now = time.monotonic()
        limit = ACTIVE_SECONDS + 2 * len(self._seen) * self._service
        for writer in [writer for writer, seen in self._seen.items() if now - seen > limit]:
            del self._seen[writer]
        others = [writer for writer in self._seen if writer != self.me]
        if not others:
            self._seen.clear()
            return 0.0
        ahead = list(self._seen).index(self.me) if self.me in self._seen else 0
        return ahead * self._service + jitter(0.0, self._service / 2)
