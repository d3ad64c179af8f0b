"""Key places: an index of a column of keys, stored as columns itself. Pure.

A dict of all keys would take about 300 bytes of memory per key, and seconds for a million keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.keyed.format.records import one_chunk


@dataclass(frozen=True, slots=True)
class KeyPlaces(Sequence[bytes]):
    """The distinct keys in order; the nth has the rows ``order[starts[n] : starts[n + 1]]``."""

    keys: pa.BinaryArray
    starts: np.ndarray[Any, Any]
    order: np.ndarray[Any, Any]

    @classmethod
    def of(cls, column: pa.ChunkedArray[Any]) -> KeyPlaces:
        """Return the index of a column of keys."""
        coded = one_chunk(column).dictionary_encode()
        by_key = pc.sort_indices(coded.dictionary)
        ranks = np.empty(len(by_key), np.int64)
        ranks[by_key.to_numpy()] = np.arange(len(by_key))
        ranked = ranks[coded.indices.to_numpy()]
        order = np.argsort(ranked, kind="stable")
        starts = np.searchsorted(ranked[order], np.arange(len(by_key) + 1))
        return cls(coded.dictionary.take(by_key), starts, order)

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            some: Any = self.keys[at].to_pylist()
            return list(some)
        one: bytes = self.keys[at].as_py()
        return one

    def rows_of(self, key: bytes) -> np.ndarray[Any, Any]:
        """Return the rows of a key, in order."""
        at = bisect_left(self, key)
        if at == len(self) or self[at] != key:
            return self.order[:0]
        return self.order[self.starts[at] : self.starts[at + 1]]

    def any_of(self, keys: Collection[bytes]) -> list[bytes]:
        """Return the given keys that occur here, in order; looks up the smaller of the two sets."""
        if len(keys) > len(self):
            return [key for key in self[:] if key in keys]
        return [key for key in sorted(keys) if len(self.rows_of(key))]

    def has_any(self, first: bytes, last: bytes | None) -> bool:
        """Return True if any of the keys ``[first, last)`` occurs here."""
        at = bisect_left(self, first)
        return at < len(self) and (last is None or self[at] < last)
