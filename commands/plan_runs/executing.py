"""`run execute --handoff CMD`: the whole run in order, one worker at a time, resumable at any point.

Killed at any moment, the same command goes on: the log says which hand-off was open, its folder what came of it.
"""

from __future__ import annotations

import fcntl
import os

from commands.context import dumps
from commands.plan_runs.handing_off import Dispatch, Step, accept_open, hand_off_next
from commands.plan_runs.recording import defer_unapproved
from commands.plan_runs.run_ledger import read_documents
from commands.plan_runs.workers import InterruptedRunError, Interruption, lock_run, own_folder, work
from ledger.errors import MissingExecutor, Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SHELL = frozenset("|&;<>()$`\n*?~{}")


def command_words(command: str) -> list[str]:
    """The program to start: the words of a plain command line, or the shell for one that uses its signs.

    A first word with a slash is taken as seen from here, for the worker runs in its work directory.
    """
    import shlex
    import shutil

    if _SHELL.intersection(command):
        return ["/bin/sh", "-c", command]
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Usage(f"--handoff: {error}") from None
    if not words:
        raise MissingExecutor("--handoff: is empty; give the program that does an item")
    found = shutil.which(words[0])
    if found is None:
        raise MissingExecutor(f"--handoff {words[0]}: there is no such program that can be run")
    return [os.path.abspath(found), *words[1:]]


def execute(dispatch: Dispatch, command: str) -> dict[str, Any]:
    """Runs what is left of the run; the document that `run execute` prints.

    Raises `Conflict` while another `run execute`, or a step between workers, is at work here, `MissingExecutor` when CMD cannot be run,
    `InterruptedRunError` after a signal: the hand-off is recorded as interrupted, the rest is untouched.
    """
    run = dispatch.run
    words = command_words(command)
    alone = lock_run(run.folder.path, fcntl.LOCK_EX)
    try:
        with Interruption() as stop:
            done = _execute_all(dispatch, words, stop)
    finally:
        os.close(alone)
    state = run.state(run.look())
    return {
        "executed": done,
        "remaining": len(state.missing()),
        "statuses": {key: held.status for key, held in state.results.items()},
    }


def _execute_all(dispatch: Dispatch, words: list[str], stop: Interruption) -> list[dict[str, Any]]:
    from commands.plan_runs.closing import report_if_due

    defer_unapproved(dispatch.run)
    done: list[dict[str, Any]] = []
    _take_up(dispatch, done, stop)
    while True:
        stop.check()
        step = hand_off_next(dispatch)
        if step.item is None:
            report_if_due(dispatch.run, dispatch.skills)
            return done
        done.append(_line(step if step.status else _run_one(dispatch, step, words, stop)))


def _line(step: Step) -> dict[str, Any]:
    return {
        "index": step.index,
        "result_key": step.key,
        "skill": step.skill,
        "status": step.status,
        "fault": step.fault,
    }


def _take_up(dispatch: Dispatch, done: list[dict[str, Any]], stop: Interruption) -> None:
    """An open hand-off of an earlier call: its worker is waited for, its result taken, or it counts as interrupted."""
    run = dispatch.run
    state = run.state(run.look())
    if state.open is None:
        return
    work_dir = f"{run.folder.path}/{state.open.key}"
    if os.path.isdir(work_dir):
        os.close(own_folder(work_dir, stop))
    step = accept_open(run, missing_is="interrupted")
    if step.status:
        done.append(_line(step))


def _run_one(dispatch: Dispatch, step: Step, words: list[str], stop: Interruption) -> Step:
    """Starts the worker for a hand-off that is recorded, waits, records its result."""
    run = dispatch.run
    assert step.item is not None
    told = dispatch.document(read_documents(run.folder), step.item, step.skill)
    told["attempt"] = step.attempt
    try:
        work(words, f"{run.folder.path}/{step.key}", dumps(told).encode() + b"\n", stop)
    except InterruptedRunError:
        accept_open(run, missing_is="interrupted")
        raise
    except OSError as error:
        accept_open(run, missing_is="interrupted")
        raise MissingExecutor(f"--handoff {words[0]}: cannot be run: {error.strerror}") from None
    # Crash here: the result lies there, the next call takes it.
    ended = accept_open(run, missing_is="error")
    ended.skill = step.skill
    return ended
