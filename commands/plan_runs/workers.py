"""A worker: any program, in its item's folder, in a process group of its own, never two on one item.

Each worker inherits a lock on its folder. When we are killed and it lives on, the next call sees the lock: the
worker is given some seconds to end, so that its result is taken and nothing is done twice; then its group is ended,
for nobody watches over it any more.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

from ledger.errors import Conflict, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen
    from types import FrameType

PATIENCE_SECONDS = 10.0
"""How long a worker that outlived its driver may go on once we are back."""

_GRACE_SECONDS = 5.0
_STEP_SECONDS = 5.0  # a step that writes the report of a large run takes some
_PID = ".worker.pid"


class InterruptedRunError(Exception):
    """SIGINT or SIGTERM came; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


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


def lock_run(run_dir: str, how: int) -> int:
    """The run's folder, open and locked: `LOCK_EX` while workers are driven, `LOCK_SH` for a step between them.

    Raises `Conflict` at once where workers are driven: a step between two looks at a result would record one that
    its worker still writes. A step is over in a moment, so that moment is waited for.
    """
    lock = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    end = time.monotonic() + _STEP_SECONDS
    try:
        while not _locked(lock, how):
            is_driven = how == fcntl.LOCK_SH or not _locked(lock, fcntl.LOCK_SH)
            if is_driven or time.monotonic() >= end:
                other = "`run execute`" if is_driven else "another step of this run"
                raise Conflict(f"{run_dir}: {other} is at work here; wait for it or end it")
            fcntl.flock(lock, fcntl.LOCK_UN)
            time.sleep(0.05)
    except OSError as error:
        if how == fcntl.LOCK_SH:
            return lock  # a file system without locks, where no `run execute` can be at work either
        os.close(lock)
        raise Unavailable(
            f"{run_dir}: {error.strerror}: `run execute` needs a file system with locks"
        ) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def _locked(lock: int, how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def refuse_at_work(work_dir: str) -> None:
    """Raise `Conflict` while a worker holds its folder, also one that outlived its driver."""
    try:
        lock = os.open(work_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # no folder, no worker in it; what stands in its place is told by the step itself
    try:
        if not _locked(lock, fcntl.LOCK_SH):
            raise Conflict(
                f"{work_dir}: the worker of an earlier `run execute` is still at work; run `gatebook run execute` again, "
                "which takes its result or ends it"
            )
    except OSError:
        return
    finally:
        os.close(lock)


def own_folder(work_dir: str, stop: Interruption) -> int:
    """The open, locked work directory; a worker that still holds it is waited for, then ended.

    Raises `Conflict` when something that it started holds on even then.
    """
    lock = os.open(work_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not _locked_within(lock, 0, stop):
            from ledger.notice import tell

            tell(f"the worker in {work_dir} is still at work; it has {PATIENCE_SECONDS:.0f} s to end")
            if not _locked_within(lock, PATIENCE_SECONDS, stop):
                _end_orphan(work_dir, lock, stop)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _locked_within(lock: int, seconds: float, stop: Interruption) -> bool:
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= end:
                return False
        stop.check()
        time.sleep(0.05)


def _end_orphan(work_dir: str, lock: int, stop: Interruption) -> None:
    try:
        with open(f"{work_dir}/{_PID}", "rb") as file:
            group = int(file.read(20))
    except (OSError, ValueError):
        group = 0
    for number in (signal.SIGTERM, signal.SIGKILL):
        if group > 1:
            _signal_group(group, number)
        if _locked_within(lock, _GRACE_SECONDS if group > 1 else 0, stop):
            return
    raise Conflict(
        f"{work_dir}: something that an earlier worker started is still at work there; end it, then run this again"
    )


def work(words: list[str], work_dir: str, told: bytes, stop: Interruption) -> int:
    """Runs the worker to its end and returns its exit code; what it leaves running, or a signal to us, ends its group."""
    import subprocess

    lock = own_folder(work_dir, stop)
    worker = None
    try:
        stop.check()
        # The shell says who leads the group before it becomes the worker: whoever finds the lock held can end it.
        # The worker's stdout goes to our stderr: ours carries one JSON document and nothing else.
        worker = subprocess.Popen(
            ["/bin/sh", "-c", f'echo $$ > {_PID} && exec "$@"', "worker", *words],
            cwd=work_dir,
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
            pass_fds=(lock,),
        )
        os.close(lock)
        lock = -1
        # A signal while the worker was started is heard now, when there is somebody to end.
        stop.waiting = True
        stop.check()
        worker.communicate(told)
        stop.waiting = False
        return worker.returncode
    finally:
        stop.waiting = False
        if worker is not None:
            _end(worker)
            _wait_until_gone(work_dir)
            _forget(work_dir)
        if lock >= 0:
            os.close(lock)


def _wait_until_gone(work_dir: str) -> None:
    """Returns when nobody holds the folder's lock any more: a killed process takes its time, and could write till then."""
    try:
        lock = os.open(work_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # the worker took its folder away: nobody can write there
    try:
        _locked_within(lock, _GRACE_SECONDS, Interruption())
    finally:
        os.close(lock)


def _forget(work_dir: str) -> None:
    try:
        os.unlink(f"{work_dir}/{_PID}")
    except OSError:
        return


def _signal_group(group: int, number: int) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _end(worker: Popen[bytes]) -> None:
    """Ends the worker's whole process group: asked first, then killed. What it left running could still write."""
    import subprocess

    if worker.poll() is None and _signal_group(worker.pid, signal.SIGTERM):
        try:
            worker.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            pass
    _signal_group(worker.pid, signal.SIGKILL)
    worker.wait()
