"""Foreign JSON documents, read strictly: UTF-8, no duplicate key, no NaN, no lone surrogate, bounded depth."""

from __future__ import annotations

import json

from ledger.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEPTH_LIMIT = 64


class _TwoReadingsError(ValueError):
    """What JSON readers in the field disagree about."""


def parse_document(raw: bytes, where: str) -> Any:
    """The JSON value in `raw`; `Invalid`, beginning with `where`, for anything that two readers could read differently."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"{where}: is not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise Invalid(
            f"{where}: is not JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except RecursionError:
        raise Invalid(f"{where}: is nested more than {DEPTH_LIMIT} levels deep") from None
    except _TwoReadingsError as error:
        raise Invalid(f"{where}: {error}") from None
    except ValueError:
        raise Invalid(f"{where}: holds a number of thousands of digits") from None
    _check_depth(value, where)
    try:
        # \ud800 escapes decode to lone surrogates, which no UTF-8 can carry.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (UnicodeEncodeError, ValueError):
        raise Invalid(f"{where}: holds a number out of range or half a surrogate pair") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwoReadingsError(f"holds the key {key!r} twice")
            seen.add(key)
    return found


def _no_constant(name: str) -> Any:
    raise _TwoReadingsError(f"holds {name}, which is not JSON")


def _check_depth(value: Any, where: str) -> None:
    level = [value]
    for _ in range(DEPTH_LIMIT):
        level = [
            inner
            for outer in level
            if isinstance(outer, (dict, list))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise Invalid(f"{where}: is nested more than {DEPTH_LIMIT} levels deep")


def render_document(value: Any) -> bytes:
    """The bytes of a document that people read too: two spaces, non-ASCII kept, a newline at the end."""
    return (json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n").encode("utf-8")


def moment_of(text: object) -> int | None:
    """The moment that an ISO text with a zone names (us since 1970), or None for anything else."""
    from projections.times import parse_time

    try:
        return parse_time(text)
    except Invalid:
        return None


def shown(value: Any) -> str:
    """A foreign value in a message: one line, never thousands of characters (or digits)."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 100 else f"{text[:97]}..."
