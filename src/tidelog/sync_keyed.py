"""The synchronous API of keyed logs; see `tidelog.keyed.port` for its methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from tidelog.keyed import log as aio_keyed
from tidelog.keyed import port
from tidelog.keyed import reader as aio_reader
from tidelog.keyed.read.by_spark import SparkView
from tidelog.keyed.upkeep.collecting import AFTER_US
from tidelog.keyed.upkeep.scrub import KeyedScrubbed
from tidelog.keyed.values import (
    CheckpointInfo,
    Count,
    KeyedInfo,
    Retention,
    Sealing,
    Segment,
)
from tidelog.portal import Blocking, documented_as

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@documented_as(port.KeyedScan)
class KeyedScan(Blocking[port.KeyedScan]):
    """An iterator of records, for one thread; leaving its loop by ``break`` closes it."""

    @property
    def next_sequence(self) -> int:
        """Return the sequence to resume from; see the asynchronous property."""
        return self._inner.next_sequence

    def __iter__(self) -> Iterator[pa.Table]:
        return self._portal.iterate(aiter(self._inner))

    def to_arrow(self) -> pa.Table:
        return self._portal.run(self._inner.to_arrow())

    def close(self) -> None:
        """Close the scan."""
        self._portal.run(self._inner.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@documented_as(aio_reader.KeyedReader)
class KeyedReader(Blocking[aio_reader.KeyedReader]):
    """A keyed log for reading; close it, or use it in ``with``."""

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def name(self) -> str:
        """Return the name of the keyed log."""
        return self._inner.name

    def scan(
        self,
        key: bytes,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
    ) -> KeyedScan:
        found = self._inner.scan(key, start, limit, rows=rows, newest_first=newest_first)
        return KeyedScan(self._portal, found)

    def scan_prefix(
        self,
        prefix: bytes,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
    ) -> KeyedScan:
        found = self._inner.scan_prefix(prefix, start, limit, rows=rows, newest_first=newest_first)
        return KeyedScan(self._portal, found)

    def scan_range(
        self,
        first: bytes,
        last: bytes | None,
        start: int = 0,
        limit: int | None = None,
        *,
        rows: int | None = None,
        newest_first: bool = False,
    ) -> KeyedScan:
        found = self._inner.scan_range(
            first, last, start, limit, rows=rows, newest_first=newest_first
        )
        return KeyedScan(self._portal, found)

    def follow(
        self, key: bytes | None = None, *, prefix: bytes | None = None, start: int | None = None
    ) -> KeyedScan:
        return KeyedScan(self._portal, self._inner.follow(key, prefix=prefix, start=start))

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
        found = self._inner.keys(prefix, after=after, segments=segments)
        return self._portal.iterate(found)

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
        key: bytes | None = None,
        prefix: bytes | None = None,
        *,
        first: bytes | None = None,
        last: bytes | None = None,
        start: int = 0,
        limit: int | None = None,
    ) -> DataFrame:
        work = self._inner.to_spark(
            spark, key, prefix, first=first, last=last, start=start, limit=limit
        )
        return self._portal.run(work)

    def spark_view(
        self,
        spark: SparkSession,
        key: bytes | None = None,
        prefix: bytes | None = None,
        *,
        first: bytes | None = None,
        last: bytes | None = None,
        start: int = 0,
        limit: int | None = None,
    ) -> SparkView:
        work = self._inner.spark_view(
            spark, key, prefix, first=first, last=last, start=start, limit=limit
        )
        return self._portal.run(work)

    def close(self) -> None:
        self._portal.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@documented_as(aio_keyed.KeyedLog)
class KeyedLog(KeyedReader):
    """A keyed log for writing and reading; close it, or use it in ``with``."""

    _inner: aio_keyed.KeyedLog

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
        async def subscribe() -> Callable[[], None]:
            return self._inner.on_durable(told)

        return self._portal.run(subscribe())

    def seal(self) -> Segment | None:
        return self._portal.run(self._inner.seal())

    def compact(self, *, everything: bool = False, spark: SparkSession | None = None) -> int:
        return self._portal.run(self._inner.compact(everything=everything, spark=spark))

    def retire(self, retention: Retention | None = None) -> int:
        return self._portal.run(self._inner.retire(retention))

    def configure(
        self, *, sealing: Sealing | None = None, retention: Retention | None = None
    ) -> None:
        self._portal.run(self._inner.configure(sealing=sealing, retention=retention))

    def collect(self, *, after_us: int = AFTER_US) -> int:
        return self._portal.run(self._inner.collect(after_us=after_us))

    def scrub(self) -> KeyedScrubbed:
        return self._portal.run(self._inner.scrub())

    def checkpoint(self, name: str) -> CheckpointInfo:
        return self._portal.run(self._inner.checkpoint(name))

    def drop_checkpoint(self, name: str) -> None:
        self._portal.run(self._inner.drop_checkpoint(name))
