"""Whether a draft's lines are finished work: no placeholder left, and something said (contract: Results)."""

from __future__ import annotations

import re

# A wrapped paragraph breaks a placeholder in two; an empty line ends it. Nothing that was passed is tried again: what
# stands there is neither its end nor a line's.
_PLACEHOLDER = re.compile(
    r"UNFILLED_SKELETON|\[\s*(?:answer\s+needed|placeholder|todo)\s*\]|\[\s*insert\b[^\]\n]*+(?:\n(?!\s*\n)[^\]\n]*+){0,3}+\]",
    re.IGNORECASE,
)
_MARKER_WORD = re.compile(r"(?<![A-Za-z0-9])(?:TODO|TBD|FIXME)(?![A-Za-z0-9])")
# An enumerator is a number, a letter or a small Roman number: `No.` is an answer.
_EMPTY_ITEM = re.compile(r"(?:[-*+•]|\(?(?:[0-9]{1,3}|[A-Za-z]|[ivx]{2,4}|[IVX]{2,4})[.)])\s*(?:\[[ xX]?\])?")
_RULE_OR_FRAME = re.compile(r"[-=_*+~|:\s─-╿]+")
_TABLE_RULE = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?")
_SETEXT = re.compile(r"(?:=+|-+)")
_NO_SETEXT = re.compile(r"(?:[-*+•>]|\d{1,3}[.)])\s")  # under an item or a quotation, `---` is a rule
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def find_placeholder(lines: list[str]) -> str | None:
    """The first unresolved placeholder as `line N: …`, else the first marker word so, or None."""
    text = "\n".join(lines)
    found = _PLACEHOLDER.search(text) or _MARKER_WORD.search(text)
    if found is None:
        return None
    return f"line {text.count(chr(10), 0, found.start()) + 1}: {' '.join(found.group().split())[:60]}"


def is_hollow(lines: list[str]) -> bool:
    """Whether nothing is left once blank lines, headings, empty list items, rules and table frames are taken away."""
    kept = [line.strip() for line in _COMMENT.sub("", "\n".join(lines)).splitlines()]
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
