"""SQL over collections on Spark: a view of each collection as of one time, and a query over them.

A query has a session of its own, on the Spark that runs. So it sees no view, variable or setting of
the caller's session, and leaves none in it. The rows of the answer must fit into memory.
Source: design page 6, "Reading on Spark".
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.errors.exceptions import base
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from tidelog.collection.collections import Collections
from tidelog.collection.following import checked_patience
from tidelog.collection.formats.times import When
from tidelog.collection.sql import (
    SqlAnswer,
    TablesUsed,
    answer,
    at_time,
    check_unicode,
    common_time,
    opened_tables,
)
from tidelog.core.clock import Clock
from tidelog.errors import CorruptionError, LocationError, TidelogError, UsageError
from tidelog.persist.read.selection import ALL_ROWS
from tidelog.spark.collection_frame import frame_of_contents
from tidelog.spark.failure import describe_failure
from tidelog.spark.job import live_context, run_job
from tidelog.spark.query_plan import names_of
from tidelog.spark.session import session
from tidelog.spark.shard_frame import quoted

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",  # ${env:NAME} reads the environment.
    "spark.sql.runSQLOnFiles": "false",  # The plan is checked, too.
}
# PySpark logs each failed query as JSON. The error of the query has the cause.
LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r"\s*SQLSTATE: .*", re.DOTALL)
# Failures of expressions on a row; all others are failures of Spark or of the store.
_OF_A_ROW: Final = (
    base.ArithmeticException,
    base.ArrayIndexOutOfBoundsException,
    base.DateTimeException,
    base.IllegalArgumentException,
    base.NumberFormatException,
    base.SparkRuntimeException,
    base.UnsupportedOperationException,
)

T = TypeVar("T")


@asynccontextmanager
async def answer_on_spark(
    collections: Collections,
    query: str,
    as_of: When | None = None,
    *,
    wait: bool = False,
    timeout_us: int | None = None,
    rows_max: int | None = None,
    spark: SparkSession | None = None,
) -> AsyncGenerator[SqlAnswer, None]:
    """Run a query in Spark's dialect; see `tidelog.collection.sql.answer`.

    ``spark`` is the active session by default, or one that this call starts and leaves open.
    Spark computes and sends at most ``rows_max`` rows to the driver.

    Raises:
        LocationError: Spark or the store failed. All errors of `answer`.
    """
    check_unicode(query)
    patience, clock = checked_patience(wait, timeout_us), collections.clock
    own = await clock.offload(partial(_own_session, spark))
    found = await _called(own, partial(names_of, own, query), clock)
    if found.describes:
        async with answer(collections, query, as_of, wait=wait, timeout_us=timeout_us) as told:
            yield told
        return
    tables = TablesUsed(found.names, frozenset(), lists_all=False)
    read, _ = await opened_tables(collections, tables)
    time, later = await common_time(read, as_of, patience)
    for each in at_time(read, time):
        selection = ALL_ROWS.check(each.schema)
        frame = await frame_of_contents(own, each, selection, time or 0)
        frame.createOrReplaceTempView(quoted(each.name))
    table = await _called(own, partial(_table_of, own, query, rows_max), clock)
    yield SqlAnswer(schema=table.schema, as_of=time, later=later, batches=_batches(table))


def _own_session(spark: SparkSession | None) -> SparkSession:
    found = spark or session()
    live_context(found)
    own = found.newSession()
    for name, value in SETTINGS.items():
        own.conf.set(name, value)
    return own


async def _called(spark: SparkSession, work: Callable[[], T], clock: Clock) -> T:
    """Run work on Spark in a thread.

    Raises:
        UsageError: the query is invalid, or fails on a row.
        LocationError: Spark or the store failed.
    """

    def told() -> T:
        try:
            with _quiet():
                return work()
        except (PySparkException, Py4JError) as error:
            raise refusal(error) from error

    return await run_job(spark.sparkContext, told, clock=clock, what="the query")


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop PySpark's log records about failed queries in this thread."""
    thread = threading.get_ident()

    def is_of_another(record: logging.LogRecord) -> bool:
        return record.thread != thread

    loggers = [PySparkLogger.getLogger(name) for name in LOGGERS]
    for each in loggers:
        each.addFilter(is_of_another)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(is_of_another)


def refusal(error: Exception) -> TidelogError:
    """Return our error for one of Spark. Pure."""
    cause = describe_failure(str(error))
    text = _STATE.sub("", _CONDITION.sub("", cause)).rstrip(".")
    if isinstance(error, ParseException):
        return UsageError(
            f"the query is invalid: {text}; pass one query in Spark's dialect, and write a name "
            "that is a word of SQL in backquotes: `at`"
        )
    if isinstance(error, AnalysisException):
        return UsageError(f"the query is invalid: {text}")
    if isinstance(error, base.PySparkTypeError):
        return UsageError(f"the query fails: {text}; cast the column, for example to STRING")
    if isinstance(error, _OF_A_ROW) and "[TIDELOG_" not in cause:
        return UsageError(f"the query fails: {text}")
    kind = CorruptionError if "[TIDELOG_CORRUPTION_ERROR]" in cause else LocationError
    return kind(f"Spark did not finish the query: {text}")


def _table_of(spark: SparkSession, query: str, rows_max: int | None) -> pa.Table:
    frame = spark.sql(query)
    return _plain((frame if rows_max is None else frame.limit(rows_max)).toArrow())


def _plain(table: pa.Table) -> pa.Table:
    """Return a table without Spark's notes about its columns."""
    fields = [pa.field(each.name, each.type) for each in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


async def _batches(table: pa.Table) -> AsyncGenerator[pa.RecordBatch, None]:
    for batch in table.to_batches():
        yield batch
