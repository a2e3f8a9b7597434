"""Which keys a note may be checked with: given, kept outside the ledger on this machine, or the ledger's own."""

from __future__ import annotations

import os

from ledger.errors import Invalid, Refused, Tampered
from ledger.proofs import note as notes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.access import Ledger


def read_note(path: str) -> str:
    """The text of a note file (`-`: stdin).

    Raises:
        Invalid: it cannot be read, is too large or not UTF-8.
    """
    from commands.append import read_input

    raw = read_input(path, "note")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{path}: not UTF-8 text, so not a note") from None


def ledger_keys(ledger: Ledger) -> list[notes.VerifierKey]:
    """Every checkpoint key the ledger ever had, the current one last (genesis, key.changed, ledger.restored)."""
    from projections.engine import state_of

    state, _ = state_of(ledger, "ledger")
    return [notes.VerifierKey(ledger.id, notes.ED25519, bytes.fromhex(key)) for key in state.checkpoint_keys]


def kept_keys(origin: str) -> list[notes.VerifierKey]:
    """The checkpoint key of ledger `origin` that this machine keeps outside it; none where it has none."""
    from ledger.home import read_key

    if len(origin) != 32 or origin.strip("0123456789abcdef"):
        return []
    try:
        seed = read_key(origin, "checkpoint")
    except Refused:
        return []
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return [notes.VerifierKey(origin, notes.ED25519, public)]


def witness_keys() -> list[notes.VerifierKey]:
    """The witnesses this user trusts: verifier keys, one a line, in `$XDG_CONFIG_HOME/gatebook/witnesses`.

    Raises:
        Invalid: a line is no cosignature/v1 verifier key; names the line.
    """
    root = os.environ.get("XDG_CONFIG_HOME") or ""
    if not os.path.isabs(root):
        root = os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(root, "gatebook", "witnesses")
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    keys = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            keys.append(_cosigner(notes.parse_verifier_key(line.strip())))
        except Invalid as error:
            raise Invalid(f"{path}: line {number}: {error}") from None
    return keys


def _cosigner(key: notes.VerifierKey) -> notes.VerifierKey:
    if key.algorithm != notes.COSIGNATURE_V1:
        raise Invalid(f"{key.name} is a log's key, not a witness'")
    return key


def given_keys(texts: Sequence[str]) -> list[notes.VerifierKey]:
    """The keys of `--key` options: each a verifier key, or @FILE that holds one."""
    keys = []
    for text in texts:
        if text.startswith("@"):
            text = read_note(text[1:]).strip()  # noqa: PLW2901 - the file's text stands for the option's
        keys.append(notes.parse_verifier_key(text))
    return keys


class Attested:
    """A note of a ledger that was checked against it: how far the record reaches, and who says so."""

    __slots__ = ("attested", "head", "witnesses")

    def __init__(
        self, head: notes.Checkpoint, witnesses: Sequence[notes.VerifierKey], *, attested: bool
    ) -> None:
        self.head = head
        self.witnesses = tuple(witnesses)
        self.attested = attested

    @property
    def promise(self) -> str:
        """`witnessed`, `attested` or `self-signed` (DESIGN, What the record promises)."""
        return "witnessed" if self.witnesses else "attested" if self.attested else "self-signed"


def attest(ledger: Ledger, text: str) -> Attested:
    """Who signed the note `text` of `ledger`; says nothing yet of the events.

    Raises:
        Invalid: not a checkpoint note. Tampered: a signature does not verify, or the ledger has no first event.
        Refused: another ledger's note, or signed by none of its keys.
    """
    head = notes.parse_checkpoint(notes.parse_note(text).text)
    if not ledger.id:
        raise Tampered(
            "event 1, which names this ledger, is not there: run `gatebook verify`", verdict="gap", seq=1
        )
    if head.origin != ledger.id:
        raise Refused(f"the note is of ledger {head.origin[:64]}, this ledger is {ledger.id}: another ledger")
    witnesses = witness_keys()
    signers = notes.check_note(notes.parse_note(text), [*ledger_keys(ledger), *witnesses])
    if all(key.algorithm != notes.ED25519 for key in signers):
        raise Refused("the note is not signed by the ledger itself")
    kept = {str(key) for key in kept_keys(ledger.id)}
    cosigners = [key for key in signers if key.algorithm == notes.COSIGNATURE_V1]
    return Attested(head, cosigners, attested=any(str(key) in kept for key in signers))
