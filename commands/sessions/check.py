"""`session check-report`: judge one report alone; needs no ledger (contract `review-sessions`, Rounds)."""

from __future__ import annotations

from commands.context import Context, emit
from commands.flags import Args, Command, Flag, Word


def _check(args: Args, context: Context) -> int:
    from commands.append import read_input
    from commands.git import quote_path
    from commands.sessions.reports import check_report, report_text

    del context
    text = report_text(read_input(args.file or "-", "the report"))
    delta = [quote_path(path.encode("utf-8", "surrogateescape")) for path in args.delta]
    judgement = check_report(args.role, text, delta)
    emit(judgement.document())
    return 0 if judgement.valid else 1


COMMANDS = {
    "session check-report": Command(
        _check,
        "Judge one executor's or reviewer's report: exit 0 valid, 1 not; prints the first fault's kind.",
        words=(Word("FILE", "the report, or - for stdin (the default)", optional=True),),
        flags=(
            Flag("--role", "ROLE", "whose report", required=True, choices=("executor", "reviewer")),
            Flag(
                "--delta",
                "PATH",
                "a path that the round changed; may be repeated (default: none changed)",
                many=True,
            ),
        ),
        example="gatebook session check-report --role executor --delta src/a.py report.md",
    ),
}
