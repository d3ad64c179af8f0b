"""The options of the writes of ``tidelog table``, and the rows that they read."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.cli.command import on_location
from tidelog.cli.feed import check_row_input, row_format_of
from tidelog.cli.output import count_text, show
from tidelog.core.arguments import quoted
from tidelog.errors import AsOfBeforeSince, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.collection.formats.csv.guess import CsvOptions
    from tidelog.collection.table_handle import Table
    from tidelog.location import Location
    from tidelog.persist.format.schema import ShardSchema
    from tidelog.persist.states.state import Token

TableName = Annotated[str, typer.Argument(metavar="NAME", help="A table.")]
At = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="The earliest time of the write, written as in read --as-of. The default is now. "
        "All later writes of tables get later times.",
    ),
]
TokenText = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="NAME:NUMBER",
        help="A writer's name and a number that rises with each write. A retry with the same "
        "token does not write its rows again.",
    ),
]
RowFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FILE]...", help="Files of rows; - is standard input, which is the default."
    ),
]
Condition = Annotated[
    str | None, typer.Option(metavar="SQL", help="A condition, such as 'price > 4'.")
]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The time and the token of a write, parsed."""

    at: int | None
    token: Token | None

    @staticmethod
    def of(at: str | None, token: str | None) -> WriteOptions:
        """Parse the options.

        Raises:
            UsageError: a value is not valid.
        """
        from tidelog.collection.formats.times import parse_time
        from tidelog.core.clock import SystemClock

        now_us = SystemClock().now_us()
        time = None if at is None else parse_time(at, what="--at", now_us=now_us)
        return WriteOptions(time, None if token is None else token_of(token))


def token_of(text: str) -> Token:
    """Return the token of ``NAME:NUMBER``.

    Raises:
        UsageError: the text is not a name and a number.
    """
    name, _, number = text.rpartition(":")
    if not name or not re.fullmatch("[0-9]{1,18}", number):
        raise UsageError(
            f"--token must be a writer's name and a whole number, such as import:7, not "
            f"{quoted(text)}"
        )
    return name, int(number)


_ASSIGNMENT: Final = re.compile(
    r'\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^="]+?))\s*=(?P<sql>.*\S.*)', re.DOTALL
)


def expressions_of(texts: list[str]) -> dict[str, str]:
    """Return the SQL expressions of ``COLUMN=SQL`` by column; a name may be in double quotes.

    Raises:
        UsageError: a text has no column or no expression, or a column occurs twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        match = _ASSIGNMENT.fullmatch(text)
        if match is None:
            raise UsageError(
                f"--set must be a column and an expression, such as 'price = price * 2', not "
                f"{quoted(text)}"
            )
        name = match["plain"] or match["quoted"].replace('""', '"')
        if name in found:
            raise UsageError(f"--set names the column {name!r} twice: remove one")
        found[name] = match["sql"].strip()
    return found


@dataclass(frozen=True, slots=True)
class RowSource:
    """The files of rows of a write, checked."""

    files: list[Path]
    format: str
    csv: CsvOptions

    @staticmethod
    def of(
        files: list[Path] | None, format: str | None, csv: CsvOptions | None = None
    ) -> RowSource:
        """Check the files, the format and the csv options.

        Raises:
            UsageError: one of them is not valid.
        """
        from tidelog.collection.formats.csv.guess import CsvOptions, check_csv

        kind, csv = row_format_of(files or [], format), csv or CsvOptions()
        if kind != "csv" and csv != CsvOptions():
            raise UsageError(f"the options of csv do not apply to {kind}: remove them")
        check_csv(csv)
        check_row_input(files or [])
        return RowSource(files or [], kind, csv)

    async def pieces(
        self, schema: ShardSchema, *, needed: Sequence[str] = (), owner: str = "table"
    ) -> AsyncGenerator[pa.Table, None]:
        """Read rows as they arrive; columns not ``needed`` and not in the key may be absent.

        Raises:
            UsageError: a file cannot be read, or a row does not fit.
        """
        import pyarrow as pa

        from tidelog.cli.row_files import RowFiles

        wanted = pa.schema([field.with_nullable(True) for field in schema.data])
        reader = RowFiles(
            wanted=wanted,
            optional=frozenset(schema.names) - {*schema.key, *needed},
            csv=self.csv,
            required=schema.key,
            owner=owner,
            undone="nothing was written",
        )
        async with aclosing(reader.tables(self.files, self.format)) as tables:
            async for piece in tables:
                yield piece

    async def keys(self, schema: ShardSchema) -> pa.Table:
        """Read keys: rows of the key columns.

        Raises:
            UsageError: the table has no key; or see `pieces`.
        """
        if not schema.key:
            raise UsageError("the table has no key: delete with --where")
        import pyarrow as pa

        from tidelog.persist.format.schema import ShardSchema

        columns = pa.schema([schema.data.field(name) for name in schema.key])
        key = ShardSchema(columns, len(schema.key))
        async with aclosing(self.pieces(key, owner="key of the table")) as pieces:
            found = [piece async for piece in pieces]
        return pa.concat_tables(found) if found else columns.empty_table()


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write: its time, and the numbers of rows given, added and removed.

    ``repeated`` states that an earlier call with the same token has written the rows.
    """

    name: str
    time: int
    rows: int
    added: int | None
    removed: int | None
    repeated: bool = False

    @property
    def counts(self) -> str:
        """The numbers of rows added and removed, if they are known."""
        return "" if self.added is None else f" ({self.added:,} added, {self.removed:,} removed)"

    def show(self, deed: str, *, as_json: bool) -> None:
        """Print the result; ``deed`` is the write in words."""
        from tidelog.collection.formats.times import format_time

        fields = {
            "table": self.name,
            "time": self.time,
            "added": self.added,
            "removed": self.removed,
            "repeated": self.repeated,
        }
        text = f"{deed}, visible as of {format_time(self.time)}"
        if self.repeated:
            text = (
                "nothing was written, because an earlier write has this --token: its rows are "
                f"visible as of {format_time(self.time)}"
            )
        show(fields, text, as_json=as_json, is_said=True)


def count_of(rows: int | None) -> str:
    return "some rows" if rows is None else count_text(rows, "row")


def written(
    context: typer.Context,
    name: str,
    token: Token | None,
    write: Callable[[Table], Awaitable[tuple[int, int]]],
) -> Written:
    """Write a table; ``write`` returns the time of the commit and the number of rows given."""
    from tidelog.collection.staged import has_committed

    async def work(location: Location) -> Written:
        table = await location.table(name)
        is_known = token is not None and await has_committed(table, token)
        time, rows = await write(table)
        try:
            commits = await table.history(time - 1, time)
        except AsOfBeforeSince:
            return Written(name, time, rows, None, None, is_known)
        added, removed = sum(one.added for one in commits), sum(one.removed for one in commits)
        return Written(name, time, rows, added, removed, is_known)

    return on_location(context, work)
