"""The tree's hashes as C2SP tlog-tiles on disk, so that a checkpoint or proof costs about its logarithm.

Tiles are a disposable cache beside the ledger, never a source of truth. Only the right edge is ever
extended, and the root of that edge is compared with a root that was signed before: every byte that the
next root is made of goes through this comparison, so a damaged tile is found and not signed. All other
tiles serve proofs only, and a proof is checked against a signed root before it is handed out.

Layout: `<directory>/<level>/x001/x234/067` for full tiles of 256 hashes, `067.p/<width>` for partial ones.
"""

from __future__ import annotations

import os

from ledger.errors import GatebookError
from ledger.proofs.tree import EMPTY_ROOT, HASH_SIZE, fold_complete, leaf_hash, node_hash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ledger.proofs.tree import Node

HEIGHT = 8
WIDTH = 1 << HEIGHT  # hashes in a full tile (tlog-tiles, "Merkle Tree")


class TileError(GatebookError):
    """A tile is missing, cut or does not lead to the root it should; the cache must be made anew."""


def tile_path(level: int, number: int) -> str:
    """Where tile `number` of `level` lies, in the path elements of tlog-tiles (without `.p/<width>`)."""
    parts = [f"{number % 1000:03d}"]
    while number >= 1000:
        number //= 1000
        parts.append(f"x{number % 1000:03d}")
    return os.path.join(str(level), *reversed(parts))


class Edge:
    """The right edge of a tree: for each tile level the hashes that fill no whole tile yet.

    Together they say all that is needed to append leaves and to compute the root.
    """

    __slots__ = ("rows", "size")

    def __init__(self, rows: list[list[bytes]], size: int) -> None:
        self.rows = rows
        self.size = size

    def push(self, leaf: bytes, full: Callable[[int, int, bytes], None]) -> None:
        """Appends one leaf hash; `full(level, number, data)` is given every tile that this fills."""
        level, value = 0, leaf
        self.size += 1
        while True:
            if level == len(self.rows):
                self.rows.append([])
            row = self.rows[level]
            row.append(value)
            if len(row) < WIDTH:
                return
            full(level, (self.size >> (HEIGHT * (level + 1))) - 1, b"".join(row))
            value = fold_complete(row)
            row.clear()
            level += 1

    def root(self) -> bytes:
        """The root hash of the tree of `size` leaves."""
        result = b""
        for row in self.rows:  # from the small subtrees on the right to the large ones on the left
            start = 0
            peaks = []
            while start < len(row):
                count = 1 << ((len(row) - start).bit_length() - 1)
                peaks.append(fold_complete(row[start : start + count]))
                start += count
            for peak in reversed(peaks):
                result = node_hash(peak, result) if result else peak
        return result or EMPTY_ROOT


class HashTiles:
    """The tiles in one directory.

    Reading raises TileError when what is needed is not there whole; a write that dies half way leaves
    a temporary name that nobody reads.
    """

    __slots__ = ("_unwritten", "directory")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        # What a full or read-only disk would not take: enough for this call, made again by the next.
        self._unwritten: dict[tuple[int, int], bytes] = {}

    def _path(self, level: int, number: int) -> str:
        return os.path.join(self.directory, tile_path(level, number))

    def read(self, level: int, number: int, width: int) -> bytes:
        """The first `width` hashes of a tile, from the full tile or the narrowest partial one that has them.

        Raises:
            TileError: no file holds them.
        """
        path = self._path(level, number)
        held = self._unwritten.get((level, number), b"")
        if len(held) >= width * HASH_SIZE:
            return held[: width * HASH_SIZE]
        candidates = [(WIDTH, path)]
        try:
            names = os.listdir(path + ".p")
        except OSError:
            names = []
        candidates += [(int(n), os.path.join(path + ".p", n)) for n in names if n.isascii() and n.isdigit()]
        for size, name in sorted(candidates):
            if size < width:
                continue
            try:
                with open(name, "rb") as file:
                    data = file.read(WIDTH * HASH_SIZE + 1)
            except OSError:
                continue
            if len(data) != size * HASH_SIZE:
                raise TileError(
                    f"tile {os.path.relpath(name, self.directory)}: {len(data)} bytes instead of {size * HASH_SIZE}"
                )
            return data[: width * HASH_SIZE]
        raise TileError(f"tile {tile_path(level, number)} is missing")

    def write(self, level: int, number: int, data: bytes) -> None:
        """Stores a tile under the name that its width asks for; a full one takes its partial ones away."""
        path = self._path(level, number)
        width = len(data) // HASH_SIZE
        name = path if width == WIDTH else os.path.join(path + ".p", str(width))
        temporary = f"{name}.{os.getpid()}.tmp"
        try:
            os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(data)
            # Not fsynced: a tile lost or cut by a power failure is missing or of a wrong length, thus made anew.
            os.replace(temporary, name)
        except FileNotFoundError:
            return  # another process filled this tile meanwhile and took the directory of its partial ones away
        except OSError:
            self._unwritten[level, number] = data
            return
        if width == WIDTH:
            self._drop_partial(path + ".p", but="")

    def _drop_partial(self, directory: str, *, but: str) -> None:
        try:
            for name in os.listdir(directory):
                if name != but and not name.endswith(".tmp"):
                    os.unlink(os.path.join(directory, name))
            if not but:
                os.rmdir(directory)
        except OSError:
            pass  # another process tidies up too; what is left over is only space

    def edge(self, size: int) -> Edge:
        """The right edge at `size` leaves, as it lies on disk: not to be believed before its root is compared.

        Raises:
            TileError: a tile of it is missing or cut.
        """
        rows = []
        for level in range((size.bit_length() + HEIGHT - 1) // HEIGHT):
            width = (size >> (HEIGHT * level)) % WIDTH
            data = self.read(level, size >> (HEIGHT * (level + 1)), width) if width else b""
            rows.append([data[at : at + HASH_SIZE] for at in range(0, len(data), HASH_SIZE)])
        return Edge(rows, size)

    def trusted_edge(self, size: int, root: bytes) -> Edge:
        """The right edge at `size`, every byte of it compared with a `root` that is trusted.

        Raises:
            TileError: it is not there, or leads to another root.
        """
        edge = self.edge(size)
        if edge.root() != root:
            raise TileError(f"the tiles at {size} events do not lead to the root signed for them")
        return edge

    def extend(self, edge: Edge, event_hashes: Iterable[bytes]) -> None:
        """Appends the leaves of `event_hashes` to `edge` and stores every tile that this fills or begins."""
        before = edge.size
        for event_hash in event_hashes:
            edge.push(leaf_hash(event_hash), self.write)
        if edge.size == before:
            return
        for level, row in enumerate(edge.rows):
            if row and (edge.size >> (HEIGHT * level)) != (before >> (HEIGHT * level)):
                number = edge.size >> (HEIGHT * (level + 1))
                self.write(level, number, b"".join(row))
                self._drop_partial(self._path(level, number) + ".p", but=str(len(row)))

    def nodes(self, size: int) -> Node:
        """A reader of complete subtrees of the tree of `size` leaves, for the provers in `tree`."""
        held: dict[tuple[int, int], bytes] = {}

        def node(level: int, index: int) -> bytes:
            row, height = divmod(level, HEIGHT)
            first = index << height
            number, start = divmod(first, WIDTH)
            if (row, number) not in held:
                whole = number < size >> (HEIGHT * (row + 1))
                width = WIDTH if whole else (size >> (HEIGHT * row)) % WIDTH
                held[row, number] = self.read(row, number, width)
            data = held[row, number][start * HASH_SIZE : (start + (1 << height)) * HASH_SIZE]
            return fold_complete([data[at : at + HASH_SIZE] for at in range(0, len(data), HASH_SIZE)])

        return node
