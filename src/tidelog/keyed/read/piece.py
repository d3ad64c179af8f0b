"""Loose records: the part of the wal that is not compacted, in windows, as keyed records. Pure.

Shape: tables of `KEYED_RECORDS`, in sequence order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.keyed.format.marker import SinkMark
from tidelog.keyed.format.records import one_chunk
from tidelog.keyed.values import KEYED_RECORDS
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.stream_set import may_hold

LOOKUPS: Final = 4  # After this many scans of all keys, an index would have been as cheap.


@dataclass(slots=True, eq=False)
class LoosePiece:
    """The window ``[start, limit)`` of the wal, with its records if they are in memory.

    ``fragment`` is the stored object, if known; it is not known for this process's own appends.
    ``marks`` are known after the records were fetched.
    """

    start: int
    limit: int
    records: pa.Table | None = None
    fragment: Fragment | None = None
    marks: dict[str, SinkMark] = field(default_factory=dict)
    _places: KeyPlaces | None = field(default=None, repr=False)
    _lookups: int = 0

    @property
    def nbytes(self) -> int:
        """The approximate size in bytes: in memory, or as stored."""
        if self.records is not None:
            return int(self.records.nbytes)
        return self.fragment.num_bytes if self.fragment is not None else 0

    def may_hold(self, key: bytes) -> bool:
        """Return False only if no record has this key, so that the piece need not be read."""
        if self.records is None and self.fragment is not None:
            return may_hold(self.fragment.keys, key)
        return True

    def of_key(self, records: pa.Table, key: bytes) -> pa.Table:
        """Return the records of one key; an index is built once it pays."""
        if self._places is None and self._lookups < LOOKUPS:
            self._lookups += 1
            return records.filter(pc.equal(records.column("key"), pa.scalar(key, pa.binary())))
        found = self.places(records).rows_of(key)
        return records.take(pa.array(found)) if len(found) else records.slice(0, 0)

    def forget_records(self) -> None:
        """Drop the records from memory."""
        self.records = self._places = None

    def places(self, records: pa.Table) -> KeyPlaces:
        """Return the index of the keys of all the piece's records; it is built once."""
        if self._places is None:
            self._places = KeyPlaces.of(records.column("key"))
        return self._places


def keyed_records(found: pa.Table) -> pa.Table:
    """Return the records of a wal that have a key, as keyed records."""
    if found.column("key").null_count:
        found = found.filter(pc.is_valid(found.column("key")))
    columns = [found.column(name) for name in ("key", "position", "timestamp_us", "body")]
    return pa.table(columns, schema=KEYED_RECORDS)


def in_range(records: pa.Table, start: int, limit: int | None) -> pa.Table:
    """Return the records with the sequences ``[start, limit)``; the records must be in order."""
    sequences: Any = records.column("sequence").to_numpy()
    first = int(np.searchsorted(sequences, start))
    last = len(sequences) if limit is None else int(np.searchsorted(sequences, limit))
    return records.slice(first, max(0, last - first))


@dataclass(frozen=True, slots=True)
class KeyPlaces(Sequence[bytes]):
    """The distinct keys in order; the nth has the rows ``order[starts[n] : starts[n + 1]]``.

    A dict of all keys would take about 300 bytes of memory per key, and seconds for a million keys.
    """

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
