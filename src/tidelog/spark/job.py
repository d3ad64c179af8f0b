"""Spark jobs that the driver's event loop starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidelog.core.clock import Clock, offload_waiting
from tidelog.errors import LocationError, TidelogError, UsageError
from tidelog.spark.failure import describe_failure
from tidelog.spark.ship import is_connect

T = TypeVar("T")


def live_context(spark: SparkSession) -> SparkContext:
    """Return the context of a session.

    Raises:
        LocationError: the session was stopped. NOT_APPLIED.
        UsageError: it is a session of Spark Connect, which has no context. NOT_APPLIED.
    """
    if is_connect(spark):
        raise UsageError(
            "this needs Spark's RDDs, which Spark Connect lacks: use a session in the driver's "
            "own process"
        )
    context = spark.sparkContext
    if context._jsc is None:
        raise LocationError("the Spark session was stopped: start a new one")
    return context


class TaskTags(Protocol):
    """Tags for the jobs that a thread starts, by which another thread can cancel them."""

    def addJobTag(self, tag: str) -> None: ...  # noqa: N802  The name in SparkContext.

    def removeJobTag(self, tag: str) -> None: ...  # noqa: N802

    def cancelJobsWithTag(self, tag: str) -> None: ...  # noqa: N802


async def run_job(tags: TaskTags, work: Callable[[], T], *, clock: Clock, what: str) -> T:
    """Run work that starts Spark jobs, in a thread; cancelling the wait cancels the jobs.

    Raises:
        LocationError: Spark failed.
    """
    tag = f"tidelog-{clock.unique()}"

    def tagged() -> T:
        try:
            tags.addJobTag(tag)
            try:
                return work()
            finally:
                tags.removeJobTag(tag)
        except (Py4JError, PySparkException) as error:
            raise LocationError(
                f"Spark did not finish {what}: {describe_failure(str(error))}"
            ) from error

    try:
        return await offload_waiting(tagged, clock)
    except asyncio.CancelledError:
        tags.cancelJobsWithTag(tag)
        raise


def portable(error: TidelogError) -> TidelogError:
    """Return an error of a task in a form that the driver can unpickle.

    A fact that cannot be pickled would raise its own error in the driver, and hide this one.
    """
    error.facts = {
        name: fact if isinstance(fact, str | int) else str(fact)
        for name, fact in error.facts.items()
    }
    return error
