"""Moments as callers write them (RFC 3339, ISO 8601 with a zone), as integers, and back.

Own arithmetic, because `datetime` costs a step's start-up and knows no leap second.
"""

from __future__ import annotations

from ledger.clock import DAY, SECOND, days_from_civil
from ledger.errors import Invalid

__all__ = [
    "DAY",
    "HOUR",
    "LATEST",
    "MINUTE",
    "SECOND",
    "parse_date",
    "parse_time",
    "print_time",
    "whole_seconds",
]

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

_DAYS_BEFORE_MONTH = (0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365)
_DIGITS = frozenset("0123456789")
_YEAR_1 = -719_162 * DAY  # 0001-01-01T00:00:00Z, counted from 1970-01-01
LATEST = 2_932_897 * DAY - 1  # the last microsecond of the year 9999


class _OddError(Exception):
    """Why a text is not a moment; `parse_time` adds the text and the place."""


def _leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _days_in_month(year: int, month: int) -> int:
    return _DAYS_BEFORE_MONTH[month] - _DAYS_BEFORE_MONTH[month - 1] + (month == 2 and _leap(year))


def _number(text: str, low: int, high: int, name: str) -> int:
    if len(text) != (4 if name == "year" else 2) or not _DIGITS.issuperset(text):
        raise _OddError(f"the {name} is not {'four' if name == 'year' else 'two'} digits")
    value = int(text)
    if not low <= value <= high:
        raise _OddError(f"there is no {name} {text}")
    return value


def _date(text: str) -> int:
    if len(text) == 8:  # ISO 8601 basic form
        text = f"{text[:4]}-{text[4:6]}-{text[6:]}"
    parts = text.split("-")
    if len(parts) != 3:
        raise _OddError("the date is not YYYY-MM-DD")
    year = _number(parts[0], 1, 9999, "year")
    month = _number(parts[1], 1, 12, "month")
    return days_from_civil(year, month, _number(parts[2], 1, _days_in_month(year, month), "day"))


def _offset(zone: str) -> int:
    """Microseconds that a zone's clock is ahead of UTC."""
    sign, digits = zone[0], zone[1:].replace(":", "")
    if zone[1:] not in (digits, f"{digits[:2]}:{digits[2:]}") or len(digits) not in (2, 4):
        raise _OddError("the zone is not Z or +hh:mm")
    minutes = _number(digits[:2], 0, 23, "zone hour") * 60 + _number(digits[2:] or "00", 0, 59, "zone minute")
    return (-minutes if sign == "-" else minutes) * MINUTE


def _split_zone(text: str) -> tuple[str, int]:
    if text[-1:] in ("Z", "z"):
        return text[:-1], 0
    at = max(text.rfind("+"), text.rfind("-"))
    if at < 0:
        raise _OddError("it has no zone (Z or +hh:mm)")
    return text[:at], _offset(text[at:])


def _clock(text: str) -> tuple[int, int, int]:
    """Microseconds of whole minutes, seconds 0-60, microseconds of the fraction (finer is cut off)."""
    whole, dot, fraction = text.replace(",", ".", 1).partition(".")
    if dot and not (fraction and _DIGITS.issuperset(fraction)):
        raise _OddError("the fraction of a second is not digits")
    parts = whole.split(":") if ":" in whole else [whole[at : at + 2] for at in range(0, len(whole), 2)]
    if len(parts) not in (2, 3) or (dot and len(parts) == 2):
        raise _OddError("the time of day is not hh:mm:ss")
    minutes = _number(parts[0], 0, 23, "hour") * 60 + _number(parts[1], 0, 59, "minute")
    seconds = _number(parts[2], 0, 60, "second") if len(parts) == 3 else 0
    return minutes * MINUTE, seconds, int((fraction + "000000")[:6])


# Texts parsed just before, and dates met before: admission and fold read the same ones, in turn and again.
_known_texts: dict[str, int] = {}
_known_days: dict[str, int] = {}
# The rest of a text as `print_time` writes it: `T12:`, `00:`, `00Z`.
_HOURS = {f"T{hour:02d}:": hour * HOUR for hour in range(24)}
_MINUTES = {f"{minute:02d}:": minute * MINUTE for minute in range(60)}
_SECONDS = {f"{second:02d}Z": second * SECOND for second in range(60)}


def _printed(text: str) -> int | None:
    """The moment of a text as `print_time` writes it, on a day met before; None sends it the careful way."""
    try:
        return _known_days[text[:10]] + _HOURS[text[10:14]] + _MINUTES[text[14:17]] + _SECONDS[text[17:]]
    except KeyError:
        return None


def _remember(text: str, moment: int) -> None:
    if len(_known_texts) > 2000:
        _known_texts.clear()
        _known_days.clear()
    _known_texts[text] = moment
    if text[10:14] in _HOURS and text[14:17] in _MINUTES and text[17:] in _SECONDS:
        _known_days[text[:10]] = moment - moment % DAY


def _moment(text: str) -> int:
    at = 8 if text[8:9] in ("T", "t") else 10
    if text[at : at + 1] not in ("T", "t", " "):
        raise _OddError("it is not a date and a time of day (2026-08-25T12:00:00Z)")
    days = _date(text[:at])
    clock, ahead = _split_zone(text[at + 1 :])
    minutes, seconds, fraction = _clock(clock)
    minute = days * DAY + minutes - ahead
    if seconds == 60 and not _ends_a_month(minute):
        raise _OddError("second 60 exists only at 23:59:60 UTC on the last day of a month")
    moment = minute + seconds * SECOND + fraction
    if not _YEAR_1 <= moment <= LATEST:
        raise _OddError("in UTC it lies outside the years 1 to 9999")
    return moment


def _ends_a_month(minute: int) -> bool:
    return minute % DAY == DAY - MINUTE and _civil(minute // DAY + 1)[2] == 1


def parse_time(text: object, what: str = "time") -> int:
    """The moment `text` names, in microseconds since 1970-01-01 UTC.

    Takes what RFC 3339 section 5.6 allows (`t`, `z` and a space included) and the ISO 8601 forms without
    separators or seconds; a zone always. Digits finer than a microsecond are cut off. The leap second
    23:59:60 (RFC 3339 section 5.7: at the end of a month, in UTC) is the moment after 23:59:59, as POSIX counts.

    Raises:
        Invalid: `text` is no such moment; names `what`, the text and the reason.
    """
    try:
        return _known_texts[text]  # type: ignore[index]
    except (KeyError, TypeError):
        return _read_time(text, what)


def _read_time(text: object, what: str) -> int:
    if not isinstance(text, str):
        raise Invalid(f"{what} must be a time as text, like 2026-08-25T12:00:00Z") from None
    try:
        if len(text) > 64:
            raise _OddError("it is too long")
        moment = _printed(text)
        if moment is None:
            moment = _moment(text)
        _remember(text, moment)
        return moment
    except _OddError as odd:
        raise Invalid(f"{what} {text[:64]!r}: {odd}") from None


def parse_date(text: object, what: str = "date") -> int:
    """Days from 1970-01-01 to the date `YYYY-MM-DD`; Invalid otherwise, naming `what`."""
    try:
        if not isinstance(text, str) or len(text) != 10:
            raise _OddError("the date is not YYYY-MM-DD")
        return _date(text)
    except _OddError as odd:
        raise Invalid(f"{what}: {odd}") from None


def _civil(days: int) -> tuple[int, int, int]:
    """The date `days` after 1970-01-01: the inverse of `_days`, by 400-, 100-, 4- and 1-year cycles."""
    cycles, rest = divmod(days + 719_162, 146_097)
    centuries = min(rest // 36_524, 3)  # the last day of a cycle still belongs to its fourth century
    fours, rest = divmod(rest - centuries * 36_524, 1_461)
    years = min(rest // 365, 3)
    year = cycles * 400 + centuries * 100 + fours * 4 + years + 1
    rest -= years * 365
    month = 1
    while rest >= _days_in_month(year, month):
        rest -= _days_in_month(year, month)
        month += 1
    return year, month, rest + 1


def print_time(moment: int) -> str:
    """`moment` (microseconds) as UTC in whole seconds, `2026-08-25T12:00:00Z`; a fraction is cut off."""
    days, rest = divmod(moment // SECOND, 86_400)
    year, month, day = _civil(days)
    return f"{year:04d}-{month:02d}-{day:02d}T{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}Z"


def whole_seconds(moment: int) -> int:
    """`moment` without its fraction of a second: what is printed is then exactly what is meant."""
    return moment - moment % SECOND
