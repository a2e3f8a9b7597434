"""A plan and its snapshot: the rules of a valid one, its digest, its file (contract: Files).

Nothing here repairs a plan. Every refusal names the item, the field and both values.
"""

from __future__ import annotations

from commands.plan_runs.documents import moment_of, parse_document, render_document, shown
from commands.plan_runs.run_folder import StalePlanError
from ledger.errors import Invalid
from projections.approval_grammar import is_skill_name
from projections.result_keys import identity_text, result_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PLAN = "plan.json"
SNAPSHOT = "assignments.json"
_FILE_LIMIT = 8 << 20


def validate_plan(plan: Any, *, now: int | None = None, require_current: bool = False) -> dict[str, Any]:
    """`plan` itself when it is valid (contract: Rules of a valid plan), else `StalePlanError`.

    `require_current` also wants `now` (us since 1970; the clock when not given) before `expires_at`.
    """
    if not isinstance(plan, dict):
        raise StalePlanError(f"plan: is {_kind(plan)}, not an object")
    generated = _moment(plan, "generated_at")
    expires = _moment(plan, "expires_at")
    if expires <= generated:
        raise StalePlanError(
            f"plan: expires_at {plan['expires_at']} is not after generated_at {plan['generated_at']}"
        )
    items = plan.get("items")
    if not isinstance(items, list):
        raise StalePlanError(f"plan: items is {_kind(items)}, not a list")
    for place, item in enumerate(items, 1):
        _validate_item(item, place)
    if require_current:
        _check_current(plan["expires_at"], expires, now)
    return plan


def _moment(plan: dict[str, Any], field: str) -> int:
    moment = moment_of(plan.get(field))
    if moment is None:
        raise StalePlanError(f"plan: {field} is {plan.get(field)!r}, not an ISO time with a zone")
    return moment


def _validate_item(item: Any, place: int) -> None:
    if not isinstance(item, dict):
        raise StalePlanError(f"plan item {place}: is {_kind(item)}, not an object")
    index = item.get("index")
    if not isinstance(index, int) or isinstance(index, bool):
        raise StalePlanError(f"plan item {place}: index is {index!r}, not an integer; expected {place}")
    if index != place:
        raise StalePlanError(
            f"plan item {place}: index is {shown(index)}, expected {place} (1 to n, in order, each once)"
        )
    decision = item.get("user_decision")
    if decision in (None, "approve", "defer"):
        return
    if not (isinstance(decision, str) and decision.startswith("swap:") and is_skill_name(decision[5:])):
        raise StalePlanError(
            f"plan item {place}: user_decision is {shown(decision)}, expected null, approve, defer or swap:canvas-<name>"
        )


def _check_current(text: str, expires: int, now: int | None) -> None:
    from projections.times import print_time

    if now is None:
        from ledger.clock import now_us

        now = now_us()
    if now >= expires:
        raise StalePlanError(f"plan: expires_at {text} has passed, it is {print_time(now)}")


def validate_plan_assignments(
    plan: Any,
    assignments: Any,
    *,
    run_dir: str | None = None,
    now: int | None = None,
    require_current: bool = False,
    resolve: Callable[[dict[str, Any]], str] | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The plan and its snapshot when each is valid and both say the same, else `StalePlanError`.

    `resolve` gives the skill that the routes say for a snapshot item; it must be the item's `proposed_skill`.
    `run_dir` is where a snapshot's `work_dir` must lie; without it only its last component is compared.
    """
    validate_plan(plan, now=now, require_current=require_current)
    snapshot = _snapshot_by_identity(assignments, run_dir)
    seen: dict[tuple[str, str], int] = {}
    for item in plan["items"]:
        where = f"plan item {item['index']}"
        identity = _identity(item, where)
        if identity in seen:
            raise StalePlanError(
                f"{where}: course_id, assignment_id {_pair(identity)} stand at item {seen[identity]} too"
            )
        seen[identity] = item["index"]
        assignment = snapshot.get(identity)
        if assignment is None:
            raise StalePlanError(
                f"{where}: course_id, assignment_id {_pair(identity)} are not in the snapshot"
            )
        _check_skill(item, assignment, where, resolve)
    for place, identity in enumerate(snapshot, 1):
        if identity not in seen:
            raise StalePlanError(
                f"snapshot item {place}: course_id, assignment_id {_pair(identity)} are not in the plan"
            )
    return plan, assignments


def _snapshot_by_identity(assignments: Any, run_dir: str | None) -> dict[tuple[str, str], dict[str, Any]]:
    if not isinstance(assignments, list):
        raise StalePlanError(f"snapshot: is {_kind(assignments)}, not a list")
    found: dict[tuple[str, str], dict[str, Any]] = {}
    keys: dict[str, tuple[str, str]] = {}
    for place, assignment in enumerate(assignments, 1):
        where = f"snapshot item {place}"
        if not isinstance(assignment, dict):
            raise StalePlanError(f"{where}: is {_kind(assignment)}, not an object")
        identity = _identity(assignment, where)
        if identity in found:
            first = list(found).index(identity) + 1
            raise StalePlanError(
                f"{where}: course_id, assignment_id {_pair(identity)} stand at item {first} too"
            )
        try:
            key = result_key(*identity)
        except Invalid as error:
            raise StalePlanError(f"{where}: {error}") from None
        if key in keys:
            raise StalePlanError(
                f"{where}: {_pair(identity)} and {_pair(keys[key])} have the same work directory {key}"
            )
        keys[key] = identity
        found[identity] = assignment
        work_dir = assignment.get("work_dir")
        if work_dir is not None and not is_stable_work_dir(work_dir, key, run_dir):
            raise StalePlanError(f"{where}: work_dir is {shown(work_dir)}, expected {key}")
    return found


def is_stable_work_dir(work_dir: object, key: str, run_dir: str | None) -> bool:
    """Whether `work_dir` names the folder `key` of the run: the bare name, or a path to it without `..`."""
    import os.path

    if not isinstance(work_dir, str) or ".." in work_dir.split("/") or "\0" in work_dir:
        return False
    if work_dir == key:
        return True
    if os.path.basename(work_dir) != key:
        return False
    if run_dir is None:
        return True
    expected = os.path.join(os.path.realpath(run_dir), key)
    return any(
        os.path.join(os.path.realpath(os.path.dirname(path)), key) == expected
        for path in (os.path.abspath(work_dir), os.path.join(run_dir, work_dir))
    )


def _check_skill(
    item: dict[str, Any],
    assignment: dict[str, Any],
    where: str,
    resolve: Callable[[dict[str, Any]], str] | None,
) -> None:
    proposed = item.get("proposed_skill")
    if not is_skill_name(proposed):
        raise StalePlanError(f"{where}: proposed_skill is {shown(proposed)}, expected canvas-<name>")
    if proposed != assignment.get("skill"):
        raise StalePlanError(
            f"{where}: proposed_skill is {proposed}, the snapshot's skill is {shown(assignment.get('skill'))}"
        )
    if resolve is not None:
        resolved = resolve(assignment)
        if resolved != proposed:
            raise StalePlanError(f"{where}: proposed_skill is {proposed}, the routes give {resolved}")


def _identity(item: dict[str, Any], where: str) -> tuple[str, str]:
    try:
        return (
            identity_text(item.get("course_id"), "course_id"),
            identity_text(item.get("assignment_id"), "assignment_id"),
        )
    except Invalid as error:
        raise StalePlanError(f"{where}: {error}") from None


def _pair(identity: tuple[str, str]) -> str:
    return f"({shown(identity[0])}, {shown(identity[1])})"


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )


def plan_digest(plan: Any) -> str:
    """SHA-256 hex of the validated plan as CPython's own JSON text (contract: Plan digest; other guards recompute it)."""
    import json

    validate_plan(plan)
    try:
        text = json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return _sha256(text.encode("utf-8"))
    except ValueError as error:
        raise StalePlanError(f"plan: has no digest: {error}") from None


def _sha256(raw: bytes) -> str:
    """SHA-256, hex, by CPython's own module: `hashlib` loads OpenSSL, 2.5 ms of every step."""
    try:
        from _sha2 import sha256  # type: ignore[import-not-found,unused-ignore]  # Python 3.12 and later
    except ImportError:
        try:
            from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            from hashlib import sha256
    return str(sha256(raw).hexdigest())


def parse_plan(raw: bytes) -> dict[str, Any]:
    """The plan in the bytes of `plan.json`, valid by itself; `StalePlanError` otherwise."""
    return validate_plan(_parsed(raw, PLAN))


def _parsed(raw: bytes, where: str) -> Any:
    try:
        return parse_document(raw, where)
    except Invalid as error:
        raise StalePlanError(str(error)) from None


def read_run_files(run_dir: str) -> tuple[bytes, bytes]:
    """The bytes of a run directory's plan and snapshot, each read once; `StalePlanError` where one cannot be read."""
    from commands.plan_runs.rooted import read_file
    from ledger.errors import Refused

    try:
        return read_file(run_dir, PLAN, limit=_FILE_LIMIT), read_file(run_dir, SNAPSHOT, limit=_FILE_LIMIT)
    except (Invalid, Refused) as error:
        raise StalePlanError(str(error)) from None


def parse_run_documents(run_dir: str, plan: bytes, snapshot: bytes) -> tuple[Any, Any]:
    """Plan and snapshot as the values that these bytes of a run directory hold; neither is judged yet."""
    return _parsed(plan, f"{run_dir}/{PLAN}"), _parsed(snapshot, f"{run_dir}/{SNAPSHOT}")


def read_plan(run_dir: str) -> Any:
    """The plan of a run directory as it lies there, parsed and not judged."""
    plan, snapshot = read_run_files(run_dir)
    return parse_run_documents(run_dir, plan, snapshot)[0]


def write_plan(run_dir: str, plan: Any) -> str:
    """Writes `plan` over the run's `plan.json` after validating it (temp, fsync, rename); returns its digest."""
    from commands.plan_runs.rooted import write_file

    digest = plan_digest(plan)
    write_file(run_dir, PLAN, render_document(plan))
    return digest
