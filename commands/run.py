"""`run claim|prepare-results|next|execute|pause|deliver|report|finalize|recover` (contract page plan-runs)."""

from __future__ import annotations

from commands.context import Context, emit
from commands.flags import Args, Command, Flag
from commands.plan import NOW, ROUTES, RUN_DIR, SESSION, SKILLS, resolver_of, stale_is_said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from commands.plan_runs.handing_off import Dispatch
    from commands.plan_runs.run_ledger import Run
    from commands.plan_runs.skills import SkillFolder

_RECEIPT = Flag("--receipt", "FILE", "a receipt to check and pass on with the item that it is for")


def _run(args: Args, context: Context) -> Run:
    from commands.plan_runs.owner import current_authorization_session
    from commands.plan_runs.run_ledger import Run

    return Run(context, args.run_dir, now=args.now, session=current_authorization_session(args.session))


def _refusals_are_recorded(step: Callable[[Args, Context], int]) -> Callable[[Args, Context], int]:
    """The command, with a refusal because another session holds the run recorded as `marker.refused`."""

    def wrapped(args: Args, context: Context) -> int:
        from commands.plan_runs.run_ledger import HeldByAnotherError

        try:
            return step(args, context)
        except HeldByAnotherError as error:
            from commands.plan_runs.claiming import refuse_marker

            refuse_marker(_run(args, context), error)
            raise

    return stale_is_said(wrapped)


def _undisturbed(run: Run, step: Callable[[Run], dict[str, Any]]) -> dict[str, Any]:
    """What `step` gives, with no `run execute` at work in the run meanwhile; `Conflict` where one is."""
    import fcntl
    import os

    from commands.plan_runs.run_ledger import read_documents, require_owner
    from commands.plan_runs.workers import lock_run
    from ledger.errors import Conflict

    try:
        lock = lock_run(run.folder.path, fcntl.LOCK_SH)
    except Conflict:
        # Who does not hold the run is told that first, and it is recorded.
        require_owner(run, run.look(), read_documents(run.folder), prepared=False)
        raise
    try:
        return step(run)
    finally:
        os.close(lock)


def _skills(args: Args) -> SkillFolder:
    from commands.plan_runs.skills import SkillFolder

    return SkillFolder(args.skills)


def _dispatch(args: Args, context: Context) -> Dispatch:
    from commands.plan_runs.handing_off import Dispatch

    run = _run(args, context)
    receipt = None
    if args.receipt is not None:
        from commands.plan_runs.authorization import checked_for_hand_off

        receipt = checked_for_hand_off(run.ledger, args.receipt, run.session)
    return Dispatch(run, _skills(args) if args.skills else None, resolver_of(args), receipt)


def claim(args: Args, context: Context) -> int:
    """`run claim`: takes today's run for this session, or comes back to it."""
    from commands.plan_runs.claiming import claim as take
    from commands.plan_runs.claiming import refuse_marker
    from commands.plan_runs.owner import current_authorization_session
    from commands.plan_runs.run_ledger import Run
    from ledger.errors import Refused

    run = Run(context, args.run_dir, now=args.now)
    try:
        run.session = current_authorization_session(args.session)
    except Refused as error:
        refuse_marker(run, error)
        raise
    emit(take(run))
    return 0


def prepare(args: Args, context: Context) -> int:
    """`run prepare-results`: older results leave the approved slots; the marker is stamped."""
    from commands.plan_runs.preparation import prepare_results

    emit(prepare_results(_run(args, context)))
    return 0


def next_item(args: Args, context: Context) -> int:
    """`run next`: hands off the next approved item and says what its skill needs."""
    from commands.plan_runs.handing_off import next_step

    dispatch = _dispatch(args, context)
    dispatch.run.require_current()
    emit(_undisturbed(dispatch.run, lambda _run: next_step(dispatch)))
    return 0


def execute(args: Args, context: Context) -> int:
    """`run execute`: hands off everything that is left, in order, to one program."""
    from commands.plan_runs.executing import execute as run_all
    from commands.plan_runs.workers import InterruptedRunError

    try:
        emit(run_all(_dispatch(args, context), args.handoff))
    except InterruptedRunError as error:
        from ledger.notice import tell

        tell("interrupted; the run stays yours, the same command goes on", "error")
        return 128 + error.number
    return 0


def pause(args: Args, context: Context) -> int:
    """`run pause`: the remaining items get deferred results; the run stays owned."""
    from commands.plan_runs.handing_off import pause as stop
    from ledger.errors import Usage

    if not args.reason.strip():
        raise Usage("--reason must say why")
    emit(_undisturbed(_run(args, context), lambda run: stop(run, args.reason.strip())))
    return 0


def report(args: Args, context: Context) -> int:
    """`run report`: writes REPORT.md when every item has a valid result."""
    from commands.plan_runs.closing import report as write

    emit(_undisturbed(_run(args, context), lambda run: write(run, _skills(args))))
    return 0


def deliver(args: Args, context: Context) -> int:
    """`run deliver`: copies the ready drafts to final_drafts/."""
    from commands.plan_runs.closing import deliver as copy

    emit(_undisturbed(_run(args, context), copy))
    return 0


def finalize(args: Args, context: Context) -> int:
    """`run finalize`: ends the run when everything holds; another owner, or a worker, is one of the conditions, so exit 4."""
    from commands.plan_runs.closing import finalize as end
    from commands.plan_runs.run_ledger import HeldByAnotherError
    from ledger.errors import Conflict, Refused

    run = _run(args, context)
    try:
        emit(_undisturbed(run, end))
    except Conflict as error:
        if isinstance(error, HeldByAnotherError):
            from commands.plan_runs.claiming import refuse_marker

            refuse_marker(run, error)
        raise Refused(str(error)) from None
    return 0


def recover(args: Args, context: Context) -> int:
    """`run recover`: closes the markers of past days; exit 4 when one must be looked at."""
    from commands.plan_runs.recovery import checked_runs, recover_all
    from commands.plan_runs.run_folder import local_day, parse_now

    today = local_day(parse_now(args.now), spelled=args.now)
    recovered, faults = recover_all(context, checked_runs(args.runs), today, args.now, "")
    emit({"recovered": recovered, "kept": faults})
    for fault in faults:
        from ledger.notice import tell

        told = fault["reason"].removesuffix("; the marker is kept for inspection")
        tell(f"{told}; the marker is kept for inspection", "error")
    return 4 if faults else 0


_OWNED = (RUN_DIR, SESSION, NOW)

COMMANDS = {
    "run claim": Command(
        stale_is_said(claim),
        "Takes today's approved run for this session, or comes back to it; markers of past days are recovered first.\n"
        "Exit 5: another session holds it; 4: no approval, or a marker that must be looked at.",
        flags=_OWNED,
        example="gatebook run claim --run-dir runs/2026-11-30",
    ),
    "run prepare-results": Command(
        _refusals_are_recorded(prepare),
        "Moves older results out of the approved slots and stamps the marker; safe to run again, needed after each claim.",
        flags=_OWNED,
        example="gatebook run prepare-results --run-dir runs/2026-11-30",
    ),
    "run next": Command(
        _refusals_are_recorded(next_item),
        "Records the last hand-off's result, then hands off the next approved item and prints what its skill needs.\n"
        "The worker leaves result.json in work_dir; then run this again. `done` is true when nothing is left.",
        flags=(*_OWNED, SKILLS, ROUTES, _RECEIPT),
        example="gatebook run next --run-dir runs/2026-11-30 --skills skills",
    ),
    "run execute": Command(
        _refusals_are_recorded(execute),
        "Hands off every approved item in order: CMD gets the item as JSON on stdin, its work directory as cwd, and leaves\n"
        "result.json there. Interrupted or killed, the same command goes on; nothing is done twice.",
        flags=(
            *_OWNED,
            Flag("--handoff", "CMD", "the program that does one item", required=True),
            SKILLS,
            ROUTES,
            _RECEIPT,
        ),
        example="gatebook run execute --run-dir runs/2026-11-30 --handoff ./worker.sh",
    ),
    "run pause": Command(
        _refusals_are_recorded(pause),
        "Gives every item that remains a deferred result; a later hand-off in this owned run may replace it.",
        flags=(*_OWNED, Flag("--reason", "TEXT", "why", required=True)),
        example="gatebook run pause --run-dir runs/2026-11-30 --reason 'out of quota'",
    ),
    "run deliver": Command(
        _refusals_are_recorded(deliver),
        "Copies each ready draft to final_drafts/ under a stable name; the sources stay.",
        flags=_OWNED,
        example="gatebook run deliver --run-dir runs/2026-11-30",
    ),
    "run report": Command(
        _refusals_are_recorded(report),
        "Writes REPORT.md when every item has a valid result.",
        flags=(*_OWNED, SKILLS),
        example="gatebook run report --run-dir runs/2026-11-30",
    ),
    "run finalize": Command(
        stale_is_said(finalize),
        "Ends the run: every result valid, plan and owner unchanged, the report written. Removes the marker last.\n"
        "Exit 4 names the first missing piece and keeps the marker.",
        flags=_OWNED,
        example="gatebook run finalize --run-dir runs/2026-11-30",
    ),
    "run recover": Command(
        recover,
        "Closes the markers that past days left: unfinished items are deferred, ledger file and report written.\n"
        "Exit 4: a marker is malformed, mismatched or without a valid snapshot; it is kept and named.",
        flags=(Flag("--runs", "DIR", "the folder that holds the days", required=True), NOW),
        example="gatebook run recover --runs runs",
    ),
}
