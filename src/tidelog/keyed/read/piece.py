"""Loose records: the part of the wal that is not compacted, in windows, as keyed records. Pure.

Shape: tables of `KEYED_RECORDS`, in sequence order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.keyed.format.mark import SinkMark
from tidelog.keyed.read.key_places import KeyPlaces
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
