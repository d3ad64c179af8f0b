"""``tidelog table alter`` and ``tidelog source alter``: columns that come and go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, SourceName, Yes, ask_first, on_location
from tidelog.cli.output import show
from tidelog.cli.table_options import TableName
from tidelog.core.arguments import joined_names, split_names

if TYPE_CHECKING:
    from tidelog.collection.table.alteration import Alteration
    from tidelog.location import Location

Add = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMNS",
        help="New columns and their types: 'size double, note varchar'; may be repeated.",
    ),
]
Drop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMNS",
        help="Columns to drop, with commas between them; may be repeated.",
    ),
]


def alter_table(
    context: typer.Context,
    name: TableName,
    *,
    add: Add = None,
    drop: Drop = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Add columns to a table, and drop columns of it.

    New columns come last, and are null in the rows that exist. The command asks first if a column
    to drop has a value at a readable time. A dropped name cannot be used again.
    """
    asked = Asked.of("table", name, add, drop, yes)

    async def work(location: Location, columns: str | None, discard_values: bool) -> list[str]:
        table = await location.tables.alter(
            name, add=columns, drop=asked.drop, discard_values=discard_values
        )
        return table.schema.names

    _alter(context, asked, work, as_json=as_json)


def alter_source(
    context: typer.Context,
    name: SourceName,
    *,
    add: Add = None,
    drop: Drop = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Add columns to a source and its collection, and drop columns of them.

    New columns come last. They have values in rows that are ingested from now on, and are null in
    the rows that exist. A running ingester takes them without a restart. The command asks first if
    a column to drop has a value at a readable time. A dropped name cannot be used again.
    """
    asked = Asked.of("source", name, add, drop, yes)

    async def work(location: Location, columns: str | None, discard_values: bool) -> list[str]:
        _, rendition = await location.sources.alter(
            name, add=columns, drop=asked.drop, discard_values=discard_values
        )
        return rendition.data_schema.names

    _alter(context, asked, work, as_json=as_json)


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of an alteration of a table or a source."""

    kind: str
    name: str
    add: list[str]
    drop: list[str]
    yes: bool

    @staticmethod
    def of(kind: str, name: str, add: list[str] | None, drop: list[str] | None, yes: bool) -> Asked:
        """Return the arguments, with the names in ``drop`` split at their commas."""
        names = [column for part in drop or [] for column in split_names(part)]
        return Asked(kind, name, add or [], names, yes)


def _alter(
    context: typer.Context,
    asked: Asked,
    work: Callable[[Location, str | None, bool], Awaitable[list[str]]],
    *,
    as_json: bool,
) -> None:
    from tidelog.collection.table.alteration import Alteration

    columns, yes = ", ".join(asked.add) or None, asked.yes
    change = Alteration.of(columns, asked.drop)  # A mistake fails before any request.
    if change.drop and not yes and on_location(context, lambda one: _loses(one, asked, change)):
        ask_first(
            lambda: (
                f"Drop the {'column' if len(asked.drop) == 1 else 'columns'} "
                f"{joined_names(asked.drop)} of the {asked.kind} {asked.name!r}, with the "
                "values of all times?"
            ),
            deed="drop columns with their values",
        )
        yes = True
    found = on_location(context, lambda location: work(location, columns, yes))
    show(
        {asked.kind: asked.name, "columns": found},
        f"The {asked.kind} {asked.name!r} has the columns {joined_names(found)}.",
        as_json=as_json,
        is_said=True,
    )


async def _loses(location: Location, asked: Asked, change: Alteration) -> bool:
    """Return True if the alteration drops values; raise its error if it is refused anyway."""
    from tidelog.collection.altering import altered_source, has_values

    catalog = await location.controller.catalog()
    if asked.name not in (catalog.tables if asked.kind == "table" else catalog.collections):
        return False  # The alteration reports it.
    collection = await location.collection(asked.name)
    before = collection.rendition
    if asked.kind == "table":
        after = change.applied(before, catalog.tables[asked.name])
    else:
        after = altered_source(change, before, catalog.source(asked.name))
    return after != before and await has_values(collection, change.drop)
