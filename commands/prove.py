"""`prove` and `check-proof`: proof files for strangers, and their check without any ledger."""

from __future__ import annotations

import os

from commands.context import emit, put
from commands.flags import Args, Command, Flag, Word, whole_number
from ledger.canonical import load
from ledger.errors import GatebookError, Invalid, Refused, Tampered, Usage
from ledger.notice import tell
from ledger.proofs import note as notes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from commands.context import Context
    from ledger.access import Ledger
    from ledger.proofs.bundle import ConsistencyFile, Genesis, InclusionFile, Verdict


def _genesis(ledger: Ledger) -> Genesis:
    from ledger.proofs.bundle import Genesis

    if ledger.genesis is None:
        raise Tampered("the ledger has no genesis event", verdict="nothing-to-verify")
    return Genesis(ledger.genesis.envelope, ledger.genesis.data)


def _recorded_note(ledger: Ledger, seq: int) -> str:
    """The newest checkpoint in the ledger, if it covers event `seq`."""
    found = ledger.store.reader().of_type("ledger.checkpointed", 1)
    if not found:
        raise Refused("no checkpoint was made yet: run `gatebook checkpoint`, then prove against it")
    content = ledger.store.artifact(found[0])
    if content is None:
        raise Refused("the last checkpoint's note was redacted: name one with --to FILE")
    text = content.decode()
    size = notes.parse_checkpoint(notes.parse_note(text).text).size
    if size < seq:
        raise Refused(f"the last checkpoint covers {size} events, not event {seq}: run `gatebook checkpoint`")
    return text


def _note_named(ledger: Ledger, name: str) -> str:
    """A note given as a file, or as the size of a checkpoint that this ledger has recorded."""
    from commands.audit.keys import read_note

    if not (name.isascii() and name.isdigit()) or os.path.exists(name):
        return read_note(name)
    size = whole_number(name, "checkpoint")
    reader = ledger.store.reader()
    before = 2**62
    while found := reader.of_type("ledger.checkpointed", 100, before):
        for event in found:
            content = ledger.store.artifact(event)
            if content is not None and load(event.data)["size"] == size:
                return content.decode()
        before = found[-1].seq
    raise Refused(
        f"no checkpoint of {size} events was recorded here, and there is no such file: a proof needs a signed note"
    )


def prove_event(ledger: Ledger, seq: int, note: str | None) -> InclusionFile:
    """The proof file of event `seq` under the checkpoint note (None: the ledger's last one).

    Raises:
        Invalid: no such event. Refused: no checkpoint covers it. Tampered: it is not what was signed.
    """
    from commands.audit.keys import attest
    from ledger.event import ZERO_HASH
    from ledger.proofs.bundle import InclusionFile
    from ledger.proofs.logtree import LogTree, truncated

    reader = ledger.store.reader()
    event = reader.event(seq)
    if event is None:
        raise Invalid(f"there is no event {seq}; the ledger ends at {reader.head().seq}")
    text = note if note is not None else _recorded_note(ledger, seq)
    head = attest(ledger, text).head
    if seq > head.size:
        raise Refused(f"the checkpoint covers {head.size} events, not event {seq}: take a newer one")
    if head.size > reader.head().seq:
        raise truncated(head, reader.head().seq)
    before = reader.event(seq - 1)
    proof = LogTree(ledger.store, ledger.folder).inclusion(seq, head)
    return InclusionFile(
        event.envelope,
        event.data,
        before.hash if before is not None else ZERO_HASH,
        path=proof.path,
        note=text,
        genesis=_genesis(ledger),
    )


def prove_growth(ledger: Ledger, old: str, new: str) -> ConsistencyFile:
    """The proof file that the log under the note `new` begins with that under `old`.

    Raises:
        Refused, Invalid: a note is not this ledger's checkpoint. Tampered: they are not two moments of this ledger.
    """
    from commands.audit.keys import attest
    from ledger.proofs.bundle import ConsistencyFile
    from ledger.proofs.logtree import LogTree, truncated

    first, second = attest(ledger, old).head, attest(ledger, new).head
    head = ledger.store.head().seq
    if first.size > second.size:
        raise Invalid(f"OLD has {first.size} events and NEW {second.size}: give them the other way round")
    if second.size > head:
        raise truncated(second, head)
    proof = LogTree(ledger.store, ledger.folder).consistency(first, second)
    return ConsistencyFile(old, new, proof.path, _genesis(ledger))


def run_prove(args: Args, context: Context) -> int:
    """Print the proof file."""
    ledger = context.ledger()
    if args.consistency:
        if len(args.what) != 2 or args.to is not None:
            raise Usage("prove --consistency OLD NEW: two checkpoint files, and no --to")
        made = bytes(
            prove_growth(ledger, _note_named(ledger, args.what[0]), _note_named(ledger, args.what[1]))
        )
    else:
        if len(args.what) != 1:
            raise Usage("prove SEQ [--to CHECKPOINT], or prove --consistency OLD NEW")
        seq = whole_number(args.what[0], "SEQ")
        made = bytes(prove_event(ledger, seq, _note_named(ledger, args.to) if args.to is not None else None))
    if args.out is not None:
        from ledger.files import write_whole

        write_whole(os.path.abspath(args.out), made, 0o644)
    put(made.decode())
    return 0


def _check(raw: bytes, given: Sequence[notes.VerifierKey]) -> tuple[Verdict, str]:
    """The verdict, and how far it reaches: `witnessed`, `attested` or `self-signed`."""
    from commands.audit.keys import kept_keys, witness_keys
    from ledger.proofs import bundle

    file = bundle.read_file(raw)
    text = file.note if isinstance(file, bundle.InclusionFile) else file.new
    origin = notes.parse_checkpoint(notes.parse_note(text).text).origin
    witnesses = [*witness_keys(), *(key for key in given if key.algorithm == notes.COSIGNATURE_V1)]
    logs = [key for key in given if key.algorithm == notes.ED25519]
    if not logs:
        kept = kept_keys(origin)
        # A key of this machine that the ledger has replaced since says nothing against the note.
        if kept and any(line.by(kept[0]) for line in notes.parse_note(text).signatures):
            logs = kept
    verdict = bundle.check_file(raw, [*logs, *witnesses])
    if any(key.algorithm == notes.COSIGNATURE_V1 for key in verdict.signers):
        return verdict, "witnessed"
    return verdict, "attested" if verdict.attested else "self-signed"


def _reply(verdict: Verdict, promise: str) -> dict[str, object]:
    reply: dict[str, object] = {
        "ok": True,
        "verdict": "ok",
        "proof": "consistency" if verdict.old else "inclusion",
    }
    reply["ledger_id"] = verdict.head.origin
    if verdict.old is not None:
        reply["old_size"] = verdict.old.size
    elif verdict.event_hash is not None:
        reply["seq"] = verdict.seq
        reply["hash"] = verdict.event_hash.hex()
    reply["size"] = verdict.head.size
    reply["root"] = verdict.head.root.hex()
    reply["promise"] = promise
    reply["signed_by"] = [str(key) for key in verdict.signers]
    return reply


def run_check(args: Args, _context: Context) -> int:
    """Print the verdict as JSON; exit 3 and the reason where the proof does not hold."""
    from commands.append import read_input
    from commands.audit.keys import given_keys

    keys = given_keys(args.key)
    raw = read_input(args.file, "proof file")
    try:
        verdict, promise = _check(raw, keys)
    except (Tampered, Refused, Invalid) as error:
        return _failed(error)
    emit(_reply(verdict, promise))
    return 0


def _failed(error: GatebookError) -> int:
    verdict = (
        error.verdict
        if isinstance(error, Tampered)
        else "unreadable"
        if isinstance(error, Invalid)
        else "forked"
    )
    emit({"ok": False, "verdict": verdict, "reason": str(error)})
    tell(str(error), "error")
    return Tampered.exit_code


COMMANDS = {
    "prove": Command(
        run_prove,
        "Prints a proof file: that event SEQ is in the ledger under a signed checkpoint, or (--consistency) that the\n"
        "log under checkpoint NEW begins with the log under OLD. Anyone can check it with `gatebook check-proof`.",
        words=(
            Word("WHAT", "SEQ, or the notes OLD and NEW: files, or sizes of recorded checkpoints", many=True),
        ),
        flags=(
            Flag("--to", "CHECKPOINT", "the note to prove against (default: the ledger's last checkpoint)"),
            Flag("--consistency", None, "prove growth between two notes"),
            Flag("--out", "F", "write the proof to this file too"),
        ),
        example="gatebook prove 17 --out event-17.proof",
    ),
    "check-proof": Command(
        run_check,
        "Checks a proof file; needs no ledger. Exit 3 with the reason where it does not hold. The promise it prints:\n"
        "witnessed (cosigned by a witness you trust), attested (the ledger's key given with --key or kept on this\n"
        "machine), self-signed (only the key that the file itself names).",
        words=(Word("FILE", "the proof file, - for stdin"),),
        flags=(
            Flag("--key", "VKEY|@FILE", "a verifier key to trust: the ledger's, or a witness'", many=True),
        ),
        example='gatebook check-proof event-17.proof --key "$(cat ~/kept/ledger.vkey)"',
    ),
}
