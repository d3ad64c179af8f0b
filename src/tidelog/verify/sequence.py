"""Seeded sequences: the expected records of each stream, and the choice of streams. Pure.

Shape: a body is whole 64-bit words, little endian. The first word has the stream in the upper 24
bits and the sequence number, from 1, in the lower 40. Then 0 to 31 copies of a word follow that
depends on the seed. So a generator's state is its seed and the next number of each stream, and any
part of a stream can be generated from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words: TypeAlias = npt.NDArray[np.uint64]

STREAMS_MAX: Final = 1 << 24
NUMBER_BITS: Final = 40
WORD_BYTES: Final = 8
_NUMBER_MASK: Final = np.uint64((1 << NUMBER_BITS) - 1)
_GOLDEN: Final = 0x9E3779B97F4A7C15
_U64: Final = (1 << 64) - 1


def mix(words: Words) -> Words:
    """Return words that look random, and depend only on the given words.

    Source: splitmix64, by Steele, Lea and Flood.
    """
    words = words + np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def salt_of(seed: int, purpose: int) -> np.uint64:
    """Return a word that makes the numbers of a seed differ from those of other seeds."""
    first = mix(np.array([seed & _U64], dtype=np.uint64))
    return np.uint64(mix(first ^ np.uint64(purpose))[0])


def keys_of(streams: Words, numbers: Words) -> Words:
    """Return the first words of records."""
    return (streams << np.uint64(NUMBER_BITS)) | numbers


def split_keys(keys: Words) -> tuple[Words, Words]:
    """Return the streams and numbers in first words."""
    return keys >> np.uint64(NUMBER_BITS), keys & _NUMBER_MASK


def make_bodies(seed: int, keys: Words) -> pa.BinaryArray:
    """Return the bodies of records, given their first words."""
    secrets = mix(keys ^ salt_of(seed, 1))
    # Five of its bits give the length in words, minus one.
    counts = (secrets >> np.uint64(59)).astype(np.int64) + 1
    ends = np.cumsum(counts)
    words = np.repeat(secrets, counts)
    words[ends - counts] = keys
    offsets = np.concatenate([[0], ends * WORD_BYTES]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(words.astype("<u8").tobytes())]
    made: pa.BinaryArray = pa.Array.from_buffers(pa.binary(), len(keys), buffers)  # type: ignore[assignment]
    return made


def read_keys(bodies: pa.BinaryArray) -> tuple[Words, npt.NDArray[np.bool_]]:
    """Return the first words of records, and a mask of the records long enough to have one."""
    _, offsets_buffer, data_buffer = bodies.buffers()
    offsets = np.frombuffer(memoryview(offsets_buffer or b""), dtype=np.int32)[bodies.offset :]
    starts, ends = offsets[: len(bodies)].astype(np.int64), offsets[1 : len(bodies) + 1]
    has_key = ends - starts >= WORD_BYTES
    data = np.frombuffer(memoryview(data_buffer or b""), dtype=np.uint8)
    keys = np.zeros(len(bodies), dtype=np.uint64)
    places = starts[has_key][:, None] + np.arange(WORD_BYTES)
    keys[has_key] = np.ascontiguousarray(data[places]).view("<u8").reshape(-1)
    return keys, has_key


@dataclass(slots=True)
class Author:
    """A generator of the records of its own streams, in which popular streams occur more often.

    ``next`` has the number of the next record of each stream. A stream belongs to the author if it
    is ``author`` modulo ``authors``. Stream s has a popularity of 1 / (s + 1).
    """

    seed: int
    author: int
    streams: Words
    next: Words
    _drawn: int = 0

    def draw(self, count: int) -> Words:
        """Return the first words of the next ``count`` records, and count them as made."""
        places = self._draw(count)
        order = np.argsort(places, kind="stable")
        ranked = places[order]
        # The number of earlier records of the same stream in this draw.
        first = np.searchsorted(ranked, ranked, side="left")
        before = np.empty(count, dtype=np.uint64)
        before[order] = (np.arange(count) - first).astype(np.uint64)
        numbers = self.next[places] + before
        self.next += np.bincount(places, minlength=len(self.streams)).astype(np.uint64)
        return keys_of(self.streams[places], numbers)

    def size(self, most: int) -> int:
        """Return the number of records of the next append, from 1 to ``most``."""
        self._drawn += 1
        drawn = mix(np.array([self._drawn], dtype=np.uint64) ^ salt_of(self.seed, self.author << 8))
        return int(drawn[0] % np.uint64(most)) + 1

    def _draw(self, count: int) -> npt.NDArray[np.int64]:
        shares = np.cumsum(1 / (self.streams.astype(np.float64) + 1))
        numbers = np.arange(self._drawn + 1, self._drawn + count + 1, dtype=np.uint64)
        self._drawn += count
        drawn = mix(numbers ^ salt_of(self.seed, (self.author << 8) | 2))
        points = (drawn >> np.uint64(11)).astype(np.float64) / (1 << 53) * shares[-1]
        places: npt.NDArray[np.int64] = np.searchsorted(shares, points, side="right")
        return np.minimum(places, len(shares) - 1)


def author_of(seed: int, author: int, *, authors: int, next_numbers: Words) -> Author:
    """Return an author that continues from the next numbers of all streams."""
    streams = np.arange(author, len(next_numbers), authors, dtype=np.uint64)
    return Author(seed, author, streams, next_numbers[streams.astype(np.int64)].copy())
