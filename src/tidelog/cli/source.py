"""``tidelog source``: create, list, describe, ask for the status of, skip files of, and drop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli import source_options as options
from tidelog.cli.collection import schema_lines
from tidelog.cli.command import AsJson, SourceName, location_url, on_location
from tidelog.cli.csv_options import (
    DateFormat,
    Delimiter,
    Header,
    Multiline,
    Null,
    Quote,
    TimestampFormat,
    csv_fields,
    csv_options,
    csv_text,
)
from tidelog.cli.output import (
    Column,
    bytes_text,
    choose_format,
    count_text,
    print_fields,
    print_json,
    print_listing,
    say,
    waiting_lines,
)

if TYPE_CHECKING:
    from tidelog.collection.catalog.catalog import RenditionInfo, SourceInfo
    from tidelog.collection.create import SourceSpec
    from tidelog.collection.ingest.status import SourceStatus
    from tidelog.location import Location

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Create, list, describe, watch, unblock (skip) and drop sources.",
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
    as_json: AsJson = False,
) -> None:
    """Create a source, and the collection that it feeds.

    Fixes the schema, and how csv is read, and shows both. Makes the location if there is none.
    """
    from tidelog.collection.create import SourceSpec

    read, settings = options.what_is_read(
        files=files, log=log, generator=generator, kind=kind, settings=setting
    )
    spec = SourceSpec(
        name=name,
        files=files,
        kind=read,
        settings=settings,
        format=format,
        envelope=envelope,
        key=tuple(column.strip() for part in key or () for column in part.split(",")),
        time_column=time_column,
        time_unit=time_unit,
        max_ahead=max_ahead,
        lateness=lateness,
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
    )
    found = asyncio.run(_create(location_url(context), spec))
    if as_json:
        print_json(found)
    else:
        _tell_created(found)


def _tell_created(found: dict[str, Any]) -> None:
    name = found["name"]
    say(f"Created the source {name!r}, and the collection that it feeds, with these columns:")
    for line in schema_lines(found["schema"], found["key"]):
        say(f"  {line}")
    if found["csv"] is not None:
        say(f"Its csv is read so: {csv_text(found['csv'])}")
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
        none_yet="There are no sources yet: 'tidelog source create' makes one.",
    )


@app.command("describe")
def describe(context: typer.Context, name: SourceName, as_json: AsJson = False) -> None:
    """Show a source: what it reads, and what becomes of the rows."""

    async def work(location: Location) -> dict[str, Any]:
        return describe_source(location, *await location.source(name))

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        print_fields(_fields(found))


@app.command("status")
def status(context: typer.Context, name: SourceName, as_json: AsJson = False) -> None:
    """Show how far a source has come.

    And what it has left, how many rows were late or bad, and how its last run went.
    """
    from tidelog.collection.ingest.status import source_status

    async def work(location: Location) -> SourceStatus:
        return await source_status(await location.ingester(name))

    found = on_location(context, work)
    if choose_format(None, as_json=as_json) == "json":
        print_json(_status_object(found))
    else:
        print_fields(_status_fields(found))


@app.command("skip")
def skip(
    context: typer.Context,
    name: SourceName,
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file, as the error names it.")],
    as_json: AsJson = False,
) -> None:
    """Go on without a file that is gone, or was rewritten after some of it was taken.

    What was committed of it stays; nothing more is taken of it, for good. What was bound of it and
    not committed is one bad row. Only a file that the source stands at can be skipped.
    """
    on_location(context, lambda location: location.skip_file(name, path))
    if as_json:
        print_json({"name": name, "path": path, "skipped": True})
    else:
        say(f"Skipped the file {path!r} of the source {name!r}: go on with tidelog ingest {name}")


@app.command("drop")
def drop(context: typer.Context, name: SourceName, as_json: AsJson = False) -> None:
    """Drop a source, and the collection that it feeds.

    The files that it reads are not touched.
    """
    on_location(context, lambda location: location.drop_source(name))
    if as_json:
        print_json({"name": name, "dropped": True})
    else:
        say(f"Dropped the source {name!r} and its collection.")


async def _create(url: str, spec: SourceSpec) -> dict[str, Any]:
    from tidelog.clock import SystemClock
    from tidelog.collection.create import resolve_spec
    from tidelog.location import open_location

    # All is checked before the location is made, so that a mistake leaves none behind.
    resolved = await resolve_spec(spec, location_url=url, clock=SystemClock())
    location = await open_location(url, create=True)
    info = await location.add_source(*resolved)
    return describe_source(location, info, resolved[1])


async def _describe_all(location: Location) -> list[dict[str, Any]]:
    catalog = await location.controller.catalog()
    return [
        describe_source(location, info, catalog.renditions[info.rendition])
        for _, info in sorted(catalog.sources.items())
    ]


def describe_source(
    location: Location, info: SourceInfo, rendition: RenditionInfo
) -> dict[str, Any]:
    """Return what there is to know of a source, without secrets."""
    from tidelog.collection.catalog.catalog import FILES
    from tidelog.collection.formats.types import sql_type_of
    from tidelog.store.urls import open_store, without_secrets

    files = None
    if info.kind == FILES:
        # A store tells its URL as a person may read it; the catalog's may hold credentials.
        place, mark, query = open_store(info.url, clock=location.clock).url.partition("?")
        files = f"{place.rstrip('/')}/{info.pattern}{mark}{query}"
    schema = rendition.data_schema
    return {
        "name": info.name,
        "id": info.id,
        "kind": info.kind,
        "files": files,
        "settings": {name: without_secrets(value) for name, value in info.settings.items()},
        "format": info.format,
        "envelope": info.envelope,
        "key": list(info.key),
        "time_column": info.time_column,
        "time_unit": info.time_unit,
        "max_ahead_ms": info.max_ahead_ms,
        "lateness_ms": info.lateness_ms,
        "delete_when": info.delete_when,
        "csv": None if info.dialect is None else csv_fields(info.dialect),
        "schema": [{"name": f.name, "type": sql_type_of(f)} for f in schema.data],
        "rendition": info.rendition,
        "shards": len(rendition.shards),
        "created": _iso(info.created_us),
    }


def reads_text(found: dict[str, Any]) -> str:
    """Say what a source reads."""
    if found["files"] is not None:
        return str(found["files"])
    settings = (f"{name}={value}" for name, value in sorted(found["settings"].items()))
    return " ".join([found["kind"], *settings])


def times_text(found: dict[str, Any]) -> str:
    """Say where the times of a source's rows come from."""
    if found["time_column"] is None:
        return "the clock"
    from tidelog.collection.formats.times import duration_text

    name = found["time_column"]
    types = {column["name"]: column["type"] for column in found["schema"]}
    has_unit = types[name].startswith(("TIMESTAMP", "DATE"))
    text = name if has_unit else f"{name} (integers in {found['time_unit']})"
    held_ms, ahead_ms = found["lateness_ms"], found["max_ahead_ms"]
    held = f", held back by {duration_text(held_ms)} (--lateness)" if held_ms else ""
    ahead = "any" if ahead_ms is None else duration_text(ahead_ms)
    return f"{text}{held}, --max-ahead {ahead}"


def _fields(found: dict[str, Any]) -> list[tuple[str, str | list[str]]]:
    csv = f" ({csv_text(found['csv'])})" if found["csv"] is not None else ""
    return [
        ("name", found["name"]),
        ("reads" if found["files"] is None else "files", reads_text(found)),
        ("format", found["format"] + csv),
        ("envelope", found["envelope"]),
        ("key", ", ".join(found["key"]) or "none"),
        ("times from", times_text(found)),
        ("delete when", found["delete_when"] or "never"),
        ("schema", schema_lines(found["schema"], found["key"])),
        ("shards", str(found["shards"])),
        ("created", found["created"]),
    ]


def _status_object(found: SourceStatus) -> dict[str, Any]:
    run = found.run
    return {
        "name": found.name,
        "upper": found.upper,
        "complete_to": _complete_to(found.upper),
        "lag_bytes": found.left_bytes,
        "lateness_ms": found.lateness_ms,
        "files": found.files,
        "reached": dict(found.reached),
        "late": found.late,
        "bad": found.bad,
        "skipped": {path: _iso(since) for path, since in sorted(found.skipped.items())},
        "source_error": found.trouble,
        "run": run
        and {
            "started": _iso(run.started_us),
            "told": _iso(run.told_us),
            "running": run.running,
            "engine": run.engine,
            "upper": run.upper,
            "ticks": run.ticks,
            "rows": run.rows,
            "late": run.late,
            "bad": run.bad,
            "waiting": run.waiting,
            "notes": run.notes,
            "error": run.error,
            "error_kind": run.error_kind,
        },
    }


def _status_fields(found: SourceStatus) -> list[tuple[str, str | list[str]]]:
    lag = found.trouble or "unknown"
    if found.left_bytes is not None:
        lag = bytes_text(found.left_bytes) if found.left_bytes else "nothing is left"
    bad = f"{found.bad:,}"
    if found.bad:
        bad += f" (see them: tidelog read {found.name}_errors)"
    return [
        ("name", found.name),
        ("complete to", _complete_to(found.upper) or "nothing yet"),
        ("lag", lag),
        *_reached_fields(found),
        *_held_fields(found),
        ("late rows", f"{found.late:,}"),
        ("bad rows", bad),
        ("skipped", [f"{path} (since {_iso(at)})" for path, at in sorted(found.skipped.items())]),
        ("waiting", waiting_lines({} if found.run is None else found.run.waiting)),
        ("noted", waiting_lines({} if found.run is None else found.run.notes)),
        ("last run", _run_lines(found)),
    ]


def _held_fields(found: SourceStatus) -> list[tuple[str, str | list[str]]]:
    if not found.lateness_ms:
        return []
    from tidelog.collection.formats.times import duration_text

    lateness = duration_text(found.lateness_ms)
    until = f"until rows come that are {lateness} newer, or by: tidelog ingest {found.name} --final"
    return [("held back", f"what is newer than 'complete to', {until}")]


def _reached_fields(found: SourceStatus) -> list[tuple[str, str | list[str]]]:
    if found.files is not None:
        return [("files", f"{found.files:,}")]
    return [("read to", [f"{path}: {limit:,}" for path, limit in found.reached.items()])]


def _run_lines(found: SourceStatus) -> list[str]:
    run = found.run
    if run is None:
        return []
    did = f"{count_text(run.rows, 'row')} in {count_text(run.ticks, 'tick')} on {run.engine}"
    lines = [f"started {_iso(run.started_us)}: {did}"]
    if run.error is not None:
        how = "last heard of, waiting," if run.running else "stopped"
        lines.append(f"{how} {_iso(run.told_us)}: {run.error}")
    else:
        lines.append(f"{'last heard of' if run.running else 'ended'} {_iso(run.told_us)}")
    return lines


def _complete_to(upper: int | None) -> str | None:
    from tidelog.collection.formats.times import format_time

    return format_time(upper - 1) if upper else None


def _iso(time_us: int) -> str:
    from tidelog.collection.formats.times import format_time

    return format_time(time_us // 1_000)
