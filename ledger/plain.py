"""Plain JSON data judged canonical at C speed: ASCII, no floats, safe integers, a few levels deep.

msgspec writes what it read with sorted members: for such data, and only for such, that is the RFC 8785 form, so one
comparison judges it. Whatever is not plain needs `ledger.canonical`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ledger.canonical import MAX_SAFE

DEPTH = 4


def _plain_type(depth: int) -> Any:
    scalar = Annotated[int, Meta(ge=-MAX_SAFE, le=MAX_SAFE)] | str | bool | None
    below: Any = scalar
    for _ in range(depth):
        below = scalar | list[below] | dict[str, below]
    return dict[str, below]


_read = msgspec.json.Decoder(_plain_type(DEPTH)).decode
_write = msgspec.json.Encoder(order="sorted").encode


def is_plain(data: bytes) -> bool:
    """True when `data` is a plain JSON object in its canonical bytes; False says nothing."""
    if not data.isascii():
        return False
    try:
        return _write(_read(data)) == data
    except msgspec.MsgspecError:
        return False
