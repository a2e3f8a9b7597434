"""`dispatch run`: the whole bounded loop, from a request to its complete result; resumable after a crash at any line.

validate, block or select, dispatch, classify, record, select again; then verify by running the seam, and conclude.
Circuits are recorded before the return that names them: dying in between leaves an attempt without an end, which
is shown, and an outage that is already known.
"""

from __future__ import annotations

import os

from commands.context import Context, emit
from commands.dispatch.executors import Executor, Job
from commands.dispatch.memory import memory_of
from commands.dispatch.preflight import Stop
from commands.dispatch.record import Record, stream_of
from commands.dispatch.request import Malformed, identity, read_request
from commands.dispatch.result import EXIT_CODES, result_of
from commands.dispatch.returned import AVAILABILITY, SUCCEEDED, Returned, failed
from commands.dispatch.selecting import Chooser
from commands.dispatch.work import Work, open_request
from commands.flags import Args, Command, Flag, Word
from ledger.errors import Conflict, GatebookError, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commands.dispatch.circuits import Named
    from commands.dispatch.rubric import Row
    from projections.dispatch import State

_GOES_ON = ("lost", "availability_failure", "missing_executor")  # endings after which a candidate may follow
DEFAULT_TIMEOUT = 3600
DEFAULT_SEAM_TIMEOUT = 600


def run(args: Args, context: Context) -> int:
    """`dispatch run REQUEST.json`: whatever happens to it, its caller gets the complete result."""
    chooser = Chooser(args, context)  # bad arguments are told before any file is read
    document: dict[str, Any] = {}
    try:
        reply = _reply(args, context, chooser, document)
    except Usage:
        raise
    except GatebookError as error:
        emit(result_of("blocked", [str(error)], requested=str(document.get("route", ""))))
        return error.exit_code
    except OSError as error:  # a full or read-only disk
        why = f"{os.fsdecode(error.filename or '')}: {error.strerror or error}".removeprefix(": ")
        emit(result_of("blocked", [why], requested=str(document.get("route", ""))))
        return EXIT_CODES["blocked"]
    emit(reply)
    return EXIT_CODES.get(reply["status"], 0)


def _reply(args: Args, context: Context, chooser: Chooser, document: dict[str, Any]) -> dict[str, Any]:
    """The result of the request, or what it awaits; `document` becomes the request as soon as it was read."""
    ledger = context.ledger()
    _end_with_parent()
    raw = b""
    try:
        found, raw = read_request(args.request)
        document.update(found)
        with _Alone(ledger.folder, identity(document)):
            work = open_request(ledger, context.origin(), document, raw)
            return _Loop(work, chooser, args, context).go()
    except Malformed as error:
        return block(context, document, raw, args.request, Stop("malformed", str(error)), error.route)
    except Stop as stop:
        return block(context, document, raw, args.request, stop, str(document.get("route", "")))


def block(
    context: Context, document: dict[str, Any], raw: bytes, path: str, stop: Stop, route: str
) -> dict[str, Any]:
    """Record the block under the request's identity, or its bytes' when it is no JSON at all."""
    from blake3 import blake3

    name = identity(document) if document else blake3(raw or os.fsencode(path)).hexdigest()
    record = Record(context.ledger(), context.origin(), stream_of(name))
    state = record.state
    if state.phase == "open" and state.last is not None and state.last.status not in _GOES_ON:
        # An attempt is open or has returned: its own end is what must be recorded, not a block.
        return result_of("blocked", stop.blockers, requested=route, state=state)
    return record.block(name, stop, route)


def _end_with_parent() -> None:
    """A plain kill ends us through our own clean-up, so that no worker is left without anybody to judge it."""
    import signal
    import sys
    import threading

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _frame: sys.exit(128 + number))


class _Alone:
    """Holds this request for one process: a second `dispatch run` of it is a Conflict, not a second worker."""

    def __init__(self, folder: str, name: str) -> None:
        self._path = os.path.join(folder, "dispatch.lock")
        self._offset = int(name[:12], 16)
        self._name = name

    def __enter__(self) -> None:
        import fcntl

        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._offset)
        except OSError:
            os.close(self._descriptor)
            raise Conflict(
                f"dispatch {self._name[:32]} is being run by another process; wait for its result"
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class _Loop:
    """One run of one request."""

    def __init__(self, work: Work, chooser: Chooser, args: Args, context: Context) -> None:
        self.work = work
        self.chooser = chooser
        self.timeout = DEFAULT_TIMEOUT if args.timeout is None else args.timeout
        self.seam_timeout = DEFAULT_SEAM_TIMEOUT if args.seam_timeout is None else args.seam_timeout
        self._context = context

    def go(self) -> dict[str, Any]:
        """The complete result, or what awaits the native runtime."""
        while True:
            state = self.work.state
            attempt = state.open_attempt
            if attempt is not None and not (state.request and state.request.repeatable):
                raise _Unended(attempt.number, attempt.candidate, self.work.stream)
            last = state.last
            if last is not None and last.violation:
                return self.work.concluded("failed")
            if last is None or last.status in ("", *_GOES_ON):
                awaiting = self._attempt(state)
                if awaiting is not None:
                    return awaiting
                continue
            if not last.good:
                return self.work.concluded("failed")
            return self._prove(state)

    def _attempt(self, state: State) -> dict[str, Any] | None:
        """One selection and one attempt; the packet when the caller itself must do it."""
        chosen = self._pending(state)
        if chosen is None:
            selection = self.chooser.select(self.work)
            row, endpoint, current = selection.row, selection.endpoint, selection.executor == "current"
        else:
            row, endpoint = chosen
            current = row.reference == self.chooser.active
        executor = self.chooser.executor_of(endpoint)
        packet = self.work.packet(row, recalled=memory_of(self.work, self._context).recalled())
        if executor.interactive or current:
            return self._awaiting(row, packet, current=current)
        self._dispatch(executor, row, endpoint, packet)
        return None

    def _pending(self, state: State) -> tuple[Row, str] | None:
        """A selection that a crash or an awaited native runtime left behind, when it still can be followed."""
        if state.selection is None or state.open_attempt is not None:
            return None
        self.chooser.discover(self.work)
        row = self.chooser.rubric.rows.get(state.selection.candidate)
        executor = self.chooser.inventory.get(state.selection.executor)
        if row is None or executor is None or row.provider != state.selection.provider:
            return None
        if state.outstanding(self.work.void_before) and not executor.interactive:
            return None
        return row, f"{row.provider}|{executor.name}"

    def _awaiting(self, row: Row, packet: dict[str, Any], *, current: bool) -> dict[str, Any]:
        name = self.work.stream.partition("/")[2]
        return {
            "status": "awaiting",
            "executor": "current" if current else "native",
            "dispatch": "direct" if current else "delegated",
            "id": name,
            "model": row.name,
            "effort": row.effort,
            "packet": packet,
            "next": f"gatebook dispatch attempt {name}",
        }

    def _dispatch(self, executor: Executor, row: Row, endpoint: str, packet: dict[str, Any]) -> None:
        data = self.work.attempted(row, packet)
        # Crash from here to `returned`: the attempt has no end, and the next run says so.
        job = Job(
            packet,
            cwd=self.work.request.authority.working_directory,
            sandbox=data.sandbox,
            worker=data.worker,
            timeout=self.timeout,
        )
        outcome = without_secrets(executor.run(job))
        seen = self.work.compared()
        outcome, named = record_health(self.chooser, self.work, endpoint, outcome)
        self.work.returned(outcome, seen, named, keep_report(outcome, packet))

    def _prove(self, state: State) -> dict[str, Any]:
        if not state.verified_seq:
            self.work.verified(self.seam_timeout)
        if not self.work.state.proven:
            return self.work.concluded("failed")
        return self._accept()

    def _accept(self) -> dict[str, Any]:
        memory = memory_of(self.work, self._context)
        result = self.work.concluded("accepted", project=memory.project())
        memory.capture()
        return result


class _Unended(Stop):
    """An attempt has no end, and the request does not say that it may be repeated; nothing is recorded of this call."""

    def __init__(self, number: int, candidate: str, stream: str) -> None:
        name = stream.partition("/")[2]
        super().__init__(
            "executor",
            f"attempt {number} ({candidate}) has no recorded end and the request is not repeatable: record how it ended "
            f"(`gatebook dispatch returned {name} --status …`) or give it up (`gatebook dispatch conclude {name} --status abandoned`)",
        )


def without_secrets(outcome: Returned) -> Returned:
    """An outcome whose report carries a credential is a failure without a report."""
    from ledger.credentials import find_credential

    kind = find_credential(outcome.report.encode("utf-8", "replace"))
    return (
        outcome
        if kind is None
        else failed(f"the report carries what looks like a credential ({kind})", healthy=True)
    )


def record_health(chooser: Chooser, work: Work, endpoint: str, outcome: Returned) -> tuple[Returned, Named]:
    """Put what the outcome says of the endpoint on the user's record; an outage that cannot be recorded is a failure."""
    from commands.dispatch.circuits import Named

    try:
        if outcome.status == AVAILABILITY and outcome.reason is not None:
            return outcome, chooser.circuits.failed(endpoint, outcome.reason, outcome.retry_at, work.named())
        if outcome.healthy:
            return outcome, chooser.circuits.answered(endpoint, work.named())
    except GatebookError as error:
        if outcome.status == AVAILABILITY:
            return failed(f"{outcome.reason}, but provider health cannot be recorded: {error}"), Named()
        outcome.why = outcome.why or f"provider health cannot be recorded: {error}"
    return outcome, Named()


def keep_report(outcome: Returned, packet: dict[str, Any]) -> str:
    """The path of the report in a fresh directory of its own (0700), empty when there is none or no place for it."""
    import tempfile

    from commands.context import dumps

    if outcome.status != SUCCEEDED or not outcome.report:
        return ""
    try:
        folder = tempfile.mkdtemp(prefix="gatebook-dispatch-")
        for name, text in (("packet.json", dumps(packet)), ("report.md", outcome.report)):
            descriptor = os.open(
                os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
    except OSError:  # the record has its text
        return ""
    return os.path.join(folder, "report.md")


SELECT_FLAGS = (
    Flag("--rubric", "F", "the rubric (default: .gatebook/rubric.yaml, then the user's)"),
    Flag("--native-provider", "P", "whose models run natively here"),
    Flag("--executors", "LIST", "callable executors (default: codex and those of the user's config.toml)"),
    Flag("--authoring-providers", "LIST", "who wrote the target, beside the request's own"),
    Flag("--attempted", "LIST", "candidates dispatched and recorded as unavailable before"),
    Flag("--active-candidate", "REF", "the model@effort that is asking"),
    Flag(
        "--state", "FILE", "the shared health file (default: $XDG_STATE_HOME/gatebook/provider-health.json)"
    ),
    Flag("--now", "T", "judge circuits as of this time"),
)

COMMANDS = {
    "dispatch run": Command(
        run,
        "Takes one bounded request from validation to its complete HarnessResult: select, dispatch, classify, fall back,\n"
        "verify by running the seam here, conclude. Without --native, a native selection returns status awaiting with\n"
        "the packet. Exit 0 accepted or awaiting, 1 failed, 4 blocked, 5 already being run.",
        words=(Word("REQUEST", "the request, a JSON file or -"),),
        flags=(
            *SELECT_FLAGS,
            Flag(
                "--native",
                "CMD",
                "the native executor: packet on stdin, report on stdout; {model} and {effort} are filled in",
            ),
            Flag("--timeout", "SECONDS", "how long one attempt may take (default 3600)", number=True),
            Flag(
                "--seam-timeout", "SECONDS", "how long the verification may take (default 600)", number=True
            ),
        ),
        example="gatebook dispatch run request.json --rubric rubric.yaml --native-provider anthropic --executors codex",
        json_errors=True,
    ),
}
