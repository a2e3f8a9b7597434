"""The tree of one ledger: its events as leaves, its tiles as the cache that makes proofs cheap.

Whatever is signed or handed out here was compared first: new leaves are recomputed from the events'
envelopes, old ones are covered by a root that was signed before.
"""

from __future__ import annotations

import os

from ledger.errors import Tampered
from ledger.event import ZERO_HASH, chain_hash
from ledger.proofs import tree
from ledger.proofs.tiles import Edge, HashTiles, TileError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Protocol

    from ledger.proofs.note import Checkpoint

    class Rows(Protocol):
        """A store that answers read-only SQL over its `events` table."""

        def query(self, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
            """The rows of a statement."""


FOLDER = "tiles"
PAGE = 2000


class LogTree:
    """Roots and proofs over the events of `store`; tiles lie in `<folder>/tiles` and may be deleted at any time."""

    __slots__ = ("_store", "tiles")

    def __init__(self, store: Rows, folder: str) -> None:
        self._store = store
        self.tiles = HashTiles(os.path.join(folder, FOLDER))

    def event_hashes(self, start: int, stop: int) -> Iterator[bytes]:
        """The hashes of the events start <= seq < stop, each recomputed from the envelope and the hash before it.

        Raises:
            Tampered: an event is missing, or its stored hash is not the recomputed one.
        """
        previous = self._stored_hash(start - 1) if start > 1 else ZERO_HASH
        expected = start
        while expected < stop:
            page = self._store.query(
                "SELECT seq, envelope, hash FROM events WHERE seq >= ? AND seq < ? ORDER BY seq LIMIT ?",
                (expected, stop, PAGE),
            )
            for seq, envelope, stored in page:
                if seq != expected:
                    break
                previous = chain_hash(previous, envelope)
                if previous != stored:
                    raise Tampered(
                        f"event {seq}: its hash is not that of its envelope and the event before: run `gatebook verify`",
                        verdict="link-broken",
                        seq=seq,
                    )
                yield previous
                expected += 1
            if expected < stop and (not page or page[-1][0] != expected - 1):
                raise Tampered(
                    f"event {expected} is missing: run `gatebook verify`", verdict="gap", seq=expected
                )

    def _stored_hash(self, seq: int) -> bytes:
        rows = self._store.query("SELECT hash FROM events WHERE seq = ?", (seq,))
        if not rows:
            raise Tampered(f"event {seq} is missing: run `gatebook verify`", verdict="gap", seq=seq)
        found: bytes = rows[0][0]
        return found

    def rebuild(self, size: int, trusted: Checkpoint | None = None) -> Edge:
        """Makes the tiles of the first `size` events anew from the events; cost of all of them.

        Raises:
            Tampered: the events do not lead to the `trusted` root (verdict `forked`), or are damaged themselves.
        """
        import shutil

        shutil.rmtree(self.tiles.directory, ignore_errors=True)
        edge = Edge([], 0)
        if trusted is not None and 0 < trusted.size <= size:
            self.tiles.extend(edge, self.event_hashes(1, trusted.size + 1))
            if edge.root() != trusted.root:
                raise forked(trusted, edge.root())
        self.tiles.extend(edge, self.event_hashes(edge.size + 1, size + 1))
        return edge

    def grow(self, size: int, trusted: Checkpoint | None) -> Edge:
        """The right edge at `size` events, grown from the `trusted` earlier checkpoint; cost of the events since.

        Damaged or missing tiles are made anew from the events.

        Raises:
            Tampered: the events are damaged, or do not continue the trusted checkpoint.
        """
        if trusted is not None and trusted.size > size:
            raise truncated(trusted, size)
        if trusted is None or trusted.size == 0:
            return self.rebuild(size)
        try:
            edge = self.tiles.trusted_edge(trusted.size, trusted.root)
            self._check_last(trusted)
        except TileError:
            return self.rebuild(size, trusted)
        self.tiles.extend(edge, self.event_hashes(trusted.size + 1, size + 1))
        return edge

    def _check_last(self, trusted: Checkpoint) -> None:
        """The ledger's event at the checkpoint's size is the one the checkpoint covers: what follows hangs on it."""
        proof = tree.prove_inclusion(trusted.size - 1, trusted.size, self.tiles.nodes(trusted.size))
        try:
            tree.check_inclusion(proof, tree.leaf_hash(self._stored_hash(trusted.size)), trusted.root)
        except Tampered:
            # Either a tile is damaged or the ledger has another event here; making the tiles anew tells which.
            raise TileError(f"event {trusted.size} is not under the trusted root") from None

    def start_after(self, trusted: Checkpoint, head: int) -> bytes:
        """The hash of event `trusted.size`, from which verification of the later events may start.

        The tiles lead to the trusted root, and that event is under it. Earlier events are not read unless the
        tiles have to be made anew.

        Raises:
            Tampered: the ledger is shorter (`truncated`) or another (`forked`).
        """
        if trusted.size > head:
            raise truncated(trusted, head)
        if trusted.size == 0:
            return ZERO_HASH
        try:
            self.tiles.trusted_edge(trusted.size, trusted.root)
            self._check_last(trusted)
        except TileError:
            self.rebuild(head, trusted)
        return self._stored_hash(trusted.size)

    def confirm(self, trusted: Checkpoint, head: int) -> None:
        """`compare` at a logarithm's cost where the tiles lead to the trusted root; nothing is written.

        For a chain of events that was verified: its event at the checkpoint's size stands for all before it.

        Raises:
            as `compare`.
        """
        if trusted.size > head:
            raise truncated(trusted, head)
        try:
            self.tiles.trusted_edge(trusted.size, trusted.root)
            self._check_last(trusted)
        except TileError:
            self.compare(trusted, head)

    def compare(self, trusted: Checkpoint, head: int) -> None:
        """The stored hashes of the first events lead to the trusted root; every one is read, no tile is believed.

        That each hash is its event's is for the caller to verify, who reads the events anyway.

        Raises:
            Tampered: the ledger is shorter (`truncated`) or another (`forked`), or an event is missing (`gap`).
        """
        if trusted.size > head:
            raise truncated(trusted, head)
        edge = Edge([], 0)
        while edge.size < trusted.size:
            page = self._store.query(
                "SELECT seq, hash FROM events WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
                (edge.size, trusted.size, PAGE),
            )
            for seq, event_hash in page:
                if seq != edge.size + 1:
                    break
                edge.push(tree.leaf_hash(event_hash), lambda *_: None)
            if not page or page[-1][0] != edge.size:
                raise Tampered(
                    f"event {edge.size + 1} is missing: run `gatebook verify`",
                    verdict="gap",
                    seq=edge.size + 1,
                )
        if edge.root() != trusted.root:
            raise forked(trusted, edge.root())

    def _proved(self, size: int, prove: Callable[[], Any], trusted: Checkpoint) -> Any:
        try:
            return prove()
        except (TileError, Tampered):
            self.rebuild(size, trusted)
        return prove()

    def inclusion(self, seq: int, head: Checkpoint) -> tree.InclusionProof:
        """A proof, already checked, that event `seq` is under the signed `head`.

        Raises:
            Tampered: the ledger's event is not under it.
        """

        def prove() -> tree.InclusionProof:
            proof = tree.prove_inclusion(seq - 1, head.size, self.tiles.nodes(head.size))
            tree.check_inclusion(proof, tree.leaf_hash(self._stored_hash(seq)), head.root)
            return proof

        found: tree.InclusionProof = self._proved(head.size, prove, head)
        return found

    def consistency(self, old: Checkpoint, new: Checkpoint) -> tree.ConsistencyProof:
        """A proof, already checked, that the log under `new` begins with that under `old`.

        Raises:
            Tampered: it does not, or neither is this ledger's.
        """

        def prove() -> tree.ConsistencyProof:
            proof = tree.prove_consistency(old.size, new.size, self.tiles.nodes(new.size))
            tree.check_consistency(proof, old.root, new.root)
            return proof

        found: tree.ConsistencyProof = self._proved(new.size, prove, new)
        return found


def forked(trusted: Checkpoint, found: bytes) -> Tampered:
    """The error for a history that is not the one signed earlier."""
    return Tampered(
        f"the first {trusted.size} events lead to root {found.hex()}, the signed root is {trusted.root.hex()}: history was rewritten",
        verdict="forked",
    )


def truncated(trusted: Checkpoint, head: int) -> Tampered:
    """The error for a history shorter than one signed earlier."""
    return Tampered(
        f"the ledger ends at event {head}, a checkpoint of {trusted.size} events was signed",
        verdict="truncated",
    )
