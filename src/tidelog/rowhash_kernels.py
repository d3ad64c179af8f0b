"""Who computes hashes: numpy, or functions compiled by numba, where that is installed.

To load numba takes a third of a second, so that only a process that has much to hash does. The
hashes are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, cast

from tidelog import rowhash_xxh3
from tidelog.rowhash_xxh3 import Integers, Lanes, Octets, Words

WORTH_LOADING: Final = 1 << 22  # Values; numpy hashes so many in a tenth of a second.


class Kernels(Protocol):
    """What either of the two modules has."""

    hash_words: Callable[[Words, tuple[int, int]], Lanes]
    hash_bytes: Callable[[Octets, Integers, Integers, tuple[int, int]], Lanes]
    fold: Callable[[Lanes, Lanes], None]
    fold_words: Callable[[Lanes, Words, tuple[int, int]], None]
    finish_fold: Callable[[Lanes], None]


_NUMPY: Final = cast("Kernels", rowhash_xxh3)


class _Chosen:
    """What this process uses: compiled functions once it has hashed so much that they pay."""

    kernels: Kernels = _NUMPY
    left: int = WORTH_LOADING


def is_compiled() -> bool:
    """Say whether compiled functions are in use."""
    return _Chosen.kernels is not _NUMPY


def hash_words(words: Words, seeds: tuple[int, int]) -> Lanes:
    """Hash each 64-bit word as its 8 bytes, little endian."""
    return _kernels(len(words)).hash_words(words, seeds)


def hash_bytes(data: Octets, starts: Integers, lengths: Integers, seeds: tuple[int, int]) -> Lanes:
    """Hash the byte strings ``data[start : start + length]``."""
    return _kernels(len(starts)).hash_bytes(data, starts, lengths, seeds)


def fold(state: Lanes, lanes: Lanes) -> None:
    """Mix the next part's hashes into ``state``, in place; the order of parts matters."""
    _Chosen.kernels.fold(state, lanes)


def fold_words(state: Lanes, words: Words, seeds: tuple[int, int]) -> None:
    """Mix the hashes of words into ``state``, in place, as `hash_words` and `fold` do."""
    _kernels(len(words)).fold_words(state, words, seeds)


def finish_fold(state: Lanes) -> None:
    """Avalanche ``state``, in place; see `rowhash_xxh3.finish_fold`."""
    _Chosen.kernels.finish_fold(state)


def _kernels(count: int) -> Kernels:
    if _Chosen.left > 0:
        # Threads may count past one another: then it is loaded a little later, or by two.
        _Chosen.left -= count
        if _Chosen.left <= 0:
            _Chosen.kernels = _loaded()
    return _Chosen.kernels


def _loaded() -> Kernels:
    try:
        from tidelog import rowhash_compiled
    except (ImportError, RuntimeError):
        # Not installed, not for this numpy, or there is no folder to keep what it compiles.
        return _NUMPY
    return cast("Kernels", rowhash_compiled)
