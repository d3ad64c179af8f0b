"""Which streams a fragment holds, so that whoever reads one stream need not fetch it. Pure.

A few are listed; of many there is a bloom filter, which may keep a fragment that holds none of
a stream's records, and never leaves out one that does.
Source: wal3-draft, "Streams"; design page 3, "Streams"; B. Bloom, "Space/Time Trade-offs in Hash
Coding with Allowable Errors"; A. Kirsch and M. Mitzenmacher, "Less Hashing, Same Performance" (two
hashes stand for all).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

from tidelog.wal.format.json import Fields, render_bytes

LISTED_MAX: Final = 16
LISTED_BYTES_MAX: Final = 1_024  # Of all together: a manifest has hundreds of such lists.

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
        return all(self.bits[place >> 3] >> (place & 7) & 1 for place in self.places_of(member))

    def places_of(self, member: bytes) -> list[int]:
        """Return the bits that stand for a value."""
        digest = hashlib.blake2b(member, digest_size=16).digest()
        # An odd step meets no place twice where the count is a power of two, and seldom elsewhere.
        first, step = int.from_bytes(digest[:8]), int.from_bytes(digest[8:]) | 1
        return self.in_steps(first, step)

    def in_steps(self, first: int, step: int) -> list[int]:
        """Return as many bits as there are hashes, of which two stand for all."""
        count = len(self.bits) * 8
        return [(first + number * step & _U64) % count for number in range(self.hashes)]


B = TypeVar("B", bound=Bloom)
StreamSet: TypeAlias = tuple[bytes, ...] | Bloom


def stream_set_of(streams: Iterable[bytes]) -> StreamSet:
    """Return what is recorded of streams; the same for the same ones, in whatever order."""
    found = tuple(sorted(set(streams)))
    is_short = len(found) <= LISTED_MAX and sum(map(len, found)) <= LISTED_BYTES_MAX
    return found if is_short else bloom_of(found)


def is_listed(held: StreamSet) -> TypeGuard[tuple[bytes, ...]]:
    """Say whether streams are recorded one by one."""
    return not isinstance(held, Bloom)


def may_hold(held: StreamSet | None, member: bytes) -> bool:
    """Say whether a fragment may hold records of a stream, or a key; of None nothing is known."""
    if held is None:
        return True
    return held.may_hold(member) if isinstance(held, Bloom) else member in held


def encode_stream_set(held: StreamSet) -> Any:
    """Return plain values."""
    if isinstance(held, Bloom):
        return {"bits": render_bytes(held.bits), "hashes": held.hashes}
    return [render_bytes(stream) for stream in held]


def stream_set_in(found: Fields, name: str) -> StreamSet:
    """Read what `encode_stream_set` gave; a missing field means none.

    Raises:
        CorruptionError: it is something else.
    """
    if not found.has(name):
        return ()
    return listed_or_filter_in(found, name, of="streams", bloom=Bloom)


def listed_or_filter_in(
    found: Fields, name: str, *, of: str, bloom: type[B]
) -> tuple[bytes, ...] | B:
    """Read a list of a few, or a filter of a kind; ``of`` is what they are of.

    Raises:
        CorruptionError: it is neither.
    """
    if isinstance(found.found[name], list):
        listed = tuple(found.blobs(name))
        if len(listed) > LISTED_MAX or list(listed) != sorted(set(listed)):
            raise found.wrong(name, f"is no list of a few {of} in order")
        return listed
    child = found.child(name)
    bits, hashes = child.blob("bits"), child.whole("hashes", most=HASHES_MAX)
    if not 1 <= len(bits) <= BYTES_MAX or not hashes:
        raise found.wrong(name, "is no bloom filter")
    return bloom(bits, hashes)


def filter_shape(count: int) -> tuple[int, int]:
    """Return how many bytes the filter of so many has, and how many bits stand for each."""
    size = min(BYTES_MAX, math.ceil(count * BITS_EACH / 8))
    return size, min(HASHES_MAX, max(1, round(size * 8 / count * math.log(2))))


def bloom_of(members: Collection[bytes]) -> Bloom:
    """Return the filter of a set; the same for the same set, in whatever order."""
    size, hashes = filter_shape(max(1, len(members)))
    empty, bits = Bloom(bytes(size), hashes), bytearray(size)
    for member in members:
        for place in empty.places_of(member):
            bits[place >> 3] |= 1 << (place & 7)
    return Bloom(bytes(bits), hashes)
