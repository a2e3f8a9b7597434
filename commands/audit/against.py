"""What `verify` asks of a checkpoint that was kept elsewhere (contract page ledger, `verify`)."""

from __future__ import annotations

from commands.audit.keys import Attested, attest, read_note
from ledger.errors import Invalid, Refused, Tampered
from ledger.proofs.logtree import LogTree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger
    from ledger.verify import Report


def compare_with(ledger: Ledger, path: str) -> Attested:
    """The whole history up to the checkpoint in `path` is the one that was signed; reads every event up to it.

    Raises:
        Tampered: `truncated`, `forked`, or a damaged event or signature. Refused: another ledger's, or not signed.
    """
    found = attest(ledger, read_note(path))
    LogTree(ledger.store, ledger.folder).compare(found.head, ledger.store.head().seq)
    return found


def start_after(ledger: Ledger, path: str) -> tuple[Attested, bytes]:
    """The checkpoint in `path`, and the hash of its last event, after which verification may start.

    Costs about a logarithm: earlier events are believed because the checkpoint covers them.

    Raises:
        as `compare_with`.
    """
    found = attest(ledger, read_note(path))
    return found, LogTree(ledger.store, ledger.folder).start_after(found.head, ledger.store.head().seq)


def _last_note(ledger: Ledger, before: int = 2**62) -> tuple[int, bytes] | None:
    """The newest checkpoint on record whose note was not redacted, as the event's number and the note; None where there is none."""
    reader, at_once = ledger.store.reader(), 1  # mostly the first one has its note
    while found := reader.of_type("ledger.checkpointed", at_once, before):
        for event in found:
            note = ledger.store.artifact(event)
            if note is not None:
                return event.seq, note
        before, at_once = found[-1].seq, 100
    return None


def check_recorded(ledger: Ledger, report: Report) -> tuple[int, str]:
    """(size, promise) of the last checkpoint on record; (0, "recorded") without one.

    The verified events must be the ones that it covers, and its note one that this ledger signed: a rewritten
    history cannot carry the old checkpoints along. Where not, `report` says so.
    """
    from ledger.walk import Wrong

    last = _last_note(ledger, report.head_seq + 1)
    if last is None:
        return 0, "recorded"
    seq, note = last
    expected = "a note that this ledger's keys signed, over its events"
    try:
        found = attest(ledger, note.decode("utf-8", "replace"))
        LogTree(ledger.store, ledger.folder).confirm(found.head, report.head_seq)
    except (Tampered, Refused, Invalid) as error:
        verdict = error.verdict if isinstance(error, Tampered) else "content-mismatch"
        report.blame(Wrong(verdict, seq, "content", expected, str(error)))
        return 0, "recorded"
    return found.head.size, found.promise


def reach(ledger: Ledger) -> Attested | None:
    """The last checkpoint in the ledger's own record and what it promises; None where there is none to be read.

    Says nothing of the events, as `attest` does not.

    Raises:
        Tampered, Refused: the recorded note is not one of this ledger's keys.
    """
    last = _last_note(ledger)
    return attest(ledger, last[1].decode()) if last is not None else None
