"""A receipt's one form: the fields of its file, their digest, and what the ledger's receipt key signs (contract: Receipts)."""

from __future__ import annotations

from functools import lru_cache

from ledger.canonical import encode
from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from projections.receipt import Issued

_CONTEXT = b"gatebook receipt v1\n"
_OPTIONAL: dict[str, object] = {
    "synthetic_qa": False,
    "parent_id": "",
    "rules": [],
    "principal": "",
    "approval_signature": "",
}


def file_fields(issued: Issued) -> dict[str, Any]:
    """A receipt as its file has it: every field, the empty ones too."""
    import msgspec

    held: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(issued))
    return {**_OPTIONAL, **held}


def receipt_digest(fields: dict[str, Any]) -> str:
    """BLAKE3 of a receipt as presented: what `receipt.consumed` names."""
    from blake3 import blake3

    return blake3(encode(fields, what="receipt", floats=False)).hexdigest()


@lru_cache(maxsize=64)
def issued_digest(issued: Issued) -> str:
    """The digest of the receipt that was issued; kept, since its every use asks again."""
    return receipt_digest(file_fields(issued))


def signed_bytes(fields: dict[str, Any]) -> bytes:
    """What the receipt key signs: a context line, then the canonical JSON of every field but the signatures."""
    body = {
        name: value
        for name, value in fields.items()
        if name not in ("signature", "principal", "approval_signature")
    }
    return _CONTEXT + encode(body, what="receipt", floats=False)


def signature_holds(keys: list[str], fields: dict[str, Any]) -> bool:
    """Whether one of the ledger's receipt keys (hex) signed these fields."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    for key in keys:
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(
                bytes.fromhex(str(fields.get("signature"))), signed_bytes(fields)
            )
        except (InvalidSignature, ValueError, Invalid):
            continue
        return True
    return False
