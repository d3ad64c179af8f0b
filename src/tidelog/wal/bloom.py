"""Bloom filters: small sets of bytes that may say yes wrongly, and never no. Pure.

Source: B. Bloom, "Space/Time Trade-offs in Hash Coding with Allowable Errors"; A. Kirsch and M.
Mitzenmacher, "Less Hashing, Same Performance" (two hashes stand for all).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

BITS_EACH: Final = 10  # About one wrong yes in a hundred.
BYTES_MAX: Final = 4_096  # Each is kept in a manifest; with more members it is wrong more often.
HASHES_MAX: Final = 16
_U64: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Bloom:
    """A set of bytes; ``hashes`` bits stand for each member."""

    bits: bytes
    hashes: int

    def may_hold(self, member: bytes) -> bool:
        """Say whether it may hold a value; if not, it surely does not."""
        places = _places(member, len(self.bits) * 8, self.hashes)
        return all(self.bits[place >> 3] >> (place & 7) & 1 for place in places)


def bloom_of(members: Collection[bytes]) -> Bloom:
    """Give the filter of a set; the same for the same set, in whatever order."""
    count = max(1, len(members))
    size = min(BYTES_MAX, math.ceil(count * BITS_EACH / 8))
    hashes = min(HASHES_MAX, max(1, round(size * 8 / count * math.log(2))))
    bits = bytearray(size)
    for member in members:
        for place in _places(member, size * 8, hashes):
            bits[place >> 3] |= 1 << (place & 7)
    return Bloom(bytes(bits), hashes)


def _places(member: bytes, count: int, hashes: int) -> list[int]:
    digest = hashlib.blake2b(member, digest_size=16).digest()
    # An odd step meets no place twice where the count is a power of two, and seldom elsewhere.
    at, step = int.from_bytes(digest[:8]), int.from_bytes(digest[8:]) | 1
    return [(at + number * step & _U64) % count for number in range(hashes)]
