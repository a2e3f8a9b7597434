"""Tiles give the same roots and proofs as the plain tree, grow lazily, and never hide damage."""

from __future__ import annotations

import os
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.proofs import tree
from ledger.proofs.tiles import Edge, HashTiles, TileError, tile_path

COUNT = 66_000  # over 256 * 256: three levels of tiles


def event(number: int) -> bytes:
    return sha256(b"%d" % number).digest()


@pytest.fixture(scope="module")
def leaves():
    return [tree.leaf_hash(event(i)) for i in range(COUNT)]


@pytest.fixture(scope="module")
def node(leaves):
    rows = [leaves]
    while len(rows[-1]) > 1:
        row = rows[-1]
        rows.append([tree.node_hash(row[i], row[i + 1]) for i in range(0, len(row) - 1, 2)])
    return lambda level, index: rows[level][index]


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    tiles = HashTiles(str(tmp_path_factory.mktemp("tiles")))
    edge = Edge([], 0)
    tiles.extend(edge, (event(i) for i in range(COUNT)))
    return tiles


def test_tile_paths_are_those_of_the_standard():
    assert tile_path(0, 1234067) == os.path.join("0", "x001", "x234", "067")
    assert tile_path(2, 5) == os.path.join("2", "005")


def test_the_tiles_of_a_tree_of_70000_are_those_that_the_standard_counts(tmp_path):
    """tlog-tiles, "Partial Tiles": 273 full and one of 112; one full and one of 17; one of 1."""
    tiles = HashTiles(str(tmp_path))
    tiles.extend(Edge([], 0), (event(i) for i in range(70_000)))
    found = sorted(
        os.path.relpath(os.path.join(where, name), tmp_path)
        for where, _, names in os.walk(tmp_path)
        for name in names
    )
    partial = [name for name in found if ".p/" in name]
    assert partial == ["0/273.p/112", "1/001.p/17", "2/000.p/1"]
    assert len([n for n in found if n.startswith("0/") and ".p/" not in n]) == 273
    assert len(found) == 273 + 1 + 3


def test_an_edge_grown_leaf_by_leaf_has_the_root_of_every_tree(leaves, node):
    edge = Edge([], 0)
    for size in range(600):
        assert edge.root() == tree.tree_root(size, node)
        edge.push(leaves[size], lambda *_: None)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 511, 512, 65_535, 65_536, 65_537, COUNT])
def test_an_edge_on_disk_has_the_root_of_any_earlier_size(full, node, size):
    assert full.trusted_edge(size, tree.tree_root(size, node)).size == size


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_proofs_from_tiles_are_those_of_the_plain_tree(full, node, data):
    size = data.draw(st.integers(1, COUNT))
    index = data.draw(st.integers(0, size - 1))
    ours = tree.prove_inclusion(index, size, full.nodes(size))
    assert ours.path == tree.prove_inclusion(index, size, node).path
    grown = tree.prove_consistency(index, size, full.nodes(size))
    assert grown.path == tree.prove_consistency(index, size, node).path


@settings(max_examples=25, deadline=None)
@given(steps=st.lists(st.integers(0, 400), max_size=6))
def test_tiles_grown_in_steps_are_those_grown_at_once(tmp_path_factory, node, steps):
    tiles = HashTiles(str(tmp_path_factory.mktemp("steps")))
    size = 0
    for step in steps:
        edge = tiles.trusted_edge(size, tree.tree_root(size, node))
        tiles.extend(edge, (event(i) for i in range(size, size + step)))
        size += step
        assert edge.root() == tree.tree_root(size, node)
    assert sum(len(names) for _, _, names in os.walk(tiles.directory)) == tile_count(size)


def tile_count(size: int) -> int:
    count = 0
    while size:
        count += -(-size // 256)
        size //= 256
    return count


def test_a_proof_at_66000_events_reads_few_tiles(full, node, monkeypatch):
    read = []
    monkeypatch.setattr(HashTiles, "read", _counting(HashTiles.read, read))
    tree.prove_inclusion(12_345, COUNT, full.nodes(COUNT))
    assert len(read) <= 5
    read.clear()
    full.trusted_edge(COUNT, tree.tree_root(COUNT, node))
    assert len(read) <= 3


def _counting(function, calls):
    def wrapped(*args):
        calls.append(args[1:])
        return function(*args)

    return wrapped


def small(tmp_path, size=700):
    tiles = HashTiles(str(tmp_path / "tiles"))
    edge = Edge([], 0)
    tiles.extend(edge, (event(i) for i in range(size)))
    return tiles, edge.root()


def test_every_flipped_byte_of_the_right_edge_is_found(tmp_path):
    tiles, root = small(tmp_path)
    edge_files = [
        os.path.join(tiles.directory, "0", "002.p", str(700 % 256)),
        os.path.join(tiles.directory, "1", "000.p", "2"),
    ]
    for path in edge_files:
        with open(path, "rb") as file:
            good = file.read()
        for at in range(0, len(good), 7):
            with open(path, "wb") as file:
                file.write(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
            with pytest.raises(TileError):
                tiles.trusted_edge(700, root)
        with open(path, "wb") as file:
            file.write(good)
    tiles.trusted_edge(700, root)


@pytest.mark.parametrize("content", [b"", b"x", b"x" * 8191, b"x" * 8193])
def test_a_cut_or_overlong_tile_is_found(tmp_path, content):
    tiles, _ = small(tmp_path)
    with open(os.path.join(tiles.directory, "0", "000"), "wb") as file:
        file.write(content)
    with pytest.raises(TileError):
        tree.prove_inclusion(3, 700, tiles.nodes(700))


def test_a_missing_tile_is_found(tmp_path):
    tiles, root = small(tmp_path)
    os.unlink(os.path.join(tiles.directory, "1", "000.p", "2"))
    with pytest.raises(TileError, match="missing"):
        tiles.trusted_edge(700, root)


def test_a_damaged_inner_tile_gives_a_proof_that_does_not_check(tmp_path, leaves, node):
    tiles, root = small(tmp_path)
    path = os.path.join(tiles.directory, "0", "000")
    with open(path, "r+b") as file:
        file.write(b"\0")
    proof = tree.prove_inclusion(3, 700, tiles.nodes(700))
    with pytest.raises(tree.Tampered):
        tree.check_inclusion(proof, leaves[3], root)


def test_an_unfinished_write_is_not_read(tmp_path):
    tiles, root = small(tmp_path)
    with open(os.path.join(tiles.directory, "0", "002.p", "999.17.tmp"), "wb") as file:
        file.write(b"half")
    tiles.trusted_edge(700, root)


def test_a_disk_that_takes_no_tile_still_gives_roots_and_proofs(tmp_path, leaves, node):
    """A file stands where the directory would be: every write fails, as on a full or read-only disk."""
    (tmp_path / "tiles").write_text("in the way")
    tiles = HashTiles(str(tmp_path / "tiles"))
    edge = Edge([], 0)
    tiles.extend(edge, (event(i) for i in range(700)))
    assert edge.root() == tree.tree_root(700, node)
    assert tree.prove_inclusion(3, 700, tiles.nodes(700)).path == tree.prove_inclusion(3, 700, node).path
    assert (tmp_path / "tiles").read_text() == "in the way"
