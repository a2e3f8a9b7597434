"""What evolve and admission see: a decoded event, and the law that holds while it is judged.

Admission is the lawful order of an aggregate. The same function judges a draft inside the write
transaction and every event of a whole log in `replay`, so it sees nothing but facts and folded states.
"""

from __future__ import annotations

from projections import lean  # noqa: F401 - before msgspec

# isort: split
from msgspec import Struct

from ledger.clock import format_us
from ledger.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class Fact(Struct, eq=False, gc=False):
    """One event, decoded: a draft about to be recorded, or one read back. `data` is the type's struct, upcast."""

    seq: int
    stream: str
    version: int
    type: str
    data: Any
    clock: int
    actor: str
    via: str
    correlation: str | None = None
    causation: int | None = None
    content: bytes | None = None
    content_digest: str | None = None


class Unlawful(Refused):
    """Admission refused an event: recorded as `admission.refused` when it was a draft, `not-lawful` in replay."""

    def __init__(
        self, message: str, fact: Fact, reason: str, *, record_as: str = "admission.refused"
    ) -> None:
        super().__init__(message)
        self.fact = fact
        self.reason = reason
        self.record_as = record_as


class Law:
    """What admission may look at besides its own stream's state.

    `state(stream)` is another stream's folded state at this point (an aggregate declares which it reads).
    `void_before`: everything open that was recorded before this seq is void, because the ledger was restored
    (`ledger.restored`); 0 when it never was. `skipped` counts checks that a redaction made impossible.
    """

    __slots__ = ("_states", "skipped", "void_before")

    def __init__(self, states: Callable[[str], Any], void_before: int = 0) -> None:
        self._states = states
        self.void_before = void_before
        self.skipped = 0

    def state(self, stream: str) -> Any:
        """The folded state of `stream` as of this moment."""
        return self._states(stream)

    def is_void(self, seq: int) -> bool:
        """Whether an open claim, receipt, probe or approval recorded at `seq` was voided by a restore."""
        return seq < self.void_before

    def day(self, clock: int) -> str:
        """The UTC date of a clock reading."""
        return format_us(clock)[:10]

    def refuse(
        self, fact: Fact, reason: str, detail: str = "", *, record_as: str = "admission.refused"
    ) -> NoReturn:
        """Refuse `fact`: `reason` is a short fixed text (it is recorded), `detail` may hold values (it is only shown)."""
        raise Unlawful(
            f"{fact.type} may not follow in {fact.stream}: {detail or reason}",
            fact,
            reason,
            record_as=record_as,
        )


def digest_text(text: str, fact: Fact, size: int = 64) -> None:
    """Refuse unless `text` is a lower-case hex digest of `size` characters."""
    if len(text) != size or text.strip("0123456789abcdef"):
        raise Unlawful(
            f"{fact.type}: a digest must be {size} lower-case hex characters", fact, "malformed-digest"
        )
