"""The sets of a fragment's streams and keys, so that a read of one can skip the fragment. Pure.

A few streams or keys are listed. Many are kept in a Bloom filter: it may claim a member that the
fragment does not hold, but never denies one that it holds. The hashes of keys are computed by
numpy, because an append may bring a key for each record. The set of keys is not recorded in two
cases. If each key has `REPEATS` records or more, nearly every fragment of the log holds nearly
every key. If there are too many keys, a filter has too many false positives.

Shape: a key's two hashes are XXH3_64 with the seeds 0 and 1. The places of its bits are ``first + n
* (second | 1)`` in 64 bits, modulo the number of bits, for n from 0 up. Bit p is bit ``p % 8`` of
byte ``p // 8``. This never changes, because filters are stored.
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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidelog.errors import UsageError
from tidelog.rowhash.xxh3 import as_seeds, hash_bytes
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


def encode_stream_set(held: StreamSet) -> object:
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


KEY_BYTES_MAX: Final = 16_384
REPEATS: Final = 3
# With two bits per key, 40 % of the answers are false positives. With fewer, a filter is not worth
# its place.
FILTERED_MAX: Final = BYTES_MAX * 8 // 2
_SEEDS: Final = (0, 1)
_ANY: Final = "any"


@dataclass(frozen=True, slots=True)
class KeyBloom(Bloom):
    """A Bloom filter of keys."""

    def places_of(self, member: bytes) -> list[int]:
        """Return the bits of a key."""
        first, second = (xxhash.xxh3_64_intdigest(member, seed) for seed in _SEEDS)
        return self.in_steps(first, second | 1)


KeySet: TypeAlias = tuple[bytes, ...] | KeyBloom | None
"""The keys, in order; or a filter of them; or None: nothing is known of them."""


def check_key(key: object) -> None:
    """Refuse a value that cannot be the key of a record.

    Raises:
        UsageError: the value is not a valid key.
    """
    if isinstance(key, str):
        raise UsageError("a key must be bytes, not str: encode it first")
    if not isinstance(key, bytes):
        raise UsageError(f"a key must be bytes, not {type(key).__name__}")
    if len(key) > KEY_BYTES_MAX:
        raise UsageError(f"a key must have at most {KEY_BYTES_MAX} bytes", size_bytes=len(key))


def key_set_of(keys: Any) -> KeySet:
    """Return the set of a column of keys; null means that a record has no key.

    The result does not depend on the order of the keys, only on which occur and how often.
    """
    if (count := len(keys) - keys.null_count) == 0:
        return ()
    unique: Any = pc.unique(keys).drop_null()
    size_bytes = pc.sum(pc.binary_length(unique).cast(pa.int64())).as_py()
    if len(unique) <= LISTED_MAX and size_bytes <= LISTED_BYTES_MAX:
        return tuple(sorted(unique.to_pylist()))
    if count >= REPEATS * len(unique) or len(unique) > FILTERED_MAX:
        return None
    return _filter_of(unique)


def encode_key_set(held: KeySet) -> object:
    """Return plain values."""
    return _ANY if held is None else encode_stream_set(held)


def key_set_in(found: Fields, name: str) -> KeySet:
    """Decode the values of `encode_key_set`; a missing field means that no record has a key.

    Raises:
        CorruptionError: they are not a set of keys.
    """
    if not found.has(name):
        return ()
    if found.found[name] == _ANY:
        return None
    return listed_or_filter_in(found, name, of="keys", bloom=KeyBloom)


def _filter_of(unique: Any) -> KeyBloom:
    """Return the filter of distinct keys, none of them null."""
    count = len(unique)
    size, hashes = filter_shape(count)
    _, offsets, data = unique.buffers()
    ends = np.frombuffer(offsets, np.int32, count + 1, 4 * unique.offset).astype(np.int64)
    # At most one of the distinct keys is empty, so there is data.
    octets = np.frombuffer(data, np.uint8)
    first, second = hash_bytes(octets, ends[:-1], np.diff(ends), as_seeds(*_SEEDS))
    step = second | np.uint64(1)
    held = np.zeros(size * 8, dtype=np.bool_)
    for number in range(hashes):
        held[(first + np.uint64(number) * step) % np.uint64(size * 8)] = True
    return KeyBloom(np.packbits(held, bitorder="little").tobytes(), hashes)
