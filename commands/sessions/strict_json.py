"""JSON as the gate reads it: nothing ambiguous gets through (contract `review-sessions`, Gate).

Refused: invalid UTF-8, a byte order mark, NaN and Infinity, a duplicate key at any depth, a lone surrogate,
nesting too deep for the decoder. Numbers remember how they were written.
"""

from __future__ import annotations

from ledger.errors import GatebookError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from json import JSONDecoder


class Malformed(GatebookError):
    """A producer's output that is not one clear verdict: exit 2 of `gate adapt`."""

    exit_code = 2


class WrittenInt(int):
    """An integer together with its text, such as `-0`."""

    text: str


class WrittenFloat(float):
    """A decimal number together with its text, such as `0.50`."""

    text: str


def decode_text(data: bytes) -> str:
    """The text of these bytes; `Malformed` unless they are UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"invalid UTF-8 at byte {error.start}") from None


def loads(text: str) -> object:
    """The one JSON value that this text is; `Malformed` for anything else."""
    import json

    if text.startswith("\ufeff"):
        raise Malformed("a byte order mark before the JSON")
    try:
        value = decoder().decode(text)
    except json.JSONDecodeError as error:
        raise Malformed(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise Malformed("the JSON is nested too deeply") from None
    refuse_surrogates(value)
    return value


def decoder() -> JSONDecoder:
    """A decoder with our refusals, for `decode` and `raw_decode`; both also raise `RecursionError`."""
    import json

    return json.JSONDecoder(
        object_pairs_hook=_object, parse_int=_integer, parse_float=_decimal, parse_constant=_constant
    )


def refuse_surrogates(value: object) -> None:
    """`Malformed` if any text in this value holds half of a surrogate pair: it cannot be written as UTF-8."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and not item.isascii():
            try:
                item.encode("utf-8")
            except UnicodeEncodeError:
                raise Malformed("a lone surrogate in a JSON string") from None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                raise Malformed(f"duplicate key {key[:80]!r}")
            seen.add(key)
    return value


def _integer(text: str) -> WrittenInt:
    try:
        number = WrittenInt(text)
    except ValueError:  # more digits than the interpreter converts
        raise Malformed("an integer of more than 4300 digits") from None
    number.text = text
    return number


def _decimal(text: str) -> WrittenFloat:
    number = WrittenFloat(text)
    number.text = text
    return number


def _constant(name: str) -> object:
    raise Malformed(f"{name} is not JSON")
