"""Raw mode: which object of a producer's text is its verdict (contract `review-sessions`, Gate).

Only the last JSON object of the text, only at the top level, only with nothing but white space after it.
What looks like a container but is no JSON is prose while it is closed again before the verdict; a verdict
inside a container that never closes could be a quoted example, so it is none.
"""

from __future__ import annotations

from commands.sessions.strict_json import Malformed, decoder, refuse_surrogates

_SPACE = " \t\r\n\f\v"
_CLOSES = {"}": "{", "]": "["}
# What failed attempts may cost in sum; honest output stays far below, crafted nesting does not. A failure at
# character p decodes again what lies inside, and counts the lines up to p for its message, 512 times cheaper.
_COST_LIMIT = 2 * 1024 * 1024
_LINE_COUNT_SHARE = 512


def last_object(text: str) -> dict[str, object]:
    """The verdict object of a raw text; `Malformed` says why there is none."""
    import json
    import re

    body = text.rstrip(_SPACE)
    marks = re.compile(r'(?<!\x1b)\[|[{}\]"]')  # not the bracket of a terminal's colour
    could_be_json = re.compile(
        r'\{[ \t\r\n]*["}]'
        r'|\[[ \t\r\n]*(?:[]"{\[]|(?:-?\d[\d.eE+-]*|true|false|null|NaN|-?Infinity)[ \t\r\n]*[],])'
    )
    read = decoder()
    open_marks: list[str] = []
    verdict: dict[str, object] | None = None
    verdict_end = -1
    place = 0
    cost = 0
    while (mark := marks.search(body, place)) is not None:
        char, start = mark.group(), mark.start()
        place = start + 1
        if char == '"':
            if open_marks:  # a brace inside a string of a broken container closes nothing
                place = _after_string(body, place)
        elif char in _CLOSES:
            if open_marks and open_marks[-1] == _CLOSES[char]:
                open_marks.pop()
        elif could_be_json.match(body, start) is None:
            open_marks.append(char)
        else:
            try:
                value, place = read.raw_decode(body, start)
            except json.JSONDecodeError as error:
                if error.pos >= len(body) or error.msg.startswith("Unterminated string"):
                    raise Malformed("the last JSON object is cut off") from None
                open_marks.append(char)
                cost += error.pos - start + error.pos // _LINE_COUNT_SHARE
                if cost > _COST_LIMIT:
                    raise Malformed("too many broken containers") from None
                continue
            except RecursionError:
                raise Malformed("the JSON is nested too deeply") from None
            if isinstance(value, dict) and not open_marks and not _is_member(body, start):
                verdict, verdict_end = value, place
    if open_marks:
        raise Malformed(f"malformed final JSON object: an unclosed {open_marks[-1]!r}")
    if verdict is None:
        raise Malformed("no JSON object in the output")
    if verdict_end != len(body):
        raise Malformed("trailing content after the final JSON object")
    refuse_surrogates(verdict)
    return verdict


def _after_string(body: str, place: int) -> int:
    """The place behind the string that opened before `place`; a JSON string ends at a line's end at the latest."""
    while place < len(body):
        char = body[place]
        if char in '"\n':
            return place + 1
        place += 2 if char == "\\" else 1
    return place


def _is_member(body: str, start: int) -> bool:
    """Whether `"name":` stands right before: the value of a member whose own container was lost."""
    colon = _before_space(body, start)
    return body.endswith(":", 0, colon) and body.endswith('"', 0, _before_space(body, colon - 1))


def _before_space(body: str, place: int) -> int:
    """The end of what stands before `place` and the white space there; nothing is copied, however much there is."""
    while place > 0 and body[place - 1] in _SPACE:
        place -= 1
    return place
