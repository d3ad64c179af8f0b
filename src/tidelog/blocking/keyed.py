"""The blocking API: keyed. Do not edit: `kit.blocking_source` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.blocking.portal import BlockingTwin, ClosingTwin, documented_as
from tidelog.keyed import log as awaited_log
from tidelog.keyed import logs as awaited_logs
from tidelog.keyed import port as awaited_port
from tidelog.keyed import reader as awaited_reader
from tidelog.keyed.maintenance.collecting import AFTER_US
from tidelog.keyed.reader import REFRESH_US
from tidelog.keyed.values import MEMORY

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from typing import Any

    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.keyed.maintenance.scrub import KeyedScrubReport
    from tidelog.keyed.read.by_spark import SparkView
    from tidelog.keyed.values import (
        CheckpointInfo,
        Count,
        KeyedInfo,
        Keys,
        Retention,
        Sealing,
        Segment,
    )
    from tidelog.wal.append.batching import Batching


@documented_as(awaited_logs.KeyedLogs)
class KeyedLogs(BlockingTwin[awaited_logs.KeyedLogs]):
    """The keyed logs of a location."""

    def create(
        self, name: str, *, sealing: Sealing | None = None, retention: Retention | None = None
    ) -> KeyedLog:
        return KeyedLog(
            self._portal,
            self._portal.run(self._inner.create(name, sealing=sealing, retention=retention)),
        )

    def open(
        self,
        name: str,
        *,
        visibility: str = MEMORY,
        batching: Batching | None = None,
        maintenance: bool = True,
    ) -> KeyedLog:
        return KeyedLog(
            self._portal,
            self._portal.run(
                self._inner.open(
                    name, visibility=visibility, batching=batching, maintenance=maintenance
                )
            ),
        )

    def reader(
        self, name: str, *, refresh_us: int = REFRESH_US, checkpoint: str | None = None
    ) -> KeyedReader:
        return KeyedReader(
            self._portal,
            self._portal.run(
                self._inner.reader(name, refresh_us=refresh_us, checkpoint=checkpoint)
            ),
        )

    def list(self) -> builtins.list[str]:
        return self._portal.run(self._inner.list())

    def fork(self, source: str, name: str) -> KeyedLog:
        return KeyedLog(self._portal, self._portal.run(self._inner.fork(source, name)))

    def drop(self, name: str) -> None:
        self._portal.run(self._inner.drop(name))


@documented_as(awaited_port.KeyedScan)
class KeyedScan(ClosingTwin[awaited_port.KeyedScan]):
    """Records, read on demand by one thread. Leaving the loop by ``break`` ends the scan."""

    @property
    def next_sequence(self) -> int:
        return self._inner.next_sequence

    def __iter__(self) -> Iterator[pa.Table]:
        return self._portal.iterate(aiter(self._inner))

    def close(self) -> None:
        self._portal.run(self._inner.aclose())

    def to_arrow(self) -> pa.Table:
        return self._portal.run(self._inner.to_arrow())

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return self._portal.iterate(self._inner.to_batches())

    def to_pandas(self) -> Any:
        return self._portal.run(self._inner.to_pandas())

    def to_polars(self) -> Any:
        return self._portal.run(self._inner.to_polars())

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        return self._portal.run(self._inner.to_duckdb(connection))


@documented_as(awaited_reader.KeyedReader)
class KeyedReader(ClosingTwin[awaited_reader.KeyedReader]):
    """A keyed log that is read; close it, or use it in ``with``."""

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def name(self) -> str:
        return self._inner.name

    def scan(
        self,
        keys: Keys | bytes,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
    ) -> KeyedScan:
        return KeyedScan(
            self._portal, self._inner.scan(keys, start, limit, rows=rows, newest_first=newest_first)
        )

    def follow(self, keys: Keys | bytes | None = None, *, start: int | None = None) -> KeyedScan:
        return KeyedScan(self._portal, self._inner.follow(keys, start=start))

    def count(self, key: bytes, start: int = 0, limit: int | None = None) -> int:
        return self._portal.run(self._inner.count(key, start, limit))

    def count_approximate(self, key: bytes, start: int = 0, limit: int | None = None) -> Count:
        return self._portal.run(self._inner.count_approximate(key, start, limit))

    def keys(
        self,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        segments: tuple[int, int | None] | None = None,
    ) -> Iterator[pa.Table]:
        return self._portal.iterate(self._inner.keys(prefix, after=after, segments=segments))

    def segments(self, start: int = 0, limit: int | None = None) -> list[Segment]:
        return self._portal.run(self._inner.segments(start, limit))

    def sequence_at(self, when: int | datetime) -> int:
        return self._portal.run(self._inner.sequence_at(when))

    def next_sequence(self) -> int:
        return self._portal.run(self._inner.next_sequence())

    def refresh(self) -> int:
        return self._portal.run(self._inner.refresh())

    def checkpoints(self) -> list[CheckpointInfo]:
        return self._portal.run(self._inner.checkpoints())

    def describe(self) -> KeyedInfo:
        return self._portal.run(self._inner.describe())

    def to_spark(
        self,
        spark: SparkSession,
        keys: Keys | bytes | None = None,
        *,
        start: int = 0,
        limit: int | None = None,
    ) -> DataFrame:
        return self._portal.run(self._inner.to_spark(spark, keys, start=start, limit=limit))

    def spark_view(
        self,
        spark: SparkSession,
        keys: Keys | bytes | None = None,
        *,
        start: int = 0,
        limit: int | None = None,
    ) -> SparkView:
        return self._portal.run(self._inner.spark_view(spark, keys, start=start, limit=limit))

    def close(self) -> None:
        self._portal.run(self._inner.close())


@documented_as(awaited_log.KeyedLog)
class KeyedLog(KeyedReader):
    """A keyed log that is written and read; close it, or use it in ``with``."""

    _inner: awaited_log.KeyedLog

    def append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
        timeout_us: int | None = None,
    ) -> int:
        return self._portal.run(
            self._inner.append(
                records, durable=durable, timestamp_us=timestamp_us, timeout_us=timeout_us
            )
        )

    def append_arrow(
        self,
        records: pa.Table | pa.RecordBatch,
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
        timeout_us: int | None = None,
    ) -> int:
        return self._portal.run(
            self._inner.append_arrow(
                records, durable=durable, timestamp_us=timestamp_us, timeout_us=timeout_us
            )
        )

    def try_append(
        self,
        records: Sequence[tuple[bytes, bytes]],
        *,
        durable: bool = True,
        timestamp_us: int | None = None,
    ) -> int:
        return self._portal.run(
            self._inner.try_append(records, durable=durable, timestamp_us=timestamp_us)
        )

    def flush(self) -> int:
        return self._portal.run(self._inner.flush())

    def durable_sequence(self) -> int:
        return self._portal.run(self._inner.durable_sequence())

    def on_durable(self, told: Callable[[int], None]) -> Callable[[], None]:
        return self._portal.call(lambda: self._inner.on_durable(told))

    def seal(self) -> Segment | None:
        return self._portal.run(self._inner.seal())

    def compact(self, *, full: bool = False, spark: SparkSession | None = None) -> int:
        return self._portal.run(self._inner.compact(full=full, spark=spark))

    def retire(self, retention: Retention | None = None) -> int:
        return self._portal.run(self._inner.retire(retention))

    def configure(self, sealing: Sealing) -> None:
        self._portal.run(self._inner.configure(sealing))

    def retain(self, retention: Retention) -> None:
        self._portal.run(self._inner.retain(retention))

    def collect(self, *, after_us: int = AFTER_US) -> int:
        return self._portal.run(self._inner.collect(after_us=after_us))

    def scrub(self) -> KeyedScrubReport:
        return self._portal.run(self._inner.scrub())

    def create_checkpoint(self, name: str) -> CheckpointInfo:
        return self._portal.run(self._inner.create_checkpoint(name))

    def drop_checkpoint(self, name: str) -> None:
        self._portal.run(self._inner.drop_checkpoint(name))
