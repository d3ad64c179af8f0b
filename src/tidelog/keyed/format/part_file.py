"""Write parts: encode sorted records as Parquet, and their key directory. Pure.

Shape: Parquet of `PART_RECORDS`, zstd. Row groups have at most `GROUP_ROWS` rows and about
    `GROUP_BYTES`. They end at the end of a key, unless that key fills half of a group. There are a
    page index and page checksums. Only key and sequence have statistics, because those of values
    would be five times as large as the rest of the index. Numbers and values are PLAIN, so that a
    page is simple to decode. Times and sequences are adjacent, because each read needs both.
Invariants: a page ends after a multiple of a fixed number of rows, or with its row group. A page of
    values has about `PAGE_BYTES` before compression: 256 rows for values of 128 to 255 bytes, 1,024
    for small values, fewer for large values. A page of numbers has at least `NUMBERS_BYTES`, and a
    page of keys is as large as its row group. Larger pages are better for full scans, such as
    Spark's, which pay about ten microseconds per page; and keys are never read page by page.
Source: rfc-0001, "Physical organization"; design page 5, "Run".
"""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tidelog.errors import require
from tidelog.keyed.format.pages import read_page_index
from tidelog.keyed.format.part import EncodedPart, PartLayout, RunPart, directory_path
from tidelog.keyed.format.part_keys import PartKeys
from tidelog.keyed.format.records import (
    KEY,
    KEYED_RECORDS,
    SEQUENCE,
    TIMESTAMP,
    VALUE,
    Numbers,
    int64_of,
    key_starts,
    lengths_of,
    one_chunk,
)
from tidelog.wal.format.parquet_meta import footer_bytes

GROUP_ROWS: Final = 8_192
GROUP_BYTES: Final = 8 * 1024 * 1024  # The bytes of keys and values, before compression.
GROUPS_MAX: Final = 4_096  # 33 million rows: a reader would refuse the footer of a larger part.
PAGE_BYTES: Final = 64 * 1024
NUMBERS_BYTES: Final = 8 * 1024
PAGE_ROWS_MAX: Final = 1_024
PAGE_ROWS_MIN: Final = 8
PIECE_ROWS: Final = 65_536
PART_RECORDS: Final = pa.schema(
    [KEYED_RECORDS.field(name) for name in (KEY, TIMESTAMP, SEQUENCE, VALUE)]
)


def encode_part(records: pa.Table, *, path: str, directory: str | None = None) -> EncodedPart:
    """Encode a part from a non-empty, sorted table of `KEYED_RECORDS`."""
    writer = RunPartWriter(path, directory=directory)
    writer.write(records)
    return writer.finish()


def page_rows_for(records: pa.Table) -> int:
    """Return the number of rows of a page for values of this size."""
    size = int(lengths_of(one_chunk(records.column(VALUE))).sum())
    most = PAGE_BYTES * records.num_rows // max(size, 1)
    return min(max(1 << max(most.bit_length() - 1, 0), PAGE_ROWS_MIN), PAGE_ROWS_MAX)


class RunPartWriter:
    """Writes a part from sorted tables; holds its bytes, and little more than a row group.

    ``page_rows`` follows from the first table's values unless it is given.
    """

    def __init__(
        self, path: str, *, directory: str | None = None, page_rows: int | None = None
    ) -> None:
        self._path = path
        self._directory_path = directory_path(path) if directory is None else directory
        self._page_rows = page_rows
        self._sink = io.BytesIO()
        self._writer: pq.ParquetWriter | None = None
        self._pending = KEYED_RECORDS.empty_table()
        self._keys = PartKeys()
        self._group_rows = [0]
        self._places: list[int] = []
        self._sums: list[int] = []
        self._page_firsts: list[Numbers] = []
        self._us: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        """The number of records written so far."""
        return self._group_rows[-1] + self._pending.num_rows

    @property
    def num_bytes(self) -> int:
        """The bytes written so far, without the rows that wait to fill a row group."""
        return self._sink.tell()

    @property
    def is_full(self) -> bool:
        """True if later records belong in another part; one more table still fits.

        A table that is sorted at once has far fewer row groups than a quarter of the limit.
        """
        return len(self._group_rows) > GROUPS_MAX - GROUPS_MAX // 4 - PIECE_ROWS // GROUP_ROWS

    def write(self, records: pa.Table) -> None:
        """Add records in order, all of them after those before; see `sort_records`."""
        require(records.schema.names == KEYED_RECORDS.names, "the records have the wrong columns")
        for start in range(0, records.num_rows, PIECE_ROWS):
            self._add(records.slice(start, PIECE_ROWS))

    def finish(self) -> EncodedPart:
        """Return the part, which has at least one record."""
        self._write_groups(is_last=True)
        require(self._writer is not None, "a part must have at least one record")
        assert self._writer is not None
        self._writer.close()
        data = self._sink.getvalue()
        self._keys.finish()
        layout = self._layout(data)
        footer = data[-footer_bytes(data) :]
        directory, tail_bytes = self._keys.writer.finish(
            path=self._path, num_bytes=len(data), part_footer=footer, layout=layout
        )
        first_us, last_us = self._us or (0, 0)
        part = RunPart(
            path=self._path,
            directory=self._directory_path,
            rows=layout.rows,
            keys=self._keys.count,
            num_bytes=len(data),
            directory_bytes=len(directory),
            first_key=self._keys.first_key,
            last_key=self._keys.last_key,
            min_sequence=self._keys.min_sequence,
            max_sequence=self._keys.max_sequence,
            first_us=first_us,
            last_us=last_us,
            tail_bytes=tail_bytes,
            directory_xxh3=xxhash.xxh3_128_digest(directory),
            tail_xxh3=xxhash.xxh3_128_digest(directory[-tail_bytes:]),
        )
        return EncodedPart(part=part, data=data, directory=directory)

    def _add(self, records: pa.Table) -> None:
        if self._page_rows is None:
            self._page_rows = page_rows_for(records)
        self._keys.add(records, self._page_rows)
        times = int64_of(records.column(TIMESTAMP))
        low, high = int(times.min()), int(times.max())
        self._us = (
            (low, high) if self._us is None else (min(self._us[0], low), max(self._us[1], high))
        )
        self._pending = pa.concat_tables([self._pending, records])
        self._write_groups(is_last=False)

    def _write_groups(self, *, is_last: bool) -> None:
        """Write the row groups whose end is certain; later records may extend the last one."""
        pending = self._pending
        is_small = pending.num_rows <= GROUP_ROWS and pending.nbytes <= GROUP_BYTES
        if not pending.num_rows or (is_small and not is_last):
            return
        starts = key_starts(one_chunk(pending.column(KEY)))
        sizes = np.concatenate([_sizes_of(pending, KEY), _sizes_of(pending, VALUE)])
        ends = np.cumsum(sizes.reshape(2, -1).sum(axis=0))
        at, before = 0, 0
        while at < pending.num_rows:
            by_bytes = int(np.searchsorted(ends, before + GROUP_BYTES, side="right"))
            most = max(min(at + GROUP_ROWS, by_bytes), at + 1)
            if most >= pending.num_rows and not is_last:
                break
            limit = _cut(starts, at, min(most, pending.num_rows), pending.num_rows)
            self._write(pending.slice(at, limit - at))
            at, before = limit, int(ends[limit - 1])
        self._pending = pending.slice(at)

    def _write(self, group: pa.Table) -> None:
        if self._writer is None:
            self._writer = _writer_of(self._sink, self._page_rows or PAGE_ROWS_MAX)
            self._places.append(self._sink.tell())
        require(len(self._group_rows) <= GROUPS_MAX, "a part has too many row groups")
        # As one chunk, because Arrow begins a page at each chunk.
        whole = group.select(PART_RECORDS.names).cast(PART_RECORDS).combine_chunks()
        self._page_firsts.append(int64_of(whole.column(SEQUENCE))[:: self._page_rows])
        self._writer.write_table(whole, row_group_size=whole.num_rows)
        self._group_rows.append(self._group_rows[-1] + whole.num_rows)
        self._places.append(self._sink.tell())
        with self._sink.getbuffer() as written:
            self._sums.append(xxhash.xxh3_64_intdigest(written[self._places[-2] :]))

    def _layout(self, data: bytes) -> PartLayout:
        page_rows = self._page_rows or PAGE_ROWS_MAX
        groups = read_page_index(data)
        group_rows = np.array(self._group_rows, np.int64)
        columns = list(zip(*(group.columns[1:] for group in groups), strict=True))
        for each in columns:
            is_told = all(not (chunk.first_rows % page_rows).any() for chunk in each)
            require(is_told, "Arrow wrote pages of another size than requested")
        return PartLayout(
            page_rows=page_rows,
            group_rows=group_rows,
            group_places=np.array(self._places, np.int64),
            group_sizes=np.array([group.size_bytes for group in groups], np.int64),
            group_xxh3=np.array(self._sums, np.uint64),
            chunk_places=tuple(
                np.array([chunk.start for chunk in each], np.int64) for each in columns
            ),
            page_bytes=tuple(
                np.concatenate([chunk.page_bytes for chunk in each]) for each in columns
            ),
            page_counts=tuple(
                np.concatenate(
                    [
                        np.diff(chunk.first_rows, append=group.rows)
                        for chunk, group in zip(each, groups, strict=True)
                    ]
                )
                for each in columns
            ),
            first_sequences=self._first_sequences(group_rows, page_rows),
        )

    def _first_sequences(self, group_rows: Numbers, page_rows: int) -> Numbers:
        firsts = np.concatenate(self._page_firsts)
        rows = np.concatenate(
            [np.arange(begin, end, page_rows) for begin, end in pairwise(group_rows)]
        )
        return np.where(self._keys.has_large(rows), firsts, 0)


def _cut(starts: Numbers, at: int, most: int, rows: int) -> int:
    """Return the end of the row group that begins at row ``at``, at most ``most``."""
    if most == rows:
        return most
    begin = int(starts[np.searchsorted(starts, most, side="right") - 1])
    # End the group before a key that would be split, unless that makes the group less than half
    # full: a read of the key then finds all its pages in one row group.
    return begin if begin >= at + (most - at + 1) // 2 and begin > at else most


def _sizes_of(records: pa.Table, name: str) -> Numbers:
    chunks = records.column(name).chunks
    return np.concatenate([np.empty(0, np.int64), *(lengths_of(chunk) for chunk in chunks)])


def _writer_of(sink: io.BytesIO, page_rows: int) -> pq.ParquetWriter:
    coded: Any = [KEY]  # A list of columns; Arrow's stubs allow only a bool.
    return pq.ParquetWriter(
        sink,
        PART_RECORDS,
        compression="zstd",
        use_dictionary=coded,
        column_encoding=dict.fromkeys((TIMESTAMP, SEQUENCE, VALUE), "PLAIN"),
        write_statistics=[KEY, SEQUENCE],
        write_page_index=True,
        write_page_checksum=True,
        # Arrow ends a page at this size, and checks it after each batch of this many rows.
        write_batch_size=page_rows,
        data_page_size=NUMBERS_BYTES,
        store_schema=False,
        sorting_columns=[pq.SortingColumn(0), pq.SortingColumn(2)],
    )
