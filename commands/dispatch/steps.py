"""`dispatch …`: the steps of a dispatch one by one, for an agent that dispatches by itself; admission keeps their order."""

from __future__ import annotations

from commands.context import Context, emit
from commands.dispatch.memory import memory_of
from commands.dispatch.preflight import Stop
from commands.dispatch.record import Record, stream_of
from commands.dispatch.request import Malformed, identity, read_request
from commands.dispatch.result import EXIT_CODES
from commands.dispatch.run import (
    DEFAULT_SEAM_TIMEOUT,
    SELECT_FLAGS,
    keep_report,
    record_health,
    without_secrets,
)
from commands.dispatch.work import find_work, open_request
from commands.flags import Args, Command, Flag, Word
from ledger.errors import GatebookError, Invalid, Refused, Usage
from projections.dispatch_events import ENDINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from commands.dispatch.returned import Returned
    from commands.dispatch.work import Work

_ID = Word("ID", "the dispatch id that `dispatch open` printed")
_EVERY_ENDING = ("succeeded", *(name for name in ENDINGS if name != "succeeded"))


def told(step: Callable[[Args, Context], int]) -> Callable[[Args, Context], int]:
    """`step`, whose refusals are told on stdout too, as the one JSON document that its caller reads."""

    def run(args: Args, context: Context) -> int:
        try:
            return step(args, context)
        except Usage:
            raise
        except GatebookError as error:
            emit({"status": "refused" if error.exit_code == 4 else "error", "blockers": [str(error)]})
            return error.exit_code

    return run


def _name(work: Record) -> str:
    return work.stream.partition("/")[2]


def open_(args: Args, context: Context) -> int:
    """`dispatch open REQUEST.json`: validate and record the request, or its block."""
    from commands.dispatch.run import block

    ledger = context.ledger()
    document: dict[str, Any] = {}
    raw = b""
    try:
        document, raw = read_request(args.request)
        work = open_request(ledger, context.origin(), document, raw)
    except Malformed as error:
        emit(block(context, document, raw, args.request, Stop("malformed", str(error)), error.route))
        return 4
    except Stop as stop:
        emit(block(context, document, raw, args.request, stop, str(document.get("route", ""))))
        return 4
    outstanding = [
        item.what
        for item in work.request.authority.approvals
        if _is_outstanding(work, identity(document), item.what)
    ]
    emit(
        {
            "status": "open",
            "id": _name(work),
            "route": work.request.route,
            "sandbox": work.ceiling.sandbox,
            "outstanding_approvals": outstanding,
        }
    )
    return 0


def _is_outstanding(work: Work, name: str, what: str) -> bool:
    from projections.dispatch_events import mark

    return mark(name, what) in {needed.what for needed in work.state.outstanding(work.void_before)}


def select(args: Args, context: Context) -> int:
    """`dispatch select ID`: choose and record the candidate of the next attempt."""
    from commands.dispatch.selecting import Chooser

    chooser = Chooser(args, context)
    work = find_work(context.ledger(), context.origin(), args.id)
    try:
        chosen = chooser.select(work)
    except Stop as stop:
        state = work.state
        assert state.request is not None
        if state.open_attempt is not None:
            raise
        emit(work.block(state.request.request, stop, work.request.route))
        return 4
    emit(chosen.reply())
    return 0


def attempt(args: Args, context: Context) -> int:
    """`dispatch attempt ID`: pin what must not change; from here on the selected candidate may work."""
    from commands.dispatch.rubric import Row

    if args.worker is not None:
        _check_actor(args.worker)
    work = find_work(context.ledger(), context.origin(), args.id)
    chosen = work.state.selection
    if chosen is None:
        raise Refused(
            f"{args.id}: no candidate is selected; `gatebook dispatch select {args.id}` comes first"
        )
    name, _, effort = chosen.candidate.rpartition("@")
    row = Row(name, effort, chosen.provider, None, None)
    packet = work.packet(row, recalled=memory_of(work, context).recalled(), sandbox=args.sandbox or "")
    data = work.attempted(row, packet, args.worker or "", args.sandbox or "")
    emit(
        {
            "status": "attempted",
            "id": _name(work),
            "attempt": data.attempt,
            "worker": data.worker,
            "sandbox": data.sandbox,
            "packet": packet,
        }
    )
    return 0


def _check_actor(worker: str) -> None:
    from ledger.credentials import find_credential
    from ledger.event import Origin

    if find_credential(worker.encode("utf-8", "surrogateescape")) is not None:
        raise Usage("--worker carries what looks like a credential")
    try:
        Origin(worker, "dispatch attempt")
    except Invalid as error:
        raise Usage(f"--worker: {error}") from None


def returned(args: Args, context: Context) -> int:
    """`dispatch returned ID`: how the attempt ended, as the executor said it in types."""
    from commands.dispatch.selecting import Chooser

    outcome = _outcome(args)
    chooser = Chooser(args, context)
    work = find_work(context.ledger(), context.origin(), args.id)
    open_attempt = work.state.open_attempt
    if open_attempt is None or args.attempt not in (None, open_attempt.number):
        # Fenced: whoever comes back late must not end the attempt that followed its own.
        raise Refused(f"{args.id}: no attempt {'' if args.attempt is None else f'{args.attempt} '}is open")
    outcome = without_secrets(outcome)
    endpoint = f"{open_attempt.provider}|{open_attempt.executor}"
    seen = work.compared()
    outcome, named = record_health(chooser, work, endpoint, outcome)
    data = work.returned(outcome, seen, named, keep_report(outcome, {}) if args.report else "")
    emit(
        {
            "status": data.status,
            "id": _name(work),
            "attempt": data.attempt,
            "reason": data.reason,
            "violation": data.violation,
            "changed_files": data.changed,
            "blockers": work.why(work.state),
        }
    )
    return 1 if data.violation or data.unchanged_artifacts else 0


def _outcome(args: Args) -> Returned:
    from commands.append import read_input
    from commands.dispatch.returned import AVAILABILITY, FAILED, MISSING, SUCCEEDED, Returned
    from projections.cooldowns import REASONS

    if (args.status == AVAILABILITY) != (args.reason is not None):
        raise Usage(f"--reason ({', '.join(REASONS)}) goes with --status {AVAILABILITY}, and is needed there")
    retry_at = None
    if args.retry_at is not None:
        from projections.times import parse_time

        if args.reason != "quota":
            raise Usage("--retry-at goes only with --reason quota")
        try:
            retry_at = parse_time(args.retry_at, "--retry-at")
        except Invalid as error:
            raise Usage(str(error)) from None
    report = "" if args.report is None else read_input(args.report, "--report").decode("utf-8", "replace")
    status = args.status if args.status in (SUCCEEDED, AVAILABILITY, MISSING) else FAILED
    why = "" if args.status == SUCCEEDED else args.reason or f"the executor ended: {args.status}"
    healthy = args.status in (SUCCEEDED, FAILED)
    return Returned(
        status,
        healthy=healthy,
        reason=args.reason,
        retry_at=retry_at,
        report=report,
        why=why,
        ending=args.status,
    )


def verify(args: Args, context: Context) -> int:
    """`dispatch verify ID`: run the seam here; only that proves anything."""
    work = find_work(context.ledger(), context.origin(), args.id)
    data = work.verified(DEFAULT_SEAM_TIMEOUT if args.seam_timeout is None else args.seam_timeout)
    known = work.evidence(work.state)
    emit(
        {
            "status": "proven" if data.proven else "unproven",
            "id": _name(work),
            "fixed_target": known.fixed_target,
            "checks": known.checks,
        }
    )
    return 0 if data.proven else 1


def conclude(args: Args, context: Context) -> int:
    """`dispatch conclude ID`: the end of this run, and its complete result."""
    ledger, origin = context.ledger(), context.origin()
    record = Record(ledger, origin, stream_of(args.id))
    state = record.state
    status = args.status
    if status is None:
        status = "accepted" if state.proven else "failed"
    if status == "abandoned":
        emit(_abandon(record, args.reason))
        return EXIT_CODES[status]
    work = find_work(ledger, origin, args.id)
    memory = memory_of(work, context)
    emit(work.concluded(status, [args.reason] if args.reason else None, memory.project()))
    memory.capture()
    return EXIT_CODES[status]


def _abandon(record: Record, reason: str | None) -> dict[str, Any]:
    """Give an open request up, even one whose directory is gone or whose content was redacted."""
    from commands.dispatch.result import result_of
    from projections.dispatch_events import Concluded

    state = record.state
    route = state.request.route if state.request else ""
    blockers = [reason or "given up"]
    found = result_of("abandoned", blockers, requested=route, state=state, elapsed=record.elapsed(state))
    record.add("dispatch.concluded", Concluded("abandoned", len(state.attempts)), found)
    return found


COMMANDS = {
    "dispatch open": Command(
        told(open_),
        "Validates a request and records it. Prints its id, which the other steps take; a request that nobody may work\n"
        "on prints the complete blocked result (exit 4).",
        words=(Word("REQUEST", "the request, a JSON file or -"),),
        example="gatebook dispatch open request.json",
        json_errors=True,
    ),
    "dispatch select": Command(
        told(select),
        "Chooses and records the candidate of the next attempt, as `route select` does, passing over executors that cannot\n"
        "keep to the request's authority.",
        words=(_ID,),
        flags=SELECT_FLAGS,
        example="gatebook dispatch select 0123456789abcdef0123456789abcdef --native-provider anthropic",
        json_errors=True,
    ),
    "dispatch attempt": Command(
        told(attempt),
        "Pins HEAD, refs, index, stash, configuration and files, and records that the selected candidate is set to work.\n"
        "Prints the packet for it. Refused while an approval is outstanding.",
        words=(_ID,),
        flags=(
            Flag("--worker", "KIND:ID", "the actor that the worker would write as"),
            Flag("--sandbox", "SANDBOX", "narrower than the request allows", choices=("read-only",)),
        ),
        example="gatebook dispatch attempt 0123456789abcdef0123456789abcdef",
        json_errors=True,
    ),
    "dispatch returned": Command(
        told(returned),
        "Records how the open attempt ended, opens or closes the endpoint's circuit accordingly, and compares the pins.\n"
        "Exit 1 when something outside the authority changed, or an artifact that should have changed did not.",
        words=(_ID,),
        flags=(
            Flag("--status", "STATUS", "how it ended", required=True, choices=_EVERY_ENDING),
            Flag(
                "--reason",
                "REASON",
                "the typed outage",
                choices=("quota", "authentication", "rate_limit", "provider_unavailable"),
            ),
            Flag("--retry-at", "T", "when the quota is back"),
            Flag("--attempt", "N", "only if attempt N is the open one", number=True),
            Flag("--report", "F", "the worker's final report"),
            *(flag for flag in SELECT_FLAGS if flag.name in ("--state", "--now")),
        ),
        example="gatebook dispatch returned 0123456789abcdef0123456789abcdef --status succeeded --report report.md",
        json_errors=True,
    ),
    "dispatch verify": Command(
        told(verify),
        "Runs the request's seam here, in a process of its own with a time limit, and records what it proved.\n"
        "Exit 1 when it proved nothing.",
        words=(_ID,),
        flags=(Flag("--seam-timeout", "SECONDS", "how long it may take (default 600)", number=True),),
        example="gatebook dispatch verify 0123456789abcdef0123456789abcdef",
        json_errors=True,
    ),
    "dispatch conclude": Command(
        told(conclude),
        "Ends this run of the request and prints the complete HarnessResult; accepted only after a proof since the last return.",
        words=(_ID,),
        flags=(
            Flag(
                "--status",
                "STATUS",
                "accepted (default when proven), failed or abandoned",
                choices=("accepted", "failed", "abandoned"),
            ),
            Flag("--reason", "R", "a blocker for the result"),
        ),
        example="gatebook dispatch conclude 0123456789abcdef0123456789abcdef",
        json_errors=True,
    ),
}
