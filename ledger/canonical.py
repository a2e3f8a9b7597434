"""Canonical JSON bytes: RFC 8785 (JCS), and the strict reading that comes before it.

Reading and writing go through CPython's own C scanner and encoder (`_json`), because `json` itself
costs 6 ms to import. Where the C encoder's order could differ from JCS (a name outside ASCII) or a
float occurs, the Python writer below decides; tests compare both with an independent implementation.
"""

from __future__ import annotations

import _json

from ledger.errors import Invalid, Tampered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_SAFE = 2**53 - 1
MAX_DEPTH = 64

quote: Callable[[str], str] = _json.encode_basestring
# typeshed describes the scanner as its own context; any object with these attributes serves.
_make_scanner: Callable[[object], Callable[[str, int], tuple[object, int]]] = _json.make_scanner  # type: ignore[assignment]


class _Bad:
    """A value that broke a rule while being scanned; found again with its place afterwards."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class _Reader:
    """What the C scanner asks for each object and number; remembers whether anything was wrong."""

    __slots__ = ("array_hook", "bad", "floats", "object_hook", "object_pairs_hook", "parse_constant", "parse_float", "parse_int", "stored", "strict")  # fmt: skip

    def __init__(self, *, floats: bool, stored: bool = False) -> None:
        self.strict = True
        self.object_hook = None
        self.array_hook = None
        self.object_pairs_hook = self._object
        self.parse_float = self._float if floats else self._no_float
        self.parse_int = self._int
        self.parse_constant = self._constant
        self.bad = False
        self.floats = False
        self.stored = stored

    def _refuse(self, reason: str) -> _Bad:
        self.bad = True
        return _Bad(reason)

    def _object(self, pairs: list[tuple[str, object]]) -> object:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            return self._refuse(f"the key {quote(twice)} stands twice in one object")
        return found

    def _int(self, digits: str) -> object:
        if len(digits) < 16 and digits != "-0":
            return int(digits)
        return self._odd_int(digits)

    def _odd_int(self, digits: str) -> object:
        floats_allowed = self.parse_float != self._no_float
        if digits == "-0":
            return (
                0
                if floats_allowed and not self.stored
                else self._refuse("the number -0 is not canonical; write 0")
            )
        if len(digits) < 18 and -MAX_SAFE <= int(digits) <= MAX_SAFE:
            return int(digits)
        # JCS writes doubles up to 1e21 without an exponent: such a digits stands in stored bytes lawfully.
        if floats_allowed and self.stored and len(digits) < 24 and number(float(digits)) == digits:
            self.floats = True
            return float(digits)
        shown = digits if len(digits) < 30 else f"{digits[:12]}… ({len(digits)} digits)"
        return self._refuse(f"the integer {shown} is outside ±(2^53-1); give it as text")

    def _float(self, digits: str) -> object:
        value = float(digits)
        if value - value != 0:
            return self._refuse(f"the number {digits[:30]} is too large for a double")
        self.floats = True
        return value

    def _no_float(self, digits: str) -> object:
        return self._refuse(f"the number {digits[:30]} must be an integer here")

    def _constant(self, digits: str) -> object:
        return self._refuse(f"{digits} is not JSON")


def _places(value: object, at: str = "$") -> Iterator[tuple[str, object]]:
    """Every value below `value` with its place, `$.a[0].b`, without recursion limits' surprises."""
    stack = [(at, value)]
    while stack:
        place, here = stack.pop()
        yield place, here
        if isinstance(here, dict):
            stack.extend((f"{place}.{name}", inner) for name, inner in reversed(here.items()))
        elif isinstance(here, list):
            stack.extend((f"{place}[{index}]", here[index]) for index in range(len(here) - 1, -1, -1))


def _surrogate(value: object) -> str:
    """Where in `value` a lone surrogate stands: the place of a text, or of the object that has it in a key."""
    for place, here in _places(value):
        if isinstance(here, str) and not _is_text(here):
            return place
        if isinstance(here, dict) and not all(map(_is_text, here)):
            return f"a key of {place}"
    return "$"  # pragma: no cover - the walk finds it


def _is_text(value: str) -> bool:
    return not any("\ud800" <= c <= "\udfff" for c in value)


def _deep(value: object, depth: int) -> str:
    """The outermost member of `value` in which it is nested deeper than `depth`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, here in inner:
        if _depth(here) >= depth:
            return f"$.{name}" if isinstance(value, dict) else f"$[{name}]"
    return "$"  # pragma: no cover - the walk finds it


def _depth(value: object) -> int:
    deepest = 0
    stack = [(1, value)]
    while stack:
        depth, here = stack.pop()
        if isinstance(here, dict | list):
            deepest = max(deepest, depth)
            stack.extend((depth + 1, inner) for inner in (here.values() if isinstance(here, dict) else here))
    return deepest


def _position(text: str, index: int) -> str:
    return f"line {text.count(chr(10), 0, index) + 1}, column {index - text.rfind(chr(10), 0, index)}"


def _scan(text: str, reader: _Reader, what: str) -> object:
    start = len(text) - len(text.lstrip(" \t\n\r"))
    scanner = _make_scanner(reader)
    try:
        try:
            value, end = scanner(text, start)
        except SystemError:
            # CPython 3.11 looks its error class up in sys.modules and fails without it; 6 ms, so only now.
            import json.decoder  # noqa: F401

            value, end = scanner(text, start)
    except StopIteration as stop:
        index = stop.value if isinstance(stop.value, int) else len(text)
        raise Invalid(f"{what}: not JSON at {_position(text, index)}") from None
    except RecursionError:
        raise Invalid(f"{what}: nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:  # json.JSONDecodeError, which the scanner imports by itself
        index = getattr(error, "pos", len(text))
        raise Invalid(
            f"{what}: {getattr(error, 'msg', 'not JSON').removesuffix(' at')} at {_position(text, index)}"
        ) from None
    if text[end:].strip(" \t\n\r"):
        raise Invalid(f"{what}: text after the JSON value at {_position(text, end)}")
    return value


def text_of(raw: bytes | str, what: str) -> str:
    """`raw` as text, or Invalid where it is not UTF-8."""
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"{what}: not UTF-8 at byte {error.start}") from None


def _parse(raw: bytes | str, reader: _Reader, what: str, depth: int = MAX_DEPTH) -> object:
    text = text_of(raw, what)
    value = _scan(text, reader, what)
    if reader.bad:
        for place, here in _places(value):
            if isinstance(here, _Bad):
                raise Invalid(f"{what}: {here.reason}, at {place}")
        raise Invalid(f"{what}: a key stands twice in one object")  # pragma: no cover - the walk finds it
    if text.count("{") + text.count("[") > depth and _depth(value) > depth:
        raise Invalid(f"{what}: nested deeper than {MAX_DEPTH}, in {_deep(value, depth)}")
    return value


def parse(raw: bytes | str, *, what: str = "data", floats: bool = True, depth: int = MAX_DEPTH) -> object:
    """The JSON value in `raw`, read strictly.

    Raises:
        Invalid: invalid UTF-8, a duplicate key, NaN or Infinity, an integer outside ±(2^53-1), depth over
            `depth`, text after the value; and a number written with `.`, `e` or `-0` unless `floats`.
            The message names `what`, the reason and the place.
    """
    return _parse(raw, _Reader(floats=floats), what, depth)


def parse_stored(raw: bytes | str, *, what: str) -> object:
    """A line that wraps stored canonical data (an export's): strict too, and whole doubles may stand as JCS writes them.

    Raises:
        Invalid: as `parse`; the wrapping object does not count against the depth of the data in it.
    """
    return _parse(raw, _Reader(floats=True, stored=True), what, MAX_DEPTH + 1)


def parse_object(
    raw: bytes | str, *, what: str = "data", floats: bool = True, depth: int = MAX_DEPTH
) -> dict[str, object]:
    """`parse`, and the value must be an object."""
    value = parse(raw, what=what, floats=floats, depth=depth)
    if not isinstance(value, dict):
        raise Invalid(f"{what}: must be a JSON object")
    return value


class _Plain:
    """The scanner's settings for bytes that this program wrote and hashes cover: nothing to check."""

    strict = True
    object_hook = None
    array_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


_trusted = _make_scanner(_Plain)


def load(raw: bytes) -> dict[str, object]:
    """Stored canonical bytes as an object, without checks: for envelopes and data read from a ledger.

    Raises:
        Tampered: they are not JSON at all, so they are not what was recorded.
    """
    try:
        value, _ = _trusted(raw.decode(), 0)
    except (StopIteration, ValueError, RecursionError, SystemError, AttributeError):
        raise Tampered("what is stored in an event is not JSON: run `gatebook verify`") from None
    return value  # type: ignore[return-value]


def number(value: float) -> str:
    """A double as RFC 8785 section 3.2.2.3 writes it (ECMAScript Number::toString)."""
    if value - value != 0:
        raise Invalid("NaN and Infinity have no JSON form")
    if value == 0:
        return "0"
    sign, text = ("-", repr(-value)) if value < 0 else ("", repr(value))
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _write(value: object, at: str, depth: int, floats: bool) -> str:
    if isinstance(value, str):
        return quote(value)
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        if not -MAX_SAFE <= value <= MAX_SAFE:
            raise Invalid(f"{at}: the integer is outside ±(2^53-1); give it as text")
        return str(value)
    if isinstance(value, float):
        if not floats:
            raise Invalid(f"{at}: the number {value!r} must be an integer here")
        return number(value)
    if depth > MAX_DEPTH:
        raise Invalid(f"{at}: nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        if any(not isinstance(name, str) for name in value):
            raise Invalid(f"{at}: every key must be text")
        # RFC 8785 3.2.3: by UTF-16 code units, so U+10000 stands before U+E000.
        names = sorted(value) if all(map(str.isascii, value)) else sorted(value, key=_utf16)
        inner = [f"{quote(name)}:{_write(value[name], f'{at}.{name}', depth + 1, floats)}" for name in names]
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list | tuple):
        return (
            "["
            + ",".join([_write(inner, f"{at}[{i}]", depth + 1, floats) for i, inner in enumerate(value)])
            + "]"
        )
    raise Invalid(f"{at}: {type(value).__name__} has no JSON form")


def encode(value: object, *, what: str = "data", floats: bool = True) -> bytes:
    """`value` (dict, list, str, int, bool, None; float if `floats`) as RFC 8785 bytes.

    Raises:
        Invalid: anything JSON or this log cannot carry, a lone surrogate included; names the place.
    """
    try:
        return _write(value, "$", 1, floats).encode()
    except UnicodeEncodeError:
        raise Invalid(f"{what}: a lone surrogate is not text, at {_surrogate(value)}") from None
    except Invalid as error:
        raise Invalid(f"{what}: {error}") from None


def _unencodable(value: object) -> object:
    raise Invalid(f"{type(value).__name__} has no JSON form")


_fast: Callable[[object, int], tuple[str, ...]] = _json.make_encoder(
    None, _unencodable, quote, None, ":", ",", True, False, False
)


class _Slow(Exception):
    """The fast scanner met something that is wrong or rare: the careful reader decides."""


def _fast_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Slow
    return found


def _fast_int(digits: str) -> int:
    if len(digits) < 16 and digits != "-0":
        return int(digits)
    raise _Slow


def _turn_off(_digits: str) -> object:
    raise _Slow


class _Fast:
    """The scanner's settings for the common case; stateless, so threads share one scanner."""

    strict = True
    object_hook = None
    array_hook = None
    object_pairs_hook = staticmethod(_fast_object)
    parse_float = staticmethod(_turn_off)
    parse_int = staticmethod(_fast_int)
    parse_constant = staticmethod(_turn_off)


_fast_scan = _make_scanner(_Fast)


def _fast_canonical(raw: bytes | str) -> bytes | None:
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        value, end = _fast_scan(text, 0)
        if end != len(text) or not isinstance(value, dict):
            return None
        if text.count("{") + text.count("[") > MAX_DEPTH:
            return None
        written = "".join(_fast(value, 0))
    except Exception:  # noqa: BLE001 - whatever it was, the careful reader says it properly
        return None
    return written.encode() if written.isascii() else None


def _canonical(raw: bytes | str, *, what: str, floats: bool, stored: bool) -> bytes:
    value = _parse(raw, _Reader(floats=floats, stored=stored), what)
    if not isinstance(value, dict):
        raise Invalid(f"{what}: must be a JSON object")
    return encode(value, what=what)


def canonical(raw: bytes | str, *, what: str = "data", floats: bool = True) -> bytes:
    """A JSON object given as text, as RFC 8785 bytes; `parse_object` and `encode` in one, at C speed.

    Raises:
        Invalid: as `parse_object` and `encode`.
    """
    # All-ASCII output means all-ASCII keys: code point order is then UTF-16 order.
    return _fast_canonical(raw) or _canonical(raw, what=what, floats=floats, stored=False)


def is_canonical(raw: bytes, *, floats: bool) -> bool:
    """True when `raw` is a JSON object in exactly its RFC 8785 bytes (without `floats`: integers only)."""
    try:
        written = _fast_canonical(raw) or _canonical(raw, what="data", floats=floats, stored=True)
    except Invalid:
        return False
    return written == raw
