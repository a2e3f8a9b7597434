"""The ledger's own private keys, as far as this machine keeps them."""

from __future__ import annotations

import fcntl
import os

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

    state, _ = state_of(ledger, "ledger")
    current = state.checkpoint_key if name == "checkpoint" else state.receipt_key
    # A rotation may have died between its commit and the last step, or not have heard of its commit.
    put_in_place(ledger.id, name, current)
    private = Ed25519PrivateKey.from_private_bytes(read_key(ledger.id, name))
    if private.public_key().public_bytes_raw().hex() != current:
        raise Refused(
            f"{keys_dir(ledger.id)}/{name}: this machine's {name} key is not the ledger's current one: use the machine "
            "that has it, or copy that key from there"
        )
    return private


def spare_name(name: str, public: str) -> str:
    """Where the private half of `public` (hex) lies until the log names it."""
    return f"{name}.{public[:16]}"


def put_in_place(ledger_id: str, name: str, public: str) -> None:
    """Make the private half of `public`, where it waits under its spare name, this machine's `name` key; the one before is kept."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from ledger.home import keys_dir, read_key

    folder = keys_dir(ledger_id)
    place, spare = os.path.join(folder, name), os.path.join(folder, spare_name(name, public))
    if not os.path.lexists(spare):
        return
    alone = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX)
        if os.path.lexists(place) and os.path.lexists(spare):
            old = Ed25519PrivateKey.from_private_bytes(read_key(ledger_id, name)).public_key()
            os.rename(place, f"{place}.{old.public_bytes_raw().hex()[:16]}.old")
        # Crash before this line: the key still waits under its spare name, and the next call comes here again.
        if os.path.lexists(spare):
            os.rename(spare, place)
    finally:
        os.close(alone)
