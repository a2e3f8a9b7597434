"""The aggregate of `receipt/<id>`: authority for one outside mutation, issued, used, closed (contract page plan-runs, Receipts).

A consumption's own admission is where single use is decided: of many processes, the first to record it has it.
"""

from __future__ import annotations

from projections import lean  # noqa: F401 - before msgspec

# isort: split
from msgspec import Struct, field
from msgspec.structs import asdict, replace

from projections.fact import Fact, Law, digest_text
from projections.receipt_form import issued_digest
from projections.receipt_rules import (
    ACTIONS,
    AGENTS,
    FUTURE_ALLOWANCE_US,
    VERSION,
    ActionRule,
    actions_fault,
    canonical_origin,
    is_label,
    is_terminal,
    needs_evidence,
    scope_fault,
    usage_fault,
)
from projections.times import parse_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

KIND = "receipt"
FOLD = "receipt/2"


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    """What names the authority: a label, a salt (hex), SHA-256 of salt and words (hex). Never the words."""

    label: str
    salt: str
    sha256: str


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """An action that the user's config adds: how often (0: as often as needed), and whether it ends the receipt."""

    action: str
    limit: int
    terminal: bool


class Issued(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A whole receipt, its Ed25519 signature (hex) included. `principal` and `approval_signature` (SSHSIG) as the authority policy asks."""

    receipt_id: str
    version: int
    issued_at: str
    expires_at: str
    origin: str
    course_id: str
    target_type: str
    target_id: str
    actions: tuple[str, ...]
    session_id: str
    user: str
    authority_reference: Reference
    nonce: str
    signature: str
    synthetic_qa: bool = False
    parent_id: str = ""
    rules: tuple[Rule, ...] = ()
    principal: str = ""
    approval_signature: str = ""


class Consumed(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One use. `receipt` is BLAKE3 of the receipt as presented; `verification` and `draft` of the evidence."""

    action: str
    receipt: str
    count: int
    terminal: bool
    origin: str
    course_id: str
    target_type: str
    target_id: str
    session_id: str
    user: str
    verification: str = ""
    draft: str = ""


class Finalized(Struct, frozen=True, forbid_unknown_fields=True):
    """A receipt with a retake was closed early; the reason is content."""

    receipt_id: str


class Revoked(Struct, frozen=True, forbid_unknown_fields=True):
    """A receipt was taken back; the reason is content."""

    receipt_id: str


EVENTS = {
    "receipt.issued": Issued,
    "receipt.consumed": Consumed,
    "receipt.finalized": Finalized,
    "receipt.revoked": Revoked,
}


class State(Struct, omit_defaults=True):
    """A receipt and its use. `closed` says what ended it; `handed_in` and `handed_in_at` (us) the last use that handed in."""

    issued: Issued | None = None
    seq: int = 0
    uses: dict[str, int] = field(default_factory=dict)
    closed: str = ""
    handed_in: str = ""
    handed_in_at: int = 0

    def rules(self) -> Mapping[str, ActionRule]:
        """The actions this receipt knows: the common ones and those of its own."""
        own = () if self.issued is None else self.issued.rules
        if not own:
            return ACTIONS
        return {**ACTIONS, **{rule.action: ActionRule(rule.limit, terminal=rule.terminal) for rule in own}}

    def submits(self, course_id: str, assignment_id: str) -> bool:
        """Whether a use of this receipt handed in that item (a quiz has an id of its own)."""
        issued = self.issued
        if issued is None or not self.handed_in or issued.course_id != course_id:
            return False
        return issued.target_type == "quiz" or issued.target_id == assignment_id


def initial(_stream: str) -> State:
    """Not issued."""
    return State()


def evolve(state: State, fact: Fact) -> State:
    """The receipt after one event."""
    data = fact.data
    if isinstance(data, Issued):
        state.issued, state.seq = data, fact.seq
    elif isinstance(data, Consumed):
        state.uses[data.action] = data.count
        if data.terminal:
            state.closed = f"{data.action} ended it at event {fact.seq}"
        if data.terminal or data.action == "quiz.complete":  # a complete hands in, a retake left open or not
            state.handed_in, state.handed_in_at = data.action, fact.clock
    elif isinstance(data, Finalized):
        state.closed = f"finalized at event {fact.seq}"
    else:
        state.closed = f"revoked at event {fact.seq}"
    return state


def admit(state: State, fact: Fact, law: Law) -> None:
    """Issued once and well formed; used within its scope, time and count; nothing after its end."""
    data = fact.data
    if isinstance(data, Issued):
        _admit_issued(state, fact, law)
        return
    if state.issued is None:
        law.refuse(fact, "no such receipt", record_as="receipt.denied")
    if isinstance(data, Consumed):
        _admit_consumed(state, state.issued, fact, law)
        return
    if data.receipt_id != state.issued.receipt_id:
        law.refuse(fact, "the receipt is not the stream's")
    if state.closed:
        law.refuse(fact, "the receipt is closed already", f"the receipt is closed: {state.closed}")
    if isinstance(data, Finalized) and (
        "quiz.retake" not in state.issued.actions or not state.uses.get("quiz.complete")
    ):
        law.refuse(fact, "only a receipt with a retake is finalized, after a recorded complete")


def _admit_issued(state: State, fact: Fact, law: Law) -> None:
    data: Issued = fact.data
    if state.issued is not None:
        law.refuse(fact, "the receipt was issued before")
    digest_text(data.receipt_id, fact, 32)
    digest_text(data.nonce, fact, 32)
    digest_text(data.signature, fact, 128)
    digest_text(data.authority_reference.salt, fact, 32)
    digest_text(data.authority_reference.sha256, fact)
    if fact.stream != f"receipt/{data.receipt_id}":
        law.refuse(fact, "the receipt is not the stream's")
    fault = issue_fault(
        data,
        {**ACTIONS, **{rule.action: ActionRule(rule.limit, terminal=rule.terminal) for rule in data.rules}},
    )
    if fault is not None:
        law.refuse(fact, "the receipt is malformed", fault)
    if any(rule.action in ACTIONS or rule.limit < 0 for rule in data.rules):
        law.refuse(fact, "an action has a second rule")
    if parse_time(data.issued_at) - fact.clock > FUTURE_ALLOWANCE_US or fact.clock >= parse_time(
        data.expires_at
    ):
        law.refuse(fact, "the receipt is not valid now")
    if data.parent_id:
        _admit_child(data, fact, law)
        return
    from projections.authority import admit_signature, required

    # A signature that no policy asks for is no person.
    if not required(law.state("ledger").policy, fact.type) and fact.actor.partition(":")[0] in AGENTS:
        law.refuse(fact, "an agent session issues no receipt")

    admit_signature(
        fact,
        law,
        data.nonce,
        data.expires_at,
        data.principal,
        data.approval_signature,
        made_at=data.issued_at,
    )


def issue_fault(data: Issued, rules: dict[str, ActionRule]) -> str | None:
    """What is wrong with a receipt's form, or None."""
    if data.version != VERSION:
        return f"version {data.version} is not {VERSION}"
    try:
        if canonical_origin(data.origin) != data.origin:
            return "the origin is not in its one spelling"
    except ValueError as error:
        return str(error)
    if parse_time(data.expires_at) <= parse_time(data.issued_at):
        return "it expires before it is issued"
    if not is_label(data.authority_reference.label):
        return "the authority's label is not [A-Za-z0-9._:/-]{1,120}"
    if not (data.course_id and data.target_id and data.session_id and data.user):
        return "course, target, session and user must not be empty"
    from projections.receipt_rules import is_loopback

    if data.synthetic_qa and not is_loopback(data.origin):
        return "a synthetic_qa receipt is for loopback origins only"
    return actions_fault(data.target_type, list(data.actions), rules)


def _admit_child(data: Issued, fact: Fact, law: Law) -> None:
    parent: State = law.state(f"receipt/{data.parent_id}")
    issued = parent.issued
    if issued is None or issued.target_type != "automation_template":
        law.refuse(fact, "only an automation_template receipt is delegated")
    if parent.closed or law.is_void(parent.seq):
        law.refuse(
            fact, "the parent is closed", f"the parent is closed: {parent.closed or 'voided by a restore'}"
        )
    if data.target_type == "automation_template":
        law.refuse(fact, "a child has a concrete target")
    if not set(data.actions) <= set(issued.actions):
        law.refuse(fact, "a child has no more actions than its parent")
    if parse_time(data.expires_at) > parse_time(issued.expires_at) or fact.clock >= parse_time(
        issued.expires_at
    ):
        law.refuse(fact, "a child never outlives its parent")
    if (data.origin, data.course_id, data.user, data.synthetic_qa) != (
        issued.origin,
        issued.course_id,
        issued.user,
        issued.synthetic_qa,
    ):
        law.refuse(fact, "a child has its parent's origin, course and user")
    if data.authority_reference != issued.authority_reference:
        law.refuse(fact, "a child has its parent's authority")
    if not set(data.rules) <= set(issued.rules):
        law.refuse(fact, "a child has no more actions than its parent")


def _admit_consumed(state: State, issued: Issued, fact: Fact, law: Law) -> None:
    data: Consumed = fact.data
    digest_text(data.receipt, fact)
    if law.is_void(state.seq):
        law.refuse(
            fact, "usage", "the receipt was voided when the ledger was restored", record_as="receipt.denied"
        )
    fault = consume_fault(state, issued, data, fact.clock)
    if fault is not None:
        law.refuse(fact, fault.partition(":")[0], fault, record_as="receipt.denied")
    if issued.parent_id and law.state(f"receipt/{issued.parent_id}").closed:
        law.refuse(fact, "usage", "the receipt's parent was closed", record_as="receipt.denied")
    if needs_evidence(data.action):
        if not data.verification:
            law.refuse(fact, "verification_missing", record_as="receipt.denied")
        digest_text(data.verification, fact)
    if data.draft:
        digest_text(data.draft, fact)
    if data.receipt != issued_digest(issued):
        law.refuse(fact, "the digest is not that of the receipt that was issued")
    rules = state.rules()
    if data.count != state.uses.get(data.action, 0) + 1:
        law.refuse(fact, "the count is not the next")
    if data.terminal != is_terminal(data.action, state.uses, list(issued.actions), rules):
        law.refuse(fact, "terminal is not what the rules give")


def consume_fault(state: State, issued: Issued, request: Consumed, clock: int) -> str | None:
    """The first fault from origin to usage, `name: detail`, or None (contract: Validation, in this order)."""
    receipt = asdict(issued)
    asked = {
        "origin": request.origin,
        "course_id": request.course_id,
        "target_type": request.target_type,
        "target_id": request.target_id,
        "action": request.action,
        "session_id": request.session_id,
        "user": request.user,
    }
    fault = scope_fault(receipt, asked, clock, (parse_time(issued.issued_at), parse_time(issued.expires_at)))
    if fault is not None:
        return fault
    used = usage_fault(
        request.action, state.uses, list(issued.actions), closed=state.closed or None, rules=state.rules()
    )
    return None if used is None else f"usage: {used}"


VIEWS = {
    "receipts": {
        "receipt_id": str,
        "issued_seq": int,
        "issued_at": str,
        "expires_at": str,
        "origin": str,
        "course_id": str,
        "target_type": str,
        "target_id": str,
        "actions": str,
        "session_id": str,
        "user": str,
        "parent_id": str,
        "principal": str,
        "uses": int,
        "closed": str,
    },
    "consumptions": {"receipt_id": str, "action": str, "count": int},
}


def show(_stream: str, state: State) -> dict[str, object] | None:
    """A receipt as `state receipts` prints it, without its signatures."""
    issued = state.issued
    if issued is None:
        return None
    return {
        "receipt_id": issued.receipt_id,
        "issued_seq": state.seq,
        "issued_at": issued.issued_at,
        "expires_at": issued.expires_at,
        "origin": issued.origin,
        "course_id": issued.course_id,
        "target_type": issued.target_type,
        "target_id": issued.target_id,
        "actions": list(issued.actions),
        "session_id": issued.session_id,
        "user": issued.user,
        "parent_id": issued.parent_id or None,
        "principal": issued.principal or None,
        "uses": dict(state.uses),
        "closed": state.closed or None,
    }


def voided(state: State, before: int) -> State:
    """The receipt after a restore at event `before`: one from before it that was open is closed."""
    if state.issued is None or state.closed or state.seq >= before:
        return state
    return replace(state, closed=f"voided by the restore at event {before}")


STATES = {"receipts": show}


def rows(stream: str, state: State) -> dict[str, list[dict[str, object]]]:
    """The rows of `receipts` and `consumptions`."""
    shown = show(stream, state)
    if shown is None:
        return {"receipts": [], "consumptions": []}
    uses = [
        {"receipt_id": shown["receipt_id"], "action": action, "count": count}
        for action, count in state.uses.items()
    ]
    row = {
        **shown,
        "actions": " ".join(state.issued.actions if state.issued else ()),
        "uses": sum(state.uses.values()),
    }
    return {"receipts": [row], "consumptions": uses}
