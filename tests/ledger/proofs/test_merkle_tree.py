"""Every proof of every tree up to 100 leaves, against the RFC's own recursion and an independent checker."""

from __future__ import annotations

from hashlib import sha256

import metamorphic_log
import pytest

from ledger.errors import Invalid, Tampered
from ledger.proofs import tree

LIMIT = 100
EVENTS = [sha256(b"event %d" % i).digest() for i in range(LIMIT)]
LEAVES = [tree.leaf_hash(event) for event in EVENTS]


def mth(data: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, as the text says it."""
    if not data:
        return sha256(b"").digest()
    if len(data) == 1:
        return sha256(b"\x00" + data[0]).digest()
    k = 1
    while k * 2 < len(data):
        k *= 2
    return sha256(b"\x01" + mth(data[:k]) + mth(data[k:])).digest()


MEMO: dict[tuple[int, int], bytes] = {}


def node(level: int, index: int) -> bytes:
    if level == 0:
        return LEAVES[index]
    if (level, index) not in MEMO:
        MEMO[level, index] = tree.node_hash(node(level - 1, 2 * index), node(level - 1, 2 * index + 1))
    return MEMO[level, index]


ROOTS = [mth(EVENTS[:size]) for size in range(LIMIT + 1)]


def test_the_root_of_every_tree_is_the_one_of_rfc_6962():
    assert [tree.tree_root(size, node) for size in range(LIMIT + 1)] == ROOTS


def test_the_trees_of_the_rfc_test_vectors_have_their_published_roots():
    """The eight leaves that certificate transparency implementations share as vectors."""
    data = [
        bytes.fromhex(h)
        for h in (
            "",
            "00",
            "10",
            "2021",
            "3031",
            "40414243",
            "5051525354555657",
            "606162636465666768696a6b6c6d6e6f",
        )
    ]
    leaves = [tree.leaf_hash(d) for d in data]

    def read(level: int, index: int) -> bytes:
        return tree.fold_complete(leaves[index << level : (index + 1) << level])

    assert tree.EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert tree.tree_root(1, read).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert tree.tree_root(8, read).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


def test_every_inclusion_proof_checks_and_every_damaged_one_does_not():
    for size in range(1, LIMIT + 1):
        for index in range(size):
            proof = tree.prove_inclusion(index, size, node)
            tree.check_inclusion(proof, LEAVES[index], ROOTS[size])
            if size > 1 and size % 7 == 0:
                refuse_damaged_inclusion(proof, LEAVES[index], ROOTS[size])


def refuse_damaged_inclusion(proof: tree.InclusionProof, leaf: bytes, root: bytes) -> None:
    index, size, path = proof.index, proof.size, proof.path
    with pytest.raises(Tampered):
        tree.check_inclusion(proof, LEAVES[(index + 1) % size], root)
    with pytest.raises(Tampered):
        tree.check_inclusion(proof, leaf, ROOTS[size - 1])
    for at in range(len(path)):
        flipped = bytes([path[at][0] ^ 1]) + path[at][1:]
        with pytest.raises(Tampered):
            tree.check_inclusion(
                tree.InclusionProof(index, size, [*path[:at], flipped, *path[at + 1 :]]), leaf, root
            )
    for wrong in (path[:-1], (*path, path[0]), path[1:]):
        with pytest.raises(Tampered):
            tree.check_inclusion(tree.InclusionProof(index, size, wrong), leaf, root)
    for other in (index - 1, index + 1):
        with pytest.raises(Tampered):
            tree.check_inclusion(tree.InclusionProof(other, size, path), leaf, root)


def test_every_consistency_proof_checks_and_every_damaged_one_does_not():
    for new in range(LIMIT + 1):
        for old in range(new + 1):
            proof = tree.prove_consistency(old, new, node)
            tree.check_consistency(proof, ROOTS[old], ROOTS[new])
            if 0 < old < new and new % 7 == 0:
                refuse_damaged_consistency(proof)


def refuse_damaged_consistency(proof: tree.ConsistencyProof) -> None:
    old, new, path = proof.old, proof.new, proof.path
    other = sha256(b"another root").digest()
    for roots in ((other, ROOTS[new]), (ROOTS[old], other), (ROOTS[new], ROOTS[old])):
        with pytest.raises(Tampered):
            tree.check_consistency(proof, *roots)
    for at in range(len(path)):
        flipped = bytes([path[at][0] ^ 1]) + path[at][1:]
        with pytest.raises(Tampered):
            tree.check_consistency(
                tree.ConsistencyProof(old, new, [*path[:at], flipped, *path[at + 1 :]]),
                ROOTS[old],
                ROOTS[new],
            )
    for wrong in (path[:-1], (*path, path[0]), ()):
        with pytest.raises(Tampered):
            tree.check_consistency(tree.ConsistencyProof(old, new, wrong), ROOTS[old], ROOTS[new])


def test_an_independent_implementation_accepts_every_proof():
    """metamorphic-log is a Rust checker of the same standard."""
    for size in range(1, LIMIT + 1):
        for index in range(0, size, 3):
            proof = tree.prove_inclusion(index, size, node)
            metamorphic_log.verify_inclusion(index, size, LEAVES[index], list(proof.path), ROOTS[size])
        for old in range(1, size, 3):
            grown = tree.prove_consistency(old, size, node)
            metamorphic_log.verify_consistency(old, size, list(grown.path), ROOTS[old], ROOTS[size])


@pytest.mark.parametrize(("index", "size"), [(-1, 5), (5, 5), (0, 0), (7, 5)])
def test_no_proof_is_made_for_a_leaf_outside_the_tree(index, size):
    with pytest.raises(Invalid):
        tree.prove_inclusion(index, size, node)
    with pytest.raises(Tampered):
        tree.check_inclusion(tree.InclusionProof(index, size, ()), LEAVES[0], ROOTS[1])


def test_a_log_never_shrinks_into_its_proof():
    with pytest.raises(Invalid):
        tree.prove_consistency(6, 5, node)
    with pytest.raises(Tampered):
        tree.check_consistency(tree.ConsistencyProof(6, 5, ()), ROOTS[6], ROOTS[5])


def test_two_roots_of_one_size_are_a_fork():
    with pytest.raises(Tampered) as caught:
        tree.check_consistency(tree.ConsistencyProof(5, 5, ()), ROOTS[5], ROOTS[6])
    assert caught.value.verdict == "forked"


def test_an_empty_old_tree_has_one_root_only():
    tree.check_consistency(tree.ConsistencyProof(0, 5, ()), tree.EMPTY_ROOT, ROOTS[5])
    with pytest.raises(Tampered):
        tree.check_consistency(tree.ConsistencyProof(0, 5, ()), ROOTS[1], ROOTS[5])


def test_a_hash_of_another_length_is_not_a_hash():
    with pytest.raises(Invalid, match="31 bytes"):
        tree.check_inclusion(tree.InclusionProof(0, 2, [LEAVES[1][:31]]), LEAVES[0], ROOTS[2])
