"""Signed approvals: statements, signatures by ssh-keygen, and their check before anything is recorded.

Nothing here runs under the write lock. A wrong or missing signature is recorded as `admission.refused`.
"""

from __future__ import annotations

import os

from ledger.errors import Invalid, MissingExecutor, Refused
from projections.authority import NAMESPACE, check_signature, read_signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from commands.flags import Args
    from commands.plan_runs.run_ledger import Documents, Run
    from ledger.access import Ledger
    from ledger.event import Origin
    from projections.ledger_stream import Policy
    from projections.plan_run_events import Approved

STATEMENT_HOURS = 24


def expiry() -> str:
    """When a statement that is made now stops being accepted."""
    from ledger.clock import format_us, now_us

    return format_us(now_us() + STATEMENT_HOURS * 3_600_000_000)


def write_statement(path: str, signed: bytes) -> None:
    """Writes the bytes to sign, 0600, as they are: no newline is added, for every byte is signed."""
    from ledger.files import write_whole

    write_whole(os.path.abspath(path), signed)


def policy_of(ledger: Ledger) -> Policy | None:
    """The authority policy that holds now."""
    from projections.engine import World

    found: Policy | None = World(ledger.store.reader()).state("ledger").policy
    return found


def sign(statement: bytes, policy: Policy, key: str | None) -> tuple[str, str]:
    """(principal, signature in bare base64) made by `ssh-keygen -Y sign`; `Refused` when no listed key signs.

    `key` is a private key's file, or a public one whose private half an agent holds; without it the agent is
    asked for each listed key in turn.
    """
    import tempfile

    if key is not None:
        if not os.path.isfile(key):
            raise Invalid(f"--key {key}: there is no such file")
        return _signed_by(policy, _ssh_sign(statement, key, "--key"))
    with tempfile.TemporaryDirectory(prefix="gatebook-") as folder:
        for place, signer in enumerate(policy.signers):
            public = os.path.join(folder, f"{place}.pub")
            with open(public, "w", encoding="utf-8") as file:
                file.write(signer.key + "\n")
            try:
                return _signed_by(policy, _ssh_sign(statement, public, signer.principal))
            except Refused:
                continue
    raise Refused(
        "no listed key signs here: give --key FILE, or load one of the policy's keys into ssh-agent"
    )


def _ssh_sign(statement: bytes, key: str, what: str) -> str:
    import subprocess

    try:
        done = subprocess.run(
            ["ssh-keygen", "-Y", "sign", "-q", "-n", NAMESPACE, "-f", key],
            input=statement,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise MissingExecutor("ssh-keygen is not installed; approvals are signed with it") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Refused(f"{what}: ssh-keygen did not sign: {said[-1] if said else 'no reason given'}")
    return done.stdout.decode("ascii", "replace")


def _signed_by(policy: Policy, armored: str) -> tuple[str, str]:
    from projections.authority import signer_of

    key, _, _ = read_signature(armored)
    for signer in policy.signers:
        if signer_of(policy, signer.principal, key) is not None:
            return signer.principal, bare(armored)
    raise Refused(
        "the key that signed is not listed in the authority policy; `gatebook authority signers` shows who is"
    )


def bare(armored: str) -> str:
    """A signature as data holds it: base64 without armor and line breaks."""
    lines = armored.strip().splitlines()
    return "".join(line.strip() for line in lines if not line.startswith("-----"))


def required_policy(ledger: Ledger) -> Policy:
    """The policy, for a call that wants to sign; `Refused` where there is none."""
    policy = policy_of(ledger)
    if policy is None:
        raise Refused(
            "this ledger has no authority policy, so there is nobody to sign as; see `gatebook authority require`"
        )
    return policy


def read_signed(args: Args, make: Callable[[dict[str, Any]], tuple[Any, bytes]]) -> tuple[Any, bytes, str]:
    """(data, statement, signature) of `--statement F --signature S`; `Refused` unless the bytes are those we would write.

    `make` builds the event's data and statement from the statement's own nonce and expiry.
    """
    from commands.append import read_input
    from commands.plan_runs.documents import parse_document

    given = read_input(args.statement, "--statement")
    armored = read_input(args.signature, "--signature").decode("ascii", "replace")
    fields = parse_document(given, args.statement)
    if not isinstance(fields, dict) or not all(
        isinstance(fields.get(name), str) for name in ("nonce", "expires_at")
    ):
        raise Invalid(f"{args.statement}: is not a statement that gatebook wrote")
    data, expected = make(fields)
    if given != expected:
        raise Refused(
            f"{args.statement}: is not the statement of this approval ({_difference(fields, expected)}); make it anew"
        )
    return data, given, bare(armored)


def _difference(fields: dict[str, Any], expected: bytes) -> str:
    from ledger.canonical import load

    wanted = load(expected)
    for name, value in wanted.items():
        if fields.get(name) != value:
            return f"{name} differs"
    return "its bytes differ"


def check(
    ledger: Ledger,
    origin: Origin,
    policy: Policy,
    principal: str,
    statement: bytes,
    signature: str,
    *,
    type: str,
    stream: str,
) -> None:
    """`check_signature` now, a refusal recorded as `admission.refused` before it is raised."""
    from ledger.clock import now_us
    from projections.refusals import record_refusal

    try:
        check_signature(policy, principal, statement, signature, now_us())
    except (Refused, Invalid) as error:
        record_refusal(
            ledger, origin, type=type, stream=stream, reason="the signature does not hold", refused=statement
        )
        raise Refused(str(error)) from None


def principal_of(policy: Policy, signature: str) -> str:
    """Whom a signature's key is listed for; `` when nobody."""
    from projections.authority import signer_of

    try:
        key, _, _ = read_signature(signature)
    except Invalid:
        return ""
    return next(
        (
            signer.principal
            for signer in policy.signers
            if signer_of(policy, signer.principal, key) is not None
        ),
        "",
    )


def signed_plan_approval(
    args: Args, run: Run, documents: Documents, text: str, approval: dict[str, Any]
) -> Approved:
    """The data of `plan.approved` with a signature that was checked: made here (`--sign`) or brought along."""
    import msgspec

    from commands.plan_runs.approving import approved
    from projections.authority import plan_statement

    policy = required_policy(run.ledger)
    stream = run.stream(run.look().reader)

    def make(fields: dict[str, Any]) -> tuple[Any, bytes]:
        data = approved(
            run, documents, text, approval, nonce=fields["nonce"], expires_at=fields["expires_at"]
        )
        return data, plan_statement(run.ledger.id, stream, data)

    if args.sign:
        data, statement = make({"nonce": os.urandom(16).hex(), "expires_at": expiry()})
        principal, signature = refused_recorded(
            run.ledger,
            run.context.origin(),
            "plan.approved",
            stream,
            lambda: sign(statement, policy, args.key),
        )
    else:
        data, statement, signature = refused_recorded(
            run.ledger, run.context.origin(), "plan.approved", stream, lambda: read_signed(args, make)
        )
        principal = principal_of(policy, signature)
    check(
        run.ledger,
        run.context.origin(),
        policy,
        principal,
        statement,
        signature,
        type="plan.approved",
        stream=stream,
    )
    signed: Approved = msgspec.structs.replace(data, principal=principal, signature=signature)
    return signed


def refused_recorded(ledger: Ledger, origin: Origin, type: str, stream: str, read: Callable[[], Any]) -> Any:
    """What `read` gives (a statement brought along, or a signature made here); its `Refused` is recorded first."""
    from projections.refusals import record_refusal

    try:
        return read()
    except Refused:
        record_refusal(
            ledger, origin, type=type, stream=stream, reason="not signed by a listed signer", refused=b"{}"
        )
        raise
