"""Which bytes may follow a chain: the rule by which every replica of a fleet's ledger counts a message or calls it void.

A message is three lines: envelope, data, hash in hex (canonical JSON has no raw line feed). It extends the chain when
every rule of format 1 that needs no content holds (DESIGN, The log); anything else is void: it takes no seq. The rule
looks at nothing but the messages before it, so all replicas agree.
"""

from __future__ import annotations

import re

from blake3 import blake3

from ledger.canonical import MAX_SAFE, is_canonical, load
from ledger.clock import format_us, parse_us
from ledger.errors import Invalid
from ledger.event import HASH_CONTEXT, MAX_DATA, Event, Head, Origin, check_names, check_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.event import Draft

_TEXT = r'"([^"\\\x00-\x1f]+)"'
_DIGEST = r'"([0-9a-f]{64})"'
_NUMBER = r"([1-9][0-9]{0,14})"  # longer ones go the slow way, which knows the largest safe integer
# RFC 8785 puts members in this order; text with escapes goes the slow way.
_ENVELOPE = re.compile(
    r'\{"actor":' + _TEXT
    + r'(?:,"causation":' + _NUMBER + r")?"
    + r'(?:,"clock_behind":' + _NUMBER + r")?"
    + r'(?:,"content_digest":' + _DIGEST + r")?"
    + r'(?:,"correlation":' + _TEXT + r")?"
    + r',"data_digest":' + _DIGEST
    + r'(?:,"idempotency_key":' + _TEXT + r")?"
    + r',"recorded_at":' + _TEXT
    + r',"seq":' + _NUMBER
    + r',"stream":' + _TEXT
    + r',"type":' + _TEXT
    + r',"v":' + _NUMBER
    + r',"version":' + _NUMBER
    + r',"via":' + _TEXT
    + r"\}"
)  # fmt: skip
_MEMBERS = (
    "actor", "causation", "clock_behind", "content_digest", "correlation", "data_digest", "idempotency_key",
    "recorded_at", "seq", "stream", "type", "v", "version", "via",
)  # fmt: skip
_NUMBERS = {"causation", "clock_behind", "seq", "v", "version"}
_OPTIONAL = {"causation", "clock_behind", "content_digest", "correlation", "idempotency_key"}


class Void(Exception):
    """The message is no extension of the chain; the text says why."""


def message_of(event: Event) -> bytes:
    """The message that carries `event`: all of it but salt and content."""
    return b"%b\n%b\n%b" % (event.envelope, event.data, event.hash.hex().encode())


def _slow_fields(envelope: bytes) -> tuple[str | None, ...]:
    if not is_canonical(envelope, floats=False):
        raise Void("the envelope is not a canonical JSON object")
    members = load(envelope)
    found: list[str | None] = []
    for name in _MEMBERS:
        value = members.pop(name, None)
        wanted = int if name in _NUMBERS else str
        if value is None and name in _OPTIONAL:
            found.append(None)
        elif type(value) is not wanted or (wanted is int and value <= 0):  # type: ignore[operator]
            raise Void(f"envelope: {name} is missing or of another kind")
        else:
            found.append(str(value))
    if members:
        raise Void(f"envelope: unknown member {min(members)[:40]}")
    if any(
        digest is not None and re.fullmatch("[0-9a-f]{64}", digest) is None for digest in (found[3], found[5])
    ):
        raise Void("envelope: a digest that is not 64 lower-case hex digits")
    return tuple(found)


def _fields(envelope: bytes) -> tuple[str | None, ...]:
    try:
        match = _ENVELOPE.fullmatch(envelope.decode())
    except UnicodeDecodeError:
        raise Void("the envelope is not UTF-8") from None
    return _slow_fields(envelope) if match is None else match.groups()


_origins: dict[tuple[str, str], None] = {}


def check_texts(
    actor: str, via: str, stream: str, type: str, correlation: str | None, key: str | None
) -> None:
    """Raise Void unless these may stand in an envelope."""
    try:
        check_names(stream, type)
        if (actor, via) not in _origins:
            Origin(actor, via)
            if len(_origins) > 1000:
                _origins.clear()
            _origins[(actor, via)] = None
        if correlation is not None:
            check_text(correlation, "correlation")
        if key is not None:
            check_text(key, "idempotency key")
    except Invalid as error:
        raise Void(str(error)) from None


def check_sealed(drafts: Sequence[Draft], head: Head, clock: int) -> None:
    """Hold `drafts`, sealed after `head` at `clock`, against what neither `Draft` nor `seal` has checked of the rule.

    What they made follows by number, version, time and hash, with names and texts that may stand there; their keys
    are new (`ledger.store.replayed`).

    Raises:
        Void: a replica would not count one of them.
    """
    for seq, draft in enumerate(drafts, head.seq + 1):
        if (draft.type == "ledger.opened") != (seq == 1) or (seq == 1 and draft.stream != "ledger"):
            raise Void("ledger.opened is the first event, and only that")
        for name, value in (("v", draft.v), ("causation", draft.causation)):
            if value is not None and (type(value) is not int or not 0 < value <= MAX_SAFE):
                raise Void(f"envelope: {name} is missing or of another kind")
        if not is_canonical(draft.data, floats=draft.type.startswith("x.")):
            raise Void("data is not a canonical JSON object")
    if head.recorded_us + len(drafts) - clock > MAX_SAFE:
        raise Void("envelope: clock_behind is too large")


def _never(_data: bytes) -> bool:
    return False


class Chain:
    """The end of a chain, as far as the next event must fit it; `extend` moves it on."""

    __slots__ = (
        "_has_key",
        "_hasher",
        "_plain",
        "bare",
        "hash",
        "keys",
        "recorded_at",
        "seq",
        "types",
        "versions",
        "versions_of",
    )

    def __init__(self, head: Head, versions_of: Callable[[str], int], has_key: Callable[[str], bool]) -> None:
        """After `head`; the callables say what stands up to there."""
        self._hasher = blake3(derive_key_context=HASH_CONTEXT)
        self._plain: Callable[[bytes], bool] = _never
        self.bare = True
        """False once an event came to which more belongs than its row: a content, or what it erases."""
        self.seq = head.seq
        self.hash = head.hash
        self.recorded_at = format_us(head.recorded_us) if head.seq else ""
        self.versions_of = versions_of
        self._has_key = has_key
        self.versions: dict[str, int] = {}
        self.keys: set[str] = set()
        self.types: set[str] = set()

    def expect_many(self) -> None:
        """Judge plain data at C speed from now on; costs an import of 25 ms."""
        from ledger.lines import is_plain

        self._plain = is_plain

    def version(self, stream: str) -> int:
        """The version of `stream` here, 0 when it has no event."""
        found = self.versions.get(stream)
        return self.versions_of(stream) if found is None else found

    def has_key(self, key: str) -> bool:
        """Whether an event up to here carries this idempotency key."""
        return key in self.keys or self._has_key(key)

    def extend(self, body: bytes) -> Event:
        """The event that `body` carries, when it may follow; salt and content are not in it.

        Raises:
            Void: it may not follow; the chain stays as it was.
        """
        parts = body.split(b"\n")
        if len(parts) != 3:
            raise Void("not a message of three lines")
        envelope, data, digest = parts
        # hash = BLAKE3-derive_key(previous hash || envelope), see ledger.event.chain_hash
        self._hasher.reset()
        hash = self._hasher.update(self.hash + envelope).digest()
        if hash.hex().encode() != digest:
            raise Void(f"its hash does not follow event {self.seq}")
        (
            actor,
            causation,
            _,
            content_digest,
            correlation,
            data_digest,
            key,
            recorded_at,
            seq,
            stream,
            type,
            _,
            version,
            via,
        ) = _fields(envelope)
        assert actor is not None
        assert via is not None
        assert stream is not None
        assert type is not None
        assert recorded_at is not None
        if seq != str(self.seq + 1):
            raise Void(f"seq {seq} after {self.seq}")
        if (type == "ledger.opened") != (self.seq == 0) or (self.seq == 0 and stream != "ledger"):
            raise Void("ledger.opened is the first event, and only that")
        check_texts(actor, via, stream, type, correlation, key)
        if version != str(self.version(stream) + 1):
            raise Void(f"version {version} of {stream} after {self.version(stream)}")
        if causation is not None and int(causation) > self.seq:
            raise Void("causation is no earlier event")
        self._check_time(recorded_at)
        if key is not None and self.has_key(key):
            raise Void("its idempotency key was used before")
        if len(data) > MAX_DATA or blake3(data).hexdigest() != data_digest:
            raise Void("data and data_digest differ")
        if not self._plain(data) and not is_canonical(data, floats=type.startswith("x.")):
            raise Void("data is not a canonical JSON object")
        self.seq += 1
        self.hash = hash
        self.recorded_at = recorded_at
        self.bare = self.bare and content_digest is None and type != "ledger.redacted"
        self.versions[stream] = int(version)
        if key is not None:
            self.keys.add(key)
        return Event(self.seq, envelope, data, None, None, hash)

    def extend_all(self, envelopes: list[bytes], datas: list[bytes], hashes: list[bytes]) -> bool:
        """`extend` with many events that are surely right; False, and nothing has happened, when one may not be."""
        from ledger.plain import extend

        return extend(self, envelopes, datas, hashes)

    def _check_time(self, recorded_at: str) -> None:
        if recorded_at <= self.recorded_at:
            raise Void("recorded_at does not increase")
        if recorded_at[:19] != self.recorded_at[:19] or len(recorded_at) != 27:
            try:
                parse_us(recorded_at)
            except ValueError:
                raise Void("recorded_at is no time") from None
        elif (
            recorded_at[19] != "."
            or recorded_at[26] != "Z"
            or not (recorded_at.isascii() and recorded_at[20:26].isdigit())
        ):
            raise Void("recorded_at is no time")
