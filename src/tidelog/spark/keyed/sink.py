"""Writes to keyed logs: tasks stage records, and the driver appends them, in order.

Only one process writes a log at a time, and the newest one wins, so tasks do not append. They check
their records. Few records travel in their answers; more go into staged objects, and the answers
name these. The driver appends a whole batch and its marker by one append (see `commit`). So a named
batch is in the log once, whichever process was killed at any time.
Source: PySpark's ``DataSourceArrowWriter``, ``DataSourceStreamArrowWriter``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, StringType, StructType

from tidelog.collection.staged import IsRepeat, is_older
from tidelog.core.clock import SystemClock
from tidelog.errors import UsageError
from tidelog.location import open_location
from tidelog.spark.keyed.commit import commit_batch, discard_staged
from tidelog.spark.keyed.options import KeyedWriteSettings
from tidelog.spark.keyed.share import KeyedLogPlace
from tidelog.spark.keyed.staging import StagedBatch, StagedBlock, stage_records
from tidelog.spark.micro_batch import is_repeat, name_of_batch, query_of_task
from tidelog.spark.options import told_as_spark_tells
from tidelog.spark.place import url_for_executors
from tidelog.spark.worker import use_one_core

COLUMNS: Final = ("key", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSink:
    """The log to stage for, and the write epoch by which a sweep finds leftovers."""

    place: KeyedLogPlace
    write_epoch: int


class StagedTask(WriterCommitMessage):
    """The blocks that a task staged; in a stream, also the id of the query."""

    def __init__(self, blocks: tuple[StagedBlock, ...], query: str | None) -> None:
        self.blocks = blocks
        self.query = query


class KeyedBatchWriter(DataSourceArrowWriter):
    """The writer of a DataFrame; with ``txnAppId`` and ``txnVersion``, it writes once."""

    def __init__(self, sink: KeyedSink, settings: KeyedWriteSettings) -> None:
        self._sink = sink
        self._settings = settings

    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> StagedTask:
        return _staged(self._sink, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._sink, messages, self._settings.batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._sink, messages)


class KeyedStreamWriter(DataSourceStreamArrowWriter):
    """The writer of micro-batches, each once, by the id of the query and of the batch."""

    def __init__(self, sink: KeyedSink, settings: KeyedWriteSettings) -> None:
        self._sink = sink
        self._settings = settings

    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> StagedTask:
        return _staged(self._sink, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        queries = [message.query for message in messages if isinstance(message, StagedTask)]
        if not queries:
            return
        with told_as_spark_tells():
            name = name_of_batch(queries, batchId, self._settings.checkpoint)
        _commit(self._sink, messages, name, is_repeat=is_repeat)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _abort(self._sink, messages)


def open_sink(settings: KeyedWriteSettings, schema: StructType, overwrite: bool) -> KeyedSink:
    """Check that the log exists, and that it can store such rows.

    Raises:
        UsageError: it cannot store them.
        NoSuchLocation, NoSuchLog: the location or the log does not exist.
    """
    _check_schema(schema)
    if overwrite:
        raise UsageError(
            "a keyed log cannot be overwritten: use mode('append'), or outputMode('append') for "
            "a stream"
        )
    return asyncio.run(_open(settings))


async def _open(settings: KeyedWriteSettings) -> KeyedSink:
    location = await open_location(settings.location_url)
    state_handle = await location.keyed.state_handle(settings.name)
    place = KeyedLogPlace(
        location_url=url_for_executors(location.executor_url, location.store), name=settings.name
    )
    return KeyedSink(place=place, write_epoch=state_handle.state.write_epoch)


def _check_schema(schema: StructType) -> None:
    if sorted(schema.fieldNames()) != sorted(COLUMNS):
        raise UsageError(
            "a keyed log is written from the columns key and value: select only them; the log "
            "assigns sequences and times",
            columns=", ".join(schema.fieldNames()),
        )
    for field in schema.fields:
        if not isinstance(field.dataType, BinaryType | StringType):
            raise UsageError(
                f"the column {field.name} must be binary or a string: cast it",
                found=field.dataType.simpleString(),
            )


def _staged(sink: KeyedSink, batches: Iterator[pa.RecordBatch]) -> StagedTask:
    use_one_core()
    with told_as_spark_tells():
        blocks = stage_records(sink.place, sink.write_epoch, batches)
    return StagedTask(blocks, query_of_task())


def _commit(
    sink: KeyedSink,
    messages: list[Any],
    name: tuple[str, int] | None,
    *,
    is_repeat: IsRepeat = is_older,
) -> None:
    with told_as_spark_tells():
        asyncio.run(_commit_to(sink.place, _all_of(messages), name, is_repeat))


def _abort(sink: KeyedSink, messages: list[Any]) -> None:
    # Spark may call this after a durable commit, so it deletes only the staged objects.
    asyncio.run(discard_staged(sink.place.open(SystemClock()), _all_of(messages)))


async def _commit_to(
    place: KeyedLogPlace, staged: StagedBatch, name: tuple[str, int] | None, is_repeat: IsRepeat
) -> None:
    location = await open_location(place.location_url)
    await commit_batch(location.keyed, place.name, staged, name, is_repeat)


def _all_of(messages: list[Any]) -> StagedBatch:
    return StagedBatch(
        tuple(
            block
            for message in messages
            if isinstance(message, StagedTask)
            for block in message.blocks
        )
    )
