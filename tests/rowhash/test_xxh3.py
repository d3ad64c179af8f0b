"""The arithmetic of row hashes against the library it must agree with."""

from __future__ import annotations

import numpy as np
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kit.kernels import kernels
from tidelog.rowhash.columns import kernel
from tidelog.rowhash.xxh3 import BLOCK_ROWS, seeds_of, start_fold

__all__ = ["kernels"]  # Each test is run by either.

SEEDS = seeds_of("test")


def _hash_all(values: list[bytes], *, before: bytes = b"") -> list[tuple[int, int]]:
    data = np.frombuffer(before + b"".join(values), np.uint8)
    lengths = np.array([len(value) for value in values], np.int64)
    starts = len(before) + np.cumsum(lengths) - lengths
    lanes = kernel().hash_bytes(data, starts, lengths, SEEDS)
    return list(zip(lanes[0].tolist(), lanes[1].tolist(), strict=True))


def _expected(value: bytes) -> tuple[int, int]:
    low, high = SEEDS[:, 0].tolist()
    return xxhash.xxh3_64_intdigest(value, low), xxhash.xxh3_64_intdigest(value, high)


def test_every_length_up_to_300_is_exactly_xxh3() -> None:
    """Each branch of XXH3, and each border between two, is written out by hand here."""
    values = [bytes((7 * length + at) % 256 for at in range(length)) for length in range(301)]

    assert _hash_all(values) == [_expected(value) for value in values]


@given(values=st.lists(st.binary(max_size=140), max_size=20), before=st.binary(max_size=9))
def test_strings_anywhere_in_a_buffer_are_exactly_xxh3(values: list[bytes], before: bytes) -> None:
    """Values begin at any byte, so every read is unaligned, up to the last byte of the buffer."""
    assert _hash_all(values, before=before) == [_expected(value) for value in values]


@given(words=st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_words_are_exactly_xxh3_of_their_bytes(words: list[int]) -> None:
    """A number and the eight bytes that spell it are hashed by two ways that must agree."""
    lanes = kernel().hash_words(np.array(words, np.uint64), SEEDS)

    assert list(zip(*lanes.tolist(), strict=True)) == [
        _expected(word.to_bytes(8, "little")) for word in words
    ]


def test_classes_have_seeds_of_their_own() -> None:
    """An integer and a timestamp of the same number must not hash the same."""
    names = ["integer", "float", "timestamp[us]", "timestamp[ms]", "list", "null"]

    assert len({seed for name in names for seed in seeds_of(name)[:, 0].tolist()}) == 2 * len(names)


def test_folding_notices_order_and_works_on_views() -> None:
    """Rows are folded a block at a time, in place, in views of one array."""
    first = kernel().hash_words(np.arange(BLOCK_ROWS, dtype=np.uint64), SEEDS)
    second = kernel().hash_words(np.arange(BLOCK_ROWS, dtype=np.uint64), seeds_of("other"))
    one, other = start_fold("row", 2 * BLOCK_ROWS), start_fold("row", BLOCK_ROWS)

    kernel().fold(one[:, BLOCK_ROWS:], first)
    kernel().fold(one[:, BLOCK_ROWS:], second)
    kernel().finish_fold(one[:, BLOCK_ROWS:])
    kernel().fold(other, second)
    kernel().fold(other, first)
    kernel().finish_fold(other)

    assert not np.any(one[:, BLOCK_ROWS:] == other)
    assert np.all(one[:, :BLOCK_ROWS] == start_fold("row", BLOCK_ROWS))
