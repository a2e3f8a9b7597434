"""`<runs>/_processed.json`: one object for all days and tools; only our key's value is touched (contract: Results).

The text of every other entry is kept byte for byte, so the object is spliced and never printed anew.
"""

from __future__ import annotations

import json

from commands.plan_runs.documents import parse_document
from commands.plan_runs.rooted import MissingFileError, read_file, write_file
from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROCESSED = "_processed.json"
_LIMIT = 64 << 20
_SPACE = " \t\r\n"


def ledger_entry(result: dict[str, Any], date: str, recorded_at: str) -> dict[str, Any]:
    """What stands in the file for one result: verified fields only; of a receipt its id and that it was consumed."""
    entry: dict[str, Any] = {"status": result["status"], "run": date, "recorded_at": recorded_at}
    for field in ("draft_path", "submitted_at", "reason_code", "notes", "deferred_to_next_run"):
        if result.get(field) is not None:
            entry[field] = result[field]
    if result["status"] == "submitted" and result.get("authorization_consumed") is True:
        entry["authorization_receipt_id"] = result["authorization_receipt_id"]
        entry["authorization_consumed"] = True
    return entry


class Entries:
    """The file's text with the place of each entry: looked through once, changed in one piece."""

    __slots__ = ("_end", "_is_empty", "_spans", "_values", "runs", "text")

    def __init__(self, runs: str, text: str) -> None:
        self.runs = runs
        self.text = text
        self._spans, self._end, self._is_empty = _spans(text)
        self._values: dict[str, str] = {}

    def digest(self, key: str) -> str:
        """BLAKE3 of the entry's exact text, `` where the key does not stand."""
        if key in self._values:
            return _digest(self._values[key])
        span = self._spans.get(key)
        return "" if span is None else _digest(self.text[span[0] : span[1]])

    def put(self, key: str, entry: dict[str, Any]) -> str:
        """Sets the key's value; returns the digest of its text."""
        self._values[key] = json.dumps(entry, ensure_ascii=False, allow_nan=False)
        return self.digest(key)

    def render(self) -> str:
        """The text with what was put: values replaced in place, new pairs at the end, all else as it was."""
        pieces: list[str] = []
        done = 0
        for key, (start, end) in self._spans.items():
            if key in self._values:
                pieces += [self.text[done:start], self._values[key]]
                done = end
        new = [key for key in self._values if key not in self._spans]
        if not new:
            return "".join([*pieces, self.text[done:]])
        pieces.append(self.text[done : self._end].rstrip(_SPACE))
        pairs = ",".join(f"\n  {json.dumps(key, ensure_ascii=False)}: {self._values[key]}" for key in new)
        return "".join([*pieces, "" if self._is_empty else ",", pairs, "\n", self.text[self._end :]])

    def write(self) -> None:
        """The file holds the rendered text afterwards (temp, fsync, rename); nothing happens where nothing was put."""
        if self._values:
            write_file(self.runs, PROCESSED, self.render().encode("utf-8"))


def read_processed(runs: str) -> Entries:
    """The file's entries (none where there is no file); `Invalid` when it is not one JSON object."""
    try:
        raw = read_file(runs, PROCESSED, limit=_LIMIT)
    except MissingFileError:
        return Entries(runs, "{}\n")
    where = f"{runs}/{PROCESSED}"
    if not isinstance(parse_document(raw, where), dict):
        raise Invalid(f"{where}: is not an object; mend it by hand, its entries belong to other runs too")
    return Entries(runs, raw.decode("utf-8"))


def merge_ledger_entry(runs: str, key: str, entry: dict[str, Any]) -> str:
    """Writes the entry into the runs folder's file, atomically; returns the BLAKE3 of its text there."""
    entries = read_processed(runs)
    digest = entries.put(key, entry)
    entries.write()
    return digest


def _digest(text: str) -> str:
    from blake3 import blake3

    return blake3(text.encode("utf-8")).hexdigest()


def _spans(text: str) -> tuple[dict[str, tuple[int, int]], int, bool]:
    """The span of each key's value, the place of the closing brace, and whether the object is empty.

    `text` has been parsed as an object without duplicate keys before: the walk meets no fault.
    """
    decoder = json.JSONDecoder()
    found: dict[str, tuple[int, int]] = {}
    place = _skip(text, _skip(text, 0) + 1)
    is_empty = text[place] == "}"
    while text[place] != "}":
        name, place = decoder.raw_decode(text, place)
        start = _skip(text, _skip(text, place) + 1)
        _, end = decoder.raw_decode(text, start)
        found[name] = (start, end)
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return found, place, is_empty


def _skip(text: str, place: int) -> int:
    while text[place] in _SPACE:
        place += 1
    return place
