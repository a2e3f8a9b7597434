"""The members of an envelope, read at once by msgspec: for whoever goes through many events, or folds some.

`ledger.event.Event` reads them without msgspec, for the calls that do without.
"""

from __future__ import annotations

from projections import lean  # noqa: F401 - before msgspec

# isort: split
import msgspec

from ledger.clock import parse_us
from ledger.errors import Tampered


class Members(msgspec.Struct, gc=False, kw_only=True):
    """An envelope's members as they stand (DESIGN, format 1); absent optional ones None, `clock_behind` 0."""

    actor: str
    recorded_at: str
    seq: int
    stream: str
    type: str
    v: int
    version: int
    via: str
    causation: int | None = None
    clock_behind: int = 0
    content_digest: str | None = None
    correlation: str | None = None
    idempotency_key: str | None = None


_read = msgspec.json.Decoder(Members).decode
_second: tuple[str, int] = ("", 0)  # the last one that was parsed: events that follow each other share it


def members_of(seq: int, envelope: bytes) -> Members:
    """The members of event `seq`.

    Raises:
        Tampered: the stored bytes are no envelope at all; whether they are the recorded ones, `verify` says.
    """
    try:
        return _read(envelope)
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError):
        raise Tampered(
            f"event {seq}: what is stored is not its envelope: run `gatebook verify`", seq=seq
        ) from None


def clock_of(members: Members) -> int:
    """The clock as read when the event was recorded, us: `recorded_at` less `clock_behind`.

    Raises:
        Tampered: its `recorded_at` is not a time as format 1 writes it.
    """
    global _second  # noqa: PLW0603 - a one-entry cache
    text = members.recorded_at
    known, us = _second
    micro = text[20:26]
    if text[:20] != known or text[26:] != "Z" or not (micro.isascii() and micro.isdigit()):
        try:
            us = parse_us(text)
        except (ValueError, TypeError):
            raise Tampered(
                f"event {members.seq}: its recorded_at is not a time: run `gatebook verify`", seq=members.seq
            ) from None
        us -= us % 1_000_000
        _second = (text[:20], us)
    return us + int(micro) - members.clock_behind
