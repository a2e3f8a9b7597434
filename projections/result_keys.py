"""The stable name of an item's work directory and result, made from its ids alone (contract: Files)."""

from __future__ import annotations

from ledger.errors import Invalid

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"
_KEPT = frozenset(_LETTERS)
_ID_LIMIT = 96


def identity_text(value: object, where: str) -> str:
    """An id as text: a whole number (not a bool) or a text; `Invalid`, beginning with `where`, for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return str(value)
        except ValueError:
            raise Invalid(f"{where} is a number of thousands of digits; an id is short") from None
    raise Invalid(f"{where} is {value!r}; an id is a number or a text")


def safe_id(value: object, where: str = "id") -> str:
    """The id as it stands in names: runs of characters outside `[A-Za-z0-9_.-]` are one `-`, ends trimmed, 96 at most."""
    text = identity_text(value, where)
    name = (_with_gaps(text) if text.strip(_LETTERS) else text).strip("-.")[:_ID_LIMIT]
    if name == "":
        raise Invalid(f"{where} {text!r} leaves no name; an id needs a letter or digit")
    return name


def _with_gaps(text: str) -> str:
    letters: list[str] = []
    in_gap = False
    for letter in text:
        if letter in _KEPT:
            letters.append(letter)
        elif not in_gap:
            letters.append("-")
        in_gap = letter not in _KEPT
    return "".join(letters)


def result_key(course_id: object, assignment_id: object) -> str:
    """`course-<id>__assignment-<id>`: the work directory's name and the key in `_processed.json`."""
    return f"course-{safe_id(course_id, 'course_id')}__assignment-{safe_id(assignment_id, 'assignment_id')}"
