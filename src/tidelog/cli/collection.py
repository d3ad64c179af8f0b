"""``tidelog collection``: what collections there are, and what there is to know of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tidelog.cli.command import AsJson, CollectionName, on_location
from tidelog.cli.output import (
    Column,
    bytes_text,
    choose_format,
    count_text,
    print_fields,
    print_json,
    print_listing,
)

if TYPE_CHECKING:
    from tidelog.location import Location

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List and describe collections."
)


@app.command("list")
def list_collections(context: typer.Context, as_json: AsJson = False) -> None:
    """List the collections, and from when to when they can be read."""
    columns: tuple[Column[dict[str, Any]], ...] = (
        Column("name", lambda one: one["name"]),
        Column("rows", lambda one: f"{one['rows']:,}", right=True),
        Column("bytes", lambda one: bytes_text(one["bytes"]), right=True),
        Column("since", lambda one: _since(one["since"]), whole=True),
        Column("complete to", lambda one: one["complete_to"] or "nothing yet", whole=True),
        Column(
            "shards", lambda one: str(sum(len(r["shards"]) for r in one["renditions"])), right=True
        ),
    )
    print_listing(
        on_location(context, _describe_all),
        columns,
        fields=dict,
        as_json=as_json,
        none_yet="There are no collections yet: 'tidelog source create' makes one.",
    )


@app.command("describe")
def describe(context: typer.Context, name: CollectionName, as_json: AsJson = False) -> None:
    """Show a collection's schema, times, renditions and sizes."""
    found = on_location(context, lambda location: _describe(location, name))
    if choose_format(None, as_json=as_json) == "json":
        print_json(found)
    else:
        print_fields(_fields(found))


async def _describe(location: Location, name: str) -> dict[str, Any]:
    return await (await location.collection(name)).describe()


async def _describe_all(location: Location) -> list[dict[str, Any]]:
    catalog = await location.controller.catalog()
    return [await _describe(location, name) for name in sorted(catalog.collections)]


def _since(since: int | None) -> str:
    from tidelog.collection.formats.times import format_time

    return "never" if since is None else format_time(since)


def _fields(found: dict[str, Any]) -> list[tuple[str, str | list[str]]]:
    return [
        ("name", found["name"]),
        ("schema", schema_lines(found["schema"], found["key"])),
        ("rows", f"{found['rows']:,} ({count_text(found['updates'], 'update')})"),
        ("bytes", f"{bytes_text(found['bytes'])} in {count_text(found['parts'], 'part')}"),
        ("since", _since(found["since"])),
        ("complete to", found["complete_to"] or "nothing yet"),
        (
            "renditions",
            [
                f"{r['id']}, {count_text(len(r['shards']), 'shard')}"
                + (", active" if r["active"] else "")
                for r in found["renditions"]
            ],
        ),
    ]


def schema_lines(schema: list[dict[str, str]], key: list[str]) -> list[str]:
    """Return a schema for people, a column a line."""
    width = max(len(column["name"]) for column in schema)
    return [
        f"{column['name']:<{width}}  {column['type']}" + (" key" if column["name"] in key else "")
        for column in schema
    ]
