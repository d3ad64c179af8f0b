"""``tidelog source``: create, list, describe, alter and drop sources, their status, lost files."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli import source_options as options
from tidelog.cli.alter import alter_source
from tidelog.cli.command import (
    AsJson,
    SourceName,
    Yes,
    ask_first,
    group,
    location_url,
    on_location,
    readers_in,
    readers_text,
)
from tidelog.cli.output import (
    Column,
    say,
    show,
    show_list,
)
from tidelog.cli.source_check import check_source
from tidelog.cli.source_description import (
    SourceFacts,
    describe_source,
    source_fields,
    status_fields,
    status_object,
    times_from,
)
from tidelog.cli.source_options import (
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
from tidelog.core.arguments import split_names

if TYPE_CHECKING:
    from tidelog.collection.catalog.catalog import SourceInfo
    from tidelog.collection.spec_types import SourceSpec
    from tidelog.location import Location

app = group("Create, list, describe, watch, alter, unblock and drop sources.")


@app.command("create", epilog="The command creates the location if that does not exist.")
def create(
    context: typer.Context,
    name: SourceName,
    *,
    files: options.Files = None,
    log: options.Log = None,
    generator: options.Generator = None,
    collection: options.Collection = None,
    kafka: options.Kafka = None,
    topic: options.Topic = None,
    column: options.TextColumn = None,
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
    avro_schema: options.AvroSchema = None,
    shards: options.Shards = 1,
    delimiter: Delimiter = None,
    quote: Quote = None,
    null: Null = None,
    date_format: DateFormat = None,
    timestamp_format: TimestampFormat = None,
    header: Header = None,
    multiline: Multiline = None,
    ignore_case: options.IgnoreCase = False,
    evolve: options.Evolve = False,
    keep_bindings: options.KeepBindings = None,
    include: options.Include = None,
    as_json: AsJson = False,
) -> None:
    """Create a source and its collection, and show their columns."""
    inputs = {"files": files, "log": log, "kafka": kafka, "generator": generator}
    inputs |= {"collection": collection, "kind": kind}
    read, settings = options.what_is_read(inputs, setting, column=column, topics=topic)
    form: dict[str, Any] = {"delimiter": delimiter, "quote": quote, "null": null, "header": header}
    form |= {"multiline": multiline, "date_format": date_format}
    spec = options.spec_type()(
        name=name,
        files=tuple(files or ()),
        kind=read,
        settings=settings,
        format=format,
        envelope=envelope,
        key=tuple(column for part in key or () for column in split_names(part)),
        time_column=time_column,
        time_unit=time_unit,
        max_ahead=max_ahead,
        lateness=lateness,
        retain=retain,
        delete_when=delete_when,
        schema=schema,
        avro_schema=options.avro_schema_in(avro_schema),
        shards=shards,
        csv=csv_options(**form, timestamp_format=timestamp_format),
        ignore_case=ignore_case,
        evolve=evolve,
        keep_bindings=keep_bindings,
        include=tuple(column for part in include or () for column in split_names(part)),
    )
    _show_created(*asyncio.run(_create(location_url(context), spec)), as_json=as_json)


def _show_created(found: SourceFacts, remarks: list[str], *, as_json: bool) -> None:
    show(found.to_dict(), _created_text(found), as_json=as_json, is_said=True)
    for remark in remarks:
        say(remark)


def _created_text(found: SourceFacts) -> str:
    name, dialect = found.info.name, found.info.dialect
    lines = [f"Created the source {name!r}, and the collection that it feeds, with these columns:"]
    lines += [f"  {line}" for line in found.schema_lines]
    if dialect is not None:
        lines.append(f"Form of its csv: {csv_text(dialect)}")
    return "\n".join([*lines, f"Fill it with: tidelog ingest {name}"])


@app.command("list")
def list_sources(context: typer.Context, as_json: AsJson = False) -> None:
    """List the sources."""
    columns: tuple[Column[SourceFacts], ...] = (
        Column("name", lambda one: one.info.name),
        Column("format", lambda one: one.info.format),
        Column("envelope", lambda one: one.info.envelope),
        Column("key", lambda one: ", ".join(one.info.key) or "none"),
        Column("times from", lambda one: times_from(one.info)),
        Column("reads", lambda one: one.reads),
    )
    show_list(
        on_location(context, _describe_all),
        columns,
        fields=SourceFacts.to_dict,
        as_json=as_json,
        none_yet="No sources yet. Create one: tidelog source create NAME --files FILES",
    )


@app.command("describe")
def describe(context: typer.Context, name: SourceName, as_json: AsJson = False) -> None:
    """Show a source: its input, format, key, times and schema."""

    async def work(location: Location) -> SourceFacts:
        return describe_source(location, *await location.sources.find(name))

    found = on_location(context, work)
    show(found.to_dict(), source_fields(found), as_json=as_json)


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

    The status shows the input that is left, the counts of late and bad rows, and the result of the
    last run.
    """
    found = on_location(context, lambda location: location.sources.status(name))
    show(status_object(found), status_fields(found), as_json=as_json)
    run = found.run
    if check and (found.trouble or (run is not None and (run.error or run.waiting))):
        raise typer.Exit(1)


app.command("check")(check_source)
app.command("alter")(alter_source)


@app.command("skip")
def skip(
    context: typer.Context,
    name: SourceName,
    path: Annotated[
        str,
        typer.Argument(metavar="PATH", help="The file, or the log or other path, as in the error."),
    ],
    as_json: AsJson = False,
) -> None:
    """Continue without rows that were lost before their commit.

    These are rows of a file that disappeared after they got a time, or collected records of a log.
    Committed rows stay. The lost rows become one bad row, with their addresses. Later rows are
    ingested. The command skips only rows that stop the source.
    """
    on_location(context, lambda location: location.sources.skip(name, path))
    told = f"Skipped {path!r} of the source {name!r}. Continue: tidelog ingest {name}"
    show({"name": name, "path": path, "skipped": True}, told, as_json=as_json, is_said=True)


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
    told = f"Removed {'the reports about those files' if paths else 'all reports'} of {name!r}."
    fields = {"name": name, "paths": paths or [], "acknowledged": True}
    show(fields, told, as_json=as_json, is_said=True)


@app.command("drop")
def drop(
    context: typer.Context,
    name: SourceName,
    *,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Drop a source, and the collection that it feeds, for good.

    The source's own files do not change. The rows become unreadable. 'tidelog collect' deletes
    their bytes.
    """
    readers = on_location(context, lambda location: readers_in(location, name))
    if not yes:
        ask_first(
            lambda: (
                f"Drop the source {name!r}, and its collection with all history?"
                f"{readers_text(readers)}"
            ),
            deed="drop the source",
        )
    on_location(context, lambda location: location.sources.drop(name))
    told = f"Dropped the source {name!r} and its collection.{readers_text(readers)}"
    fields = {"name": name, "dropped": True, "read_by": readers}
    show(fields, told, as_json=as_json, is_said=True)


async def _create(url: str, spec: SourceSpec) -> tuple[SourceFacts, list[str]]:
    from tidelog.collection.create import resolve_spec
    from tidelog.core.clock import SystemClock
    from tidelog.location import open_location

    if spec.kind == "collection":
        spec.check()
        location = await open_location(url)
        info = await location.sources.create(spec)
        _, rendition = await location.sources.find(spec.name)
        return describe_source(location, info, rendition), []
    # Check the source before the location is created, so that a mistake creates nothing.
    resolved = await resolve_spec(spec, location_url=url, clock=SystemClock())
    location = await open_location(url, create=True)
    info = await location.sources.add(*resolved)
    return describe_source(location, info, resolved[1]), await _remarks(location, spec, info)


async def _remarks(location: Location, spec: SourceSpec, info: SourceInfo) -> list[str]:
    """Return remarks on places without files, and on types that are not preserved."""
    from tidelog.collection.formats.packed.packed import BINARY_FORMATS
    from tidelog.collection.source.files import FilesSource
    from tidelog.collection.source.files_head import empty_places
    from tidelog.collection.source.infer import typed_remarks
    from tidelog.errors import TidelogError
    from tidelog.store.urls import without_secrets

    is_inferred = info.format in BINARY_FORMATS and spec.schema is None
    if len(spec.places) < 2 and not is_inferred:
        return []
    try:
        source = (await location.sources.ingester(spec.name)).source
        if not isinstance(source, FilesSource):
            return []
        entries = list((await source.head()).entries)
        found = []
        if is_inferred and entries:
            found = await typed_remarks(entries, source.store, format=info.format)
    except TidelogError:
        return []  # The source exists, and 'source status' reports the error.
    if len(spec.places) > 1:
        places = [*map(without_secrets, spec.places)]
        found += [
            f"No files at {place} yet: if it is mistyped, drop the source and create it again"
            for place in empty_places(places, info.patterns, entries)
        ]
    return found


async def _describe_all(location: Location) -> list[SourceFacts]:
    catalog = await location.controller.catalog()
    return [
        describe_source(location, info, catalog.renditions[info.rendition])
        for _, info in sorted(catalog.sources.items())
    ]
