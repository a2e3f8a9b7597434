"""Which events name an event as their cause: asked of the views as far as they stand, of the log beyond.

The log has no index of causation; the views have one. Whoever follows what is found reads the events
themselves in the log, so that nothing rests on what the views say.
"""

from __future__ import annotations

import os

from ledger.canonical import quote
from ledger.leftovers import VIEWS  # projections.views would cost more to import than a whole trace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

    from ledger.access import Ledger


def named(ledger: Ledger, type: str, member: str, value: str, after: int) -> list[int]:
    """The events of `type` later than `after` whose data has this text as its member `member`, read from the log."""
    rows = ledger.store.query(
        # The search for bytes lets few through to be read as JSON: canonical text has but one spelling.
        "SELECT seq FROM events WHERE type = ? AND seq > ? AND instr(data, ?) AND json_extract(CAST(data AS TEXT), ?) = ?",
        (type, after, f"{quote(member)}:{quote(value)}".encode(), f"$.{member}", value),
    )
    return [row[0] for row in rows if isinstance(row[0], int)]


class Causes:
    """The events caused by a given one, in order. `standing`: up to which event the views answer (0: they do not)."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._views = _open(ledger)
        self.standing = 0
        if self._views is not None:
            self.standing = _standing(ledger, self._views)
        self._beyond: dict[int, list[int]] | None = None

    def of(self, seq: int) -> list[int]:
        """The seqs of the events that name event `seq` as their cause; to be asked for one event after the other, ascending."""
        found = self._viewed(seq, -1)
        if self._beyond is None:
            self._beyond = self._scan(max(self.standing, seq))
        return found + self._beyond.get(seq, [])

    def first(self, seq: int, limit: int) -> list[int]:
        """The first `limit` of them, for one event only: cheaper than `of` where the views do not stand."""
        found = self._viewed(seq, limit)
        if len(found) < limit:
            # The number stands in the envelope's bytes, followed by the next member: a search that reads no JSON.
            rows = self._ledger.store.query(
                "SELECT seq FROM events WHERE seq > ? AND instr(envelope, ?) ORDER BY seq LIMIT ?",
                (max(self.standing, seq), b'"causation":%d,' % seq, limit - len(found)),
            )
            found += [row[0] for row in rows if isinstance(row[0], int)]
        return found

    def children(self, receipt: str, after: int) -> list[int]:
        """The later events than `after` that issued a receipt under this one: views first, as for effects."""
        found: list[int] = []
        if self.standing > after and self._views is not None:
            import _sqlite3

            try:
                rows = self._views.execute(
                    "SELECT issued_seq FROM receipts WHERE parent_id = ? AND issued_seq > ? AND issued_seq <= ?",
                    (receipt, after, self.standing),
                )
                found, after = [int(row[0]) for row in rows], self.standing
            except (
                _sqlite3.Error,
                TypeError,
                ValueError,
            ):  # damaged, or without any receipt: the log answers
                pass
        return found + named(self._ledger, "receipt.issued", "parent_id", receipt, after)

    def _viewed(self, seq: int, limit: int) -> list[int]:
        if self.standing <= seq or self._views is None:
            return []
        import _sqlite3

        try:
            rows = self._views.execute(
                "SELECT seq FROM events WHERE causation = ? AND seq <= ? ORDER BY seq LIMIT ?",
                (seq, self.standing, limit),
            )
            return [int(row[0]) for row in rows]
        except _sqlite3.Error:  # damaged further in: the log alone answers from here on
            self.standing, self._beyond = 0, None
            return []

    def _scan(self, after: int) -> dict[int, list[int]]:
        """Cause -> its effects among the events after `after`; asked for in ascending order, so one pass is enough."""
        rows = self._ledger.store.query(
            "SELECT seq, json_extract(CAST(envelope AS TEXT), '$.causation') FROM events "
            "WHERE seq > ? AND instr(envelope, CAST('\"causation\":' AS BLOB)) ORDER BY seq",
            (after,),
        )
        found: dict[int, list[int]] = {}
        for seq, cause in rows:
            if isinstance(seq, int) and isinstance(cause, int):
                found.setdefault(cause, []).append(seq)
        return found

    def close(self) -> None:
        """Let go of the views' file."""
        if self._views is not None:
            self._views.close()


def _open(ledger: Ledger) -> sqlite3.Connection | None:
    path = os.path.join(ledger.folder, VIEWS)
    if not os.path.isfile(path):
        return None
    # `sqlite3` itself brings datetime and adapters, `urllib` much more: together they cost more than a trace.
    import _sqlite3

    name = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        return _sqlite3.connect(f"file:{name}?mode=ro", uri=True, timeout=1)
    except _sqlite3.Error:
        return None


def _standing(ledger: Ledger, views: sqlite3.Connection) -> int:
    """The event up to which the views stand, where they are of this history; 0 where they are not, or unreadable.

    No transaction is held: rows up to there never change while the file is this one, and a writer would have to wait.
    """
    import _sqlite3

    try:
        row = views.execute("SELECT seq, hash FROM position WHERE id = 1").fetchone()
        views.execute("SELECT causation FROM events LIMIT 1")
    except _sqlite3.Error:
        return 0
    event = ledger.store.reader().event(row[0]) if row is not None else None
    return event.seq if event is not None and event.hash.hex() == row[1] else 0
