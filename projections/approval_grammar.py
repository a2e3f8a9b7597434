"""The approval grammar: a person's words become one decision for every item, or one question.

Contract page `plan-runs`, Approval grammar. Pure: the command line, the guard and the admission of
`plan.approved` parse with this one function. The whole expression must match; nothing is dropped, no
number is mined from prose, silence approves nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Any

_PUNCTUATION = {
    0xFF0C: ",",
    0x3001: ",",
    0xFF1B: ";",
    0xFF1A: ":",
    0xFF0D: "-",
    0x2013: "-",
    0x2014: "-",
    0xFF5E: "-",
}
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_ASCII_CASE = {code: code + 32 for code in range(0x41, 0x5B)}
_SPACES = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""Unicode's White_Space property, exactly (PropList.txt); `str.isspace` knows four more."""

_DIGITS = frozenset("0123456789")
_SKILL_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")

_EVERY = frozenset(
    (
        "all",
        "approve all",
        "execute all",
        "run all",
        "do all",
        "全部",
        "全部做",
        "都做",
        "全部批准",
        "全部执行",
    )
)
_URGENT = frozenset(
    (
        "urgent",
        "urgent only",
        "approve urgent",
        "approve urgent only",
        "只做urgent",
        "只做紧急",
        "仅紧急",
        "仅做urgent",
        "只批准紧急",
    )
)
_NOTHING = frozenset(("skip", "cancel", "skip all", "cancel all", "取消", "算了", "全部取消", "都不做"))
_APPROVE_WORDS = ("approve ", "run ", "execute ", "do ", "做", "批准", "执行")
_DEFER_WORDS = ("defer ", "skip ", "跳过", "暂缓")


class _AskError(Exception):
    """The expression needs a question; its text is the sentence to ask."""


class AnySkill:
    """Holds every skill name: what admission uses, for which skills could be found is known only when approving."""

    def __contains__(self, name: object) -> bool:
        return True


class _Clause:
    __slots__ = ("indices", "skill", "verb")

    def __init__(self, verb: str, indices: tuple[int, ...] = (), skill: str = "") -> None:
        self.verb = verb  # all, urgent, cancel, approve, defer, swap
        self.indices = indices
        self.skill = skill


def is_skill_name(name: object) -> bool:
    """Whether `name` is text of the form `canvas-[a-z0-9][a-z0-9-]*`, to its last character."""
    if not isinstance(name, str) or not name.startswith("canvas-"):
        return False
    rest = name[7:]
    return rest != "" and rest[0] != "-" and all(letter in _SKILL_LETTERS for letter in rest)


def normalise(text: str) -> str:
    """The expression in its one spelling, by the contract's steps in the contract's order."""
    text = text.translate(_PUNCTUATION).translate(_FULL_WIDTH).translate(_ASCII_CASE)
    text = " ".join("".join(" " if letter in _SPACES else letter for letter in text).split(" "))
    while "  " in text:
        text = text.replace("  ", " ")
    text = text.strip(" ")
    text = text.removesuffix("。")
    text = _without_idle_spaces(text)
    return _range_words_to_hyphens(text)


def _is_chinese(letter: str) -> bool:
    return "\u4e00" <= letter <= "\u9fff" or "\u3400" <= letter <= "\u4dbf"


def _without_idle_spaces(text: str) -> str:
    """`text` without the spaces that stand beside `,` `-` `;` `->` or a Chinese word."""
    kept: list[str] = []
    for place, letter in enumerate(text):
        if letter == " ":
            before = kept[-1] if kept else ""
            after = text[place + 1] if place + 1 < len(text) else ""
            if before == ">" and len(kept) > 1 and kept[-2] == "-":
                continue
            if any(beside != "" and (beside in ",-;" or _is_chinese(beside)) for beside in (before, after)):
                continue
        kept.append(letter)
    return "".join(kept)


def _range_words_to_hyphens(text: str) -> str:
    letters = list(text)
    for place in range(1, len(letters) - 1):
        if letters[place] in "到至" and letters[place - 1] in _DIGITS and letters[place + 1] in _DIGITS:
            letters[place] = "-"
    return "".join(letters)


def parse_approval(
    user_text: str,
    plan: dict[str, Any],
    *,
    skills: Container[str] = (),
    resolver: Callable[[int, str], str] | None = None,
) -> dict[str, Any]:
    """What `user_text` decides about each item of `plan`, or the one sentence to ask.

    `plan` needs only its items' `index` (1 to n, in order) and `bucket`. `skills` holds the names that are
    discoverable (none by default); `resolver(index, name)` gives the name that the routes would make of a
    swap's target, which must be itself. Returns the document that `plan parse` prints: `kind` is `apply`,
    `cancel` or `clarify`; with `clarify` there are no decisions. Never raises for any text.
    """
    buckets = [item.get("bucket") for item in plan["items"]]
    document: dict[str, Any] = {
        "kind": "clarify",
        "scope": "execution_only",
        "grants_canvas_mutation": False,
        "decisions": {},
        "approved_indices": [],
        "deferred_indices": [],
        "clarification": None,
        "raw_text": user_text,
    }
    try:
        clauses = [_clause(part, len(buckets)) for part in normalise(user_text).split(";")]
        for clause in clauses:
            if clause.verb == "swap":
                _check_skill(clause, skills, resolver)
        decisions = _decide(clauses, buckets)
    except _AskError as question:
        document["clarification"] = str(question)
        return document
    document["kind"] = "cancel" if clauses[0].verb == "cancel" else "apply"
    document["decisions"] = {str(index): decision for index, decision in enumerate(decisions, 1)}
    document["approved_indices"] = [
        index for index, decision in enumerate(decisions, 1) if decision != "defer"
    ]
    document["deferred_indices"] = [
        index for index, decision in enumerate(decisions, 1) if decision == "defer"
    ]
    return document


def _clause(text: str, count: int) -> _Clause:
    """One clause, already normalised, against a plan of `count` items."""
    if text == "":
        raise _AskError("Which items do you mean, for example `1,3`, `all`, `urgent only` or `skip`?")
    for verb, forms in (("all", _EVERY), ("urgent", _URGENT), ("cancel", _NOTHING)):
        if text in forms:
            return _Clause(verb)
    if text[0] in _DIGITS and "改用" not in text:
        return _Clause("approve", _numbers(text, count))
    for verb, words in (("approve", _APPROVE_WORDS), ("defer", _DEFER_WORDS)):
        for word in words:
            if text.startswith(word):
                return _Clause(verb, _numbers(text[len(word) :], count))
    return _swap(text, count)


def _swap(text: str, count: int) -> _Clause:
    if text.startswith("swap "):
        body = text[5:]
        number, mark, skill = body.partition("->") if "->" in body else body.partition(" to ")
    elif text.startswith("第"):
        number, mark, skill = text[1:].partition("项用")
    else:
        number, mark, skill = text.partition("改用")
    if mark == "":
        raise _AskError(
            "Which decision do you mean, for example `1,3`, `all; defer 2`, `urgent only` or `skip`?"
        )
    index = _number(number, count)
    if not is_skill_name(skill):
        raise _AskError(f"Which skill should item {index} use, for example `swap {index} to canvas-generic`?")
    return _Clause("swap", (index,), skill)


def _numbers(text: str, count: int) -> tuple[int, ...]:
    """The indices of `1`, `1,3-5` or `1 3` (spaces separate plain numbers only), each once, ascending."""
    if " " in text:
        return tuple(sorted({_number(part, count) for part in text.split(" ")}))
    found: set[int] = set()
    for part in text.split(","):
        first, hyphen, last = part.partition("-")
        start = _number(first, count)
        end = _number(last, count) if hyphen else start
        if end < start:
            raise _AskError(f"The range {start}-{end} runs backwards: did you mean {end}-{start}?")
        found.update(range(start, end + 1))
    return tuple(sorted(found))


def _number(text: str, count: int) -> int:
    if text == "" or any(letter not in _DIGITS for letter in text) or text.startswith("00"):
        raise _AskError(
            "Which item numbers do you mean, written as `1,3` or `1-4` with nothing else beside them?"
        )
    # The length is looked at first: int() refuses thousands of digits with an error of its own.
    if len(text) > len(str(count)) or not 1 <= int(text) <= count:
        raise _AskError(
            f"Which of the items 1 to {count} do you mean?"
            if count
            else "What do you mean, as the plan is empty?"
        )
    if text[0] == "0":
        raise _AskError(f"Do you mean item {int(text)}, without a leading zero?")
    return int(text)


def _check_skill(clause: _Clause, skills: Container[str], resolver: Callable[[int, str], str] | None) -> None:
    if clause.skill not in skills:
        raise _AskError(
            f"Which skill should item {clause.indices[0]} use, as no {clause.skill} can be found?"
        )
    if resolver is not None:
        resolved = resolver(clause.indices[0], clause.skill)
        if resolved != clause.skill:
            raise _AskError(
                f"Which skill do you mean for item {clause.indices[0]}, as the routes turn {clause.skill} into {resolved}?"
            )


def _decide(clauses: list[_Clause], buckets: list[Any]) -> list[str]:
    """Every item's decision; the first clause selects, the others narrow or swap (contract: the last row)."""
    first, rest = clauses[0], clauses[1:]
    if rest and first.verb in ("cancel", "defer"):
        raise _AskError(f"Which items should be approved and which deferred, as a {first.verb} stands alone?")
    decisions = ["defer"] * len(buckets)
    if first.verb == "all":
        decisions = ["approve"] * len(buckets)
    elif first.verb == "urgent":
        decisions = ["approve" if bucket == "urgent" else "defer" for bucket in buckets]
    named: dict[int, str] = {}
    for index in first.indices:
        named[index] = _outcome(first)
    for clause in rest:
        if clause.verb not in ("defer", "swap"):
            raise _AskError(
                "What do you mean after the first clause, where only `defer N` and `swap N to canvas-x` may stand?"
            )
        for index in clause.indices:
            if named.setdefault(index, _outcome(clause)) != _outcome(clause):
                raise _AskError(
                    f"Which decision is meant for item {index}, {named[index]} or {_outcome(clause)}?"
                )
    for index, outcome in named.items():
        decisions[index - 1] = outcome
    return decisions


def _outcome(clause: _Clause) -> str:
    return f"swap:{clause.skill}" if clause.verb == "swap" else clause.verb


def apply_approval_to_plan(plan: dict[str, Any], approval: dict[str, Any]) -> dict[str, Any]:
    """A copy of `plan` in which every item's `user_decision` is the one of `approval`; the rest is untouched.

    Raises `Invalid` for an approval that asks, or one whose decisions are not exactly the plan's items.
    """
    from ledger.errors import Invalid

    if approval["kind"] not in ("apply", "cancel"):
        raise Invalid("an approval that needs clarification decides nothing; ask first")
    decisions = approval["decisions"]
    wanted = [str(item["index"]) for item in plan["items"]]
    if list(decisions) != wanted:
        raise Invalid(
            f"the approval decides items {', '.join(decisions)}, the plan has items {', '.join(wanted)}"
        )
    items = [{**item, "user_decision": decisions[str(item["index"])]} for item in plan["items"]]
    return {**plan, "items": items}
