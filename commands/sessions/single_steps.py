"""The single steps for an orchestrating agent; each enforces the same order as `session run` (contract, Rounds)."""

from __future__ import annotations

from commands.context import Context, emit
from commands.flags import Args, Command, Flag, Word
from commands.sessions.session import OWNER, held
from ledger.errors import Invalid, Refused, Usage
from projections.session_rules import GATE_SKIPS, STEPS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.writer import Writer

_REPORT = Flag("--report", "F", "the report, or - for stdin", required=True)


def _attach(args: Args, context: Context) -> Writer:
    """The token's writer, unless the session's stop point is reached, or its file was changed since the last step."""
    from commands.sessions.advance import advance
    from commands.sessions.progress import stops_here
    from commands.sessions.view import refuse_foreign_change
    from commands.sessions.writer import attach

    writer = attach(context, args.owner)
    if context.via in ("polish step", "docs step"):
        _refuse_what_the_step_did(writer)
    refuse_foreign_change(writer.ledger, writer.root, writer.uuid)
    state = advance(writer)
    if state.lock is not None and stops_here(state, state.lock.stop_after):
        raise Refused(
            f"--stop-after {state.lock.stop_after} is reached: `gatebook session end --owner TOKEN`, then start again to go on"
        )
    return writer


def _refuse_what_the_step_did(writer: Writer) -> None:
    """A step's agent that changed the session file counts for nothing, as in a round; the file is written again."""
    from commands.sessions.view import foreign_change, write_view

    changed = foreign_change(writer.ledger, writer.root, writer.uuid)
    if changed:
        write_view(writer.ledger, writer.root, writer.uuid)
        raise Refused(
            f"the step changed the session file ({changed}); it was written again, do the step again"
        )


def _capped(writer: Writer, error: Exception) -> None:
    """A block releases the lock, too."""
    from commands.sessions.rounds import Capped

    if isinstance(error, Capped):
        writer.unlock("blocked")


def _keep_for_next(writer: Writer) -> None:
    """Before a step whose writes may be carried over: what is dirty now can be compared with what it leaves.

    Where it cannot be kept (git fails, the log's own list of it was erased), the step's writes clear the stages.
    """
    import contextlib

    from commands.sessions.progress import next_action
    from commands.sessions.steps import keep_contents
    from ledger.errors import GatebookError
    from projections.session_rules import FAST_REPLAY_STEPS

    state = writer.state()
    if next_action(state).partition(" ")[2] in FAST_REPLAY_STEPS:
        with contextlib.suppress(GatebookError):
            keep_contents(writer, writer.known_entries(state))


def _round_start(args: Args, context: Context) -> int:
    from commands.sessions.progress import next_action
    from commands.sessions.rounds import start_round, stop_at_exec_cap

    writer = _attach(args, context)
    try:
        if next_action(writer.state()) == "carry":
            from commands.sessions.drive import last_diff

            started = start_round(writer, kind="carry", scope=last_diff(writer))
        else:
            stop_at_exec_cap(writer)
            started = start_round(writer)
    except Refused as error:
        _capped(writer, error)
        raise
    emit({**held(writer, context), **started})
    return 0


def _round_report(args: Args, context: Context) -> int:
    from commands.sessions.rounds import executed, live_line, reviewed
    from commands.sessions.writer import attach, read_report

    report = read_report(args.report)
    writer = attach(context, args.owner)
    judge = executed if context.via == "round executed" else reviewed
    judgement = judge(writer, report)
    if judgement.valid:
        _keep_for_next(writer)
    role = "executor" if judge is executed else "reviewer"
    import sys

    said = f"{role}: {judgement.reason or judgement.verdict or 'valid'}"
    sys.stderr.write(f"gatebook: {live_line(writer, said)}\n")
    document = {**held(writer, context), **judgement.document()}
    if judgement.valid and role == "executor":
        from commands.sessions.context_persist import persist_due

        document["persist_context"] = persist_due(writer.config.context_persist_threshold)
    emit(document)
    if judgement.valid:
        return 0
    return 4 if writer.state().phase == "failed" else 1


def _gate_record(args: Args, context: Context) -> int:
    from commands.sessions.adapt import APPROVE as APPROVED
    from commands.sessions.adapt import REQUEST_CHANGES as REQUESTED
    from commands.sessions.rounds import record_gate
    from commands.sessions.writer import read_report

    if (args.report is None) == (args.skip is None):
        raise Usage("give the gate's output with --report F, or --skip REASON")
    writer = _attach(args, context)
    if args.skip is not None:
        from commands.sessions.gate_pass import skipped_by_config

        if args.skip == "skipped-by-config" and not skipped_by_config(writer):
            raise Refused("not every changed path matches adversarial_gate_skip_paths: run the gate")
        record_gate(writer, "SKIP", f"adversarial-gate: SKIP reason={args.skip}\n", args.skip)
    else:
        text = read_report(args.report).decode("utf-8").replace("\r\n", "\n")
        first = text.split("\n", 1)[0]
        if first not in (APPROVED, REQUESTED) or (first == REQUESTED) != ("\n### Issues\n" in text):
            raise Invalid("--report: this is not what `gate adapt` or `gate run` prints")
        record_gate(writer, first.removeprefix("adversarial-gate: "), text)
    _keep_for_next(writer)
    emit(held(writer, context))
    return 0


def _step(args: Args, context: Context) -> int:
    from commands.sessions.steps import StepReport, record_step, skip_step
    from commands.sessions.writer import read_report

    if (args.report is None) == (not args.skip):
        raise Usage("give the agent's report with --report F, or --skip when nobody does this step")
    stage = context.via.partition(" ")[0]
    report = None if args.report is None else StepReport(read_report(args.report))
    writer = _attach(args, context)
    try:
        if report is None:
            result = skip_step(writer, stage, args.name)
        else:
            result = record_step(writer, stage, args.name, report)
    except Refused as error:
        _capped(writer, error)
        raise
    _keep_for_next(writer)
    emit(
        {
            **held(writer, context),
            "outcome": result.outcome,
            "paths": list(result.paths),
            "fast_replay": result.eligible,
        }
    )
    return 1 if result.outcome in ("discarded", "unresolved") else 0


def _scan(args: Args, context: Context) -> int:
    from commands.sessions.preflight import scan

    writer = _attach(args, context)
    result = scan(writer)
    document = {
        "outcome": result.outcome,
        "flagged": result.flagged,
        "gitignore_added": result.added,
        "gitignore_open": result.open,
    }
    emit({**held(writer, context), **document})
    if result.outcome == "halted":
        from commands.sessions.preflight import halt_text

        writer.unlock("blocked")
        raise Refused(halt_text(result.flagged))
    return 0


_STEP_FLAGS = (
    OWNER,
    Flag("--report", "F", "the agent's report with `agent:` and `tool_uses:` lines, or - for stdin"),
    Flag("--skip", None, "nobody does this step; recorded as skipped"),
)


COMMANDS = {
    "round start": Command(
        _round_start, "Begin the next round; prints where its prompts lie.", flags=(OWNER,),
        example="gatebook round start --owner TOKEN",
    ),
    "round executed": Command(
        _round_report, "Judge and record the executor's report over the round's own delta: exit 1 invalid, 4 the second time.",
        flags=(OWNER, _REPORT), example="gatebook round executed --owner TOKEN --report executor.md",
    ),
    "round reviewed": Command(
        _round_report, "Judge and record the reviewer's report: exit 1 invalid, 4 the second time.",
        flags=(OWNER, _REPORT), example="gatebook round reviewed --owner TOKEN --report review.md",
    ),
    "gate record": Command(
        _gate_record, "Record the gate's one pass: what `gate run` or `gate adapt` printed, or its SKIP.",
        flags=(OWNER, Flag("--report", "F", "the gate's stdout, or - for stdin"), Flag("--skip", "REASON", "the SKIP's reason", choices=GATE_SKIPS)),
        example="gatebook gate record --owner TOKEN --report gate.txt",
    ),
    "polish step": Command(
        _step, "Record one step of 3.5: static-analysis, code-review, simplify, test-consolidation, summary.",
        words=(Word("NAME", "the step", offers=lambda: STEPS["polish"]),), flags=_STEP_FLAGS, example="gatebook polish step simplify --owner TOKEN --report r.md",
    ),
    "docs step": Command(
        _step, "Record one step of 3.6: project-docs, comments.",
        words=(Word("NAME", "the step", offers=lambda: STEPS["docs"]),), flags=_STEP_FLAGS, example="gatebook docs step comments --owner TOKEN --report r.md",
    ),
    "security scan": Command(
        _scan, "Look for tracked secrets and gaps in .gitignore (3.7).", flags=(OWNER,),
        example="gatebook security scan --owner TOKEN",
    ),
}  # fmt: skip
