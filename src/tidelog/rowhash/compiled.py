"""The arithmetic of `rowhash.xxh3`, compiled: one pass over the values, in a fifth of the time.

Numba compiles these functions at the first import on a machine, in about two seconds. It caches the
code next to this file, or in the user's cache folder. The functions release the interpreter's lock.

Invariants: the results equal those of `rowhash.xxh3` bit by bit;
``tests/rowhash/test_kernels.py`` compares them.
Source: XXH3, "XXH3_64bits_withSeed", as in xxHash 0.8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from tidelog.rowhash.xxh3 import (
    SECRET,
    Integers,
    Lanes,
    Octets,
    Words,
    hash_empty,
    hash_long,
    unaligned,
)

_Compiled = Callable[..., Any]
_U64 = np.uint64
_generated: Callable[[_Compiled], _Compiled] = cast("Any", intrinsic)
_PLAIN: Final = ("C", "A")

LONGEST = 128  # Bytes; the library hashes longer values.

_WORDS_IN = types.Array(types.uint64, 1, "C", readonly=True)
_INTEGERS_IN = types.Array(types.int64, 1, "C", readonly=True)
_OCTETS_IN = types.Array(types.uint8, 1, "C", readonly=True)
_HALVES_ANYWHERE = types.Array(types.uint32, 1, "A", readonly=True, aligned=False)
_WORDS_ANYWHERE = types.Array(types.uint64, 1, "A", readonly=True, aligned=False)
_WORDS_OUT = types.Array(types.uint64, 1, "C")

# Numba turns uint64 combined with a plain int into a float, so all constants are uint64.
_PRIME64_1 = _U64(0x9E3779B185EBCA87)
_PRIME64_2 = _U64(0xC2B2AE3D27D4EB4F)
_PRIME64_3 = _U64(0x165667B19E3779F9)
_PRIME64_4 = _U64(0x85EBCA77C2B2AE63)
_PRIME_MX1 = _U64(0x165667919E3779F9)
_PRIME_MX2 = _U64(0x9FB21C651E98DF25)
_LOW_HALF = _U64(0xFFFFFFFF)
_U8, _U15, _U16, _U24, _U27, _U28, _U29 = (_U64(n) for n in (8, 15, 16, 24, 27, 28, 29))
_U32, _U33, _U35, _U37, _U40, _U49 = (_U64(n) for n in (32, 33, 35, 37, 40, 49))
_SECRET_WORDS = np.frombuffer(SECRET, "<u8")


def _inlined(function: _Compiled) -> _Compiled:
    # Numba inlines it, not LLVM: a call with array arguments would count references to them.
    made: _Compiled = njit(cache=True, nogil=True, inline="always")(function)
    return made


def _compiled(*arguments: Any) -> Callable[[_Compiled], _Compiled]:
    """Return a decorator that compiles a function for these argument types at once."""
    made: Callable[[_Compiled], _Compiled] = njit(
        [types.void(*arguments)], cache=True, nogil=True, boundscheck=False
    )
    return made


@_inlined
def _avalanche_64(x: Any) -> Any:
    x = (x ^ (x >> _U33)) * _PRIME64_2
    x = (x ^ (x >> _U29)) * _PRIME64_3
    return x ^ (x >> _U32)


@_inlined
def _avalanche_xxh3(x: Any) -> Any:
    x = (x ^ (x >> _U37)) * _PRIME_MX1
    return x ^ (x >> _U32)


@_inlined
def _four_to_eight(swapped: Any, length: Any, flip: Any) -> Any:
    x = swapped ^ flip
    x ^= ((x << _U49) | (x >> _U15)) ^ (x << _U24) ^ (x >> _U40)
    x *= _PRIME_MX2
    x ^= (x >> _U35) + length
    x *= _PRIME_MX2
    return x ^ (x >> _U28)


@_generated
def _multiply_fold(_typing: Any, left: Any, right: Any) -> Any:
    """Multiply to 128 bits, and return the exclusive or of the two halves, in machine code."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        high = builder.lshr(product, ir.Constant(wide, 64))
        return builder.trunc(builder.xor(product, high), ir.IntType(64))

    return types.uint64(left, right), generate


@_generated
def _byteswapped(_typing: Any, word: Any) -> Any:
    """Return a word with its bytes reversed."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bswap(*arguments)

    return types.uint64(word), generate


@_compiled(_WORDS_IN, types.uint64, _WORDS_OUT)
def _hash_words(words: Any, flip: Any, out: Any) -> None:
    for row in range(len(words)):
        word = words[row]
        out[row] = _four_to_eight((word << _U32) | (word >> _U32), _U8, flip)


@_inlined
def _hash_value(views: Any, secret: Any, start: Any, length: Any, lane: Any) -> Any:
    """Hash one value of up to `LONGEST` bytes; a lane is (seed, `_flip`, hash of no bytes)."""
    (data, halves, words), (seed, flip, empty) = views, lane
    size, limit = _U64(length), start + length
    if length == 0:
        return empty
    if length <= 3:
        ends = (_U64(data[start]) << _U16) | _U64(data[limit - 1])
        middle = (_U64(data[start + (length >> 1)]) << _U24) | (size << _U8)
        few = (secret[0] & _LOW_HALF) ^ (secret[0] >> _U32)
        return _avalanche_64((ends | middle) ^ (few + seed))
    if length <= 8:
        return _four_to_eight(_U64(halves[limit - 4]) | (_U64(halves[start]) << _U32), size, flip)
    if length <= 16:
        first = words[start] ^ ((secret[3] ^ secret[4]) + seed)
        last = words[limit - 8] ^ ((secret[5] ^ secret[6]) - seed)
        return _avalanche_xxh3(_multiply_fold(first, last) + _byteswapped(first) + last + size)
    mixed = size * _PRIME64_1
    for pair in range((length + 31) // 32):
        at, key = start + 16 * pair, 4 * pair
        mixed += _multiply_fold(
            words[at] ^ (secret[key] + seed), words[at + 8] ^ (secret[key + 1] - seed)
        )
        at, key = limit - 16 * (pair + 1), key + 2
        mixed += _multiply_fold(
            words[at] ^ (secret[key] + seed), words[at + 8] ^ (secret[key + 1] - seed)
        )
    return _avalanche_xxh3(mixed)


@_compiled(
    types.Tuple([_OCTETS_IN, _HALVES_ANYWHERE, _WORDS_ANYWHERE]),
    _WORDS_IN,
    types.UniTuple(_INTEGERS_IN, 2),
    types.UniTuple(types.UniTuple(types.uint64, 3), 2),
    types.UniTuple(_WORDS_OUT, 2),
)
def _hash_bytes(views: Any, secret: Any, places: Any, lanes: Any, out: Any) -> None:
    (starts, lengths), (low, high), (out_low, out_high) = places, lanes, out
    for row in range(len(starts)):
        start, length = starts[row], lengths[row]
        if length <= LONGEST:
            out_low[row] = _hash_value(views, secret, start, length, low)
            out_high[row] = _hash_value(views, secret, start, length, high)


@_inlined
def _folded(x: Any) -> Any:
    return ((x << _U27) | (x >> _U37)) * _PRIME64_1 + _PRIME64_4


@_compiled(_WORDS_OUT, _WORDS_IN, types.uint64)
def _fold_words(state: Any, words: Any, flip: Any) -> None:
    for row in range(len(words)):
        word = words[row]
        swapped = (word << _U32) | (word >> _U32)
        state[row] = _folded(state[row] ^ _four_to_eight(swapped, _U8, flip))


@_compiled(_WORDS_OUT, _WORDS_IN)
def _fold(state: Any, lane: Any) -> None:
    for row in range(len(state)):
        state[row] = _folded(state[row] ^ lane[row])


@_compiled(_WORDS_OUT)
def _finish_fold(state: Any) -> None:
    for row in range(len(state)):
        state[row] = _avalanche_64(state[row])


def hash_words(words: Words, seeds: tuple[int, int]) -> Lanes:
    """Hash each 64-bit word as its 8 bytes, little endian."""
    words = np.require(words, _U64, _PLAIN)
    lanes = np.empty((2, len(words)), _U64)
    for lane, seed in enumerate(seeds):
        _hash_words(words, _flip(seed), lanes[lane])
    return lanes


def hash_bytes(data: Octets, starts: Integers, lengths: Integers, seeds: tuple[int, int]) -> Lanes:
    """Hash the byte strings ``data[start : start + length]``."""
    starts, lengths = np.require(starts, np.int64, _PLAIN), np.require(lengths, np.int64, _PLAIN)
    lanes = np.empty((2, len(starts)), _U64)
    views = (data, unaligned(data, "<u4"), unaligned(data, "<u8"))
    each = zip(seeds, hash_empty(seeds)[:, 0], strict=True)
    low, high = ((_U64(seed), _flip(seed), empty) for seed, empty in each)
    _hash_bytes(views, _SECRET_WORDS, (starts, lengths), (low, high), (lanes[0], lanes[1]))
    long = np.flatnonzero(lengths > LONGEST)
    if len(long):
        lanes[:, long] = hash_long(data, starts[long], lengths[long], seeds)
    return lanes


def fold(state: Lanes, lanes: Lanes) -> None:
    """Mix the next part's hashes into ``state``, in place; the order of parts matters."""
    for lane in range(2):
        _fold(state[lane], np.require(lanes[lane], _U64, _PLAIN))


def fold_words(state: Lanes, words: Words, seeds: tuple[int, int]) -> None:
    """Mix the hashes of words into ``state``, in place."""
    words = np.require(words, _U64, _PLAIN)
    for lane, seed in enumerate(seeds):
        _fold_words(state[lane], words, _flip(seed))


def finish_fold(state: Lanes) -> None:
    """Avalanche ``state``, in place."""
    for lane in range(2):
        _finish_fold(state[lane])


def _flip(seed: int) -> np.uint64:
    low = (seed & 0xFFFFFFFF).to_bytes(4, "little")
    spread = seed ^ (int.from_bytes(low, "big") << 32)
    word = int(_SECRET_WORDS[1]) ^ int(_SECRET_WORDS[2])
    return _U64((word - spread) & (2**64 - 1))
