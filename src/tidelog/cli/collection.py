"""``tidelog collection``: what collections there are, and what there is to know of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tidelog.cli.command import AsJson, CollectionName, on_location
from tidelog.cli.output import (
    bytes_text,
    choose_format,
    count_text,
    print_fields,
    print_json,
    say,
    write_text,
)

if TYPE_CHECKING:
    from tidelog.location import Location

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List and describe collections."
)


@app.command("list")
def list_collections(context: typer.Context, as_json: AsJson = False) -> None:
    """List the collections, and from when to when they can be read."""
    found = on_location(context, _describe_all)
    if choose_format(None, as_json=as_json) == "json":
        print_json(*found)
        return
    if not found:
        say("There are no collections yet: 'tidelog source create' makes one.")
        return
    from tidelog.cli.grid import Grid, terminal_width
    from tidelog.collection.times import format_time

    names = ("name", "rows", "bytes", "since", "complete to", "shards")
    right = (False, True, True, False, False, True)
    Grid(names, right=right, width=terminal_width(), out=write_text).write(
        [
            (
                one["name"],
                f"{one['rows']:,}",
                bytes_text(one["bytes"]),
                "never" if one["since"] is None else format_time(one["since"]),
                one["complete_to"] or "nothing yet",
                str(sum(len(r["shards"]) for r in one["renditions"])),
            )
            for one in found
        ]
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


def _fields(found: dict[str, Any]) -> list[tuple[str, str | list[str]]]:
    from tidelog.collection.times import format_time

    since = found["since"]
    return [
        ("name", found["name"]),
        ("schema", schema_lines(found["schema"], found["key"])),
        ("rows", f"{found['rows']:,} ({count_text(found['updates'], 'update')})"),
        ("bytes", f"{bytes_text(found['bytes'])} in {count_text(found['parts'], 'part')}"),
        ("since", "never" if since is None else format_time(since)),
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
    """Give a schema for people, a column a line."""
    width = max(len(column["name"]) for column in schema)
    return [
        f"{column['name']:<{width}}  {column['type']}" + (" key" if column["name"] in key else "")
        for column in schema
    ]
