"""A small sealed chain with its tree and keys, for the tests of this folder."""

from __future__ import annotations

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ledger.canonical import encode
from ledger.event import ZERO_HASH, Draft, Head, Origin, head_of, seal
from ledger.proofs import bundle, tree
from ledger.proofs import note as notes

ORIGIN = Origin("cli:test", "gatebook test")


class Chain:
    """`count` events sealed at fixed times; `word` makes another ledger of it."""

    def __init__(self, count: int, word: str = "a", seed: int = 1) -> None:
        self.private = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        public = self.private.public_key().public_bytes_raw()
        opened = encode(
            {"format": 1, "keys": {"checkpoint": public.hex(), "receipt": "00" * 32}, "word": word}
        )
        drafts = [Draft("ledger", "ledger.opened", opened)]
        drafts += [Draft("x-notes/1", "x.note", encode({"n": n, "word": word})) for n in range(2, count + 1)]
        versions: dict[str, int] = {}
        self.events = []
        head = Head()
        for n, draft in enumerate(drafts):
            event = seal([draft], head, lambda s: versions.get(s, 0), ORIGIN, 1_700_000_000_000_000 + n)[0]
            versions[draft.stream] = event.version
            head = head_of(event)
            self.events.append(event)
        self.ledger_id = blake3(self.events[0].envelope).digest()[:16].hex()
        self.key = notes.VerifierKey(self.ledger_id, notes.ED25519, public)
        self.genesis = bundle.Genesis(self.events[0].envelope, self.events[0].data)
        self.leaves = [tree.leaf_hash(event.hash) for event in self.events]

    def node(self, level: int, index: int) -> bytes:
        return tree.fold_complete(self.leaves[index << level : (index + 1) << level])

    def checkpoint(self, size: int) -> notes.Checkpoint:
        return notes.Checkpoint(self.ledger_id, size, tree.tree_root(size, self.node))

    def note(self, size: int) -> str:
        return str(notes.sign_note(str(self.checkpoint(size)), self.ledger_id, self.private))

    def previous(self, seq: int) -> bytes:
        return self.events[seq - 2].hash if seq > 1 else ZERO_HASH

    def inclusion(self, seq: int, size: int) -> bundle.InclusionFile:
        event = self.events[seq - 1]
        path = tree.prove_inclusion(seq - 1, size, self.node).path
        return bundle.InclusionFile(
            event.envelope,
            event.data,
            self.previous(seq),
            path=path,
            note=self.note(size),
            genesis=self.genesis,
        )

    def consistency(self, old: int, new: int) -> bundle.ConsistencyFile:
        path = tree.prove_consistency(old, new, self.node).path
        return bundle.ConsistencyFile(self.note(old), self.note(new), path, self.genesis)
