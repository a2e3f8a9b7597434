"""Programs that we did not write, run so that they cannot hang us, flood us or take us with them.

Each runs under a small process of ours in a session of its own: what it kills as its parent or as its group is
that process, never gatebook; and when it is over, or over time, or gatebook is gone, the whole group is killed.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from typing import IO

TAIL = 4096  # bytes of output kept as evidence
LONGEST_WAIT = 86_400.0  # seconds at once that the system is asked to wait: it takes no more than 24 days

# Waits for the program and says how it ended on the descriptor `told`; when `alive` closes, because whoever
# started it is gone, even by SIGKILL, nobody is left to judge the program, and the group ends. Neither descriptor
# reaches the program. Python ignores SIGPIPE (13) and SIGXFSZ (25); the program shall not inherit that.
_WARDEN = """
import _signal, os, select, sys
told, alive = int(sys.argv[1]), int(sys.argv[2])
os.set_inheritable(told, False)
os.set_inheritable(alive, False)
woken, wake = os.pipe()
os.set_blocking(wake, False)
_signal.set_wakeup_fd(wake)
_signal.signal(_signal.SIGCHLD, lambda *_: None)
try:
    pid = os.posix_spawnp(sys.argv[3], sys.argv[3:], os.environ, setsigdef=[13, 25])
except OSError:
    os.write(told, b"missing")
    sys.exit()
while True:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        break
    if alive in select.select([alive, woken], [], [])[0]:
        os.killpg(0, _signal.SIGKILL)
    os.read(woken, 64)
os.write(told, b"%d" % os.waitstatus_to_exitcode(status))
"""


class Ended:
    """How a program ended. `code`: its exit status, negative for a signal, None when it has none.

    `why` says why there is none: `missing` (it could not be started), `timed out`, `killed` (its warden with it).
    `output` is at most the last `TAIL` bytes of `size`, unless more was asked for.
    """

    __slots__ = ("code", "found", "output", "size", "why")

    def __init__(self, code: int | None, why: str, output: bytes, size: int, *, found: bool) -> None:
        self.code = code
        self.why = why
        self.output = output
        self.size = size
        self.found = found


class _Sink:
    """Keeps the last `keep` bytes of a stream, counts all, and looks for one text across it."""

    def __init__(self, keep: int, wanted: bytes) -> None:
        self.keep = keep
        self.wanted = wanted
        self.tail = b""
        self.size = 0
        self.found = not wanted
        self._edge = b""

    def take(self, part: bytes) -> None:
        self.size += len(part)
        if not self.found:
            seen = self._edge + part
            self.found = self.wanted in seen
            self._edge = seen[-(len(self.wanted) - 1) :] if len(self.wanted) > 1 else b""
        self.tail = (self.tail + part)[-self.keep :]


def run_bounded(
    argv: Sequence[str],
    *,
    cwd: str,
    timeout: float,
    stdin: bytes = b"",
    keep: int = TAIL,
    wanted: str = "",
    errors_too: bool = True,
    environment: dict[str, str] | None = None,
) -> Ended:
    """Run `argv` in `cwd` for at most `timeout` seconds with `stdin`; output is read to the end but `keep` bytes kept.

    `found` says whether the text `wanted` stood anywhere in the output; `errors_too` joins stderr to it.
    """
    import subprocess
    import sys

    ours, theirs = os.pipe()
    alive, living = os.pipe()  # `living` is never written to: it closes with this process
    try:
        warden = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WARDEN, str(theirs), str(alive), *argv],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors_too else subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(theirs, alive),
            env=environment,
        )
    except (OSError, ValueError):  # no such directory, an argument too long or with a NUL
        os.close(ours)
        os.close(living)
        return Ended(None, "missing", b"", 0, found=False)
    finally:
        os.close(theirs)
        os.close(alive)
    try:
        return _attend(warden, ours, stdin, timeout, _Sink(keep, wanted.encode()))
    finally:
        end_group(warden)
        os.close(ours)
        os.close(living)


def _attend(warden: subprocess.Popen[bytes], told: int, data: bytes, timeout: float, sink: _Sink) -> Ended:
    import selectors
    import time

    assert warden.stdin is not None
    assert warden.stdout is not None
    output = warden.stdout.fileno()
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as waiting:
        waiting.register(told, selectors.EVENT_READ)
        waiting.register(output, selectors.EVENT_READ)
        os.set_blocking(output, False)
        os.set_blocking(warden.stdin.fileno(), False)
        waiting.register(warden.stdin, selectors.EVENT_WRITE)
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(min(left, LONGEST_WAIT)):
                if key.fileobj is warden.stdin:
                    data = _feed(warden.stdin, data)
                    if not data:
                        waiting.unregister(warden.stdin)
                        _close(warden.stdin)
                elif key.fd == output and not _drain(output, sink, once=True):
                    waiting.unregister(output)
                elif key.fd == told:
                    _drain(output, sink, once=False)
                    return _verdict(os.read(told, 16), sink)
    return Ended(None, "timed out", sink.tail, sink.size, found=sink.found)


def _feed(stdin: IO[bytes], data: bytes) -> bytes:
    """What is left of `data` after one write; nothing when the program does not read it."""
    try:
        return data[os.write(stdin.fileno(), data[:65536]) :] if data else b""
    except BlockingIOError:
        return data
    except OSError:
        return b""


def _close(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except OSError:  # what was not written is of no interest to a program that ended
        pass


def _drain(output: int, sink: _Sink, *, once: bool) -> bool:
    """Read what is there now; False at the end of the stream.

    When the program is over, a child it left behind may write on for ever: no more than a full pipe is read.
    """
    for _ in range(1 if once else 16):
        try:
            part = os.read(output, 65536)
        except BlockingIOError:
            return True
        if not part:
            return False
        sink.take(part)
    return True


def _verdict(said: bytes, sink: _Sink) -> Ended:
    if said == b"missing":
        return Ended(None, "missing", sink.tail, sink.size, found=sink.found)
    if not said:  # the warden ended without a word
        return Ended(None, "killed", sink.tail, sink.size, found=sink.found)
    return Ended(int(said), "", sink.tail, sink.size, found=sink.found)


def end_group(child: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the session that `child` leads, and take `child` off the process table."""
    import signal

    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
        pass
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            _close(stream)
    child.wait()
