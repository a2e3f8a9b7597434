"""`dispatch approve`: a person's yes to something that a request says needs one; signed where the policy asks for it."""

from __future__ import annotations

import os

from commands.context import Context, emit
from commands.dispatch.record import Record, stream_of
from commands.dispatch.request import identity, parse_request, read_request
from commands.dispatch.steps import told
from commands.flags import Args, Command, Flag, Word
from ledger.errors import Refused
from projections.dispatch import approval_statement
from projections.dispatch_events import REQUEST, RUN, Approved, mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TYPE = "dispatch.approved"


def _requested(args: Args, context: Context) -> tuple[str, list[str], Record]:
    """The request's identity, what it says needs approval, and its stream: from the file, or from what was opened."""
    if os.path.exists(args.request) or args.request == "-":
        document, _ = read_request(args.request)
        name = identity(document)
        record = Record(context.ledger(), context.origin(), stream_of(name))
    else:
        record = Record(context.ledger(), context.origin(), stream_of(args.request))
        state = record.state
        if state.request is None:
            raise Refused(f"{args.request}: no such request was opened here; give its JSON file")
        name = state.request.request
        event = record.ledger.store.reader().event(state.requested_seq)
        assert event is not None
        document = record.content(event)["request"]
    return name, [item.what for item in parse_request(document).authority.approvals], record


def approve(args: Args, context: Context) -> int:
    """`dispatch approve REQUEST --what W`."""
    from commands.authority.signing import new_fields, one_way, write_statement

    one_way(args, sign=args.sign, out=args.out)
    name, needed, record = _requested(args, context)
    if args.what not in needed:
        listed = ", ".join(map(repr, needed)) or "none"
        raise Refused(f"--what {args.what!r}: the request names no such approval ({listed})")
    scope = args.scope or RUN

    def make(fields: dict[str, Any]) -> tuple[Approved, bytes]:
        data = Approved(name, mark(name, args.what), scope, fields["nonce"], fields["expires_at"])
        return data, approval_statement(record.ledger.id, record.stream, data)

    if args.out is not None:
        data, statement = make(new_fields())
        emit({"status": "to be signed", **write_statement(args.out, statement, data.expires_at)})
        return 0
    if args.sign or args.statement:
        data = _signed(args, record, make)
    else:
        data, _ = make({**new_fields(), "expires_at": ""})
    event = record.add(TYPE, data, args.what)
    emit(
        {
            "status": "approved",
            "id": record.stream.partition("/")[2],
            "seq": event.seq,
            "what": args.what,
            "scope": scope,
            "signed_by": data.principal or None,
        }
    )
    return 0


def _signed(args: Args, record: Record, make: Callable[[dict[str, Any]], tuple[Approved, bytes]]) -> Approved:
    """The approval with a signature that was checked, outside the ledger's lock."""
    import msgspec

    from commands.authority import signing

    data, principal, signature = signing.signed_data(
        args,
        record.ledger,
        record.origin,
        policy=signing.required_policy(record.ledger),
        type=TYPE,
        stream=record.stream,
        make=make,
    )
    signed: Approved = msgspec.structs.replace(data, principal=principal, signature=signature)
    return signed


COMMANDS = {
    "dispatch approve": Command(
        told(approve),
        "Records a person's approval of something that a request names under authority.approvals. Prints its seq, which the\n"
        "request may name as approval_seq. --out writes the bytes to sign on another machine; --sign signs here.",
        words=(Word("REQUEST", "the request's JSON file, or the id that `dispatch open` printed"),),
        flags=(
            Flag("--what", "W", "what is approved, in the request's words", required=True),
            Flag(
                "--scope", "SCOPE", "this run (default) or every run of the request", choices=(RUN, REQUEST)
            ),
            Flag("--sign", None, "sign with ssh-keygen, as the ledger's authority policy asks"),
            Flag("--key", "FILE", "the key to sign with"),
            Flag("--out", "FILE", "only write the statement to sign"),
            Flag("--statement", "FILE", "the bytes that were signed elsewhere"),
            Flag("--signature", "FILE", "their signature, as ssh-keygen -Y sign writes it"),
        ),
        example="gatebook dispatch approve request.json --what 'push to origin'",
        json_errors=True,
    ),
}
