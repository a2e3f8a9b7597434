"""`verify`: is everything as it was recorded? (contract page ledger)."""

from __future__ import annotations

import os

from commands.context import Context, emit, say
from commands.flags import Args, Command, Flag
from ledger.errors import Tampered, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ledger.access import Ledger
    from ledger.verify import Report

EVENTS_A_JOB = 50_000


def jobs_for(events: int, asked: int | None) -> int:
    """How many processes verify `events`: as asked, else one a core, and one where it is not worth a second."""
    if asked == 0:
        raise Usage("--jobs must be at least 1")
    return min(asked or os.cpu_count() or 1, max(1, events // EVENTS_A_JOB), 64)


def unreadable(error: Tampered, field: str = "file", expected: str = "a readable ledger") -> Report:
    """The report on a file that could not even be opened, or (another `field`) that was not what it must be."""
    from ledger.verify import Report
    from ledger.walk import Wrong

    report = Report()
    report.blame(Wrong(error.verdict, error.seq, field, expected, str(error)))
    return report


def compare_stream(ledger: Ledger, report: Report) -> None:
    """Of a fleet's ledger: what its stream has lost or rewritten since this machine read it is the verdict.

    The replica itself is good then, and stays as the evidence; an archive or a cluster that does not answer says nothing.
    """
    fault = ledger.store.fault
    if report.ok and fault is not None:
        from ledger.walk import Wrong

        report.blame(Wrong(fault.verdict, fault.seq, "stream", "what this machine read from it", str(fault)))


class Remembered:
    """This machine's memory of a ledger's head; a damaged one is told after all the events, since who meets it is told to verify."""

    def __init__(self, ledger: Ledger) -> None:
        self.head: tuple[int, bytes] | None = None
        self._damage: Tampered | None = None
        if not ledger.archive:
            try:
                self.head = ledger.memory()
            except Tampered as error:
                self._damage = error

    def compare(self, report: Report) -> None:
        """Make a damaged memory the verdict where nothing else is wrong."""
        if report.ok and self._damage is not None:
            from ledger.walk import Wrong

            report.blame(
                Wrong(
                    self._damage.verdict, None, "memory of the head", "a number and a hash", str(self._damage)
                )
            )


def describe(report: Report, promise: str) -> str:
    """The verdict in a line or two for people."""
    head = f"head {report.head_seq} {report.head_hash.hex()[:16]}…"
    if report.ok:
        after = (
            f"{report.after_checkpoint} after the last checkpoint"
            if report.checkpointed
            else "no checkpoint yet"
        )
        erased = f"; {report.redacted} redacted on record" if report.redacted else ""
        how_far = "" if promise == "recorded" else f" ({promise} up to event {report.checkpointed})"
        warning = ""
        if not report.checkpointed:
            warning = (
                "\nWithout a checkpoint kept elsewhere this cannot tell a cut tail or a wholly rewritten history: "
                "`gatebook checkpoint --out F`."
            )
        return f"ok: {report.events} events verified, {head}, {after}{how_far}{erased}{warning}"
    wrong = report.first_wrong or {}
    where = f"event {wrong['seq']}, " if wrong.get("seq") is not None else ""
    from commands.eventlines import printable

    first = f"{report.verdict}: {where}{wrong.get('field')}: expected {wrong.get('expected')}, found {wrong.get('found')}"
    return f"{printable(first)}\n{report.events} events were checked before that; {head}"


def examine(ledger: Ledger, args: Args) -> tuple[Report, str]:
    """(report, promise) of a verification as `args` ask for it."""
    from commands.audit.against import check_recorded
    from commands.progress import Bar
    from ledger.verify import verify

    since = None
    attested = None
    if args.since_checkpoint is not None:
        from commands.audit.against import start_after

        attested, hash_ = start_after(ledger, args.since_checkpoint)
        since = (attested.head.size, hash_)
    if args.against is not None:
        from commands.audit.against import compare_with

        attested = compare_with(ledger, args.against)
    bar = Bar("verifying")
    try:
        memory = Remembered(ledger)
        jobs = jobs_for(ledger.store.head().seq, args.jobs)
        report = verify(ledger.store, memory=memory.head, jobs=jobs, since=since, progress=bar.callback())
    finally:
        bar.close()
    size, promise = (attested.head.size, attested.promise) if attested is not None else (0, "recorded")
    if report.ok:
        recorded, how = check_recorded(ledger, report)
        if recorded > size:
            size, promise = recorded, how
        report.checkpointed = size
        report.after_checkpoint = report.head_seq - size
    memory.compare(report)
    return report, promise


def run(args: Args, context: Context) -> int:
    """Verify the ledger; exit 3 when anything is not as recorded."""
    promise = "recorded"
    try:
        ledger = context.ledger()
    except Tampered as error:
        report = unreadable(error)
    else:
        try:
            report, promise = examine(ledger, args)
            compare_stream(ledger, report)
        except Tampered as error:
            report = unreadable(error, "checkpoint", "a note that this ledger's history fits")
            from ledger.verify import bare_head

            head = bare_head(ledger.store)
            report.head_seq, report.head_hash, report.after_checkpoint = head.seq, head.hash, head.seq
    if args.json:
        emit(report.as_json())
    else:
        say(describe(report, promise))
        if report.ok and ledger.store.promise == "replicated":
            say("replicated: a quorum of the cluster holds every event of it")
    return 0 if report.ok else 3


COMMANDS = {
    "verify": Command(
        run,
        "Checks every hash, link, number, digest, canonical form and the table's shape, and this machine's memory of\n"
        "the head; names the first wrong event, the field, expected and found. Exit 3 when anything is not as recorded.\n"
        "Verdicts: ok, content-mismatch, link-broken, gap, order, truncated, forked, schema-tampered, unreadable,\n"
        "nothing-to-verify (and not-lawful, views-differ from `replay`).",
        flags=(
            Flag(
                "--jobs",
                "N",
                "processes to share the work (default: one a core for large ledgers)",
                number=True,
            ),
            Flag(
                "--since-checkpoint",
                "F",
                "only the events after this checkpoint note, which vouches for the rest",
            ),
            Flag("--against", "F", "the history must be the one of this checkpoint note, kept elsewhere"),
            Flag("--json", None, "one JSON object"),
        ),
        example="gatebook verify --json",
    )
}
