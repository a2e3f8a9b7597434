"""Whose turn it is among the writers of a fleet's stream: they queue by courtesy, so that few lose a race.

The stream alone decides who gets a place. But writers that all try at once mostly lose, and one that has just won
knows the head first and wins again. So whoever lost says `wait ME` on the subject `gatebook.NAME.turn` (plain NATS,
stored nowhere), and whoever writes one event after the other goes on for a short turn, then says `next THEM`; whoever
paused before says it after one event. Nothing breaks when one does not keep to it, or dies: after a silence the next
in the queue tries by itself.
"""

from __future__ import annotations

import math
import os
import time

from ledger.errors import GatebookError
from ledger.nats_client import Silence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.nats_client import Link

TURN_SECONDS = 0.014  # long enough that passing it on costs little, short for 16 writers in half a second
SILENCE_SECONDS = 0.1
TRIES = 3
REPEAT_SECONDS = 0.4
FORGET_SECONDS = 1.0
PATIENCE_SECONDS = 1.0
REST_SECONDS = 0.05  # a writer that rests is called so much too late at worst
MAX_QUEUE = 1000


def jitter(low: float, high: float) -> float:
    """Seconds between two bounds, so that writers that lost together do not try again together."""
    return low + (high - low) * int.from_bytes(os.urandom(4), "big") / 2**32


class Turns:
    """This writer's place among those that wait, and its own turn."""

    def __init__(self, link: Link, subject: bytes) -> None:
        self._link = link
        self._subject = subject + b".turn"
        self._me = os.urandom(8).hex().encode()
        self._count = 0
        self._queue: dict[bytes, float] = {}
        self._ends = 0.0
        self._done = -math.inf
        self._paused = False
        self._mine = False
        self._taken = False
        self._tries = 0
        self._called = 0.0
        self._heard = 0.0
        self._calls = 0
        link.listen(self._subject, self._hear)

    def attempt(self) -> bytes:
        """A mark for one write, unique among all writers."""
        self._count += 1
        return b"%b-%d" % (self._me, self._count)

    def _hear(self, payload: bytes) -> None:
        verb, _, writer = payload.partition(b" ")
        now = time.monotonic()
        if verb == b"wait" and len(writer) == 16 and len(self._queue) < MAX_QUEUE:
            self._queue[writer] = now
        elif verb == b"next":
            self._heard = now
            self._calls += 1
            self._queue.pop(writer, None)
            if writer == self._me:
                self._mine, self._taken, self._called = True, False, now
            elif self._mine or self._ends:
                # One who heard nothing for too long, because our message takes long, took the turn: two in turn both lose.
                self._taken, self._ends = True, 0.0

    def _say(self, verb: bytes, writer: bytes, *, at_once: bool = True) -> None:
        """Courtesy only: what cannot be said is silence to the others, and no failure of a write."""
        try:
            connection = self._link.connection()
            connection.publish(self._subject, verb + b" " + writer)
            if at_once:
                connection.flush()
        except GatebookError:
            self._link.drop()

    def _waiting(self) -> bool:
        now = time.monotonic()
        for writer in [writer for writer, heard in self._queue.items() if now - heard > FORGET_SECONDS]:
            del self._queue[writer]
        self._queue.pop(self._me, None)
        return bool(self._queue)

    def begin(self) -> None:
        """A write of this writer begins."""
        self._paused = time.monotonic() - self._done > TURN_SECONDS

    def done(self) -> None:
        """A write of this writer is over, whether it came to one or was refused."""
        self._done = time.monotonic()

    def must_wait(self) -> bool:
        """Whether others wait and this writer has no turn; one that is just over is passed on: `wait` is called next."""
        now = time.monotonic()
        if not self._waiting() or now < self._ends:
            return False
        if now - self._ends < SILENCE_SECONDS:
            # Together with what `wait` says: each time that all are woken costs all of them.
            self.pass_on(at_once=False)
        self._ends = 0.0  # of one that is long over nothing is left to pass on: two in turn both lose
        return True

    def pass_on(self, *, at_once: bool = True) -> None:
        """Let the first in the queue write; nothing where nobody waits."""
        self._ends = 0.0
        if self._waiting():
            writer = next(iter(self._queue))
            del self._queue[writer]
            self._say(b"next", writer, at_once=at_once)

    def wrote(self) -> None:
        """This writer's message was acknowledged; a turn that is over by now is passed on when its next write begins."""
        now = time.monotonic()
        self._mine = False
        if self._taken:
            self._taken = False
        elif self._paused:
            self.pass_on()  # it will pause again, for all we know, and the others would wait in vain
        elif self._ends == 0.0 or (now > self._ends and not self._queue):
            self._ends = now + TURN_SECONDS

    def wait(self, when_next: Callable[[], None]) -> None:
        """Queue up until this writer is called, or nobody calls anybody, or it took too long.

        Whoever is called and loses to somebody out of turn tries again at once: a few times, and as long as the others
        leave it the turn. `when_next` is called once nobody waits before this writer, in the middle of another's turn:
        what can be read then is not read in our turn.

        Raises:
            Unavailable: the connection was lost.
        """
        self._ends = 0.0
        if self._mine and (self._tries < TRIES or time.monotonic() - self._called < SILENCE_SECONDS):
            self._tries += 1
            return
        self._mine = False
        self._tries = self._calls = 0
        began = self._heard = said = time.monotonic()
        self._say(b"wait", self._me)
        ready = False
        while not self._mine:
            ahead = self._ahead()
            half_turn = (time.monotonic() - began) / self._calls / 2 if self._calls else 0.0
            # Not when the other's turn begins: it has to read itself, from the same servers.
            reads = self._heard + half_turn if ahead == 0 and not ready else math.inf
            if time.monotonic() >= reads:
                ready = True
                when_next()
                continue
            if ahead > 1:
                # All are woken by each word, if they listen: who has long to wait hears many words at once.
                time.sleep(min((ahead - 1) * half_turn, REST_SECONDS))
            now = time.monotonic()
            silent = self._heard + SILENCE_SECONDS * (1 + ahead)
            if now > silent or now - began > PATIENCE_SECONDS:
                self._say(b"next", self._me)
                return
            if now - said > REPEAT_SECONDS:
                self._say(b"wait", self._me)
                said = now
            self._listen(max(now, min(silent, said + REPEAT_SECONDS, began + PATIENCE_SECONDS, reads)))

    def _ahead(self) -> int:
        """How many wait before this writer: its own word is heard like the others', so all hear the same order, or nearly."""
        return list(self._queue).index(self._me) if self._me in self._queue else len(self._queue)

    def _listen(self, until: float) -> None:
        try:
            self._link.hear(until + 0.001)
        except Silence:
            if not self._link.connected:
                raise

    def leave(self) -> None:
        """Pass the turn on before closing; a connection that is gone says it by silence."""
        if self._link.connected and self._ends:
            self.pass_on()
