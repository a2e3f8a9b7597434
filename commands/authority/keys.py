"""The ledger's own private keys, as far as this machine keeps them."""

from __future__ import annotations

from ledger.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from ledger.access import Ledger


def current_key(ledger: Ledger, name: str) -> Ed25519PrivateKey:
    """The private half of the `checkpoint` or `receipt` key that the ledger names now.

    Raises:
        Refused: this machine does not have it, or has one that another machine of the fleet, or a restore, replaced.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from ledger.home import keys_dir, read_key
    from projections.engine import state_of

    private = Ed25519PrivateKey.from_private_bytes(read_key(ledger.id, name))
    state, _ = state_of(ledger, "ledger")
    current = state.checkpoint_key if name == "checkpoint" else state.receipt_key
    if private.public_key().public_bytes_raw().hex() != current:
        raise Refused(
            f"{keys_dir(ledger.id)}/{name}: this machine's {name} key is not the ledger's current one: use the machine "
            "that has it, or copy that key from there"
        )
    return private
