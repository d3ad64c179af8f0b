"""``tidelog rendition``: create, list, compare and drop renditions; and ``collection handover``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli import source_options as options
from tidelog.cli.command import (
    AsJson,
    Timeout,
    Wait,
    Yes,
    ask_first,
    group,
    on_location,
    timeout_us_of,
    with_options,
)
from tidelog.cli.output import Column, Field, print_fields, say, show, show_list, when_text
from tidelog.cli.source_options import DateFormat, Delimiter, Null, Quote, TimestampFormat
from tidelog.cli.writers import Destination, Format, Limit, Output, write_all
from tidelog.core.arguments import split_names

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa

    from tidelog.collection.rendition_spec import RenditionSpec
    from tidelog.collection.renditions import RenditionChange, RenditionFacts
    from tidelog.location import Location

app = group("Create, list, compare and drop renditions: versions of a collection.")

Of = Annotated[str, typer.Argument(metavar="COLLECTION", help="The name of the collection.")]
RenditionName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the rendition.")]
# Without these options, the new rendition is as the one that readers read.
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMNS", help="'flight int, day date'; by default the columns do not change."
    ),
]
Shards = Annotated[int | None, options.SHARDS]
Envelope = Annotated[str | None, options.ENVELOPE]
TimeUnit = Annotated[str | None, options.TIME_UNIT]
MaxAhead = Annotated[str | None, options.MAX_AHEAD]
Lateness = Annotated[str | None, options.LATENESS]


@app.command("create")
def create(
    context: typer.Context,
    name: RenditionName,
    *,
    of: Annotated[
        str, typer.Option(metavar="COLLECTION", help="The collection of which it is a version.")
    ],
    shards: Shards = None,
    schema: Columns = None,
    envelope: Envelope = None,
    key: options.Key = None,
    delete_when: options.DeleteWhen = None,
    time_column: options.TimeColumn = None,
    time_unit: TimeUnit = None,
    max_ahead: MaxAhead = None,
    lateness: Lateness = None,
    delimiter: Delimiter = None,
    quote: Quote = None,
    null: Null = None,
    date_format: DateFormat = None,
    timestamp_format: TimestampFormat = None,
    copy: Annotated[
        bool,
        typer.Option(
            "--copy",
            help="Copy the rows of the rendition that readers read, instead of reading the source "
            "again. Only --shards can be given, too.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a rendition of a collection, next to the one that readers read.

    An option that is left out keeps the value of that rendition. The new rendition is empty:
    'tidelog ingest NAME' fills it from the source, and 'tidelog read NAME' shows its rows. If the
    source keeps its bindings, the rendition gets the same data at the same times. With --copy,
    'tidelog ingest NAME' first copies all rows, so the source may have lost them.
    """
    from tidelog.collection.rendition_spec import RenditionSpec

    spec = RenditionSpec(
        name=name,
        shards=shards,
        schema=schema,
        envelope=envelope,
        key=None if key is None else tuple(one for part in key for one in split_names(part)),
        delete_when=delete_when,
        time_column=time_column,
        time_unit=time_unit,
        max_ahead=max_ahead,
        lateness=lateness,
        csv=options.csv_options(
            delimiter=delimiter,
            quote=quote,
            null=null,
            date_format=date_format,
            timestamp_format=timestamp_format,
        ),
        copy=copy,
    )
    found, why = on_location(context, lambda location: _create(location, spec, of))
    told = f"Created the rendition {name!r} of {of!r}. Fill it with: tidelog ingest {name}"
    if why is not None:
        told += f"\nIt has times of its own, because {why}."
    show(asdict(found), told, as_json=as_json, is_said=True)


async def _create(
    location: Location, spec: RenditionSpec, of: str
) -> tuple[RenditionFacts, str | None]:
    """Create a rendition; return it, and why it has times of its own, if it has."""
    from tidelog.collection.rendition_spec import why_own_bindings

    found = await location.renditions.create(spec, of=of)
    if found.shares_bindings:
        return found, None
    (active,) = [one for one in await location.renditions.list(of) if one.active]
    catalog = await location.controller.catalog()
    new, old = catalog.renditions[found.id], catalog.renditions[active.id]
    info, base = catalog.feeder(new.id), catalog.feeder(old.id)
    is_same = new.schemas == old.schemas
    why = why_own_bindings(info, base, old, is_same=is_same)
    return found, why and with_options(why, _OF_BINDINGS)


_OF_BINDINGS = (
    *("--keep-bindings", "--time-column", "--time-unit", "--max-ahead", "--lateness"),
    "--quote",
)


@app.command("list")
def list_renditions(context: typer.Context, name: Of, as_json: AsJson = False) -> None:
    """List the renditions of a collection, oldest first."""
    columns: tuple[Column[RenditionFacts], ...] = (
        Column("name", lambda one: one.name),
        Column("shards", lambda one: str(one.shards), right=True),
        Column("read from", _read_from, whole=True),
        Column("read before", lambda one: when_text(one.ends, ""), whole=True),
        Column("complete to", _complete, whole=True),
        Column("state", _state),
    )
    show_list(
        on_location(context, lambda location: location.renditions.list(name)),
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet=f"{name!r} has no renditions.",
    )


@app.command("describe")
def describe(context: typer.Context, name: RenditionName, as_json: AsJson = False) -> None:
    """Show a rendition: its shards, its times, and the times at which readers read it."""
    found = on_location(context, lambda location: location.renditions.describe(name))
    fields: list[Field] = [
        ("name", found.name),
        ("collection", found.collection),
        ("state", _state(found)),
        ("shards", str(found.shards)),
        ("copied from", _copied_from(found)),
        ("bindings", "shared with other renditions" if found.shares_bindings else "its own"),
        ("since", when_text(found.since, "never")),
        ("complete to", _complete(found)),
        ("read from", _read_from(found)),
        ("read before", when_text(found.ends, "no end yet")),
    ]
    show(asdict(found), lambda: print_fields(fields), as_json=as_json)


@app.command("history")
def history(context: typer.Context, name: Of, as_json: AsJson = False) -> None:
    """Show when readers began (+1) and ceased (-1) to read each rendition.

    The last line, on standard error, names a time. No change before it can still be added.
    """
    found, upper = on_location(context, lambda location: location.renditions.history(name))
    columns: tuple[Column[RenditionChange], ...] = (
        Column("rendition", lambda one: one.rendition),
        Column("time", lambda one: when_text(one.time, ""), whole=True),
        Column("diff", lambda one: f"{one.diff:+d}", right=True),
    )
    show_list(found, columns, fields=asdict, as_json=as_json, none_yet="")
    say(
        "No other change can follow."
        if upper is None
        else f"No other change comes before {when_text(upper, '')}."
    )


@app.command("diff")
def diff(
    context: typer.Context,
    first: Annotated[str, typer.Argument(metavar="A", help="The name of a rendition.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The name of another one.")],
    *,
    as_of: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Compare up to this time. The default is the newest time complete in both.",
        ),
    ] = None,
    limit: Limit = None,
    format: Format = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Print the updates in which two renditions differ, in the order of their times.

    For inserted rows, _diff is 1 if only B has the row, and -1 if only A has it. Nothing is printed
    if they are equal. Bad rows are not compared.
    """
    to = Destination(format, output, as_json=as_json, columns=None, where=None, limit=limit)

    async def work(location: Location) -> None:
        renditions = location.renditions
        until: str | int | None = as_of
        if until is None:  # So that the message can name the time.
            uppers = [(await renditions.describe(one)).upper for one in (first, second)]
            until = min((one - 1 for one in uppers if one), default=None) if all(uppers) else None
        found = await renditions.diff(first, second, as_of=until)

        async def rows() -> AsyncGenerator[pa.Table, None]:
            yield found.slice(0, to.limit)

        when = when_text(until, "their end") if isinstance(until, int) or until is None else until
        told = f"in which {first!r} and {second!r} differ, up to {when}"
        schema = found.schema
        await write_all(rows(), schema, to, clock=location.clock, unit="update", told=told)

    on_location(context, work)


@app.command("drop")
def drop(
    context: typer.Context, name: RenditionName, *, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Drop a rendition for good, if readers do not read it at the newest time.

    All times before the end of a former rendition become unreadable. A hold on such a time
    prevents the drop: 'tidelog hold list COLLECTION' shows its purpose.
    """
    if not yes:
        ask_first(
            lambda: f"Drop the rendition {name!r}, and the times at which readers read it?",
            deed="drop the rendition",
        )
    on_location(context, lambda location: location.renditions.drop(name))
    fields = {"name": name, "dropped": True}
    show(fields, f"Dropped the rendition {name!r}.", as_json=as_json, is_said=True)


def hand_over(
    context: typer.Context,
    name: Of,
    *,
    to: Annotated[str, typer.Option(metavar="NAME", help="The rendition to read from then on.")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="The first time at which readers read it. The default is the first time that is "
            "not complete in the rendition that they read now.",
        ),
    ] = None,
    wait: Wait = False,
    timeout: Timeout = None,
    as_json: AsJson = False,
) -> None:
    """Let all readers of a collection read another rendition, from one time on.

    No row is lost or doubled. In the new rendition, all times before that time must be complete. In
    the former one, the time itself must not be complete, so no reader has read it. If a condition
    does not hold, the command fails and names it. With --wait, it waits.
    """
    timeout_us = timeout_us_of(timeout)

    async def work(location: Location) -> int:
        return await location.renditions.handover(
            name, to=to, at=at, wait=wait, timeout_us=timeout_us
        )

    time = on_location(context, work)
    told = f"Readers of {name!r} read the rendition {to!r} from {when_text(time, '')} on.\n"
    told += (
        f"They see it once that time is complete: run 'tidelog ingest {name}'. With --time-column, "
        "it waits for later rows."
    )
    show({"name": name, "to": to, "at": time}, told, as_json=as_json, is_said=True)


def _read_from(found: RenditionFacts) -> str:
    if found.begins is None:
        return "not yet"
    return when_text(found.begins, "") if found.begins else "the beginning"


def _copied_from(found: RenditionFacts) -> str:
    if found.copied_from is not None:
        return found.copied_from
    return "a dropped rendition" if found.is_copy else "none: its rows come from the source"


def _complete(found: RenditionFacts) -> str:
    if found.upper is None:
        return "the end"
    return when_text(found.upper - 1, "") if found.upper else "nothing yet"


def _state(found: RenditionFacts) -> str:
    if found.dropping:
        return "being dropped"
    if found.active:
        return "active"
    return "new" if found.begins is None else "former"
