"""Signed approvals: statements, signatures by ssh-keygen, and their check before anything is recorded.

Nothing here runs under the write lock. A wrong or missing signature is recorded as `admission.refused`.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from ledger.errors import Invalid, MissingExecutor, Refused, Usage
from projections.authority import NAMESPACE, check_signature, read_signature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from commands.flags import Args
    from commands.plan_runs.run_ledger import Documents, Run
    from ledger.access import Ledger
    from ledger.event import Origin
    from projections.ledger_stream import Policy
    from projections.plan_run_events import Approved


class RecordedError(Refused):
    """A refusal that stands in the log already."""


def new_fields() -> dict[str, Any]:
    """What a statement that is made now has of its own: its nonce, and its expiry."""
    from ledger.clock import format_us, now_us
    from projections.authority import STATEMENT_US

    return {"nonce": os.urandom(16).hex(), "expires_at": format_us(now_us() + STATEMENT_US)}


def one_way(args: Args, *, sign: bool, out: str | None = None) -> None:
    """Raise `Usage` unless the flags name one way to a signature: here, from elsewhere, or only the bytes to sign."""
    if (args.statement is None) != (args.signature is None):
        raise Usage("--statement and --signature go together")
    if sum((sign, args.statement is not None, out is not None)) > 1:
        raise Usage(
            "signing here, bringing a signature (--statement) and only writing what is to be signed: one of them"
        )
    if args.key is not None and not sign:
        raise Usage("--key names the key to sign with here, and this call signs nothing here")


def write_statement(path: str, signed: bytes, expires_at: str) -> dict[str, object]:
    """Writes the bytes to sign, 0600, as they are: no newline is added, for every byte is signed; what the caller prints of it."""
    from ledger.files import write_whole

    write_whole(os.path.abspath(path), signed)
    return {"statement": path, "bytes": len(signed), "expires_at": expires_at}


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


def signed_data(
    args: Args,
    ledger: Ledger,
    origin: Origin,
    *,
    policy: Policy,
    type: str,
    stream: str,
    make: Callable[[dict[str, Any]], tuple[Any, bytes]],
) -> tuple[Any, str, str]:
    """(data, principal, signature) of an event, the signature checked: brought along (`--statement`), else made here.

    `make` builds the event's data and statement from a statement's nonce and expiry. A `Refused` is recorded
    as `admission.refused` before it is raised; under `stream` as long as no statement of ours names another.
    """
    from commands.append import read_input
    from ledger.canonical import load

    if args.statement is None:
        data, statement = make(new_fields())
        stream = str(load(statement)["stream"])
        with refused_recorded(ledger, origin, type, stream, statement):
            principal, signature = sign(statement, policy, args.key)
    else:
        given = read_input(args.statement, "--statement")
        with refused_recorded(ledger, origin, type, stream, given):
            data, statement, signature = _read_signed(args, given, make)
        stream = str(load(statement)["stream"])
        principal = principal_of(policy, signature)
    check(ledger, origin, policy, principal, statement, signature, type=type, stream=stream)
    return data, principal, signature


def _read_signed(
    args: Args, given: bytes, make: Callable[[dict[str, Any]], tuple[Any, bytes]]
) -> tuple[Any, bytes, str]:
    """(data, statement, signature) of the statement that was given; `Refused` unless we would write those bytes."""
    from commands.append import read_input
    from commands.plan_runs.documents import parse_document

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

    with refused_recorded(ledger, origin, type, stream, statement, reason="the signature does not hold"):
        try:
            check_signature(policy, principal, statement, signature, now_us())
        except Invalid as error:
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
    args: Args, run: Run, documents: Documents, text: str, approval: dict[str, Any], stream: str
) -> Approved:
    """The data of `plan.approved` for that stream, with a signature that was checked."""
    import msgspec

    from commands.plan_runs.approving import approved
    from projections.authority import plan_statement

    def make(fields: dict[str, Any]) -> tuple[Any, bytes]:
        data = approved(
            run, documents, text, approval, nonce=fields["nonce"], expires_at=fields["expires_at"]
        )
        return data, plan_statement(run.ledger.id, stream, data)

    data, principal, signature = signed_data(
        args,
        run.ledger,
        run.context.origin(),
        policy=required_policy(run.ledger),
        type="plan.approved",
        stream=stream,
        make=make,
    )
    signed: Approved = msgspec.structs.replace(data, principal=principal, signature=signature)
    return signed


@contextmanager
def refused_recorded(
    ledger: Ledger,
    origin: Origin,
    type: str,
    stream: str,
    refused: bytes,
    *,
    reason: str = "not signed by a listed signer",
) -> Iterator[None]:
    """A `Refused` raised inside is recorded, with the digest of what was refused, and goes on as `RecordedError`."""
    from projections.refusals import record_refusal

    try:
        yield
    except Refused as error:
        correlation = None if stream == "ledger" else stream
        record_refusal(
            ledger, origin, type=type, stream=stream, reason=reason, refused=refused, correlation=correlation
        )
        raise RecordedError(str(error)) from None
