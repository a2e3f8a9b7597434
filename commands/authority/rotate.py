"""`authority rotate`: a new checkpoint or receipt key, signed by the old one (DESIGN, Authority: Keys)."""

from __future__ import annotations

from commands.context import Context, emit
from commands.flags import Args, Command, Word
from ledger.errors import Usage

_KEYS = ("checkpoint", "receipt")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from projections.engine import Proposal, World


def run(args: Args, context: Context) -> int:
    """Make a new key pair, record `key.changed`, and only then put the private half into its place."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from commands.authority.keys import current_key, put_in_place, spare_name
    from ledger.home import write_key
    from projections.authority import key_message
    from projections.engine import Proposal, submit
    from projections.ledger_stream import KeyChanged

    if args.name not in _KEYS:
        raise Usage(f"there is no {args.name!r} key: checkpoint or receipt")
    ledger = context.ledger()
    old = current_key(ledger, args.name)
    new = Ed25519PrivateKey.generate()
    public = new.public_key().public_bytes_raw().hex()
    signature = old.sign(key_message(args.name, public)).hex()
    # The new private half is on disk before the log names its public half; a crash in between leaves a spare file.
    write_key(ledger.id, spare_name(args.name, public), new.private_bytes_raw())

    def decide(_world: World) -> list[Proposal]:
        return [Proposal("ledger", "key.changed", KeyChanged(args.name, public, signature))]

    done = submit(ledger, context.origin(), decide, then=lambda: put_in_place(ledger.id, args.name, public))
    emit({"name": args.name, "key": public, "seq": done.events[0].seq})
    return 0


COMMANDS = {
    "authority rotate": Command(
        run,
        "Replaces the ledger's checkpoint or receipt key by a new one; the old key signs the new, and both stand in the log.",
        words=(Word("NAME", "checkpoint or receipt", offers=lambda: _KEYS),),
        example="gatebook authority rotate checkpoint",
    )
}
