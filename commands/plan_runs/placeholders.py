"""Whether a draft's lines are finished work: no placeholder left, and something said (contract: Results)."""

from __future__ import annotations

import re

_FIXED = re.compile(r"UNFILLED_SKELETON|\[\s*(?:answer\s+needed|placeholder|todo)\s*\]", re.IGNORECASE)
_INSERT = re.compile(r"\[\s*insert\b", re.IGNORECASE)
_INSERT_LINES = 4  # over which a wrapped paragraph may break one
_MARKER_WORD = re.compile(r"(?<![A-Za-z0-9])(?:TODO|TBD|FIXME)(?![A-Za-z0-9])")
# An enumerator is a number, a letter or a small Roman number: `No.` is an answer.
_EMPTY_ITEM = re.compile(
    r"(?:[-*+•◦▪‣·●○–—]|\(?(?:[0-9]{1,3}|[A-Za-z]|[ivx]{2,4}|[IVX]{2,4})[.)])\s*(?:\[[ xX]?\])?"
)
_RULE_OR_FRAME = re.compile(r"[-=_*+~|:>\s─-╿]+")
_WIDTHLESS = dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF))
_TABLE_RULE = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?")
_SETEXT = re.compile(r"(?:=+|-+)")
_NO_SETEXT = re.compile(r"(?:[-*+•>]|\d{1,3}[.)])\s")  # under an item or a quotation, `---` is a rule


def find_placeholder(lines: list[str]) -> str | None:
    """The first unresolved placeholder as `line N: …`, else the first marker word so, or None."""
    text = "\n".join(lines)
    fixed = _FIXED.search(text)
    places = [place for place in (fixed.span() if fixed else None, _insert(text)) if place is not None]
    word = None if places else _MARKER_WORD.search(text)
    if word is not None:
        places.append(word.span())
    if not places:
        return None
    start, end = min(places)
    return f"line {text.count(chr(10), 0, start) + 1}: {' '.join(text[start:end].split())[:60]}"


def _insert(text: str) -> tuple[int, int] | None:
    """Where the first `[insert …]` stands; a draft may be long and hostile, so no part of it is looked at again and again."""
    judged = -1
    for found in _INSERT.finditer(text):
        if found.end() <= judged:
            continue  # what closes it would have closed the one before it in its line
        place = found.end()
        judged = _line_end(text, place)
        for _ in range(_INSERT_LINES):
            end = _line_end(text, place)
            close = text.find("]", place, end)
            if close >= 0:
                return found.start(), close + 1
            place = end + 1
            if not text[place : _line_end(text, place)].strip():
                break  # an empty line ends the paragraph
    return None


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _without_comments(text: str) -> str:
    kept, place = [], 0
    while (start := text.find("<!--", place)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        kept.append(text[place:start])
        place = end + 3
    return "".join((*kept, text[place:]))


def is_hollow(lines: list[str]) -> bool:
    """Whether nothing is left once blank lines, headings, empty list items, rules and table frames are taken away."""
    text = _without_comments("\n".join(lines)).translate(_WIDTHLESS)
    kept = [line.strip() for line in text.splitlines()]
    for place, line in enumerate(kept):
        # The very next line: behind an empty one, `---` is a rule and no heading's underline.
        following = kept[place + 1] if place + 1 < len(kept) else ""
        if (
            not line
            or line.startswith("#")
            or _EMPTY_ITEM.fullmatch(line)
            or _RULE_OR_FRAME.fullmatch(line)
            or (_SETEXT.fullmatch(following) and not _NO_SETEXT.match(line))
        ):
            continue
        if "|" in line and "-" in following and "|" in following and _TABLE_RULE.fullmatch(following):
            continue
        return False
    return True
