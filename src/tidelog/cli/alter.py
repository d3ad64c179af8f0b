"""``tidelog table alter``: columns that come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson, Yes, ask_first, on_location
from tidelog.cli.output import show
from tidelog.cli.table_options import TableName
from tidelog.core.arguments import joined_names

if TYPE_CHECKING:
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
    typer.Option(metavar="COLUMN", help="A column to drop; may be repeated."),
]


def alter(
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
    from tidelog.collection.table.alteration import Alteration

    columns, dropped = ", ".join(add or ()) or None, drop or []
    Alteration.of(columns, dropped)  # A mistake fails before any request.
    if dropped and not yes and on_location(context, lambda one: _has_values(one, name, dropped)):
        ask_first(
            lambda: f"Drop {joined_names(dropped)} of the table {name!r}, with all values?",
            deed="drop columns with their values",
        )
        yes = True

    async def work(location: Location) -> list[str]:
        table = await location.tables.alter(name, add=columns, drop=dropped, discard_values=yes)
        return table.schema.names

    found = on_location(context, work)
    show(
        {"table": name, "columns": found},
        f"The table {name!r} has the columns {joined_names(found)}.",
        as_json=as_json,
        is_said=True,
    )


async def _has_values(location: Location, name: str, columns: list[str]) -> bool:
    """Return True if a column has values; a column that does not exist is refused later."""
    table = await location.table(name)
    known = [column for column in columns if column in table.schema.names]
    return bool(known) and await table.has_values(known)
