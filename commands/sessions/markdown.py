"""Just enough Markdown for reports and session files: lines, fenced code, headings, code spans."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Compiled by `re` at their first use: most steps of a session need none of them.
_FENCE = r" {0,3}(`{3,}|~{3,})(.*)$"
_SPAN = r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)"


def lines_outside_fences(text: str) -> Iterator[tuple[str, bool]]:
    """Each line (without its line end), and whether it belongs to a fenced code block (CommonMark 4.5)."""
    fence = ""
    for raw in text.split("\n"):
        line = raw.rstrip("\r")
        match = re.match(_FENCE, line)
        if fence:
            yield line, True
            if match and match[1].startswith(fence) and not match[2].strip():
                fence = ""
        elif match and not (match[1][0] == "`" and "`" in match[2]):
            fence = match[1]
            yield line, True
        else:
            yield line, False


def ends_in_fence(text: str) -> bool:
    """Whether a code fence is still open at the end of the text."""
    probe = "gatebook-probe"
    return list(lines_outside_fences(f"{text}\n{probe}"))[-1][1]


def heading(line: str, level: int) -> str | None:
    """The title of a heading of exactly this level, or None (up to three spaces of indent, as CommonMark)."""
    bare = line.lstrip(" ")
    if len(line) - len(bare) > 3 or not bare.startswith("#" * level):
        return None
    rest = bare[level:]
    if rest[:1] not in ("", " ", "\t"):
        return None
    return rest.strip()


class Section:
    """One section of a report: its title and its lines, each with whether it is fenced code."""

    __slots__ = ("lines", "title")

    def __init__(self, title: str) -> None:
        self.title = title
        self.lines: list[tuple[str, bool]] = []

    def plain(self) -> list[str]:
        """The lines outside code fences, right-stripped, blank ones left out."""
        return [line.rstrip() for line, fenced in self.lines if not fenced and line.strip()]


def sections(text: str, level: int = 3) -> list[Section]:
    """The sections at this heading level, in order; any heading of a higher rank also ends one."""
    found: list[Section] = []
    current: Section | None = None
    for line, fenced in lines_outside_fences(text):
        if not fenced:
            title = heading(line, level)
            if title is not None:
                current = Section(title)
                found.append(current)
                continue
            if any(heading(line, higher) is not None for higher in range(1, level)):
                current = None
                continue
        if current is not None:
            current.lines.append((line, fenced))
    return found


def code_span(text: str, start: int = 0) -> tuple[str, int] | None:
    """The content of a code span that begins exactly at `start`, and the place behind it (CommonMark 6.1)."""
    match = re.compile(_SPAN).match(text, start)
    if match is None:
        return None
    inner = match[2]
    if len(inner) > 2 and inner[0] == inner[-1] == " " and inner.strip():
        inner = inner[1:-1]
    return inner, match.end()


def without_code_spans(text: str) -> str:
    """The text with each code span's content left out."""
    return re.sub(_SPAN, "``", text)
