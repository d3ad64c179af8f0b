"""Which keys a fragment holds, so that whoever reads one key need not fetch it. Pure.

A few are listed; of more there is a bloom filter, as of streams (`tidelog.wal.format.stream_set`),
but of hashes that numpy makes: an append may bring a key for each record. Nothing is recorded where
each key has `REPEATS` records or more, for then nearly every fragment of such a log holds nearly
every key; nor where there are so many keys that a filter would be wrong too often.

Shape: a key's two hashes are XXH3_64 with the seeds 0 and 1; the places of its bits are ``first +
    n * (second | 1)`` of 64 bits, modulo the count of bits, for n from 0 on. Bit p is bit ``p % 8``
    of byte ``p // 8``. Stable for ever, for filters are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidelog.errors import UsageError
from tidelog.rowhash_xxh3 import hash_bytes
from tidelog.wal.format.json import Fields
from tidelog.wal.format.stream_set import (
    BYTES_MAX,
    LISTED_BYTES_MAX,
    LISTED_MAX,
    Bloom,
    encode_stream_set,
    filter_shape,
    listed_or_filter_in,
)

KEY_BYTES_MAX: Final = 16_384
REPEATS: Final = 3
# With two bits for each key, two answers in five are wrong; with fewer, no filter is worth a place.
FILTERED_MAX: Final = BYTES_MAX * 8 // 2
_SEEDS: Final = (0, 1)
_ANY: Final = "any"


@dataclass(frozen=True, slots=True)
class KeyBloom(Bloom):
    """A bloom filter of keys."""

    def places_of(self, member: bytes) -> list[int]:
        """Return the bits that stand for a key."""
        first, second = (xxhash.xxh3_64_intdigest(member, seed) for seed in _SEEDS)
        return self.in_steps(first, second | 1)


KeySet: TypeAlias = tuple[bytes, ...] | KeyBloom | None
"""The keys, in order; or a filter of them; or None: nothing is known of them."""


def check_key(key: object) -> None:
    """Refuse what cannot be the key of a record.

    Raises:
        UsageError: it cannot.
    """
    if isinstance(key, str):
        raise UsageError("a key is bytes, never str: encode it first")
    if not isinstance(key, bytes):
        raise UsageError(f"a key is bytes, not {type(key).__name__}")
    if len(key) > KEY_BYTES_MAX:
        raise UsageError(f"a key has at most {KEY_BYTES_MAX} bytes", size_bytes=len(key))


def key_set_of(keys: Any) -> KeySet:
    """Return what is recorded of a column of keys, null where a record has none.

    The same for the same keys as often, in whatever order.
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


def encode_key_set(held: KeySet) -> Any:
    """Return plain values."""
    return _ANY if held is None else encode_stream_set(held)


def key_set_in(found: Fields, name: str) -> KeySet:
    """Read what `encode_key_set` gave; a missing field means that no record has a key.

    Raises:
        CorruptionError: it is something else.
    """
    if not found.has(name):
        return ()
    if found.found[name] == _ANY:
        return None
    return listed_or_filter_in(found, name, of="keys", bloom=KeyBloom)


def _filter_of(unique: Any) -> KeyBloom:
    """Return the filter of keys, none of which is null or comes twice."""
    count = len(unique)
    size, hashes = filter_shape(count)
    _, offsets, data = unique.buffers()
    ends = np.frombuffer(offsets, np.int32, count + 1, 4 * unique.offset).astype(np.int64)
    octets = np.frombuffer(data, np.uint8)  # Of so many keys one at most is empty.
    first, second = hash_bytes(octets, ends[:-1], np.diff(ends), _SEEDS)
    step = second | np.uint64(1)
    held = np.zeros(size * 8, dtype=np.bool_)
    for number in range(hashes):
        held[(first + np.uint64(number) * step) % np.uint64(size * 8)] = True
    return KeyBloom(np.packbits(held, bitorder="little").tobytes(), hashes)
