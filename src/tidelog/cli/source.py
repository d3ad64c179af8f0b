"""``tidelog source``: create, list, describe and drop sources, show their status, skip files."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli import source_options as options
from tidelog.cli.collection import schema_lines
from tidelog.cli.command import AsJson, SourceName, ask_first, location_url, on_location
from tidelog.cli.csv_options import (
    DateFormat,
    Delimiter,
    Header,
    Multiline,
    Null,
    Quote,
    TimestampFormat,
    csv_options,
    csv_text,
)
from tidelog.cli.output import (
    Column,
    choose_format,
    is_json,
    print_fields,
    print_json,
    print_listing,
    say,
)
from tidelog.cli.source_description import (
    describe_source,
    reads_text,
    source_fields,
    status_fields,
    status_object,
)

if TYPE_CHECKING:
    from tidelog.collection.catalog.catalog import SourceInfo
    from tidelog.collection.ingest.status import SourceStatus
    from tidelog.collection.spec_types import SourceSpec
    from tidelog.location import Location

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Create, list, describe, watch, unblock and drop sources.",
)


@app.command("create")
def create(
    context: typer.Context,
    name: SourceName,
    *,
    files: options.Files = None,
    log: options.Log = None,
    generator: options.Generator = None,
    kind: options.Kind = None,
    setting: options.Settings = None,
    format: options.Format = None,
    envelope: options.Envelope = "none",
    key: options.Key = None,
    time_column: options.TimeColumn = None,
    time_unit: options.TimeUnit = "ms",
    max_ahead: options.MaxAhead = "1d",
    lateness: options.Lateness = "0s",
    retain: options.Retain = "forever",
    delete_when: options.DeleteWhen = None,
    schema: options.Columns = None,
    shards: options.Shards = 1,
    delimiter: Delimiter = None,
    quote: Quote = None,
    null: Null = None,
    date_format: DateFormat = None,
    timestamp_format: TimestampFormat = None,
    header: Header = None,
    multiline: Multiline = None,
    ignore_case: options.IgnoreCase = False,
    as_json: AsJson = False,
) -> None:
    """Create a source, and the collection that it feeds.

    The command sets the schema and the csv format for good, and shows both. It creates the location
    if that does not exist.
    """
    from tidelog.collection.spec_types import SourceSpec

    read, settings = options.what_is_read(
        files=files, log=log, generator=generator, kind=kind, settings=setting
    )
    spec = SourceSpec(
        name=name,
        files=tuple(files or ()),
        kind=read,
        settings=settings,
        format=format,
        envelope=envelope,
        key=tuple(column.strip() for part in key or () for column in part.split(",")),
        time_column=time_column,
        time_unit=time_unit,
        max_ahead=max_ahead,
        lateness=lateness,
        retain=retain,
        delete_when=delete_when,
        schema=schema,
        shards=shards,
        csv=csv_options(
            delimiter=delimiter,
            quote=quote,
            null=null,
            date_format=date_format,
            timestamp_format=timestamp_format,
            header=header,
            multiline=multiline,
        ),
        ignore_case=ignore_case,
    )
    found, remarks = asyncio.run(_create(location_url(context), spec))
    _show_created(found, remarks, as_json=as_json)


def _show_created(found: dict[str, Any], remarks: list[str], *, as_json: bool) -> None:
    if is_json(as_json=as_json):
        print_json(found)
    if not as_json:
        _tell_columns(found)
    for remark in remarks:
        say(remark)


def _tell_columns(found: dict[str, Any]) -> None:
    name = found["name"]
    say(f"Created the source {name!r}, and the collection that it feeds, with these columns:")
    for line in schema_lines(found["schema"], found["key"]):
        say(f"  {line}")
    if found["csv"] is not None:
        say(f"Form of its csv: {csv_text(found['csv'])}")
    say(f"Fill it with: tidelog ingest {name}")


@app.command("list")
def list_sources(context: typer.Context, as_json: AsJson = False) -> None:
    """List the sources."""
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("name", lambda one: one["name"]),
        Column("format", lambda one: one["format"]),
        Column("envelope", lambda one: one["envelope"]),
        Column("key", lambda one: ", ".join(one["key"]) or "none"),
        Column("times from", lambda one: one["time_column"] or "the clock"),
        Column("reads", reads_text),
    )
    print_listing(
        on_location(context, _describe_all),
        columns,
        fields=dict,
        as_json=as_json,
        none_yet="No sources yet. Create one: tidelog source create NAME --files FILES",
    )


@app.command("describe")
def describe(context: typer.Context, name: SourceName, as_json: AsJson = False) -> None:
    """Show a source: its input, format, key, times and schema."""

    async def work(location: Location) -> dict[str, Any]:
        return describe_source(location, *await location.sources.find(name))

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        print_fields(source_fields(found))


@app.command("status")
def status(
    context: typer.Context,
    name: SourceName,
    *,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Fail (exit status 1) if the last run failed, a file waits, or the source "
            "cannot be read.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the progress of a source.

    The status has the input left, the counts of late and bad rows, and the result of the last run.
    """
    from tidelog.collection.ingest.status import source_status

    async def work(location: Location) -> SourceStatus:
        return await source_status(await location.sources.ingester(name))

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(status_object(found))
    else:
        print_fields(status_fields(found))
    run = found.run
    if check and (found.trouble or (run is not None and (run.error or run.waiting))):
        raise typer.Exit(1)


@app.command("skip")
def skip(
    context: typer.Context,
    name: SourceName,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="The path of the file, as in the error.")
    ],
    as_json: AsJson = False,
) -> None:
    """Skip a file that disappeared after its rows were bound to times.

    Committed rows stay. The bound rows become one bad row. A later file of the same name is
    ingested. The command skips only a file that stops the source.
    """
    on_location(context, lambda location: location.sources.skip_file(name, path))
    if is_json(as_json=as_json):
        print_json({"name": name, "path": path, "skipped": True})
    if not as_json:
        say(f"Skipped the file {path!r} of the source {name!r}. Continue: tidelog ingest {name}")


@app.command("acknowledge")
def acknowledge(
    context: typer.Context,
    name: SourceName,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="The files, as the status names them."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove reports about files from the status of a source; without a PATH, all of them.

    A report stays in the status until then, also after later runs.
    """
    on_location(context, lambda location: location.sources.acknowledge(name, *(paths or [])))
    if is_json(as_json=as_json):
        print_json({"name": name, "paths": paths or [], "acknowledged": True})
    if not as_json:
        say(f"Removed {'the reports about those files' if paths else 'all reports'} of {name!r}.")


@app.command("drop")
def drop(
    context: typer.Context,
    name: SourceName,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop a source, and the collection that it feeds, for good.

    The source's own files do not change. The rows become unreadable. 'tidelog collect' deletes
    their bytes.
    """
    if not yes:
        ask_first(
            lambda: f"Drop the source {name!r}, and its collection with all history?",
            deed="drop the source",
            undone="Nothing was dropped.",
        )
    on_location(context, lambda location: location.sources.drop(name))
    if is_json(as_json=as_json):
        print_json({"name": name, "dropped": True})
    if not as_json:
        say(f"Dropped the source {name!r} and its collection.")


async def _create(url: str, spec: SourceSpec) -> tuple[dict[str, Any], list[str]]:
    from tidelog.collection.create import resolve_spec
    from tidelog.core.clock import SystemClock
    from tidelog.location import open_location

    # Check the source before the location is created, so that a mistake creates nothing.
    resolved = await resolve_spec(spec, location_url=url, clock=SystemClock())
    location = await open_location(url, create=True)
    info = await location.sources.add(*resolved)
    return describe_source(location, info, resolved[1]), await _remarks(location, spec, info)


async def _remarks(location: Location, spec: SourceSpec, info: SourceInfo) -> list[str]:
    """Return remarks on places without files, and on Parquet types that are not preserved."""
    from tidelog.collection.infer import parquet_remarks
    from tidelog.collection.source.files import FilesSource
    from tidelog.collection.source.files_head import empty_places
    from tidelog.errors import TidelogError
    from tidelog.store.urls import without_secrets

    is_inferred = info.format == "parquet" and spec.schema is None
    if len(spec.places) < 2 and not is_inferred:
        return []
    try:
        source = (await location.sources.ingester(spec.name)).source
        if not isinstance(source, FilesSource):
            return []
        entries = list((await source.head()).entries)
        found = await parquet_remarks(entries[0], source.store) if is_inferred and entries else []
    except TidelogError:
        return []  # The source exists, and 'source status' reports the error.
    if len(spec.places) > 1:
        places = [*map(without_secrets, spec.places)]
        found += [
            f"No files at {place} yet: if it is mistyped, drop the source and create it again"
            for place in empty_places(places, info.patterns, entries)
        ]
    return found


async def _describe_all(location: Location) -> list[dict[str, Any]]:
    catalog = await location.controller.catalog()
    return [
        describe_source(location, info, catalog.renditions[info.rendition])
        for _, info in sorted(catalog.sources.items())
    ]
