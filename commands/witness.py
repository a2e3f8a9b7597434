"""`witness …`: a second party, with its own key and memory, that cosigns only what grew from what it saw."""

from __future__ import annotations

from commands.context import emit, put
from commands.flags import Args, Command, Flag, Word
from ledger.errors import GatebookError, Invalid, Refused, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context
    from ledger.proofs.bundle import ConsistencyFile
    from ledger.proofs.note import VerifierKey


def run_init(args: Args, _context: Context) -> int:
    """Make the witness; print its verifier key."""
    from ledger.proofs.witness import create_witness

    key = create_witness(args.dir, args.name)
    emit({"name": key.name, "path": args.dir, "key": str(key)})
    return 0


def _growth(file: str, note: str) -> ConsistencyFile:
    """The consistency proof file `file`, which must lead to the checkpoint in `note`."""
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
    return proof


def _rotated(file: str, old: VerifierKey) -> VerifierKey:
    """The ledger's key after `old`, from an inclusion proof of the `key.changed` event that `old` signed.

    Raises:
        Invalid: a proof of something else. Refused: `old` did not sign it. Tampered: the proof does not hold.
    """
    from commands.append import read_input
    from ledger.canonical import load
    from ledger.proofs.bundle import InclusionFile, check_inclusion_file, parse_file
    from ledger.proofs.note import ED25519, VerifierKey
    from projections.authority import key_signature_holds

    proof = parse_file(read_input(file, "--rotated"))
    if not isinstance(proof, InclusionFile) or load(proof.envelope).get("type") != "key.changed":
        raise Invalid(f"{file}: no proof of a key.changed event: `gatebook prove SEQ` of it makes one")
    name, key, signature = (str(load(proof.data).get(member)) for member in ("name", "key", "signature"))
    if name != "checkpoint" or not key_signature_holds(old.public.hex(), name, key, signature):
        raise Refused(f"{file}: the key that this witness knows did not sign that checkpoint key")
    new = VerifierKey(old.name, ED25519, bytes.fromhex(key))
    check_inclusion_file(proof, [new])
    return new


def _log_keys(args: Args, context: Context, origin: str, proof: ConsistencyFile | None) -> list[VerifierKey]:
    """Keys to know the ledger `origin` by at first sight: given, kept on this machine, or bound to its id by genesis."""
    from commands.audit.keys import given_keys, kept_keys, ledger_keys

    found = given_keys(args.key) or kept_keys(origin)
    if not found and proof is not None:
        found = [proof.genesis.checkpoint_key(origin)]
    if not found:
        try:
            ledger = context.ledger_if_any()
        except GatebookError:
            ledger = None  # a ledger that may not be opened here is no help, and no harm
        found = ledger_keys(ledger) if ledger is not None and ledger.id == origin else []
    return found


def run_cosign(args: Args, context: Context) -> int:
    """Print the note with this witness' cosignature."""
    import time

    from commands.audit.keys import read_note
    from ledger.proofs import note as notes
    from ledger.proofs.witness import load_witness

    text = read_note(args.file)
    origin = notes.parse_checkpoint(notes.parse_note(text).text).origin
    proof = _growth(args.proof, text) if args.proof is not None else None
    witness = load_witness(args.dir)
    try:
        known = witness.log_key
        keys = _log_keys(args, context, origin, proof) if known is None else [known]
        if known is None and args.rotated:
            raise Usage(
                "--rotated is for a witness that knows the key before: give this one the key now, by --key"
            )
        for file in args.rotated:
            keys.append(_rotated(file, keys[-1]))
        path = proof.path if proof is not None else None
        cosigned = witness.cosign(text, keys, path, int(time.time()), keys[1:] if known is not None else ())
    finally:
        witness.close()
    put(cosigned)
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
            Flag(
                "--key",
                "VKEY|@FILE",
                "the ledger's verifier key, where this machine cannot know it, the first time",
                many=True,
            ),
            Flag(
                "--rotated",
                "F",
                "the ledger changed its key: `gatebook prove SEQ` of that key.changed event, one a change, in order",
                many=True,
            ),
        ),
        example="gatebook witness cosign checkpoint.txt --dir /srv/witness --proof growth.proof",
    ),
}
