"""``tidelog compact``: merge the batches of collections and shards, and compact keyed logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.engine_choice import Conf, Master, check_engine, parse_conf
from tidelog.cli.maintenance import (
    Follow,
    LogTarget,
    TargetNames,
    Turn,
    Wait,
    again_and_again,
    maintenance_targets,
)
from tidelog.cli.output import bytes_text, count_text, is_json, print_json, say

if TYPE_CHECKING:
    from tidelog.collection.maintenance import GroupCompaction
    from tidelog.location import Location
    from tidelog.persist.maintenance.merger import Merger


def compact(
    context: typer.Context,
    names: TargetNames = None,
    *,
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="Merge all batches of each shard into one, and erase expired rows. By default, "
            "merge only groups of many batches of similar size.",
        ),
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|local|spark",
            help="spark: run merges of 64 MiB or more in Spark's executors. local: run all merges "
            "in this process. auto: spark with --master or --conf, else local.",
        ),
    ] = "auto",
    master: Master = None,
    conf: Conf = None,
    follow: Follow = False,
    interval: Wait = 60.0,
    as_json: AsJson = False,
) -> None:
    """Merge the batches of collections and shards, so that reads open fewer objects.

    The contents at every readable time stay the same. A merge drops rows that were deleted before
    the earliest readable time, and writes new objects. tidelog collect deletes the old objects an
    hour later. In keyed logs, the command compacts new records into runs, and drops the segments
    that the retention does not keep.
    """
    settings = parse_conf(conf or [])
    on_spark = check_engine(engine, master=master, conf=conf or []) == "spark"

    async def work(location: Location) -> None:
        async with _merger(location, on_spark, master, settings) as merger:

            async def once(location: Location, turn: Turn) -> None:
                groups, logs = await maintenance_targets(location, names or ())
                done = partial(location.maintenance.compact, full=full, merger=merger)
                async for one in turn.each(groups, done):
                    shown = one.done.merges > 0 or not follow
                    if as_json or (shown and is_json(as_json=False)):
                        print_json(_object(one))
                    if shown and not as_json:
                        say(_line(one))
                async for log in turn.each(logs, partial(_compact_logs, everything=full)):
                    shown = log.runs > 0 or log.retired > 0 or not follow
                    if as_json or (shown and is_json(as_json=False)):
                        print_json({"name": log.name, "runs": log.runs, "retired": log.retired})
                    if shown and not as_json:
                        say(_log_line(log))

            await again_and_again(location, once, follow, interval)

    on_location(context, work)


@dataclass(frozen=True, slots=True)
class _LogCompaction:
    """The numbers of runs written and of segments retired in one keyed log."""

    name: str
    runs: int
    retired: int


async def _compact_logs(
    logs: Sequence[LogTarget], *, everything: bool
) -> AsyncIterator[_LogCompaction]:
    for one in logs:
        async with one.opened() as log:
            runs = await log.compact(everything=everything)
            yield _LogCompaction(one.name, runs, await log.retire())


@asynccontextmanager
async def _merger(
    location: Location, on_spark: bool, master: str | None, conf: Mapping[str, str]
) -> AsyncGenerator[Merger, None]:
    from tidelog.persist.maintenance.compactor import HERE

    if not on_spark:
        yield HERE
        return
    from tidelog.cli.late_spark import LateMerger, LateSession

    session = LateSession(master=master, conf=conf)
    try:
        yield LateMerger(location, session)
    finally:
        await session.close()


def _object(one: GroupCompaction) -> dict[str, Any]:
    done = one.done
    return {
        "name": one.name,
        "merges": done.merges,
        "overtaken": done.overtaken,
        "updates_read": done.rows_read,
        "updates_written": done.rows_written,
        "bytes_read": done.bytes_read,
        "bytes_written": done.bytes_written,
        "batches": one.batches,
    }


def _log_line(one: _LogCompaction) -> str:
    told = f"{count_text(one.runs, 'run')} written" if one.runs else "nothing to compact"
    return f"{one.name}: {told}" + (
        f", {count_text(one.retired, 'segment')} retired" if one.retired else ""
    )


def _line(one: GroupCompaction) -> str:
    done, has = one.done, "1 batch" if one.batches == 1 else f"{one.batches:,} batches"
    if not done.merges:
        return f"{one.name}: nothing to merge, {has}"
    return (
        f"{one.name}: {count_text(done.merges, 'merge')} of "
        f"{count_text(done.rows_read, 'update')} to {done.rows_written:,}, "
        f"{bytes_text(done.bytes_read)} to {bytes_text(done.bytes_written)}; {has} now"
    )
