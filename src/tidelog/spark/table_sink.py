"""Writes of tables: tasks write the parts, and the driver commits them all at one time.

A task needs only the store. It answers with the descriptors of its parts and, in a table with a
key, with the keys. The driver finds the rows that these keys replace, and commits. A micro-batch
has the name of its query and a number, so the table has it once, whichever process was killed at
any time. The parts of dead tasks have no effect, and a sweep deletes them.
Source: PySpark's ``DataSourceArrowWriter``, ``DataSourceStreamArrowWriter``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tidelog.collection.staged import (
    IsRepeat,
    StagedRows,
    check_operation,
    commit_staged,
    is_older,
    stage_rows,
    staging_area,
)
from tidelog.collection.table.changes import DELETE, INSERT, OVERWRITE, UPSERT
from tidelog.collection.table.inputs import tables_of
from tidelog.collection.table.staging import StagingArea
from tidelog.core.clock import SystemClock
from tidelog.errors import NoSuchCollection, UsageError
from tidelog.location import open_location
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.states.state import Token
from tidelog.spark.micro_batch import is_repeat, name_of_batch, query_of_task
from tidelog.spark.options import (
    OF_TABLE_WRITES,
    OPTIONS,
    batch_named,
    checkpoint_of,
    location_told,
    refuse_options,
    told_as_spark_tells,
    told_options,
)
from tidelog.spark.place import url_for_executors
from tidelog.spark.sql_table import STATEMENT
from tidelog.spark.types import arrow_schema
from tidelog.spark.worker import use_one_core
from tidelog.store.wrapping import open_wrapped

OPERATIONS: Final = (INSERT, UPSERT, DELETE)
NO_TABLE: Final = (
    "Spark cannot write a collection of a source: write files, and ingest them; or create a table "
    "with 'tidelog table create', and write to it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWriteSettings:
    """The target of a write, and its operation; ``batch`` names a batch that is written once.

    ``checkpoint`` is the place of a stream's checkpoint.
    """

    location_url: str
    name: str
    operation: str = INSERT
    batch: Token | None = None
    checkpoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink:
    """A table at the planning of a write. If it was dropped since, the commit is refused."""

    settings: TableWriteSettings
    store_url: str
    rendition: str
    area: StagingArea
    operation: str


class TableTask(WriterCommitMessage):
    """The rows that a task has staged; in a stream, also the id of the query."""

    def __init__(self, rows: StagedRows, query: str | None) -> None:
        self.rows = rows
        self.query = query


class TableBatchWriter(DataSourceArrowWriter):
    """The writer of a DataFrame; with ``txnAppId`` and ``txnVersion``, it writes once."""

    def __init__(self, sink: TableSink) -> None:
        self._sink = sink

    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TableTask:
        return _staged(self._sink, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._sink, _tasks_of(messages), self._sink.settings.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        # Spark may call this after a durable commit, so no part may be deleted here.
        pass


class TableStreamWriter(DataSourceStreamArrowWriter):
    """The writer of micro-batches, each once, by the id of the query and of the batch."""

    def __init__(self, sink: TableSink) -> None:
        self._sink = sink

    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> TableTask:
        return _staged(self._sink, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        tasks = _tasks_of(messages)
        # Spark numbers the batches of a checkpoint from 0, and runs a task also without rows.
        with told_as_spark_tells():
            queries = [task.query for task in tasks]
            name = name_of_batch(queries, batchId, self._sink.settings.checkpoint)
        _commit(self._sink, tasks, name, continues=batchId > 0, is_repeat=is_repeat)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass  # See `TableBatchWriter.abort`.


def read_table_write_settings(
    options: Mapping[str, str], environment: Mapping[str, str]
) -> TableWriteSettings:
    """Parse the options of a write of a DataFrame or a stream into a table.

    Raises:
        UnknownOption, OptionMissing, UsageError: an option is wrong; the message names it.
    """
    checkpoint, given = checkpoint_of(options)
    values = told_options(given, kind="collection", call="save")
    shared = ("location", "kind", *OF_TABLE_WRITES)
    of_reads = [name for name in OPTIONS["collection"] if name not in shared]
    if "asof" in values:
        # A view of `register` is a read as of one time, and INSERT INTO writes with its options.
        raise UsageError(
            "the option 'asOf' applies only to reads, and a view of tidelog.spark.register() is a "
            f"read: remove the option, or write into a table of {STATEMENT}"
        )
    refuse_options(values, of_reads, "applies only to reads")
    operation = values.get("operation", INSERT).lower()
    if operation not in OPERATIONS:
        raise UsageError(
            f"operation must be one of {', '.join(OPERATIONS)}, not {values['operation']!r}"
        )
    return TableWriteSettings(
        location_url=location_told(values, environment),
        name=values["path"],
        operation=operation,
        batch=batch_named(values),
        checkpoint=checkpoint,
    )


def open_table_sink(settings: TableWriteSettings, schema: StructType, overwrite: bool) -> TableSink:
    """Check that a table exists, and that it can take rows with such columns.

    Raises:
        UsageError: it cannot take them. NoSuchLocation, NoSuchCollection: it does not exist.
    """
    if overwrite and settings.operation != INSERT:
        raise UsageError(
            "an overwrite replaces all rows: remove the option 'operation', or use mode('append')"
        )
    return asyncio.run(_open_sink(settings, schema, overwrite))


async def _open_sink(
    settings: TableWriteSettings, schema: StructType, overwrite: bool
) -> TableSink:
    location = await open_location(settings.location_url)
    url = url_for_executors(location.executor_url, location.store)
    try:
        table = await location.tables.open(settings.name)
    except NoSuchCollection:
        if settings.name in await location.collections.list():
            raise UsageError(NO_TABLE) from None
        raise
    operation = OVERWRITE if overwrite else settings.operation
    check_operation(table, operation)
    area = await staging_area(table, operation)
    _check_columns(schema, area.schema)
    return TableSink(
        settings=settings,
        store_url=url,
        rendition=table.info.rendition,
        area=area,
        operation=operation,
    )


def _check_columns(schema: StructType, columns: ShardSchema) -> None:
    missing = [name for name in columns.key if name not in schema.fieldNames()]
    if missing:
        raise UsageError(
            f"the DataFrame lacks the key column {missing[0]!r}: each row needs a whole key",
            columns=", ".join(schema.fieldNames()),
        )
    for _ in tables_of(arrow_schema(schema).empty_table(), columns):
        pass  # This checks the names and the types of the columns.


def _staged(sink: TableSink, batches: Iterator[pa.RecordBatch]) -> TableTask:
    use_one_core()
    with told_as_spark_tells():
        return TableTask(asyncio.run(_stage(sink, batches)), query_of_task())


async def _stage(sink: TableSink, batches: Iterator[pa.RecordBatch]) -> StagedRows:
    clock = SystemClock()
    store = open_wrapped(sink.store_url, clock=clock).whole
    return await stage_rows(sink.area, store, clock, _pieces(sink, batches))


def _pieces(sink: TableSink, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    first = next(batches, None)
    if first is not None:
        reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
        yield from tables_of(reader, sink.area.schema)


def _tasks_of(messages: Sequence[WriterCommitMessage | None]) -> list[TableTask]:
    return [message for message in messages if isinstance(message, TableTask)]


def _commit(
    sink: TableSink,
    tasks: Sequence[TableTask],
    batch: Token | None,
    *,
    continues: bool = False,
    is_repeat: IsRepeat = is_older,
) -> None:
    staged = [task.rows for task in tasks]
    with told_as_spark_tells():
        asyncio.run(_commit_to(sink, staged, batch, continues=continues, is_repeat=is_repeat))


async def _commit_to(
    sink: TableSink, staged: Sequence[StagedRows], batch: Token | None, **checks: Any
) -> None:
    settings = sink.settings
    location = await open_location(settings.location_url)
    table = await location.tables.open(settings.name)
    if table.info.rendition != sink.rendition:
        raise NoSuchCollection(
            f"the table {settings.name!r} was dropped during the write, and nothing was written: "
            "write to the new table again"
        )
    await commit_staged(table, staged, sink.operation, token=batch, **checks)
