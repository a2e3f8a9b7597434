"""The programs that do the work: a native command line, those of the user's configuration, and Codex."""

from __future__ import annotations

import os

from commands.dispatch.returned import AVAILABILITY, MISSING, SUCCEEDED, Returned, failed
from ledger.errors import Invalid, Refused, Usage
from projections.cooldowns import REASONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commands.dispatch.config import Config, ExecutorConfig
    from commands.dispatch.processes import Ended

CODEX = "codex"
NATIVE = "native"
MAX_REPORT = 256 * 1024
ALL_MODES = ("fresh", "fork", "hybrid")


class Job:
    """One attempt: the packet, where, in which sandbox, as whom, and until when."""

    __slots__ = ("cwd", "packet", "sandbox", "timeout", "worker")

    def __init__(
        self, packet: dict[str, Any], *, cwd: str, sandbox: str, worker: str, timeout: float
    ) -> None:
        self.packet = packet
        self.cwd = cwd
        self.sandbox = sandbox
        self.worker = worker
        self.timeout = timeout


class Executor:
    """What an executor can hold to, and how it runs; `command` is empty for Codex and for a native runtime that asks us.

    `interactive`: the runtime is the caller itself, who can still obtain an approval.
    """

    __slots__ = ("command", "enforces_paths", "interactive", "modes", "name")

    def __init__(
        self,
        name: str,
        command: tuple[str, ...] = (),
        *,
        modes: tuple[str, ...] = ("fresh",),
        enforces_paths: bool = False,
    ) -> None:
        self.name = name
        self.command = command
        self.modes = modes
        self.enforces_paths = enforces_paths
        self.interactive = name == NATIVE and not command

    def run(self, job: Job) -> Returned:
        """Do it and wait; every outcome is a Returned."""
        if self.name == CODEX:
            return _run_codex(job)
        return _run_command(self.command, job)


_SHELL = ("/bin/sh", "-c")
_SHELL_SIGNS = frozenset("|&;<>()$`*?[~#\n\\")


def split_command(text: str) -> tuple[str, ...]:
    """`--native CMD` as an argument list: a plain command line is run as it is, one with shell syntax by `sh -c`.

    Usage when it is none. Plain ones are kept from the shell because its exit status hides signals.
    """
    import shlex

    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise Usage(f"--native: {error}") from None
    if not words or "\0" in text:
        raise Usage("--native must name a program")
    return (*_SHELL, text) if _SHELL_SIGNS.intersection(text) else words


def _filled(command: tuple[str, ...], model: str, effort: str) -> list[str] | None:
    """`command` with `{model}` and `{effort}` filled in; None where a shell would read more than a name in them."""
    import shlex

    if command[:2] == _SHELL and (shlex.quote(model), shlex.quote(effort)) != (model, effort):
        return None
    return [
        word.replace("{model}", "\0").replace("{effort}", effort).replace("\0", model) for word in command
    ]


def native_executor(command: tuple[str, ...], config: Config) -> Executor:
    """The native runtime: `command`, or the caller itself when it is empty."""
    return Executor(NATIVE, command, modes=ALL_MODES, enforces_paths=config.native.enforces_paths)


def external_executors(names: list[str], config: Config) -> dict[str, Executor]:
    """The executors of the inventory `names` that can be called: Codex when its check passes, and configured ones."""
    from commands.dispatch.codex_check import codex_is_missing

    found = {}
    for name in dict.fromkeys(names):
        if name == CODEX and not codex_is_missing():
            found[name] = Executor(CODEX)
        elif name in config.executors:
            found[name] = _configured(name, config.executors[name])
    return found


def _configured(name: str, entry: ExecutorConfig) -> Executor:
    return Executor(name, entry.command, modes=entry.context_modes, enforces_paths=entry.enforces_paths)


def _run_codex(job: Job) -> Returned:
    from commands.dispatch.codex_turn import Turn, run_turn
    from commands.dispatch.packet import prompt_of

    turn = Turn(
        cwd=job.cwd,
        sandbox=job.sandbox,
        model=job.packet["model"],
        effort=job.packet["effort"],
        prompt=prompt_of(job.packet),
    )
    return run_turn(turn, timeout=job.timeout, actor=job.worker)


def _run_command(command: tuple[str, ...], job: Job) -> Returned:
    from commands.context import dumps
    from commands.dispatch.processes import run_bounded

    argv = _filled(command, job.packet["model"], job.packet["effort"])
    if argv is None:
        return failed("the model's or effort's name is no plain word for a shell", ending="not_started")
    ended = run_bounded(
        argv,
        cwd=job.cwd,
        timeout=job.timeout,
        stdin=dumps(job.packet).encode(),
        keep=MAX_REPORT,
        errors_too=False,
        environment={**os.environ, "GATEBOOK_ACTOR": job.worker},
    )
    return classify(ended, by_shell=command[:2] == _SHELL)


_STOPPED = {"missing": "not_started", "timed out": "timed_out", "killed": "killed"}


def classify(ended: Ended, *, by_shell: bool = False) -> Returned:
    """A command's end as a typed result: exit 0, 69, 75 with a reason, or a failure (contract page dispatch).

    `by_shell`: 126 and 127 mean that a shell could not start it, over 128 that a signal ended it (POSIX XCU 2.8.2).
    """
    if by_shell and ended.code in (126, 127):
        return failed("the executor was not started", ending="not_started")
    if by_shell and ended.code is not None and ended.code > 128:
        return failed(f"the executor was killed by signal {ended.code - 128}", ending="killed")
    if ended.code is None:
        return failed(f"the executor was {_STOPPED[ended.why].replace('_', ' ')}", ending=_STOPPED[ended.why])
    if ended.code < 0:
        return failed(f"the executor was killed by signal {-ended.code}", ending="killed")
    if ended.code == 0:
        return Returned(SUCCEEDED, healthy=True, report=ended.output.decode("utf-8", "replace"))
    if ended.code == 69:
        return Returned(MISSING, why="the executor says that it is missing")
    if ended.code == 75:
        return _outage(ended.output)
    if ended.code in (2, 4):
        return failed(f"the executor refused the call (exit {ended.code})", ending="refused")
    return failed(f"the executor failed (exit {ended.code})", healthy=True)


def _outage(output: bytes) -> Returned:
    from ledger.canonical import parse_object

    try:
        said = parse_object(output)
    except Invalid:
        said = {}
    reason = said.get("reason")
    if said.get("status") != AVAILABILITY or not isinstance(reason, str) or reason not in REASONS:
        return failed("the executor ended with 75 but named none of the four reasons")
    return Returned(
        AVAILABILITY, reason=reason, retry_at=retry_time(said.get("retry_at"), reason), why=reason
    )


def retry_time(text: object, reason: str) -> int | None:
    """A quota's reset time in microseconds, None where there is none that can be read."""
    from projections.times import parse_time

    if reason != "quota" or not isinstance(text, str):
        return None
    try:
        return parse_time(text)
    except Invalid:
        return None


def check_mode(executor: Executor, mode: str) -> None:
    """Refuse a context mode that the executor cannot give: another provider would not be what was asked for."""
    if mode not in executor.modes:
        raise Refused(
            f"executor {executor.name} cannot give context mode {mode} (only {', '.join(executor.modes)})"
        )
