"""Reading parts: whole objects, each checked against its descriptor before any row is used.

Source: persist, "Snapshot" and "Listen".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.clock import Clock, run_all
from tidelog.errors import ObjectNotFound
from tidelog.persist.format.part import Part, decode_own, missing_part
from tidelog.persist.format.schema import (
    TIME,
    ShardSchema,
    decode_schema,
    encode_with_known,
    fitted,
)
from tidelog.persist.states.state import State
from tidelog.store.port import Store
from tidelog.store.wrappers.checked import read_checked


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A share of a snapshot: a plain value that any process can read, whatever commits later."""

    shard: str
    schema: bytes
    as_of: int
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        return sum(p.size_bytes for p in self.parts)


@dataclass(slots=True, kw_only=True)
class PartReader:
    """Reads parts, a few at once, with a cache of decoded parts of up to ``cache_bytes``.

    Parts never change, so the cache is never stale.
    """

    store: Store
    clock: Clock
    cache_bytes: int = 0
    reads: int = 8
    _kept: OrderedDict[str, pa.Table] = field(default_factory=OrderedDict)
    _kept_bytes: int = 0

    async def read(self, parts: Sequence[Part], schema: ShardSchema) -> list[pa.Table]:
        """Return the updates of each part, in the columns of ``schema``.

        Raises:
            PartMissing: an object is missing. CorruptionError: the bytes differ from those written.
            LocationError: the store failed.
        """
        work = [partial(self._read, part, schema) for part in parts]
        return await run_all(work, at_once=self.reads)

    async def _read(self, part: Part, schema: ShardSchema) -> pa.Table:
        own = schema.of_part(part.schema_id)
        table = await self._read_own(part, own)
        return fitted(table, schema.updates.names, schema.updates)

    async def _read_own(self, part: Part, own: ShardSchema) -> pa.Table:
        if part.path is None:
            return decode_own(part, part.inline or b"", own)
        kept = self._kept.get(part.path)
        if kept is not None:
            self._kept.move_to_end(part.path)
            return kept
        try:
            table = await read_checked(
                self.store,
                part.path,
                lambda data: self.clock.offload(lambda: decode_own(part, data, own)),
            )
        except ObjectNotFound as error:
            raise missing_part(part.path) from error
        self._keep(part.path, table)
        return table

    def _keep(self, path: str, table: pa.Table) -> None:
        # A concurrent call may have read the same part: count it once.
        if table.nbytes > self.cache_bytes or path in self._kept:
            return
        self._kept[path] = table
        self._kept_bytes += table.nbytes
        while self._kept_bytes > self.cache_bytes:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes


def parts_until(state: State, as_of: int) -> list[Part]:
    """Return the parts that hold updates at times up to ``as_of``."""
    return [p for b in state.batches.until(as_of) for p in b.parts if p.time_min <= as_of]


def parts_between(state: State, after: int, until: int) -> list[Part]:
    """Return the parts that hold updates at times after ``after``, up to ``until``."""
    held = (p for b in state.batches.after(after) for p in b.parts)
    return [p for p in held if p.time_max > after and p.time_min <= until]


def plan_splits(
    shard: str, schema: ShardSchema, as_of: int, parts: Sequence[Part], count: int
) -> list[Split]:
    """Divide parts into exactly ``count`` splits of about equal bytes (largest part first)."""
    shares: list[list[Part]] = [[] for _ in range(count)]
    sizes = [0] * count
    for part in sorted(parts, key=lambda p: -p.size_bytes):
        least = sizes.index(min(sizes))
        shares[least].append(part)
        sizes[least] += part.size_bytes
    encoded = encode_with_known(schema)
    return [Split(shard=shard, schema=encoded, as_of=as_of, parts=tuple(share)) for share in shares]


async def read_split(split: Split, *, store: Store, clock: Clock) -> pa.Table:
    """Return a split's updates, with times advanced to its as-of; the splits' sum is the snapshot.

    Raises:
        CorruptionError, LocationError: see `PartReader.read`.
    """
    schema = decode_schema(split.schema)
    tables = await PartReader(store=store, clock=clock).read(split.parts, schema)
    if not tables:
        return schema.updates.empty_table()
    table = pa.concat_tables(tables)
    table = table.filter(pc.less_equal(table.column(TIME), pa.scalar(split.as_of, pa.int64())))
    times = pa.repeat(pa.scalar(split.as_of, pa.int64()), table.num_rows)
    position = table.schema.get_field_index(TIME)
    return table.set_column(position, schema.updates.field(TIME), times)
