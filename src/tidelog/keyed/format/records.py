"""The records of keyed logs as Arrow tables: their order, their keys, and marks among them. Pure.

Invariants: a sorted table has its keys in byte order, and each key's records in sequence order,
    without duplicates.

A mark records a batch of a sink that is in a log. A batch is one append, and so one object of the
wal. It consists of its records and, at the end, a record without a key, whose body is the mark.
Keyed logs do not show that record. The batch and its mark are therefore stored together or not at
all. Compaction removes records from the wal. The change that names the run then copies the marks
into the state.

Shape: a mark is `MAGIC`, then msgpack of the sink's name and the batch's number. The number -1 is
    not a batch: a sink appends it to take over the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KEY: Final = "key"
SEQUENCE: Final = "sequence"
TIMESTAMP: Final = "timestamp_us"
VALUE: Final = "value"

_FIELDS: list[pa.Field[Any]] = [
    pa.field(KEY, pa.binary(), nullable=False),
    pa.field(SEQUENCE, pa.int64(), nullable=False),
    pa.field(TIMESTAMP, pa.int64(), nullable=False),
    pa.field(VALUE, pa.binary(), nullable=False),
]
KEYED_RECORDS: Final = pa.schema(_FIELDS)
_KEY_FIELDS: list[pa.Field[Any]] = [
    pa.field("key", pa.binary(), nullable=False),
    pa.field("records", pa.int64(), nullable=False),
    pa.field("min_sequence", pa.int64(), nullable=False),
    pa.field("max_sequence", pa.int64(), nullable=False),
]
KEY_ROWS: Final = pa.schema(_KEY_FIELDS)

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def sort_records(records: pa.Table) -> pa.Table:
    """Return records sorted by (key, sequence).

    Keys are hashed, so that each distinct key is compared only once. Sorting a million records
    takes about 30 ms for 10,000 keys, and half a second for a million keys. Copying the records
    into that order takes another fifth of a second, for records of 200 bytes.

    Units: keys and values must be below 2 GiB each; a larger table must be written in pieces.
    """
    if in_order(records):
        return records
    return records.take(pa.array(_order_of(records)))


def merge_sorted(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the records of several tables, sorted by (key, sequence)."""
    return sort_records(pa.concat_tables([KEYED_RECORDS.empty_table(), *tables]))


def in_order(records: pa.Table) -> bool:
    """Return True if records are sorted by (key, sequence) without duplicates."""
    if records.num_rows < 2:
        return True
    keys, sequences = one_chunk(records.column(KEY)), int64_of(records.column(SEQUENCE))
    is_same = bits_of(pc.equal(keys[1:], keys[:-1]))
    if not (np.diff(sequences) > 0)[is_same].all():
        return False
    return bool(pc.all(pc.greater_equal(keys[1:], keys[:-1])).as_py())


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


def key_rows_of(records: pa.Table) -> pa.Table:
    """Return the keys of records, in order, as `KEY_ROWS`."""
    grouped: Any = records.group_by("key").aggregate(
        [("sequence", "count"), ("sequence", "min"), ("sequence", "max")]
    )
    columns = [grouped.column(n) for n in ("key", "sequence_count", "sequence_min", "sequence_max")]
    rows = pa.table(columns, names=KEY_ROWS.names)
    return rows.sort_by("key").cast(KEY_ROWS)


def added_up(rows: pa.Table) -> pa.Table:
    """Return rows of `KEY_ROWS` with each key once, in order."""
    grouped: Any = rows.group_by("key").aggregate(
        [("records", "sum"), ("min_sequence", "min"), ("max_sequence", "max")]
    )
    names = ("key", "records_sum", "min_sequence_min", "max_sequence_max")
    sums = pa.table([grouped.column(name) for name in names], names=KEY_ROWS.names)
    return sums.sort_by("key").cast(KEY_ROWS)


def with_keys(records: pa.Table, first: bytes, last: bytes | None) -> pa.Table:
    """Return the records of the keys ``[first, last)``."""
    column: Any = records.column("key")
    kept: Any = None
    if first:
        kept = pc.greater_equal(column, pa.scalar(first, pa.binary()))
    if last is not None:
        below = pc.less(column, pa.scalar(last, pa.binary()))
        kept = below if kept is None else pc.and_(kept, below)
    return records if kept is None else records.filter(kept)


def reversed_rows(records: pa.Table) -> pa.Table:
    """Return records in reverse order."""
    count = records.num_rows
    return records if count < 2 else records.take(pa.array(range(count - 1, -1, -1)))


def key_starts(keys: pa.Array[Any]) -> Numbers:
    """Return the rows at which a key begins, including the first row."""
    if not len(keys):
        return np.empty(0, np.int64)
    changes = np.flatnonzero(bits_of(pc.not_equal(keys[1:], keys[:-1]))) + 1
    return np.concatenate([np.zeros(1, np.int64), changes.astype(np.int64)])


def _order_of(records: pa.Table) -> np.ndarray[Any, np.dtype[np.uint64]]:
    rows = np.uint64(records.num_rows)
    codes = _ranks_of(records.column(KEY))
    sequences = int64_of(records.column(SEQUENCE))
    # Sorting numbers is six times as fast as sorting row indexes by key. So each number has its row
    # index in the lower half. Codes and rows are each below 2^32.
    by_row = np.arange(records.num_rows, dtype=np.uint64)
    if (np.diff(sequences) > 0).all():
        ranked = codes * rows + by_row
        ranked.sort()
        return ranked % rows
    places = np.argsort(sequences, kind="stable")
    ranked = codes[places] * rows + by_row
    ranked.sort()
    return places[(ranked % rows).astype(np.int64)].astype(np.uint64)


def _ranks_of(keys: pa.ChunkedArray[Any]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return for each row the number of distinct keys before its own."""
    coded = one_chunk(keys).dictionary_encode()
    order = pc.sort_indices(coded.dictionary)
    places = np.frombuffer(order.buffers()[1], np.uint64, len(order), 8 * order.offset)
    ranks = np.empty(len(places), np.uint64)
    ranks[places] = np.arange(len(places), dtype=np.uint64)
    indices = coded.indices
    return ranks[np.frombuffer(indices.buffers()[1], np.int32, len(indices), 4 * indices.offset)]


def one_chunk(column: Any) -> Any:
    """Return a column as one array, without a copy if it has one chunk."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def int64_of(column: Any) -> Numbers:
    """Return an int64 column without nulls as numpy; Arrow's own conversion imports pandas."""
    array = one_chunk(column)
    data = memoryview(array.buffers()[1] or b"")
    return np.frombuffer(data, np.int64, len(array), 8 * array.offset)


def bits_of(column: pa.Array[Any]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a bool column without nulls as numpy."""
    data = np.frombuffer(memoryview(column.buffers()[1] or b""), np.uint8)
    bits = np.unpackbits(data, count=column.offset + len(column), bitorder="little")
    return bits[column.offset :].view(np.bool_)


def lengths_of(column: pa.Array[Any]) -> Numbers:
    """Return the size in bytes of each value of a binary array."""
    data = memoryview(column.buffers()[1] or bytes(4))
    offsets = np.frombuffer(data, np.int32, len(column) + 1, 4 * column.offset)
    return np.diff(offsets).astype(np.int64)


def repeated(key: bytes, rows: int) -> pa.Array[Any]:
    """Return a column with the same key in each row."""
    return pa.array([key], pa.binary()).take(int64_array(np.zeros(rows, np.int64)))


def int64_array(numbers: Numbers) -> pa.Array[Any]:
    """Return numbers as an Arrow array without nulls."""
    data = pa.py_buffer(np.ascontiguousarray(numbers, np.int64).tobytes())
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, data])


MAGIC: Final = b"tidelog.batch\x00"
BEGINS: Final = -1
SINKS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMark:
    """The newest batch of a sink in the log, and the time of its append."""

    number: int
    at_us: int


def encode_marker(sink: str, number: int) -> bytes:
    """Return the body of a mark."""
    return MAGIC + msgspec.msgpack.encode([sink, number])


def marks_in(found: pa.Table) -> dict[str, SinkMark]:
    """Return the newest mark of each sink among the records of a wal."""
    keys: Any = found.column("key")
    if not keys.null_count:
        return {}
    keyless = found.filter(pc.is_null(keys)).select(["timestamp_us", "body"])
    bodies: Any = keyless.column("body")
    marks: dict[str, SinkMark] = {}
    for row in keyless.filter(pc.starts_with(bodies, MAGIC.decode())).to_pylist():
        decoded = _decoded(row["body"])
        if decoded is not None and decoded[1] > BEGINS:
            mark = SinkMark(number=decoded[1], at_us=row["timestamp_us"])
            marks = newest_of(marks, {decoded[0]: mark})
    return marks


def newest_of(known: Mapping[str, SinkMark], found: Mapping[str, SinkMark]) -> dict[str, SinkMark]:
    """Return the newest mark of each sink; of too many sinks, keep those that wrote last."""
    merged = dict(known)
    for sink, mark in found.items():
        if sink not in merged or merged[sink].number < mark.number:
            merged[sink] = mark
    if len(merged) > SINKS_MAX:
        kept = sorted(merged, key=lambda sink: merged[sink].at_us)[-SINKS_MAX:]
        merged = {sink: merged[sink] for sink in kept}
    return merged


def _decoded(body: bytes) -> tuple[str, int] | None:
    """Return a mark's sink and number; None if the body only begins like a mark."""
    try:
        return msgspec.msgpack.decode(body[len(MAGIC) :], type=tuple[str, int])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
