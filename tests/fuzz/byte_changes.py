"""Changes of an object's bytes, without regard to their meaning."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

Change = tuple[str, bytes]


def flip_bits(dice: random.Random, data: bytes) -> Change:
    changed, places = bytearray(data), []
    for _ in range(dice.choice([1, 1, 1, 2, 8])):
        place = dice.randrange(len(data))
        changed[place] ^= 1 << dice.randrange(8)
        places.append(place)
    return f"bits flipped at {places}", bytes(changed)


def edit_bytes(dice: random.Random, data: bytes) -> Change:
    place, length = dice.randrange(len(data)), dice.choice([1, 2, 4, 8])
    put = dice.choice([b"\x00", b"\xff", b"\x7f", b"\x80", dice.randbytes(1)]) * length
    changed = data[:place] + put + data[place + length :]
    return f"{put!r} written at {place}", changed[: max(len(data), 1)]


def cut(dice: random.Random, data: bytes) -> Change:
    length = dice.choice([0, 1, len(data) // 2, len(data) - 1, dice.randrange(len(data))])
    return f"cut to {length} bytes", data[:length]


def cut_out(dice: random.Random, data: bytes) -> Change:
    start = dice.randrange(len(data))
    limit = min(len(data), start + dice.choice([1, 4, 16, 256]))
    return f"bytes {start} to {limit} cut out", data[:start] + data[limit:]


def extend(dice: random.Random, data: bytes) -> Change:
    more = dice.choice([b"\x00", b" ", b"}", b"PAR1", data[-8:], data, dice.randbytes(40)])
    return f"{len(more)} bytes put after it", data + more


def blank(dice: random.Random, data: bytes) -> Change:
    """Replace a block by zeros, like a file system that lost it; the length stays."""
    start = dice.randrange(len(data))
    limit = min(len(data), start + dice.choice([16, 512, 4096]))
    told = f"zeros from {start} to {limit}"
    return told, data[:start] + bytes(limit - start) + data[limit:]


BYTE_CHANGES: Final[Sequence[Callable[[random.Random, bytes], Change]]] = (
    flip_bits,
    edit_bytes,
    cut,
    cut_out,
    extend,
    blank,
)


def change_bytes(dice: random.Random, data: bytes) -> Change:
    """Return a description of the change, and the bytes; they may be unchanged."""
    if not data:
        return extend(dice, data)
    return dice.choice(BYTE_CHANGES)(dice, data)
