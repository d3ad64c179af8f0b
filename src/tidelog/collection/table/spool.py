"""A spool: rows of a write that wait in a temporary file, because memory may not hold them.

A merge must know which of its rows the table has, before it can write any of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.core.clock import Clock
from tidelog.core.temporary import temporary_files
from tidelog.persist.format.part import copied_columns, int64_array
from tidelog.persist.format.schema import DIFF, ShardSchema

SPOOL_ROWS: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Spool:
    """Rows in a temporary file, which vanishes with the process.

    Shape: ``known`` has some columns of all rows, in memory.
    """

    file: IO[bytes]
    known: pa.Table

    def chosen(self, copies: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
        """Yield the rows that a write adds, with the number of copies of each as ``_diff``."""
        self.file.seek(0)
        first = 0
        with pa.ipc.open_stream(cast("Any", self.file)) as stream:
            for batch in stream:
                some = copies[first : first + batch.num_rows]
                first += batch.num_rows
                places = np.flatnonzero(some)
                if len(places):
                    rows = pa.Table.from_batches([batch]).take(places)
                    yield rows.append_column(DIFF, int64_array(some[places]))


async def spooled(
    file: IO[bytes],
    pieces: AsyncIterator[pa.Table],
    schema: ShardSchema,
    columns: AbstractSet[str],
    clock: Clock,
) -> Spool:
    """Write pieces of rows into a file; keep some of their columns in memory, too."""
    names = [name for name in schema.names if name in columns]
    known = [schema.data.empty_table().select(names)]
    stream = pa.ipc.new_stream(cast("Any", file), schema.data)
    async for piece in pieces:
        await clock.offload(partial(_written, stream, piece))
        known.append(copied_columns(piece, names))
    with temporary_files():
        stream.close()
        file.flush()
    return Spool(file, pa.concat_tables(known))


def _written(stream: pa.RecordBatchStreamWriter, piece: pa.Table) -> None:
    with temporary_files():
        stream.write_table(piece, SPOOL_ROWS)
