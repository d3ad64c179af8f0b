"""Splits of a snapshot: shares of about equal bytes, which any process can read.

Source: persist, "Snapshot".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.clock import Clock, run_all
from tidelog.core.frontier import TIME_MAX
from tidelog.persist.format.bounds import scalar_of
from tidelog.persist.format.part import Part, with_one_time
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, decode_schema, encode_with_known
from tidelog.persist.read.opened import OpenPart, PartOpener
from tidelog.store.port import Store


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A share of a snapshot: a plain value that any process can read, whatever commits later.

    Shape: ``ranges`` has for each part the first row and the limit, in the order of the part.
    """

    shard: str
    schema: bytes
    as_of: int
    parts: tuple[Part, ...]
    ranges: tuple[tuple[int, int], ...]

    @property
    def size_bytes(self) -> int:
        """The stored bytes of the rows; each row counts as an equal share of its part."""
        pairs = zip(self.parts, self.ranges, strict=True)
        return sum(part.size_bytes * (limit - start) // part.rows for part, (start, limit) in pairs)


def plan_splits(
    shard: str, schema: ShardSchema, as_of: int, parts: Sequence[Part], count: int
) -> list[Split]:
    """Divide parts into exactly ``count`` splits of about equal bytes, each of adjacent rows.

    A cut can come between two updates of one row, so only the sum of all splits is the snapshot. A
    cut by keys would make each reader fetch each part with keys of its range, and unmerged parts
    have keys of all ranges.
    """
    total = sum(part.size_bytes for part in parts)
    shares: list[list[tuple[Part, tuple[int, int]]]] = [[] for _ in range(count)]
    before = 0
    for part in parts:
        for split, rows in _ranges(part, before, total, count):
            shares[split].append((part, rows))
        before += part.size_bytes
    encoded = encode_with_known(schema)
    return [
        Split(
            shard=shard,
            schema=encoded,
            as_of=as_of,
            parts=tuple(part for part, _ in share),
            ranges=tuple(rows for _, rows in share),
        )
        for share in shares
    ]


def _ranges(
    part: Part, before: int, total: int, count: int
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the splits that have rows of a part, with the range of the rows.

    The part's bytes come after ``before`` of the ``total`` bytes, which the splits share equally.
    """
    size = part.size_bytes
    first, last = before * count // total, (before + size - 1) * count // total
    # The part's bytes before the end of each split, times ``count``.
    ends = (split * total - before * count for split in range(first + 1, last + 1))
    cuts = [0, *(end * part.rows // (size * count) for end in ends), part.rows]
    for split, (start, limit) in enumerate(pairwise(cuts), first):
        if start < limit:
            yield split, (start, limit)


async def read_split(split: Split, *, store: Store, clock: Clock) -> pa.Table:
    """Return a split's updates, with times advanced to its as-of; the splits' sum is the snapshot.

    Only the row groups that have the split's rows are decoded, after the check of the whole part.

    Raises:
        CorruptionError, LocationError: see `PartReader.read`.
    """
    schema = decode_schema(split.schema)
    opener = PartOpener(store=store, clock=clock, schema=schema)

    async def read(part: Part, rows: tuple[int, int]) -> pa.Table:
        (opened,) = await opener.open([part])
        return await clock.offload(lambda: _rows_of(opened, *rows, as_of=split.as_of))

    pairs = zip(split.parts, split.ranges, strict=True)
    found = await run_all([partial(read, *pair) for pair in pairs], at_once=opener.reads)
    table = pa.concat_tables([schema.contents.empty_table(), *found])
    return with_one_time(table, split.as_of, schema.updates)


def _rows_of(opened: OpenPart, start: int, limit: int, *, as_of: int) -> pa.Table:
    """Return columns and ``_diff`` of a range of rows, those at times up to ``as_of``."""
    ends = list(accumulate(group.rows for group in opened.groups))
    begins = [0, *ends[:-1]]
    wanted = [n for n, end in enumerate(ends) if end > start and begins[n] < limit]
    names = opened.schema.names
    # A filter by time before the cut would move the rows.
    table = opened.read(wanted, [*names, TIME, DIFF], as_of=TIME_MAX, use_threads=True)
    table = table.slice(start - begins[wanted[0]], limit - start)
    if opened.part.time_max > as_of:
        table = table.filter(pc.less_equal(table.column(TIME), scalar_of(as_of, pa.int64())))
    return table.select([*names, DIFF])
