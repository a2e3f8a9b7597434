"""What executor and reviewer are asked; the reviewer's task depends on where the plan came from (contract, Rounds)."""

from __future__ import annotations

from commands.sessions.session_file import REVIEW_ONLY, REVIEWER_APPROVED, USER_SUPPLIED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.config import Config

USER_SUPPLIED_MARK = "(plan_source: user-supplied — plan conformance is advisory/MINOR)"

_BLOCKS = {
    REVIEWER_APPROVED: """Review the changes of this session against the approved plan in the session file.
Judge correctness, and judge strictly whether the code is what the plan decided: every deviation from the plan (another
approach, other limits or thresholds, a relaxed constraint, something left out) is a [CRITICAL] issue, even where the
code works.""",
    USER_SUPPLIED: f"""Review the changes of this session against the plan that the user supplied, in the session file.
Judge correctness and the plan's intent strictly. The plan's wording was not reviewed, so a deviation from it is
[MINOR], unless it changes what a user sees or breaks an acceptance criterion: then it is [CRITICAL].

{USER_SUPPLIED_MARK}""",
    REVIEW_ONLY: """Review the code as it is. The section `## Approved Plan` of the session file holds a fixed sentinel,
not a plan: do not compare the code with it. The scope is what `## Review Target` says and `## Files Changed` lists.
Judge correctness, edge cases, security and tests.""",
}

_REVIEWER_FORM = """Answer in exactly this form:

### VERDICT: APPROVE
(or `### VERDICT: REQUEST_CHANGES`; that one only with at least one [CRITICAL] issue)

### Issues
- [CRITICAL] what is wrong
  File: `path/of/file`, around line N
- [MINOR] what could be better
  File: `path/of/file`, around line N
(write `- None.` instead, or leave the section out, when there are no issues)

### Strengths
what is good"""

_EXECUTOR_FORM = """Answer in exactly this form, and list every path that you changed, created or deleted:

## Implementation Complete: title

### Changes Made
what you did (for a round without changes: that no code changes were required)

### Files Modified / Created / Deleted
- `path/of/file` — why
(`None` for a round without changes)

### Deviations from Plan
None
(or each deviation as `- what — why`)

### Notes for Reviewer
what to look at (a round without changes calls itself a no-op here)"""


def executor_prompt(path: str, *, source: str, number: int, feedback: str) -> str:
    """The executor's prompt. `path` is the session file's; `feedback` the findings to repair; a review-only one has no plan."""
    task = "Implement the approved plan in this work tree."
    if source == REVIEW_ONLY:
        task = (
            "Resolve the findings below in this work tree."
            if feedback
            else "No finding is open: change nothing."
        )
    parts = [
        f"You are the executor of a review session, round {number}.",
        f"Read the session file first: {path}\nDo not change that file or anything else in its directory.",
        f"{task} Do not commit.",
    ]
    if feedback:
        parts.append(f"## Findings to resolve\n{feedback}")
    return "\n\n".join([*parts, _EXECUTOR_FORM]) + "\n"


def reviewer_prompt(
    path: str,
    *,
    source: str,
    number: int,
    config: Config,
    previous: str = "",
    scope: str = "",
) -> str:
    """The reviewer's prompt with the one block of the active plan source. `scope` narrows it to a diff (fast replay)."""
    parts = [
        f"You are the reviewer of a review session, round {number}.",
        f"Read the session file first: {path}\nYou only read; change nothing. This work tree is all that counts.",
        f"## Your task\n{_BLOCKS[source]}",
    ]
    if scope:
        parts.append(f"## Scope\nOnly this change of prose, comments or metadata is to be judged:\n\n{scope}")
    if config.review_focus:
        parts.append(f"## Review focus\n{config.review_focus}")
    if config.review_style:
        parts.append(f"## Review style\n{config.review_style}")
    if previous:
        parts.append(
            f"## Findings of earlier rounds\nCheck in the code itself that each is resolved:\n{previous}"
        )
    return "\n\n".join([*parts, _REVIEWER_FORM]) + "\n"
