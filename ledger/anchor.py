"""What a replica keeps about its stream beside itself: how far it was read, and where its end was left."""

from __future__ import annotations

import os

from blake3 import blake3

_LINE = b"%020d %020d %020d %020d %020d %020d %020d\n"
_NONE: tuple[int, ...] = (0, 0, 0, 0, -1, 0, 0)


def _read(raw: bytes) -> tuple[int, ...]:
    """The seven numbers of an anchor's line; those of no anchor when it is damaged."""
    try:
        numbers = tuple(map(int, raw.split()))
        if raw == _LINE % numbers:
            return numbers
    except (TypeError, ValueError):
        pass
    return _NONE


class Anchor:
    """Which stream was read, how far, and where its end was left.

    The anchor is the place of the last message that was read or written as an event, with that event's seq and the
    voids before it: reading begins there, with that message. The tip is the last place that this machine knows, as of
    event `tip_seq`: the next write goes after it. `made` stands for the stream's moment of creation: a stream that
    was made anew is read from its beginning, and compared. All of it is kept beside the replica without a flush:
    after a crash it is older than the replica, and what lies between is compared again; a damaged one is none.
    """

    __slots__ = (
        "_handle",
        "_numbers",
        "_path",
        "_raw",
        "made",
        "place",
        "seq",
        "tip",
        "tip_seq",
        "tip_voids",
        "voids",
    )

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "anchor")
        self._handle = -1
        self._raw = b""  # what the file holds, as this process saw it last, and the numbers in it
        self._numbers = _NONE
        self.made = 0
        self.forget()

    def load(self) -> None:
        """Take over what other processes of this machine have read and written; under the replica's lock."""
        if self._handle < 0:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        raw = os.pread(self._handle, 200, 0)
        if raw != self._raw:
            self._raw, self._numbers = raw, _read(raw)
        self.made, self.place, self.seq, self.voids, self.tip, self.tip_seq, self.tip_voids = self._numbers

    def save(self) -> None:
        """Write what stands here."""
        self._numbers = (
            self.made, self.place, self.seq, self.voids, max(self.tip, 0), self.tip_seq, self.tip_voids,
        )  # fmt: skip
        self._raw = _LINE % self._numbers
        os.pwrite(self._handle, self._raw, 0)

    def identify(self, created: str) -> None:
        """Begin from nothing unless the stream with this moment of creation is the one that was read."""
        made = int.from_bytes(blake3(created.encode()).digest()[:8], "big")
        if made != self.made:
            self.forget()
            self.made = made

    def wrote(self, place: int, seq: int) -> None:
        """This machine's own event `seq` stands at `place`, the end."""
        self.place, self.seq, self.voids = place, seq, self.tip_voids
        self.tip, self.tip_seq = place, seq

    def forget(self) -> None:
        """Begin from nothing."""
        self.place = self.seq = self.voids = self.tip_seq = self.tip_voids = 0
        self.tip = -1

    def close(self) -> None:
        """Let go of the file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
