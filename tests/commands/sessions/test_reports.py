"""`session check-report`: the first kind of fault that applies, in the contract's order."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.sessions.reports import check_report, reviewer_issues

CASES = [json.loads(line) for line in open("tests/conformance/reports.jsonl", encoding="utf-8")]


@pytest.mark.parametrize("case", CASES, ids=[f"{c['role']}: {c['name']}" for c in CASES])
def test_handed_case(case):
    document = check_report(case["role"], case["text"], case.get("delta", ())).document()
    for key in ("valid", "reason", "verdict", "noop"):
        assert document[key] == case.get(key)


CRITICAL = "- [CRITICAL] Lost update\n  File: `src/store.py`, around line 40\n"
MINOR = "- [MINOR] Name it\n  File: `src/store.py`\n"


def review(verdict="APPROVE", issues=None, strengths="### Strengths\nSmall.\n", **rest):
    body = f"### Issues\n{issues}\n" if issues is not None else ""
    return f"### VERDICT: {verdict}\n\n{body}{strengths}" + rest.get("tail", "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (review("REQUEST_CHANGES", CRITICAL), None),
        (review("REQUEST_CHANGES", CRITICAL + "\n" + MINOR), None),
        (review("REQUEST_CHANGES", CRITICAL).replace("\n", "\r\n"), None),
        (review("APPROVE  "), None),
        (review(issues=MINOR, tail="\n### Questions\n- Why?\n"), None),
        (review("REQUEST_CHANGES", "- [CRITICAL] src/a.py:3-9 (confidence=0.5) — Race: two writers\n"), None),
        (review("REQUEST_CHANGES", "- [CRITICAL] Race in `src/a.py`\n"), None),
        (review("REQUEST_CHANGES", "- [CRITICAL] Race\n  File: Makefile\n"), None),
        (review("REQUEST_CHANGES", CRITICAL + "  ```\n- [HIGH] code\n### Issues\n  ```\n"), None),
        (review("REQUEST_CHANGES", "- [CRITICAL] Race in src/store.py, both writers\n"), None),
        (review("REQUEST_CHANGES", "- [CRITICAL] Race (see store.py)\n"), None),
        (review("REQUEST_CHANGES", "- [CRITICAL] It fails, e.g. in v1.2, i.e. always\n"), "missing-anchor"),
        (review("REQUEST_CHANGES", "- [CRITICAL] input and/or output are wrong\n"), "missing-anchor"),
        ("", "missing-verdict"),
        ("VERDICT: APPROVE\n\n### Strengths\nx\n", "missing-verdict"),
        ("```\n### VERDICT: APPROVE\n```\n### Strengths\nx\n", "missing-verdict"),
        ("~~~\n### VERDICT: APPROVE\n```\n~~~\n### Strengths\nx\n", "missing-verdict"),
        ("````\n```\n### VERDICT: APPROVE\n````\n### Strengths\nx\n", "missing-verdict"),
        ("    ### VERDICT: APPROVE\n### Strengths\nx\n", "missing-verdict"),
        (review("approve"), "bad-verdict"),
        (review("APPROVE."), "bad-verdict"),
        (review("APPROVE | REQUEST_CHANGES"), "bad-verdict"),
        (review("**APPROVE**"), "bad-verdict"),
        (review("").replace(": ", ""), "bad-verdict"),
        (review().replace("VERDICT: ", "VERDICT:"), "bad-verdict"),
        (review() + review("REQUEST"), "bad-verdict"),
        (review() + "### VERDICT: APPROVE\n", "malformed"),
        (review() + "### VERDICT: REQUEST_CHANGES\n", "malformed"),
        (review(issues="- None.") + "### Issues\n" + CRITICAL, "malformed"),
        (review(tail="### Strengths\nagain\n"), "malformed"),
        (review(strengths=""), "missing-strengths"),
        (review(strengths="## Strengths\nx\n"), "missing-strengths"),
        (review(strengths="```\n### Strengths\n```\n"), "missing-strengths"),
        (review("REQUEST_CHANGES", "- [MAJOR] x\n", strengths=""), "missing-strengths"),
        (review(issues="- [critical] x\n  File: `a.py`\n"), "bad-severity"),
        (review(issues="- [INFO] x\n"), "bad-severity"),
        (review("REQUEST_CHANGES", CRITICAL + "  - [BLOCKER] y\n"), "bad-severity"),
        (review(issues="prose\n- [NIT] x\n"), "bad-severity"),
        (review(issues=""), "malformed-issues"),
        (review(issues="- None"), "malformed-issues"),
        (review(issues="- none."), "malformed-issues"),
        (review(issues="None."), "malformed-issues"),
        (review(issues="- None.\n" + MINOR), "malformed-issues"),
        (review(issues="- None.\n- None."), "malformed-issues"),
        (review() + "\n## Issues\n" + CRITICAL, "malformed-issues"),
        (CRITICAL + review(), "malformed-issues"),
        (review(issues=MINOR + "  - [a link](x.md)\n"), None),
        (review(issues="N/A"), "malformed-issues"),
        (review(issues="- Fix the race in `a.py`\n"), "malformed-issues"),
        (review("REQUEST_CHANGES", "* [CRITICAL] x `a.py`\n"), "malformed-issues"),
        (review("REQUEST_CHANGES", "- [CRITICAL]: x `a.py`\n"), "malformed-issues"),
        (review("REQUEST_CHANGES", "- [CRITICAL] \n"), "malformed-issues"),
        (review("REQUEST_CHANGES", CRITICAL + "and more prose\n"), "malformed-issues"),
        (review(issues="```\n- None.\n```\n"), "malformed-issues"),
        (review(tail=CRITICAL), "malformed-issues"),
        (review(issues="- None.", tail=CRITICAL), "malformed-issues"),
        (review(issues=CRITICAL), "verdict-issues-inconsistent"),
        (review(issues=MINOR + "  - [CRITICAL] hidden deeper, `a.py`\n"), "malformed-issues"),
        (review("REQUEST_CHANGES"), "verdict-issues-inconsistent"),
        (review("REQUEST_CHANGES", "- None."), "verdict-issues-inconsistent"),
        (review("REQUEST_CHANGES", MINOR), "verdict-issues-inconsistent"),
        (review("REQUEST_CHANGES", "- [MINOR] vague\n"), "verdict-issues-inconsistent"),
        (review("REQUEST_CHANGES", "- [CRITICAL] `save()` is wrong\n"), "missing-anchor"),
        (review("REQUEST_CHANGES", "- [CRITICAL] bad\n  File: n/a\n"), "missing-anchor"),
        (review("REQUEST_CHANGES", "- [CRITICAL] at 12:30 it fails\n"), "missing-anchor"),
        (review(issues="- [MINOR] vague\n"), "missing-anchor"),
        (review("REQUEST_CHANGES", CRITICAL + "- [CRITICAL] vague\n"), "missing-anchor"),
        (review("REQUEST_CHANGES", "- [CRITICAL] bad\n  File: `n/a`, around line 3\n"), "missing-anchor"),
        (review("REQUEST_CHANGES", "- [CRITICAL] down at http://localhost:8080/a.py\n"), "missing-anchor"),
        (review("REQUEST_CHANGES", "- [CRITICAL] down at 10.0.0.1:80\n"), "missing-anchor"),
        (review("REQUEST_CHANGES", "- [CRITICAL] **src/a.py** — race\n"), None),
        (review("REQUEST_CHANGES", "- [CRITICAL] race in [src/a.py](src/a.py#L4)\n"), None),
        (review("REQUEST_CHANGES", "- [CRITICAL] Makefile:3 lacks a tab\n"), None),
        (review("REQUEST_CHANGES", "- [CRITICAL] no tab in `Makefile`\n"), None),
        (review(tail="- [HIGH] Lost update, `a.py`\n"), "bad-severity"),
        (review() + "## Issues\n- [blocker] Lost update, `a.py`\n", "bad-severity"),
        (review(tail="- [x] tests\n- [a link](x.md)\n"), None),
    ],
)
def test_reviewer_report(text, reason):
    judgement = check_report("reviewer", text)
    assert judgement.reason == reason
    assert (judgement.verdict is None) == (reason is not None)
    assert judgement.noop is None


def test_the_findings_of_a_recorded_report_stay_though_the_rules_change():
    text = review("REQUEST_CHANGES", CRITICAL + MINOR, tail="- [HIGH] no rule once\n")
    assert not check_report("reviewer", text).valid
    assert [issue.severity for issue in reviewer_issues(text)] == ["CRITICAL", "MINOR"]
    valid = review("REQUEST_CHANGES", CRITICAL + MINOR)
    found = [(i.severity, i.title, i.lines) for i in check_report("reviewer", valid).issues]
    assert [(i.severity, i.title, i.lines) for i in reviewer_issues(valid)] == found


def report(
    files="- `src/a.py` — retries",
    changes="Added.",
    deviations="None",
    notes="Look.",
    title="## Implementation Complete: T",
):
    return (
        f"{title}\n\n### Changes Made\n{changes}\n\n### Files Modified / Created / Deleted\n{files}\n\n"
        f"### Deviations from Plan\n{deviations}\n\n### Notes for Reviewer\n{notes}\n"
    )


NOOP = {"files": "None", "changes": "No code changes were required.", "notes": "No-op round."}
A = ["src/a.py"]


@pytest.mark.parametrize(
    ("text", "delta", "reason"),
    [
        (report(), A, None),
        (report().replace(" / Deleted", ""), A, None),
        (report().replace("\n", "\r\n"), A, None),
        (report("- `./src/a.py`: retries"), A, None),
        (report("- Modified: `src/a.py` — x\n- **Deleted** `b` — y"), ["b", "src/a.py"], None),
        (report("- `old` -> `new` — moved"), ["old", "new"], None),
        (report("- `a`, `b` and `c` — x"), ["a", "b", "c"], None),
        (report("1. `src/a.py` — x"), A, None),
        (report("- **`src/a.py`** — x"), A, None),
        (report("**Modified**\n- `src/a.py` — uses `os.path`\n  and more"), A, None),
        (report('- `"a\\377b"` — odd name'), ['"a\\377b"'], None),
        (report("- `` a`b `` — tick"), ["a`b"], None),
        (report("  - `src/a.py` — x\n  - `b` — y"), ["b", "src/a.py"], None),
        (report("- Modified:\n  - `src/a.py` — x\n- Created:\n  - `b` — y"), ["b", "src/a.py"], None),
        (report("**Modified**\n\n - `src/a.py` — x\n   - `os.path` is used"), A, None),
        (report(" - `src/a.py` — x\n - b.py — y"), A, "missing-paths"),
        (report("- Modified:\n"), [], "missing-paths"),
        (report() + "### Files Modified / Created\n- `b.py` — y\n", A, "claim-not-in-delta"),
        (report() + "### Deviations from Plan\n- Used threads\n", A, "unexplained-deviation"),
        (report(deviations="  - Threads — simpler\n  - No cache"), A, "unexplained-deviation"),
        (
            report(deviations="Two, both small: see\n  - Threads — simpler\n  - No cache"),
            A,
            "unexplained-deviation",
        ),
        (report(deviations="- Threads:\n  - simpler"), A, None),
        (report(deviations="  None"), A, None),
        (report(**{**NOOP, "files": "  - None"}), [], None),
        (report(**{**NOOP, "changes": "Added retries. No other changes."}), [], "missing-paths"),
        (report("- `new\\nline` — x"), ["new\\nline"], None),
        (report(**NOOP), [], None),
        (report(**{**NOOP, "files": "- None."}), [], None),
        (report(**{**NOOP, "changes": "Nothing to do: the code is already satisfying the plan."}), [], None),
        (report(**{**NOOP, "changes": "The plan is already implemented."}), [], None),
        (report(**{**NOOP, "changes": "None."}), [], None),
        (report(**{**NOOP, "changes": "I did not change any file."}), [], None),
        (report(**{**NOOP, "changes": "No source files were modified."}), [], None),
        (report(**{**NOOP, "changes": "Nothing was modified."}), [], None),
        (report(**{**NOOP, "changes": "The bug is already fixed."}), [], None),
        (report(**{**NOOP, "changes": "Added retries, which no longer work alone."}), [], "missing-paths"),
        (report(**{**NOOP, "changes": "Checked; done without code changes."}), [], None),
        (report(**{**NOOP, "changes": "Added nothing but retries."}), [], "missing-paths"),
        (report(title="## Implementation Complete"), A, "missing-section"),
        (report(title="## Implementation Complete: "), A, "missing-section"),
        (report(title="### Implementation Complete: T"), A, "missing-section"),
        (report(title="```\n## Implementation Complete: T\n```"), A, "missing-section"),
        (report().replace("### Changes Made", "### Changes"), A, "missing-section"),
        (report().replace("### Changes Made", "#### Changes Made"), A, "missing-section"),
        (
            report().replace("### Notes for Reviewer\n", "```\n### Notes for Reviewer\n```\n"),
            A,
            "missing-section",
        ),
        (report("- src/a.py — retries"), A, "missing-paths"),
        (report("- `src/a.py` — x\n- b.py — y"), A, "missing-paths"),
        (report("- `src/a.py`"), A, "missing-paths"),
        (report("None"), A, "missing-paths"),
        (report("None"), [], "missing-paths"),
        (report(""), [], "missing-paths"),
        (report("```\n- `src/a.py` — x\n```"), A, "missing-paths"),
        (report('- `"broken` — x'), A, "missing-paths"),
        (report(**{**NOOP, "notes": "All is well."}), [], "missing-paths"),
        (report(**{**NOOP, "changes": "Rewrote the store."}), [], "missing-paths"),
        (report(), [], "claim-not-in-delta"),
        (report(), ["src/b.py"], "claim-not-in-delta"),
        (report(deviations="- Used threads"), [], "claim-not-in-delta"),
        (report(), ["src/a.py", "src/b.py"], "unlisted-change"),
        (report(**NOOP), A, "unlisted-change"),
        (report(deviations="- Used threads"), A, "unexplained-deviation"),
        (report(deviations="Used threads"), A, "unexplained-deviation"),
        (report(deviations="- Used threads —"), A, "unexplained-deviation"),
        (report(deviations="- Used `a:b` there"), A, "unexplained-deviation"),
        (report(deviations="- Changed src/b.py:12 too"), A, "unexplained-deviation"),
        (report(deviations="- Called std::sort at 10:30, see http://x.example"), A, "unexplained-deviation"),
        (report(deviations="- Used threads: ..."), A, "unexplained-deviation"),
        (report(deviations="- Used threads: `fork` is gone"), A, None),
        (report(deviations="- Used threads — `fork`"), A, None),
        (report(deviations="- Used threads — simpler\n- Dropped the cache"), A, "unexplained-deviation"),
        (report(deviations="- Used threads — simpler\n- No cache: too early\n  for it"), A, None),
        (report(deviations="- Used threads\n  — simpler"), A, None),
        (report(deviations="- None."), A, None),
    ],
)
def test_executor_report(text, delta, reason):
    judgement = check_report("executor", text, delta)
    assert judgement.reason == reason
    assert judgement.verdict is None
    assert judgement.noop in (True, False)


@pytest.mark.parametrize(
    "said",
    [
        "src/a.py：缺少检查", "（src/登录.py）缺少检查", "见 src/a.py，第 3 行", "/srv/app/a.py fails", "src/a.py(12) fails", "why src/a.py?", "src/Makefile fails",
        "setup.cfg lacks it", "see file:///srv/a.py:3",
    ],
)  # fmt: skip
def test_a_file_is_an_anchor_in_every_usual_spelling(said):
    assert check_report("reviewer", review("REQUEST_CHANGES", f"- [CRITICAL] {said}\n")).valid


@pytest.mark.parametrize("long", ["a." * 30_000, "a/" * 30_000, "a" * 60_000])
def test_a_long_line_costs_its_length(long):
    """What took minutes: each place of the line was looked at as the beginning of a path, up to the end."""
    assert (
        check_report("reviewer", review("REQUEST_CHANGES", f"- [CRITICAL] {long}\n")).reason
        == "missing-anchor"
    )


def test_many_dashes_and_sections_cost_their_number():
    assert (
        check_report("executor", report(deviations="- " + "—" * 60_000), A).reason == "unexplained-deviation"
    )
    assert check_report("executor", report(deviations="x\n" * 100_000), A).reason == "unexplained-deviation"
    assert check_report("reviewer", review(tail="".join(f"### {i}\n" for i in range(30_000)))).valid


@given(st.text(alphabet="#`~- \n[]CRITALMNO.:/aVED"), st.sampled_from(["executor", "reviewer"]))
def test_any_text_gets_a_judgement(text, role):
    judgement = check_report(role, text, ["a"])
    assert judgement.valid == (judgement.reason is None)


@given(
    st.lists(
        st.sampled_from([CRITICAL, MINOR, "- None.\n", "```\n", "text\n", "### VERDICT: APPROVE\n", "  x\n"])
    )
)
def test_an_approval_never_stands_beside_a_critical_issue(parts):
    text = review(issues="".join(parts))
    judgement = check_report("reviewer", text)
    if judgement.verdict == "APPROVE":
        fenced, open_fence = [], False
        for part in parts:
            open_fence ^= part == "```\n"
            fenced.append(open_fence)
        assert not any(p == CRITICAL and not f for p, f in zip(parts, fenced, strict=True))
