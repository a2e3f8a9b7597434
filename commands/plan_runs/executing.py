"""`run execute --handoff CMD`: the whole run in order, one worker at a time, resumable at any point.

The worker holds a lock on its work directory that it inherited from us. When we are killed and it lives on,
the same command waits for it and takes its result, so that nothing is done twice.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys

from commands.context import dumps
from commands.plan_runs.handing_off import Dispatch, Step, accept_open, hand_off_next
from commands.plan_runs.recording import defer_unapproved
from commands.plan_runs.run_ledger import read_documents
from ledger.errors import Conflict, MissingExecutor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_SHELL = frozenset("|&;<>()$`\n*?~{}")
_GRACE_SECONDS = 5.0


class InterruptedRunError(Exception):
    """SIGINT or SIGTERM came; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def command_words(command: str) -> list[str]:
    """The program to start: the words of a plain command line, or the shell for one that uses its signs.

    A first word with a slash is taken as seen from here, for the worker runs in its work directory.
    """
    import shlex
    import shutil

    if _SHELL.intersection(command):
        return ["/bin/sh", "-c", command]
    words = shlex.split(command)
    if not words:
        raise MissingExecutor("--handoff: is empty; give the program that does an item")
    found = shutil.which(words[0])
    if found is None:
        raise MissingExecutor(f"--handoff {words[0]}: there is no such program that can be run")
    return [os.path.abspath(found), *words[1:]]


def execute(dispatch: Dispatch, command: str) -> dict[str, Any]:
    """Runs what is left of the run; the document that `run execute` prints.

    Raises `Conflict` while another `run execute` is at work here, `MissingExecutor` when CMD cannot be run,
    `InterruptedRunError` after a signal: the hand-off is recorded as interrupted, the rest is untouched.
    """
    run = dispatch.run
    words = command_words(command)
    alone = os.open(run.folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Conflict(f"{run.folder.path}: another `run execute` is at work here; wait for it") from None
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
    defer_unapproved(dispatch.run)
    done: list[dict[str, Any]] = []
    _take_up(dispatch, done, stop)
    while True:
        stop.check()
        step = hand_off_next(dispatch)
        if step.item is None:
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
        lock = os.open(work_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                sys.stderr.write(
                    f"gatebook: the worker of {state.open.key} is still at work; waiting for it\n"
                )
                stop.check()
                stop.waiting = True
                fcntl.flock(lock, fcntl.LOCK_EX)
                stop.waiting = False
        finally:
            os.close(lock)
    step = accept_open(run, missing_is="interrupted")
    if step.status:
        done.append(_line(step))


class Interruption:
    """SIGINT and SIGTERM while a run is executed: raised where we wait, else noticed before the next hand-off."""

    def __init__(self) -> None:
        self.number = 0
        self.waiting = False

    def __enter__(self) -> Interruption:  # noqa: PYI034 - `Self` costs the typing import
        self.before = [
            (number, signal.signal(number, self.heard)) for number in (signal.SIGINT, signal.SIGTERM)
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before:
            signal.signal(number, handler)

    def heard(self, number: int, _frame: FrameType | None) -> None:
        """The handler."""
        self.number = number
        if self.waiting:
            self.waiting = False
            raise InterruptedRunError(number)

    def check(self) -> None:
        """Raise when a signal came while nothing was being waited for."""
        if self.number:
            raise InterruptedRunError(self.number)


def _run_one(dispatch: Dispatch, step: Step, words: list[str], stop: Interruption) -> Step:
    """Starts the worker for a hand-off that is recorded, waits, records its result."""
    run = dispatch.run
    assert step.item is not None
    told = dispatch.document(read_documents(run.folder), step.item, step.skill)
    told["attempt"] = step.attempt
    try:
        _work(words, f"{run.folder.path}/{step.key}", dumps(told).encode() + b"\n", stop)
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


def _work(words: list[str], work_dir: str, told: bytes, stop: Interruption) -> int:
    """The worker's exit code; it runs in a process group of its own, which ends with it or with a signal to us."""
    import subprocess

    lock = os.open(work_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    worker = None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock, True)
        stop.check()
        stop.waiting = True
        # Its stdout goes to our stderr: ours carries one JSON document and nothing else.
        worker = subprocess.Popen(
            words,
            cwd=work_dir,
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
            pass_fds=(lock,),
        )
        os.close(lock)
        lock = -1
        worker.communicate(told)
        stop.waiting = False
        _end_group(worker.pid)
        return worker.returncode
    except BaseException:
        stop.waiting = False
        if worker is not None:
            _end(worker)
        raise
    finally:
        if lock >= 0:
            os.close(lock)


def _end_group(group: int) -> None:
    """What a worker left running ends with it: it could still write where its result was read."""
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _end(worker: Any) -> None:
    """Ends the worker's whole process group: asked first, then killed."""
    import subprocess

    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(worker.pid, number)
        except ProcessLookupError:
            break
        try:
            worker.wait(_GRACE_SECONDS)
            break
        except subprocess.TimeoutExpired:
            continue
    worker.wait()
    _end_group(worker.pid)
