"""Proof files: everything a stranger needs to check one event, or a log's growth, and nothing of the ledger.

A file is one canonical JSON object. `check_*` recompute every digest and hash from what the file carries and
believe nothing but the keys they are given; they read no ledger and no database.
"""

from __future__ import annotations

from blake3 import blake3

from ledger.canonical import encode, is_canonical, load, parse_object
from ledger.errors import Invalid, Refused, Tampered
from ledger.event import ZERO_HASH, chain_hash
from ledger.proofs import note as notes
from ledger.proofs import tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = 1
MAX_FILE = 1_048_576  # bytes; data is at most 64 KiB, a path 63 hashes, a note 64 KiB
INCLUSION = "inclusion"
CONSISTENCY = "consistency"
_MEMBERS = {
    INCLUSION: {"data", "envelope", "format", "genesis", "note", "path", "previous_hash", "proof"},
    CONSISTENCY: {"format", "genesis", "new", "old", "path", "proof"},
}


class Genesis:
    """Event 1 as bytes: its envelope's BLAKE3 begins with the ledger id, its data names the ledger's first keys.

    So a ledger id alone is enough to know its first key, if the id came from elsewhere.
    """

    __slots__ = ("data", "envelope")

    def __init__(self, envelope: bytes, data: bytes) -> None:
        self.envelope = envelope
        self.data = data

    def checkpoint_key(self, origin: str) -> notes.VerifierKey:
        """The key that genesis names for checkpoints of the ledger `origin`.

        Raises:
            Tampered: these bytes are not that ledger's genesis.
        """
        if blake3(self.envelope).digest()[:16].hex() != origin:
            raise Tampered(
                f"genesis: its id is not {origin[:64]}: it belongs to another ledger", verdict="forked", seq=1
            )
        if load(self.envelope).get("data_digest") != blake3(self.data).hexdigest():
            raise Tampered("genesis: data is not what its envelope's data_digest says", seq=1)
        try:
            public = bytes.fromhex(load(self.data)["keys"]["checkpoint"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            raise Invalid("genesis: it names no checkpoint key") from None
        return notes.VerifierKey(origin, notes.ED25519, public)


class InclusionFile:
    """One event's envelope, data and previous hash, its path in the tree, the signed note and genesis."""

    __slots__ = ("data", "envelope", "genesis", "note", "path", "previous_hash")

    def __init__(
        self,
        envelope: bytes,
        data: bytes,
        previous_hash: bytes,
        *,
        path: Sequence[bytes],
        note: str,
        genesis: Genesis,
    ) -> None:
        self.envelope = envelope
        self.data = data
        self.previous_hash = previous_hash
        self.path = tuple(path)
        self.note = note
        self.genesis = genesis

    def __bytes__(self) -> bytes:
        return _print(
            {
                "proof": INCLUSION,
                "format": FORMAT,
                "envelope": self.envelope.decode(),
                "data": self.data.decode(),
                "previous_hash": self.previous_hash.hex(),
                "path": [step.hex() for step in self.path],
                "note": self.note,
                "genesis": _print_genesis(self.genesis),
            }
        )


class ConsistencyFile:
    """Two signed notes, the path that shows that the second only adds to the first, and genesis."""

    __slots__ = ("genesis", "new", "old", "path")

    def __init__(self, old: str, new: str, path: Sequence[bytes], genesis: Genesis) -> None:
        self.old = old
        self.new = new
        self.path = tuple(path)
        self.genesis = genesis

    def __bytes__(self) -> bytes:
        return _print(
            {
                "proof": CONSISTENCY,
                "format": FORMAT,
                "old": self.old,
                "new": self.new,
                "path": [step.hex() for step in self.path],
                "genesis": _print_genesis(self.genesis),
            }
        )


class Verdict:
    """What a checked file shows: `seq` and `hash` of the event (inclusion), the `head`, who signed it.

    `attested` is False where the only key known was the one that the file's own genesis names (`self-signed`).
    """

    __slots__ = ("attested", "event_hash", "head", "old", "seq", "signers")

    def __init__(
        self,
        head: notes.Checkpoint,
        signers: Sequence[notes.VerifierKey],
        *,
        attested: bool,
        seq: int | None = None,
        event_hash: bytes | None = None,
        old: notes.Checkpoint | None = None,
    ) -> None:
        self.head = head
        self.signers = tuple(signers)
        self.attested = attested
        self.seq = seq
        self.event_hash = event_hash
        self.old = old


def _print(value: dict[str, object]) -> bytes:
    return encode(value) + b"\n"


def _print_genesis(genesis: Genesis) -> dict[str, str]:
    return {"envelope": genesis.envelope.decode(), "data": genesis.data.decode()}


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise Invalid(f"proof file: {name} must be text")
    return value


def _hash(value: object, name: str) -> bytes:
    text = _text(value, name)
    if len(text) != 64 or text.strip("0123456789abcdef"):
        raise Invalid(f"proof file: {name} must be 64 lower-case hex digits")
    return bytes.fromhex(text)


def _path(value: object) -> list[bytes]:
    if not isinstance(value, list) or len(value) > 126:
        raise Invalid("proof file: path must be a list of at most 126 hashes")
    return [_hash(step, f"path[{at}]") for at, step in enumerate(value)]


def _genesis(value: object) -> Genesis:
    if not isinstance(value, dict) or set(value) != {"data", "envelope"}:
        raise Invalid("proof file: genesis must have envelope and data")
    return Genesis(
        _event_bytes(value["envelope"], "genesis.envelope"), _event_bytes(value["data"], "genesis.data")
    )


def _event_bytes(value: object, name: str) -> bytes:
    raw = _text(value, name).encode()
    if not is_canonical(raw, floats=True):
        raise Invalid(f"proof file: {name} is not canonical JSON (RFC 8785)")
    return raw


def parse_file(raw: bytes) -> InclusionFile | ConsistencyFile:
    """A proof file from its exact bytes; what parses prints back to the same bytes.

    Raises:
        Invalid: not a whole proof file of format 1; says what is wrong.
    """
    found = read_file(raw)
    _require_form(found, raw)
    return found


def _require_form(file: InclusionFile | ConsistencyFile, raw: bytes) -> None:
    if bytes(file) != raw:
        raise Invalid("proof file: not in its canonical form (RFC 8785 and one newline)")


def read_file(raw: bytes) -> InclusionFile | ConsistencyFile:
    """What a proof file says, its form aside (`parse_file`).

    Raises:
        Invalid: not a whole proof file of format 1; says what is wrong.
    """
    if len(raw) > MAX_FILE:
        raise Invalid(f"proof file: larger than {MAX_FILE} bytes")
    members = parse_object(raw, what="proof file", floats=False)
    kind = members.get("proof")
    if not isinstance(kind, str) or kind not in _MEMBERS:
        raise Invalid("proof file: its member proof must be inclusion or consistency")
    if set(members) != _MEMBERS[kind]:
        odd = ", ".join(sorted(set(members) ^ _MEMBERS[kind]))
        raise Invalid(f"proof file: missing or unknown members: {odd}")
    if members["format"] != FORMAT or members["format"] is True:
        raise Invalid(f"proof file: this gatebook knows format {FORMAT} only")
    path, genesis = _path(members["path"]), _genesis(members["genesis"])
    found: InclusionFile | ConsistencyFile
    if kind == INCLUSION:
        found = InclusionFile(
            _event_bytes(members["envelope"], "envelope"),
            _event_bytes(members["data"], "data"),
            _hash(members["previous_hash"], "previous_hash"),
            path=path,
            note=_text(members["note"], "note"),
            genesis=genesis,
        )
    else:
        found = ConsistencyFile(_text(members["old"], "old"), _text(members["new"], "new"), path, genesis)
    return found


def signed_head(
    text: str, keys: Sequence[notes.VerifierKey], genesis: Genesis | None = None
) -> tuple[notes.Checkpoint, list[notes.VerifierKey], bool]:
    """The checkpoint in a note, the keys that signed it, and whether one of `keys` (not only genesis') did.

    The log itself must have signed: a key whose name is the note's origin, of `keys` or else of `genesis`.

    Raises:
        Invalid: not a checkpoint note. Tampered: a signature does not verify. Refused: no known key signed.
    """
    note = notes.parse_note(text)
    head = notes.parse_checkpoint(note.text)
    logs = [key for key in keys if key.algorithm == notes.ED25519]
    if logs and all(key.name != head.origin for key in logs):
        raise Refused(
            f"the note is of ledger {head.origin[:64]}, the key given is of {logs[0].name}: another ledger"
        )
    own = [genesis.checkpoint_key(head.origin)] if genesis is not None else []
    known = [*keys] if logs else [*keys, *own]
    signers = notes.check_note(note, known)
    if all(key.name != head.origin or key.algorithm != notes.ED25519 for key in signers):
        raise Refused(f"the note is not signed by the ledger {head.origin[:64]} itself")
    return head, signers, bool(logs)


def check_inclusion_file(file: InclusionFile, keys: Sequence[notes.VerifierKey]) -> Verdict:
    """That the ledger which signed the note holds exactly this event at its place.

    Raises:
        Tampered, Refused, Invalid: it does not; the message says which step failed.
    """
    members = load(file.envelope)
    seq = members.get("seq")
    if not isinstance(seq, int) or seq < 1:
        raise Invalid("proof file: the envelope has no sequence number")
    if members.get("data_digest") != blake3(file.data).hexdigest():
        raise Tampered(f"event {seq}: data is not what the envelope's data_digest says", seq=seq)
    head, signers, attested = signed_head(file.note, keys, file.genesis)
    if seq > head.size:
        raise Tampered(
            f"event {seq} is not covered by the note of {head.size} events: the note is too old", seq=seq
        )
    if seq == 1 and file.previous_hash != ZERO_HASH:
        raise Tampered("event 1: its previous hash must be 32 zero bytes", verdict="link-broken", seq=1)
    event_hash = chain_hash(file.previous_hash, file.envelope)
    tree.check_inclusion(
        tree.InclusionProof(seq - 1, head.size, file.path), tree.leaf_hash(event_hash), head.root
    )
    return Verdict(head, signers, attested=attested, seq=seq, event_hash=event_hash)


def check_consistency_file(file: ConsistencyFile, keys: Sequence[notes.VerifierKey]) -> Verdict:
    """That the log under the new note begins with the log under the old one.

    Raises:
        Tampered, Refused, Invalid: it does not; the message says which step failed.
    """
    # Both notes are compared with the one genesis: they are of one ledger.
    # The old one may be from before a key was rotated: it counts under genesis' key too, to which the ledger id
    # commits. Whoever has only that key gains nothing, since the path must lead to the new note's root.
    old = notes.parse_checkpoint(notes.parse_note(file.old).text)
    first = file.genesis.checkpoint_key(old.origin)
    signed_head(file.old, [*keys, *([first] if all(str(key) != str(first) for key in keys) else [])])
    new, signers, attested = signed_head(file.new, keys, file.genesis)
    if old.size > new.size:
        raise Tampered(
            f"the log shrank from {old.size} to {new.size} events (notes swapped?)", verdict="truncated"
        )
    tree.check_consistency(tree.ConsistencyProof(old.size, new.size, file.path), old.root, new.root)
    return Verdict(new, signers, attested=attested, old=old)


def check_file(raw: bytes, keys: Sequence[notes.VerifierKey]) -> Verdict:
    """Parse and check a proof file of either kind; errors as `parse_file`, `check_inclusion_file`, `check_consistency_file`."""
    file = read_file(raw)
    if isinstance(file, InclusionFile):
        verdict = check_inclusion_file(file, keys)
    else:
        verdict = check_consistency_file(file, keys)
    # Last, so that a forged file is refused for what is forged in it, however it is spaced.
    _require_form(file, raw)
    return verdict
