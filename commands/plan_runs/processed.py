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


def read_processed(runs: str) -> str:
    """The file's text (`{}` where there is none); `Invalid` when it is not one JSON object."""
    try:
        raw = read_file(runs, PROCESSED, limit=_LIMIT)
    except MissingFileError:
        return "{}\n"
    where = f"{runs}/{PROCESSED}"
    if not isinstance(parse_document(raw, where), dict):
        raise Invalid(f"{where}: is not an object; mend it by hand, its entries belong to other runs too")
    return raw.decode("utf-8")


def entry_digest(text: str, key: str) -> str | None:
    """BLAKE3 of the entry's exact text, or None where the key does not stand."""
    from blake3 import blake3

    span = _find(text, key)[0]
    return None if span is None else blake3(text[span[0] : span[1]].encode("utf-8")).hexdigest()


def with_entry(text: str, key: str, entry: dict[str, Any]) -> str:
    """`text` (one JSON object) with the key's value replaced, or the pair added at the end; all else as it was."""
    value = json.dumps(entry, ensure_ascii=False, allow_nan=False)
    span, end, is_empty = _find(text, key)
    if span is not None:
        return text[: span[0]] + value + text[span[1] :]
    head = text[:end].rstrip(_SPACE)
    pair = f"\n  {json.dumps(key, ensure_ascii=False)}: {value}\n"
    return head + ("" if is_empty else ",") + pair + text[end:]


def merge_ledger_entry(runs: str, key: str, entry: dict[str, Any]) -> str:
    """Writes the entry into the runs folder's file, atomically; returns the BLAKE3 of its text there."""
    text = with_entry(read_processed(runs), key, entry)
    write_file(runs, PROCESSED, text.encode("utf-8"))
    digest = entry_digest(text, key)
    assert digest is not None
    return digest


def _find(text: str, key: str) -> tuple[tuple[int, int] | None, int, bool]:
    """The span of the key's value, the place of the closing brace, and whether the object is empty.

    `text` has been parsed as an object before: the walk meets no fault.
    """
    decoder = json.JSONDecoder()
    found: tuple[int, int] | None = None
    place = _skip(text, _skip(text, 0) + 1)
    is_empty = text[place] == "}"
    while text[place] != "}":
        name, place = decoder.raw_decode(text, place)
        start = _skip(text, _skip(text, place) + 1)
        _, end = decoder.raw_decode(text, start)
        if name == key:
            found = (start, end)
        place = _skip(text, end)
        if text[place] == ",":
            place = _skip(text, place + 1)
    return found, place, is_empty


def _skip(text: str, place: int) -> int:
    while text[place] in _SPACE:
        place += 1
    return place
