"""Run an agent's or producer's program: its own process group, a deadline, drained and bounded output.

Used for the gate's producer (contract `review-sessions`, Gate) and for executors and reviewers.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time

from ledger.errors import Usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OUTPUT_LIMIT = 8 * 1024 * 1024  # bytes of stdout kept; a verdict or report is a few KB
_ERROR_LIMIT = 64 * 1024  # bytes of stderr kept, the last ones
_GRACE = 2.0  # seconds between SIGTERM and SIGKILL, and for pipes to close after the program's exit
_CHUNK = 65536
_PR_SET_PDEATHSIG = 1
_KILLED = 137


def allowed_seconds(given: int | None, default: float, what: str) -> float:
    """How long a program may take: `--timeout` as `given`, else `default`; Usage where that is no time for `what`."""
    if given == 0:
        raise Usage(f"--timeout: 0 seconds are no time for a {what}; give 1 or more")
    return default if given is None else float(given)


class Outcome:
    """How a program ended.

    `code` is its exit code (negative: a signal), None when it was not found. `cut` says that stdout may not
    be all it would have written: past the limit, past the deadline, or a child still held the pipe.
    """

    __slots__ = ("code", "cut", "stderr", "stdout", "timed_out")

    def __init__(self, code: int | None, stdout: bytes, stderr: bytes, *, timed_out: bool, cut: bool) -> None:
        self.code = code
        self.stdout = stdout
        self.stderr = stderr
        self.timed_out = timed_out
        self.cut = cut


class NotFound(Exception):
    """The program cannot be started; the message says why."""


def run_program(
    argv: Sequence[str], *, data: bytes, timeout: float, cwd: str, env: dict[str, str] | None = None
) -> Outcome:
    """Run `argv` in `cwd` with `data` on stdin for at most `timeout` seconds; no child of its group outlives this.

    Raises `NotFound` when it cannot be started. An exception (a signal's, for one) kills the group too.
    """
    try:
        child = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509 -- this process has one thread
        )
    except (OSError, ValueError) as error:
        raise NotFound(f"{argv[0]}: {getattr(error, 'strerror', None) or error}") from error
    try:
        return _Drain(child, data, timeout).outcome()
    finally:
        if child.returncode is None:
            _kill_group(child.pid, signal.SIGKILL)
            child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


def _die_with_parent() -> Callable[[], None] | None:
    """On Linux: the program is killed when we are (prctl(2)), so that no orphan writes into a session that was resumed."""
    import sys

    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_KILLED)  # it died before we could ask

    return ask


class _Drain:
    """The loop that feeds stdin and drains both outputs until the program is done or its time is up."""

    def __init__(self, child: subprocess.Popen[bytes], data: bytes, timeout: float) -> None:
        self.child = child
        self.data = memoryview(data)
        self.deadline = time.monotonic() + timeout
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.flooded = False
        self.selector = selectors.DefaultSelector()
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self.stdin = child.stdin
        for pipe in (child.stdin, child.stdout, child.stderr):
            os.set_blocking(pipe.fileno(), False)
        self.selector.register(child.stdin, selectors.EVENT_WRITE)
        self.selector.register(child.stdout, selectors.EVENT_READ, self.stdout)
        self.selector.register(child.stderr, selectors.EVENT_READ, self.stderr)

    def outcome(self) -> Outcome:
        try:
            timed_out = not self._until(self.deadline, lambda: self._exited() or self.flooded)
            if timed_out or self.flooded:
                self._stop()
            # The program is gone; what it wrote is in the pipes. A child that still holds one gets a moment.
            closed = self._until(time.monotonic() + _GRACE, self._closed)
            _kill_group(self.child.pid, signal.SIGKILL)
            return Outcome(
                self.child.wait(),
                bytes(self.stdout),
                bytes(self.stderr),
                timed_out=timed_out,
                cut=timed_out or self.flooded or not closed,
            )
        finally:
            self.selector.close()

    def _stop(self) -> None:
        _kill_group(self.child.pid, signal.SIGTERM)
        self._until(time.monotonic() + _GRACE, self._exited)
        _kill_group(self.child.pid, signal.SIGKILL)

    def _exited(self) -> bool:
        """Whether the program ended. It stays unreaped, so that its group's number cannot be given away."""
        if hasattr(os, "waitid"):  # not on every macOS
            return os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return self.child.poll() is not None

    def _closed(self) -> bool:
        return all(key.fileobj is self.stdin for key in self.selector.get_map().values())

    def _until(self, deadline: float, done: object) -> bool:
        """Move bytes until `done()` or the deadline; whether it was done."""
        assert callable(done)
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if not self.selector.get_map():
                time.sleep(min(left, 0.01))  # both pipes closed early, the program still runs
                continue
            for key, _ in self.selector.select(min(left, 0.05)):
                self._move(key)
        return True

    def _move(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            try:
                self.data = self.data[os.write(key.fd, self.data[:_CHUNK]) :]
            except BrokenPipeError:
                self.data = self.data[:0]  # it does not read its prompt: its own affair
            if not self.data:
                self.selector.unregister(key.fileobj)
                self.stdin.close()
            return
        chunk = os.read(key.fd, _CHUNK)
        if not chunk:
            self.selector.unregister(key.fileobj)
        elif key.data is self.stderr:
            self.stderr += chunk
            del self.stderr[:-_ERROR_LIMIT]
        elif len(self.stdout) + len(chunk) > OUTPUT_LIMIT:
            self.flooded = True
            self.stdout += chunk[: OUTPUT_LIMIT - len(self.stdout)]
        else:
            self.stdout += chunk


def _kill_group(group: int, number: signal.Signals) -> None:
    """Signal the group we made; its leader is not reaped yet, so the number is still ours."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass
