"""Drift and its answer: A makes the current state the baseline, B stops; by flag, person or signature."""

from __future__ import annotations

from commands.sessions.request import Question, ask
from commands.sessions.writer import encode_json, entries_content, pinned, tree_struct
from projections import session_events as e

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from commands.sessions.drift import Drift
    from commands.sessions.request import Request
    from commands.sessions.tree import Tree
    from commands.sessions.writer import Writer


def _statement(writer: Writer, accepted: e.DriftAccepted, fields: dict[str, Any]) -> tuple[Any, bytes]:
    """The acceptance as a statement's nonce and expiry make it, and the exact bytes to sign."""
    import msgspec

    data = msgspec.structs.replace(
        accepted, answered_by="signature", nonce=fields["nonce"], expires_at=fields["expires_at"]
    )
    return data, e.approval_statement(writer.ledger.id, writer.stream, data)


def _signed(writer: Writer, request: Request, accepted: e.DriftAccepted) -> e.DriftAccepted:
    """The acceptance with a signature over exactly this state, checked before anything is recorded."""
    import msgspec

    from commands.authority.signing import required_policy, signed_data

    data, principal, signature = signed_data(
        request.signing,
        writer.ledger,
        writer.context.origin(),
        policy=required_policy(writer.ledger),
        type="drift.accepted",
        stream=writer.stream,
        make=lambda fields: _statement(writer, accepted, fields),
    )
    signed: e.DriftAccepted = msgspec.structs.replace(data, principal=principal, signature=signature)
    return signed


def _write_statement(writer: Writer, path: str, accepted: e.DriftAccepted) -> None:
    """Writes what a person signs elsewhere: the acceptance as the next start would record it."""
    import msgspec

    from commands.authority.signing import new_fields, write_statement

    following = msgspec.structs.replace(accepted, fence=writer.fence + 1)
    data, statement = _statement(writer, following, new_fields())
    write_statement(path, statement, data.expires_at)


def _refuse_unsigned(writer: Writer, accepted: e.DriftAccepted) -> None:
    from projections.engine import encode_data
    from projections.refusals import record_refusal

    record_refusal(
        writer.ledger,
        writer.context.origin(),
        type="drift.accepted",
        stream=writer.stream,
        reason="the authority policy wants a signature",
        refused=encode_data(accepted, "drift.accepted"),
        correlation=writer.stream,
    )


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
    accepted = e.DriftAccepted(writer.fence, drift.reason, by, tree_struct(tree), pinned(writer.config))
    out = request.signing.statement_out
    if not by or out is not None or (signed and not request.signs):
        aborted = e.DriftAborted(writer.fence, drift.reason)
        writer.record(lambda _state: [("drift.aborted", aborted, None)], view=False)
        if by and out is not None:
            _write_statement(writer, out, accepted)
            raise Question(
                f"{drift.text(5)}; sign {out} (ssh-keygen -Y sign -n gatebook -f KEY {out}), then start again with "
                f"--accept-external-state --statement {out} --signature {out}.sig"
            )
        if by:
            _refuse_unsigned(writer, accepted)
        wanted = " and --sign (the authority policy wants a signature)" if signed else ""
        raise Question(
            f"{drift.text(5)}; add --accept-external-state (unsafe){wanted} to take the current state as baseline"
        )
    if request.signs:
        accepted = _signed(writer, request, accepted)
    content = entries_content(tree)
    writer.record(lambda _state: [("drift.accepted", accepted, content)])
