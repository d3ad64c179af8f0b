"""SlateDB (its binding from PyPI) as a keyed log: a database key is the key, 0 and the sequence.

It uses the fastest settings of the binding: batches of 10,000, read-ahead, cached blocks, and one
run after `compact`. A count of a key's records scans them, because the binding has no counts.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from slatedb import uniffi

BATCH = 10_000
SCAN_BYTES = 64 * 1024
FULL_BYTES = 8 * 1024 * 1024
PATIENCE_S = 600


class SlateLog:
    """A database in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "slate").lstrip("/")
        self.store = uniffi.ObjectStore.resolve("file:///")
        self.metrics = uniffi.DefaultMetricsRecorder()
        self.db: Any = None

    async def open(self) -> None:
        settings = uniffi.Settings.default()
        # Runs are made when this benchmark asks, and when the binding must make one.
        builder = uniffi.DbBuilder(self.path, self.store)
        builder.with_settings(settings)
        builder.with_metrics_recorder(self.metrics)
        self.db = await builder.build()

    async def close(self) -> None:
        await self.db.shutdown()

    async def ingest(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Write all records in batches, and wait until they are durable."""
        number = 0
        for at in range(0, len(pairs), BATCH):
            batch = uniffi.WriteBatch()
            for key, value in pairs[at : at + BATCH]:
                number += 1
                batch.put(key + b"\0" + struct.pack(">Q", number), value)
            await self.db.write(batch)
        await self.db.flush()

    async def compact(self) -> None:
        """Compact all records into one run."""
        flush = uniffi.FlushOptions(flush_type=uniffi.FlushType.MEM_TABLE)
        await self.db.flush_with_options(flush)
        admin = uniffi.AdminBuilder(self.path, self.store).build()
        for _ in range(PATIENCE_S):
            manifest = (await admin.read_compactor_state_view()).manifest
            if not manifest.l0 and len(manifest.compacted) <= 1:
                return
            sources = [
                *(uniffi.SourceId.SST_VIEW(view.id) for view in manifest.l0),
                *(uniffi.SourceId.SORTED_RUN(run.id) for run in manifest.compacted),
            ]
            destination = min((run.id for run in manifest.compacted), default=0)
            with suppress(uniffi.Error):  # A compaction is running.
                spec = uniffi.CompactionSpec.TIERED(b"", sources, destination)
                await admin.submit_compaction(spec)
            await asyncio.sleep(1)
        raise TimeoutError("the compaction did not end")

    async def checkpoint(self) -> str:
        """Create a checkpoint of the present contents; return its id."""
        admin = uniffi.AdminBuilder(self.path, self.store).build()
        options = uniffi.CheckpointOptions(lifetime_ms=None, source=None, name=None)
        made = await admin.create_detached_checkpoint(options)
        return str(made.id)

    async def scan(self, key: bytes, *, read_ahead: int = SCAN_BYTES) -> list[Any]:
        return await self._range(key + b"\0", key + b"\1", read_ahead)

    async def scan_all(self) -> int:
        """Read all records; return their number."""
        found = await self.db.scan_with_options(_range(None, None), _options(FULL_BYTES))
        count = 0
        while rows := await found.next_batch(10_000):
            count += len(rows)
        return count

    async def _range(self, start: bytes, end: bytes, read_ahead: int) -> list[Any]:
        found = await self.db.scan_with_options(_range(start, end), _options(read_ahead))
        rows: list[Any] = []
        while more := await found.next_batch(1_000):
            rows += more
        return rows

    def gets(self) -> int:
        """Return the number of GETs sent so far, as the binding counts them."""
        return sum(
            metric.value[0]
            for metric in self.metrics.snapshot()
            if metric.name == "slatedb.object_store.request_count"
            and {"db", "get"} <= {label.value for label in metric.labels}
            and any(label.value.startswith("get") for label in metric.labels if label.key == "api")
        )


async def scan_half(
    folder: Path, checkpoint: str, start: bytes | None, end: bytes | None
) -> pa.RecordBatch:
    """Return the records of a checkpoint in a range of keys, as columns; a Spark task calls it."""
    path = str(folder / "slate").lstrip("/")
    builder = uniffi.DbReaderBuilder(path, uniffi.ObjectStore.resolve("file:///"))
    builder.with_reader_mode(uniffi.ReaderMode.CHECKPOINT(checkpoint))
    reader = await builder.build()
    found = await reader.scan_with_options(_range(start, end), _options(FULL_BYTES))
    keys: list[bytes] = []
    values: list[bytes] = []
    while rows := await found.next_batch(10_000):
        keys += [row.key for row in rows]
        values += [row.value for row in rows]
    await reader.shutdown()
    stored: Any = pa.array(keys, pa.binary())
    numbers = [int.from_bytes(key[-8:]) for key in keys]
    columns = [pc.binary_slice(stored, 0, -9), pa.array(values, pa.binary()), pa.array(numbers)]
    return pa.record_batch(columns, names=["key", "value", "sequence"])


def _range(start: bytes | None, end: bytes | None) -> Any:
    return uniffi.KeyRange(start=start, start_inclusive=True, end=end, end_inclusive=False)


def _options(read_ahead: int) -> Any:
    return uniffi.ScanOptions(
        durability_filter=uniffi.DurabilityLevel.MEMORY,
        dirty=False,
        read_ahead_bytes=read_ahead,
        cache_blocks=True,
        max_fetch_tasks=4,
        order=None,
        filter_context=None,
        tracing_options=None,
    )
