"""The loops of `rowhash.xxh3`, compiled: one pass over the values, in a fifth of numpy's time.

Numba compiles them at the first import on a machine, in about two seconds. It caches the code next
to `rowhash.xxh3`, or in the user's cache folder. The loops release the interpreter's lock.

Invariants: the results equal those of `rowhash.xxh3` bit by bit;
``tests/rowhash/test_kernels.py`` compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np
from numba import njit, types
from numba.extending import overload, register_jitable

from tidelog.rowhash import xxh3
from tidelog.rowhash.xxh3 import Integers, Lanes, Octets, Words

_PLAIN: Final = ("C", "A")
_WORD: Final = types.uint64
_WORDS_IN = types.Array(_WORD, 1, "C", readonly=True)
_INTEGERS_IN = types.Array(types.int64, 1, "C", readonly=True)
_OCTETS_IN = types.Array(types.uint8, 1, "C", readonly=True)
_HALVES_ANYWHERE = types.Array(types.uint32, 1, "A", readonly=True, aligned=False)
_WORDS_ANYWHERE = types.Array(_WORD, 1, "A", readonly=True, aligned=False)
_WORDS_OUT = types.Array(_WORD, 1, "C")


def _compiled(loop: Callable[..., None], *arguments: Any) -> Callable[..., None]:
    """Compile a loop for these types of arguments at once."""
    compiler = njit([types.void(*arguments)], cache=True, nogil=True)
    return cast("Callable[..., None]", compiler(loop))


# LLVM must inline the steps: a call costs more than a step.
for _step in xxh3.STEPS:
    register_jitable(forceinline=True)(_step)
overload(xxh3.byteswapped, jit_options={"forceinline": True}, strict=False)(
    lambda x: xxh3.byteswapped_by_shifts  # noqa: ARG005 - numba wants the function's parameters
)

_hash_words = _compiled(xxh3.each_hash_of_words, _WORDS_OUT, _WORDS_IN, _WORD)
_hash_bytes = _compiled(
    xxh3.each_hash_of_bytes,
    types.UniTuple(_WORDS_OUT, 2),
    types.Tuple([_OCTETS_IN, _HALVES_ANYWHERE, _WORDS_ANYWHERE]),
    _INTEGERS_IN,
    _INTEGERS_IN,
    types.UniTuple(_WORD, 2),
)
_fold = _compiled(xxh3.each_fold, _WORDS_OUT, _WORDS_IN)
_fold_words = _compiled(xxh3.each_fold_of_words, _WORDS_OUT, _WORDS_IN, _WORD)
_finish_fold = _compiled(xxh3.each_finished_fold, _WORDS_OUT)


def hash_words(words: Words, seeds: Lanes) -> Lanes:
    words = np.require(words, np.uint64, _PLAIN)
    lanes = np.empty((2, len(words)), np.uint64)
    for lane, seed in zip(lanes, seeds[:, 0], strict=True):
        _hash_words(lane, words, seed)
    return lanes


def hash_bytes(data: Octets, starts: Integers, lengths: Integers, seeds: Lanes) -> Lanes:
    starts, lengths = np.require(starts, np.int64, _PLAIN), np.require(lengths, np.int64, _PLAIN)
    lanes = np.empty((2, len(starts)), np.uint64)
    _hash_bytes(tuple(lanes), xxh3.views_of(data), starts, lengths, tuple(seeds[:, 0]))
    long = np.flatnonzero(lengths > xxh3.LONGEST)
    if len(long):
        lanes[:, long] = xxh3.hash_long(data, starts[long], lengths[long], seeds)
    return lanes


def fold(state: Lanes, lanes: Lanes) -> Lanes:
    for lane, part in zip(state, lanes, strict=True):
        _fold(lane, np.require(part, np.uint64, _PLAIN))
    return state


def fold_words(state: Lanes, words: Words, seeds: Lanes) -> Lanes:
    words = np.require(words, np.uint64, _PLAIN)
    for lane, seed in zip(state, seeds[:, 0], strict=True):
        _fold_words(lane, words, seed)
    return state


def finish_fold(state: Lanes) -> Lanes:
    for lane in state:
        _finish_fold(lane)
    return state
