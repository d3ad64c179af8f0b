"""``tidelog shard create``: create a shard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, location_url
from tidelog.cli.output import choose_format, print_json, say
from tidelog.cli.shard.opened import ShardName, check_shard_name

if TYPE_CHECKING:
    from tidelog.persist.format.schema import ShardSchema


def create(
    context: typer.Context,
    name: ShardName,
    *,
    schema: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help="Columns and their types: 'flight int, day date'."),
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="The columns of the key, with commas between them. The default is all columns.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a shard, and the location if it does not exist."""
    check_shard_name(name)
    url, shape = location_url(context), shape_of(schema, key)
    asyncio.run(_create(url, name, shape))
    if choose_format(None, as_json=as_json) == "json":
        print_json({"shard": name, "columns": shape.names, "key": shape.key})
    else:
        say(f"Created the shard {name!r}. Append to it with: tidelog shard append {name} FILES")


def shape_of(schema: str, key: str | None) -> ShardSchema:
    """Return the schema from ``--schema`` and ``--key``.

    Raises:
        UsageError: a value is not a list of columns.
    """
    from tidelog.collection.formats.types import parse_schema
    from tidelog.persist.format.schema import shard_schema

    columns = parse_schema(schema)
    names = None if key is None else [part.strip() for part in key.split(",") if part.strip()]
    return shard_schema(columns, key=names)


async def _create(url: str, name: str, shape: ShardSchema) -> None:
    from tidelog.location import open_location

    location = await open_location(url, create=True)
    await location.shards.create(name, schema=shape.data, key=shape.key)
