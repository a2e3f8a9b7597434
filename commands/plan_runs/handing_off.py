"""`run next`, `run pause` and the steps of `run execute`: items go to their skills in order, one at a time."""

from __future__ import annotations

from commands.plan_runs.plans import PLAN, SNAPSHOT
from commands.plan_runs.recording import (
    Found,
    Shared,
    defer_unapproved,
    deferral,
    deferred,
    look_at,
    recorded,
    set_aside,
    settled,
    write_canonical,
)
from commands.plan_runs.results import RESULT, ResultRuleError
from commands.plan_runs.rooted import make_folder
from commands.plan_runs.routes import SubRouterError
from commands.plan_runs.run_folder import StalePlanError
from commands.plan_runs.run_ledger import Documents, Run, read_documents, refuse_credentials, require_owner
from commands.plan_runs.workers import refuse_at_work
from ledger.errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commands.plan_runs.routes import Resolver
    from commands.plan_runs.skills import SkillFolder
    from projections.engine import Proposal, World
    from projections.plan_run import Claim, State
    from projections.plan_run_events import Item


class Dispatch:
    """How items find their skills in one call: the skills folder (None: not looked at), the routes, a checked receipt."""

    __slots__ = ("receipt", "resolver", "run", "skills")

    def __init__(
        self, run: Run, skills: SkillFolder | None, resolver: Resolver | None, receipt: dict[str, Any] | None
    ) -> None:
        self.run = run
        self.skills = skills
        self.resolver = resolver
        self.receipt = receipt

    def skill(self, state: State, documents: Documents, item: Item) -> tuple[str, str | None]:
        """(skill, None), or (skill, why it cannot be used) as `rule: reason`. May run the family's sub-router."""
        decision = state.decision(item)
        assignment = documents.assignment(documents.plan["items"][item.index - 1])
        name = decision[5:] if decision.startswith("swap:") else item.skill
        if self.resolver is not None:
            try:
                if decision.startswith("swap:"):
                    resolved = self.resolver.of_swap(name, assignment)
                    if resolved != name:
                        return name, f"skill_missing: the routes turn {name} into {resolved}"
                else:
                    family = self.resolver.of(assignment)
                    if family != item.skill:
                        raise StalePlanError(
                            f"plan item {item.index}: proposed_skill is {item.skill}, the routes give {family}"
                        )
                    name = self.resolver.of(assignment, ask=True)
            except SubRouterError as error:
                return name, f"sub_router: {error}"
        why = self.skills.why_not(name) if self.skills is not None else None
        return name, None if why is None else f"skill_missing: {why}"

    def document(self, documents: Documents, item: Item, skill: str) -> dict[str, Any]:
        """What the skill is told: the item's identity, where things lie, and that it may draft and not mutate."""
        path = self.run.folder.path
        planned = documents.plan["items"][item.index - 1]
        told: dict[str, Any] = {
            "index": item.index,
            "course_id": planned["course_id"],
            "course_name": planned.get("course_name"),
            "assignment_id": planned["assignment_id"],
            "assignment_name": planned.get("assignment_name"),
            "due_at": planned.get("due_at"),
            "user_decision": planned["user_decision"],
            "result_key": item.key,
            "skill": skill,
            "skill_path": self.skills.path(skill) if self.skills is not None else None,
            "work_dir": f"{path}/{item.key}",
            "result_path": f"{path}/{item.key}/{RESULT}",
            "snapshot_path": f"{path}/{SNAPSHOT}",
            "plan_path": f"{path}/{PLAN}",
            "session_id": self.run.session,
            "local_drafting": True,
            "mutation": False,
        }
        if self.receipt is not None and self._covers(documents, item):
            told["receipt"] = self.receipt
        return told

    def _covers(self, documents: Documents, item: Item) -> bool:
        assert self.receipt is not None
        assignment = documents.assignment(documents.plan["items"][item.index - 1])
        wanted = (
            assignment.get("quiz_id")
            if self.receipt["target_type"] == "quiz"
            else assignment["assignment_id"]
        )
        return (self.receipt["course_id"], self.receipt["target_id"]) == (item.course_id, str(wanted))


class Step:
    """One transaction's outcome for the caller: what was handed off or recorded."""

    __slots__ = ("attempt", "fault", "index", "item", "key", "seq", "skill", "status")

    def __init__(self) -> None:
        self.item: Item | None = None
        self.skill = ""
        self.attempt = 0
        self.seq = 0
        self.key = ""
        self.index = 0
        self.status = ""
        self.fault: str | None = None


def accept_open(run: Run, *, missing_is: str) -> Step:
    """Looks at the open hand-off's result and records it when it is canonical.

    `missing_is` says what a hand-off without a canonical result is: `waiting` (nothing is recorded), `error` (a
    canonical error result that names the rule) or `interrupted` (recorded, to be handed off again).
    `Conflict` where one would be waited for while a worker is still at work on it.
    """
    step = Step()
    shared: Shared | None = None

    def decide(world: World) -> list[Proposal]:
        nonlocal shared
        documents = read_documents(run.folder)
        state, claim = settled(run, world, documents)
        if state.open is None:
            return []
        if missing_is == "waiting":
            refuse_at_work(f"{run.folder.path}/{state.open.key}")
        item = state.items[state.open.index - 1]
        step.item, step.key, step.skill, step.index = item, item.key, state.open.skill, item.index
        stream = run.stream(world.reader)
        rule = ""
        try:
            found = fresh_result(run, world, documents, state, item)
        except ResultRuleError as error:
            step.fault, rule = str(error), error.rule
            if missing_is == "waiting":
                return []
            if missing_is == "interrupted":
                return [_interrupted(stream, claim, item)]
            found = write_canonical(run.folder.path, item.key, _error(str(error)))
        shared = Shared(run, world.clock)
        step.status = found.value["status"]
        return [recorded(stream, claim, item, found, shared, cause=state.open.seq, rule=rule)]

    def write() -> None:
        if shared is not None:
            shared.write()

    run.submit(decide, then=write)
    return step


def valid_open_result(run: Run, world: World, documents: Documents, state: State) -> str:
    """The key of the open hand-off when its valid result lies there and only waits to be recorded, else ``."""
    if state.open is None:
        return ""
    try:
        fresh_result(run, world, documents, state, state.items[state.open.index - 1])
    except ResultRuleError:
        return ""
    return state.open.key


def fresh_result(run: Run, world: World, documents: Documents, state: State, item: Item) -> Found:
    """The open hand-off's own result; `ResultRuleError` for none, a broken one, or one of before."""
    found = look_at(run, world, documents, item)
    if found is None:
        raise ResultRuleError("result_missing", f"the hand-off left no {RESULT} in {item.key}")
    assert state.open is not None
    if found.digest == state.archived.get(item.key):
        raise ResultRuleError(
            "result_of_earlier_run", f"{RESULT} is byte for byte the one that was archived before this run"
        )
    if found.digest == state.open.slot:
        raise ResultRuleError(
            "result_before_hand_off", f"{RESULT} stood there before the item was handed off"
        )
    return found


def _error(why: str) -> dict[str, Any]:
    from ledger.credentials import find_credential

    kind = find_credential(why.encode("utf-8", "replace"))
    if kind is not None:
        why = f"{why.partition(':')[0]}: the rest holds what looks like a credential ({kind}) and is left out"
    return {"status": "error", "notes": f"No canonical result: {why}"}


def _interrupted(stream: str, claim: Claim, item: Item) -> Proposal:
    from projections.engine import Proposal
    from projections.plan_run_events import INTERRUPTED, Deferred

    return Proposal(
        stream, "item.deferred", Deferred(item.index, item.key, claim.nonce, INTERRUPTED), causation=claim.seq
    )


def hand_off_next(dispatch: Dispatch) -> Step:
    """Records `item.handed_off` for the next item, durable when this returns; `step.item` None when none is left.

    An item whose skill cannot be used gets an `error` result; for a missing skill all not yet run are deferred too.
    """
    run = dispatch.run
    skill, why, index = _resolved(dispatch)
    step = Step()
    shared: Shared | None = None

    def decide(world: World) -> list[Proposal]:
        nonlocal shared
        documents = read_documents(run.folder)
        state, claim = settled(run, world, documents)
        if state.open is not None:
            raise Refused(
                f"{state.open.key} is handed off already (event {state.open.seq}); let it end first"
            )
        item = state.next_item()
        if item is None:
            return []
        if item.index != index:
            raise Refused("the run went on while this step was made ready; run it again")
        stream = run.stream(world.reader)
        step.item, step.key, step.skill, step.index = item, item.key, skill, item.index
        shared = Shared(run, world.clock)  # unreadable: no hand-off begins whose result could not be recorded
        if why is not None:
            proposals = _failed(run, state, claim, item, stream, shared, why)
            step.status, step.fault = "error", why
            return proposals
        shared = None
        return [_handed_off(run, state, claim, item, stream, skill, dispatch, documents, step)]

    def write() -> None:
        if shared is not None:
            shared.write()

    done = run.submit(decide, then=write)
    step.seq = done.events[0].seq if done.events else 0
    return step


def _resolved(dispatch: Dispatch) -> tuple[str, str | None, int]:
    """Skill, fault and index of the next item, found outside the lock (a sub-router is a process)."""
    run = dispatch.run
    documents = read_documents(run.folder)
    state, _ = require_owner(run, run.look(), documents)
    item = state.next_item()
    if item is None:
        return "", None, 0
    run.require_current()
    skill, why = dispatch.skill(state, documents, item)
    return skill, why, item.index


def _handed_off(
    run: Run,
    state: State,
    claim: Claim,
    item: Item,
    stream: str,
    skill: str,
    dispatch: Dispatch,
    documents: Documents,
    step: Step,
) -> Proposal:
    from commands.plan_runs.preparation import file_digest
    from commands.plan_runs.rooted import kind_of
    from projections.engine import Proposal
    from projections.plan_run_events import HandedOff

    make_folder(run.folder.path, item.key)
    slot = ""
    kind = kind_of(run.folder.path, f"{item.key}/{RESULT}")
    # What an interrupted attempt left would hide a second one that writes the same bytes; a paused item's deferral stays.
    is_left_over = item.key in state.attempts and item.key not in state.results
    if kind == "file" and not is_left_over:
        slot = file_digest(run.folder.path, f"{item.key}/{RESULT}")
    elif kind:
        set_aside(run.folder.path, item.key)
    step.attempt = state.attempts.get(item.key, 0) + 1
    told = dispatch.document(documents, item, skill)
    receipt_id = told["receipt"]["receipt_id"] if "receipt" in told else ""
    data = HandedOff(item.index, item.key, skill, claim.nonce, step.attempt, slot, receipt_id)
    return Proposal(stream, "item.handed_off", data, causation=claim.seq)


def _failed(
    run: Run, state: State, claim: Claim, item: Item, stream: str, shared: Shared, why: str
) -> list[Proposal]:
    """The `error` result of an item that cannot be handed off; with a missing skill the rest is deferred."""
    from projections.plan_run_events import SKILL_MISSING

    rule = why.partition(":")[0]
    found = write_canonical(run.folder.path, item.key, _error(why))
    proposals = [recorded(stream, claim, item, found, shared, cause=claim.seq, rule=rule)]
    if rule != "skill_missing":
        return proposals
    for other in state.items:
        if other.index == item.index or not state.is_approved(other):
            continue
        held = state.results.get(other.key)
        if held is None:
            notes = f"deferred: the skill of item {item.index} is missing, the run was closed safely"
            rest = write_canonical(run.folder.path, other.key, deferral(notes))
            proposals.append(deferred(claim, stream, other, rest, shared, SKILL_MISSING))
    return proposals


def next_step(dispatch: Dispatch) -> dict[str, Any]:
    """`run next`: the open hand-off, else the next item, handed off; a document with `done` true when none is left."""
    run = dispatch.run
    defer_unapproved(run)
    open_one = accept_open(run, missing_is="waiting")
    accepted = {"result_key": open_one.key, "status": open_one.status} if open_one.status else None
    if open_one.item is not None and not open_one.status:
        documents = read_documents(run.folder)
        told = dispatch.document(documents, open_one.item, open_one.skill)
        return {"done": False, **told, "accepted": None, "result_fault": open_one.fault}
    while True:
        step = hand_off_next(dispatch)
        if step.item is None:
            _report(run, dispatch.skills)
            return {"done": True, "index": None, "accepted": accepted}
        if step.status == "":
            documents = read_documents(run.folder)
            told = dispatch.document(documents, step.item, step.skill)
            return {
                "done": False,
                **told,
                "attempt": step.attempt,
                "accepted": accepted,
                "result_fault": None,
            }


def _report(run: Run, skills: SkillFolder | None = None) -> None:
    from commands.plan_runs.closing import report_if_due

    report_if_due(run, skills)


def pause(run: Run, reason: str) -> dict[str, Any]:
    """`run pause`: the items that remain get deferred results, which a later hand-off in this owned run may replace.

    `Usage` or `Refused` for a reason that no result may carry, before anything is written.
    """
    from projections.plan_run_events import PAUSED

    wanted = deferral(f"paused: {reason}")
    _check_reason(run, wanted, reason)
    accept_open(run, missing_is="waiting")
    shared: Shared | None = None
    paused: list[str] = []

    def decide(world: World) -> list[Proposal]:
        nonlocal shared
        documents = read_documents(run.folder)
        state, claim = settled(run, world, documents)
        stream = run.stream(world.reader)
        shared = Shared(run, world.clock)
        proposals: list[Proposal] = []
        if state.open is not None:
            proposals.append(_interrupted(stream, claim, state.items[state.open.index - 1]))
        for item in state.items:
            if state.is_approved(item) and item.key not in state.results:
                found = write_canonical(run.folder.path, item.key, wanted)
                proposals.append(deferred(claim, stream, item, found, shared, PAUSED))
                paused.append(item.key)
        return proposals

    def write() -> None:
        if shared is not None and paused:
            shared.write()

    defer_unapproved(run)
    run.submit(decide, then=write)
    _report(run)
    return {"paused": True, "deferred_result_keys": paused}


def _check_reason(run: Run, wanted: dict[str, Any], reason: str) -> None:
    from commands.plan_runs.results import validate_result
    from ledger.errors import Usage

    try:
        validate_result(wanted, run.folder.path)
    except ResultRuleError as error:
        raise Usage(
            f"--reason {reason[:60]!r}: is no reason that a result may give ({error}); say it in words"
        ) from None
    refuse_credentials(reason.encode("utf-8", "surrogateescape"), "--reason")
