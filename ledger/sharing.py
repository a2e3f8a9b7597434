"""A range of events shared with processes of our own, each of which walks its part piece by piece from the end.

Never by a fork: SQLite's locks do not survive one.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import msgspec

from ledger.event import ZERO_HASH
from ledger.lines import read_envelope
from ledger.sqlite import SQLiteStore, connect
from ledger.walk import EPOCH, Walk, go, go_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    import apsw

WORTH_A_PROCESS = 20_000  # events: below that a second process takes longer to start than it saves
SMALLEST_EVENT = 200  # bytes of the file that no event does without
PIECE = 4_000  # events that processes which share a range take at a time


def worth_sharing(store: SQLiteStore, events: int) -> bool:
    """Whether so many events are worth a second process; never more than the file can hold, whatever its last number is."""
    ((pages,),), ((size,),) = store.query("PRAGMA page_count"), store.query("PRAGMA page_size")
    return WORTH_A_PROCESS < events <= int(str(pages)) * int(str(size)) // SMALLEST_EVENT


def in_parallel(
    walk: Walk,
    connection: apsw.Connection,
    last: int,
    jobs: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Move `walk` on to event `last`, with `jobs - 1` processes beside this one.

    This one begins with half of an even share, and then comes to meet the others, each in its own part.
    """
    share = (last - walk.next + 1) // jobs
    begin = walk.next if jobs == 2 else walk.next + share // 2
    size = -(-(last + 1 - begin) // (jobs - 1))
    others: list[Other] = []
    try:
        others += (
            Other(walk.store.path, at, min(at + size, last + 1)) for at in range(begin, last + 1, size)
        )
        go(walk, connection, begin - 1, progress)
        for other in others:
            for end in other.meet(walk):
                if not go_on(walk, connection, end, last):
                    return
                if progress is not None:
                    progress(walk.events, last)
            if progress is not None:
                progress(walk.events, last)
    finally:
        for other in others:
            other.stop()


def _start(*words: object) -> subprocess.Popen[bytes]:
    """This module's `main` in a process of its own; it needs nothing of typing_extensions, 12 ms of msgspec's import.

    Interrupted, or alone because this one was killed, it ends without a word.
    """
    import subprocess

    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); signal.signal(signal.SIGPIPE, signal.SIG_DFL); "
        "sys.modules['typing_extensions'] = None; from ledger.sharing import main; main()"
    )
    command = [sys.executable, "-P", "-c", script, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)


class Other:
    """A process that walks a range piece by piece from its end, while this one comes from its beginning."""

    def __init__(self, path: str, begin: int, end: int) -> None:
        self.ends = [min(at + PIECE, end) for at in range(begin, end, PIECE)]
        self._found: list[bytes] = []  # a summary of each piece, the last piece first
        self._changed = threading.Condition()
        self._runs = True
        self._process = _start(path, begin, end, PIECE)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._found.append(line)
                self._changed.notify()
        with self._changed:
            self._runs = False
            self._changed.notify()

    def found(self, end: int) -> dict[str, Any] | None:
        """What it found in the piece that ends there; None when it has not come to it."""
        place = len(self.ends) - self.ends.index(end)
        with self._changed:
            return _summary(self._found[place - 1]) if len(self._found) >= place else None

    def meet(self, walk: Walk) -> Iterator[int]:
        """Move `walk` through what is left of the range: the ends of the pieces that it is to walk itself are given in order.

        Those are the ones that nobody has walked, and the ones where the other found something wrong: whatever is
        wrong first is found here, in order.
        """
        for at, end in enumerate(self.ends):
            if end <= walk.next:
                continue
            line = self._piece(len(self.ends) - at)
            if line is None or not walk.join(_summary(line)):
                yield end

    def _piece(self, place: int) -> bytes | None:
        """The summary of the piece at this place from the end; None when the other is not there yet, or has died."""
        with self._changed:
            if place == len(self._found) + 1:  # it is in it
                self._changed.wait_for(lambda: len(self._found) >= place or not self._runs)
            if len(self._found) < place:
                return None
        self._process.kill()  # what it has not begun is walked already
        return self._found[place - 1]

    def stop(self) -> None:
        """End it, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _summary(line: bytes) -> dict[str, Any]:
    """What an `Other` wrote; of a line cut off in the middle, that it is wrong."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {"wrong": True}


def _worker(path: str, begin: int, end: int, piece: int) -> int:
    """Pieces of a range in a process of its own, the last one first: prints each one's summary, or that it is wrong."""
    store = SQLiteStore(path)
    connection = connect(path, walking=True)
    for first in reversed(range(begin, end, piece)):
        try:
            answer = _walk_piece(store, connection, first, min(first + piece, end))
        except Exception:  # noqa: BLE001 - whatever it is, the process that asked comes to it and says it
            answer = {"wrong": True}
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.flush()
        if "wrong" in answer:
            break
    return 0


def _walk_piece(store: SQLiteStore, connection: apsw.Connection, first: int, end: int) -> dict[str, Any]:
    previous, recorded = ZERO_HASH, EPOCH
    if first > 1:
        ((hash_, before),) = store.query("SELECT hash, envelope FROM events WHERE seq = ?", (first - 1,))
        assert isinstance(hash_, bytes)
        assert isinstance(before, bytes)
        previous, recorded = hash_, read_envelope(before).recorded_at
    walk = Walk(store, first, previous, recorded)
    go(walk, connection, end - 1)
    return walk.summary() if walk.next == end else {"wrong": True}


def main() -> None:
    """What an `Other` started."""
    os._exit(_worker(sys.argv[1], *map(int, sys.argv[2:])))
