"""Using a receipt: the checks in the contract's order, and consumption in one write transaction.

`require_mutation_authorization` is the Python call for the mutation boundary; `receipt check|consume` are the same.
"""

from __future__ import annotations

import os

from commands.plan_runs.owner import current_authorization_session
from commands.plan_runs.receipts import local_user, read_receipt
from ledger.errors import GatebookError, Invalid, Refused
from projections.receipt_form import file_fields, receipt_digest, signature_holds
from projections.receipt_rules import VERSION, canonical_origin, is_terminal, needs_evidence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ledger.access import Ledger
    from ledger.event import Origin
    from projections.engine import Proposal, World
    from projections.receipt import Consumed, State


class DeniedError(Refused):
    """A receipt does not allow what was asked; `name` is the check that failed, the message begins with it."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault)
        self.name = fault.partition(":")[0]


class Request:
    """What is to be done: origin, course, target, action, session, and the item's folder for its evidence."""

    __slots__ = (
        "action",
        "course_id",
        "origin",
        "session_id",
        "target_id",
        "target_type",
        "user",
        "work_dir",
    )

    def __init__(
        self,
        origin: str,
        course_id: str,
        target_type: str,
        target_id: str,
        action: str,
        session_id: str | None = None,
        work_dir: str | None = None,
    ) -> None:
        try:
            self.origin = canonical_origin(origin)
        except ValueError:
            self.origin = origin
        self.course_id = course_id
        self.target_type = target_type
        self.target_id = target_id
        self.action = action
        self.user = local_user()
        self.work_dir = work_dir
        try:
            self.session_id = current_authorization_session(session_id)
        except Refused:
            # No reliable id: the receipt's session cannot be this one, and the check of the session says so.
            self.session_id = ""


class Outcome:
    """What a check or consumption came to."""

    __slots__ = ("count", "seq", "terminal")

    def __init__(self, count: int, *, terminal: bool, seq: int | None) -> None:
        self.count = count
        self.terminal = terminal
        self.seq = seq


def presented_fault(presented: dict[str, Any], state: State, keys: list[str]) -> str | None:
    """The fault of the receipt as presented, before its scope: its version, its signature, its equality with the log."""
    if presented.get("version") != VERSION or isinstance(presented.get("version"), bool):
        return f"version: the receipt has version {presented.get('version')!r}, known is {VERSION}"
    if state.issued is None:
        return "signature: this ledger issued no such receipt"
    recorded = file_fields(state.issued)
    different = [name for name in recorded if presented.get(name) != recorded[name]] + [
        name for name in presented if name not in recorded
    ]
    if different:
        return f"signature: {different[0]} differs from the receipt that was issued"
    if not signature_holds(keys, presented):
        return "signature: it does not hold under the ledger's receipt key"
    return None


def evidence(request: Request) -> tuple[str, str, str]:
    """(BLAKE3 of verification.log, of the draft or ``, fault or ``) for an action that needs them."""
    from blake3 import blake3

    from commands.plan_runs.results import ResultRuleError, read_verification_log
    from commands.plan_runs.rooted import read_file

    if not needs_evidence(request.action):
        return "", "", ""
    if request.work_dir is None:
        return "", "", "verification_missing: give --work-dir, the folder with verification.log"
    work_dir = os.path.realpath(request.work_dir)
    result, draft = _draft_of(work_dir)
    try:
        _, log = read_verification_log(result, work_dir, draft)
        content = (
            blake3(read_file(os.path.dirname(work_dir), draft, limit=64 << 20)).hexdigest() if draft else ""
        )
    except (ResultRuleError, Invalid, Refused) as error:
        return "", "", f"verification_missing: {error}"
    return blake3(log).hexdigest(), content, ""


def _draft_of(work_dir: str) -> tuple[dict[str, Any], str | None]:
    """The result that lies there (or an empty one) and its draft's name below the run, None where there is none."""
    from commands.plan_runs.results import read_result

    run_dir, key = os.path.split(work_dir)
    try:
        read = read_result(run_dir, key)
    except (Invalid, Refused):
        read = None
    result = read[0] if read is not None and isinstance(read[0], dict) else {}
    path = result.get("draft_path")
    if not isinstance(path, str):
        drafts = sorted(name for name in _names(work_dir) if name.startswith("draft."))
        return result, f"{key}/{drafts[0]}" if len(drafts) == 1 else None
    place = os.path.normpath(os.path.join(work_dir, path))
    return result, place[len(run_dir) + 1 :] if place.startswith(f"{run_dir}/") else None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _consumed(presented: dict[str, Any], request: Request, state: State, proof: tuple[str, str]) -> Consumed:
    from projections.receipt import Consumed

    issued = state.issued
    assert issued is not None
    known = request.action in issued.actions
    return Consumed(
        request.action,
        receipt_digest(presented),
        state.uses.get(request.action, 0) + 1,
        known and is_terminal(request.action, state.uses, list(issued.actions), state.rules()),
        request.origin,
        request.course_id,
        request.target_type,
        request.target_id,
        request.session_id,
        request.user,
        proof[0],
        proof[1],
    )


def _judge(
    world: World, presented: dict[str, Any], request: Request, proof: tuple[str, str, str]
) -> Consumed:
    """The consumption that may be recorded now; `DeniedError` for the first check that fails."""
    from projections.receipt import consume_fault

    receipt_id = presented.get("receipt_id")
    state: State = world.state(stream_of_receipt(receipt_id))
    fault = presented_fault(presented, state, world.state("ledger").receipt_keys)
    if fault is not None:
        raise DeniedError(fault)
    issued = state.issued
    assert issued is not None
    data = _consumed(presented, request, state, proof[:2])
    fault = consume_fault(state, issued, data, world.clock)
    if fault is None and state.seq < world.void_before:
        fault = "usage: the receipt was voided when the ledger was restored"
    if fault is None and issued.parent_id and world.state(stream_of_receipt(issued.parent_id)).closed:
        fault = "usage: the receipt's parent was closed"
    fault = fault or proof[2] or None
    if fault is not None:
        raise DeniedError(fault)
    return data


def stream_of_receipt(receipt_id: object) -> str:
    """The stream of a receipt id; one that is no id leads to a stream that never has an event."""
    if isinstance(receipt_id, str) and len(receipt_id) == 32 and not receipt_id.strip("0123456789abcdef"):
        return f"receipt/{receipt_id}"
    return "receipt/none"


def check_receipt(ledger: Ledger, path: str, request: Request) -> tuple[dict[str, Any], Outcome]:
    """Whether the receipt would allow the request now; nothing is recorded. `DeniedError` when not."""
    from projections.engine import World

    presented = read_receipt(path)
    data = _judge(World(ledger.store.reader()), presented, request, evidence(request))
    return presented, Outcome(data.count, terminal=data.terminal, seq=None)


def consume_receipt(
    ledger: Ledger, origin: Origin, path: str, request: Request
) -> tuple[dict[str, Any], Outcome]:
    """Checks and records one use in one write transaction; `DeniedError` (recorded as `receipt.denied`) when not allowed.

    There is no idempotency key: what was consumed and not reported is spent.
    """
    from projections.engine import Proposal, submit
    from projections.fact import Unlawful

    presented = read_receipt(path)
    proof = evidence(request)
    data: Consumed | None = None

    def decide(world: World) -> list[Proposal]:
        nonlocal data
        data = _judge(world, presented, request, proof)
        stream = stream_of_receipt(presented["receipt_id"])
        return [
            Proposal(stream, "receipt.consumed", data, correlation=stream, causation=world.state(stream).seq)
        ]

    try:
        done = submit(ledger, origin, decide)
    except Unlawful as error:
        raise DeniedError(f"{error.reason}: {error}") from None
    except DeniedError as error:
        _record_denied(ledger, origin, presented, request, error)
        raise
    assert data is not None
    return presented, Outcome(data.count, terminal=data.terminal, seq=done.events[0].seq)


def _record_denied(
    ledger: Ledger, origin: Origin, presented: dict[str, Any], request: Request, error: DeniedError
) -> None:
    from projections.refusals import record_refusal

    refused = f"{presented.get('receipt_id')} {request.action} {request.target_id}".encode("utf-8", "replace")
    stream = stream_of_receipt(presented.get("receipt_id"))
    record_refusal(
        ledger,
        origin,
        type="receipt.consumed",
        stream=stream,
        reason=error.name,
        refused=refused,
        as_type="receipt.denied",
        correlation=stream,
    )


def checked_for_hand_off(ledger: Ledger, path: str, session: str) -> dict[str, Any]:
    """A receipt that may be passed to the item it is for: whole, unspent, of this session and user. `DeniedError` if not."""
    from projections.engine import World
    from projections.times import parse_time

    presented = read_receipt(path)
    world = World(ledger.store.reader())
    state: State = world.state(stream_of_receipt(presented.get("receipt_id")))
    fault = presented_fault(presented, state, world.state("ledger").receipt_keys)
    if fault is not None:
        raise DeniedError(fault)
    issued = state.issued
    assert issued is not None
    if issued.target_type == "automation_template":
        raise DeniedError("target: an automation_template is delegated only, never consumed")
    if (issued.session_id, issued.user) != (session, local_user()):
        raise DeniedError(f"session: the receipt is for {issued.session_id} and {issued.user}")
    if world.clock >= parse_time(issued.expires_at):
        raise DeniedError(f"expired: the receipt was valid until {issued.expires_at}")
    if state.closed or state.seq < world.void_before:
        raise DeniedError(f"usage: the receipt is spent: {state.closed or 'voided by a restore'}")
    if issued.parent_id and world.state(stream_of_receipt(issued.parent_id)).closed:
        raise DeniedError("usage: the receipt's parent was closed")
    return {
        "path": os.path.abspath(path),
        "receipt_id": issued.receipt_id,
        "origin": issued.origin,
        "course_id": issued.course_id,
        "target_type": issued.target_type,
        "target_id": issued.target_id,
        "actions": list(issued.actions),
        "expires_at": issued.expires_at,
    }


def require_mutation_authorization(
    receipt: str,
    *,
    origin: str,
    course_id: str,
    target_type: str,
    target_id: str,
    action: str,
    session_id: str | None = None,
    work_dir: str | None = None,
    ledger: str | None = None,
) -> dict[str, Any]:
    """Consumes the receipt (a path) for exactly this action, immediately before it is done; the same as `receipt consume`.

    Returns `allowed`, `receipt_id`, `action`, `count`, `terminal`, `seq`. Raises `Refused` (with the first check
    that failed) when it is not allowed: then the action must not be done. `ledger` as for `--ledger`.
    """
    from commands.context import Context

    context = Context("require_mutation_authorization")
    context.ledger_given = ledger
    try:
        request = Request(origin, str(course_id), target_type, str(target_id), action, session_id, work_dir)
        presented, outcome = consume_receipt(context.ledger(), context.origin(), receipt, request)
    except GatebookError as error:
        if isinstance(error, Refused):
            raise
        raise Refused(str(error)) from None
    finally:
        context.close()
    return reply(presented, request, outcome, None)


def reply(
    presented: dict[str, Any], request: Request, outcome: Outcome | None, fault: str | None
) -> dict[str, Any]:
    """The document of `receipt check|consume`."""
    return {
        "allowed": fault is None,
        "reason": fault,
        "receipt_id": presented.get("receipt_id"),
        "action": request.action,
        "count": outcome.count if outcome is not None else None,
        "terminal": outcome.terminal if outcome is not None else None,
        "seq": outcome.seq if outcome is not None else None,
    }
