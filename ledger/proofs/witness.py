"""The witness: a second party that remembers one log's last checkpoint and cosigns only what grew from it.

Its directory holds `key` (Ed25519, 0600), `name` and, once it has seen a log, `log-key` and `memory` (the
last note it cosigned). The memory is durable before a signature leaves, so a crash can cost a signature
but never make a witness contradict itself.
"""

from __future__ import annotations

import fcntl
import os

from ledger.errors import Conflict, Invalid, Refused, Tampered, Usage
from ledger.proofs import bundle, tree
from ledger.proofs import note as notes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def _write(path: str, content: bytes) -> None:
    from ledger.files import write_whole

    write_whole(path, content)


def create_witness(directory: str, name: str | None = None) -> notes.VerifierKey:
    """Makes a witness with a new key in `directory` (0700); its verifier key is what others trust.

    Raises:
        Conflict: there is a witness already: a second key would be a second witness.
        Invalid: `name` is no key name.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    name = name or f"witness-{public.hex()[:16]}"
    key = notes.VerifierKey(name, notes.COSIGNATURE_V1, public)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    try:
        handle = os.open(
            os.path.join(directory, "key"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
    except FileExistsError:
        raise Conflict(f"{directory}: a witness is there already; take another directory") from None
    with open(handle, "wb") as file:
        file.write(private.private_bytes_raw())
        file.flush()
        os.fsync(handle)
    # Crash here: a key without a name; `load_witness` says so, and nothing was ever signed with it.
    _write(os.path.join(directory, "name"), f"{name}\n".encode())
    return key


def _read(directory: str, name: str) -> bytes | None:
    try:
        with open(os.path.join(directory, name), "rb") as file:
            return file.read(notes.MAX_NOTE * 4)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Usage(f"{directory}: {name} cannot be read: {error.strerror}") from None


class Witness:
    """A witness' directory, held by an exclusive lock from `load_witness` to `close`."""

    __slots__ = ("_last", "_lock", "_private", "directory", "key", "log_key", "memory")

    def __init__(self, directory: str, lock: int, private: Ed25519PrivateKey, name: str) -> None:
        self.directory = directory
        self._lock = lock
        self._private = private
        self.key = notes.VerifierKey(name, notes.COSIGNATURE_V1, private.public_key().public_bytes_raw())
        log_key, memory = _read(directory, "log-key"), _read(directory, "memory")
        try:
            self.log_key = notes.parse_verifier_key(log_key.decode().strip()) if log_key is not None else None
            self.memory = memory.decode() if memory is not None else None
            self._last = (
                notes.parse_checkpoint(notes.parse_note(self.memory).text)
                if self.memory is not None
                else None
            )
        except (Invalid, UnicodeDecodeError) as error:
            # It no longer knows what it has seen, so it could be led to cosign a fork.
            raise Invalid(
                f"{directory}: the memory of this witness is damaged ({error}); make a new witness, which is a new party"
            ) from None

    def close(self) -> None:
        """Lets other processes use the directory."""
        os.close(self._lock)

    def cosign(
        self,
        text: str,
        keys: Sequence[notes.VerifierKey],
        path: Sequence[bytes] | None,
        timestamp: int,
        successors: Sequence[notes.VerifierKey] = (),
    ) -> str:
        """The note `text` with this witness' cosignature, if the log only grew since the last one it saw.

        `keys` may hold the log's key, needed the first time only; `path` is a consistency proof from the
        remembered size, needed when the log grew; `timestamp` is POSIX seconds; `successors` are keys of which the
        caller has proof that the key known here, or one before in the list, handed over to them.

        Raises:
            Refused: unknown log key, another log, no proof where one is needed. Tampered: forged, forked,
            shrunk. Invalid: malformed.
        """
        head, log_key = self._known_log(text, keys, successors)
        self._grown_from_memory(head, path)
        note = notes.cosign_note(notes.parse_note(text), self.key.name, self._private, timestamp)
        # Crash before this line: nothing is remembered, nothing was given out.
        _write(os.path.join(self.directory, "memory"), str(note).encode())
        # Crash after this line: remembered as seen; asking again for the same note gives a signature.
        if self.log_key is None or log_key is not self.log_key:
            _write(os.path.join(self.directory, "log-key"), f"{log_key}\n".encode())
        self.log_key, self.memory, self._last = log_key, str(note), head
        return str(note)

    def _known_log(
        self, text: str, keys: Sequence[notes.VerifierKey], successors: Sequence[notes.VerifierKey]
    ) -> tuple[notes.Checkpoint, notes.VerifierKey]:
        origin = notes.parse_checkpoint(notes.parse_note(text).text).origin
        if self.log_key is not None and origin != self.log_key.name:
            raise Refused(
                f"this witness watches ledger {self.log_key.name}, the note is of {origin[:64]}: another ledger"
            )
        if self.log_key is not None:
            known = [self.log_key, *successors]
        else:
            known = [key for key in keys if key.name == origin]
        if not known:
            raise Refused(
                f"the key of ledger {origin[:64]} is not known here: give it with --key (`gatebook checkpoint --key` prints it)"
            )
        head, signers, _ = bundle.signed_head(text, known)
        return head, next(key for key in reversed(known) if key in signers)

    def _grown_from_memory(self, head: notes.Checkpoint, path: Sequence[bytes] | None) -> None:
        last = self._last
        if last is None:
            if self.log_key is not None:
                raise Refused(
                    f"{self.directory}: the memory of this witness is gone; make a new witness, which is a new party"
                )
            return
        if last.origin != head.origin:
            raise Refused(
                f"this witness watches ledger {last.origin}, the note is of {head.origin[:64]}: another ledger"
            )
        if head.size < last.size:
            raise Tampered(
                f"the log shrank: {head.size} events, this witness has seen {last.size}: not cosigned",
                verdict="truncated",
            )
        if head.size == last.size:
            path = ()
        elif path is None and last.size > 0:
            raise Refused(
                f"the log grew from {last.size} to {head.size} events: give the proof "
                f"(`gatebook prove --consistency {os.path.join(self.directory, 'memory')} NOTE`) with --proof"
            )
        tree.check_consistency(tree.ConsistencyProof(last.size, head.size, path or ()), last.root, head.root)


def load_witness(directory: str) -> Witness:
    """The witness in `directory`, locked until closed.

    Raises:
        Usage: there is none. Invalid: its files are damaged.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    raw, name = _read(directory, "key"), _read(directory, "name")
    if raw is None or name is None:
        raise Usage(f"{directory}: no witness here; run `gatebook witness init {directory}`")
    if os.stat(os.path.join(directory, "key")).st_mode & 0o077:
        raise Refused(
            f"{directory}/key: others can read this private key: chmod 600 it, or better make a new witness"
        )
    if len(raw) != notes.KEY_SIZE:
        raise Invalid(
            f"{directory}/key: {len(raw)} bytes instead of {notes.KEY_SIZE}: the key file is damaged"
        )
    lock = os.open(os.path.join(directory, "key"), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return Witness(directory, lock, Ed25519PrivateKey.from_private_bytes(raw), name.decode().strip())
    except BaseException:
        os.close(lock)
        raise
