"""Fragments of wal3's protocol: the immutable Parquet files that hold a log's records. Pure.

Shape: records are a table of ``position`` (uint64), ``timestamp_us`` (uint64, the same in all rows
of a fragment) and ``body`` (binary), without nulls, sorted by position.
Invariants: the setsum binds each record to its position and time. `check_fragment` verifies it, so
readers never return a changed record.
Source: wal3, "Fragments"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.core.setsum import Setsum, setsum_of
from tidelog.errors import CorruptionError, UsageError
from tidelog.wal.format.arrays import (
    POSITION_MAX,
    array_of_numbers,
    has_positions,
    items_of,
    numbers_of,
    positions_from,
)
from tidelog.wal.format.fragment import Fragment, fragment_path
from tidelog.wal.format.parquet import GROUP_ROWS, PAGE_BYTES, open_records

OFFSET: Final = "offset"
_FIELDS: list[pa.Field[Any]] = [
    pa.field("position", pa.uint64(), nullable=False),
    pa.field("timestamp_us", pa.uint64(), nullable=False),
    pa.field("body", pa.binary(), nullable=False),
]
RECORDS: Final = pa.schema(_FIELDS)
_HEAD: Final = np.dtype([("position", ">u8"), ("time", ">u8")])  # The head of an item of wal3.
_COLUMNS: Final = [OFFSET, "timestamp_us", "body"]


def place_records(bodies: pa.BinaryArray, *, start: int, timestamp_us: int) -> pa.Table:
    """Return bodies as the records of one fragment.

    Raises:
        UsageError: see `positions_from`. (wal3 itself allows positions up to 2^64-1.)
    """
    count = len(bodies)
    positions = array_of_numbers(positions_from(start, count).astype(np.uint64))
    times = array_of_numbers(np.full(count, timestamp_us, dtype=np.uint64))
    return pa.table([positions, times, bodies], schema=RECORDS)


def encode_fragment(records: pa.Table, *, write_id: str) -> bytes:
    """Encode records as a fragment that wal3 reads.

    ``write_id`` makes the bytes of this write unique.

    Raises:
        UsageError: there is no record.
    """
    if not records.num_rows:
        raise UsageError("a fragment must have at least one record")
    sink = pa.BufferOutputStream()
    columns = records.cast(RECORDS).rename_columns(_COLUMNS)
    pq.write_table(
        columns.replace_schema_metadata({"tidelog.write": write_id}),
        sink,
        compression="snappy",
        # Statistics would repeat the least and the greatest body in each page header. A dictionary
        # of distinct bodies is wasted work.
        write_statistics=False,
        use_dictionary=False,
        row_group_size=GROUP_ROWS,
        data_page_size=PAGE_BYTES,
    )
    return sink.getvalue().to_pybytes()


def decode_fragment(data: bytes, *, path: str) -> pa.Table:
    """Decode the records of a fragment, whatever encodings its writer chose.

    Raises:
        CorruptionError: the bytes are not a Parquet file with a fragment's columns, or would decode
        to more than a file of their size may.
    """
    return open_records(data, path=path, what="a fragment").read(_COLUMNS, RECORDS)


def count_records(data: bytes, *, path: str) -> int:
    """Return the number of records that a fragment's footer states.

    Raises:
        CorruptionError: the bytes are not a Parquet file.
    """
    return open_records(data, path=path, what="a fragment").footer.rows


def problems_of_fragment(records: pa.Table, size_bytes: int, fragment: Fragment) -> list[str]:
    """Return the differences between a fragment and the log's description of it."""
    problems = []
    if size_bytes != fragment.num_bytes:
        problems.append(f"it has {size_bytes} bytes, not {fragment.num_bytes}")
    if not has_positions(records, fragment.start, fragment.limit):
        problems.append(f"its positions are not {fragment.start} to {fragment.limit - 1}")
    if pc.count_distinct(records.column("timestamp_us")).as_py() != 1:
        problems.append("its records have different times")
    if setsum_of_records(records) != fragment.setsum:
        problems.append("its setsum does not match its records")
    return problems


def checked_fragment(data: bytes, fragment: Fragment) -> pa.Table:
    """Return the records of a wal3 fragment.

    Raises:
        CorruptionError: they differ from the log's description.
    """
    records = decode_fragment(data, path=fragment.path)
    check_fragment(records, len(data), fragment)
    return records


def check_fragment(records: pa.Table, size_bytes: int, fragment: Fragment) -> None:
    """Refuse a fragment that differs from the log's description of it.

    Raises:
        CorruptionError: the fragment differs.
    """
    if problems := problems_of_fragment(records, size_bytes, fragment):
        raise CorruptionError(
            f"a fragment differs from the log's description of it ({'; '.join(problems)}): "
            "restore it",
            path=fragment.path,
        )


def check_shown(records: pa.Table) -> None:
    """Refuse records of wal3 that a log's signed columns cannot hold.

    Raises:
        UsageError: a position or a time is over 2^63-1.
    """
    for name in ("position", "timestamp_us"):
        greatest = pc.max(records.column(name)).as_py()
        if greatest is not None and greatest > POSITION_MAX:
            raise UsageError(
                f"a record's {name} is over 2^63-1, which only wal3's records may be: read it "
                "with tidelog.wal.manifest_protocol.reader.Wal3Reader",
                found=greatest,
            )


def setsum_of_records(records: pa.Table) -> Setsum:
    """Return the setsum of records."""
    return setsum_of(chain.from_iterable(_items(records)))


def _items(records: pa.Table) -> Iterator[list[bytes]]:
    for batch in records.to_batches():
        positions, times, bodies = batch.columns
        heads = np.empty(batch.num_rows, dtype=_HEAD)
        heads["position"], heads["time"] = numbers_of(positions), numbers_of(times)
        yield from items_of(heads, bodies)


def check_count(fragment: Fragment, data: bytes) -> None:
    """Compare a fragment's number of records in the manifest with the one in its object.

    An unreadable object passes.

    Raises:
        CorruptionError: the numbers differ.
    """
    try:
        records = count_records(data, path=fragment.path)
    except CorruptionError:
        return
    wanted = fragment.limit - fragment.start
    if records != wanted:
        raise CorruptionError(
            f"the log's newest fragment has {records} records, but its manifest declares "
            f"{wanted}: restore the manifest",
            path=fragment.path,
        )


def describe_orphan(data: bytes, seq_no: int) -> Fragment:
    """Return the manifest's entry for a fragment that no manifest names yet.

    Raises:
        CorruptionError: the fragment cannot be read, is empty, or is broken.
    """
    path = fragment_path(seq_no)
    records = decode_fragment(data, path=path)
    if not records.num_rows:
        raise CorruptionError("a fragment has no records: move it away", path=path)
    fragment = fragment_over(records, seq_no, len(data))
    if problems := problems_of_fragment(records, len(data), fragment):
        raise CorruptionError(
            f"a fragment that the manifest does not name is damaged ({'; '.join(problems)}): move "
            "it away",
            path=path,
        )
    return fragment


def fragment_over(records: pa.Table, seq_no: int, size_bytes: int) -> Fragment:
    """Return the fragment that holds the records."""
    start = int(records.column("position")[0].as_py())
    return Fragment(
        path=fragment_path(seq_no),
        seq_no=seq_no,
        start=start,
        limit=start + records.num_rows,
        num_bytes=size_bytes,
        setsum=setsum_of_records(records),
    )
