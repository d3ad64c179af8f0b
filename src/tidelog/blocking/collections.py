"""The blocking API: collections. Do not edit: `kit.blocking_source` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.blocking.portal import BlockingTwin, ClosingTwin, RowsTwin, documented_as
from tidelog.collection import collection as awaited_collection
from tidelog.collection import collections as awaited_collections
from tidelog.collection import reading as awaited_reading
from tidelog.collection import table_handle as awaited_table_handle
from tidelog.collection import tables as awaited_tables
from tidelog.collection import transaction as awaited_transaction
from tidelog.collection.table.direct import WAL

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.collection.formats.times import When
    from tidelog.collection.reading import CollectionDescription
    from tidelog.collection.table.changes import WhenMatched, WhenNotMatched
    from tidelog.collection.table.history import TableCommit
    from tidelog.core.frontier import Frontier
    from tidelog.persist.handle.port import Progress
    from tidelog.persist.states.state import Token


@documented_as(awaited_collections.Collections)
class Collections(BlockingTwin[awaited_collections.Collections]):
    """The collections of a location."""

    def open(self, name: str) -> Collection:
        return Collection(self._portal, self._portal.run(self._inner.open(name)))

    def list(self) -> builtins.list[str]:
        return self._portal.run(self._inner.list())

    def retain(self, name: str, retain_ms: int | None) -> None:
        self._portal.run(self._inner.retain(name, retain_ms))


@documented_as(awaited_collection.Collection)
class Collection(BlockingTwin[awaited_collection.Collection]):
    """A collection.

    A time is ISO 8601 text, a datetime, a date (its midnight in UTC) or milliseconds since 1970.
    """

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def unique_key(self) -> tuple[str, ...]:
        return self._inner.unique_key

    def hold(self, name: str, at: When | None = None, *, token: int | None = None) -> Frontier:
        return self._portal.run(self._inner.hold(name, at, token=token))

    def move_hold(self, name: str, at: When, *, token: int | None = None) -> Frontier:
        return self._portal.run(self._inner.move_hold(name, at, token=token))

    def drop_hold(self, name: str, *, token: int | None = None) -> bool:
        return self._portal.run(self._inner.drop_hold(name, token=token))

    def snapshot(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> Contents:
        return Contents(
            self._portal,
            self._portal.run(
                self._inner.snapshot(
                    as_of,
                    columns=columns,
                    where=where,
                    limit=limit,
                    wait=wait,
                    timeout_us=timeout_us,
                )
            ),
        )

    def consolidated(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> pa.Table:
        return self._portal.run(
            self._inner.consolidated(
                as_of, columns=columns, where=where, limit=limit, wait=wait, timeout_us=timeout_us
            )
        )

    def scan(
        self,
        as_of: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> Iterator[pa.Table]:
        return self._portal.iterate(
            self._inner.scan(
                as_of, columns=columns, where=where, limit=limit, wait=wait, timeout_us=timeout_us
            )
        )

    def changes(
        self,
        since: When,
        until: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> pa.Table:
        return self._portal.run(
            self._inner.changes(
                since,
                until,
                columns=columns,
                where=where,
                limit=limit,
                wait=wait,
                timeout_us=timeout_us,
            )
        )

    def listen(
        self,
        since: When | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
    ) -> Iterator[Progress]:
        return self._portal.iterate(
            self._inner.listen(since, columns=columns, where=where, wait=wait)
        )

    def describe(self) -> CollectionDescription:
        return self._portal.run(self._inner.describe())


@documented_as(awaited_reading.Contents)
class Contents(RowsTwin[awaited_reading.Contents]):
    """The rows of a collection at one time; ``len`` and other libraries read them."""

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def as_of(self) -> int:
        return self._inner.as_of

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

    def to_spark(self, spark: SparkSession, *, hold: str | None = None) -> DataFrame:
        return self._portal.run(self._inner.to_spark(spark, hold=hold))


@documented_as(awaited_tables.Tables)
class Tables(BlockingTwin[awaited_tables.Tables]):
    """The tables of a location."""

    def create(
        self,
        name: str,
        schema: pa.Schema | str,
        *,
        key: Sequence[str] = (),
        shards: int = 1,
        retain_ms: int | None = None,
        mode: str = WAL,
    ) -> Table:
        return Table(
            self._portal,
            self._portal.run(
                self._inner.create(
                    name, schema, key=key, shards=shards, retain_ms=retain_ms, mode=mode
                )
            ),
        )

    def open(self, name: str) -> Table:
        return Table(self._portal, self._portal.run(self._inner.open(name)))

    def list(self) -> builtins.list[str]:
        return self._portal.run(self._inner.list())

    def alter(
        self,
        name: str,
        *,
        add: pa.Schema | str | None = None,
        drop: Sequence[str] = (),
        discard_values: bool = False,
    ) -> Table:
        return Table(
            self._portal,
            self._portal.run(
                self._inner.alter(name, add=add, drop=drop, discard_values=discard_values)
            ),
        )

    def drop(self, name: str) -> None:
        self._portal.run(self._inner.drop(name))

    def advance(self) -> int:
        return self._portal.run(self._inner.advance())


@documented_as(awaited_table_handle.Table)
class Table(Collection):
    """A table: a collection that programs write."""

    _inner: awaited_table_handle.Table

    def insert(self, rows: object, *, at: int | None = None, token: Token | None = None) -> int:
        return self._portal.run(self._inner.insert(rows, at=at, token=token))

    def upsert(self, rows: object, *, at: int | None = None, token: Token | None = None) -> int:
        return self._portal.run(self._inner.upsert(rows, at=at, token=token))

    def delete(
        self,
        *,
        keys: object = None,
        where: str | None = None,
        all_rows_max: int | None = None,
        at: int | None = None,
        token: Token | None = None,
    ) -> int:
        return self._portal.run(
            self._inner.delete(
                keys=keys, where=where, all_rows_max=all_rows_max, at=at, token=token
            )
        )

    def update(
        self,
        *,
        set: Mapping[str, str],
        where: str,
        at: int | None = None,
        token: Token | None = None,
    ) -> int:
        return self._portal.run(self._inner.update(set=set, where=where, at=at, token=token))

    def merge(
        self,
        rows: object,
        *,
        on: Sequence[str] | None = None,
        when_matched: WhenMatched = "update",
        when_not_matched: WhenNotMatched = "insert",
        at: int | None = None,
        token: Token | None = None,
    ) -> int:
        return self._portal.run(
            self._inner.merge(
                rows,
                on=on,
                when_matched=when_matched,
                when_not_matched=when_not_matched,
                at=at,
                token=token,
            )
        )

    def history(
        self, since: When | None = None, until: When | None = None
    ) -> builtins.list[TableCommit]:
        return self._portal.run(self._inner.history(since, until))


@documented_as(awaited_transaction.TableTransaction)
class TableTransaction(ClosingTwin[awaited_transaction.TableTransaction]):
    """A transaction over tables; use it in ``with``, which commits it at the end."""

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def time(self) -> int | None:
        return self._inner.time

    def snapshot(
        self,
        name: str,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        limit: int | None = None,
    ) -> Contents:
        return Contents(
            self._portal,
            self._portal.run(self._inner.snapshot(name, columns=columns, where=where, limit=limit)),
        )

    def insert(self, name: str, rows: object) -> None:
        self._portal.run(self._inner.insert(name, rows))

    def upsert(self, name: str, rows: object) -> None:
        self._portal.run(self._inner.upsert(name, rows))

    def delete(self, name: str, *, keys: object = None, where: str | None = None) -> None:
        self._portal.run(self._inner.delete(name, keys=keys, where=where))

    def update(self, name: str, *, set: Mapping[str, str], where: str) -> None:
        self._portal.run(self._inner.update(name, set=set, where=where))

    def merge(
        self,
        name: str,
        rows: object,
        *,
        on: Sequence[str] | None = None,
        when_matched: WhenMatched = "update",
        when_not_matched: WhenNotMatched = "insert",
    ) -> None:
        self._portal.run(
            self._inner.merge(
                name, rows, on=on, when_matched=when_matched, when_not_matched=when_not_matched
            )
        )

    def commit(self) -> int:
        return self._portal.run(self._inner.commit())
