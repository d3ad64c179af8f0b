"""The keys of a part that is being written, for its directory. Pure.

Records arrive in tables, and the last key of a table may continue in the next table.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import require
from tidelog.keyed.format.directory import DIRECTORY, DirectoryWriter
from tidelog.keyed.format.records import (
    KEY,
    SEQUENCE,
    Numbers,
    in_order,
    int64_array,
    int64_of,
    key_starts,
    one_chunk,
)


class PartKeys:
    """The keys of a part as its records arrive; the last key stays open for more records."""

    def __init__(self) -> None:
        self.writer = DirectoryWriter()
        self.count = 0
        self.first_key = b""
        self.last_key = b""
        self.min_sequence = 2**63 - 1
        self.max_sequence = -1
        self._rows = 0
        self._open: pa.Table = DIRECTORY.empty_table()
        self._large: list[tuple[Numbers, Numbers]] = []
        self._page_rows = 1

    def add(self, records: pa.Table, page_rows: int) -> None:
        """Add records, all of them after those before."""
        require(in_order(records), "records are not sorted by (key, sequence)")
        self._page_rows = page_rows
        entries = self._look(records)
        first, low = entries.column(KEY)[0].as_py(), entries.column("min_sequence")[0].as_py()
        if not self._rows:
            self.first_key = first
        elif first == self.last_key:
            require(low > self._open.column("max_sequence")[0].as_py(), "a sequence occurs twice")
            entries = _joined(self._open, entries)
            self._open = DIRECTORY.empty_table()
        require(not self._rows or first >= self.last_key, "keys are not sorted")
        self._rows += records.num_rows
        self.last_key = entries.column(KEY)[entries.num_rows - 1].as_py()
        done = pa.concat_tables([self._open, entries])
        self._open = done.slice(done.num_rows - 1)
        self._keep(done.slice(0, done.num_rows - 1))

    def finish(self) -> None:
        self._keep(self._open)

    def has_large(self, rows: Numbers) -> Numbers:
        """Return for each row, in order, whether its key has more rows than a page."""
        if not self._large:
            return np.zeros(len(rows), np.int64)
        firsts = np.concatenate([first for first, _ in self._large])
        limits = np.concatenate([limit for _, limit in self._large])
        place = np.searchsorted(firsts, rows, side="right") - 1
        return ((place >= 0) & (rows < limits[place])).astype(np.int64)

    def _look(self, records: pa.Table) -> pa.Table:
        keys, sequences = one_chunk(records.column(KEY)), int64_of(records.column(SEQUENCE))
        starts = key_starts(keys)
        limits = np.append(starts[1:], records.num_rows)
        self.min_sequence = min(self.min_sequence, int(sequences.min()))
        self.max_sequence = max(self.max_sequence, int(sequences.max()))
        columns = [starts + self._rows, limits - starts, sequences[starts], sequences[limits - 1]]
        return pa.Table.from_arrays(
            [pc.take(keys, int64_array(starts)), *map(int64_array, columns)], schema=DIRECTORY
        )

    def _keep(self, keys: pa.Table) -> None:
        self.count += keys.num_rows
        first_rows, rows = int64_of(keys.column("first_row")), int64_of(keys.column("rows"))
        if (is_large := rows > self._page_rows).any():
            self._large.append((first_rows[is_large], (first_rows + rows)[is_large]))
        self.writer.add(keys)


def _joined(open_key: pa.Table, entries: pa.Table) -> pa.Table:
    """Return keys after joining the first of them with the open key."""
    both = {
        name: [open_key.column(name)[0].as_py(), entries.column(name)[0].as_py()]
        for name in DIRECTORY.names
    }
    entry = pa.table(
        {
            KEY: [both[KEY][0]],
            "first_row": [both["first_row"][0]],
            "rows": [sum(both["rows"])],
            "min_sequence": [both["min_sequence"][0]],
            "max_sequence": [both["max_sequence"][1]],
        },
        schema=DIRECTORY,
    )
    return pa.concat_tables([entry, entries.slice(1)])
