"""``tidelog source check``: compute rows again, and compare them with the stored ones."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, SourceName, on_location
from tidelog.cli.engine import Conf, LateSession, LateSpark, Master, check_engine, parse_conf
from tidelog.cli.output import count_text, say, say_json, when_text
from tidelog.cli.writers import Destination, Format, Limit, Output, write_all

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa

    from tidelog.collection.ingest.checking import SourceCheck
    from tidelog.location import Location


def check_source(
    context: typer.Context,
    name: SourceName,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Begin at this time. The default is the first one possible."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End at this time. The default is the newest one."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="auto|local|spark",
            help="Where the rows are computed. auto: on Spark with --master or --conf, else local.",
        ),
    ] = "auto",
    master: Master = None,
    conf: Conf = None,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Compute the rows of a source again, and compare them with the stored ones.

    The check reads the same data at the same times as the ingester did. It stops at the first
    difference, prints the rows, and fails (exit status 1). _diff is 1 for a row that only the
    check computed, and -1 for one that only the collection has. Data that are gone cannot be
    checked: a message names the first such file, and the check fails if no row is left to check.
    """
    to = Destination(format, output, as_json=as_json, columns=None, where=None, limit=limit)
    settings = parse_conf(conf or [])
    chosen = check_engine(engine, master=master, conf=conf or [])

    async def work(location: Location) -> SourceCheck:
        session = LateSession(master=master, conf=settings)
        spark = LateSpark(location, say, session) if chosen == "spark" else None
        try:
            found = await location.sources.check(name, since=since, until=until, engine=spark)
        finally:
            await session.close()
        if found.first is not None:
            await _write(found, to, location)
        return found

    found = on_location(context, work)
    if as_json:
        say_json(_summary(found))
    else:
        say(_sentence(name, found))
    if found.first is not None or not found.bindings or (found.unchecked and not found.rows):
        raise typer.Exit(1)


async def _write(found: SourceCheck, to: Destination, location: Location) -> None:
    """Write the differing rows; if only bad rows differ, write those."""
    table = found.differing if found.differing.num_rows else found.differing_errors

    async def rows() -> AsyncGenerator[pa.Table, None]:
        yield table.slice(0, to.limit)

    told = "in which the check and the collection differ"
    await write_all(rows(), table.schema, to, clock=location.clock, unit="update", told=told)


def _summary(found: SourceCheck) -> dict[str, object]:
    return {
        "lower": found.lower,
        "upper": found.upper,
        "bindings": found.bindings,
        "rows": found.rows,
        "first": found.first,
        "differing": found.differing.num_rows,
        "differing_errors": found.differing_errors.num_rows,
        "unchecked": [asdict(one) for one in found.unchecked],
    }


def _sentence(name: str, found: SourceCheck) -> str:
    begin, end = (when_text(time, "the end") for time in (found.lower, found.upper))
    told = (
        f"Computed {count_text(found.rows, 'row')} of {name!r} again, from {begin} to before {end}"
    )
    told += ": all are equal to the stored ones." if found.rows and found.first is None else "."
    if found.unchecked:
        told += (
            f"\nNot checked: {count_text(len(found.unchecked), 'interval')}, the first because "
            f"{found.unchecked[0].reason}"
        )
    if found.first is None:
        return told
    bad = found.differing_errors.num_rows
    return (
        f"{told}\nThe first difference is at {when_text(found.first, '')}: "
        f"{count_text(found.differing.num_rows, 'update')} of rows and {bad} of bad rows.\nIf the "
        "computed rows are right, create a rendition and hand over to it: see 'tidelog rendition "
        "create --help'"
    )
