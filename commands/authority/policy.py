"""`authority show|require|signers`: the approval policy, itself in the log (DESIGN, Authority)."""

from __future__ import annotations

from commands.context import Context, emit
from commands.flags import Args, Command, Flag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from projections.ledger_stream import Policy, PolicyChanged

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
        "warnings": warnings(policy),
    }


def warnings(policy: Policy) -> list[str]:
    """What a person who sets or reads this policy should know."""
    from commands.authority.signers import NOBODY, nobody_signs

    if not policy.presence:
        return [_SILENT]
    return [NOBODY] if nobody_signs(policy) else []


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
    import msgspec

    from commands.authority.signers import read_policy
    from commands.authority.signing import new_fields, one_way, policy_of, signed_data, write_statement
    from ledger.notice import tell
    from projections.authority import policy_statement
    from projections.engine import Proposal, World, submit
    from projections.ledger_stream import PolicyChanged

    one_way(args, sign=args.statement is None and args.out is None, out=args.out)
    ledger, origin = context.ledger(), context.origin()
    new = read_policy(args.signers, single_key=args.single_key, presence=args.presence)

    def make(fields: dict[str, Any]) -> tuple[PolicyChanged, bytes]:
        data = PolicyChanged(new, fields["nonce"], expires_at=fields["expires_at"])
        return data, policy_statement(ledger.id, new, data.nonce, data.expires_at)

    if args.out is not None:
        unsigned, statement = make(new_fields())
        emit(write_statement(args.out, statement, unsigned.expires_at))
        return 0
    unsigned, principal, signature = signed_data(
        args,
        ledger,
        origin,
        policy=policy_of(ledger) or new,
        type="authority.changed",
        stream="ledger",
        make=make,
    )
    data = msgspec.structs.replace(unsigned, principal=principal, signature=signature)

    def decide(world: World) -> list[Proposal]:
        del world
        return [Proposal("ledger", "authority.changed", data)]

    done = submit(ledger, origin, decide)
    for warning in warnings(new):
        tell(warning)
    emit({**_document(new, done.events[0].seq), "signed_by": principal})
    return 0


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
