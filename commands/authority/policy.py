"""`authority show|require|signers`: the approval policy, itself in the log (DESIGN, Authority)."""

from __future__ import annotations

import sys

from commands.context import Context, emit
from commands.flags import Args, Command, Flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from projections.ledger_stream import Policy

_SILENT = "a key in ssh-agent signs silently for whoever reaches the agent: prefer sk-* keys and --presence"


def _document(policy: Policy | None, seq: int) -> dict[str, Any]:
    if policy is None:
        return {
            "policy": None,
            "seq": None,
            "warnings": ["no authority policy: any session may record an approval"],
        }
    return {
        "policy": {
            "types": list(policy.types),
            "presence": policy.presence,
            "single_key": policy.single_key,
            "signers": [{"principal": signer.principal, "key": signer.key} for signer in policy.signers],
        },
        "seq": seq,
        "warnings": [] if policy.presence else [_SILENT],
    }


def show(_args: Args, context: Context) -> int:
    """`authority show`: the policy that holds, and the event that set it."""
    from projections.engine import World

    world = World(context.ledger().store.reader())
    state = world.state("ledger")
    head = world.reader.head()
    emit({**_document(state.policy, state.policy_seq), "head": {"seq": head.seq, "hash": head.hash.hex()}})
    return 0


def signers(_args: Args, context: Context) -> int:
    """`authority signers`: who may sign what."""
    from commands.authority.signing import policy_of

    policy = policy_of(context.ledger())
    emit(
        {
            "types": [] if policy is None else list(policy.types),
            "signers": []
            if policy is None
            else [{"principal": one.principal, "key": one.key} for one in policy.signers],
        }
    )
    return 0


def require(args: Args, context: Context) -> int:
    """`authority require`: a new policy, signed by a signer of the one that holds (the first: of itself)."""
    import os

    from commands.authority.signers import read_policy
    from commands.authority.signing import check, policy_of, refused_recorded, sign
    from projections.authority import policy_statement
    from projections.engine import Proposal, World, submit
    from projections.ledger_stream import PolicyChanged

    ledger, origin = context.ledger(), context.origin()
    new = read_policy(args.signers, single_key=args.single_key, presence=args.presence)
    judge = policy_of(ledger) or new
    nonce = os.urandom(16).hex()
    statement = policy_statement(ledger.id, new, nonce)
    if args.out is not None:
        return _write(args.out, statement)
    if args.statement is not None:
        nonce, statement, signature = _signed_elsewhere(args, ledger.id, new)
        from commands.authority.signing import principal_of

        principal = principal_of(judge, signature)
    else:
        principal, signature = refused_recorded(
            ledger, origin, "authority.changed", "ledger", lambda: sign(statement, judge, args.key)
        )
    check(ledger, origin, judge, principal, statement, signature, type="authority.changed", stream="ledger")
    data = PolicyChanged(new, nonce, signature, principal)

    def decide(world: World) -> list[Proposal]:
        del world
        return [Proposal("ledger", "authority.changed", data)]

    done = submit(ledger, origin, decide)
    if not new.presence:
        sys.stderr.write(f"gatebook: warning: {_SILENT}\n")
    emit({**_document(new, done.events[0].seq), "signed_by": principal})
    return 0


def _write(path: str, statement: bytes) -> int:
    from commands.authority.signing import write_statement

    write_statement(path, statement)
    emit({"statement": path, "bytes": len(statement)})
    return 0


def _signed_elsewhere(args: Args, ledger_id: str, policy: Policy) -> tuple[str, bytes, str]:
    from commands.append import read_input
    from commands.authority.signing import bare
    from commands.plan_runs.documents import parse_document
    from ledger.errors import Refused, Usage
    from projections.authority import policy_statement

    if args.signature is None:
        raise Usage("--statement and --signature go together")
    given = read_input(args.statement, "--statement")
    fields = parse_document(given, args.statement)
    nonce = fields.get("nonce") if isinstance(fields, dict) else None
    if not isinstance(nonce, str) or given != policy_statement(ledger_id, policy, nonce):
        raise Refused(
            f"{args.statement}: is not the statement of this policy for this ledger; make it anew with --out"
        )
    return nonce, given, bare(read_input(args.signature, "--signature").decode("ascii", "replace"))


COMMANDS = {
    "authority show": Command(
        show,
        "Shows the approval policy that holds and the event that set it.",
        example="gatebook authority show",
    ),
    "authority signers": Command(
        signers,
        "Lists who may sign, and which events need it.",
        example="gatebook authority signers",
    ),
    "authority require": Command(
        require,
        "Sets the approval policy from a signers file; signed by a signer of the policy that holds (the first: of itself).\n"
        "FILE is in OpenSSH's allowed_signers form; `# types: plan.approved …` and `# presence: required` may stand in it.",
        flags=(
            Flag("--signers", "FILE", "public keys with principals", required=True),
            Flag("--single-key", None, "accept a policy with one key only"),
            Flag("--presence", None, "accept only sk-* keys that were touched"),
            Flag("--key", "FILE", "the key to sign with (default: ask ssh-agent)"),
            Flag("--out", "FILE", "only write the bytes to sign on another machine"),
            Flag("--statement", "FILE", "the bytes that were signed there"),
            Flag("--signature", "FILE", "their signature"),
        ),
        example="gatebook authority require --signers signers --key ~/.ssh/id_ed25519",
    ),
}
