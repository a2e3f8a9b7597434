"""The aggregate of `run/<root>-<date>`: a plan proposed and approved, one owner, items handed off in order, results, the end.

Contract page plan-runs. What the files of the run say is checked by `commands.plan_runs`; here stands what may follow what.
"""

from __future__ import annotations

from projections import lean  # noqa: F401 - before msgspec

# isort: split
from blake3 import blake3
from msgspec import Struct, field

from projections.fact import Fact, Law, digest_text
from projections.plan_run_events import (
    ADOPTED,
    ALREADY_SUBMITTED,
    EVENTS,
    INTERRUPTED,
    NOT_APPROVED,
    PAUSED,
    SKILL_MISSING,
    STATUSES,
    UNHANDED,
    Approved,
    Archived,
    Claimed,
    Deferred,
    Finalized,
    HandedOff,
    Item,
    Prepared,
    Proposed,
    Recorded,
    Recovered,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

KIND = "run"
FOLD = "run/1"
__all__ = ["EVENTS", "FOLD", "KIND", "State", "admit", "evolve", "initial"]


class Approval(Struct):
    """The approval that stands; `used` once a claim was made with it."""

    seq: int
    session_id: str
    before: str
    after: str
    decisions: dict[str, str]
    used: bool = False


class Claim(Struct):
    """Who holds the run. `keys` None until the results are prepared, and `again` when they must be prepared again."""

    seq: int
    session_id: str
    nonce: str
    digest: str
    created_at: str
    keys: list[str] | None = None
    prepared_at: str = ""
    archived: int = 0
    again: bool = False
    finalized: bool = False
    adopted: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether results are prepared for this claim as it stands."""
        return self.keys is not None and not self.again


class Handoff(Struct):
    """The one open hand-off."""

    seq: int
    index: int
    key: str
    skill: str
    attempt: int
    slot: str


class Result(Struct, omit_defaults=True):
    """What counts as an item's result; `paused`: a later hand-off may replace it. `clock` in us."""

    seq: int
    clock: int
    status: str
    digest: str
    entry: str
    entry_before: str
    reason_code: str = ""
    paused: bool = False
    kept: bool = False


class State(Struct, omit_defaults=True):
    """One run, folded. `past` holds the nonces (or marker digests) of claims that are over: their file may still lie there."""

    runs: str = ""
    digest: str = ""
    snapshot: str = ""
    proposed: int = 0
    items: list[Item] = field(default_factory=list)
    approval: Approval | None = None
    claim: Claim | None = None
    past: list[str] = field(default_factory=list)
    recovered: Recovered | None = None
    recovered_clock: int = 0
    archived: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    skills: dict[str, str] = field(default_factory=dict)
    open: Handoff | None = None
    results: dict[str, Result] = field(default_factory=dict)
    reported: int = 0
    report: str = ""
    report_clock: int = 0
    delivered: int = 0
    finalized: int = 0
    finalized_by: str = ""
    nonces: list[str] = field(default_factory=list)

    @property
    def current(self) -> str:
        """The digest that plan.json has when the file agrees with the log."""
        return self.approval.after if self.approval is not None else self.digest

    def decision(self, item: Item) -> str:
        """The item's decision, `` before an approval."""
        return "" if self.approval is None else self.approval.decisions.get(str(item.index), "")

    def skill(self, item: Item) -> str:
        """The skill that the item went to, or would go to before any sub-router is asked."""
        decision = self.decision(item)
        return self.skills.get(item.key) or (decision[5:] if decision.startswith("swap:") else item.skill)

    def is_approved(self, item: Item) -> bool:
        """Whether the item may run."""
        return self.decision(item) not in ("", "defer")

    def approved_keys(self) -> list[str]:
        """The approved and swapped items' result keys, in plan order."""
        return [item.key for item in self.items if self.is_approved(item)]

    def next_item(self) -> Item | None:
        """The first approved item without a result, or with one of `run pause`."""
        for item in self.items:
            if self.is_approved(item):
                held = self.results.get(item.key)
                if held is None or held.paused:
                    return item
        return None

    def missing(self) -> list[Item]:
        """The items that have no result."""
        return [item for item in self.items if item.key not in self.results]


def initial(_stream: str) -> State:
    """No plan yet."""
    return State()


def evolve(state: State, fact: Fact) -> State:
    """The run after one event."""
    _EVOLVE[fact.type](state, fact)
    return state


def _proposed(state: State, fact: Fact) -> None:
    data: Proposed = fact.data
    state.runs, state.digest, state.snapshot = data.runs, data.digest, data.snapshot
    state.items, state.proposed, state.approval = list(data.items), fact.seq, None
    state.finalized, state.finalized_by = 0, ""


def _approved(state: State, fact: Fact) -> None:
    data: Approved = fact.data
    state.approval = Approval(
        fact.seq, data.session_id, data.digest_before, data.digest_after, dict(data.decisions)
    )
    state.nonces.append(data.nonce)
    state.finalized, state.finalized_by = 0, ""


def _claimed(state: State, fact: Fact) -> None:
    data: Claimed = fact.data
    assert state.approval is not None
    state.approval.used = True
    state.claim = Claim(
        fact.seq, data.session_id, data.nonce, data.plan_digest, data.created_at, adopted=data.adopted
    )
    state.archived, state.attempts, state.skills, state.open, state.results = {}, {}, {}, None, {}
    state.reported, state.report, state.delivered, state.finalized = 0, "", 0, 0
    state.finalized_by = ""
    state.recovered = None


def _resumed(state: State, _fact: Fact) -> None:
    assert state.claim is not None
    state.claim.again = True


def _prepared(state: State, fact: Fact) -> None:
    data: Prepared = fact.data
    assert state.claim is not None
    state.claim.keys, state.claim.again = list(data.keys), False
    state.claim.prepared_at, state.claim.archived = data.prepared_at, data.archived


def _recovered(state: State, fact: Fact) -> None:
    data: Recovered = fact.data
    state.past.append(data.nonce or data.marker)
    state.claim, state.open, state.recovered, state.recovered_clock = None, None, data, fact.clock
    if state.approval is not None:
        state.approval.used = True


def _released(state: State, fact: Fact) -> None:
    state.past.append(fact.data.nonce)
    state.claim = None


def _handed_off(state: State, fact: Fact) -> None:
    data: HandedOff = fact.data
    state.open = Handoff(fact.seq, data.index, data.key, data.skill, data.attempt, data.slot)
    state.attempts[data.key], state.skills[data.key] = data.attempt, data.skill
    state.results.pop(data.key, None)


def _deferred(state: State, fact: Fact) -> None:
    data: Deferred = fact.data
    if data.reason == INTERRUPTED:
        state.open = None
        return
    state.results[data.key] = Result(
        fact.seq,
        fact.clock,
        data.status or "skipped",
        data.result,
        data.entry,
        data.entry_before,
        paused=data.reason == PAUSED,
        kept=data.kept,
    )


def _archived(state: State, fact: Fact) -> None:
    state.archived[fact.data.key] = fact.data.result


def _recorded(state: State, fact: Fact) -> None:
    data: Recorded = fact.data
    if data.rule == ADOPTED:
        state.results[data.key].entry = state.results[data.key].entry_before = data.entry
        return
    state.results[data.key] = Result(
        fact.seq,
        fact.clock,
        data.status,
        data.result,
        data.entry,
        data.entry_before,
        reason_code=data.reason_code,
    )
    if state.open is not None and state.open.key == data.key:
        state.open = None


def _reported(state: State, fact: Fact) -> None:
    state.reported, state.report, state.report_clock = fact.seq, fact.data.report, fact.clock


def _delivered(state: State, fact: Fact) -> None:
    state.delivered = fact.seq


def _finalized(state: State, fact: Fact) -> None:
    state.finalized, state.finalized_by = fact.seq, fact.data.session_id
    if state.claim is not None:
        state.claim.finalized = True


_EVOLVE = {
    "plan.proposed": _proposed,
    "plan.approved": _approved,
    "marker.claimed": _claimed,
    "marker.resumed": _resumed,
    "marker.prepared": _prepared,
    "marker.recovered": _recovered,
    "marker.released": _released,
    "item.handed_off": _handed_off,
    "item.deferred": _deferred,
    "result.archived": _archived,
    "result.recorded": _recorded,
    "run.reported": _reported,
    "run.delivered": _delivered,
    "run.finalized": _finalized,
}


def holder(state: State, law: Law) -> Claim | None:
    """The claim that holds the run; one from before a restore of the ledger is void."""
    return None if state.claim is None or law.is_void(state.claim.seq) else state.claim


def standing_approval(state: State, law: Law) -> Approval | None:
    """The approval that a claim may still use."""
    approval = state.approval
    return None if approval is None or approval.used or law.is_void(approval.seq) else approval


def admit(state: State, fact: Fact, law: Law) -> None:
    """Whether the event may follow (contract: each clause beside its check)."""
    _ADMIT[fact.type](state, fact, law)


def _refuse_held(claim: Claim, fact: Fact, law: Law, what: str) -> NoReturn:
    law.refuse(
        fact,
        f"{what} while a marker is held",
        f"session {claim.session_id} holds the run since {claim.created_at}",
    )


def _admit_proposed(state: State, fact: Fact, law: Law) -> None:
    data: Proposed = fact.data
    for digest in (data.runs, data.digest, data.snapshot):
        digest_text(digest, fact)
    claim = holder(state, law)
    if claim is not None:
        _refuse_held(claim, fact, law, "a plan is proposed")
    if state.runs and state.runs != data.runs:
        law.refuse(fact, "the stream belongs to another runs folder")
    if [item.index for item in data.items] != list(range(1, len(data.items) + 1)):
        law.refuse(fact, "indices are not 1 to n in order")
    if len({item.key for item in data.items}) != len(data.items):
        law.refuse(fact, "two items have one result key")
    if data.digest in (state.current, state.digest) and state.snapshot == data.snapshot and state.proposed:
        law.refuse(fact, "this plan is the current one already")


def _admit_approved(state: State, fact: Fact, law: Law) -> None:
    data: Approved = fact.data
    for digest in (data.digest_before, data.digest_after, data.text_digest):
        digest_text(digest, fact)
    digest_text(data.nonce, fact, 32)
    claim = holder(state, law)
    if claim is not None:
        _refuse_held(claim, fact, law, "a plan is approved")
    if not state.proposed or data.digest_before != state.current:
        law.refuse(
            fact,
            "the approval is for another plan",
            f"the plan is {state.current or '(none)'}, not {data.digest_before}",
        )
    if set(data.decisions) != {str(item.index) for item in state.items}:
        law.refuse(fact, "not every item is decided")
    _admit_words(state, fact, law)
    if data.nonce in state.nonces:
        law.refuse(fact, "the nonce was used before")
    from projections.authority import admit_signature

    admit_signature(fact, law, data.nonce, data.expires_at, data.principal, data.signature)


def _admit_words(state: State, fact: Fact, law: Law) -> None:
    """The one admission rule that reads content: the decisions follow from the words."""
    from projections.approval_grammar import AnySkill, parse_approval

    if fact.content is None:
        if fact.content_digest is None:
            law.refuse(fact, "an approval without words")
        law.skipped += 1
        return
    data: Approved = fact.data
    if blake3(data.nonce.encode() + fact.content).hexdigest() != data.text_digest:
        law.refuse(fact, "the digest is not that of the words")
    plan = {"items": [{"index": item.index, "bucket": item.bucket} for item in state.items]}
    try:
        found = parse_approval(fact.content.decode(), plan, skills=AnySkill())
    except UnicodeDecodeError:
        law.refuse(fact, "the words are not UTF-8")
    if found["decisions"] != data.decisions:
        law.refuse(fact, "the decisions do not follow from the words")


def _admit_claimed(state: State, fact: Fact, law: Law) -> None:
    data: Claimed = fact.data
    digest_text(data.plan_digest, fact)
    claim = holder(state, law)
    if claim is not None:
        law.refuse(
            fact,
            "another claim holds the run",
            f"session {claim.session_id} holds it since {claim.created_at}",
            record_as="marker.refused",
        )
    approval = standing_approval(state, law)
    if approval is None or (approval.session_id, approval.after) != (data.session_id, data.plan_digest):
        law.refuse(fact, "no unused approval of this plan in this session", record_as="marker.refused")
    digest_text(data.nonce, fact, 32)
    if data.nonce in state.past:
        law.refuse(fact, "the claim's nonce was used before")


def _owned(state: State, fact: Fact, law: Law, nonce: str, session: str | None = None) -> Claim:
    """The claim under which an event is written: it stands and is the writer's own (an older one is fenced out)."""
    claim = holder(state, law)
    if claim is None:
        law.refuse(fact, "nobody holds the run", "the claim is over: finalized, recovered, or never made")
    if claim.nonce != nonce or (session is not None and claim.session_id != session):
        law.refuse(
            fact,
            "the run is held under another claim",
            f"session {claim.session_id} holds it since {claim.created_at}",
        )
    if claim.finalized and fact.type != "marker.released":
        law.refuse(fact, "the run is finalized")
    return claim


def _ready(state: State, fact: Fact, law: Law, nonce: str) -> Claim:
    claim = _owned(state, fact, law, nonce)
    _prepared_once(claim, fact, law)
    return claim


def _prepared_once(claim: Claim, fact: Fact, law: Law) -> None:
    if not claim.is_ready:
        law.refuse(fact, "results are not prepared", "run `gatebook run prepare-results`")


def _admit_resumed(state: State, fact: Fact, law: Law) -> None:
    _owned(state, fact, law, fact.data.nonce, fact.data.session_id)


def _admit_prepared(state: State, fact: Fact, law: Law) -> None:
    data: Prepared = fact.data
    claim = _owned(state, fact, law, data.nonce, data.session_id)
    if list(data.keys) != state.approved_keys():
        law.refuse(fact, "the prepared keys are not the approved ones")
    if claim.keys is None and data.archived < len(state.archived):
        law.refuse(fact, "fewer results were archived than are recorded")
    if claim.keys is not None and data.archived != claim.archived:
        law.refuse(fact, "preparing again archives nothing")


def _admit_archived(state: State, fact: Fact, law: Law) -> None:
    data: Archived = fact.data
    digest_text(data.result, fact)
    claim = _owned(state, fact, law, data.nonce)
    if claim.keys is not None:
        law.refuse(fact, "results are prepared already")
    if data.key not in state.approved_keys() or data.key in state.archived:
        law.refuse(fact, "only an approved item's result is archived, once")
    if data.name != f"pre-{claim.digest[:20]}.json":
        law.refuse(fact, "the archive has another name")


def _item(state: State, fact: Fact, law: Law) -> Item:
    index = fact.data.index
    if not 1 <= index <= len(state.items) or state.items[index - 1].key != fact.data.key:
        law.refuse(fact, "no such item in the plan")
    found: Item = state.items[index - 1]
    return found


def _admit_handed_off(state: State, fact: Fact, law: Law) -> None:
    data: HandedOff = fact.data
    _ready(state, fact, law, data.nonce)
    if data.slot:
        digest_text(data.slot, fact)
    item = _item(state, fact, law)
    if data.receipt_id:
        issued = law.state(f"receipt/{data.receipt_id}").issued
        if issued is None or issued.course_id != item.course_id:
            law.refuse(fact, "the log has no such receipt for this item")
    if state.open is not None:
        law.refuse(
            fact, "another hand-off is open", f"{state.open.key} was handed off by event {state.open.seq}"
        )
    expected = state.next_item()
    if expected is None or expected.index != item.index:
        law.refuse(
            fact, "items are handed off in order", f"next is {expected.key if expected else 'nothing'}"
        )
    if data.attempt != state.attempts.get(data.key, 0) + 1:
        law.refuse(fact, "the attempt has another number")
    # A second attempt exists only after an interruption or a pause: any other way the item has its result.
    decision = state.decision(item)
    if decision.startswith("swap:") and data.skill != decision[5:]:
        law.refuse(fact, "the swap names another skill")


def _admit_deferred(state: State, fact: Fact, law: Law) -> None:
    data: Deferred = fact.data
    _ready(state, fact, law, data.nonce)
    item = _item(state, fact, law)
    if data.reason == INTERRUPTED:
        if state.open is None or state.open.key != data.key or data.result or data.entry or data.status:
            law.refuse(fact, "only the open hand-off can be interrupted")
        return
    digest_text(data.result, fact)
    if data.status and not (data.kept and data.status in STATUSES):
        law.refuse(fact, "unknown status")
    if data.entry or not data.kept:
        digest_text(data.entry, fact)
    if data.key in state.results:
        law.refuse(fact, "the item has a result")
    if data.reason == NOT_APPROVED:
        if state.is_approved(item):
            law.refuse(fact, "the item is approved")
    elif data.reason not in (PAUSED, SKILL_MISSING) or not state.is_approved(item) or data.kept:
        law.refuse(fact, "unknown reason")
    elif state.open is not None:
        law.refuse(fact, "a hand-off is open")
    elif data.reason == SKILL_MISSING and all(held.status != "error" for held in state.results.values()):
        law.refuse(fact, "no item failed for a missing skill")


def _admit_recorded(state: State, fact: Fact, law: Law) -> None:
    data: Recorded = fact.data
    item = _item(state, fact, law)
    digest_text(data.result, fact)
    digest_text(data.entry, fact)
    if data.status not in STATUSES:
        law.refuse(fact, "unknown status")
    if data.rule == ADOPTED:
        _admit_adopted(state, fact, law)
        return
    _ready(state, fact, law, data.nonce)
    if not state.is_approved(item):
        law.refuse(fact, "the item is not approved")
    if state.open is None and data.status == "error" and data.rule in UNHANDED:
        if state.next_item() != item:
            law.refuse(fact, "items are handed off in order")
    elif state.open is None or state.open.key != data.key:
        law.refuse(fact, "a result is accepted only for the open hand-off")
    elif data.result in (state.archived.get(data.key), state.open.slot):
        law.refuse(fact, "the result is one of an earlier run")
    _admit_claims(data, fact, law)
    if data.receipt_id:
        _admit_submission(item, fact, law)


def _admit_claims(data: Recorded, fact: Fact, law: Law) -> None:
    """What a result's status brings: a draft its evidence, a submission its receipt or `already_submitted`, a broken rule an error."""
    if data.rule and data.status != "error":
        law.refuse(fact, "a result that breaks a rule is an error")
    if data.status == "draft_ready":
        digest_text(data.draft, fact)
        digest_text(data.verification, fact)
    elif data.draft or data.verification:
        law.refuse(fact, "only a ready draft has evidence")
    was_found = data.status == "submitted" and data.reason_code == ALREADY_SUBMITTED
    if bool(data.receipt_id) != (data.status == "submitted" and not was_found):
        law.refuse(fact, "a submission rests on a receipt, or was found")


def _admit_adopted(state: State, fact: Fact, law: Law) -> None:
    """The shared file's entry was changed by another tool and taken over (`doctor --adopt`); the result is the same."""
    data: Recorded = fact.data
    held = state.results.get(data.key)
    if (
        held is None
        or (held.digest, held.status) != (data.result, data.status)
        or data.entry_before != data.entry
        or data.reason_code != held.reason_code
        or data.draft
        or data.verification
        or data.receipt_id
    ):
        law.refuse(fact, "only the entry of a recorded result is adopted")


def _admit_submission(item: Item, fact: Fact, law: Law) -> None:
    receipt = law.state(f"receipt/{fact.data.receipt_id}")
    if not receipt.submits(item.course_id, item.assignment_id):
        law.refuse(fact, "no consumption in the log submits this item")


def _all_done(state: State, fact: Fact, law: Law) -> None:
    missing = state.missing()
    if missing:
        law.refuse(fact, "an item has no result", f"item {missing[0].index} ({missing[0].key}) has none")


def _admit_reported(state: State, fact: Fact, law: Law) -> None:
    digest_text(fact.data.report, fact)
    _standing(state, fact, law)
    _all_done(state, fact, law)


def _standing(state: State, fact: Fact, law: Law) -> None:
    """The run is somebody's, and prepared: who may write for it is asked before the event, which names no claim."""
    claim = holder(state, law)
    if claim is None or claim.finalized:
        law.refuse(fact, "nobody holds the run", "the claim is over: finalized, recovered, or never made")
    _prepared_once(claim, fact, law)


def _admit_delivered(state: State, fact: Fact, law: Law) -> None:
    _standing(state, fact, law)
    for key, digest in fact.data.drafts.items():
        digest_text(digest, fact)
        if key not in state.results or state.results[key].status != "draft_ready":
            law.refuse(fact, "only a ready draft is delivered")


def _admit_finalized(state: State, fact: Fact, law: Law) -> None:
    data: Finalized = fact.data
    digest_text(data.report, fact)
    claim = _owned(state, fact, law, data.nonce, data.session_id)
    _prepared_once(claim, fact, law)
    if data.plan_digest != claim.digest:
        law.refuse(fact, "the plan is not the one that was claimed")
    _all_done(state, fact, law)
    if state.reported <= max((result.seq for result in state.results.values()), default=0) and state.items:
        law.refuse(fact, "the report is older than a result", "run `gatebook run report`")
    counts: dict[str, int] = {}
    for result in state.results.values():
        counts[result.status] = counts.get(result.status, 0) + 1
    if counts != data.statuses:
        law.refuse(fact, "the counts are not those of the results")


def _admit_released(state: State, fact: Fact, law: Law) -> None:
    claim = _owned(state, fact, law, fact.data.nonce, fact.data.session_id)
    if not claim.finalized:
        law.refuse(fact, "only a finalized run is released")


def _admit_recovered(state: State, fact: Fact, law: Law) -> None:
    data: Recovered = fact.data
    digest_text(data.marker, fact)
    digest_text(data.plan_digest, fact)
    if state.claim is not None and (state.claim.nonce, state.claim.session_id) != (
        data.nonce,
        data.session_id,
    ):
        law.refuse(fact, "the marker is not the claim's")
    if state.claim is not None and state.claim.digest != data.plan_digest:
        law.refuse(fact, "the plan is not the one that was claimed")
    if (data.nonce or data.marker) in state.past:
        law.refuse(fact, "the marker was recovered before")
    for digest in (*data.kept.values(), *data.entries.values()):
        digest_text(digest, fact)
    if state.claim is not None:
        for item in state.items:
            if item.key in data.kept and state.is_approved(item):
                _admit_kept(state, item.key, data.kept[item.key], fact, law)
    named = sorted([*data.kept, *data.deferred])
    if named != sorted(item.key for item in state.items) or sorted(data.entries) != named:
        law.refuse(fact, "a recovery closes every item once")


def _admit_kept(state: State, key: str, digest: str, fact: Fact, law: Law) -> None:
    """An approved item's result is evidence only as it was recorded, or when the open hand-off left it."""
    held, handed = state.results.get(key), state.open
    is_recorded = held is not None and held.digest == digest
    is_left = handed is not None and handed.key == key and digest != handed.slot
    if not (is_recorded or is_left) or digest == state.archived.get(key):
        law.refuse(fact, "a result that no hand-off left is no evidence")


_ADMIT = {
    "plan.proposed": _admit_proposed,
    "plan.approved": _admit_approved,
    "marker.claimed": _admit_claimed,
    "marker.resumed": _admit_resumed,
    "marker.prepared": _admit_prepared,
    "marker.recovered": _admit_recovered,
    "marker.released": _admit_released,
    "item.handed_off": _admit_handed_off,
    "item.deferred": _admit_deferred,
    "result.archived": _admit_archived,
    "result.recorded": _admit_recorded,
    "run.reported": _admit_reported,
    "run.delivered": _admit_delivered,
    "run.finalized": _admit_finalized,
}


def __getattr__(name: str) -> Any:
    """VIEWS, rows, STATES and voided are loaded when a view is made: no step of a run needs them."""
    if name in ("VIEWS", "STATES", "rows", "voided"):
        from projections import plan_run_views

        return getattr(plan_run_views, name)
    raise AttributeError(name)
