"""Staged records: on their way from the tasks that have them to the driver that appends them.

A few records travel in the task's answer. More are stored as objects among the parts of unfinished
runs. The same rule applies to both: the second collection deletes objects that no state names.
Shape: Arrow streams of ``key`` and ``value``, both binary, compressed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidelog.core.clock import SystemClock
from tidelog.core.frames import stream_bytes
from tidelog.errors import CorruptionError, ObjectNotFound, ReadOvertaken, UsageError
from tidelog.keyed.states.language import prefix_of
from tidelog.keyed.write.arrow import columns_of
from tidelog.spark.keyed.share import KeyedLogPlace
from tidelog.store.port import Store
from tidelog.wal.append.bodies import RECORD_BYTES_MAX
from tidelog.wal.format.fragment_sets import KEY_BYTES_MAX

INLINE_BYTES: Final = 256 * 1024
BLOCK_BYTES: Final = 32 * 1024 * 1024
_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("key", pa.binary(), nullable=False),
    pa.field("value", pa.binary(), nullable=False),
]
SENT: Final = pa.schema(_FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBlock:
    """Some records: in ``data``, or in the object at ``path``, whose bytes have the digest."""

    rows: int
    num_bytes: int
    data: bytes | None = None
    path: str | None = None
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """All records of a batch, in order.

    Units: ``num_bytes``: bytes in memory.
    """

    blocks: tuple[StagedBlock, ...]

    @property
    def rows(self) -> int:
        return sum(block.rows for block in self.blocks)

    @property
    def num_bytes(self) -> int:
        return sum(block.num_bytes for block in self.blocks)

    @property
    def paths(self) -> list[str]:
        """Return the paths of the staged objects."""
        return [block.path for block in self.blocks if block.path is not None]


def stage_records(
    place: KeyedLogPlace, write_epoch: int, batches: Iterator[pa.RecordBatch]
) -> tuple[StagedBlock, ...]:
    """Check records and stage them, in a task.

    Raises:
        UsageError: a record is not valid.
        LocationError: the store failed.
    """
    clock = SystemClock()
    blocks: list[StagedBlock] = []
    held: list[pa.Table] = []

    def put(*, is_last: bool) -> None:
        table = pa.concat_tables(held)
        data, size = packed_records(table), int(table.nbytes)
        if is_last and not blocks and len(data) <= INLINE_BYTES:
            blocks.append(StagedBlock(rows=table.num_rows, num_bytes=size, data=data))
            return
        path = f"{prefix_of(place.name)}/run/{write_epoch:08x}/{clock.unique()}-staged.arrow"
        asyncio.run(place.open(clock).put(path, data))
        digest = xxhash.xxh3_128_digest(data)
        blocks.append(StagedBlock(rows=table.num_rows, num_bytes=size, path=path, digest=digest))

    for batch in batches:
        if batch.num_rows:
            held.append(_checked(batch))
        if sum(int(table.nbytes) for table in held) >= BLOCK_BYTES:
            put(is_last=False)
            held = []
    if held:
        put(is_last=True)
    return tuple(blocks)


async def load_block(store: Store, block: StagedBlock) -> pa.Table:
    """Return the records of a block.

    Raises:
        ReadOvertaken: a sweep deleted the object.
        CorruptionError: its bytes are wrong.
    """
    data = block.data
    if data is None:
        assert block.path is not None
        try:
            data = (await store.get(block.path)).data
        except ObjectNotFound as error:
            raise ReadOvertaken(
                "the collector ran twice during this write, and deleted its staged records: "
                "nothing was appended, so write it again"
            ) from error
        if xxhash.xxh3_128_digest(data) != block.digest:
            raise CorruptionError("staged records differ from those a task wrote", path=block.path)
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        return stream.read_all()


def _checked(batch: pa.RecordBatch) -> pa.Table:
    keys, values = columns_of(batch)
    for name, column, most in (("key", keys, KEY_BYTES_MAX), ("value", values, RECORD_BYTES_MAX)):
        longest: int = pc.max(pc.binary_length(column)).as_py()
        if longest > most:
            raise UsageError(f"a {name} must have at most {most} bytes", size_bytes=longest)
    return pa.table([keys, values], schema=SENT)


def packed_records(table: pa.Table) -> bytes:
    """Return records as an Arrow stream, to be sent or stored."""
    return stream_bytes(table, "zstd")
