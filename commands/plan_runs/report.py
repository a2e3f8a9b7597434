"""REPORT.md: a view of one run, made from plan, snapshot and results alone (contract: Results)."""

from __future__ import annotations

from commands.plan_runs.documents import moment_of
from projections.result_keys import result_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REPORT = "REPORT.md"
URGENT = "🔥 URGENT"
NOT_URGENT = "✅ No urgent items in next 24h"
NEXT_STEP = "## Next step"
_DAY = 86_400_000_000
_DONE_STATES = ("submitted", "graded")
_SECTIONS = (
    ("submitted", "Submitted"),
    ("draft_ready", "Drafts ready"),
    ("skipped", "Skipped"),
    ("error", "Errors"),
)


class ReportItem:
    """One plan item with its snapshot, its result, the skill it went to and where that skill lies."""

    __slots__ = ("assignment", "item", "key", "result", "skill", "skill_path")

    def __init__(
        self,
        item: dict[str, Any],
        assignment: dict[str, Any],
        result: dict[str, Any],
        skill: str,
        skill_path: str,
    ) -> None:
        self.item = item
        self.assignment = assignment
        self.result = result
        self.skill = skill
        self.skill_path = skill_path
        self.key = result_key(item["course_id"], item["assignment_id"])

    @property
    def title(self) -> str:
        """The item as people name it, on one line."""
        course = _one_line(self.item.get("course_name") or f"course {self.item['course_id']}")
        name = _one_line(self.item.get("assignment_name") or self.assignment.get("name") or "assignment")
        return f"{self.item['index']}. {course}: {name} (assignment {_one_line(self.item['assignment_id'])})"

    @property
    def notes(self) -> str:
        """The result's own words."""
        notes = self.result.get("notes")
        return notes if isinstance(notes, str) else ""

    def is_urgent(self, now: int) -> bool:
        """Overdue or due within 24 hours of `now`, and not handed in as far as Canvas was last read."""
        metadata = self.result.get("metadata")
        state = self.item.get("live_state")
        if self.result["status"] == "submitted" and isinstance(metadata, dict):
            state = metadata.get("canvas_workflow_state")
        due = moment_of(self.item.get("due_at") or self.assignment.get("due_at"))
        return due is not None and state not in _DONE_STATES and due <= now + _DAY


def render_report(items: list[ReportItem], now: int) -> bytes:
    """The report's bytes; the same items and `now` (us since 1970) always give the same."""
    urgent = [each for each in items if each.is_urgent(now)]
    errors = [each for each in items if each.result["status"] == "error"]
    blocks = [_urgent_block(urgent, now)]
    if errors:
        blocks.append(_help_block(errors))
    for status, title in _SECTIONS:
        held = [each for each in items if each.result["status"] == status]
        if held:
            blocks.append(
                "\n".join([f"## {title}", "", *(line for each in held for line in _item_lines(each))]).rstrip(
                    "\n"
                )
            )
    blocks.append("\n".join([NEXT_STEP, "", *_next_step(items, urgent, errors)]))
    return ("\n\n".join(blocks) + "\n").encode("utf-8", "backslashreplace")


def begins_with_urgent_block(raw: bytes) -> bool:
    """Whether a report's first line is one of the two urgent blocks (contract: `run finalize`)."""
    first = (
        raw.decode("utf-8", "replace")
        .lstrip("\ufeff")
        .lstrip()
        .partition("\n")[0]
        .strip()
        .lstrip("#* ")
        .rstrip("* :")
    )
    return first in (URGENT, NOT_URGENT)


def _urgent_block(urgent: list[ReportItem], now: int) -> str:
    if not urgent:
        return NOT_URGENT
    lines = [URGENT, ""]
    for each in urgent:
        due = each.item.get("due_at") or each.assignment.get("due_at")
        moment = moment_of(due)
        when = "overdue since" if moment is not None and moment < now else "due"
        lines.append(f"- {each.title}: {when} {due}; now {each.result['status']}")
    return "\n".join(lines)


def _help_block(errors: list[ReportItem]) -> str:
    lines = ["## Help with errors", ""]
    for each in errors:
        lines += [
            f"### {each.title}",
            "",
            f"- Skill: {each.skill}",
            f"- Skill path: {each.skill_path}",
            "- Notes:",
            *_quoted(each.notes),
            f"- What to check: the skill's file, then `{each.key}/` (the worker's own files are kept there), then run the item again.",
            "",
        ]
    return "\n".join(lines).rstrip("\n")


def _item_lines(each: ReportItem) -> list[str]:
    result = each.result
    lines = [
        f"### {each.title}",
        "",
        f"- Verified: status {result['status']}, skill {each.skill}, result `{each.key}/result.json`",
    ]
    if result["status"] == "draft_ready":
        lines.append(
            f"- Verified: draft `{_one_line(result['draft_path'])}`, verification.log says PASS and no FAIL"
        )
    if result["status"] == "submitted":
        metadata = result["metadata"]
        lines.append(
            f"- Verified: Canvas says {metadata['canvas_workflow_state']}, read back, submitted at {result['submitted_at']}"
        )
        if result.get("authorization_consumed") is True:
            lines.append(f"- Verified: receipt {_one_line(result['authorization_receipt_id'])} was consumed")
    if result.get("reason_code"):
        lines.append(f"- Reason: {_one_line(result['reason_code'])}")
    if each.notes.strip():
        lines += ["- Judgement, in the worker's words:", *_quoted(each.notes)]
    return [*lines, ""]


def _next_step(items: list[ReportItem], urgent: list[ReportItem], errors: list[ReportItem]) -> list[str]:
    skipped = [each for each in items if each.result["status"] == "skipped"]
    drafts = [each for each in items if each.result["status"] == "draft_ready"]
    if urgent:
        lines = [f"Act now on {urgent[0].title}: {_urgent_action(urgent[0])}."]
    elif errors:
        lines = [f"Mend the first error: {errors[0].title}; see the help block above."]
    elif skipped:
        lines = [f"Decide about {skipped[0].title}: it was skipped and is not done."]
    elif drafts:
        lines = [f"Review the draft of {drafts[0].title}; approval of the plan did not submit it."]
    else:
        lines = ["Nothing is left to do for this run."]
    for each in items:
        if each.result.get("reason_code") == "authorization_required":
            lines.append(f"{each.title} waits for authority; if you want it done, a person issues a receipt:")
            lines.append(f"`{_receipt_command(each)}`")
    return lines


def _urgent_action(each: ReportItem) -> str:
    return {
        "draft_ready": "review its draft and hand it in",
        "error": "see the help block above, then run it again or do it by hand",
        "skipped": "it was skipped; do it by hand or approve it in a new plan",
    }.get(each.result["status"], "check its state in Canvas")


def _receipt_command(each: ReportItem) -> str:
    from commands.plan_runs.receipts import known_actions

    named = [action for action in known_actions() if action in each.notes]
    target = "quiz" if named and named[0].startswith("quiz.") else "assignment"
    target_id = each.assignment.get("quiz_id") if target == "quiz" else None
    flags = " ".join(f"--action {action}" for action in named if action.startswith(f"{target}."))
    return (
        f"gatebook receipt issue --origin URL --course {_one_line(each.item['course_id'])} --target-type {target} "
        f"--target {_one_line(target_id or each.item['assignment_id'])} {flags or '--action ACTION'} "
        "--session SESSION --expires TIME --authority WORDS --out FILE"
    )


def _quoted(text: str) -> list[str]:
    """Foreign words as a quotation, so that no line of theirs becomes a heading of ours."""
    return [f"  > {line}" for line in text.splitlines()] or ["  > (none)"]


def _one_line(value: object) -> str:
    return " ".join(str(value).split())
