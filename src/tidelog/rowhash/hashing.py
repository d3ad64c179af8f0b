"""Hashes of rows, and linear sums of them, which compare contents without reading them.

``H(row)`` depends only on the row's values and on their columns. It does not depend on names,
chunks, encodings or widths (`rowhash.columns` defines a value). Rows are hashed under one schema:
the same number as an integer and as a decimal has two hashes.

A `RowSum` is the sum of ``diff * H``. It ignores order, and opposite diffs cancel. Two different
collections share a sum with a probability of 2^-128. A person who chooses rows for that purpose can
produce equal sums: sums detect faults, not forgery.

Invariants: H never changes; ``tests/golden/rowhash.json`` pins it.
Source: design page 4, "Parts".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.errors import CorruptionError, UsageError
from tidelog.rowhash.columns import Column, folded_blocks, kernel, supported
from tidelog.rowhash.xxh3 import BLOCK_ROWS, Lanes, Words, seeds_of

_MASK_64 = 2**64 - 1


@dataclass(frozen=True, slots=True)
class RowSum:
    """A sum of hashes: two lanes, each modulo 2^64."""

    lo: int
    hi: int

    def __post_init__(self) -> None:
        if not (0 <= self.lo <= _MASK_64 and 0 <= self.hi <= _MASK_64):
            raise UsageError("a lane of a row sum must be from 0 to 2^64-1", lo=self.lo, hi=self.hi)

    @classmethod
    def zero(cls) -> RowSum:
        return cls(0, 0)

    @classmethod
    def from_bytes(cls, octets: bytes) -> RowSum:
        """Decode the bytes of `to_bytes`.

        Raises:
            CorruptionError: it is not 16 bytes long.
        """
        if len(octets) != 16:
            raise CorruptionError("a row sum must have 16 bytes", length=len(octets))
        return cls(int.from_bytes(octets[:8], "little"), int.from_bytes(octets[8:], "little"))

    def to_bytes(self) -> bytes:
        """Return 16 bytes: lo, then hi, little endian."""
        return self.lo.to_bytes(8, "little") + self.hi.to_bytes(8, "little")

    def __add__(self, other: RowSum) -> RowSum:
        return RowSum((self.lo + other.lo) & _MASK_64, (self.hi + other.hi) & _MASK_64)

    def __neg__(self) -> RowSum:
        return RowSum(-self.lo & _MASK_64, -self.hi & _MASK_64)

    def __sub__(self, other: RowSum) -> RowSum:
        return self + -other


@dataclass(frozen=True, slots=True, eq=False)
class Hashes:
    """The hashes of rows, in their order: two lanes of 64 bits.

    Shape: two uint64 arrays of one length.
    """

    lo: npt.NDArray[np.uint64]
    hi: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.lo)

    def between(self, start: int, limit: int) -> Hashes:
        """Return the hashes of the rows ``[start, limit)``."""
        return Hashes(self.lo[start:limit], self.hi[start:limit])


def hash_rows(columns: Sequence[Column], *, rows: int) -> Hashes:
    """Hash each row over the columns, in the order of the columns.

    Raises:
        UsageError: a column does not have ``rows`` rows, or has a type that is not `supported`.
    """
    _check_columns(columns, rows)
    state = np.empty((2, rows), np.uint64)
    for start, lanes in folded_blocks(columns, rows):
        state[:, start : start + lanes.shape[1]] = lanes
    return Hashes(state[0], state[1])


def sums_of_rows(
    columns: Sequence[Column], times: npt.NDArray[np.int64], diffs: npt.NDArray[np.int64]
) -> tuple[RowSum, RowSum]:
    """Return two sums of ``diff * H`` over rows: of rows alone, and of rows with their times.

    Raises:
        UsageError: see `hash_rows`.
    """
    rows = len(diffs)
    _check_columns(columns, rows)
    words, weights = (np.ascontiguousarray(n, np.int64).view(np.uint64) for n in (times, diffs))
    plain, timed = RowSum.zero(), RowSum.zero()
    for start, lanes in folded_blocks(columns, rows):
        limit = start + lanes.shape[1]
        plain += _dot(lanes, weights[start:limit])
        timed += _dot(_timed(lanes, words[start:limit]), weights[start:limit])
    return plain, timed


def _check_columns(columns: Sequence[Column], rows: int) -> None:
    for number, column in enumerate(columns):
        if len(column) != rows:
            raise UsageError(
                "all columns must have the same number of rows", column=number, rows=len(column)
            )
        if not supported(column.type):
            raise _unsupported(number, column.type)


def hash_rows_with_time(hashes: Hashes, times: npt.NDArray[np.int64]) -> Hashes:
    """Hash rows together with their times, from the hashes of the rows alone."""
    _check_length(hashes, times)
    state = np.stack([hashes.lo, hashes.hi])
    words = np.ascontiguousarray(times, np.int64).view(np.uint64)
    for start in range(0, len(hashes), BLOCK_ROWS):
        _timed(state[:, start : start + BLOCK_ROWS], words[start : start + BLOCK_ROWS])
    return Hashes(state[0], state[1])


def _timed(lanes: Lanes, times: Words) -> Lanes:
    """Mix times into the hashes of rows, in place."""
    kernel(len(times)).fold_words(lanes, times, seeds_of("logical time"))
    return kernel().finish_fold(lanes)


def weighted_sum(hashes: Hashes, diffs: npt.NDArray[np.int64]) -> RowSum:
    """Return the sum of ``diff * H`` over all rows."""
    _check_length(hashes, diffs)
    weights = np.ascontiguousarray(diffs, np.int64).view(np.uint64)
    return _dot((hashes.lo, hashes.hi), weights)


def _dot(lanes: Lanes | tuple[Words, Words], weights: Words) -> RowSum:
    return RowSum(int(np.dot(lanes[0], weights)), int(np.dot(lanes[1], weights)))


def bucket_of(hashes: Hashes, buckets: int) -> npt.NDArray[np.int64]:
    """Return each row's bucket, from 0 to ``buckets - 1``; it is the same in every process.

    Raises:
        UsageError: ``buckets`` is less than 1.
    """
    if buckets < 1:
        raise UsageError("rows need at least one bucket", buckets=buckets)
    return (hashes.hi % np.uint64(buckets)).astype(np.int64)


def check_supported(schema: pa.Schema) -> None:
    """Check that rows of ``schema`` can be hashed.

    Raises:
        UsageError: they cannot; the message names the first such column and its type.
    """
    for field in schema:
        if not supported(field.type):
            raise _unsupported(field.name, field.type)


def _unsupported(column: str | int, dtype: pa.DataType) -> UsageError:
    return UsageError(
        f"column {column!r} has type {dtype}, which cannot be stored: "
        "cast it to a plain type, a list or a struct",
        column=column,
        type=dtype,
    )


def _check_length(hashes: Hashes, numbers: npt.NDArray[np.int64]) -> None:
    if len(numbers) != len(hashes):
        raise UsageError("each row must have one number", rows=len(hashes), numbers=len(numbers))
