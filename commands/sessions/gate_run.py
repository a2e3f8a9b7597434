"""`gate run`: one pass of the adversarial producer, and its verdict (contract `review-sessions`, Gate).

Output that exists is judged first; only empty output with a failure may be skipped. Every doubt blocks.
"""

from __future__ import annotations

import os
import re
import shlex

from commands.eventlines import printable
from commands.sessions.adapt import REQUEST_CHANGES, adapt
from commands.sessions.config_guard import CONFIG_PATH, ConfigGuard
from commands.sessions.program import NotFound, run_program
from commands.sessions.strict_json import Malformed, decode_text, loads
from ledger.errors import Invalid, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from commands.sessions.program import Outcome

DEFAULT_TIMEOUT = 600.0  # seconds
DETAIL_LIMIT = 300  # characters of a SKIP's detail

_LOGIN_FAILURE = re.compile(
    rb"unauthenticated|not (?:signed|logged) in|login required|unauthorized|authentication[ _]?(?:error|failed|required)"
    rb"|oauth.{0,40}(?:expired|failed|error)|please (?:run .{0,20})?log ?in",
    re.IGNORECASE,
)


class GateResult:
    """The verdict of a gate run: `APPROVE`, `REQUEST_CHANGES` or `SKIP`; `text` is for stdout."""

    __slots__ = ("detail", "reason", "text", "verdict")

    def __init__(self, verdict: str, text: str = "", *, reason: str = "", detail: str = "") -> None:
        self.verdict = verdict
        self.text = text
        self.reason = reason
        self.detail = _one_line(detail)

    @property
    def exit_code(self) -> int:
        """0 for APPROVE and a controlled SKIP, 1 for REQUEST_CHANGES."""
        return 1 if self.verdict == "REQUEST_CHANGES" else 0

    @property
    def banner(self) -> str:
        """The line on stderr of a SKIP, else ''."""
        if self.verdict != "SKIP":
            return ""
        return f"adversarial-gate: SKIP reason={self.reason}" + (
            f" detail={self.detail}" if self.detail else ""
        )


def run_gate(focus: bytes, command: str, *, root: str, timeout: float = DEFAULT_TIMEOUT) -> GateResult:
    """Run the producer `command` in `root` with the focus text on stdin, and judge what it wrote.

    `command` is split as a shell would, but no shell runs. Whatever happens, the config file is settled after
    the producer's whole process group is gone.
    """
    argv = split_command(command, "--producer")
    missing = _missing_schema(argv, root)
    if missing:
        return GateResult("SKIP", reason="cache-schema-unresolved", detail=missing)
    guard = ConfigGuard(root)
    try:
        result = _judge(run_program(argv, data=focus, timeout=timeout, cwd=root))
    except NotFound as error:
        there = not isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
        reason = "runtime-error" if there else "plugin-root-unresolved"
        result = GateResult("SKIP", reason=reason, detail=str(error))
    finally:
        trouble = guard.settle()  # also on a signal's exception: the group is dead by now
    return _with_cleanup_issue(result, trouble) if trouble else result


def split_command(command: str, flag: str) -> list[str]:
    """The words of a command line, a relative program's path made absolute; `Usage` for none or an open quote."""
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise Usage(f"{flag}: {error}: {command}") from None
    if not argv:
        raise Usage(f"{flag} needs a command")
    if "/" in argv[0]:
        argv[0] = os.path.abspath(argv[0])  # it runs in the work tree's root, wherever we were called
    return argv


def _missing_schema(argv: Sequence[str], root: str) -> str | None:
    """The schema file that the producer is told to use and that is not there."""
    for i, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name == "--output-schema":
            path = value if equals else (argv[i + 1] if i + 1 < len(argv) else "")
            if not os.path.isfile(os.path.join(root, path)):
                return path
    return None


def _judge(outcome: Outcome) -> GateResult:
    if outcome.stdout.strip():
        return _judge_output(outcome)
    if outcome.code == 0 and not outcome.timed_out:
        return _blocked("the producer ended without any output")
    if outcome.timed_out:
        return GateResult("SKIP", reason="runtime-timeout")
    if _LOGIN_FAILURE.search(outcome.stderr):
        return GateResult("SKIP", reason="codex-unauthenticated")
    tail = outcome.stderr.decode("utf-8", "replace").strip()[-200:]
    return GateResult("SKIP", reason="runtime-error", detail=f"exit={outcome.code} stderr={tail}")


def _judge_output(outcome: Outcome) -> GateResult:
    try:
        code, text = adapt(outcome.stdout, _mode_of(outcome.stdout))
    except Malformed as error:
        return _blocked(f"its output is malformed: {error}")
    if code:
        return GateResult("REQUEST_CHANGES", text)
    if outcome.timed_out:
        return _blocked("it approved, but did not end within its time")
    if outcome.code != 0:
        return _blocked(f"it approved, but ended with exit code {outcome.code}")
    if outcome.cut:
        return _blocked("it approved, but its output may be cut")
    return GateResult("APPROVE", text)


def _mode_of(data: bytes) -> str:
    """A whole JSON object is judged as an envelope or bare verdict; anything else as raw text."""
    try:
        return "plugin-json" if isinstance(loads(decode_text(data)), dict) else "raw"
    except Malformed:
        return "raw"


def _blocked(why: str) -> GateResult:
    issue = _issue("gate run:1-1", "the adversarial review proves nothing", why)
    return GateResult("REQUEST_CHANGES", f"{REQUEST_CHANGES}\n\n### Issues\n{issue}")


def _with_cleanup_issue(result: GateResult, trouble: str) -> GateResult:
    issue = _issue(f"{CONFIG_PATH}:1-1", "cleanup after the adversarial review failed", trouble)
    if result.verdict != "REQUEST_CHANGES":
        return GateResult("REQUEST_CHANGES", f"{REQUEST_CHANGES}\n\n### Issues\n{issue}")
    head, heading, rest = result.text.partition("### Issues\n")
    return GateResult("REQUEST_CHANGES", f"{head}{heading}{issue}{rest}")


def _issue(place: str, title: str, body: str) -> str:
    recommendation = "find out what happened, mend it, and go on with an ordinary round"
    return f"- [CRITICAL] {place} (confidence=1.0) — {title}: {_one_line(body)}\n  Recommendation: {recommendation}\n"


def _one_line(text: str) -> str:
    flat = " | ".join(line.strip() for line in text.splitlines() if line.strip())[:DETAIL_LIMIT]
    return printable(flat)


def read_focus(path: str) -> bytes:
    """The focus file's bytes; `Invalid` if it cannot be read or is not UTF-8."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise Invalid(f"--focus-file {path}: {error.strerror}") from None
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"--focus-file {path} is not UTF-8 at byte {error.start}") from None
    return data
