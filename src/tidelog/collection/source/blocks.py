"""Blocks: checksums of a range of a file that may change, so that a part can be checked. Pure.

A block is the part of a range between two multiples of the block size, counted from the file's
beginning. A task that reads a part of a range checks only the blocks of that part. Several tasks
that sum parts of a range get the same sums as one task would.
Shape: a range's sums are the xxh3-128 of its blocks, 16 bytes each, concatenated.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import xxhash

BLOCK_BYTES: Final = 1024 * 1024
SUM_BYTES: Final = 16


def block_bounds(start: int, limit: int, block_bytes: int) -> list[int]:
    """Return the start of each block of ``[start, limit)``, and the end of the last one."""
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
    """Return the sum of the last block of a range that ends at ``limit``; b"" if it is whole.

    Shape: ``data`` begins at offset ``start``: the start of the range, or of a block.
    """
    low = max(start, limit // block_bytes * block_bytes)
    return sum_of(memoryview(data)[low - start : limit - start]) if low < limit else b""


def sums_until(sums: bytes, start: int, limit: int, rest: bytes, block_bytes: int) -> bytes:
    """Return the sums of ``[start, limit)``, given those of a longer range with the same start.

    ``rest`` is the sum of its last, partial block; see `sum_of_rest`.
    """
    whole = limit // block_bytes - start // block_bytes
    return sums[: max(0, whole) * SUM_BYTES] + rest


def covering(start: int, limit: int, low: int, high: int, block_bytes: int) -> tuple[int, int]:
    """Return the bounds of the least whole blocks of ``[start, limit)`` around ``[low, high)``."""
    first = max(start, low // block_bytes * block_bytes)
    return first, min(limit, -(-high // block_bytes) * block_bytes)


def are_blocks(data: bytes, at: int, *, start: int, sums: bytes, block_bytes: int) -> bool:
    """Return True if ``data`` matches the sums of the range's blocks that begin at offset ``at``.

    Shape: ``sums`` are those of the range, which begins at ``start``. ``data`` is whole blocks.
    """
    first = (at // block_bytes - start // block_bytes) * SUM_BYTES
    found = sum_blocks(data, at, block_bytes)
    return found == sums[first : first + len(found)]
