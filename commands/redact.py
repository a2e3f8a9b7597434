"""`redact`: erase content and salt of events on purpose, on record (DESIGN, The log; issue: the chain still verifies)."""

from __future__ import annotations

from commands.context import Context, emit
from commands.flags import Args, Command, Flag, Word, whole_number
from ledger.errors import Invalid, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger
    from ledger.event import Origin
    from projections.engine import Proposal, World

# Events that one ledger.redacted names: so many of the largest numbers fit into 64 KiB of data.
AT_ONCE = 3500


def purge(ledger: Ledger, origin: Origin) -> bool:
    """Remove what could still hold erased content: views, artifacts that no event names, the WAL. False: a reader is in the way."""
    from ledger.leftovers import named_artifacts, remove_artifacts, remove_views, unnamed_artifacts
    from projections.views import locked

    store = ledger.store
    # Under the views' lock: a build that read the content before would else give its file the name after this.
    with locked(ledger):
        remove_views(ledger.folder)
    if unnamed_artifacts(store, set()):
        upto, named = store.head().seq, named_artifacts(store)
        # While others wait to write: an artifact is written before the event that names it is there.
        store.transact(
            lambda _reader: [],
            origin,
            then=lambda: remove_artifacts(store, named | named_artifacts(store, upto)),
        )
    return store.empty_wal()


def run(args: Args, context: Context) -> int:
    """Erase the content of the named events and record that it was erased and why."""
    from ledger.leftovers import erased_on_record
    from projections.engine import Proposal, submit
    from projections.ledger_stream import Redacted

    seqs = sorted({whole_number(text, "SEQ") for text in args.seq})
    if not args.reason.strip():
        raise Usage("--reason must say why")
    reason = args.reason.encode("utf-8", "surrogateescape")
    ledger, origin = context.ledger(), context.origin()
    erased: list[int] = []

    def decide(world: World) -> list[Proposal]:
        erased.clear()
        recorded: set[int] | None = None
        for seq in seqs:
            event = world.reader.event(seq)
            if event is None:
                raise Invalid(f"event {seq}: there is no such event; nothing was redacted")
            if event.content_digest is None:
                raise Invalid(f"event {seq}: has no content (data cannot be erased); nothing was redacted")
            if event.redacted and recorded is None:
                recorded = erased_on_record(world.reader)
            # Gone without a record (a bucket that lost it, a tampering): others may have it, who erase by the record.
            if not event.redacted or seq not in (recorded or ()):
                erased.append(seq)
        if not erased:
            return []
        for seq in erased:
            world.reader.erase(seq)
        parts = (erased[at : at + AT_ONCE] for at in range(0, len(erased), AT_ONCE))
        return [
            Proposal("ledger", "ledger.redacted", Redacted(tuple(part)), content=reason) for part in parts
        ]

    done = submit(ledger, origin, decide)
    # Crash here: the record and the erasure stand (one transaction); the same call again finishes the purge.
    clean = purge(ledger, origin)
    emit(
        {
            "seq": done.events[0].seq if done.events else None,
            "redacted": erased,
            "already": [seq for seq in seqs if seq not in erased],
            "purged": clean,
        }
    )
    if not clean:
        context.log().warning(
            "another process is reading: its snapshot may still hold the erased pages; run the same command again"
        )
        return 75
    return 0


COMMANDS = {
    "redact": Command(
        run,
        "Erases content and salt of these events, also from the WAL, free pages, views and artifacts, and records it with\n"
        "the reason. Data, hashes and proofs stay; the chain still verifies. Exports and backups made before keep theirs.\n"
        "Exit 75: erased, but a reader holds an old snapshot; call again.",
        words=(Word("SEQ", "the events", many=True),),
        flags=(Flag("--reason", "R", "why, for the auditors", required=True),),
        example="gatebook append --stream x-notes/1 --type x.note.added --content 'a name'\n"
        "gatebook redact 2 --reason 'personal data'",
    )
}
