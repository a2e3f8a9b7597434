"""A signers file becomes a policy (DESIGN, Authority).

The format is OpenSSH's allowed_signers, `PRINCIPAL [namespaces="gatebook"] TYPE BASE64 [comment]` a line, or a public
key as `ssh-keygen` writes it, whose comment is then the principal. Two comments of ours may stand
there: `# types: plan.approved receipt.issued` (default: all that can be signed) and `# presence: required`.
"""

from __future__ import annotations

from ledger.errors import Invalid
from projections.authority import NAMESPACE, SIGNABLE, is_public_key, policy_fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from projections.ledger_stream import Policy, Signer

_LIMIT = 1 << 20
NOBODY = "no listed key can prove presence (sk-*), so nobody can sign under this policy"


def nobody_signs(policy: Policy) -> bool:
    """Whether the policy wants a presence that none of its keys can prove."""
    return policy.presence and not any(signer.key.startswith("sk-") for signer in policy.signers)


def read_policy(path: str, *, single_key: bool = False, presence: bool = False) -> Policy:
    """The policy that a signers file asks for; `Invalid` naming the line that is wrong."""
    from commands.append import read_input
    from projections.ledger_stream import Policy

    raw = read_input(path, "--signers")
    if len(raw) > _LIMIT:
        raise Invalid(f"{path}: is larger than {_LIMIT} bytes")
    try:
        lines = raw.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise Invalid(f"{path}: is not UTF-8") from None
    types: tuple[str, ...] = tuple(sorted(SIGNABLE))
    signers: list[Signer] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("#"):
            name, _, value = text[1:].strip().partition(":")
            if name == "types":
                types = tuple(sorted(set(value.split())))
            elif name == "presence" and value.strip() != "required":
                raise Invalid(f"{path} line {number}: presence is `required`, or the line is left out")
            presence = presence or name == "presence"
        elif text:
            signers.append(_signer(text, f"{path} line {number}"))
    policy = Policy(tuple(signers), types, presence, single_key)
    fault = policy_fault(policy)
    if fault is not None:
        raise Invalid(f"{path}: {fault}")
    return policy


def _signer(text: str, where: str) -> Signer:
    from projections.ledger_stream import Signer

    principal, key = _parts(text.split(), where)
    if not principal or any(letter in ",*?!" for letter in principal):
        raise Invalid(f"{where}: the principal is one name, without lists and patterns")
    return Signer(principal, _one_spelling(key, where))


def _one_spelling(key: str, where: str) -> str:
    """`TYPE BASE64` of a whole public key as OpenSSH writes it, so that one key is never taken for two."""
    from binascii import a2b_base64, b2a_base64

    name, _, body = key.partition(" ")
    blob = rest = a2b_base64(body)
    fields = 0
    while len(rest) >= 4 and len(rest) >= 4 + (size := int.from_bytes(rest[:4], "big")):
        rest, fields = rest[4 + size :], fields + 1
    if rest or fields < 2:
        raise Invalid(f"{where}: the public key is cut off, or has something after its end")
    return f"{name} {b2a_base64(blob, newline=False).decode()}"


def _parts(words: list[str], where: str) -> tuple[str, str]:
    """(principal, `TYPE BASE64`) of a line: allowed_signers form, or a public key whose comment is the principal."""
    for place in range(3):
        key = " ".join(words[place : place + 2])
        if not is_public_key(key):
            continue
        if place == 0:
            return " ".join(words[2:]), key
        if place == 2 and words[1] != f'namespaces="{NAMESPACE}"':
            raise Invalid(f"{where}: the option {words[1]} cannot be kept in a policy; leave it out")
        return words[0], key
    raise Invalid(f"{where}: is not `PRINCIPAL TYPE BASE64` (an OpenSSH public key with who holds it)")
