"""Tasks over plain values, as RDDs; in Spark Connect, which lacks RDDs, as DataFrames.

A job of RDDs costs about 40 ms, half as much as a query with ``mapInArrow``, which carries each
value as pickled bytes in a row. Both run a task for each value of the first stage. Its results for
a partition go to the one task of the second stage with that number.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  The usual name among users of Spark.

from tidelog.spark.job import TaskTags, live_context
from tidelog.spark.ship import is_connect, is_elsewhere

Work = Callable[[Iterable[Any]], Iterator[Any]]

_SENT: Final = "place int, item binary"
_COLUMNS: Final[dict[str, pa.DataType]] = {"place": pa.int32(), "item": pa.binary()}
_SCHEMA: Final = pa.schema(_COLUMNS)
_ROWS_OF_RANGE: Final = 100_000  # More than any cluster's cores, so every partition has rows.


class SparkTasks(Protocol):
    """The port that runs tasks on a session. Its methods block, so callers use threads."""

    @property
    def tags(self) -> TaskTags: ...

    @property
    def is_elsewhere(self) -> bool:
        """Return True if tasks do not run on the driver's machine as its local workers."""
        ...

    def cores_count(self) -> int:
        """Return the number of tasks that run concurrently."""
        ...

    def run(self, work: Work, items: Sequence[Any]) -> list[Any]:
        """Do work on each item in a task of its own; return all results."""
        ...

    def meet(self, first: Work, items: Sequence[Any], second: Work, partitions: int) -> list[Any]:
        """Do ``first`` on each item in a task of its own; return the results of ``second``.

        ``first`` yields pairs of a partition and a value; ``second`` takes those of its partition.
        """
        ...


def tasks_of(spark: SparkSession) -> SparkTasks:
    """Return the port that runs tasks on a session.

    Raises:
        LocationError: the session was stopped.
    """
    return FrameTasks(spark) if is_connect(spark) else RddTasks(live_context(spark))


@dataclass(frozen=True, slots=True)
class RddTasks:
    """Tasks as RDDs."""

    tags: SparkContext

    @property
    def is_elsewhere(self) -> bool:
        return is_elsewhere(self.tags.master)

    def cores_count(self) -> int:
        return self.tags.defaultParallelism

    def run(self, work: Work, items: Sequence[Any]) -> list[Any]:
        return self.tags.parallelize(items, len(items)).mapPartitions(work).collect()

    def meet(self, first: Work, items: Sequence[Any], second: Work, partitions: int) -> list[Any]:
        handed = self.tags.parallelize(items, len(items)).mapPartitions(first)
        return handed.partitionBy(partitions, _same_partition).mapPartitions(second).collect()


@dataclass(slots=True)
class FrameTasks:
    """Tasks as DataFrames, whose rows are a partition's number and a pickled value."""

    spark: SparkSession
    _cores: int = 0
    _tags: SessionTags = field(init=False)

    def __post_init__(self) -> None:
        self._tags = SessionTags(self.spark)

    @property
    def tags(self) -> TaskTags:
        return self._tags

    @property
    def is_elsewhere(self) -> bool:
        # The server may be on this machine, but it is another process than this one.
        return True

    def cores_count(self) -> int:
        if not self._cores:
            spread = self.spark.range(_ROWS_OF_RANGE).select(F.spark_partition_id()).distinct()
            self._cores = spread.count()
        return self._cores

    def run(self, work: Work, items: Sequence[Any]) -> list[Any]:
        return _values(self._frame(items).mapInArrow(partial(_each_alone, work), _SENT))

    def meet(self, first: Work, items: Sequence[Any], second: Work, partitions: int) -> list[Any]:
        handed = self._frame(items).mapInArrow(partial(_each_placed, first), _SENT)
        met = handed.repartitionById(partitions, "place")
        return _values(met.mapInArrow(partial(_each_joined, second), _SENT))

    def _frame(self, items: Sequence[Any]) -> Any:
        rows = pa.table(
            [pa.array(range(len(items)), pa.int32()), [pickle.dumps(item) for item in items]],
            schema=_SCHEMA,
        )
        return self.spark.createDataFrame(rows).repartitionById(len(items), "place")


@dataclass(frozen=True, slots=True)
class SessionTags:
    """The tags of a session, with the method names of a context."""

    spark: SparkSession

    def addJobTag(self, tag: str) -> None:  # noqa: N802
        self.spark.addTag(tag)

    def removeJobTag(self, tag: str) -> None:  # noqa: N802
        self.spark.removeTag(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        self.spark.interruptTag(tag)


def _each_alone(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (_row(0, value) for value in work([item for _, item in _unpack(batches)]))


def _each_placed(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    values = work([item for _, item in _unpack(batches)])
    yield from (_row(place, value) for place, value in values)


def _each_joined(work: Work, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (_row(0, value) for value in work(list(_unpack(batches))))


def _row(place: int, value: Any) -> pa.RecordBatch:
    return pa.record_batch([[place], [pickle.dumps(value)]], schema=_SCHEMA)


def _unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Any]]:
    for batch in batches:
        places: list[Any] = batch.column(0).to_pylist()
        for place, item in zip(places, batch.column(1), strict=True):
            yield place, pickle.loads(item.as_buffer())


def _values(frame: Any) -> list[Any]:
    return [pickle.loads(item.as_buffer()) for item in frame.toArrow().column("item")]


def _same_partition(partition: int) -> int:
    return partition
