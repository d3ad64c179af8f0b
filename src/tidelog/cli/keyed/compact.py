"""``tidelog keyed compact``: move records from loose fragments into sorted runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, on_location
from tidelog.cli.engine_choice import Conf, Master, check_engine, parse_conf
from tidelog.cli.keyed.opened import KeyedName, check_keyed, closing
from tidelog.cli.output import choose_format, count_text, print_json, say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.location import Location


def compact(
    context: typer.Context,
    name: KeyedName,
    *,
    everything: Annotated[
        bool,
        typer.Option("--everything", help="Move all records, also those that are not due yet."),
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|local|spark",
            help="spark: merge large runs in Spark tasks. local: merge all runs in this process. "
            "auto: spark with --master or --conf, else local.",
        ),
    ] = "auto",
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Move records from the log into sorted runs.

    Each sealed segment becomes one run. Any process may run the command, also while another process
    writes.
    """
    check_keyed(name)
    settings = parse_conf(conf or [])
    on_spark = check_engine(engine, master=master, conf=conf or []) == "spark"

    async def work(location: Location) -> int:
        async with closing(await location.keyed.open(name)) as log:
            if not on_spark:
                return await log.compact(everything=everything)
            async with _spark(location, master, settings) as spark:
                return await log.compact(everything=everything, spark=spark)

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json({"log": name, "runs": found})
    else:
        say(f"{count_text(found, 'run')} written" if found else "Nothing to compact.")


@asynccontextmanager
async def _spark(
    location: Location, master: str | None, conf: Mapping[str, str]
) -> AsyncIterator[SparkSession]:
    from tidelog.cli.late_spark import LateSession

    session = LateSession(master=master, conf=conf)
    try:
        yield await location.clock.offload(session.start)
    finally:
        await session.close()
