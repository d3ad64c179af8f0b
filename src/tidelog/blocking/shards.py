"""The blocking API: shards. Do not edit: `kit.blocking_source` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.blocking.portal import BlockingTwin, ClosingTwin, documented_as, unwrapped
from tidelog.persist import shards as awaited_shards
from tidelog.persist.handle import appender as awaited_appender
from tidelog.persist.handle import leasing as awaited_leasing
from tidelog.persist.handle import shard as awaited_shard
from tidelog.persist.handle.shard import LEASE_US
from tidelog.persist.read import snapshot as awaited_snapshot
from tidelog.persist.read.spilled_rows import MEMORY_BYTES
from tidelog.persist.transactions import begun as awaited_begun
from tidelog.persist.transactions import transactions as awaited_transactions

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.core.frontier import Frontier
    from tidelog.persist.handle.appending import Updates
    from tidelog.persist.handle.port import Progress
    from tidelog.persist.maintenance.compactor import CompactionReport
    from tidelog.persist.maintenance.sweeper import ShardSweepReport
    from tidelog.persist.read.splits import Split
    from tidelog.persist.states.evolution import EvolveResult
    from tidelog.persist.states.state import Token
    from tidelog.persist.states.transition import AppendResult
    from tidelog.persist.transactions.transition import TableParts


@documented_as(awaited_shards.Shards)
class Shards(BlockingTwin[awaited_shards.Shards]):
    """The shards of a location."""

    def open(
        self, name: str, *, schema: pa.Schema | None = None, key: builtins.list[str] | None = None
    ) -> Shard:
        return Shard(self._portal, self._inner.open(name, schema=schema, key=key))

    def create(
        self, name: str, *, schema: pa.Schema, key: builtins.list[str] | None = None
    ) -> Shard:
        return Shard(
            self._portal, self._portal.run(self._inner.create(name, schema=schema, key=key))
        )

    def find(self, name: str) -> Shard:
        return Shard(self._portal, self._portal.run(self._inner.find(name)))

    def list(self) -> builtins.list[str]:
        return self._portal.run(self._inner.list())

    def drop(self, name: str) -> int:
        return self._portal.run(self._inner.drop(name))

    def transactions(self, name: str) -> Transactions:
        return Transactions(self._portal, self._inner.transactions(name))


@documented_as(awaited_shard.Shard)
class Shard(BlockingTwin[awaited_shard.Shard]):
    """A shard."""

    def __repr__(self) -> str:
        return repr(self._inner)

    def upper(self) -> Frontier:
        return self._portal.run(self._inner.upper())

    def since(self) -> Frontier:
        return self._portal.run(self._inner.since())

    def within(self, timeout_us: int | None) -> Shard:
        return Shard(self._portal, self._inner.within(timeout_us))

    def compare_and_append(
        self,
        updates: Updates,
        expected_upper: Frontier | int,
        upper: Frontier | int | None,
        *,
        token: Token | None = None,
        named: bool = False,
        holds: Mapping[str, Frontier] | None = None,
    ) -> AppendResult:
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
    ) -> AppendResult:
        return self._portal.run(
            self._inner.try_compare_and_append(
                updates, expected_upper, upper, token=token, named=named, holds=holds
            )
        )

    def append(
        self, updates: object, lower: Frontier | int, upper: Frontier | int | None
    ) -> AppendResult:
        return self._portal.run(self._inner.append(updates, lower, upper))

    def appender(self, name: str, *, heartbeat_us: int = 0) -> Appender:
        return Appender(
            self._portal, self._portal.run(self._inner.appender(name, heartbeat_us=heartbeat_us))
        )

    def drop_writer(self, name: str) -> bool:
        return self._portal.run(self._inner.drop_writer(name))

    def snapshot(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> ShardSnapshot:
        return ShardSnapshot(
            self._portal,
            self._portal.run(
                self._inner.snapshot(
                    as_of, columns=columns, where=where, wait=wait, timeout_us=timeout_us
                )
            ),
        )

    def listen(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
    ) -> Iterator[Progress]:
        return self._portal.iterate(
            self._inner.listen(as_of, columns=columns, where=where, wait=wait)
        )

    def hold(
        self, name: str, since: Frontier | int | None = None, *, token: int | None = None
    ) -> Frontier:
        return self._portal.run(self._inner.hold(name, since, token=token))

    def move_hold(
        self, name: str, since: Frontier | int | None, *, token: int | None = None
    ) -> Frontier:
        return self._portal.run(self._inner.move_hold(name, since, token=token))

    def drop_hold(self, name: str, *, token: int | None = None) -> bool:
        return self._portal.run(self._inner.drop_hold(name, token=token))

    def lease(
        self,
        since: Frontier | int | None = None,
        *,
        lease_us: int = LEASE_US,
        fixed: bool = False,
        purpose: str = "",
    ) -> LeasedReader:
        return LeasedReader(
            self._portal,
            self._portal.run(
                self._inner.lease(since, lease_us=lease_us, fixed=fixed, purpose=purpose)
            ),
        )

    def end_leases(self) -> int:
        return self._portal.run(self._inner.end_leases())

    def evolve_schema(self, schema: pa.Schema, *, expected: int | None = None) -> EvolveResult:
        return self._portal.run(self._inner.evolve_schema(schema, expected=expected))

    def schemas(self) -> list[pa.Schema]:
        return self._portal.run(self._inner.schemas())

    def compact(self, *, full: bool = False, spark: SparkSession | None = None) -> CompactionReport:
        return self._portal.run(self._inner.compact(full=full, spark=spark))

    def collect(self, *, after_us: int | None = None) -> int:
        return self._portal.run(self._inner.collect(after_us=after_us))

    def sweep(self) -> ShardSweepReport:
        return self._portal.run(self._inner.sweep())

    def drop(self) -> int:
        return self._portal.run(self._inner.drop())


@documented_as(awaited_snapshot.ShardSnapshot)
class ShardSnapshot(BlockingTwin[awaited_snapshot.ShardSnapshot]):
    """A shard's contents at one time."""

    def splits(self, count: int) -> list[Split]:
        return self._inner.splits(count)

    def to_arrow(self, *, consolidated: bool = False) -> pa.Table:
        return self._portal.run(self._inner.to_arrow(consolidated=consolidated))

    def to_batches(self, *, memory_bytes: int = MEMORY_BYTES) -> Iterator[pa.RecordBatch]:
        return self._portal.iterate(self._inner.to_batches(memory_bytes=memory_bytes))

    def to_pandas(self) -> Any:
        return self._portal.run(self._inner.to_pandas())

    def to_polars(self) -> Any:
        return self._portal.run(self._inner.to_polars())

    def to_duckdb(
        self, connection: duckdb.DuckDBPyConnection | None = None
    ) -> duckdb.DuckDBPyRelation:
        return self._portal.run(self._inner.to_duckdb(connection))

    def to_spark(self, spark: SparkSession, *, hold: str | None = None) -> DataFrame:
        return self._portal.run(self._inner.to_spark(spark, hold=hold))


@documented_as(awaited_appender.Appender)
class Appender(ClosingTwin[awaited_appender.Appender]):
    """A named writer."""

    @property
    def upper(self) -> Frontier:
        return self._inner.upper

    def append(self, updates: Updates, upper: Frontier | int | None) -> None:
        self._portal.run(self._inner.append(updates, upper))

    def advance(self, upper: Frontier | int) -> None:
        self._portal.run(self._inner.advance(upper))

    def move_hold(self, hold: str, since: Frontier | int | None) -> None:
        self._portal.run(self._inner.move_hold(hold, since))

    def flush(self) -> None:
        self._portal.run(self._inner.flush())

    def close(self) -> None:
        self._portal.run(self._inner.close())


@documented_as(awaited_leasing.LeasedReader)
class LeasedReader(ClosingTwin[awaited_leasing.LeasedReader]):
    """A reader with a lease."""

    @property
    def since(self) -> Frontier:
        return self._inner.since

    @property
    def until_us(self) -> int | None:
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
        return ShardSnapshot(
            self._portal,
            self._portal.run(
                self._inner.snapshot(
                    as_of, columns=columns, where=where, wait=wait, timeout_us=timeout_us
                )
            ),
        )

    def listen(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
    ) -> Iterator[Progress]:
        return self._portal.iterate(
            self._inner.listen(as_of, columns=columns, where=where, wait=wait)
        )

    def move_hold(self, since: Frontier | int) -> Frontier:
        return self._portal.run(self._inner.move_hold(since))

    def renew(self) -> None:
        self._portal.run(self._inner.renew())

    def close(self) -> None:
        self._portal.run(self._inner.close())

    def stop(self) -> None:
        self._portal.run(self._inner.stop())


@documented_as(awaited_transactions.Transactions)
class Transactions(BlockingTwin[awaited_transactions.Transactions]):
    """Transactions: writes to several shards at one time."""

    def __repr__(self) -> str:
        return repr(self._inner)

    def upper(self) -> Frontier:
        return self._portal.run(self._inner.upper())

    def tables(self) -> list[str]:
        return self._portal.run(self._inner.tables())

    def register(self, shard: Shard) -> Frontier:
        return self._portal.run(self._inner.register(unwrapped(shard, Shard)))

    def forget(self, name: str) -> Frontier:
        return self._portal.run(self._inner.forget(name))

    def begin(self) -> Transaction:
        return Transaction(self._portal, self._portal.run(self._inner.begin()))

    def compare_and_append(
        self,
        updates: Mapping[str, pa.Table],
        expected_upper: Frontier | int,
        upper: Frontier | int,
        *,
        token: Token | None = None,
    ) -> AppendResult:
        return self._portal.run(
            self._inner.compare_and_append(updates, expected_upper, upper, token=token)
        )

    def try_compare_and_append(
        self,
        updates: Mapping[str, pa.Table],
        expected_upper: Frontier | int,
        upper: Frontier | int,
        *,
        token: Token | None = None,
    ) -> AppendResult:
        return self._portal.run(
            self._inner.try_compare_and_append(updates, expected_upper, upper, token=token)
        )

    def insert(
        self,
        rows: Mapping[str, pa.Table | pa.RecordBatch],
        *,
        at: int | None = None,
        token: Token | None = None,
    ) -> AppendResult:
        return self._portal.run(self._inner.insert(rows, at=at, token=token))

    def write_parts(self, name: str, rows: pa.Table | pa.RecordBatch) -> TableParts:
        return self._portal.run(self._inner.write_parts(name, rows))

    def commit_parts(
        self,
        parts: Mapping[str, Sequence[TableParts]],
        *,
        at: int | None = None,
        token: Token | None = None,
    ) -> AppendResult:
        return self._portal.run(self._inner.commit_parts(parts, at=at, token=token))

    def drop_writer(self, name: str) -> bool:
        return self._portal.run(self._inner.drop_writer(name))

    def apply(self) -> int:
        return self._portal.run(self._inner.apply())

    def tidy(self) -> int:
        return self._portal.run(self._inner.tidy())

    def snapshot(
        self, name: str, as_of: int, *, wait: bool = False, timeout_us: int | None = None
    ) -> ShardSnapshot:
        return ShardSnapshot(
            self._portal,
            self._portal.run(self._inner.snapshot(name, as_of, wait=wait, timeout_us=timeout_us)),
        )

    def listen(self, name: str, as_of: int, *, wait: bool = False) -> Iterator[Progress]:
        return self._portal.iterate(self._inner.listen(name, as_of, wait=wait))


@documented_as(awaited_begun.Transaction)
class Transaction(BlockingTwin[awaited_begun.Transaction]):
    """One transaction."""

    def snapshot(self, name: str) -> ShardSnapshot:
        return ShardSnapshot(self._portal, self._portal.run(self._inner.snapshot(name)))

    def write(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        self._inner.write(name, rows)

    def commit(self, *, at: int | None = None) -> AppendResult:
        return self._portal.run(self._inner.commit(at=at))
