"""Loose records: what of the wal is not compacted, a window at a time, as keyed records. Pure.

Shape: tables of `KEYED_RECORDS`, in the order of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.keyed.format.mark import SinkMark
from tidelog.keyed.values import KEYED_RECORDS
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.key_set import keys_may_hold


@dataclass(slots=True, eq=False)
class LoosePiece:
    """The window ``[start, limit)`` of the wal; its records, where they are in memory.

    ``fragment`` is where they are stored, if that is known; of what this process appends, it is
    not. ``is_durable`` is False as long as they are only ordered. ``marks`` are known of what was
    fetched.
    """

    start: int
    limit: int
    records: pa.Table | None = None
    fragment: Fragment | None = None
    is_durable: bool = True
    marks: dict[str, SinkMark] = field(default_factory=dict)
    _places: dict[bytes, np.ndarray[Any, Any]] | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Return about how many bytes it has: in memory, or stored."""
        if self.records is not None:
            return int(self.records.nbytes)
        return self.fragment.num_bytes if self.fragment is not None else 0

    def may_hold(self, key: bytes) -> bool:
        """Say whether it may hold records of a key; if not, it need not be read."""
        if self.records is None and self.fragment is not None:
            return keys_may_hold(self.fragment.keys, key)
        return True

    def of_key(self, records: pa.Table, key: bytes) -> pa.Table:
        """Return the records of one key, of all of the piece's, by an index that is made once."""
        if self._places is None:
            self._places = places_of(records)
        found = self._places.get(key)
        return records.slice(0, 0) if found is None else records.take(pa.array(found))

    def forget_records(self) -> None:
        """Let go of what is in memory."""
        self.records = self._places = None

    def key_set(self, records: pa.Table) -> set[bytes]:
        """Return its keys."""
        if self._places is None:
            self._places = places_of(records)
        return set(self._places)


def keyed_records(found: pa.Table) -> pa.Table:
    """Return the records of a wal that have a key, as keyed records."""
    if found.column("key").null_count:
        found = found.filter(pc.is_valid(found.column("key")))
    columns = [found.column(name) for name in ("key", "position", "timestamp_us", "body")]
    return pa.table(columns, schema=KEYED_RECORDS)


def places_of(records: pa.Table) -> dict[bytes, np.ndarray[Any, Any]]:
    """Return the rows of each key, in order."""
    if not records.num_rows:
        return {}
    encoded: Any = records.column("key").combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0)
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    names: list[bytes] = encoded.dictionary.to_pylist()
    return {
        name: order[begin:end]
        for name, begin, end in zip(names, starts[:-1], starts[1:], strict=True)
    }


def in_range(records: pa.Table, start: int, limit: int | None) -> pa.Table:
    """Return those of some records, in the order of sequences, that are in ``[start, limit)``."""
    sequences: Any = records.column("sequence").to_numpy()
    first = int(np.searchsorted(sequences, start))
    last = len(sequences) if limit is None else int(np.searchsorted(sequences, limit))
    return records.slice(first, max(0, last - first))
