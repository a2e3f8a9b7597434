"""The RFC 6962 Merkle tree with SHA-256 (same tree: RFC 9162, section 2.1), as provers and checkers.

A leaf's input is an event's 32-byte hash, so the tree says nothing that the hash chain does not; it
makes it possible to show one event, or that a log only grew, with a logarithmic number of hashes.
Leaf `i` is event `seq = i + 1`.
"""

from __future__ import annotations

from hashlib import sha256

from ledger.errors import Invalid, Tampered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # (level, index) -> hash of the complete subtree over leaves [index << level, (index + 1) << level)
    Node = Callable[[int, int], bytes]

HASH_SIZE = 32
MAX_SIZE = 2**63 - 1  # tlog-cosignature bounds its counters so; far beyond any ledger
EMPTY_ROOT = sha256(b"").digest()  # RFC 6962, 2.1: MTH({}) = SHA-256()


class InclusionProof:
    """That leaf `index` is in the tree of `size` leaves: `path` from the leaf's sibling up to the root's child."""

    __slots__ = ("index", "path", "size")

    def __init__(self, index: int, size: int, path: Sequence[bytes]) -> None:
        self.index = index
        self.size = size
        self.path = tuple(path)


class ConsistencyProof:
    """That the tree of `new` leaves begins with the tree of `old` leaves (RFC 9162, 2.1.4)."""

    __slots__ = ("new", "old", "path")

    def __init__(self, old: int, new: int, path: Sequence[bytes]) -> None:
        self.old = old
        self.new = new
        self.path = tuple(path)


def leaf_hash(event_hash: bytes) -> bytes:
    """The hash of a leaf: SHA-256(0x00 || event hash), RFC 6962, section 2.1."""
    return sha256(b"\x00" + event_hash).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node: SHA-256(0x01 || left || right), RFC 6962, section 2.1."""
    return sha256(b"\x01" + left + right).digest()


def fold_complete(hashes: Sequence[bytes]) -> bytes:
    """The root over a power-of-two number of subtree hashes of one level."""
    row = list(hashes)
    while len(row) > 1:
        row = [node_hash(row[i], row[i + 1]) for i in range(0, len(row), 2)]
    return row[0]


def range_hash(start: int, end: int, node: Node) -> bytes:
    """MTH(D[start:end]) of RFC 6962 from complete subtrees.

    `start` must be a multiple of the smallest power of two not below `end - start`, as in every range
    that the standard's recursions meet; then the range splits into complete subtrees, large to small.
    """
    if start == end:
        return EMPTY_ROOT
    peaks = []
    while start < end:
        level = (end - start).bit_length() - 1
        peaks.append(node(level, start >> level))
        start += 1 << level
    result = peaks.pop()
    while peaks:
        result = node_hash(peaks.pop(), result)
    return result


def tree_root(size: int, node: Node) -> bytes:
    """The root hash of the tree over the first `size` leaves."""
    return range_hash(0, size, node)


def _split(count: int) -> int:
    """The largest power of two smaller than `count` (k in RFC 6962, 2.1)."""
    return 1 << ((count - 1).bit_length() - 1)


def prove_inclusion(index: int, size: int, node: Node) -> InclusionProof:
    """PATH(index, D[size]) of RFC 6962, section 2.1.1.

    Raises:
        Invalid: there is no leaf `index` in a tree of `size` leaves.
    """
    if not 0 <= index < size:
        raise Invalid(f"leaf {index} is not in a tree of {size} leaves")
    path = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            path.append(range_hash(middle, end, node))
            end = middle
        else:
            path.append(range_hash(start, middle, node))
            start = middle
    return InclusionProof(index, size, path[::-1])


def prove_consistency(old: int, new: int, node: Node) -> ConsistencyProof:
    """PROOF(old, D[new]) of RFC 6962, section 2.1.2; empty when `old` is 0 or equals `new`.

    Raises:
        Invalid: `old` is larger than `new`.
    """
    if not 0 <= old <= new:
        raise Invalid(f"a log of {new} events cannot have grown from one of {old}")
    path: list[bytes] = []
    start, end = 0, new
    whole = True  # `b` of the RFC: the old tree is a subtree that its holder knows already
    while old not in (0, end):
        middle = start + _split(end - start)
        if old <= middle:
            path.append(range_hash(middle, end, node))
            end = middle
        else:
            path.append(range_hash(start, middle, node))
            start = middle
            whole = False
    if not whole:
        path.append(range_hash(start, end, node))
    return ConsistencyProof(old, new, path[::-1])


def _require(name: str, value: bytes) -> None:
    if len(value) != HASH_SIZE:
        raise Invalid(f"{name} has {len(value)} bytes, a SHA-256 hash has {HASH_SIZE}")


def check_inclusion(proof: InclusionProof, leaf: bytes, root: bytes) -> None:
    """The algorithm of RFC 9162, section 2.1.3.2: `leaf` (a leaf hash) is at `proof.index` under `root`.

    Raises:
        Invalid: a hash has not 32 bytes.
        Tampered: the hashes lead to another root, or are too many or too few for this index and size.
    """
    if not 0 <= proof.index < proof.size <= MAX_SIZE:
        raise Tampered(f"inclusion proof: leaf {proof.index} is not in a tree of {proof.size} leaves")
    for value in (leaf, root, *proof.path):
        _require("inclusion proof: a hash", value)
    fn, sn, result = proof.index, proof.size - 1, leaf
    for step in proof.path:
        if sn == 0:
            raise Tampered(f"inclusion proof: {len(proof.path)} hashes are too many")
        if fn & 1 or fn == sn:
            result = node_hash(step, result)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            result = node_hash(result, step)
        fn, sn = fn >> 1, sn >> 1
    if sn:
        raise Tampered(f"inclusion proof: {len(proof.path)} hashes are too few")
    if result != root:
        raise Tampered(
            f"inclusion proof: event {proof.index + 1} leads to root {result.hex()}, the signed root is {root.hex()}",
            seq=proof.index + 1,
        )


def check_consistency(proof: ConsistencyProof, old_root: bytes, new_root: bytes) -> None:
    """The algorithm of RFC 9162, section 2.1.4.2: the tree under `new_root` begins with that under `old_root`.

    An old tree of no leaves has one possible root, so it is consistent with every other.

    Raises:
        Invalid: a hash has not 32 bytes.
        Tampered: the hashes do not lead to both roots, or are too many or too few (verdict `forked`).
    """
    old, new = proof.old, proof.new
    if not 0 <= old <= new <= MAX_SIZE:
        raise Tampered(
            f"consistency proof: a log of {new} events cannot have grown from one of {old}", verdict="forked"
        )
    for value in (old_root, new_root, *proof.path):
        _require("consistency proof: a hash", value)
    if old in (0, new):
        if proof.path:
            raise Tampered(
                "consistency proof: it must be empty when the sizes are equal or the old one is 0",
                verdict="forked",
            )
        if old_root != (EMPTY_ROOT if old == 0 else new_root):
            raise Tampered(f"two different roots at size {old}: the log was forked", verdict="forked")
        return
    path = list(proof.path)
    if old & (old - 1) == 0:
        path.insert(0, old_root)  # the old tree is itself a complete subtree, left out of the proof
    if not path:
        raise Tampered("consistency proof: it is empty", verdict="forked")
    fn, sn = old - 1, new - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = path[0]
    for step in path[1:]:
        if sn == 0:
            raise Tampered(f"consistency proof: {len(proof.path)} hashes are too many", verdict="forked")
        if fn & 1 or fn == sn:
            fr, sr = node_hash(step, fr), node_hash(step, sr)
            while not fn & 1 and fn:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = node_hash(sr, step)
        fn, sn = fn >> 1, sn >> 1
    if sn:
        raise Tampered(f"consistency proof: {len(proof.path)} hashes are too few", verdict="forked")
    if fr != old_root:
        raise Tampered(
            f"the log of {new} events does not begin with the {old} events signed earlier: it was forked",
            verdict="forked",
        )
    if sr != new_root:
        raise Tampered(
            f"the proof leads from {old} events to another root than the signed one", verdict="forked"
        )
