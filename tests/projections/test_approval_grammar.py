"""The approval grammar against the handed cases and a small oracle written from the contract's table alone."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ledger.errors import Invalid
from projections.approval_grammar import (
    AnySkill,
    apply_approval_to_plan,
    is_skill_name,
    normalise,
    parse_approval,
)

BUCKETS = ["urgent", "urgent", "soon", "soon", "later"]
PLAN = {"items": [{"index": place, "bucket": bucket} for place, bucket in enumerate(BUCKETS, 1)]}
SKILLS = {"canvas-generic", "canvas-essay", "canvas-skip", "canvas-code-course"}
CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "conformance" / "approval.jsonl").read_text("utf-8").splitlines()
]


def parse(text, **more):
    return parse_approval(text, PLAN, skills=SKILLS, **more)


def decided(text):
    found = parse(text)
    return found["kind"], list(found["decisions"].values())


@pytest.mark.parametrize("case", CASES, ids=[case["text"] or "(empty)" for case in CASES])
def test_a_handed_case_is_decided_as_written(case):
    found = parse(case["text"])
    assert (found["kind"], found["decisions"]) == (case["kind"], case["decisions"])


# The oracle: one regular expression a form, over the table, knowing nothing of the parser.

N = r"(?:[1-9][0-9]*)"
LIST = rf"(?:{N}(?: {N})+|{N}(?:-{N})?(?:,{N}(?:-{N})?)*)"
SKILL = r"canvas-[a-z0-9][a-z0-9-]*"
FORMS = [
    ("all", r"(?:(?:approve |execute |run |do )?all|全部|全部做|都做|全部批准|全部执行)"),
    ("urgent", r"(?:(?:approve )?urgent(?: only)?|只做urgent|只做紧急|仅紧急|仅做urgent|只批准紧急)"),
    ("cancel", r"(?:(?:skip|cancel)(?: all)?|取消|算了|全部取消|都不做)"),
    ("approve", rf"(?:(?:approve |run |execute |do )?|做|批准|执行)(?P<list>{LIST})"),
    ("defer", rf"(?:defer |skip |跳过|暂缓)(?P<list>{LIST})"),
    (
        "swap",
        rf"(?:swap (?P<a>{N})(?: to |->)(?P<sa>{SKILL})|第(?P<b>{N})项用(?P<sb>{SKILL})|(?P<c>{N})改用(?P<sc>{SKILL}))",
    ),
]


def oracle_normal(text):
    for source, target in (("，、", ","), ("；", ";"), ("：", ":"), ("－–—～", "-")):
        text = re.sub(f"[{source}]", target, text)
    text = re.sub("[！-～]", lambda found: chr(ord(found[0]) - 0xFEE0), text)
    text = re.sub("[A-Z]", lambda found: found[0].lower(), text)
    text = re.sub("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+", " ", text).strip(" ")
    text = re.sub("。$", "", text)
    text = re.sub("(?<=[0-9]) ?[到至] ?(?=[0-9])", "-", text)
    text = re.sub(" ?- ?> ?", "->", text)
    return (
        re.sub(" ?([,;\u4e00-\u9fff-]) ?(?!>)", r"\1", text)
        if "->" not in text
        else "->".join(re.sub(" ?([,;\u4e00-\u9fff-]) ?", r"\1", part) for part in text.split("->"))
    )


def oracle_indices(text):
    found = set()
    for part in re.split("[ ,]", text):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if low > high or high > len(BUCKETS):
            return None
        found |= set(range(low, high + 1))
    return found


def oracle(text):
    clauses = []
    for part in oracle_normal(text).split(";"):
        matches = [(verb, found) for verb, form in FORMS if (found := re.fullmatch(form, part))]
        if not matches:
            return None
        verb, found = matches[0]
        indices, skill = set(), None
        if verb in ("approve", "defer"):
            indices = oracle_indices(found["list"])
        if verb == "swap":
            place = found["a"] or found["b"] or found["c"]
            skill = found["sa"] or found["sb"] or found["sc"]
            indices = oracle_indices(place)
            if skill not in SKILLS:
                return None
        if indices is None:
            return None
        clauses.append((verb, indices, skill))
    first = clauses[0][0]
    if len(clauses) > 1 and (
        first in ("cancel", "defer") or any(verb not in ("defer", "swap") for verb, _, _ in clauses[1:])
    ):
        return None
    answers = []
    for place, bucket in enumerate(BUCKETS, 1):
        named = {
            "defer" if verb == "defer" else "approve" if verb == "approve" else f"swap:{skill}"
            for verb, indices, skill in clauses
            if place in indices
        }
        if len(named) > 1:
            return None
        broad = "approve" if first == "all" or (first == "urgent" and bucket == "urgent") else "defer"
        answers.append(named.pop() if named else broad)
    return ("cancel" if first == "cancel" else "apply", answers)


pieces = st.sampled_from(
    [
        *"0123456789", "12", "01", " ", "  ", "\u3000", "\xa0", ",", "，", "、", ";", "；", "-", "－", "—", "～", "~", "到", "至",
        "->", "- >", "。", "：", ":", "all", "ALL", "ａｌｌ", "urgent", "only", "approve ", "run ", "do ", "execute ", "skip ", "defer ",
        "cancel", "swap ", " to ", "canvas-essay", "canvas-generic", "Canvas-Essay", "canvas-none", "做", "批准", "执行", "跳过", "暂缓",
        "第", "项用", "改用", "全部", "全部做", "都做", "都不做", "取消", "算了", "只做", "仅", "紧急", "²", "②", "一", "please", "\u200b",
    ]
)  # fmt: skip
number = st.integers(0, 7).map(str)
numbers = st.one_of(
    number,
    st.tuples(number, st.sampled_from(["-", " 到 ", "至", " - ", "～"]), number).map("".join),
    st.lists(number, min_size=2, max_size=3).map(" ".join),
    st.lists(number, min_size=2, max_size=3).map("， ".join),
    st.tuples(number, number, number).map(lambda three: f"{three[0]},{three[1]}-{three[2]}"),
)
skill = st.sampled_from(["canvas-essay", "Canvas-Generic", "canvas-none", "essay"])
clause = st.one_of(
    st.sampled_from(
        [*["all", "approve all", "全部做", "urgent only", "只做 紧急", "approve urgent", "skip", "取消"]]
    ),
    st.tuples(st.sampled_from(["", "approve ", "run ", "做", "批准 ", "执行"]), numbers).map("".join),
    st.tuples(st.sampled_from(["defer ", "skip ", "跳过", "暂缓 "]), numbers).map("".join),
    st.tuples(st.just("swap "), number, st.sampled_from([" to ", "->", " -> "]), skill).map("".join),
    st.tuples(st.just("第 "), number, st.just(" 项用 "), skill).map("".join),
    st.tuples(number, st.just(" 改用 "), skill).map("".join),
)
expressions = st.lists(clause, min_size=1, max_size=3).map("; ".join) | st.tuples(clause, st.just("。")).map(
    "".join
)


@settings(max_examples=600, deadline=None)
@given(expressions | st.lists(pieces, max_size=9).map("".join))
@example("approve all; defer 2")
@example("1 3-5")
@example("第2项用 canvas-essay")
@example("swap 1 to canvas-essay; swap 1 to canvas-essay")
@example("1 。")
def test_every_expression_is_decided_as_the_oracle_decides_it(text):
    kind, decisions = decided(text)
    assert (None if kind == "clarify" else (kind, decisions)) == oracle(text)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30))
def test_any_text_at_all_is_answered_without_an_error(text):
    found = parse(text)
    assert (found["kind"] == "clarify") == (found["decisions"] == {}) == (found["clarification"] is not None)
    assert found["grants_canvas_mutation"] is False
    assert found["raw_text"] == text


@pytest.mark.parametrize(
    "text",
    [
        "do the important ones", "defer", "swap 1/2", "cancel 2", "0", "4-1", "1-9", "approve 1;", ";", "approve 1;; defer 2",
        "approve 1; defer 1", "approve 1-3; defer 2", "approve 1; swap 1 to canvas-essay", "swap 1 to canvas-essay; defer 1",
        "swap 1 to canvas-essay; swap 1 to canvas-generic", "all; defer 1; swap 1 to canvas-essay", "defer 1; approve 2", "defer 1; defer 2",
        "approve 1; 2", "all; urgent", "skip; defer 1", "all please", "1 3-5", "1-3-5", "1,,3", "1,", ",1", "1~3", "²", "②", "一", "１²",
        "swap 1,2 to canvas-essay", "swap 1 to essay", "swap 1 to canvas-", "swap 1 to canvas--x", "approve", "做", "01", "9" * 5000,
        "run urgent", "defer all", "批准全部", "全部。。", "approve1", "swap 1 to canvas-essay now", "-1", "+1", "1.0", "1.", "approve (1)",
    ],
)  # fmt: skip
def test_what_is_not_exactly_a_form_asks_one_sentence(text):
    found = parse(text)
    assert found["kind"] == "clarify"
    assert len(found["clarification"]) < 160
    assert [mark for mark in found["clarification"] if mark in ".?!;\n"] == ["?"] or "; defer" in found[
        "clarification"
    ]


def test_digits_of_other_scripts_are_no_digits():
    for text in ("١", "१", "𝟏", "1٣"):
        assert decided(text)[0] == "clarify"
    assert decided("１，３") == decided("1,3")


def test_only_ascii_letters_change_case():
    assert normalise("ＡLL") == "all"
    assert decided("SKİP")[0] == "clarify"
    assert decided("s\u212aip")[0] == "clarify"  # KELVIN SIGN lower-cases to k elsewhere, not here


def test_without_skills_no_swap_is_discoverable():
    assert parse_approval("swap 1 to canvas-essay", PLAN)["kind"] == "clarify"


def test_a_swap_that_the_resolver_would_change_asks():
    found = parse("swap 1 to canvas-essay", resolver=lambda index, name: "canvas-skip")
    assert found["kind"] == "clarify"
    assert "canvas-skip" in found["clarification"]


def test_admission_takes_any_skill_by_name():
    assert parse_approval("swap 1 to canvas-unheard-of", PLAN, skills=AnySkill())["kind"] == "apply"


def test_a_skill_name_matches_to_its_last_character():
    assert is_skill_name("canvas-a")
    for name in (
        "canvas-",
        "canvas--a",
        "canvas-A",
        "canvas-a\n",
        "canvas-é",
        "canvas-a_b",
        "x-canvas-a",
        None,
        3,
    ):
        assert not is_skill_name(name)


def test_applying_decides_every_item_and_keeps_the_rest():
    plan = {
        "note": "kept",
        "items": [
            {"index": 1, "bucket": "urgent", "x": 1, "user_decision": None},
            {"index": 2, "bucket": "soon"},
        ],
    }
    done = apply_approval_to_plan(plan, parse_approval("urgent", plan))
    assert [item["user_decision"] for item in done["items"]] == ["approve", "defer"]
    assert done["note"] == "kept"
    assert done["items"][0]["x"] == 1
    assert plan["items"][0]["user_decision"] is None


def test_an_approval_that_asks_is_never_applied():
    with pytest.raises(Invalid):
        apply_approval_to_plan(PLAN, parse("sounds good"))
