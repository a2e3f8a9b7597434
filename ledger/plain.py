"""Plain data and whole messages judged at C speed: what passes is surely good, whatever else needs a careful look.

Plain JSON is ASCII without floats, with safe integers only, a few levels deep. msgspec writes what it read with sorted
members: for such data, and only for such, that is the RFC 8785 form, so one comparison judges it. Envelopes are read
into a struct whose fields stand in JCS order. Whatever does not pass needs `ledger.canonical` and `Chain.extend`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from ledger.canonical import MAX_SAFE
from ledger.event import HASH_CONTEXT, MAX_DATA
from ledger.extension import Void, check_texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.extension import Chain

DEPTH = 4


def _plain_type(depth: int) -> Any:
    scalar = Annotated[int, Meta(ge=-MAX_SAFE, le=MAX_SAFE)] | str | bool | None
    below: Any = scalar
    for _ in range(depth):
        below = scalar | list[below] | dict[str, below]
    return dict[str, below]


_read = msgspec.json.Decoder(_plain_type(DEPTH)).decode
_write = msgspec.json.Encoder(order="sorted").encode
_read_lines = msgspec.json.Decoder(_plain_type(DEPTH)).decode_lines
_write_sorted_lines = msgspec.json.Encoder(order="sorted").encode_lines
_write_lines = msgspec.json.Encoder().encode_lines
_is_digest = re.compile("[0-9a-f]{64}").fullmatch
_Count = Annotated[int, Meta(ge=1, le=MAX_SAFE)]


class _Envelope(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False, kw_only=True):
    """The envelope's members in JCS order, so that encoding one gives its canonical bytes (DESIGN, format 1)."""

    actor: str
    causation: _Count | None = None
    clock_behind: Annotated[int, Meta(ge=0, le=MAX_SAFE)] = 0
    content_digest: str | None = None
    correlation: str | None = None
    data_digest: str
    idempotency_key: str | None = None
    recorded_at: Annotated[datetime, Meta(tz=True)]
    seq: _Count
    stream: str
    type: str
    v: _Count
    version: _Count
    via: str


_read_envelopes = msgspec.json.Decoder(_Envelope).decode_lines


def is_plain(data: bytes) -> bool:
    """True when `data` is a plain JSON object in its canonical bytes; False says nothing."""
    if not data.isascii():
        return False
    try:
        return _write(_read(data)) == data
    except msgspec.MsgspecError:
        return False


def extend(chain: Chain, envelopes: list[bytes], datas: list[bytes], hashes: list[bytes]) -> bool:
    """Move `chain` on by events of these envelopes, data and hashes (64 hex digits).

    All of them, as `Chain.extend` does it one by one; or False, when one is not surely good: then nothing has happened.
    """
    if chain.seq == 0:
        return False
    text, data = b"\n".join(envelopes), b"\n".join(datas)
    try:
        read = _read_envelopes(text)
        if len(read) != len(envelopes) or _write_lines(read) != text + b"\n":
            return False
        # Equal text in as many lines means equal lines.
        values = _read_lines(data)
        if len(values) != len(datas) or not data.isascii() or _write_sorted_lines(values) != data + b"\n":
            return False
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    made = _chain(chain.hash, envelopes)
    if b"".join(made).hex().encode() != b"".join(hashes) or len(max(datas, key=len)) > MAX_DATA:
        return False
    try:
        versions = _fits(chain, read, datas)
    except (Void, ValueError):
        return False
    if versions is None:
        return False
    chain.seq += len(read)
    chain.hash = made[-1]
    chain.recorded_at = read[-1].recorded_at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    chain.versions.update(versions)
    chain.keys.update([key for envelope in read if (key := envelope.idempotency_key) is not None])
    return True


def _chain(previous: bytes, envelopes: list[bytes]) -> list[bytes]:
    """The hashes of events of these envelopes after the one with the hash `previous`."""
    made = []
    hasher = blake3(derive_key_context=HASH_CONTEXT)
    reset, update, digest = hasher.reset, hasher.update, hasher.digest
    for envelope in envelopes:
        # hash = BLAKE3-derive_key(previous hash || envelope), see ledger.event.chain_hash
        reset()
        update(previous + envelope)
        previous = digest()
        made.append(previous)
    return made


def _fits(chain: Chain, read: list[_Envelope], datas: list[bytes]) -> dict[str, int] | None:
    """The versions of the streams after these events when each may follow the one before it; None when one may not."""
    hasher = blake3()
    reset, update, digest = hasher.reset, hasher.update, hasher.digest
    known, types = chain.versions, chain.types
    versions: dict[str, int] = {}
    keys: set[str] = set()
    seq = chain.seq
    recorded = datetime.fromisoformat(chain.recorded_at)
    actor = via = ""
    for envelope, data in zip(read, datas, strict=True):
        seq += 1
        now, stream, name, key = (
            envelope.recorded_at,
            envelope.stream,
            envelope.type,
            envelope.idempotency_key,
        )
        reset()
        update(data)
        if envelope.data_digest != digest().hex() or envelope.seq != seq or now <= recorded:
            return None
        if now.microsecond == 0 or now.tzinfo is not UTC:
            return None  # msgspec leaves .000000 out and takes other zones, format 1 does not
        recorded = now
        version = versions.get(stream) or known.get(stream)
        if (
            version is None
            or name not in types
            or envelope.actor != actor
            or envelope.via != via
            or key is not None
            or envelope.correlation is not None
        ):
            actor, via = envelope.actor, envelope.via
            check_texts(actor, via, stream, name, envelope.correlation, key)
            types.add(name)
            version = chain.version(stream) if version is None else version
        if envelope.version != version + 1:
            return None
        if name == "ledger.opened":
            return None
        if name == "ledger.redacted":
            chain.bare = False
        versions[stream] = version + 1
        if envelope.causation is not None and envelope.causation >= seq:
            return None
        if envelope.content_digest is not None:
            if not _is_digest(envelope.content_digest):
                return None
            chain.bare = False
        if key is not None:
            if key in keys or chain.has_key(key):
                return None
            keys.add(key)
    return versions
