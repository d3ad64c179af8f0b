"""XXH3 of many values at once: the arithmetic of `rowhash`, for numpy and numba.

A hash has two lanes of 64 bits, held as one array of shape (2, n). A lane is exactly XXH3_64 of a
value's bytes; the lanes differ in their seed. Up to 128 bytes, numpy is faster than one library
call per value (20 to 150 ns, against about 250 ns per call and lane pair). The library hashes
longer values. Blocks of `BLOCK_ROWS` keep temporaries in the processor's cache, which is nearly
twice as fast.

Each step is written once, in operators that work on arrays of words and on a single word. With
arrays, this module is the numpy kernel. `rowhash.compiled` compiles the loops at the end of this
module, which call the same steps with single words. An operator such as ``^=`` saves numpy a
temporary, because it changes an array in place.

Invariants: no function ever changes its results, since sums of these hashes are stored.
Source: XXH3, "XXH3_64bits_withSeed", as in xxHash 0.8; `tests/rowhash/test_xxh3.py` compares.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

Lanes = npt.NDArray[np.uint64]  # shape (2, n): the low lane, then the high one
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Views = tuple[Octets, Words, Words]  # bytes, and the words of 4 and of 8 bytes that begin at each
Place = tuple[Integers, Integers, Words]  # start, length, and the length as a word

BLOCK_ROWS: Final = 16_384
LONGEST: Final = 128  # Bytes; the library hashes longer values.

# A plain int would turn numba's words into floats, so each constant is a word.
_U64 = np.uint64
_SECRET: Words = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
        "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
        "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    ),
    "<u8",
)
_PRIME64_1 = _U64(0x9E3779B185EBCA87)
_PRIME64_2 = _U64(0xC2B2AE3D27D4EB4F)
_PRIME64_3 = _U64(0x165667B19E3779F9)
_PRIME64_4 = _U64(0x85EBCA77C2B2AE63)
_PRIME_MX1 = _U64(0x165667919E3779F9)
_PRIME_MX2 = _U64(0x9FB21C651E98DF25)
_LOW_HALF = _U64(0xFFFFFFFF)
_ODD_BYTES, _ODD_PAIRS = _U64(0x00FF00FF00FF00FF), _U64(0x0000FFFF0000FFFF)
_U8, _U15, _U16, _U24, _U27, _U28, _U29 = (_U64(n) for n in (8, 15, 16, 24, 27, 28, 29))
_U32, _U33, _U35, _U37, _U40, _U49 = (_U64(n) for n in (32, 33, 35, 37, 40, 49))

# The greatest length of each branch of XXH3.
_CLASS_ENDS = (0, 3, 8, 16, 32, 64, 96, LONGEST)
_CLASS_OF_LENGTH = np.searchsorted(_CLASS_ENDS, np.arange(LONGEST + 2)).astype(np.uint8)


@functools.cache
def seeds_of(name: str) -> Lanes:
    """Return the two lanes' seeds for a class of values, so that hashes of classes differ."""
    octets = f"tidelog rowhash {name}".encode()
    return as_seeds(*(xxhash.xxh3_64_intdigest(octets, lane) for lane in range(2)))


def as_seeds(low: int, high: int) -> Lanes:
    """Return a column of seeds, one per lane."""
    seeds: Lanes = np.array([[low], [high]], np.uint64)
    seeds.flags.writeable = False  # `seeds_of` shares one array with all callers.
    return seeds


def start_fold(name: str, rows: int) -> Lanes:
    """Return the start state that combines the hashes of a row's parts."""
    return np.repeat(seeds_of(name), rows, axis=1)


def fold(state: Lanes, lanes: Lanes) -> Lanes:
    """Mix the next part's hashes into ``state``, in place; the order of parts matters."""
    state ^= lanes
    turned = state >> _U37
    state <<= _U27
    state |= turned
    state *= _PRIME64_1
    state += _PRIME64_4
    return state


def fold_words(state: Lanes, words: Words, seeds: Lanes) -> Lanes:
    """Mix the hashes of words into ``state``, in place."""
    return fold(state, hash_words(words, seeds))


def finish_fold(state: Lanes) -> Lanes:
    """Avalanche ``state``, in place.

    Without it, two rows that swap one part would often keep the sum of their hashes: each bit of
    ``(a ^ b) + (c ^ d)`` equals that of ``(a ^ d) + (c ^ b)`` three times in four.
    """
    return _avalanche_64(state)


def hash_words(words: Words, seeds: Lanes) -> Lanes:
    """Hash each 64-bit word as its 8 bytes, little endian."""
    return _hash_4_to_8((words << _U32) | (words >> _U32), _U8, seeds)


def hash_bytes(data: Octets, starts: Integers, lengths: Integers, seeds: Lanes) -> Lanes:
    """Hash the byte strings ``data[start : start + length]``."""
    lanes: Lanes = np.empty((2, len(starts)), np.uint64)
    views = views_of(data)
    classes = _CLASS_OF_LENGTH[np.minimum(lengths, LONGEST + 1)]
    for number in np.flatnonzero(np.bincount(classes, minlength=1)).tolist():
        rows: Any = np.flatnonzero(classes == number)
        if len(rows) == len(starts):
            rows = slice(None)  # A view of all rows costs no copy.
        start, length = starts[rows], lengths[rows]
        if number == len(_CLASS_ENDS):
            lanes[:, rows] = hash_long(data, start, length, seeds)
        else:
            place = (start, length, length.astype(np.uint64))
            lanes[:, rows] = _hash_class(views, place, _CLASS_ENDS[number], seeds)
    return lanes


def hash_long(data: Octets, starts: Integers, lengths: Integers, seeds: Lanes) -> Lanes:
    view = data.data
    ranges = list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
    digest = xxhash.xxh3_64_intdigest
    return np.array(
        [[digest(view[at:limit], seed) for at, limit in ranges] for seed in seeds[:, 0].tolist()],
        np.uint64,
    )


def views_of(data: Octets) -> Views:
    return data, _unaligned(data, "<u4"), _unaligned(data, "<u8")


def _unaligned(data: Octets, dtype: str) -> Words:
    """View ``data`` as the words that begin at each of its bytes."""
    kind = np.dtype(dtype)
    return np.ndarray(
        shape=(max(len(data) - kind.itemsize + 1, 0),), dtype=kind, buffer=data, strides=(1,)
    )


def _hash_class(views: Views, place: Place, end: int, seed: Lanes) -> Lanes:
    """Hash values of one class, whose greatest length is ``end``."""
    (data, halves, words), (start, length, size) = views, place
    if end == 0:
        return _avalanche_64(seed ^ (_SECRET[7] ^ _SECRET[8]))
    if end <= 3:
        few = (data[start] << _U16) | (data[start + (length >> 1)] << _U24)
        few |= data[start + length - 1] | (size << _U8)
        return _avalanche_64(few ^ (((_SECRET[0] & _LOW_HALF) ^ (_SECRET[0] >> _U32)) + seed))
    if end <= 8:
        return _hash_4_to_8(halves[start + length - 4] | (halves[start] << _U32), size, seed)
    if end <= 16:
        first = words[start] ^ ((_SECRET[3] ^ _SECRET[4]) + seed)
        last = words[start + length - 8] ^ ((_SECRET[5] ^ _SECRET[6]) - seed)
        mixed = _multiply_fold(first, last)
        mixed += byteswapped(first)
        mixed += last
        mixed += size
        return _avalanche_xxh3(mixed)
    total: Lanes = size * _PRIME64_1
    for pair in range((end + 31) // 32):
        # Blocks of 16 bytes from each end cover every byte.
        block = _hash_16(words, start + 16 * pair, 4 * pair, seed)
        block += _hash_16(words, start + length - 16 * (pair + 1), 4 * pair + 2, seed)
        block += total
        total = block
    return _avalanche_xxh3(total)


def _hash_16(words: Words, at: Integers, key: int, seed: Lanes) -> Lanes:
    return _multiply_fold(
        words[at] ^ (_SECRET[key] + seed), words[at + 8] ^ (_SECRET[key + 1] - seed)
    )


def _hash_4_to_8(swapped: Words, size: Words | np.uint64, seed: Lanes) -> Lanes:
    """Hash 4 to 8 bytes, given the last four as the low half and the first four as the high."""
    spread = seed ^ byteswapped(seed & _LOW_HALF)
    x: Lanes = swapped ^ ((_SECRET[1] ^ _SECRET[2]) - spread)
    turned = (x << _U49) | (x >> _U15)
    turned ^= x << _U24
    turned ^= x >> _U40
    x ^= turned
    x *= _PRIME_MX2
    turned = x >> _U35
    turned += size
    x ^= turned
    x *= _PRIME_MX2
    x ^= x >> _U28
    return x


def _multiply_fold(left: Lanes, right: Lanes) -> Lanes:
    """Multiply to 128 bits, and return the exclusive or of the halves; numpy lacks this product."""
    left_low, left_high = left & _LOW_HALF, left >> _U32
    right_low, right_high = right & _LOW_HALF, right >> _U32
    carry = left_low * right_low
    carry >>= _U32
    left_low *= right_high  # left_low is now a cross product.
    right_low *= left_high
    right_low += carry
    left_high *= right_high
    left_high += right_low >> _U32
    right_low &= _LOW_HALF
    left_low += right_low
    left_low >>= _U32
    left_high += left_low
    left_high ^= left * right
    return left_high


def _avalanche_64(x: Lanes) -> Lanes:
    x ^= x >> _U33
    x *= _PRIME64_2
    x ^= x >> _U29
    x *= _PRIME64_3
    x ^= x >> _U32
    return x


def _avalanche_xxh3(x: Lanes) -> Lanes:
    x ^= x >> _U37
    x *= _PRIME_MX1
    x ^= x >> _U32
    return x


def byteswapped(x: Words) -> Words:
    """Return words with their bytes reversed; numpy has an operation for it."""
    return x.byteswap()


def byteswapped_by_shifts(x: Words) -> Words:
    """Return a word with its bytes reversed; numba compiles the shifts to one instruction."""
    x = ((x & _ODD_BYTES) << _U8) | ((x >> _U8) & _ODD_BYTES)
    x = ((x & _ODD_PAIRS) << _U16) | ((x >> _U16) & _ODD_PAIRS)
    return (x << _U32) | (x >> _U32)


# The functions that the loops call, directly or through each other. The loops are in this module
# because numba compiles a cached loop again only if the loop's own file changes.
STEPS: Final = (
    fold, hash_words, _hash_class, _hash_16, _hash_4_to_8, _multiply_fold,
    _avalanche_64, _avalanche_xxh3,
)  # fmt: skip


def each_hash_of_words(out: Words, words: Words, seed: Any) -> None:
    for row in range(len(words)):
        out[row] = hash_words(words[row], seed)


def each_hash_of_bytes(
    out: tuple[Words, Words], views: Views, starts: Integers, lengths: Integers, seeds: Any
) -> None:
    low, high = out
    for row in range(len(starts)):
        start, length = starts[row], lengths[row]
        if length <= LONGEST:
            place: Any = (start, length, _U64(length))
            low[row] = _hash_class(views, place, length, seeds[0])
            high[row] = _hash_class(views, place, length, seeds[1])


def each_fold(state: Words, lanes: Words) -> None:
    for row in range(len(state)):
        state[row] = fold(state[row], lanes[row])


def each_fold_of_words(state: Words, words: Words, seed: Any) -> None:
    for row in range(len(state)):
        state[row] = fold(state[row], hash_words(words[row], seed))


def each_finished_fold(state: Words) -> None:
    for row in range(len(state)):
        state[row] = _avalanche_64(state[row])
