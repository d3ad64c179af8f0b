"""The set of a fragment's keys, so that a read of one key can skip the fragment. Pure.

A few keys are listed. More are kept in a Bloom filter, as for streams
(`tidelog.wal.format.stream_set`). Its hashes are computed by numpy, because an append may bring a
key for each record. The set is not recorded in two cases. If each key has `REPEATS` records or
more, nearly every fragment of the log holds nearly every key. If there are too many keys, a filter
has too many false positives.

Shape: a key's two hashes are XXH3_64 with the seeds 0 and 1. The places of its bits are ``first + n
* (second | 1)`` in 64 bits, modulo the number of bits, for n from 0 up. Bit p is bit ``p % 8`` of
byte ``p // 8``. This never changes, because filters are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidelog.errors import UsageError
from tidelog.rowhash.xxh3 import hash_bytes
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


def encode_key_set(held: KeySet) -> Any:
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
    first, second = hash_bytes(octets, ends[:-1], np.diff(ends), _SEEDS)
    step = second | np.uint64(1)
    held = np.zeros(size * 8, dtype=np.bool_)
    for number in range(hashes):
        held[(first + np.uint64(number) * step) % np.uint64(size * 8)] = True
    return KeyBloom(np.packbits(held, bitorder="little").tobytes(), hashes)
