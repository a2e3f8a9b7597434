"""`witness …`: a second party, with its own key and memory, that cosigns only what grew from what it saw."""

from __future__ import annotations

import sys

from commands.context import emit
from commands.flags import Args, Command, Flag, Word
from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context


def run_init(args: Args, _context: Context) -> int:
    """Make the witness; print its verifier key."""
    from ledger.proofs.witness import create_witness

    key = create_witness(args.dir, args.name)
    emit({"name": key.name, "path": args.dir, "key": str(key)})
    return 0


def _proof_path(file: str, note: str) -> tuple[bytes, ...]:
    """The path of a consistency proof file, which must be about this note."""
    from commands.append import read_input
    from ledger.proofs.bundle import ConsistencyFile, parse_file
    from ledger.proofs.note import parse_note

    proof = parse_file(read_input(file, "--proof"))
    if not isinstance(proof, ConsistencyFile):
        raise Invalid(
            f"{file}: an inclusion proof; a witness needs one of `gatebook prove --consistency OLD NEW`"
        )
    if parse_note(proof.new).text != parse_note(note).text:
        raise Invalid(f"{file}: proves growth to another checkpoint than the one to cosign")
    return proof.path


def run_cosign(args: Args, _context: Context) -> int:
    """Print the note with this witness' cosignature."""
    import time

    from commands.audit.keys import given_keys, kept_keys, read_note
    from ledger.proofs import note as notes
    from ledger.proofs.witness import load_witness

    text = read_note(args.file)
    origin = notes.parse_checkpoint(notes.parse_note(text).text).origin
    path = _proof_path(args.proof, text) if args.proof is not None else None
    witness = load_witness(args.dir)
    try:
        keys = given_keys(args.key) or kept_keys(origin)
        cosigned = witness.cosign(text, keys, path, int(time.time()))
    finally:
        witness.close()
    sys.stdout.write(cosigned)
    return 0


COMMANDS = {
    "witness init": Command(
        run_init,
        "Makes a witness in DIR: an Ed25519 key (0600) and, later, the memory of one ledger's last checkpoint.\n"
        "Prints its verifier key; users who trust it put that into $XDG_CONFIG_HOME/gatebook/witnesses.",
        words=(Word("DIR", "where the witness lives; best on another machine than the ledger"),),
        flags=(Flag("--name", "NAME", "its name in notes (default: witness-<key>)"),),
        example="gatebook witness init /srv/witness",
    ),
    "witness cosign": Command(
        run_cosign,
        "Cosigns checkpoint F if the log only grew since the last one this witness saw, and prints the note.\n"
        "A fork, a shrunk log or another ledger is refused. When the log grew, --proof must show how.",
        words=(Word("FILE", "the checkpoint note, - for stdin"),),
        flags=(
            Flag("--dir", "DIR", "the witness", required=True),
            Flag("--proof", "F", "from `gatebook prove --consistency DIR/memory FILE`"),
            Flag("--key", "VKEY|@FILE", "the ledger's verifier key, needed the first time", many=True),
        ),
        example="gatebook witness cosign checkpoint.txt --dir /srv/witness --proof growth.proof",
    ),
}
