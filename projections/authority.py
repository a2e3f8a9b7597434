"""The authority policy: which events need a signature, by whom, over exactly which bytes (DESIGN, Authority).

Admission checks all but the signature's mathematics; `check_signature` runs `ssh-keygen -Y verify` for that,
outside the write lock, before recording and again in `replay`.
"""

from __future__ import annotations

from ledger.canonical import encode
from ledger.errors import Invalid, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from projections.fact import Fact, Law
    from projections.ledger_stream import Policy, Signer, State

NAMESPACE = "gatebook"
SIGNABLE = ("dispatch.approved", "drift.accepted", "plan.approved", "receipt.issued")
"""The event types that a policy may ask a signature for; `authority.changed` always needs one."""

STATEMENT_US = 24 * 3_600_000_000
"""How long a statement that names no other end is accepted after it was made, in us."""

_BEGIN = "-----BEGIN SSH SIGNATURE-----"
_END = "-----END SSH SIGNATURE-----"
_USER_PRESENT = 1


def statement(ledger_id: str, type: str, stream: str, fields: dict[str, object]) -> bytes:
    """The exact bytes that are signed: canonical JSON of the ledger id, the event's type and stream, and its scope."""
    return encode(
        {"ledger": ledger_id, "type": type, "stream": stream, **fields}, what="statement", floats=False
    )


def plan_statement(ledger_id: str, stream: str, approved: object) -> bytes:
    """The statement of a `plan.approved` event's data."""
    return statement(ledger_id, "plan.approved", stream, _fields(approved, _PLAN))


def receipt_statement(ledger_id: str, stream: str, issued: object) -> bytes:
    """The statement of a `receipt.issued` event's data."""
    return statement(ledger_id, "receipt.issued", stream, _fields(issued, _RECEIPT))


def policy_statement(ledger_id: str, policy: Policy, nonce: str, expires_at: str) -> bytes:
    """The statement of an `authority.changed` event; one that was recorded without an expiry (``) has none in it."""
    import msgspec

    scope: dict[str, object] = {"policy": msgspec.to_builtins(policy), "nonce": nonce}
    if expires_at:
        scope["expires_at"] = expires_at
    return statement(ledger_id, "authority.changed", "ledger", scope)


_PLAN = ("session_id", "decisions", "digest_before", "digest_after", "nonce", "text_digest", "expires_at")
_RECEIPT = (
    "receipt_id",
    "origin",
    "course_id",
    "target_type",
    "target_id",
    "actions",
    "session_id",
    "user",
    "synthetic_qa",
    "authority_reference",
    "nonce",
    "issued_at",
    "expires_at",
)


def _fields(data: object, names: tuple[str, ...]) -> dict[str, object]:
    import msgspec

    held = msgspec.to_builtins(data)
    # An empty optional member is left out of an event's data, and stands here as the empty text it means.
    return {name: held.get(name, False if name == "synthetic_qa" else "") for name in names}


def required(policy: Policy | None, type: str) -> bool:
    """Whether an event of this type needs a signature."""
    return policy is not None and type in policy.types


def admit_signature(
    fact: Fact,
    law: Law,
    nonce: str,
    expires_at: str,
    principal: str,
    signature: str,
    *,
    made_at: str = "",
) -> None:
    """Refuse `fact` where the policy wants a signature that its data does not carry in the right form.

    `nonce` and `expires_at` are the statement's, and `made_at` where it says when it was made. A signature that
    nobody asked for is judged just as strictly.
    """
    policy: Policy | None = law.state("ledger").policy
    if not required(policy, fact.type) and not signature:
        return
    if policy is None:
        law.refuse(fact, "a signature without a policy")
    if not signature:
        law.refuse(
            fact,
            "the authority policy wants a signature",
            f"{fact.type} must be signed by one of {_names(policy)} (--sign)",
        )
    _admit_signer(policy, principal, signature, fact, law)
    if not nonce:
        law.refuse(fact, "the signed statement has no nonce")
    _admit_times(fact, law, expires_at, made_at, law.state("ledger").restored_clock)


def _admit_times(fact: Fact, law: Law, expires_at: str, made_at: str, restored_clock: int) -> None:
    """A statement is of use from when it was made until its expiry, and in one history only.

    One from before a restore may have been spent in the history that was lost, and its nonce with it.
    """
    from projections.times import parse_time

    try:
        expires = parse_time(expires_at)
        made = parse_time(made_at) if made_at else expires - STATEMENT_US
    except Invalid:
        law.refuse(fact, "the signed statement has no expiry")
    if fact.clock >= expires:
        law.refuse(fact, "the signed statement has expired")
    if made <= restored_clock:
        law.refuse(
            fact,
            "the signed statement is from before the ledger was restored",
            "the statement was made before the ledger was restored, and may be spent; make it anew",
        )


def _names(policy: Policy) -> str:
    return ", ".join(sorted({signer.principal for signer in policy.signers}))


def _admit_signer(policy: Policy, principal: str, signature: str, fact: Fact, law: Law) -> None:
    try:
        key, namespace, present = read_signature(signature)
    except Invalid:
        law.refuse(fact, "the signature is not an SSH signature")
    if namespace != NAMESPACE:
        law.refuse(fact, "the signature is for another namespace")
    if signer_of(policy, principal, key) is None:
        law.refuse(fact, "the signer is not listed")
    if policy.presence and not present:
        law.refuse(fact, "the policy wants presence at the key")


def signer_of(policy: Policy, principal: str, key: bytes) -> Signer | None:
    """The listed signer with that principal and public key blob."""
    from binascii import Error, a2b_base64

    for signer in policy.signers:
        try:
            blob = a2b_base64(signer.key.split(" ")[1])
        except (IndexError, Error, ValueError):
            continue
        if signer.principal == principal and blob == key:
            return signer
    return None


def read_signature(text: str) -> tuple[bytes, str, bool]:
    """(public key blob, namespace, whether the key attests user presence) of an SSHSIG, armored or its bare base64.

    The format is OpenSSH's PROTOCOL.sshsig. `Invalid` for anything else.
    """
    from binascii import Error, a2b_base64

    try:
        raw = a2b_base64("".join(text.replace(_BEGIN, "").replace(_END, "").split()), strict_mode=True)
    except (Error, ValueError):
        raise Invalid("the signature is not base64") from None
    if raw[:6] != b"SSHSIG" or raw[6:10] != b"\0\0\0\1":
        raise Invalid("the signature is not an SSHSIG of version 1")
    (key, namespace, _, _, blob), rest = _strings(raw[10:], 5)
    if rest:
        raise Invalid("the signature has bytes after its end")
    try:
        name = namespace.decode()
    except UnicodeDecodeError:
        raise Invalid("the signature's namespace is not text") from None
    return key, name, _attests_presence(key, blob)


def _strings(raw: bytes, count: int) -> tuple[list[bytes], bytes]:
    """The first `count` length-prefixed strings of `raw`, and what follows them."""
    parts: list[bytes] = []
    for _ in range(count):
        size = int.from_bytes(raw[:4], "big")
        if len(raw) < 4 + size:
            raise Invalid("the signature is cut off")
        parts.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    return parts, raw


def _attests_presence(key: bytes, blob: bytes) -> bool:
    """Whether a security key says in its signature that it was touched (OpenSSH's PROTOCOL.u2f, Signatures).

    After the type, which is the key's, and the signature stand one byte of flags and a four-byte counter, and
    nothing else: in another form (webauthn) the same place holds what the signer chose.
    """
    (name,), _ = _strings(key, 1)
    if not name.startswith(b"sk-"):
        return False
    (kind, _), rest = _strings(blob, 2)
    return kind == name and len(rest) == 5 and bool(rest[0] & _USER_PRESENT)


def armor(text: str) -> str:
    """A signature as `ssh-keygen` reads it."""
    body = "".join(text.replace(_BEGIN, "").replace(_END, "").split())
    lines = [body[at : at + 70] for at in range(0, len(body), 70)]
    return "\n".join([_BEGIN, *lines, _END, ""])


def check_signature(policy: Policy, principal: str, signed: bytes, signature: str, at_us: int) -> None:
    """Raise `Refused` unless `principal` signed exactly `signed`, by OpenSSH's own verdict at that moment.

    `at_us` is the event's clock; a key's validity is judged then, not now. `MissingExecutor` without ssh-keygen.
    """
    import os
    import subprocess
    import tempfile

    from ledger.clock import format_us
    from ledger.errors import MissingExecutor

    key, namespace, present = read_signature(signature)
    signer = signer_of(policy, principal, key)
    if signer is None:
        whose = f" for {principal!r}" if principal else ""
        raise Refused(f"the signature's key is not listed{whose}; listed are {_names(policy)}")
    if namespace != NAMESPACE:
        raise Refused(f"the signature is for the namespace {namespace!r}, not {NAMESPACE!r}")
    if policy.presence and not present:
        raise Refused("the policy wants a key that proves presence (sk-*, touched)")
    moment = "".join(letter for letter in format_us(at_us)[:19] if letter.isdigit()) + "Z"
    with tempfile.TemporaryDirectory(prefix="gatebook-") as folder:
        allowed, sig = os.path.join(folder, "allowed"), os.path.join(folder, "sig")
        with open(allowed, "w", encoding="utf-8") as file:
            file.write(f"signer {signer.key}\n")
        with open(sig, "w", encoding="ascii") as file:
            file.write(armor(signature))
        command = [
            "ssh-keygen",
            "-Y",
            "verify",
            "-n",
            NAMESPACE,
            "-f",
            allowed,
            "-I",
            "signer",
            "-s",
            sig,
            f"-Overify-time={moment}",
        ]
        try:
            done = subprocess.run(command, input=signed, capture_output=True, timeout=30, check=False)
        except FileNotFoundError:
            raise MissingExecutor("ssh-keygen is not installed; signatures are verified with it") from None
        except subprocess.TimeoutExpired:
            raise Refused("ssh-keygen gave no verdict in 30 s") from None
    if done.returncode != 0:
        raise Refused(
            "the signature does not fit the statement; sign exactly the bytes that were written to be signed"
        )


def admit_policy(state: State, fact: Fact, law: Law) -> None:
    """A new policy: well formed, and signed by a signer of the one that holds (the first one: of itself)."""
    data = fact.data
    fault = policy_fault(data.policy)
    if fault is not None:
        law.refuse(fact, fault)
    if not data.nonce or data.nonce in state.policy_nonces:
        law.refuse(fact, "the nonce was used before")
    if not data.signature:
        law.refuse(fact, "a policy change must be signed")
    _admit_signer(state.policy or data.policy, data.principal, data.signature, fact, law)
    if data.expires_at:
        _admit_times(fact, law, data.expires_at, "", state.restored_clock)


def policy_fault(policy: Policy) -> str | None:
    """What is wrong with a policy's form, or None."""
    if (
        not policy.types
        or list(policy.types) != sorted(set(policy.types))
        or not set(policy.types) <= set(SIGNABLE)
    ):
        return f"types must be some of {', '.join(SIGNABLE)}, sorted"
    keys = {tuple(signer.key.split(" ")[:2]) for signer in policy.signers}
    if len(keys) < 2 and not policy.single_key:
        return "a policy needs two keys at least (or --single-key)"
    if not keys:
        return "a policy needs a key"
    for signer in policy.signers:
        if not is_public_key(signer.key) or not signer.principal or not signer.principal.isprintable():
            return "a signer is not a principal with an OpenSSH public key"
    return None


def is_public_key(text: str) -> bool:
    """Whether `text` is `type base64` of an OpenSSH public key whose blob begins with that type."""
    from binascii import Error, a2b_base64

    name, _, body = text.partition(" ")
    try:
        blob = a2b_base64(body, strict_mode=True)
    except (Error, ValueError):
        return False
    size = int.from_bytes(blob[:4], "big")
    return name.isascii() and name != "" and size == len(name) and blob[4 : 4 + size] == name.encode()


_KEY_CONTEXT = b"gatebook key.changed v1\n"


def key_message(name: str, new_key: str) -> bytes:
    """What the old key signs when a key is rotated."""
    return _KEY_CONTEXT + f"{name}\n{new_key}\n".encode()


def key_signature_holds(old_key: str, name: str, new_key: str, signature: str) -> bool:
    """Whether the old key (Ed25519, hex) signed the new one (hex) under that name."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(old_key)).verify(
            bytes.fromhex(signature), key_message(name, new_key)
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def check_fact(fact: Fact, state: State, ledger_id: str) -> None:
    """Verify the signature that a recorded event carries, at the event's clock; `Refused` when it does not hold.

    `state` is the `ledger` stream's state before the event. An event without a signature passes: whether one had
    to be there is admission's to say.
    """
    data = fact.data
    if fact.type == "receipt.issued":
        from projections.receipt_form import file_fields, signature_holds

        if not signature_holds(state.receipt_keys, file_fields(data)):
            raise Refused(f"event {fact.seq}: none of the ledger's receipt keys signed this receipt")
    signature = getattr(data, "approval_signature", "") or (
        "" if fact.type == "receipt.issued" else getattr(data, "signature", "")
    )
    if not signature or fact.type not in (*SIGNABLE, "authority.changed"):
        return
    policy = state.policy or (data.policy if fact.type == "authority.changed" else None)
    if policy is None:
        raise Refused(f"event {fact.seq}: is signed where no policy says by whom")
    check_signature(policy, data.principal, _statement_of(fact, ledger_id), signature, fact.clock)


def _statement_of(fact: Fact, ledger_id: str) -> bytes:
    data = fact.data
    if fact.type == "plan.approved":
        return plan_statement(ledger_id, fact.stream, data)
    if fact.type == "receipt.issued":
        return receipt_statement(ledger_id, fact.stream, data)
    if fact.type == "authority.changed":
        return policy_statement(ledger_id, data.policy, data.nonce, data.expires_at)
    from projections.registry import aggregate, kind_of

    # Dispatch and session aggregates say themselves what their approvals' signatures cover.
    found: bytes = aggregate(kind_of(fact.stream)).approval_statement(ledger_id, fact.stream, data)
    return found
