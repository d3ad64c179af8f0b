"""The generator: a source of synthetic rows, for tests, demos and benchmarks.

A row depends only on its number and the settings, and the arithmetic is exact on every processor.
So each engine makes the same row on any machine at any time.
Shape: ``counter`` rows have ``n`` (int64, from 0) and ``time``. ``key-value`` rows have ``key`` and
    ``value`` (int64) between these two.
Source: design page 6, "Raw sources".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.collection.formats.lines import Int64s
from tidelog.collection.formats.times import parse_time_us
from tidelog.collection.source.kind import ADDRESS, Frontier, OpenedWith, RowRange, SourceKind
from tidelog.errors import UsageError

SHAPES: Final = ("counter", "key-value")
BATCH_ROWS: Final = 65_536
RATE: Final = 1_000
ROWS_ALONE: Final = 1_000_000
ROWS_MAX: Final = 2**42  # At one row a second, their times still fit in 64 bits.
START_MAX_US: Final = 2**58  # After the year 9,000.
START: Final = "2000-01-01T00:00:00Z"
_TIME: Final = pa.timestamp("us", tz="UTC")
_KEY, _VALUE = np.uint64(1), np.uint64(2)
_MIX: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)

Words = np.ndarray[Any, np.dtype[np.uint64]]


class Generator(SourceKind):
    """A source of synthetic rows; their addresses are their numbers, from 0."""

    name = "generator"
    knows = {  # noqa: RUF012 - a class variable of the port, and no field
        "shape": "counter or key-value",
        "rows": "the total number of rows; default a million, or unlimited with a rate",
        "rate": "the rows per second after the source's creation; default: all rows exist",
        "start": "the time of the first row; default 2000-01-01, or the creation with a rate",
        "seed": "a number that selects the keys and values",
        "keys": "of key-value: the number of keys; default 1,000",
        "skew": "of key-value: 0 for equally frequent keys, up to 8 for a few very frequent ones",
    }
    row_bytes = 32

    def __init__(self, opening: OpenedWith) -> None:
        super().__init__(opening)
        settings, whole = opening.settings, opening.whole
        self.shape = settings.get("shape", SHAPES[0])
        if self.shape not in SHAPES:
            known = ", ".join(SHAPES)
            raise UsageError(f"settings['shape'] must be one of {known}, not {self.shape!r}")
        if self.shape == "counter" and (wrong := {"keys", "skew", "seed"} & set(settings)):
            raise UsageError(f"settings[{min(wrong)!r}] needs settings['shape']='key-value'")
        self.paced = "rate" in settings
        self.rate = whole("rate", RATE, least=1, most=1_000_000_000)
        self.rows = whole("rows", ROWS_MAX if self.paced else ROWS_ALONE, most=ROWS_MAX)
        self.seed = whole("seed", 0, most=2**63)
        self.keys = whole("keys", 1_000, least=1, most=2**48)
        self.skew = whole("skew", 0, most=8)
        begin = settings.get("start", START)
        self.start_us = parse_time_us(begin, what="settings['start']")
        if not 0 <= self.start_us <= START_MAX_US:
            raise UsageError("settings['start'] must be from 1970 to the year 9000")

    async def columns(self) -> pa.Schema:
        return self._table(np.zeros(0, np.int64)).drop_columns([ADDRESS]).schema

    async def settle(self) -> Mapping[str, str]:
        start = str(self.opening.info.created_us if self.paced else self.start_us)
        return {"start": start, **self.opening.settings, "shape": self.shape}

    async def head(self) -> Frontier:
        rows = self.rows
        if self.paced:
            since_us = max(0, self.opening.clock.now_us() - self.opening.info.created_us)
            rows = min(rows, since_us * self.rate // 1_000_000)
        return {self.shape: rows}

    async def read(self, found: RowRange) -> AsyncIterator[pa.Table]:
        """See `SourceKind`."""
        yield self._table(np.zeros(0, np.int64))
        for start in range(found.start, found.limit, BATCH_ROWS):
            numbers = np.arange(start, min(found.limit, start + BATCH_ROWS), dtype=np.int64)
            yield await self.opening.clock.offload(partial(self._table, numbers))

    def _table(self, numbers: Int64s) -> pa.Table:
        # Split into whole seconds and the rest, so that no product exceeds 64 bits.
        seconds, rest = np.divmod(numbers, self.rate)
        times = self.start_us + seconds * 1_000_000 + rest * 1_000_000 // self.rate
        columns: dict[str, Any] = {"n": numbers}
        if self.shape == "key-value":
            columns |= {"key": self._keys(numbers), "value": self._values(numbers)}
        columns |= {"time": pa.array(times).cast(_TIME), ADDRESS: numbers}
        return pa.table(columns)

    def _keys(self, numbers: Int64s) -> Int64s:
        """Return a key, from 0, for each row; with a skew, lower keys are more frequent.

        The lowest share ``x`` of the keys has the share ``x ** (1 / (skew + 1))`` of the rows.
        """
        # Every processor rounds products of numbers below 1 alike, but not powers.
        even = (mixed(numbers, self.seed, _KEY) >> np.uint64(11)).astype(np.float64) / 2.0**53
        share = even
        for _ in range(self.skew):
            share = share * even
        keys: Int64s = (share * self.keys).astype(np.int64)
        return np.minimum(keys, self.keys - 1)

    def _values(self, numbers: Int64s) -> Int64s:
        values: Int64s = (mixed(numbers, self.seed, _VALUE) >> np.uint64(32)).astype(np.int64)
        return values


def mixed(numbers: Int64s, seed: int, salt: np.uint64) -> Words:
    """Return 64 pseudo-random bits for each number, by seed and salt (SplitMix64)."""
    with np.errstate(over="ignore"):
        base = _finish(np.full(1, seed, np.uint64) + salt * _STEP)
        return _finish(base + (numbers.astype(np.uint64) + np.uint64(1)) * _STEP)


def _finish(words: Words) -> Words:
    words = (words ^ (words >> np.uint64(30))) * _MIX[0]
    words = (words ^ (words >> np.uint64(27))) * _MIX[1]
    return words ^ (words >> np.uint64(31))
