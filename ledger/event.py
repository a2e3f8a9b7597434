"""The event: what a caller drafts, what is sealed into the chain, what is read back (DESIGN, The log).

The envelope's members stand in JCS order in one place only, `_envelope`.
"""

from __future__ import annotations

import os

from blake3 import blake3

from ledger.canonical import load, quote
from ledger.clock import DAY, JUMP_LIMIT, LATEST_CLOCK, SECOND, format_second, format_us, parse_us
from ledger.errors import Conflict, Invalid, Refused, Tampered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HASH_CONTEXT = "gatebook 2026 event v1"
ZERO_HASH = bytes(32)
SALT_BYTES = 16
MAX_DATA = 64 * 1024
MAX_CONTENT = 512 * 1024  # more lies in ARTIFACTS/<content digest>
ARTIFACTS = "artifacts"
MAX_ID = 200
MAX_KIND = 64
MAX_TYPE = 128
_LOWER = "abcdefghijklmnopqrstuvwxyz"
_KIND = _LOWER + "0123456789-"
_TYPE = _LOWER + "0123456789_-"
_checked: dict[str, str] = {}


def check_text(value: str, what: str, limit: int = MAX_ID) -> str:
    """`value` when it is 1 to `limit` bytes of NFC text without control characters, else Invalid."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid(f"{what}: not UTF-8 text") from None
    if not 1 <= size <= limit:
        raise Invalid(f"{what}: {size} bytes; 1 to {limit} are allowed")
    if not value.isprintable() and any(c < " " or "\x7f" <= c <= "\x9f" for c in value):
        raise Invalid(f"{what}: control characters are not allowed")
    if not value.isascii():
        import unicodedata

        if not unicodedata.is_normalized("NFC", value):
            raise Invalid(f"{what}: must be in Unicode normal form C")
    return value


def _check_stream(stream: str) -> None:
    kind, slash, name = stream.partition("/")
    if stream == "ledger":
        return
    if not slash:
        raise Invalid(f"stream {stream[:60]!r}: must be KIND/ID")
    if not kind or kind[0] not in _LOWER or kind.strip(_KIND):
        raise Invalid(f"stream {stream[:60]!r}: the kind before / must match [a-z][a-z0-9-]*")
    if len(kind) > MAX_KIND:
        raise Invalid(
            f"stream {stream[:60]!r}: the kind has {len(kind)} characters; 1 to {MAX_KIND} are allowed"
        )
    check_text(name, f"stream {kind}/…: the id")


def _check_type(name: str) -> None:
    parts = name.split(".")
    if len(parts) < 2 or any(not part or part[0] not in _LOWER or part.strip(_TYPE) for part in parts):
        raise Invalid(f"type {name[:60]!r}: must be dotted lower-case words, like x.note.added")
    if len(name) > MAX_TYPE:
        raise Invalid(f"type {name[:60]!r}: {len(name)} characters; {MAX_TYPE} at most")


def check_names(stream: str, name: str) -> str:
    """Raise Invalid unless `stream` is `kind/id` (or `ledger`) and `name` a dotted event type (DESIGN).

    Returns the envelope's members of both, `"stream":…,"type":…`, which a batch needs again and again.
    """
    both = f"{stream}\0{name}"
    found = _checked.get(both)
    if found is None:
        _check_stream(stream)
        _check_type(name)
        if len(_checked) > 10_000:
            _checked.clear()
        found = _checked[both] = f'"stream":{quote(stream)},"type":"{name}"'
    return found


class Draft:
    """An event as a caller wants it recorded; the ledger adds number, time, actor, hash.

    `data` is canonical JSON (see `ledger.canonical`); `content` any bytes; `expect_version` the stream's
    version before this event, or None for any.
    """

    __slots__ = ("causation", "content", "correlation", "data", "expect_version", "idempotency_key", "names", "plain", "salt", "stream", "type", "v")  # fmt: skip

    def __init__(
        self,
        stream: str,
        type: str,
        data: bytes = b"{}",
        *,
        v: int = 1,
        content: bytes | None = None,
        correlation: str | None = None,
        causation: int | None = None,
        idempotency_key: str | None = None,
        expect_version: int | None = None,
    ) -> None:
        self.names = check_names(stream, type)
        if len(data) > MAX_DATA:
            raise Invalid(
                f"data of {type}: {len(data)} bytes; {MAX_DATA} at most, put documents into content"
            )
        if correlation is not None:
            check_text(correlation, "correlation")
        if idempotency_key is not None:
            check_text(idempotency_key, "idempotency key")
        self.stream = stream
        self.type = type
        self.data = data
        self.v = v
        self.content = content
        self.correlation = correlation
        self.causation = causation
        self.idempotency_key = idempotency_key
        self.expect_version = expect_version
        self.plain = content is None and correlation is None and causation is None and idempotency_key is None
        """Whether its envelope has none of the members that a caller may add: nothing of them changes later."""
        self.salt: bytes | None = None
        """The content's salt, when a store drew it before sealing; else `seal` draws one."""


class Event:
    """One recorded event: the six stored columns, and the envelope's members as attributes.

    `content` is None where there is none, where it was redacted, and where it lies in an artifact
    (`content_digest` says which: salt stays for an artifact, goes with a redaction).
    """

    __slots__ = ("_members", "content", "data", "envelope", "hash", "salt", "seq")

    def __init__(
        self, seq: int, envelope: bytes, data: bytes, salt: bytes | None, content: bytes | None, hash: bytes
    ) -> None:
        self.seq = seq
        self.envelope = envelope
        self.data = data
        self.salt = salt
        self.content = content
        self.hash = hash
        self._members: dict[str, object] | None = None

    @property
    def members(self) -> dict[str, object]:
        """The envelope as an object.

        Raises:
            Tampered: the stored bytes are not an envelope at all; whether they are the recorded ones, `verify` says.
        """
        if self._members is None:
            try:
                members = load(self.envelope)
            except Exception:  # noqa: BLE001 - whatever it is, it is not what this program wrote
                members = None
            if not isinstance(members, dict):
                raise self._damaged("what is stored is not its envelope")
            self._members = members
        return self._members

    def _damaged(self, how: str) -> Tampered:
        return Tampered(f"event {self.seq}: {how}: run `gatebook verify`", seq=self.seq)

    def _member(self, name: str) -> object:
        try:
            return self.members[name]
        except KeyError:
            raise self._damaged(f"its envelope has no {name}") from None

    @property
    def stream(self) -> str:
        """`kind/id`, or `ledger`."""
        return self._member("stream")  # type: ignore[return-value]

    @property
    def version(self) -> int:
        """Its place in its stream, from 1."""
        return self._member("version")  # type: ignore[return-value]

    @property
    def type(self) -> str:
        """The event's type."""
        return self._member("type")  # type: ignore[return-value]

    @property
    def v(self) -> int:
        """The type's schema version."""
        return self._member("v")  # type: ignore[return-value]

    @property
    def actor(self) -> str:
        """Who claims to have written it, `kind:id`."""
        return self._member("actor")  # type: ignore[return-value]

    @property
    def via(self) -> str:
        """The command that wrote it."""
        return self._member("via")  # type: ignore[return-value]

    @property
    def recorded_at(self) -> str:
        """RFC 3339, UTC, microseconds."""
        return self._member("recorded_at")  # type: ignore[return-value]

    @property
    def recorded_us(self) -> int:
        """`recorded_at` in microseconds since 1970."""
        try:
            return parse_us(self.recorded_at)
        except (ValueError, TypeError):
            raise self._damaged("its recorded_at is not a time") from None

    @property
    def clock_behind(self) -> int:
        """Microseconds that the clock was behind `recorded_at`."""
        return self.members.get("clock_behind", 0)  # type: ignore[return-value]

    @property
    def clock(self) -> int:
        """The clock as read when it was recorded, us: what admission and replay judge by."""
        return self.recorded_us - self.clock_behind

    @property
    def correlation(self) -> str | None:
        """What it belongs to."""
        return self.members.get("correlation")  # type: ignore[return-value]

    @property
    def causation(self) -> int | None:
        """The earlier event that caused it."""
        return self.members.get("causation")  # type: ignore[return-value]

    @property
    def idempotency_key(self) -> str | None:
        """The caller's key, unique in the ledger."""
        return self.members.get("idempotency_key")  # type: ignore[return-value]

    @property
    def content_digest(self) -> str | None:
        """BLAKE3 of salt and content, hex; None where there never was content."""
        return self.members.get("content_digest")  # type: ignore[return-value]

    @property
    def redacted(self) -> bool:
        """Whether there was content that has been erased."""
        return self.content_digest is not None and self.salt is None

    @property
    def in_artifact(self) -> bool:
        """Whether the content lies in `artifacts/<content digest>`."""
        return self.content_digest is not None and self.salt is not None and self.content is None


class Head:
    """The last event of a ledger: its number, hash and times; `Head()` before the first."""

    __slots__ = ("clock", "hash", "recorded_us", "seq")

    def __init__(self, seq: int = 0, hash: bytes = ZERO_HASH, recorded_us: int = -1, clock: int = -1) -> None:
        self.seq = seq
        self.hash = hash
        self.recorded_us = recorded_us
        self.clock = clock


def head_of(event: Event) -> Head:
    """The head when `event` is the last."""
    return Head(event.seq, event.hash, event.recorded_us, event.clock)


def chain_hash(previous: bytes, envelope: bytes) -> bytes:
    """The event's hash: BLAKE3 derive_key, context HASH_CONTEXT, over previous hash (32 bytes) then envelope."""
    return blake3(previous + envelope, derive_key_context=HASH_CONTEXT).digest()


def content_digest(salt: bytes, content: bytes) -> str:
    """BLAKE3 over salt then content, hex."""
    return blake3(salt + content).hexdigest()


class Origin:
    """Who writes and by what command: the `actor` and `via` members, checked once."""

    __slots__ = ("actor", "actor_json", "via", "via_json")

    def __init__(self, actor: str, via: str) -> None:
        kind, colon, name = actor.partition(":")
        if not colon or not kind or kind[0] not in _LOWER or kind.strip(_KIND):
            raise Invalid(f"actor {actor[:60]!r}: must be KIND:ID, like cli:name")
        check_text(name, "actor: the id")
        check_text(via, "via")
        self.actor = actor
        self.via = via
        self.actor_json = quote(actor)
        self.via_json = quote(via)


def _optional(draft: Draft, behind: int, content: str | None) -> str:
    # RFC 8785: members by name; absent optional ones are left out, never null.
    text = f',"causation":{draft.causation}' if draft.causation is not None else ""
    if behind:
        text += f',"clock_behind":{behind}'
    if content is not None:
        text += f',"content_digest":"{content}"'
    if draft.correlation is not None:
        text += f',"correlation":{quote(draft.correlation)}'
    return text


def _later(head: Head, clock: int, clock_jump: bool) -> None:
    if not 0 <= clock < LATEST_CLOCK:
        raise Refused(f"the clock says {format_us(clock)}, which cannot be: set the clock")
    if head.clock - clock > JUMP_LIMIT and not clock_jump:
        hours = (head.clock - clock) * 24 // DAY
        raise Refused(
            f"the clock says {format_us(clock)}, {hours} h before event {head.seq}: set the clock that is wrong; if it was "
            f"that of event {head.seq}, `gatebook append --clock-jump` records any event, and others can follow"
        )


_hashers: list[tuple[blake3, blake3]] = []


def _take_hashers() -> tuple[blake3, blake3]:
    """A hasher of data and one of the chain that no other thread uses; making them costs more than a hash."""
    try:
        return _hashers.pop()
    except IndexError:
        return blake3(), blake3(derive_key_context=HASH_CONTEXT)


def seal(
    drafts: Sequence[Draft],
    head: Head,
    versions: Callable[[str], int],
    origin: Origin,
    clock: int,
    *,
    clock_jump: bool = False,
    known: dict[str, int] | None = None,
) -> list[Event]:
    """Number, date and hash `drafts` after `head`; pure but for the salts.

    `versions` gives a stream's current version (0 when new); `clock` is the clock as read, us.
    `recorded_at` is the clock, or one microsecond after the last event when that is later.
    `known`, when given, has the versions of the streams afterwards.

    Raises:
        Conflict: a draft's expected version is not the stream's.
        Refused: the clock is over 24 h behind the head's clock, without `clock_jump`.
        Invalid: a causation that is not an earlier event.
    """
    _later(head, clock, clock_jump)
    seq, previous, last = head.seq, head.hash, head.recorded_us
    hashers = _take_hashers()
    data_hash, chain = hashers
    begin, end = f'{{"actor":{origin.actor_json}', f',"via":{origin.via_json}}}'
    known = {} if known is None else known
    second, stamp = -SECOND, ""
    sealed: list[Event] = []
    for draft in drafts:
        stream, data = draft.stream, draft.data
        version = known[stream] if stream in known else versions(stream)
        if draft.expect_version is not None and draft.expect_version != version:
            raise Conflict(
                f"stream {stream} is at version {version}, not {draft.expect_version}: read it again, then decide"
            )
        seq += 1
        known[stream] = version = version + 1
        last = clock if clock > last else last + 1
        if not second <= last < second + SECOND:  # a batch shares its second
            stamp = format_second(last // SECOND)
            second = last - last % SECOND
        key, salt = "", None
        if draft.plain:
            optional = f',"clock_behind":{last - clock}' if last != clock else ""
        else:
            if draft.causation is not None and not 1 <= draft.causation < seq:
                raise Invalid(f"causation {draft.causation}: must be an earlier event, 1 to {seq - 1}")
            digest = None
            if draft.content is not None:
                salt = draft.salt or os.urandom(SALT_BYTES)
                digest = content_digest(salt, draft.content)
            optional = _optional(draft, last - clock, digest)
            if draft.idempotency_key is not None:
                key = f',"idempotency_key":{quote(draft.idempotency_key)}'
        data_hash.reset()
        data_hash.update(data)
        # The members in JCS order; the digests cover data and content. Both forms below cost half of `hexdigest` and `:06d`.
        envelope = (
            f'{begin}{optional},"data_digest":"{data_hash.digest().hex()}"{key},"recorded_at":"{stamp}.{str(last - second).zfill(6)}Z"'
            f',"seq":{seq},{draft.names},"v":{draft.v},"version":{version}{end}'
        ).encode()
        # hash = BLAKE3-derive_key(previous hash || envelope), as chain_hash
        chain.reset()
        chain.update(previous + envelope)
        previous = chain.digest()
        sealed.append(Event(seq, envelope, data, salt, draft.content, previous))
    _hashers.append(hashers)
    return sealed
