"""The rules of a canonical `result.json`, and its file (contract: Results)."""

from __future__ import annotations

import os

from commands.plan_runs.documents import moment_of, parse_document, render_document, shown
from commands.plan_runs.rooted import MissingFileError, read_file, write_file
from ledger.errors import Invalid, Refused
from projections.result_keys import identity_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

RESULT = "result.json"
STATUSES = ("draft_ready", "submitted", "skipped", "error")
_DRAFT_LIMIT = 64 << 20
_LOG_LIMIT = 4 << 20
_VAGUE = frozenset(
    ("", "-", "n/a", "na", "none", "null", "tbd", "todo", "fixme", "error", "skipped", "unknown", "see above")
)
_CLOCK_DIFFERENCE = 120_000_000  # us
_POLICIES = ("keep_highest", "keep_latest", "keep_average")


class ResultRuleError(Invalid):
    """A result breaks a rule; `rule` is its short name, and the message begins with it."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class Consumption:
    """One recorded use of a receipt for an outside mutation, as a `submitted` result must match it; `at` in us since 1970."""

    __slots__ = ("action", "at", "course_id", "hands_in", "receipt_id", "target_id")

    def __init__(
        self,
        receipt_id: str,
        course_id: str,
        target_id: str,
        action: str,
        at: int,
        *,
        hands_in: bool,
    ) -> None:
        self.receipt_id = receipt_id
        self.course_id = course_id
        self.target_id = target_id
        self.action = action
        self.at = at
        self.hands_in = hands_in


class Evidence:
    """What was read to accept a `draft_ready` result: names below the run, and BLAKE3 digests (hex)."""

    __slots__ = ("draft_digest", "draft_name", "log_digest", "log_name")

    def __init__(self, draft_name: str, draft_digest: str, log_name: str, log_digest: str) -> None:
        self.draft_name = draft_name
        self.draft_digest = draft_digest
        self.log_name = log_name
        self.log_digest = log_digest


def validate_result(
    result: Any,
    work_dir: str,
    *,
    item: dict[str, Any] | None = None,
    consumptions: Callable[[str], list[Consumption]] | None = None,
) -> Evidence | None:
    """Nothing, or a draft's evidence, when `result` is canonical; else `ResultRuleError` naming the rule it breaks.

    `work_dir` is the item's folder in its run; files are read below the run only. `item` is the snapshot's item.
    `consumptions(receipt_id)` gives the log's uses of a receipt; without it no receipt claim can be accepted.
    """
    if not isinstance(result, dict):
        raise ResultRuleError("object", "result.json is not an object")
    item = item or {}
    work_dir = os.path.abspath(work_dir)  # `./runs/…` and a `/` at its end are the same folder
    _check_identity(result, item)
    status = result.get("status")
    if status not in STATUSES:
        raise ResultRuleError("status", f"{shown(status)} is not one of {', '.join(STATUSES)}")
    if status == "draft_ready":
        return _check_draft(result, work_dir, item)
    if status == "submitted":
        _check_submitted(result, item, consumptions)
    else:
        _check_notes(result, item)
    return None


def _check_identity(result: dict[str, Any], item: dict[str, Any]) -> None:
    for field in ("course_id", "assignment_id"):
        if result.get(field) is None or item.get(field) is None:
            continue
        try:
            claimed = identity_text(result[field], field)
        except Invalid as error:
            raise ResultRuleError("identity", str(error)) from None
        if claimed != identity_text(item[field], field):
            raise ResultRuleError(
                "identity", f"{field} is {shown(claimed)}, the item's is {shown(item[field])}"
            )


def _check_notes(result: dict[str, Any], item: dict[str, Any]) -> None:
    from commands.plan_runs.placeholders import find_placeholder

    notes = result.get("notes")
    if (
        not isinstance(notes, str)
        or notes.strip().strip(".").lower() in _VAGUE
        or not any(letter.isalnum() for letter in notes)
    ):
        raise ResultRuleError(
            "notes", f"status {result['status']} needs concrete notes, it has {shown(notes)}"
        )
    held = find_placeholder(notes.splitlines())
    if held is not None and len(notes.split()) < 4:
        raise ResultRuleError("notes", f"the notes are a placeholder ({held})")
    if result["status"] == "error" and result.get("draft_path") not in (None, ""):
        raise ResultRuleError(
            "error_claims_draft", f"status error claims the draft {shown(result['draft_path'])}"
        )
    if result.get("reason_code") == "authorization_required" and not names_action_and_target(notes, item):
        raise ResultRuleError(
            "authorization_required",
            "the notes must name the action (such as assignment.submit_text) and the target's id",
        )


def names_action_and_target(notes: str, item: dict[str, Any]) -> bool:
    """Whether notes name a known action and the item (its assignment or quiz id, or its name)."""
    from commands.plan_runs.receipts import known_actions

    targets = [
        str(item[field])
        for field in ("assignment_id", "quiz_id", "name", "assignment_name")
        if item.get(field)
    ]
    names_action = any(action in notes for action in known_actions())
    return names_action and (not targets or any(_names(notes, target) for target in targets))


def _names(notes: str, target: str) -> bool:
    """Whether `target` stands in the notes, and not as a part of a longer number."""
    import re

    return re.search(rf"(?<![0-9])(?:{re.escape(target)})(?![0-9])", notes) is not None


def _check_draft(result: dict[str, Any], work_dir: str, item: dict[str, Any]) -> Evidence:
    from blake3 import blake3

    from commands.plan_runs.draft_text import draft_lines
    from commands.plan_runs.placeholders import find_placeholder, is_hollow

    run_dir = os.path.dirname(work_dir)
    name = _name_in_run(result.get("draft_path"), "draft_path", work_dir)
    raw = _read_evidence(run_dir, name, "draft_path", _DRAFT_LIMIT)
    if raw == b"":
        raise ResultRuleError("draft_empty", f"{name} is empty")
    try:
        lines = draft_lines(name, raw)
    except Invalid as error:
        raise ResultRuleError("draft_unreadable", str(error)) from None
    if lines is not None:
        held = find_placeholder(lines)
        if held is not None:
            raise ResultRuleError("placeholder", f"{name}: {held} is unresolved")
        if is_hollow(lines):
            raise ResultRuleError(
                "draft_hollow", f"{name} holds no text beside headings, empty list items and table frames"
            )
    elif not raw.strip(b"\0 \t\r\n"):
        raise ResultRuleError("draft_hollow", f"{name} holds nothing")
    for template in _templates(result, item):
        if _equals_template(template, raw, work_dir):
            raise ResultRuleError("draft_is_template", f"{name} is byte for byte the template {template}")
    log_name, log = read_verification_log(result, work_dir, name)
    return Evidence(name, blake3(raw).hexdigest(), log_name, blake3(log).hexdigest())


def read_verification_log(result: dict[str, Any], work_dir: str, draft_name: str | None) -> tuple[str, bytes]:
    """Name and bytes of the verification log that says PASS and no FAIL; `ResultRuleError` otherwise.

    It lies at `verification_log_path`, else beside the draft (`draft_name`, below the run), else in the work directory.
    """
    run_dir = os.path.dirname(work_dir)
    if result.get("verification_log_path") is not None:
        name = _name_in_run(result["verification_log_path"], "verification_log_path", work_dir)
    else:
        folder = os.path.dirname(draft_name) if draft_name else os.path.basename(work_dir)
        name = f"{folder}/verification.log" if folder else "verification.log"
    raw = _read_evidence(run_dir, name, "verification_log", _LOG_LIMIT)
    lines = raw.decode("utf-8", "replace").removeprefix("\ufeff").splitlines()
    if any(line.startswith("FAIL") for line in lines):
        raise ResultRuleError("verification_log", f"{name} has a line starting FAIL")
    if not any(line.startswith("PASS") for line in lines):
        raise ResultRuleError("verification_log", f"{name} has no line starting PASS")
    return name, raw


def _name_in_run(path: object, field: str, work_dir: str) -> str:
    """`path` (absolute, or relative to the work directory) as a name below the run; never one outside it."""
    if not isinstance(path, str) or path == "" or "\0" in path:
        raise ResultRuleError(field, f"is {shown(path)}, not the path of a file")
    run_dir = os.path.dirname(work_dir)
    if ".." in path.split("/"):
        raise ResultRuleError(field, f"{shown(path)} climbs with `..`; name the file below the run")
    own = os.path.normpath(os.path.join(work_dir, path))
    # The run's real path and the one that a worker saw may differ above the run; its last part is never followed.
    candidates = [own, os.path.join(os.path.realpath(os.path.dirname(own)), os.path.basename(own))]
    if not os.path.isabs(path):
        # Older tools write the path as seen from the project's folder.
        candidates.append(os.path.abspath(path))
    inside = [place[len(run_dir) + 1 :] for place in candidates if place.startswith(f"{run_dir}/")]
    if not inside:
        raise ResultRuleError(field, f"{shown(path)} lies outside the run {run_dir}")
    return next((name for name in inside if os.path.lexists(f"{run_dir}/{name}")), inside[0])


def _read_evidence(run_dir: str, name: str, rule: str, limit: int) -> bytes:
    try:
        return read_file(run_dir, name, limit=limit)
    except (Invalid, Refused) as error:
        raise ResultRuleError(rule, str(error)) from None


def _templates(result: dict[str, Any], item: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for holder in (item, result):
        for field in ("template_path", "template_paths", "template", "templates"):
            value = holder.get(field)
            values = value if isinstance(value, list) else [value]
            found += [one for one in values if isinstance(one, str)]
    return found


def _equals_template(template: str, draft: bytes, work_dir: str) -> bool:
    for base in (work_dir, os.path.dirname(work_dir), os.getcwd()):
        folder, name = os.path.split(os.path.join(base, template))
        try:
            if read_file(folder, name, limit=_DRAFT_LIMIT) == draft:
                return True
        except (Invalid, Refused):
            continue
    return False


def _check_submitted(
    result: dict[str, Any], item: dict[str, Any], consumptions: Callable[[str], list[Consumption]] | None
) -> None:
    metadata = result.get("metadata")
    if not isinstance(metadata, dict):
        raise ResultRuleError(
            "metadata", "a submitted result needs `metadata` with Canvas' state as read back"
        )
    state = metadata.get("canvas_workflow_state")
    if state not in ("submitted", "graded"):
        raise ResultRuleError("canvas_workflow_state", f"is {shown(state)}, expected submitted or graded")
    if metadata.get("readback_verified") is not True:
        raise ResultRuleError(
            "readback_verified", f"is {shown(metadata.get('readback_verified'))}, expected true"
        )
    submitted = moment_of(result.get("submitted_at"))
    if submitted is None:
        raise ResultRuleError(
            "submitted_at", f"is {shown(result.get('submitted_at'))}, not an ISO time with a zone"
        )
    if result.get("reason_code") == "already_submitted":
        for holder in (result, metadata):
            for claim in ("authorization_receipt_id", "authorization_consumed"):
                if holder.get(claim) not in (None, False):
                    raise ResultRuleError(
                        "already_submitted",
                        f"a submission that was found claims no receipt, this has {claim}",
                    )
    else:
        _check_consumption(result, item, submitted, consumptions)
    if "quiz" in (result.get("kind"), item.get("kind")):
        _check_quiz(result, metadata)


def _check_consumption(
    result: dict[str, Any],
    item: dict[str, Any],
    submitted: int,
    consumptions: Callable[[str], list[Consumption]] | None,
) -> None:
    receipt_id = result.get("authorization_receipt_id")
    if not isinstance(receipt_id, str) or receipt_id == "":
        raise ResultRuleError("authorization_receipt_id", f"is {shown(receipt_id)}, not the id of a receipt")
    if result.get("authorization_consumed") is not True:
        raise ResultRuleError(
            "authorization_consumed", f"is {shown(result.get('authorization_consumed'))}, expected true"
        )
    # The item says what it is; the worker's result is asked only where the item does not say it.
    named = item if item.get("assignment_id") is not None else {**result, **item}
    course = str(named.get("course_id", result.get("course_id")))
    assignment = str(named.get("assignment_id"))
    quiz = str(named.get("quiz_id") or assignment)
    for use in consumptions(receipt_id) if consumptions is not None else ():
        # Two clocks are compared here; the receipt rules allow them the same two minutes.
        if (
            use.hands_in
            and use.course_id == course
            and use.target_id == (quiz if use.action.startswith("quiz.") else assignment)
            and submitted >= use.at - _CLOCK_DIFFERENCE
        ):
            return
    raise ResultRuleError(
        "consumption",
        f"the log holds no consumption of receipt {shown(receipt_id)} that submits this item before submitted_at",
    )


def _check_quiz(result: dict[str, Any], metadata: dict[str, Any]) -> None:
    def field(name: str) -> Any:
        return result[name] if name in result else metadata.get(name)

    for name in ("kept_score", "points_possible"):
        value = field(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ResultRuleError(name, f"is {shown(value)}, not a number")
    for name in ("attempts_used", "allowed_attempts"):
        value = field(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ResultRuleError(name, f"is {shown(value)}, not an integer")
    if field("scoring_policy") not in _POLICIES:
        raise ResultRuleError(
            "scoring_policy", f"is {shown(field('scoring_policy'))}, expected one of {', '.join(_POLICIES)}"
        )
    passes = field("agent_passes_count")
    consent = field("degraded_method_user_consent")
    enough = isinstance(passes, int) and not isinstance(passes, bool) and passes >= 4
    if not enough and not (isinstance(consent, str) and len(consent.strip()) >= 10):
        raise ResultRuleError(
            "agent_passes_count",
            f"is {shown(passes)}, expected 4 or more, or the user's words of consent (10 characters)",
        )


def read_result(run_dir: str, key: str) -> tuple[Any, bytes] | None:
    """The item's `result.json` (value, bytes), read once; None where there is none; `Invalid`/`Refused` for a bad file."""
    name = f"{key}/{RESULT}"
    try:
        raw = read_file(run_dir, name)
    except MissingFileError:
        return None
    return parse_document(raw, name), raw


def write_result(
    run_dir: str,
    key: str,
    result: dict[str, Any],
    *,
    item: dict[str, Any] | None = None,
    consumptions: Callable[[str], list[Consumption]] | None = None,
) -> bytes:
    """Validates `result` and writes it as the item's `result.json` (temp, fsync, rename); returns the bytes written."""
    from commands.plan_runs.rooted import make_folder

    validate_result(result, f"{run_dir}/{key}", item=item, consumptions=consumptions)
    raw = render_document(result)
    make_folder(run_dir, key)
    write_file(run_dir, f"{key}/{RESULT}", raw)
    return raw
