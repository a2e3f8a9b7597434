"""Whole messages judged at C speed: what passes surely extends the chain, whatever else needs `Chain.extend`."""

from __future__ import annotations

import re
from datetime import datetime

from ledger import lines
from ledger.event import MAX_DATA
from ledger.extension import Void, check_texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.extension import Chain

_is_digest = re.compile("[0-9a-f]{64}").fullmatch


def extend(chain: Chain, envelopes: list[bytes], datas: list[bytes], hashes: list[bytes]) -> bool:
    """Move `chain` on by events of these envelopes, data and hashes (64 hex digits).

    All of them, as `Chain.extend` does it one by one; or False, when one is not surely good: then nothing has happened.
    """
    if chain.seq == 0:
        return False
    read = lines.read(envelopes, datas)
    if read is None or len(max(datas, key=len)) > MAX_DATA:
        return False
    made, digests = lines.hashes(chain.hash, envelopes, datas)
    if b"".join(made).hex().encode() != b"".join(hashes):
        return False
    if digests != "\n".join([envelope.data_digest for envelope in read]):
        return False
    try:
        versions = _fits(chain, read)
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


def _fits(chain: Chain, read: list[lines.Envelope]) -> dict[str, int] | None:
    """The versions of the streams after these events when each may follow the one before it; None when one may not."""
    known, types = chain.versions, chain.types
    versions: dict[str, int] = {}
    keys: set[str] = set()
    seq = chain.seq
    recorded = datetime.fromisoformat(chain.recorded_at)
    actor = via = ""
    for envelope in read:
        seq += 1
        now, stream, name, key = (
            envelope.recorded_at,
            envelope.stream,
            envelope.type,
            envelope.idempotency_key,
        )
        if envelope.seq != seq or now <= recorded or envelope.v < 1:
            return None
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
        if envelope.causation is not None and not 1 <= envelope.causation < seq:
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
