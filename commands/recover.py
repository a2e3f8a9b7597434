"""`resume` and `trust`: which copy of a ledger goes on, and which found ledger is believed (DESIGN, Which ledger)."""

from __future__ import annotations

import os

from commands.context import Context, emit
from commands.flags import Args, Command, Flag, Word
from ledger.errors import Refused, Tampered, Unavailable, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger
    from projections.engine import Proposal, World
    from projections.ledger_stream import Keys


def _verified(ledger: Ledger) -> None:
    """Raise Tampered unless `replay` finds the history whole and lawful: a successor would be bound to whatever is in it."""
    from commands.audit.against import check_recorded
    from projections.replay import replay

    report = replay(ledger.store)[0]
    if report.ok:
        check_recorded(ledger, report)
    if not report.ok:
        wrong = report.first_wrong or {}
        raise Tampered(
            f"{ledger.place}: does not verify ({report.verdict}, event {wrong.get('seq')}, {wrong.get('field')}; see "
            "`gatebook replay`): only a whole and lawful history can go on",
            verdict=report.verdict,
        )


def _has_keys(ledger: Ledger) -> bool:
    """Whether this machine keeps the private halves of the ledger's present keys."""
    from commands.authority.keys import current_key

    try:
        return all(current_key(ledger, name) for name in ("checkpoint", "receipt"))
    except Refused:
        return False


def _new_keys(ledger: Ledger) -> Keys:
    """Fresh key pairs for a successor on a machine without the old private keys; the old files stay beside them."""
    from ledger.access import make_keys
    from ledger.home import keys_dir, write_key
    from projections.ledger_stream import Keys

    made = make_keys()
    for name, (seed, _) in made.items():
        path = os.path.join(keys_dir(ledger.id), name)
        if os.path.lexists(path):
            os.rename(path, f"{path}.{ledger.store.head().seq}.old")
        write_key(ledger.id, name, seed)
    return Keys(made["checkpoint"][1], made["receipt"][1])


def resume(args: Args, context: Context) -> int:
    """Let a restored, forked or imported ledger take writes again; everything open before is void."""
    from msgspec import UNSET

    from ledger.credentials import check_credentials
    from ledger.sqlite import APPLICATION_ID
    from projections.engine import Proposal, submit
    from projections.ledger_stream import Restored

    if not args.as_successor:
        raise Usage(
            "resume needs --as-successor: it says that this history goes on and everything open in it is void"
        )
    if not args.reason.strip():
        raise Usage("--reason must say why")
    check_credentials(b"", args.reason.encode("utf-8", "surrogateescape"))
    ledger = context.ledger()
    _verified(ledger)
    memory = ledger.memory()
    head = ledger.store.head()
    behind = memory is not None and (memory[0] > head.seq or _other(ledger, memory))
    if ledger.store.fault is not None:
        raise Refused(str(ledger.store.fault))  # the replica is the evidence, and how to go on is in it
    if not ledger.archive and not behind:
        if ledger.notice:
            ledger.notice = ""
            raise Unavailable(
                f"{ledger.place}: the cluster does not answer, so nothing was resumed; call again"
            )
        raise Refused(
            f"{ledger.place}: ends where this machine saw it end, and takes writes: there is nothing to resume"
        )
    keys = UNSET if _has_keys(ledger) else _new_keys(ledger)
    lost = memory if memory is not None and behind else None

    def decide(world: World) -> list[Proposal]:
        last = world.reader.head()
        data = Restored(
            last.seq, last.hash.hex(), lost[0] if lost else 0, lost[1].hex() if lost else "", keys
        )
        return [
            Proposal(
                "ledger", "ledger.restored", data, content=args.reason.encode("utf-8", "surrogateescape")
            )
        ]

    archive, ledger.archive = ledger.archive, False
    ledger.accept_any_head()
    done = submit(ledger, context.origin(), decide)
    if archive:
        # Crash before this line: the event stands and the file is still read-only; the same command goes on.
        ledger.store.mark(APPLICATION_ID)
    from ledger.clock import format_us, now_us
    from ledger.home import remember_ledger

    remember_ledger(ledger.id, ledger.folder, format_us(now_us()))
    event = done.events[0]
    emit(
        {
            "ledger_id": ledger.id,
            "path": ledger.place,
            "seq": event.seq,
            "hash": event.hash.hex(),
            "after": head.seq,
            "lost": {"seq": lost[0], "hash": lost[1].hex()} if lost else None,
            "new_keys": keys is not UNSET,
        }
    )
    return 0


def _other(ledger: Ledger, memory: tuple[int, bytes]) -> bool:
    event = ledger.store.reader().event(memory[0])
    return event is None or event.hash != memory[1]


def trust(args: Args, context: Context) -> int:
    """Accept a found ledger on this machine, its present head included."""
    from ledger.access import find, place_of_files
    from ledger.access import trust as accept

    folder = args.path or find()
    if folder is None and (context.ledger_given or os.environ.get("GATEBOOK_LEDGER")):
        raise Usage(
            "a ledger that is named needs no trust; to accept one found by searching: gatebook trust PATH"
        )
    if folder is None:
        raise Usage("no ledger here; run `gatebook init`, or name one: gatebook trust PATH")
    ledger = accept(place_of_files(folder))
    head = ledger.store.head()
    emit({"ledger_id": ledger.id, "path": ledger.folder, "seq": head.seq, "hash": head.hash.hex()})
    ledger.close()
    return 0


COMMANDS = {
    "resume": Command(
        resume,
        "A ledger that was restored from a backup, lost its tail, or was imported takes writes again as the successor.\n"
        "It must pass `replay`. Recorded as ledger.restored: open receipts, approvals, probes and markers are void, so that\n"
        "nothing spent is fresh again.",
        flags=(
            Flag("--as-successor", None, "yes, this history goes on"),
            Flag("--reason", "R", "why, for the auditors", required=True),
        ),
        example="gatebook export --out l.jsonl && gatebook import l.jsonl --to copy\n"
        "gatebook --ledger copy resume --as-successor --reason 'moved to a new machine'",
    ),
    "trust": Command(
        trust,
        "Accepts a ledger that was found by searching upwards (cloned, copied, moved): its id, place and present head\n"
        "are remembered in $XDG_STATE_HOME/gatebook. It must be a real directory of yours that git does not track.",
        words=(Word("PATH", "the .gatebook directory (default: the nearest)", optional=True),),
        example="gatebook trust .gatebook",
    ),
}
