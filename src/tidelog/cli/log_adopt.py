"""``tidelog log adopt``: logs as Chroma's wal3 writes them, taken in, and given back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.command import AsJson, location_url, on_location
from tidelog.cli.log import check_start
from tidelog.cli.log_shelf import check_log, range_text
from tidelog.cli.output import choose_format, print_json, say
from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.location import Location


def adopt(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            metavar="PLACE|NAME",
            help="Where wal3 wrote a log: a path, file://, s3://, ...; with --to, a log's name.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="What to call it; by default as the place ends."),
    ] = None,
    *,
    to: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="The other way: copy the log NAME there, for wal3."),
    ] = None,
    start: Annotated[
        int, typer.Option("--from", metavar="POSITION", help="With --to: the first record.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Copy a log that Chroma's wal3 wrote, and its cursors, into the location as the log NAME.

    With --to, a log of either protocol is copied to a place as wal3 reads it. The source stays.
    """
    if to is not None:
        _export(context, source, name, to, start, as_json=as_json)
        return
    if start:
        raise UsageError("--from belongs to --to: what wal3 wrote is adopted whole")
    called = name or _name_of(source)
    check_log(called)
    check_place(source)
    url = location_url(context)
    found = asyncio.run(_adopt(url, source, called))
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        say(f"The log {called!r} is adopted: {range_text(found)}.")


def _export(
    context: typer.Context, source: str, name: str | None, to: str, start: int, *, as_json: bool
) -> None:
    if name is not None:
        raise UsageError(f"with --to, one log is named, and {name!r} is too much")
    check_start(start)
    check_log(source)
    check_place(to)

    async def work(location: Location) -> dict[str, Any]:
        from tidelog.clock import SystemClock
        from tidelog.store.urls import open_store
        from tidelog.wal.logs import open_log

        await location.export_log(source, to, start=start)
        # What was written is read back: by its bounds one sees what is there.
        store, clock = open_store(to, clock=location.clock), SystemClock()
        made = await open_log(store, name=source, clock=clock, writer="")
        return {**await made.describe(), "to": to.partition("?")[0]}

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        say(f"The log {source!r} lies at {found['to']} as wal3 reads it: {range_text(found)}.")


async def _adopt(url: str, source: str, name: str) -> dict[str, Any]:
    from tidelog.clock import SystemClock
    from tidelog.location import open_location
    from tidelog.store.urls import open_store
    from tidelog.wal.read.head import load_head, refuse_slots

    # A location is made for what can be adopted only.
    refuse_slots((await load_head(open_store(source, clock=SystemClock()))).manifest)
    location = await open_location(url, create=True)
    return await (await location.adopt_log(source, name)).describe()


def check_place(url: str) -> None:
    """Refuse a place that cannot be, or would end with the command.

    Raises:
        UsageError: so it is.
    """
    from tidelog.clock import SystemClock
    from tidelog.store.urls import open_store

    if url.lower().startswith("memory:"):
        raise UsageError("memory:// ends with the command: use a path, file:// or s3://")
    open_store(url, clock=SystemClock())


def _name_of(place: str) -> str:
    from tidelog.store.urls import split_query

    name = split_query(place)[0].rstrip("/").rpartition("/")[2]
    if not name or name.endswith(":"):
        raise UsageError(f"{place} does not end in a name: write one after it")
    return name
