"""`checkpoint`: a signed statement of how many events there are and of the tree's root over them."""

from __future__ import annotations

import os
import sys

from commands.context import put
from commands.flags import Args, Command, Flag
from ledger.errors import Invalid, Refused, Tampered
from ledger.proofs import note as notes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.context import Context
    from ledger.access import Ledger
    from projections.engine import Proposal, World
    from projections.ledger_stream import State


def _memory_path(ledger_id: str, restored: int) -> str:
    """Where this machine keeps the last note it signed; a history that a restore began (on record) has its own."""
    from ledger.home import state_dir

    return os.path.join(state_dir(), "checkpoints", f"{ledger_id}-{restored}" if restored else ledger_id)


def _last_signed(ledger: Ledger, state: State) -> notes.Checkpoint | None:
    """The newest checkpoint that must be continued: this machine's own memory of it, else the ledger's.

    The memory lies outside the ledger, so a history rewritten together with its checkpoints is not signed.
    """
    recorded = (
        notes.Checkpoint(ledger.id, state.checkpointed, bytes.fromhex(state.checkpoint_root))
        if state.checkpointed
        else None
    )
    path = _memory_path(ledger.id, state.restored)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(notes.MAX_NOTE + 1)
    except FileNotFoundError:
        return recorded
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}: the last checkpoint signed here cannot be read") from None
    except UnicodeDecodeError:
        text = ""
    try:
        note = notes.parse_note(text)
        remembered = notes.parse_checkpoint(note.text)
    except Invalid as error:
        raise Tampered(
            f"{path}: damaged, so what was signed here last is not known ({error}): put the last note that you kept there",
            verdict="unreadable",
        ) from None
    known = [notes.VerifierKey(ledger.id, notes.ED25519, bytes.fromhex(old)) for old in state.checkpoint_keys]
    try:
        notes.check_note(note, known)
    except (Refused, Tampered):
        raise Tampered(
            f"{path}: not a checkpoint that this ledger signed: somebody changed it", verdict="forked"
        ) from None
    return remembered if recorded is None or remembered.size >= recorded.size else recorded


def _remember(path: str, text: str) -> None:
    from ledger.files import write_whole

    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    write_whole(path, text.encode())


def make_checkpoint(ledger: Ledger, context: Context) -> str:
    """Signs the ledger as it stands, records that, and returns the note; nothing new: the last one again.

    Raises:
        Refused: no key here, or a read-only archive. Tampered: the events do not continue what was signed before.
    """
    from commands.authority.keys import current_key
    from ledger.proofs.logtree import LogTree
    from projections.engine import Proposal, state_of, submit
    from projections.ledger_stream import Checkpointed

    state, _ = state_of(ledger, "ledger")
    private = current_key(ledger, "checkpoint")
    last = _last_signed(ledger, state)
    size = ledger.store.head().seq
    if last is not None and size == last.size + 1 and _is_checkpoint(ledger, size):
        size = last.size  # the only event since is the record of that checkpoint
    edge = LogTree(ledger.store, ledger.folder).grow(size, last)
    head = notes.Checkpoint(ledger.id, size, edge.root())
    text = str(notes.sign_note(str(head), ledger.id, private))

    def decide(world: World) -> list[Proposal]:
        if world.state("ledger").checkpointed >= size:
            return []
        return [
            Proposal(
                "ledger", "ledger.checkpointed", Checkpointed(size, head.root.hex()), content=text.encode()
            )
        ]

    # Crash before the commit: the note was never shown. Crash after it: the same call makes the same note again.
    submit(ledger, context.origin(), decide)
    if last is None or size >= last.size:
        _remember(_memory_path(ledger.id, state.restored), text)
    return text


def _is_checkpoint(ledger: Ledger, seq: int) -> bool:
    event = ledger.store.reader().event(seq)
    return event is not None and event.type == "ledger.checkpointed"


def run(args: Args, context: Context) -> int:
    """Print the signed note (or, with --key, the verifier key)."""
    ledger = context.ledger()
    if args.key:
        from commands.audit.keys import ledger_keys

        sys.stdout.write(f"{ledger_keys(ledger)[-1]}\n")
        return 0
    text = make_checkpoint(ledger, context)
    if args.out is not None:
        from ledger.files import write_whole

        write_whole(os.path.abspath(args.out), text.encode(), 0o644)
    put(text)
    return 0


COMMANDS = {
    "checkpoint": Command(
        run,
        "Signs the number of events and the root of the tree over them: a C2SP tlog-checkpoint note, origin the ledger id.\n"
        "Keep it outside the ledger, or hand it to a witness: whoever rewrites the ledger cannot rewrite that.\n"
        "Refuses (exit 3) to sign a history that does not continue the last checkpoint.",
        flags=(
            Flag("--out", "F", "write the note to this file too"),
            Flag("--key", None, "print the verifier key (name+hash+base64) instead; signs nothing"),
        ),
        example="gatebook checkpoint --out ~/kept/checkpoint.txt",
    )
}
