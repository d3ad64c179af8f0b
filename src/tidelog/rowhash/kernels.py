"""The implementation that computes hashes: numpy, or functions compiled by numba if installed.

Loading numba takes a third of a second, so a process loads it only after hashing many values. Both
implementations compute the same hashes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, cast

from tidelog.rowhash import xxh3
from tidelog.rowhash.xxh3 import Integers, Lanes, Octets, Words

WORTH_LOADING: Final = 1 << 22  # Values. Numpy hashes this many in a tenth of a second.


class Kernels(Protocol):
    """The functions of both implementations."""

    hash_words: Callable[[Words, tuple[int, int]], Lanes]
    hash_bytes: Callable[[Octets, Integers, Integers, tuple[int, int]], Lanes]
    fold: Callable[[Lanes, Lanes], None]
    fold_words: Callable[[Lanes, Words, tuple[int, int]], None]
    finish_fold: Callable[[Lanes], None]


_NUMPY: Final = cast("Kernels", xxh3)


class _Chosen:
    """The implementation in use: numpy, then numba after `WORTH_LOADING` values."""

    kernels: Kernels = _NUMPY
    left: int = WORTH_LOADING


def is_compiled() -> bool:
    """Return True if compiled functions are in use."""
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
    """Mix the hashes of words into ``state``, in place, like `hash_words` and then `fold`."""
    _kernels(len(words)).fold_words(state, words, seeds)


def finish_fold(state: Lanes) -> None:
    """Avalanche ``state``, in place; see `xxh3.finish_fold`."""
    _Chosen.kernels.finish_fold(state)


def _kernels(count: int) -> Kernels:
    if _Chosen.left > 0:
        # Threads may lose each other's counts: then numba loads a little later, or twice.
        _Chosen.left -= count
        if _Chosen.left <= 0:
            _Chosen.kernels = _loaded()
    return _Chosen.kernels


def _loaded() -> Kernels:
    try:
        from tidelog.rowhash import compiled
    except (ImportError, RuntimeError):
        # Not installed, not compatible with this numpy, or no folder for compiled code exists.
        return _NUMPY
    return cast("Kernels", compiled)
