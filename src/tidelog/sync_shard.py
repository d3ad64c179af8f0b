"""The synchronous API of shards: the same names, for notebooks, Spark drivers and scripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from tidelog.frontier import Frontier
from tidelog.persist.handle import appender as aio_appender
from tidelog.persist.handle import leasing as aio_leasing
from tidelog.persist.handle import shard as aio_shard
from tidelog.persist.handle.appending import Updates
from tidelog.persist.handle.listening import Progress
from tidelog.persist.handle.shard import LEASE_US
from tidelog.persist.read import snapshot as aio_snapshot
from tidelog.persist.read.reader import Split
from tidelog.persist.read.spilled_rows import MEMORY_BYTES
from tidelog.persist.states.evolution import Evolved
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import Appended
from tidelog.portal import Blocking, documented_as

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.persist.upkeep.compactor import Compacted
    from tidelog.persist.upkeep.sweeper import ShardSwept


@documented_as(aio_shard.Shard)
class Shard(Blocking[aio_shard.Shard]):
    """One shard; see `tidelog.persist.handle.shard.Shard` for its methods."""

    def __repr__(self) -> str:
        return repr(self._inner)

    def upper(self) -> Frontier:
        return self._portal.run(self._inner.upper())

    def since(self) -> Frontier:
        return self._portal.run(self._inner.since())

    def compare_and_append(
        self,
        updates: Updates,
        expected_upper: Frontier | int,
        upper: Frontier | int | None,
        *,
        token: Token | None = None,
        named: bool = False,
        holds: Mapping[str, Frontier] | None = None,
    ) -> Appended:
        return self._portal.run(
            self._inner.compare_and_append(
                updates, expected_upper, upper, token=token, named=named, holds=holds
            )
        )

    def try_compare_and_append(
        self,
        updates: Updates,
        expected_upper: Frontier | int,
        upper: Frontier | int | None,
        *,
        token: Token | None = None,
        named: bool = False,
        holds: Mapping[str, Frontier] | None = None,
    ) -> Appended:
        return self._portal.run(
            self._inner.try_compare_and_append(
                updates, expected_upper, upper, token=token, named=named, holds=holds
            )
        )

    def append(
        self, updates: pa.Table, lower: Frontier | int, upper: Frontier | int | None
    ) -> Appended:
        return self._portal.run(self._inner.append(updates, lower, upper))

    def snapshot(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> ShardSnapshot:
        asked = self._inner.snapshot(
            as_of, columns=columns, where=where, wait=wait, timeout_us=timeout_us
        )
        return ShardSnapshot(self._portal, self._portal.run(asked))

    def listen(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
    ) -> Iterator[Progress]:
        asked = self._inner.listen(as_of, columns=columns, where=where, wait=wait)
        return self._portal.iterate(asked)

    def within(self, timeout_us: int | None) -> Shard:
        return Shard(self._portal, self._inner.within(timeout_us))

    def appender(self, name: str, *, heartbeat_us: int = 0) -> Appender:
        found = self._portal.run(self._inner.appender(name, heartbeat_us=heartbeat_us))
        return Appender(self._portal, found)

    def drop_writer(self, name: str) -> bool:
        return self._portal.run(self._inner.drop_writer(name))

    def hold(
        self, name: str, since: Frontier | int | None = None, *, token: int | None = None
    ) -> Frontier:
        return self._portal.run(self._inner.hold(name, since, token=token))

    def downgrade_since(
        self, name: str, since: Frontier | int | None, *, token: int | None = None
    ) -> Frontier:
        return self._portal.run(self._inner.downgrade_since(name, since, token=token))

    def release(self, name: str, *, token: int | None = None) -> bool:
        return self._portal.run(self._inner.release(name, token=token))

    def lease(
        self,
        since: Frontier | int | None = None,
        *,
        lease_us: int = LEASE_US,
        fixed: bool = False,
        purpose: str = "",
    ) -> LeasedReader:
        work = self._inner.lease(since, lease_us=lease_us, fixed=fixed, purpose=purpose)
        return LeasedReader(self._portal, self._portal.run(work))

    def end_leases(self) -> int:
        return self._portal.run(self._inner.end_leases())

    def evolve_schema(self, schema: pa.Schema, *, expected: int | None = None) -> Evolved:
        return self._portal.run(self._inner.evolve_schema(schema, expected=expected))

    def schemas(self) -> list[pa.Schema]:
        return self._portal.run(self._inner.schemas())

    def finalize(self) -> int:
        return self._portal.run(self._inner.finalize())

    def compact(self, *, full: bool = False, spark: SparkSession | None = None) -> Compacted:
        return self._portal.run(self._inner.compact(full=full, spark=spark))

    def collect(self, *, after_us: int | None = None) -> int:
        return self._portal.run(self._inner.collect(after_us=after_us))

    def sweep(self) -> ShardSwept:
        return self._portal.run(self._inner.sweep())


@documented_as(aio_snapshot.ShardSnapshot)
class ShardSnapshot(Blocking[aio_snapshot.ShardSnapshot]):
    """A shard's contents at one time; see `tidelog.persist.read.snapshot.ShardSnapshot`."""

    def splits(self, count: int) -> list[Split]:
        return self._inner.splits(count)

    def to_arrow(self, *, consolidated: bool = False) -> pa.Table:
        return self._portal.run(self._inner.to_arrow(consolidated=consolidated))

    def to_spark(self, spark: SparkSession, *, hold: str | None = None) -> DataFrame:
        return self._portal.run(self._inner.to_spark(spark, hold=hold))

    def to_batches(self, *, memory_bytes: int = MEMORY_BYTES) -> Iterator[pa.RecordBatch]:
        return self._portal.iterate(self._inner.to_batches(memory_bytes=memory_bytes))


@documented_as(aio_appender.Appender)
class Appender(Blocking[aio_appender.Appender]):
    """A named writer; see `tidelog.persist.handle.appender.Appender` for its methods."""

    @property
    def upper(self) -> Frontier:
        """Return the upper up to which this writer has written its interval."""
        return self._inner.upper

    def append(self, updates: Updates, upper: Frontier | int | None) -> None:
        self._portal.run(self._inner.append(updates, upper))

    def advance(self, upper: Frontier | int) -> None:
        self._portal.run(self._inner.advance(upper))

    def downgrade_since(self, hold: str, since: Frontier | int | None) -> None:
        self._portal.run(self._inner.downgrade_since(hold, since))

    def flush(self) -> None:
        self._portal.run(self._inner.flush())

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
        self._portal.run(self._inner.__aexit__(kind, error, trace))


@documented_as(aio_leasing.LeasedReader)
class LeasedReader(Blocking[aio_leasing.LeasedReader]):
    """A leased reader, with the methods of `tidelog.persist.handle.leasing.LeasedReader`."""

    @property
    def since(self) -> Frontier:
        """Return the earliest time that this reader can read."""
        return self._inner.since

    @property
    def until_us(self) -> int | None:
        """Return the wall time, in microseconds, at which a fixed lease ends."""
        return self._inner.until_us

    def snapshot(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> ShardSnapshot:
        asked = self._inner.snapshot(
            as_of, columns=columns, where=where, wait=wait, timeout_us=timeout_us
        )
        return ShardSnapshot(self._portal, self._portal.run(asked))

    def listen(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
    ) -> Iterator[Progress]:
        asked = self._inner.listen(as_of, columns=columns, where=where, wait=wait)
        return self._portal.iterate(asked)

    def downgrade_since(self, since: Frontier | int) -> Frontier:
        return self._portal.run(self._inner.downgrade_since(since))

    def renew(self) -> None:
        self._portal.run(self._inner.renew())

    def stop(self) -> None:
        self._portal.run(self._inner.stop())

    def close(self) -> None:
        self._portal.run(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.close()
