"""Rows that are in no order, and too many to be held: they meet in files of this machine.

Parts are copied to files, a few at once, when their bytes were checked. DuckDB groups what it reads
of them within its bound, and keeps in files what does not fit.
Source: persist, "Snapshot".
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from operator import and_
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from tidelog.clock import run_all
from tidelog.persist.bounds import Box, scalar_of
from tidelog.persist.duck import bounded_duck, quoted
from tidelog.persist.opened import PartOpener
from tidelog.persist.parquet import encode_parquet
from tidelog.persist.part import Part, decode_part
from tidelog.persist.pieces import Wanted
from tidelog.persist.schema import DIFF, TIME, ShardSchema
from tidelog.persist.sql_batches import tables_of

MEMORY_BYTES: Final = 256 * 1024 * 1024
OUT_BYTES: Final = 8 * 1024 * 1024
BATCH_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class SpilledRows:
    """Reads what is wanted of parts by way of files.

    Units: DuckDB holds at most ``memory_bytes`` in memory.
    """

    opener: PartOpener
    wanted: Wanted
    memory_bytes: int = MEMORY_BYTES

    async def tables(self, parts: Sequence[Part]) -> AsyncGenerator[pa.Table, None]:
        """Yield columns and ``_diff``, consolidated, in no order.

        Raises:
            PartMissing: an object is not there. CorruptionError: bytes are not those written.
            LocationError: the store failed.
        """
        with tempfile.TemporaryDirectory(prefix="tidelog-read-") as folder:
            work = [partial(self._copy, part, Path(folder, f"{n}")) for n, part in enumerate(parts)]
            files = await run_all(work, at_once=self.opener.reads)
            rows = pads.dataset(files, schema=self.opener.schema.updates, format="parquet")
            made = tables_of(
                partial(self._summed, rows, folder),
                clock=self.opener.clock,
                out_bytes=OUT_BYTES,
                schema=self._made.append(pa.field(DIFF, pa.int64(), nullable=False)),
            )
            async with aclosing(made) as tables:
                async for table in tables:
                    yield table

    @property
    def _made(self) -> pa.Schema:
        names = dict.fromkeys([*self.wanted.columns, *self.wanted.box])
        return pa.schema([self.opener.schema.data.field(name) for name in names])

    async def _copy(self, part: Part, path: Path) -> str:
        data = await self.opener.bytes_of(part)

        def write() -> None:
            if part.inline is None:
                path.write_bytes(data)
            else:
                path.write_bytes(encode_parquet(decode_part(part, data, self.opener.schema)))

        await self.opener.clock.offload(write)
        return str(path)

    @contextmanager
    def _summed(self, rows: pads.Dataset, folder: str) -> Iterator[Iterator[pa.RecordBatch]]:
        names = ", ".join(quoted(name) for name in self._made.names)
        sql = (
            f"SELECT {names}, sum({DIFF})::BIGINT AS {DIFF} FROM updates "
            f"WHERE {TIME} <= {self.wanted.as_of} GROUP BY {names} HAVING sum({DIFF}) <> 0"
        )
        inside = within(self.wanted.box, self.opener.schema)
        spill = os.path.join(folder, "spill")
        with bounded_duck(self.memory_bytes, spill) as connection:
            connection.register("updates", rows if inside is None else rows.filter(inside))
            yield iter(connection.sql(sql).to_arrow_reader(BATCH_ROWS))


def within(box: Box, schema: ShardSchema) -> pc.Expression | None:
    """Return what says of a row that it lies within a box; None of one without bounds."""
    found: list[pc.Expression] = []
    for name, (low, high) in box.items():
        column = pc.field(name)
        if low is not None:
            found.append(column >= _bound(low, schema.data.field(name).type))
        if high is not None:
            found.append(column <= _bound(high, schema.data.field(name).type))
    return reduce(and_, found) if found else None


def _bound(value: Any, dtype: pa.DataType) -> pa.Scalar[Any]:
    if not pa.types.is_temporal(dtype):
        return scalar_of(value, dtype)
    return scalar_of(value, pa.int32() if dtype.bit_width == 32 else pa.int64()).cast(dtype)
