"""Many envelopes and their data judged at C speed: what passes surely has format 1's form, whatever else needs a careful look.

msgspec reads each envelope into a struct whose fields stand in JCS order, and plain data into dictionaries that it
writes with sorted members: for such bytes, and only for such, that is the RFC 8785 form, so that one comparison of
bytes judges names, order, types and spelling. Plain data is ASCII without floats, with safe integers only, a few levels
deep. Verification and a fleet's replicas judge by this alone what they do not judge one by one.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from ledger.canonical import MAX_SAFE
from ledger.event import HASH_CONTEXT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

DEPTH = 4


class Envelope(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False, kw_only=True):
    """The envelope's members in JCS order, so that encoding one gives its canonical bytes (DESIGN, format 1)."""

    actor: str
    causation: int | None = None
    clock_behind: Annotated[int, Meta(ge=0, le=MAX_SAFE)] = 0
    content_digest: str | None = None
    correlation: str | None = None
    data_digest: str
    idempotency_key: str | None = None
    recorded_at: Annotated[datetime, Meta(tz=True)]
    seq: int
    stream: str
    type: str
    v: Annotated[int, Meta(ge=-MAX_SAFE, le=MAX_SAFE)]
    version: int
    via: str


def _plain(depth: int) -> Any:
    scalar = Annotated[int, Meta(ge=-MAX_SAFE, le=MAX_SAFE)] | str | bool | None
    below: Any = scalar
    for _ in range(depth):
        below = scalar | list[below] | dict[str, below]
    return dict[str, below]


read_envelope = msgspec.json.Decoder(Envelope).decode
write_envelope = msgspec.json.Encoder().encode
_read_envelopes = msgspec.json.Decoder(Envelope).decode_lines
_write_envelopes = msgspec.json.Encoder().encode_lines
_plain_data = msgspec.json.Decoder(_plain(DEPTH))
_sorted = msgspec.json.Encoder(order="sorted")


def is_plain(data: bytes) -> bool:
    """True when `data` is a plain JSON object in its canonical bytes; False says nothing."""
    if not data.isascii():
        return False
    try:
        return _sorted.encode(_plain_data.decode(data)) == data
    except msgspec.MsgspecError:
        return False


def read(raws: Sequence[bytes], datas: Sequence[bytes]) -> list[Envelope] | None:
    """The envelopes in `raws` when each is canonical, and each of `datas` too; None says nothing.

    A newline stands in canonical JSON nowhere, so that equal text of as many lines as cells means equal cells, not
    only equal sums of them. Whether names, numbers and digests are right is not judged here.
    """
    count = len(raws)
    try:
        text = b"\n".join((*raws, b""))
        envelopes = _read_envelopes(text)
        if len(envelopes) != count or _write_envelopes(envelopes) != text:
            return None
        for envelope in envelopes:
            # msgspec leaves .000000 out, format 1 does not; and it takes any zone, which it writes as Z only when it is UTC.
            recorded = envelope.recorded_at
            if not recorded.microsecond or recorded.tzinfo is not UTC:
                return None
        text = b"\n".join((*datas, b""))
        values = _plain_data.decode_lines(text)
        if len(values) != count or not text.isascii() or _sorted.encode_lines(values) != text:
            return None
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError):
        return None
    return envelopes


def hashes(previous: bytes, raws: Sequence[bytes], datas: Sequence[bytes]) -> tuple[list[bytes], str]:
    """The hashes of events of these envelopes after the one with the hash `previous`, and the digests of their data, a line each."""
    chain, data_hash = blake3(derive_key_context=HASH_CONTEXT), blake3()
    chain_reset, chain_update, chain_digest = chain.reset, chain.update, chain.digest
    data_reset, data_update, data_digest = data_hash.reset, data_hash.update, data_hash.digest
    made, digests = [], []
    for raw, data in zip(raws, datas, strict=True):
        # hash = BLAKE3-derive_key(previous hash || envelope), see ledger.event.chain_hash
        chain_reset()
        chain_update(previous + raw)
        previous = chain_digest()
        made.append(previous)
        data_reset()
        data_update(data)
        digests.append(data_digest())
    return made, b"".join(digests).hex("\n", blake3.digest_size)
