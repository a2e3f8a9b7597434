"""Signature forms, policies and key rotation, without a process."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import Invalid
from projections import authority as a
from projections.ledger_stream import Policy, Signer


def blob(*parts):
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def public(seed=b"k" * 32):
    return blob(b"ssh-ed25519", seed)


def line(seed=b"k" * 32):
    return f"ssh-ed25519 {base64.b64encode(public(seed)).decode()}"


def sshsig(key=None, namespace=b"gatebook", signature=b"", version=1):
    raw = b"SSHSIG" + version.to_bytes(4, "big") + blob(key or public(), namespace, b"", b"sha512", signature)
    return base64.b64encode(raw).decode()


def test_a_signature_is_read_armored_or_bare():
    assert a.read_signature(sshsig()) == (public(), "gatebook", False)
    assert a.read_signature(a.armor(sshsig())) == (public(), "gatebook", False)


def test_presence_is_the_flag_of_a_security_key_only():
    security_key = blob(b"sk-ssh-ed25519@openssh.com", b"k" * 32, b"ssh:")
    for flags, present in ((1, True), (0, False), (4, False), (5, True)):
        signature = blob(b"sk-ssh-ed25519@openssh.com", b"s" * 64) + bytes([flags]) + b"\0\0\0\1"
        assert a.read_signature(sshsig(security_key, signature=signature))[2] is present
        assert a.read_signature(sshsig(signature=signature))[2] is False


def test_presence_is_not_read_out_of_what_a_signer_may_choose():
    """In the webauthn form the client's data stands where a plain signature has its flags, and may end as it likes."""
    name = b"sk-ecdsa-sha2-nistp256@openssh.com"
    security_key = blob(name, b"nistp256", b"k" * 65, b"ssh:")
    untouched = b"\0" + b"\0\0\0\1"
    chosen = blob(b"https://c.edu", b'{"type":"webauthn.get"}', b"")
    for kind in (b"webauthn-" + name, name, b"ssh-ed25519"):
        signature = blob(kind, b"s" * 70) + untouched + chosen
        assert a.read_signature(sshsig(security_key, signature=signature))[2] is False


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!",
        "AAAA",
        sshsig(version=2),
        sshsig()[:-8],
        base64.b64encode(base64.b64decode(sshsig()) + b"x").decode(),
    ],
)
def test_what_is_no_signature_is_refused(text):
    with pytest.raises(Invalid):
        a.read_signature(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw):
    try:
        a.read_signature(base64.b64encode(raw).decode())
    except Invalid:
        pass


def policy(**more):
    fields = {
        "signers": (Signer("ann", line()), Signer("bob", line(b"b" * 32))),
        "types": ("plan.approved",),
        **more,
    }
    return Policy(**fields)


def test_a_policy_has_two_keys_known_types_and_real_public_keys():
    assert a.policy_fault(policy()) is None
    assert a.policy_fault(policy(signers=(Signer("ann", line()),), single_key=True)) is None
    for change in (
        {"signers": ()}, {"signers": (Signer("ann", line()),)}, {"signers": (Signer("ann", line()), Signer("bob", line()))}, {"signers": (), "single_key": True},
        {"types": ()}, {"types": ("plan.proposed",)}, {"types": ("receipt.issued", "plan.approved")}, {"types": ("plan.approved", "plan.approved")},
        {"signers": (Signer("ann", line()), Signer("", line(b"b" * 32)))}, {"signers": (Signer("ann", line()), Signer("bob", "ssh-ed25519 AAAA"))},
        {"signers": (Signer("ann", line()), Signer("bob", "ssh-rsa " + line(b"b" * 32).split()[1]))},
    ):  # fmt: skip
        assert a.policy_fault(policy(**change)) is not None, change


def test_a_signer_is_a_principal_with_that_key():
    assert a.signer_of(policy(), "ann", public()).principal == "ann"
    assert a.signer_of(policy(), "bob", public()) is None
    assert a.signer_of(policy(), "ann", public(b"x" * 32)) is None


def test_a_rotated_key_is_signed_by_the_old_one():
    old, new = (
        Ed25519PrivateKey.generate(),
        Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex(),
    )
    key = old.public_key().public_bytes_raw().hex()
    signature = old.sign(a.key_message("receipt", new)).hex()
    assert a.key_signature_holds(key, "receipt", new, signature)
    assert not a.key_signature_holds(key, "checkpoint", new, signature)
    assert not a.key_signature_holds(new, "receipt", new, signature)
    assert not a.key_signature_holds(key, "receipt", new, "zz")
