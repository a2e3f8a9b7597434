"""Drift and its answer: A makes the current state the baseline, B stops; by flag, person or signature."""

from __future__ import annotations

import os

from commands.sessions.request import Question, ask
from commands.sessions.writer import encode_json, entries_content, pinned, tree_struct
from projections import session_events as e

TYPE_CHECKING = False
if TYPE_CHECKING:
    from commands.sessions.drift import Drift
    from commands.sessions.request import Request
    from commands.sessions.tree import Tree
    from commands.sessions.writer import Writer


def _signed(writer: Writer, request: Request, accepted: e.DriftAccepted) -> e.DriftAccepted:
    """The acceptance with a signature over exactly this state, made and checked before anything is recorded."""
    import msgspec

    from commands.authority.signing import check, expiry, required_policy, sign

    ledger, origin = writer.ledger, writer.context.origin()
    policy = required_policy(ledger)
    data = msgspec.structs.replace(
        accepted, answered_by="signature", nonce=os.urandom(16).hex(), expires_at=expiry()
    )
    statement = e.approval_statement(ledger.id, writer.stream, data)
    principal, signature = sign(statement, policy, request.key)
    check(
        ledger, origin, policy, principal, statement, signature, type="drift.accepted", stream=writer.stream
    )
    signed: e.DriftAccepted = msgspec.structs.replace(data, principal=principal, signature=signature)
    return signed


def answer_drift(writer: Writer, request: Request, drift: Drift, tree: Tree) -> None:
    """Record the drift and its answer: A makes the current state the baseline, B stops (exit 4)."""
    from commands.authority.signing import policy_of
    from projections.authority import required

    details = encode_json({"details": list(drift.details[:1000])})
    found = e.DriftDetected(writer.fence, drift.reason, tree_struct(tree))
    writer.record(lambda _state: [("drift.detected", found, details)], view=False)
    signed = required(policy_of(writer.ledger), "drift.accepted")
    by = "flag" if request.accept_external_state else ""
    if not by and not request.handsfree:
        answer = ask(
            f"{drift.text()}\n(A) accept the current state, all stages are cleared  (B) abort", ("a", "b")
        )
        by = "person" if answer == "a" else ""
    if not by or (signed and not request.sign):
        aborted = e.DriftAborted(writer.fence, drift.reason)
        writer.record(lambda _state: [("drift.aborted", aborted, None)], view=False)
        wanted = " and --sign (the authority policy wants a signature)" if signed else ""
        raise Question(
            f"{drift.text(5)}; add --accept-external-state (unsafe){wanted} to take the current state as baseline"
        )
    accepted = e.DriftAccepted(writer.fence, drift.reason, by, tree_struct(tree), pinned(writer.config))
    if request.sign:
        accepted = _signed(writer, request, accepted)
    content = entries_content(tree)
    writer.record(lambda _state: [("drift.accepted", accepted, content)])
