"""Blocks: the sums by which a range of a file that may change is proven, part by part. Pure.

A block is what of a range lies between two multiples of the block size, counted from the file's
beginning: so whoever reads some of a range checks what it reads, and nothing else of it; and what
was summed by several tasks is what one would have summed.
Shape: a range's sums are the xxh3-128 of its blocks, 16 bytes each, one after another.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import xxhash

BLOCK_BYTES: Final = 1024 * 1024
SUM_BYTES: Final = 16


def block_bounds(start: int, limit: int, block_bytes: int) -> list[int]:
    """Return where the blocks of ``[start, limit)`` begin, and where the last one ends."""
    first = (start // block_bytes + 1) * block_bytes
    return [start, *range(first, limit, block_bytes), limit] if start < limit else [start]


def sum_blocks(data: bytes | memoryview, start: int, block_bytes: int) -> bytes:
    """Return the sums of the blocks of ``data``, which begins at offset ``start`` of its file."""
    view = memoryview(data)
    bounds = block_bounds(start, start + len(view), block_bytes)
    return b"".join(sum_of(view[low - start : high - start]) for low, high in pairwise(bounds))


def sum_of(data: bytes | memoryview) -> bytes:
    """Return the sum of some bytes."""
    return xxhash.xxh3_128_digest(data)


def sum_of_rest(data: bytes | memoryview, start: int, limit: int, block_bytes: int) -> bytes:
    """Return the sum of the last block of a range that ends at ``limit``; nothing of a whole one.

    Shape: ``data`` begins at offset ``start``, where the range does, or a block.
    """
    low = max(start, limit // block_bytes * block_bytes)
    return sum_of(memoryview(data)[low - start : limit - start]) if low < limit else b""


def sums_until(sums: bytes, start: int, limit: int, rest: bytes, block_bytes: int) -> bytes:
    """Return the sums of ``[start, limit)``, out of those of a longer range from ``start`` on.

    ``rest`` is the sum of the part of a block at its end; see `sum_of_rest`.
    """
    whole = limit // block_bytes - start // block_bytes
    return sums[: max(0, whole) * SUM_BYTES] + rest


def covering(start: int, limit: int, low: int, high: int, block_bytes: int) -> tuple[int, int]:
    """Return the least whole blocks of ``[start, limit)`` in which ``[low, high)`` lies."""
    first = max(start, low // block_bytes * block_bytes)
    return first, min(limit, -(-high // block_bytes) * block_bytes)


def are_blocks(data: bytes, at: int, *, start: int, sums: bytes, block_bytes: int) -> bool:
    """Say whether bytes from offset ``at`` on are those of a range's blocks that begin there.

    Shape: the range begins at ``start`` and has these sums; ``data`` is whole blocks of it.
    """
    first = (at // block_bytes - start // block_bytes) * SUM_BYTES
    found = sum_blocks(data, at, block_bytes)
    return found == sums[first : first + len(found)]
