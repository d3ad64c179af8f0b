"""The set of a fragment's streams, so that a read of one stream can skip the fragment. Pure.

A few streams are listed. Many are kept in a Bloom filter: it may claim a stream that the fragment
does not hold, but never denies one that it holds.
Source: wal3-draft, "Streams"; design page 3, "Streams"; B. Bloom, "Space/Time Trade-offs in Hash
Coding with Allowable Errors"; A. Kirsch and M. Mitzenmacher, "Less Hashing, Same Performance" (all
hashes derive from two).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeGuard, TypeVar

from tidelog.wal.format.json import Fields, render_bytes

LISTED_MAX: Final = 16
LISTED_BYTES_MAX: Final = 1_024  # All ids together: a manifest has hundreds of such lists.

BITS_EACH: Final = 10  # About 1 % false positives.
# A manifest stores each filter. With more members the false positives increase.
BYTES_MAX: Final = 4_096
HASHES_MAX: Final = 16
_U64: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Bloom:
    """A set of bytes as a Bloom filter with ``hashes`` bits per member."""

    bits: bytes
    hashes: int

    def may_hold(self, member: bytes) -> bool:
        """Return True if the set may hold a value; False is certain."""
        return all(self.bits[place >> 3] >> (place & 7) & 1 for place in self.places_of(member))

    def places_of(self, member: bytes) -> list[int]:
        """Return the bits of a value."""
        digest = hashlib.blake2b(member, digest_size=16).digest()
        # If the number of bits is a power of two, an odd step visits no bit twice; otherwise
        # seldom.
        first, step = int.from_bytes(digest[:8]), int.from_bytes(digest[8:]) | 1
        return self.in_steps(first, step)

    def in_steps(self, first: int, step: int) -> list[int]:
        """Return ``hashes`` bits, derived from two hashes."""
        count = len(self.bits) * 8
        return [(first + number * step & _U64) % count for number in range(self.hashes)]


B = TypeVar("B", bound=Bloom)
StreamSet: TypeAlias = tuple[bytes, ...] | Bloom


def stream_set_of(streams: Iterable[bytes]) -> StreamSet:
    """Return the set of streams, which does not depend on their order."""
    found = tuple(sorted(set(streams)))
    is_short = len(found) <= LISTED_MAX and sum(map(len, found)) <= LISTED_BYTES_MAX
    return found if is_short else bloom_of(found)


def is_listed(held: StreamSet) -> TypeGuard[tuple[bytes, ...]]:
    """Return True if the streams are listed."""
    return not isinstance(held, Bloom)


def may_hold(held: StreamSet | None, member: bytes) -> bool:
    """Return True if a fragment may hold a stream or a key. None for ``held`` means unknown."""
    if held is None:
        return True
    return held.may_hold(member) if isinstance(held, Bloom) else member in held


def encode_stream_set(held: StreamSet) -> Any:
    """Return plain values."""
    if isinstance(held, Bloom):
        return {"bits": render_bytes(held.bits), "hashes": held.hashes}
    return [render_bytes(stream) for stream in held]


def stream_set_in(found: Fields, name: str) -> StreamSet:
    """Decode the values of `encode_stream_set`; a missing field means no streams.

    Raises:
        CorruptionError: they are not a set of streams.
    """
    if not found.has(name):
        return ()
    return listed_or_filter_in(found, name, of="streams", bloom=Bloom)


def listed_or_filter_in(
    found: Fields, name: str, *, of: str, bloom: type[B]
) -> tuple[bytes, ...] | B:
    """Decode a short list or a filter of type ``bloom``; ``of`` names its members in errors.

    Raises:
        CorruptionError: the field is neither.
    """
    if isinstance(found.found[name], list):
        listed = tuple(found.blobs(name))
        if len(listed) > LISTED_MAX or list(listed) != sorted(set(listed)):
            raise found.wrong(name, f"is not a short sorted list of {of}")
        return listed
    child = found.child(name)
    bits, hashes = child.blob("bits"), child.whole("hashes", most=HASHES_MAX)
    if not 1 <= len(bits) <= BYTES_MAX or not hashes:
        raise found.wrong(name, "is not a Bloom filter")
    return bloom(bits, hashes)


def filter_shape(count: int) -> tuple[int, int]:
    """Return the bytes of a filter for ``count`` members, and the bits per member."""
    size = min(BYTES_MAX, math.ceil(count * BITS_EACH / 8))
    return size, min(HASHES_MAX, max(1, round(size * 8 / count * math.log(2))))


def bloom_of(members: Collection[bytes]) -> Bloom:
    """Return the filter of a set, which does not depend on the members' order."""
    size, hashes = filter_shape(max(1, len(members)))
    empty, bits = Bloom(bytes(size), hashes), bytearray(size)
    for member in members:
        for place in empty.places_of(member):
            bits[place >> 3] |= 1 << (place & 7)
    return Bloom(bytes(bits), hashes)
