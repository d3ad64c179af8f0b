"""XXH3 over many values at once, in numpy: the arithmetic of `rowhash`.

A hash has two lanes of 64 bits, held as one array of shape (2, n). A lane is exactly XXH3_64 of a
value's bytes; the lanes differ in their seed. Up to 128 bytes, numpy is faster than one library
call per value (20 to 150 ns, against about 250 ns per call and lane pair). The library hashes
longer values. Blocks of `BLOCK_ROWS` keep temporaries in the processor's cache, which is nearly
twice as fast.

Invariants: no function ever changes its results, since sums of these hashes are stored.
Source: XXH3, "XXH3_64bits_withSeed", as in xxHash 0.8; `tests/rowhash/test_xxh3.py` compares.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import xxhash

Lanes = npt.NDArray[np.uint64]  # shape (2, n): the low lane, then the high one
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]

BLOCK_ROWS = 16_384

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
)
_MASK_64 = 2**64 - 1
_LOW_HALF = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_PRIME64_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME64_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME64_3 = np.uint64(0x165667B19E3779F9)
_PRIME64_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_MX1 = np.uint64(0x165667919E3779F9)
_PRIME_MX2 = np.uint64(0x9FB21C651E98DF25)

# The branch of XXH3 that a length takes: 0, 1-3, 4-8, 9-16, 17-32, 33-64, 65-96, 97-128, longer.
_CLASS_ENDS = (0, 3, 8, 16, 32, 64, 96, 128)
_CLASS_OF_LENGTH = np.searchsorted(_CLASS_ENDS, np.arange(130)).astype(np.uint8)


@functools.cache
def seeds_of(name: str) -> tuple[int, int]:
    """Return the two lanes' seeds for a class of values, so that hashes of classes differ."""
    octets = f"tidelog rowhash {name}".encode()
    return xxhash.xxh3_64_intdigest(octets, 0), xxhash.xxh3_64_intdigest(octets, 1)


def hash_words(words: Words, seeds: tuple[int, int]) -> Lanes:
    """Hash each 64-bit word as its 8 bytes, little endian."""
    return _hash_4_to_8((words << _HALF) | (words >> _HALF), np.uint64(8), seeds)


def hash_bytes(data: Octets, starts: Integers, lengths: Integers, seeds: tuple[int, int]) -> Lanes:
    """Hash the byte strings ``data[start : start + length]``."""
    classes = _CLASS_OF_LENGTH[np.minimum(lengths, 129)]
    lanes = np.empty((2, len(starts)), np.uint64)
    for length_class in np.flatnonzero(np.bincount(classes, minlength=1)).tolist():
        rows = np.flatnonzero(classes == length_class)
        if len(rows) == len(starts):
            return _hash_class(length_class, data, starts, lengths, seeds)
        lanes[:, rows] = _hash_class(length_class, data, starts[rows], lengths[rows], seeds)
    return lanes


def start_fold(name: str, rows: int) -> Lanes:
    """Return the start state that combines the hashes of a row's parts."""
    return np.repeat(np.array(seeds_of(name), np.uint64).reshape(2, 1), rows, axis=1)


def fold(state: Lanes, lanes: Lanes) -> None:
    """Mix the next part's hashes into ``state``, in place; the order of parts matters."""
    state ^= lanes
    turned = state >> np.uint64(37)
    state <<= np.uint64(27)
    state |= turned
    state *= _PRIME64_1
    state += _PRIME64_4


def fold_words(state: Lanes, words: Words, seeds: tuple[int, int]) -> None:
    """Mix the hashes of words into ``state``, in place."""
    fold(state, hash_words(words, seeds))


def finish_fold(state: Lanes) -> None:
    """Avalanche ``state``, in place.

    Without it, two rows that swap one part would often keep the sum of their hashes: each bit of
    ``(a ^ b) + (c ^ d)`` equals that of ``(a ^ d) + (c ^ b)`` three times in four.
    """
    _avalanche_64(state)


def _hash_class(
    length_class: int, data: Octets, starts: Integers, lengths: Integers, seeds: tuple[int, int]
) -> Lanes:
    match length_class:
        case 0:
            return np.repeat(hash_empty(seeds), len(starts), axis=1)
        case 1:
            return _hash_1_to_3(data, starts, lengths, seeds)
        case 2:
            halves = unaligned(data, "<u4")
            first = halves[starts].astype(np.uint64)
            last = halves[starts + lengths - 4].astype(np.uint64)
            return _hash_4_to_8(last | (first << _HALF), lengths.astype(np.uint64), seeds)
        case 3:
            return _hash_9_to_16(data, starts, lengths, seeds)
        case 4 | 5 | 6 | 7:
            return _hash_17_to_128(data, starts, lengths, seeds, pairs=length_class - 3)
        case _:
            return hash_long(data, starts, lengths, seeds)


def hash_empty(seeds: tuple[int, int]) -> Lanes:
    return np.array([[xxhash.xxh3_64_intdigest(b"", seed)] for seed in seeds], np.uint64)


def _hash_1_to_3(
    data: Octets, starts: Integers, lengths: Integers, seeds: tuple[int, int]
) -> Lanes:
    first = data[starts].astype(np.uint64)
    middle = data[starts + (lengths >> 1)].astype(np.uint64)
    last = data[starts + lengths - 1].astype(np.uint64)
    combined = (first << np.uint64(16)) | (middle << np.uint64(24)) | last
    combined |= lengths.astype(np.uint64) << np.uint64(8)
    flip = int.from_bytes(SECRET[0:4], "little") ^ int.from_bytes(SECRET[4:8], "little")
    lanes: Lanes = combined ^ _column(*(flip + seed for seed in seeds))
    _avalanche_64(lanes)
    return lanes


def _hash_4_to_8(swapped: Words, length: Words | np.uint64, seeds: tuple[int, int]) -> Lanes:
    """Hash 4 to 8 bytes, given the last four as the low half and the first four as the high."""
    flip = _secret_word(8) ^ _secret_word(16)
    spread = [seed ^ (_byteswap_32(seed & 0xFFFFFFFF) << 32) for seed in seeds]
    lanes = swapped ^ _column(*(flip - seed for seed in spread))
    turned = (lanes << np.uint64(49)) | (lanes >> np.uint64(15))
    turned ^= lanes << np.uint64(24)
    turned ^= lanes >> np.uint64(40)
    lanes ^= turned
    lanes *= _PRIME_MX2
    np.right_shift(lanes, np.uint64(35), out=turned)
    turned += length
    lanes ^= turned
    lanes *= _PRIME_MX2
    np.right_shift(lanes, np.uint64(28), out=turned)
    lanes ^= turned
    return lanes


def _hash_9_to_16(
    data: Octets, starts: Integers, lengths: Integers, seeds: tuple[int, int]
) -> Lanes:
    words = unaligned(data, "<u8")
    flip_first = _secret_word(24) ^ _secret_word(32)
    flip_last = _secret_word(40) ^ _secret_word(48)
    first = words[starts] ^ _column(*(flip_first + seed for seed in seeds))
    last = words[starts + lengths - 8] ^ _column(*(flip_last - seed for seed in seeds))
    lanes = _multiply_fold(first, last)
    lanes += first.byteswap()
    lanes += last
    lanes += lengths.astype(np.uint64)
    _avalanche_xxh3(lanes)
    return lanes


def _hash_17_to_128(
    data: Octets, starts: Integers, lengths: Integers, seeds: tuple[int, int], *, pairs: int
) -> Lanes:
    """Hash 17 to 128 bytes: ``pairs`` blocks of 16 bytes from each end cover every byte."""
    words = unaligned(data, "<u8")
    limits = starts + lengths
    lanes = np.repeat((lengths.astype(np.uint64) * _PRIME64_1).reshape(1, -1), 2, axis=0)
    for pair in range(pairs):
        for at, secret in (
            (starts + 16 * pair, 32 * pair),
            (limits - 16 * (pair + 1), 32 * pair + 16),
        ):
            key_first, key_last = _secret_word(secret), _secret_word(secret + 8)
            first = words[at] ^ _column(*(key_first + seed for seed in seeds))
            last = words[at + 8] ^ _column(*(key_last - seed for seed in seeds))
            lanes += _multiply_fold(first, last)
    _avalanche_xxh3(lanes)
    return lanes


def hash_long(data: Octets, starts: Integers, lengths: Integers, seeds: tuple[int, int]) -> Lanes:
    view = data.data
    ranges = list(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
    digest = xxhash.xxh3_64_intdigest
    return np.array(
        [[digest(view[start:limit], seed) for start, limit in ranges] for seed in seeds], np.uint64
    )


def _multiply_fold(left: Lanes, right: Lanes) -> Lanes:
    """Multiply to 128 bits, and return the exclusive or of the halves; numpy lacks this product."""
    left_low, left_high = left & _LOW_HALF, left >> _HALF
    right_low, right_high = right & _LOW_HALF, right >> _HALF
    carry = left_low * right_low
    carry >>= _HALF
    left_low *= right_high  # left_low is now a cross product.
    right_low *= left_high
    right_low += carry
    left_high *= right_high
    left_high += right_low >> _HALF
    right_low &= _LOW_HALF
    left_low += right_low
    left_low >>= _HALF
    left_high += left_low
    left_high ^= left * right
    return left_high


def _avalanche_64(lanes: Lanes) -> None:
    lanes ^= lanes >> np.uint64(33)
    lanes *= _PRIME64_2
    lanes ^= lanes >> np.uint64(29)
    lanes *= _PRIME64_3
    lanes ^= lanes >> np.uint64(32)


def _avalanche_xxh3(lanes: Lanes) -> None:
    lanes ^= lanes >> np.uint64(37)
    lanes *= _PRIME_MX1
    lanes ^= lanes >> np.uint64(32)


def _column(low: int, high: int) -> Lanes:
    """Return two constants as a column, one per lane; numpy's scalars would warn of overflow."""
    return np.array([[low & _MASK_64], [high & _MASK_64]], np.uint64)


def _secret_word(offset: int) -> int:
    return int.from_bytes(SECRET[offset : offset + 8], "little")


def _byteswap_32(word: int) -> int:
    return int.from_bytes(word.to_bytes(4, "little"), "big")


def unaligned(data: Octets, dtype: str) -> npt.NDArray[np.uint64]:
    """View ``data`` as the words that begin at each of its bytes."""
    kind = np.dtype(dtype)
    return np.ndarray(
        shape=(max(len(data) - kind.itemsize + 1, 0),), dtype=kind, buffer=data, strides=(1,)
    )
