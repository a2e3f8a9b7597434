"""`codex …`: the guarded Codex adapter, drop-in for the scripts that the dispatch seed names.

Contract page dispatch, Codex adapter: compact JSON on stdout; exit 0, 1, 2, 4, 69, 75.
"""

from __future__ import annotations

import os

from commands.context import Context, emit
from commands.flags import Args, Command, Flag
from ledger.errors import GatebookError, Invalid, Refused, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.dispatch.codex_turn import Turn
    from commands.dispatch.returned import Returned

MAX_PROMPT = 1024 * 1024
DEFAULT_TIMEOUT = 3600  # seconds of one turn
_OPERATIONS = ("execute", "review", "computer-use")
_SANDBOXES = ("read-only", "workspace-write", "danger-full-access")
_APPROVALS = ("never", "on-request", "on-failure", "untrusted", "granular")


def check(_args: Args, _context: Context) -> int:
    """`codex check`: can Codex be driven here?"""
    from commands.dispatch.codex_check import codex_is_missing

    missing = codex_is_missing()
    emit({"status": "missing_executor" if missing else "available"})
    return 69 if missing else 0


def _one_of(value: str, flag: str, lawful: tuple[str, ...], refused: tuple[str, ...], why: str) -> str:
    if value in lawful:
        return value
    if value in refused:
        raise Refused(f"{flag} {value}: {why}")
    raise Usage(f"{flag}: {value!r} is not one of {', '.join(lawful)}")


def _printable(value: str, flag: str) -> str:
    if not value.strip() or not value.isprintable():
        raise Usage(f"{flag} must be printable text")
    _no_credential(value.encode(), flag)
    return value


def _no_credential(raw: bytes, place: str) -> None:
    from ledger.credentials import find_credential

    kind = find_credential(raw)
    if kind is not None:
        raise Refused(f"{place} carries what looks like a credential ({kind}); take it out")


def _prompt(path: str) -> str:
    from ledger.canonical import text_of

    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_PROMPT + 1)
    except (OSError, ValueError) as error:
        raise Usage(f"--prompt: cannot read {path!r}: {getattr(error, 'strerror', error)}") from None
    if len(raw) > MAX_PROMPT:
        raise Usage(f"--prompt: larger than {MAX_PROMPT // 1024} KiB")
    try:
        text = text_of(raw, "--prompt")
    except Invalid as error:
        raise Usage(str(error)) from None
    if not text.strip():
        raise Usage("--prompt: the file is empty")
    _no_credential(raw, "--prompt: the file")
    return text


def _directory(path: str) -> str:
    if not os.path.isdir(path):
        raise Usage(f"--cwd: {path!r} is not a directory")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Usage(f"--cwd: {path!r} is not UTF-8, so it cannot be said to Codex") from None
    return path


def _report_place(path: str) -> str:
    folder = os.path.dirname(path) or os.curdir
    if not os.path.isdir(folder) or os.path.isdir(path) or not os.path.basename(path):
        raise Usage(f"--report: {path!r} is not a file in an existing directory")
    return path


def _turn(args: Args) -> Turn:
    from commands.dispatch.codex_turn import Turn

    _one_of(args.operation, "--operation", _OPERATIONS[:1], _OPERATIONS[1:], "unsupported; only execute is")
    sandbox = _one_of(
        args.sandbox, "--sandbox", _SANDBOXES[:2], _SANDBOXES[2:], "no request may go without a sandbox"
    )
    _one_of(
        args.approval, "--approval", _APPROVALS[:1], _APPROVALS[1:], "nobody is here to approve; use never"
    )
    _report_place(args.report)
    return Turn(
        cwd=_directory(args.cwd),
        sandbox=sandbox,
        model=_printable(args.model, "--model"),
        effort=_printable(args.effort, "--effort"),
        prompt=_prompt(args.prompt),
    )


def keep_report(result: Returned, path: str) -> Returned:
    """Write the final text to `path`, whole or not at all; a report that cannot be kept is a failure."""
    from commands.dispatch.returned import SUCCEEDED, failed
    from ledger.credentials import find_credential
    from ledger.files import write_whole

    if result.status != SUCCEEDED:
        return result
    raw = result.report.encode("utf-8", "replace")
    if find_credential(raw) is not None:
        return failed("the report carries what looks like a credential", healthy=True)
    try:
        write_whole(path, raw)
    except OSError as error:
        return failed(f"the report cannot be written: {error.strerror}", healthy=True)
    return result


def dispatch(args: Args, context: Context) -> int:
    """`codex dispatch`: one prompt, one turn, a typed result, the final text in the report file."""
    from commands.dispatch.codex_turn import run_turn
    from commands.dispatch.lone import Lone, record_of

    try:
        turn = _turn(args)
        record = Lone(record_of(context), turn)
    except Usage:
        raise
    except GatebookError as error:
        emit({"status": "blocked", "blockers": [str(error)]})
        return 4
    timeout = DEFAULT_TIMEOUT if args.timeout is None else args.timeout
    result = keep_report(run_turn(turn, timeout=timeout, actor=record.worker), args.report)
    try:
        record.returned(result)
    except (GatebookError, OSError) as error:  # the turn is over: its caller must still learn how it ended
        context.log().warning(f"the attempt's return is not recorded: {error}")
    if result.why:
        context.log().info(result.why)
    emit(result.reply())
    return result.exit_code


COMMANDS = {
    "codex check": Command(
        check,
        "Checks that Codex is here ($GATEBOOK_CODEX_BIN, default codex), that its generated App Server schema has the\n"
        'fields and error variants relied on, and that it initializes. Prints {"status":"available"}, or\n'
        '{"status":"missing_executor"} with exit 69.',
        example="gatebook codex check",
        json_errors=True,
    ),
    "codex dispatch": Command(
        dispatch,
        "Gives one prompt to Codex in a sandbox and waits. The report file holds the final agent text, nothing else.\n"
        'Prints {"status":"succeeded"} (0), {"status":"availability_failure","reason":…} (75),\n'
        '{"status":"missing_executor"} (69) or {"status":"failed"} (1). Bad usage 2, refused authority 4.',
        flags=(
            Flag("--operation", "OPERATION", "execute", required=True),
            Flag("--cwd", "D", "the working directory, passed on as given", required=True),
            Flag("--sandbox", "SANDBOX", "read-only or workspace-write", required=True),
            Flag("--approval", "POLICY", "never", required=True),
            Flag("--model", "M", "the model, passed on explicitly", required=True),
            Flag("--effort", "E", "the reasoning effort, passed on explicitly", required=True),
            Flag("--prompt", "F", "the file with the prompt", required=True),
            Flag("--report", "F", "where the final text goes", required=True),
            Flag("--skip-git-repo-check", None, "accepted; the App Server makes no such check"),
            Flag("--timeout", "SECONDS", "how long the turn may take (default 3600)", number=True),
        ),
        example="gatebook codex dispatch --operation execute --cwd . --sandbox read-only --approval never "
        "--model gpt-b --effort high --prompt prompt.md --report report.md",
        json_errors=True,
    ),
}
