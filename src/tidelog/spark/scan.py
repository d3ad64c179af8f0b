"""Scans: the division of a read among Spark's partitions, and the rows of each. Pure.

If a collection is only ever appended to, its parts are divided among the scans. Otherwise all
updates of a row must meet, since one may retract another. Then ranges of the first key column
divide the rows. Parts are sorted by that column, so a task decodes little more than its own rows.
Either way many tasks read one shard without a shuffle.

Invariants: each row of the snapshot is in exactly one scan, with its multiplicity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.core.grouping import groups_by_size
from tidelog.errors import CorruptionError
from tidelog.persist.format.bounds import (
    OPEN,
    Box,
    box_of_group,
    extent_of,
    ordered,
    overlaps,
    rows_within,
    scalar_of,
)
from tidelog.persist.format.part import (
    Part,
    at_commit,
    check_bytes,
    decode_bounds,
    decode_part,
    negated,
    with_time,
)
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, decode_schema, fitted
from tidelog.persist.format.updates import accumulate, consolidate
from tidelog.persist.read.selection import check_multiplicity

CHANGE_TYPE: Final = "_change_type"
PARTITION_BYTES: Final = 8 * 1024 * 1024
BATCH_ROWS_MAX: Final = 65_536
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """A share of a shard's snapshot, as a plain value; with ``after``, of the changes after it.

    Shape: ``bounds`` is a range of values of the first key column, as an Arrow stream of two rows:
        the least value, and the value before which the range ends (null: open). Empty bounds select
        all rows. ``box`` has inclusive bounds of the columns in Spark's filters. With ``former``,
        it is the changes at ``as_of``, where a handover replaces the contents of that scan.
    """

    schema: bytes
    columns: tuple[str, ...]
    as_of: int
    parts: tuple[Part, ...]
    after: int | None = None
    appended: bool = False
    bounds: bytes = b""
    box: dict[str, tuple[int | str | None, int | str | None]] = {}
    former: Scan | None = None

    @property
    def size_bytes(self) -> int:
        own = sum(part.size_bytes for part in self.parts)
        return own if self.former is None else own + self.former.size_bytes

    @property
    def has_changes(self) -> bool:
        """Return True if the rows are changes, each with a time and a diff."""
        return self.after is not None or self.former is not None


def share_parts(scan: Scan) -> list[Scan]:
    """Divide a scan of a collection without retractions, by parts."""
    shares = groups_by_size(scan.parts, lambda part: part.size_bytes, most=PARTITION_BYTES)
    return [msgspec.structs.replace(scan, parts=tuple(share)) for share in shares]


def share_keys(scan: Scan, groups: Iterable[tuple[Any, int]]) -> list[Scan]:
    """Divide a scan by ranges of the first key column.

    Shape: ``groups`` are values of that column, each with the number of rows up to the next.
    """
    schema = decode_schema(scan.schema)
    cuts = choose_cuts(groups, scan.size_bytes)
    if not cuts:
        return [scan]
    shares = []
    for low, high in pairwise([None, *cuts, None]):
        column = pa.array([low, high], schema.data.field(0).type)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("bound", column.type)])) as stream:
            stream.write_batch(pa.record_batch({"bound": column}))
        parts = tuple(p for p in scan.parts if _reaches(p, schema.names[0], low, high))
        bounds = sink.getvalue().to_pybytes()
        shares.append(msgspec.structs.replace(scan, parts=parts, bounds=bounds))
    return shares


def pack_scans(scans: Sequence[Scan]) -> list[list[Scan]]:
    """Combine small scans: each of Spark's partitions costs about 20 ms."""
    return list(groups_by_size(scans, lambda scan: scan.size_bytes, most=PARTITION_BYTES))


def choose_cuts(groups: Iterable[tuple[Any, int]], size_bytes: int) -> list[Any]:
    """Return values that cut the rows into ranges of about `PARTITION_BYTES`."""
    return cut_evenly(groups, round(size_bytes / PARTITION_BYTES))


def cut_evenly(groups: Iterable[tuple[Any, int]], count: int) -> list[Any]:
    """Return values that cut the rows into about ``count`` equal ranges; a range begins at each.

    Shape: ``groups`` are values, each with the number of rows from there to the next. The least
        value is never a cut.
    """
    ranked = sorted(groups, key=lambda group: group[0])
    until = np.cumsum([rows for _, rows in ranked])
    count = min(count, len(ranked))
    if count < 2:
        return []
    wanted = np.arange(1, count) * (until[-1] / count)
    places = np.searchsorted(until, wanted, side="right")
    return [value for value in dict.fromkeys(ranked[p][0] for p in places) if value != ranked[0][0]]


def can_share_keys(schema: ShardSchema) -> bool:
    """Return True if ranges can divide the rows: the first key column has a plain order."""
    if not schema.key_columns:
        return False
    dtype = schema.data.field(0).type
    return pa.types.is_integer(dtype) or pa.types.is_string(dtype) or pa.types.is_date(dtype)


def read_groups(metadata: pq.FileMetaData) -> Iterator[tuple[Any, int]]:
    """Yield the least value of the first column and the number of rows of each row group."""
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        statistics = group.column(0).statistics
        if statistics is not None and statistics.has_min_max:
            yield extent_of(statistics)[0], group.num_rows


def decode_share(part: Part, data: bytes, scan: Scan) -> pa.Table:
    """Return the rows of a part for a scan: its columns, times and diffs.

    Raises:
        CorruptionError: the bytes are wrong.
    """
    schema = decode_schema(scan.schema)
    key, bounds = schema.names[0], _bounds_of(scan)
    names = [*scan.columns, TIME, DIFF]
    wanted = names if bounds is None or key in names else [key, *names]
    if part.inline is not None:
        table = decode_part(part, data, schema).select(wanted)
    else:
        check_bytes(part, data)
        try:
            file = pq.ParquetFile(pa.BufferReader(data))
            groups = [
                index
                for index in _groups_within(file.metadata, bounds)
                if _may_hold(file.metadata.row_group(index), scan.box)
            ]
            own = schema.of_part(part.schema_id).updates
            there = [name for name in wanted if name in own.names]
            table = file.read_row_groups(groups, columns=there, use_threads=False)
            table = table.cast(pa.schema([own.field(n) for n in table.column_names]))
            table = fitted(at_commit(part, table), wanted, schema.updates)
        except (pa.ArrowException, KeyError, ValueError, OSError) as error:
            raise CorruptionError(
                "a part cannot be decoded: restore the object", path=part.path
            ) from error
    if part.time_max > scan.as_of:
        table = table.filter(pc.less_equal(table.column(TIME), pa.scalar(scan.as_of, pa.int64())))
    if scan.after is not None and part.time_min <= scan.after:
        table = table.filter(pc.greater(table.column(TIME), pa.scalar(scan.after, pa.int64())))
    if bounds is not None:
        table = _within(table, key, *bounds)
    # The box holds all updates of a row or none, so updates that cancel still meet.
    return rows_within(table.select(names), scan.box)


def contents(tables: Sequence[pa.Table], scan: Scan) -> Iterator[pa.Table]:
    """Yield the rows that the updates add up to, with multiplicities, in tables of any size.

    Raises:
        CorruptionError: a row has a negative multiplicity.
    """
    taken_back = any(t.num_rows and pc.min(t.column(DIFF)).as_py() < 0 for t in tables)
    if not taken_back:
        # Without retractions, equal rows need not meet: their multiplicities add up anyway.
        yield from (t.drop_columns([TIME]) for t in tables)
        return
    if scan.appended:
        raise CorruptionError(
            "a shard of an append-only collection has a negative diff: scrub the collection, and "
            "restore the object that the scrub names"
        )
    rows = accumulate(tables, narrowed(scan), as_of=scan.as_of)
    check_multiplicity(rows, "read by Spark")
    yield rows


def changes_of(tables: Sequence[pa.Table], scan: Scan) -> pa.Table:
    """Return the updates, consolidated over the columns of the scan."""
    return consolidate(tables, narrowed(scan))


def crossed(new: Sequence[pa.Table], old: Sequence[pa.Table], time: int) -> list[pa.Table]:
    """Return the updates at a time that replace the contents ``old`` by ``new``."""
    return [with_time(one, time) for one in (*new, *map(negated, old))]


def with_change_types(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return changes with `CHANGE_TYPE`, as in Delta's change feed.

    The removal of a row and the addition of another one with its key, at one time, are an update.
    """
    removed = pc.less(changes.column(DIFF), pa.scalar(0, pa.int64()))
    updated = np.zeros(changes.num_rows, np.bool_)
    if key:
        numbered = changes.append_column("", pa.array(np.arange(changes.num_rows)))
        groups = numbered.group_by([*key, TIME], use_threads=False)
        found = groups.aggregate([("", "list"), (DIFF, "min"), (DIFF, "max")])
        zero = pa.scalar(0, pa.int64())
        both = pc.and_(
            pc.less(found.column(f"{DIFF}_min"), zero),
            pc.greater(found.column(f"{DIFF}_max"), zero),
        )
        updated[pc.list_flatten(found.filter(both).column("_list")).to_numpy()] = True
    names = pc.if_else(
        pa.chunked_array([pa.array(updated)]),
        pc.if_else(removed, pa.scalar("update_preimage"), pa.scalar("update_postimage")),
        pc.if_else(removed, pa.scalar("delete"), pa.scalar("insert")),
    )
    return changes.append_column(CHANGE_TYPE, names)


def batches_of_changes(changes: pa.Table, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield changes, each once, in batches of exactly the schema ``target``."""
    if changes.num_rows:
        step = _rows_a_batch(changes)
        yield from changes.select(target.names).cast(target).to_batches(max_chunksize=step)


def narrowed(scan: Scan) -> ShardSchema:
    """Return the schema of the columns of a scan, without a key."""
    data = decode_schema(scan.schema).data
    return ShardSchema(pa.schema([data.field(n) for n in scan.columns]), 0)


def _rows_a_batch(table: pa.Table) -> int:
    size = table.nbytes / table.num_rows
    return max(1, min(BATCH_ROWS_MAX, int(BATCH_BYTES_MAX / max(1.0, size))))


def batches_of(table: pa.Table, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield each row as often as its multiplicity, in batches of exactly the schema ``target``."""
    rows = table.num_rows
    if not rows:
        return
    step = _rows_a_batch(table)
    data = table.select(target.names)
    until = np.cumsum(table.column(DIFF).to_numpy())
    for start in range(0, int(until[-1]), step):
        piece = data.slice(start, step)
        if until[-1] != rows:
            wanted = np.arange(start, min(start + step, int(until[-1])))
            piece = data.take(np.searchsorted(until, wanted, side="right"))
        yield from piece.cast(target).combine_chunks().to_batches()


def _bounds_of(scan: Scan) -> tuple[Any, Any] | None:
    if not scan.bounds:
        return None
    with pa.ipc.open_stream(pa.py_buffer(scan.bounds)) as stream:
        low, high = ordered(stream.read_all().column("bound")).to_pylist()
    return low, high


def _reaches(part: Part, key: str, low: Any, high: Any) -> bool:
    least, greatest = decode_bounds(part).get(key, (None, None))
    if least is None or greatest is None:
        return True
    return (low is None or greatest >= low) and (high is None or least < high)


def _groups_within(metadata: pq.FileMetaData, bounds: tuple[Any, Any] | None) -> Iterator[int]:
    """Yield the row groups that may hold keys within the bounds."""
    low, high = bounds or (None, None)
    for index in range(metadata.num_row_groups):
        statistics = metadata.row_group(index).column(0).statistics
        # The range of a statistic does not cover nulls.
        least, greatest = OPEN
        if statistics is not None and statistics.has_min_max and not statistics.null_count:
            least, greatest = extent_of(statistics)
        before = greatest is not None and low is not None and greatest < low
        after = least is not None and high is not None and least >= high
        if not before and not after:
            yield index


def _may_hold(group: pq.RowGroupMetaData, box: Box) -> bool:
    known = box_of_group(group, frozenset(box)) if box else {}
    return all(overlaps(known.get(name, OPEN), wanted) for name, wanted in box.items())


def _within(table: pa.Table, key: str, low: Any, high: Any) -> pa.Table:
    """Keep the rows with keys within the bounds; nulls belong to the first range."""
    column = ordered(table.column(key))
    inside = pc.is_valid(column)
    if low is not None:
        inside = pc.and_kleene(inside, pc.greater_equal(column, scalar_of(low, column.type)))
    if high is not None:
        inside = pc.and_kleene(inside, pc.less(column, scalar_of(high, column.type)))
    if low is None:
        inside = pc.or_kleene(inside, pc.is_null(column))
    return table.filter(inside)
