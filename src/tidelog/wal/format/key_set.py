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

import math
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidelog.errors import UsageError
from tidelog.rowhash_xxh3 import hash_bytes
from tidelog.wal.format.json import Fields, render_bytes
from tidelog.wal.format.stream_set import BITS_EACH, BYTES_MAX, HASHES_MAX, Bloom

KEY_BYTES_MAX: Final = 16_384
LISTED_MAX: Final = 16
LISTED_BYTES_MAX: Final = 1_024  # Of all keys together: a manifest has hundreds of such lists.
REPEATS: Final = 3
# With two bits for each key, two answers in five are wrong; with fewer, no filter is worth a place.
FILTERED_MAX: Final = BYTES_MAX * 8 // 2
_SEEDS: Final = (0, 1)
_ANY: Final = "any"
_U64: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class KeyBloom(Bloom):
    """A bloom filter of keys."""

    def may_hold(self, member: bytes) -> bool:
        """Say whether it may hold a key; if not, it surely does not."""
        first, second = (xxhash.xxh3_64_intdigest(member, seed) for seed in _SEEDS)
        step, count = second | 1, len(self.bits) * 8
        places = ((first + number * step & _U64) % count for number in range(self.hashes))
        return all(self.bits[place >> 3] >> (place & 7) & 1 for place in places)


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


def keys_may_hold(held: KeySet, key: bytes) -> bool:
    """Say whether a fragment may hold records with a key; of None nothing is known."""
    if held is None:
        return True
    return held.may_hold(key) if isinstance(held, KeyBloom) else key in held


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
    if held is None:
        return _ANY
    if isinstance(held, KeyBloom):
        return {"bits": render_bytes(held.bits), "hashes": held.hashes}
    return [render_bytes(key) for key in held]


def key_set_in(found: Fields, name: str) -> KeySet:
    """Read what `encode_key_set` gave; a missing field means that no record has a key.

    Raises:
        CorruptionError: it is something else.
    """
    if not found.has(name):
        return ()
    if found.found[name] == _ANY:
        return None
    if isinstance(found.found[name], list):
        listed = tuple(found.blobs(name))
        if len(listed) > LISTED_MAX or list(listed) != sorted(set(listed)):
            raise found.wrong(name, "is no list of a few keys in order")
        return listed
    child = found.child(name)
    bits, hashes = child.blob("bits"), child.whole("hashes", most=HASHES_MAX)
    if not 1 <= len(bits) <= BYTES_MAX or not hashes:
        raise found.wrong(name, "is no bloom filter")
    return KeyBloom(bits, hashes)


def _filter_of(unique: Any) -> KeyBloom:
    """Return the filter of keys, none of which is null or comes twice."""
    count = len(unique)
    size = min(BYTES_MAX, math.ceil(count * BITS_EACH / 8))
    hashes = min(HASHES_MAX, max(1, round(size * 8 / count * math.log(2))))
    _, offsets, data = unique.buffers()
    ends = np.frombuffer(offsets, np.int32, count + 1, 4 * unique.offset).astype(np.int64)
    octets = np.frombuffer(data, np.uint8)  # Of so many keys one at most is empty.
    first, second = hash_bytes(octets, ends[:-1], np.diff(ends), _SEEDS)
    step = second | np.uint64(1)
    held = np.zeros(size * 8, dtype=np.bool_)
    for number in range(hashes):
        held[(first + np.uint64(number) * step) % np.uint64(size * 8)] = True
    return KeyBloom(np.packbits(held, bitorder="little").tobytes(), hashes)
