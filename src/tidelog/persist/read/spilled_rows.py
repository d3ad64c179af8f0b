"""Rows that are unsorted and larger than memory, grouped by way of files on this machine.

Parts are copied to files, a few at once, after their bytes are checked. Their rows are then
distributed by hash over enough files that one file fits into memory. Equal rows are in the same
file. DuckDB groups one file after the other. It can spill too, but that alone does not prevent it
from running out of memory.
Source: persist, "Snapshot".
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.core.clock import run_all
from tidelog.core.temporary import temporary_files
from tidelog.persist.format.bounds import Box, scalar_of
from tidelog.persist.format.duck import bounded_duck, quoted, sums_told
from tidelog.persist.format.parquet import encode_parquet
from tidelog.persist.format.part import Part, decode_part, taken
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.read.opened import PartOpener
from tidelog.persist.read.pieces import SnapshotQuery
from tidelog.persist.read.sql_batches import tables_of
from tidelog.rowhash import bucket_of, hash_rows

if TYPE_CHECKING:
    import pyarrow.dataset as pads

MEMORY_BYTES: Final = 256 * 1024 * 1024
OUT_BYTES: Final = 8 * 1024 * 1024
BATCH_ROWS: Final = 65_536
FILES_MAX: Final = 256
ROW_BYTES: Final = 48  # The approximate memory of a DuckDB group in addition to its values.
GROUPED_TIMES: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SpilledRows:
    """Reads the wanted rows of parts by way of files.

    Units: DuckDB holds at most ``memory_bytes`` in memory.
    """

    opener: PartOpener
    wanted: SnapshotQuery
    memory_bytes: int = MEMORY_BYTES

    async def tables(self, parts: Sequence[Part]) -> AsyncGenerator[pa.Table, None]:
        """Yield columns and ``_diff``, consolidated, in no particular order.

        Raises:
            PartMissing: an object is missing. CorruptionError: the bytes differ from those written.
            LocationError: the store failed.
        """
        with tempfile.TemporaryDirectory(prefix="tidelog-read-") as folder:
            work = [partial(self._copy, part, Path(folder, f"{n}")) for n, part in enumerate(parts)]
            files = await run_all(work, at_once=self.opener.reads)
            from pyarrow.dataset import dataset  # This imports pandas if it is installed.

            rows = dataset(files, schema=self.opener.schema.updates, format="parquet")
            offload = self.opener.clock.offload
            for file in await offload(lambda: self._shared_out(rows, Path(folder))):
                made = tables_of(
                    partial(self._summed, file),
                    clock=self.opener.clock,
                    out_bytes=OUT_BYTES,
                    schema=self._made,
                )
                async with aclosing(made) as tables:
                    async for table in tables:
                        yield table
                await offload(file.unlink)

    @property
    def _made(self) -> pa.Schema:
        names = dict.fromkeys([*self.wanted.columns, *self.wanted.box])
        fields = [self.opener.schema.data.field(name) for name in names]
        return pa.schema([*fields, pa.field(DIFF, pa.int64(), nullable=False)])

    async def _copy(self, part: Part, path: Path) -> str:
        data = await self.opener.bytes_of(part)

        def write() -> None:
            if part.inline is None:
                found = data
            else:
                found = encode_parquet(decode_part(part, data, self.opener.schema))
            with temporary_files():
                path.write_bytes(found)

        await self.opener.clock.offload(write)
        return str(path)

    def _shared_out(self, rows: pads.Dataset, folder: Path) -> list[Path]:
        """Distribute the wanted rows over files, equal rows in the same file; return the paths."""
        inside = within(self.wanted.box, self.opener.schema)
        until = pc.field(TIME) <= scalar_of(self.wanted.as_of, pa.int64())
        scanner = rows.scanner(
            columns=self._made.names,
            filter=until if inside is None else until & inside,
            batch_size=BATCH_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
            use_threads=False,
        )
        files: list[Path] = []
        with temporary_files(), ExitStack() as stack:
            sinks: list[pa.ipc.RecordBatchFileWriter] = []
            for batch in scanner.to_batches():
                table = pa.Table.from_batches([batch]).cast(self._made)
                if not sinks:
                    count = self._files_count(table, rows.count_rows())
                    files = [folder / f"shared-{n}" for n in range(count)]
                    sinks = [stack.enter_context(_sink(file, self._made)) for file in files]
                for sink, some in zip(sinks, _by_hash(table, len(sinks)), strict=True):
                    sink.write_table(some)
        return files

    def _files_count(self, sample: pa.Table, rows: int) -> int:
        """Return the number of files for rows like those of a sample."""
        a_row = sample.nbytes / max(1, sample.num_rows) + ROW_BYTES
        return min(FILES_MAX, 1 + int(a_row * rows * GROUPED_TIMES / self.memory_bytes))

    @contextmanager
    def _summed(self, file: Path) -> Iterator[Iterator[pa.RecordBatch]]:
        names = ", ".join(quoted(name) for name in self._made.names if name != DIFF)
        sql = (
            f"SELECT {names}, sum({DIFF})::BIGINT AS {DIFF} FROM updates "
            f"GROUP BY {names} HAVING sum({DIFF}) <> 0"
        )
        with bounded_duck(self.memory_bytes, f"{file}-spill") as connection, sums_told():
            from pyarrow.dataset import dataset

            connection.register("updates", dataset([str(file)], format="ipc"))
            yield iter(connection.sql(sql).to_arrow_reader(BATCH_ROWS))


def _sink(path: Path, schema: pa.Schema) -> pa.ipc.RecordBatchFileWriter:
    return pa.ipc.new_file(str(path), schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))


def _by_hash(table: pa.Table, count: int) -> list[pa.Table]:
    """Divide rows among ``count`` tables; equal rows are always in the same table."""
    if count == 1:
        return [table]
    columns = [table.column(name) for name in table.column_names if name != DIFF]
    buckets = bucket_of(hash_rows(columns, rows=table.num_rows), count)
    order = np.argsort(buckets, kind="stable")
    table = taken(table, order)
    ends = np.searchsorted(buckets[order], np.arange(count + 1))
    return [table.slice(start, limit - start) for start, limit in pairwise(ends.tolist())]


def within(box: Box, schema: ShardSchema) -> pc.Expression | None:
    """Return a filter for the rows within a box; None if the box has no bounds."""
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
