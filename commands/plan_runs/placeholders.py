"""Whether a draft's lines are finished work: no placeholder left, and something said (contract: Results)."""

from __future__ import annotations

import re

_PLACEHOLDER = re.compile(
    r"UNFILLED_SKELETON|\[\s*(?:answer needed|placeholder|todo)\s*\]|\[\s*insert\b[^\]\n]*\]", re.IGNORECASE
)
_MARKER_WORD = re.compile(r"(?<![A-Za-z0-9])(?:TODO|TBD|FIXME)(?![A-Za-z0-9])")
_EMPTY_ITEM = re.compile(r"(?:[-*+•]|\(?[0-9A-Za-z]{1,3}[.)])\s*(?:\[[ xX]?\])?")
_RULE_OR_FRAME = re.compile(r"[-=_*+~|:\s─-╿]+")
_TABLE_RULE = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?")
_SETEXT = re.compile(r"(?:=+|-+)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def find_placeholder(lines: list[str]) -> str | None:
    """The first unresolved placeholder as `line N: …`, or None."""
    for number, line in enumerate(lines, 1):
        found = _PLACEHOLDER.search(line) or _MARKER_WORD.search(line)
        if found:
            return f"line {number}: {found.group()[:60]}"
    return None


def is_hollow(lines: list[str]) -> bool:
    """Whether nothing is left once blank lines, headings, empty list items, rules and table frames are taken away."""
    kept = [line.strip() for line in _COMMENT.sub("", "\n".join(lines)).splitlines()]
    kept = [line for line in kept if line]
    for place, line in enumerate(kept):
        following = kept[place + 1] if place + 1 < len(kept) else ""
        if line.startswith("#") or _EMPTY_ITEM.fullmatch(line) or _RULE_OR_FRAME.fullmatch(line):
            continue
        if _SETEXT.fullmatch(following):
            continue
        if "|" in line and "-" in following and "|" in following and _TABLE_RULE.fullmatch(following):
            continue
        return False
    return True
