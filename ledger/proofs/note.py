"""C2SP signed-note, tlog-checkpoint and tlog-cosignature with Ed25519: who signed which size and root.

Parsing is strict: what was parsed prints back to the same text, so no two texts mean one statement.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from hashlib import sha256

from ledger.errors import Invalid, Refused, Tampered
from ledger.proofs.tree import HASH_SIZE, MAX_SIZE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ED25519 = 0x01  # signed-note, "Signature types"
COSIGNATURE_V1 = 0x04  # tlog-cosignature: timestamped Ed25519
MAX_NOTE = 65536  # bytes; signed-note asks for some limit that leaves room for 16 signatures
MAX_SIGNATURES = 100
KEY_SIZE = 32
SIGNATURE_SIZES = {ED25519: 64, COSIGNATURE_V1: 8 + 64}
DASH = "— "


def _base64(text: str, what: str) -> bytes:
    """Standard base64 in its one canonical spelling."""
    try:
        raw = b64decode(text, validate=True)
    except ValueError:
        raise Invalid(f"{what}: not base64") from None
    if b64encode(raw).decode() != text:
        raise Invalid(f"{what}: base64 not in its canonical spelling")
    return raw


def check_key_name(name: str) -> None:
    """A key name has no Unicode space and no plus and is not empty (signed-note, "Format").

    Raises:
        Invalid: it is not one.
    """
    if not name or "+" in name or any(char.isspace() or ord(char) < 0x20 or char == "\x7f" for char in name):
        raise Invalid("key name: empty, or with a space, control character or '+'")


class VerifierKey:
    """A public key with the name and algorithm it signs notes under; prints as `name+hash+base64`."""

    __slots__ = ("algorithm", "key_id", "name", "public")

    def __init__(self, name: str, algorithm: int, public: bytes) -> None:
        check_key_name(name)
        if algorithm not in SIGNATURE_SIZES:
            raise Invalid(
                f"verifier key of {name}: algorithm {algorithm} is neither Ed25519 (1) nor cosignature/v1 (4)"
            )
        if len(public) != KEY_SIZE:
            raise Invalid(f"verifier key of {name}: {len(public)} bytes, an Ed25519 key has {KEY_SIZE}")
        self.name = name
        self.algorithm = algorithm
        self.public = public
        # signed-note: key ID = SHA-256(key name || 0x0A || signature type || public key)[:4]
        self.key_id = sha256(name.encode() + b"\n" + bytes([algorithm]) + public).digest()[:4]

    def __str__(self) -> str:
        material = b64encode(bytes([self.algorithm]) + self.public).decode()
        return f"{self.name}+{self.key_id.hex()}+{material}"


def parse_verifier_key(text: str) -> VerifierKey:
    """A verifier key from its standard form `name+hash+base64`.

    Raises:
        Invalid: it is malformed or its hash is not that of its name and key.
    """
    parts = text.split("+", 2)
    if len(parts) != 3:
        raise Invalid("verifier key: not of the form name+hash+base64")
    material = _base64(parts[2], "verifier key")
    if not material:
        raise Invalid("verifier key: no key material")
    key = VerifierKey(parts[0], material[0], material[1:])
    if str(key) != text:
        raise Invalid(f"verifier key of {key.name}: its hash is {key.key_id.hex()}, not {parts[1][:16]}")
    return key


class Signature:
    """One signature line: the key's name, its 4-byte ID and the signature's bytes."""

    __slots__ = ("key_id", "name", "raw")

    def __init__(self, name: str, key_id: bytes, raw: bytes) -> None:
        self.name = name
        self.key_id = key_id
        self.raw = raw

    def __str__(self) -> str:
        return f"{DASH}{self.name} {b64encode(self.key_id + self.raw).decode()}\n"

    def by(self, key: VerifierKey) -> bool:
        """Whether this line claims to be by `key`: name and ID both match."""
        return self.name == key.name and self.key_id == key.key_id

    @property
    def timestamp(self) -> int:
        """POSIX seconds of a cosignature (tlog-cosignature, `timestamped_signature`)."""
        return int.from_bytes(self.raw[:8], "big")


class Note:
    """A text (ending in a newline) and its signature lines."""

    __slots__ = ("signatures", "text")

    def __init__(self, text: str, signatures: Sequence[Signature]) -> None:
        self.text = text
        self.signatures = tuple(signatures)

    def __str__(self) -> str:
        return self.text + "\n" + "".join(map(str, self.signatures))


def parse_note(text: str) -> Note:
    """A signed note from its exact text (signed-note, "Format").

    Raises:
        Invalid: it is not one; says which rule it breaks.
    """
    if len(text) > MAX_NOTE:
        raise Invalid(f"note: longer than {MAX_NOTE} characters")
    if any((ord(char) < 0x20 and char != "\n") or 0xD800 <= ord(char) < 0xE000 for char in text):
        raise Invalid("note: control characters or lone surrogates")
    cut = text.rfind("\n\n")
    if text and not text.endswith("\n"):
        raise Invalid("note: the last newline is missing: it was cut off")
    if cut < 1:
        raise Invalid("note: no blank line with signatures below it: nobody signed it")
    body, lines = text[: cut + 1], text[cut + 2 :].split("\n")[:-1]
    if not 0 < len(lines) <= MAX_SIGNATURES:
        raise Invalid(f"note: {len(lines)} signature lines, one to {MAX_SIGNATURES} are allowed")
    note = Note(body, [_parse_signature(line) for line in lines])
    assert str(note) == text, "a parsed note prints back to its text"
    return note


def _parse_signature(line: str) -> Signature:
    name, space, encoded = line.removeprefix(DASH).partition(" ")
    if not line.startswith(DASH) or not space:
        raise Invalid("note: a signature line is not '— name base64'")
    check_key_name(name)
    raw = _base64(encoded, f"note: signature of {name}")
    if len(raw) < 5:
        raise Invalid(f"note: the signature of {name} is too short")
    return Signature(name, raw[:4], raw[4:])


class Checkpoint:
    """The statement of a checkpoint: the log `origin` has `size` events under the tree head `root`."""

    __slots__ = ("extensions", "origin", "root", "size")

    def __init__(self, origin: str, size: int, root: bytes, extensions: Sequence[str] = ()) -> None:
        self.origin = origin
        self.size = size
        self.root = root
        self.extensions = tuple(extensions)

    def __str__(self) -> str:
        lines = (self.origin, str(self.size), b64encode(self.root).decode(), *self.extensions)
        return "".join(line + "\n" for line in lines)


def parse_checkpoint(text: str) -> Checkpoint:
    """The statement in a note's text (tlog-checkpoint, "Note text").

    Raises:
        Invalid: it is not one; says which line is wrong.
    """
    if not text.endswith("\n"):
        raise Invalid("checkpoint: the last newline is missing")
    lines = text.split("\n")[:-1]
    if len(lines) < 3 or not all(lines):
        raise Invalid("checkpoint: fewer than three lines, or an empty one")
    origin, size, root = lines[:3]
    if not (size.isascii() and size.isdigit()) or len(size) > 19 or (size[0] == "0" and size != "0"):
        raise Invalid("checkpoint: the size is not a plain decimal number")
    if int(size) > MAX_SIZE:
        raise Invalid(f"checkpoint: the size is over {MAX_SIZE}")
    raw = _base64(root, "checkpoint: root hash")
    if len(raw) != HASH_SIZE:
        raise Invalid(f"checkpoint: the root hash has {len(raw)} bytes, not {HASH_SIZE}")
    return Checkpoint(origin, int(size), raw, lines[3:])


def sign_note(text: str, name: str, private: Ed25519PrivateKey) -> Note:
    """The note of `text` with one Ed25519 signature by `name` (signed-note, "Ed25519 signatures")."""
    key = VerifierKey(name, ED25519, private.public_key().public_bytes_raw())
    return Note(text, [Signature(name, key.key_id, private.sign(text.encode()))])


def _cosigned_message(text: str, timestamp: int) -> bytes:
    # tlog-cosignature, "Ed25519 signed message": header line, time line, the whole note body
    return f"cosignature/v1\ntime {timestamp}\n{text}".encode()


def cosign_note(note: Note, name: str, private: Ed25519PrivateKey, timestamp: int) -> Note:
    """`note` with one more line: a cosignature/v1 by `name` at `timestamp` (POSIX seconds)."""
    key = VerifierKey(name, COSIGNATURE_V1, private.public_key().public_bytes_raw())
    raw = timestamp.to_bytes(8, "big") + private.sign(_cosigned_message(note.text, timestamp))
    others = [line for line in note.signatures if not line.by(key)]
    return Note(note.text, [*others, Signature(name, key.key_id, raw)])


def _verifies(key: VerifierKey, text: str, raw: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if len(raw) != SIGNATURE_SIZES[key.algorithm]:
        return False
    message, signature = text.encode(), raw
    if key.algorithm == COSIGNATURE_V1:
        timestamp, signature = int.from_bytes(raw[:8], "big"), raw[8:]
        if timestamp > MAX_SIZE:
            return False
        message = _cosigned_message(text, timestamp)
    try:
        Ed25519PublicKey.from_public_bytes(key.public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def check_note(note: Note, keys: Iterable[VerifierKey]) -> list[VerifierKey]:
    """The keys of `keys` that signed `note`; lines of unknown keys are passed over, as the standard asks.

    Raises:
        Tampered: a line by a known key does not verify.
        Refused: no known key signed it.
    """
    known = list(keys)
    signers = []
    for line in note.signatures:
        for key in known:
            if not line.by(key):
                continue
            if not _verifies(key, note.text, line.raw):
                raise Tampered(
                    f"note: the signature of {key.name} ({key.key_id.hex()}) does not verify: text or signature was changed"
                )
            if key not in signers:
                signers.append(key)
    if not signers:
        names = ", ".join(sorted({line.name for line in note.signatures}))
        raise Refused(f"note: no signature by a known key (signed by: {names}); give the right --key")
    return signers
