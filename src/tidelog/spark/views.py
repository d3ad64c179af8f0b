"""Views of the collections of a location in Spark's SQL, all as of one time.

Source: design page 6, "Reading on Spark".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from tidelog.blocking import location as blocking
from tidelog.blocking.portal import Portal
from tidelog.collection.following import checked_patience
from tidelog.collection.sql import at_time, common_time
from tidelog.core.arguments import check_names
from tidelog.errors import UsageError
from tidelog.location import Location, open_location
from tidelog.persist.read.selection import ALL_ROWS
from tidelog.spark.collection_frame import frame_of_contents
from tidelog.spark.datasource import register_source
from tidelog.spark.shard_frame import quoted

if TYPE_CHECKING:
    import os

    from pyspark.sql import SparkSession

    from tidelog.collection.collection import Collection
    from tidelog.collection.formats.times import When


@overload
def register(spark: SparkSession) -> None: ...


@overload
def register(
    spark: SparkSession,
    lake: blocking.Location | Location | str | os.PathLike[str],
    as_of: When | None = None,
    *,
    names: Sequence[str] | None = None,
    hold: str | None = None,
) -> int | None: ...


def register(
    spark: SparkSession,
    lake: blocking.Location | Location | str | os.PathLike[str] | None = None,
    as_of: When | None = None,
    *,
    names: Sequence[str] | None = None,
    hold: str | None = None,
) -> int | None:
    """Register ``format("tidelog")`` with a session, and views of the collections of a location.

    Each collection of ``lake``, or each one in ``names``, gets a temporary view of its name. All
    views show one time, which the call returns: ``as_of``, or by default the newest time at which
    all of them are complete. Later commits do not change the views: call again for a newer time.
    Without ``lake``, no view is made. ``hold`` keeps the time readable for a duration, such as
    "6h"; otherwise parts that a merge replaces are kept for one hour.

    Spark finds the source by itself only if ``PYSPARK_PYTHON`` names a Python that has tidelog.
    Without that variable, the workers of a local session run this process's Python after this
    call. The driver sends this tidelog to the executors of a cluster; they need its dependencies
    (docs/guides/cluster.md).

    Raises:
        NoSuchLocation, NoSuchCollection: the location or a collection does not exist.
        AsOfBeforeSince, AsOfNotComplete: a collection is not readable at the time.
        UsageError: two names differ only in case; or the store is this process's memory.
        LocationError: the store failed.
    """
    register_source(spark)
    if lake is None:
        return None
    portal = Portal()
    try:
        opened, time = portal.run(_opened(_url_of(lake), as_of, names))
        for each in opened:
            selection = ALL_ROWS.check(each.schema)
            frame = portal.run(frame_of_contents(spark, each, selection, time, hold=hold))
            frame.createOrReplaceTempView(quoted(each.name))
    finally:
        portal.close()
    return time if opened else None


def _url_of(lake: blocking.Location | Location | str | os.PathLike[str]) -> str:
    if isinstance(lake, blocking.Location):
        lake = lake._inner
    return lake.executor_url if isinstance(lake, Location) else str(lake)


async def _opened(
    url: str, as_of: When | None, names: Sequence[str] | None
) -> tuple[list[Collection], int]:
    """Open collections, and choose the common time."""
    location = await open_location(url)
    collections = location.collections
    catalog = await collections.controller.catalog()
    wanted = sorted(catalog.collections) if names is None else check_names(names, "names")
    if len({str(name).lower() for name in wanted}) < len(wanted):
        raise UsageError(
            "Spark ignores the case of names, and two of the collections differ only in case: "
            "pass names= with one of them",
            names=wanted,
        )
    opened = [collections.opened(catalog, str(name)) for name in wanted]
    time, _ = await common_time(opened, as_of, checked_patience(False, None))
    return at_time(opened, time), time or 0
