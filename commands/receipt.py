"""`receipt issue|check|consume|finalize|delegate|revoke|show` (contract page plan-runs, Receipts)."""

from __future__ import annotations

from commands.context import Context, emit
from commands.flags import Args, Command, Flag, Word
from ledger.errors import Refused, Usage
from projections.receipt_rules import TARGET_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from projections.engine import Proposal, World
    from projections.receipt import Issued, Reference, State

_TARGET = (
    Flag("--target-type", "T", "what the target is", required=True, choices=TARGET_TYPES),
    Flag("--target", "ID", "the target's id", required=True),
)
_WHERE = (
    Flag("--origin", "URL", "scheme://host[:port]", required=True),
    Flag("--course", "ID", "the course's id", required=True),
    *_TARGET,
)
_OUT = Flag("--out", "FILE", "where the receipt's file goes (0600)", required=True)


def issue(args: Args, context: Context) -> int:
    """`receipt issue`: by a person at a terminal, or signed where the authority policy says so."""
    from commands.authority.signing import one_way, policy_of, write_statement
    from commands.plan_runs.receipts import local_user, new_receipt, require_person, require_place
    from projections.authority import receipt_statement, required

    one_way(args, sign=args.sign, out=args.statement_out)
    if not args.session.strip():
        raise Usage("--session must name the agent session that may use the receipt")
    ledger = context.ledger()
    # A signature that no policy asks for is no person: whoever reaches ssh-agent makes one.
    if args.statement_out is None and not required(policy_of(ledger), "receipt.issued"):
        _recorded_refusal(context, require_person)
    if args.statement_out is None:
        require_place(args.out)

    def make(fields: dict[str, Any]) -> tuple[Issued, bytes]:
        issued = new_receipt(
            ledger,
            origin=args.origin,
            course=args.course,
            target_type=args.target_type,
            target=args.target,
            actions=args.action,
            session=args.session,
            user=args.user or local_user(),
            expires=args.expires,
            authority=_authority(args, fields),
            synthetic_qa=args.synthetic_qa,
            nonce=fields.get("nonce"),
            issued_at=fields.get("issued_at"),
        )
        return issued, receipt_statement(ledger.id, f"receipt/{issued.receipt_id}", issued)

    if args.statement_out is not None:
        issued, statement = make({})
        emit(write_statement(args.statement_out, statement, issued.expires_at))
        return 0
    issued = _signed(args, context, make) if args.sign or args.statement is not None else make({})[0]
    seq = _record(context, issued)
    _finish(args.out, issued, seq)
    return 0


def _recorded_refusal(context: Context, check: Any) -> None:
    from projections.refusals import record_refusal

    try:
        check(context.actor())
    except Refused:
        record_refusal(
            context.ledger(),
            context.origin(),
            type="receipt.issued",
            stream="receipt/new",
            reason="not a person at a terminal",
            refused=b"{}",
        )
        raise


def _authority(args: Args, fields: dict[str, Any]) -> Reference:
    """The authority's reference: a new one, or that of a statement, whose salt this call cannot make anew."""
    from hashlib import sha256

    from commands.append import read_input
    from commands.plan_runs.receipts import reference
    from ledger.errors import Invalid
    from projections.receipt import Reference

    if args.statement is None:
        return reference(args.authority)
    try:
        held, _ = fields["authority_reference"], fields["issued_at"]
        authority = Reference(str(held["label"]), str(held["salt"]), str(held["sha256"]))
        salt = bytes.fromhex(authority.salt)
    except (KeyError, TypeError, ValueError):
        raise Invalid(f"{args.statement}: is not a statement that gatebook wrote") from None
    words = args.authority.encode("utf-8", "surrogateescape")
    if args.authority.startswith("@"):
        words = read_input(args.authority[1:], "--authority")
    if sha256(salt + words).hexdigest() != authority.sha256:
        raise Refused(f"{args.statement}: was made for other words of authority")
    return authority


def _signed(args: Args, context: Context, make: Callable[[dict[str, Any]], tuple[Issued, bytes]]) -> Issued:
    import msgspec

    from commands.authority.signing import required_policy, signed_data

    ledger = context.ledger()
    issued, principal, signature = signed_data(
        args,
        ledger,
        context.origin(),
        policy=required_policy(ledger),
        type="receipt.issued",
        stream="receipt/new",
        make=make,
    )
    signed: Issued = msgspec.structs.replace(issued, principal=principal, approval_signature=signature)
    return signed


def _record(context: Context, issued: Issued) -> int:
    from projections.engine import Proposal, submit

    def decide(world: World) -> list[Proposal]:
        cause = world.state(f"receipt/{issued.parent_id}").seq if issued.parent_id else None
        stream = f"receipt/{issued.receipt_id}"
        return [Proposal(stream, "receipt.issued", issued, correlation=stream, causation=cause)]

    return submit(context.ledger(), context.origin(), decide).events[0].seq


def _finish(path: str, issued: Issued, seq: int) -> None:
    from commands.plan_runs.receipts import write_receipt

    try:
        write_receipt(path, issued)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}: receipt {issued.receipt_id} is issued (event {seq}), and nobody has its file: "
            f"`gatebook receipt revoke {issued.receipt_id} --reason R`, then issue another",
            path,
        ) from None
    emit(
        {
            "receipt_id": issued.receipt_id,
            "expires_at": issued.expires_at,
            "actions": list(issued.actions),
            "seq": seq,
        }
    )


def _request(args: Args) -> Any:
    from commands.plan_runs.authorization import Request

    return Request(
        args.origin, args.course, args.target_type, args.target, args.action, args.session, args.work_dir
    )


def check(args: Args, context: Context) -> int:
    """`receipt check`: would the receipt allow this now? Records nothing."""
    from commands.plan_runs.authorization import check_receipt

    return _answer(args, lambda request: check_receipt(context.ledger(), args.file, request))


def consume(args: Args, context: Context) -> int:
    """`receipt consume`: checks and uses the receipt in one write transaction."""
    from commands.plan_runs.authorization import consume_receipt

    return _answer(
        args, lambda request: consume_receipt(context.ledger(), context.origin(), args.file, request)
    )


def _answer(args: Args, ask: Any) -> int:
    from commands.plan_runs.authorization import DeniedError, reply
    from commands.plan_runs.receipts import read_receipt

    request = _request(args)
    try:
        presented, outcome = ask(request)
    except DeniedError as error:
        emit(reply(read_receipt(args.file), request, None, str(error)))
        return 4
    emit(reply(presented, request, outcome, None))
    return 0


def _known(context: Context, receipt_id: str) -> tuple[str, State]:
    from commands.plan_runs.authorization import stream_of_receipt
    from projections.engine import state_of

    stream = stream_of_receipt(receipt_id)
    state: State = state_of(context.ledger(), stream)[0]
    if state.issued is None:
        raise Refused(f"{receipt_id}: this ledger issued no such receipt")
    return stream, state


def _presented(context: Context, path: str, name: str) -> tuple[str, State]:
    """The stream and state of a receipt that is presented for an event `name`; a false one is recorded as `receipt.denied`."""
    from commands.plan_runs.authorization import DeniedError, presented_fault, stream_of_receipt
    from commands.plan_runs.documents import render_document
    from commands.plan_runs.receipts import local_user, read_receipt
    from projections.engine import state_of
    from projections.refusals import record_refusal

    fields = read_receipt(path)
    ledger, stream = context.ledger(), stream_of_receipt(fields.get("receipt_id"))
    state: State = state_of(ledger, stream)[0]
    fault = presented_fault(fields, state, state_of(ledger, "ledger")[0].receipt_keys)
    if fault is None and name == "receipt.issued" and fields["user"] != local_user():
        fault = f"user: the receipt is for {fields['user']}, this is {local_user()}"
    if fault is not None:
        error = DeniedError(fault)
        record_refusal(
            ledger,
            context.origin(),
            type=name,
            stream=stream,
            reason=error.name,
            refused=render_document(fields),
            as_type="receipt.denied",
            correlation=stream,
        )
        raise error
    return stream, state


def _reason(text: str) -> bytes:
    if not text.strip():
        raise Usage("--reason must say why")
    return text.encode("utf-8", "surrogateescape")


def _close(context: Context, stream: str, name: str, data: Any, reason: bytes) -> int:
    from commands.plan_runs.run_ledger import refuse_credentials
    from projections.engine import Proposal, submit

    refuse_credentials(reason, "--reason")

    def decide(world: World) -> list[Proposal]:
        return [
            Proposal(
                stream, name, data, content=reason, correlation=stream, causation=world.state(stream).seq
            )
        ]

    return submit(context.ledger(), context.origin(), decide).events[0].seq


def finalize(args: Args, context: Context) -> int:
    """`receipt finalize`: closes a receipt with a retake early, after a recorded complete."""
    reason = _reason(args.reason)
    stream, state = _presented(context, args.file, "receipt.finalized")
    from projections.receipt import Finalized

    assert state.issued is not None
    receipt_id = state.issued.receipt_id
    seq = _close(context, stream, "receipt.finalized", Finalized(receipt_id), reason)
    emit({"receipt_id": receipt_id, "finalized": True, "seq": seq})
    return 0


def revoke(args: Args, context: Context) -> int:
    """`receipt revoke`: takes a receipt back, by its id."""
    reason = _reason(args.reason)
    stream, _ = _known(context, args.id)
    from projections.receipt import Revoked

    seq = _close(context, stream, "receipt.revoked", Revoked(args.id), reason)
    emit({"receipt_id": args.id, "revoked": True, "seq": seq})
    return 0


def delegate(args: Args, context: Context) -> int:
    """`receipt delegate`: a child of a template's receipt: fewer actions, no longer life, its own concrete target."""
    from commands.plan_runs.receipts import new_receipt, require_place

    require_place(args.out)
    _, state = _presented(context, args.parent, "receipt.issued")
    parent = state.issued
    assert parent is not None
    if not args.session.strip():
        raise Usage("--session must name the agent session that may use the receipt")
    issued = new_receipt(
        context.ledger(),
        origin=parent.origin,
        course=parent.course_id,
        target_type=args.target_type,
        target=args.target,
        actions=args.action,
        session=args.session,
        user=parent.user,
        expires=args.expires,
        authority=parent.authority_reference,
        synthetic_qa=parent.synthetic_qa,
        parent=parent,
    )
    _finish(args.out, issued, _record(context, issued))
    return 0


def show(args: Args, context: Context) -> int:
    """`receipt show`: a receipt and its use, by its id; without its signatures, so that it cannot be used."""
    from projections.engine import World
    from projections.receipt_form import file_fields

    _, state = _known(context, args.id)
    assert state.issued is not None
    fields = file_fields(state.issued)
    for name in ("signature", "approval_signature"):
        fields.pop(name)
    world = World(context.ledger().store.reader())
    head = world.reader.head()
    emit(
        {
            **fields,
            "issued_seq": state.seq,
            "uses": state.uses,
            "closed": state.closed or ("voided by a restore" if state.seq < world.void_before else None),
            "head": {"seq": head.seq, "hash": head.hash.hex()},
        }
    )
    return 0


_USE = (
    *_WHERE,
    Flag("--action", "A", "the action", required=True),
    Flag("--session", "S", "this session (default: CODEX_THREAD_ID)"),
    Flag("--work-dir", "DIR", "the item's folder, for its verification.log and draft"),
)
_FILE = Word("FILE", "the receipt's file")

COMMANDS = {
    "receipt issue": Command(
        issue,
        "Issues a receipt for exactly one target and its actions. Without an authority policy only a person at a terminal can;\n"
        "with one it is signed (--sign, or --statement-out here, ssh-keygen elsewhere, then --statement and --signature).",
        flags=(
            *_WHERE,
            Flag("--action", "A", "an allowed action; may be repeated", many=True, required=True),
            Flag("--session", "S", "the agent session that may use it", required=True),
            Flag("--user", "U", "the local user that may use it (default: you)"),
            Flag("--expires", "TIME", "until when, with a zone", required=True),
            Flag(
                "--authority",
                "TEXT|@FILE",
                "the words that allow this; only a salted digest is kept",
                required=True,
            ),
            Flag("--synthetic-qa", None, "a test receipt: loopback origins only"),
            Flag("--sign", None, "sign with ssh-keygen, as the authority policy asks"),
            Flag("--key", "FILE", "the key to sign with (default: ask ssh-agent)"),
            Flag("--statement-out", "FILE", "only write the bytes to sign on another machine"),
            Flag("--statement", "FILE", "the bytes that were signed there"),
            Flag("--signature", "FILE", "their signature"),
            _OUT,
        ),
        example="gatebook receipt issue --origin https://canvas.example.edu --course 100001 --target-type assignment --target 200001 "
        "--action assignment.submit_text --session s1 --expires 2026-12-01T12:00:00Z --authority 'yes, hand it in' --out r.json",
    ),
    "receipt check": Command(
        check,
        "Says whether the receipt would allow this now; records nothing. Exit 4: it would not.",
        words=(_FILE,),
        flags=_USE,
        example="gatebook receipt check r.json --origin https://canvas.example.edu --course 100001 --target-type assignment "
        "--target 200001 --action assignment.submit_text --work-dir runs/2026-11-30/course-100001__assignment-200001",
    ),
    "receipt consume": Command(
        consume,
        "Checks the receipt and records its use in one write transaction, immediately before the action.\n"
        "Exit 4: not allowed (receipt.denied is recorded). Consumed and not reported is spent.",
        words=(_FILE,),
        flags=_USE,
        example="gatebook receipt consume r.json --origin https://canvas.example.edu --course 100001 --target-type assignment "
        "--target 200001 --action assignment.submit_text --work-dir runs/2026-11-30/course-100001__assignment-200001",
    ),
    "receipt finalize": Command(
        finalize,
        "Closes a receipt with quiz.retake early; only after a recorded quiz.complete.",
        words=(_FILE,),
        flags=(Flag("--reason", "TEXT", "why", required=True),),
        example="gatebook receipt finalize r.json --reason 'the first attempt is kept'",
    ),
    "receipt delegate": Command(
        delegate,
        "Mints a child of an automation_template receipt: a subset of its actions, its own target, never a longer life.",
        words=(Word("PARENT", "the template receipt's file"),),
        flags=(
            *_TARGET,
            Flag("--action", "A", "an allowed action; may be repeated", many=True, required=True),
            Flag("--session", "S", "the agent session that may use it", required=True),
            Flag("--expires", "TIME", "until when, with a zone", required=True),
            _OUT,
        ),
        example="gatebook receipt delegate t.json --target-type assignment --target 200001 --action assignment.submit_text "
        "--session s1 --expires 2026-12-01T12:00:00Z --out r.json",
    ),
    "receipt revoke": Command(
        revoke,
        "Takes a receipt back.",
        words=(Word("ID", "the receipt's id"),),
        flags=(Flag("--reason", "TEXT", "why", required=True),),
        example="gatebook receipt revoke 0123456789abcdef0123456789abcdef --reason 'no longer needed'",
    ),
    "receipt show": Command(
        show,
        "Shows a receipt and its use, without its signatures.",
        words=(Word("ID", "the receipt's id"),),
        example="gatebook receipt show 0123456789abcdef0123456789abcdef",
    ),
}
