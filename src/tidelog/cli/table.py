"""``tidelog table`` and ``tidelog history``: tables, their writes, and the commits of a table."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from tidelog.cli.alter import alter_table
from tidelog.cli.command import (
    AsJson,
    Yes,
    ask_first,
    group,
    location_url,
    on_location,
    readers_in,
    readers_text,
)
from tidelog.cli.feed import RowFormat
from tidelog.cli.output import Column, Field, bytes_text, count_text, show, show_list
from tidelog.cli.source_options import (
    DateFormat,
    Delimiter,
    Header,
    Multiline,
    Null,
    Quote,
    TimestampFormat,
    csv_options,
)
from tidelog.cli.table_options import (
    At,
    Condition,
    RowFiles,
    RowSource,
    TableName,
    TokenText,
    WriteOptions,
    Written,
    count_of,
    expressions_of,
    written,
)
from tidelog.core.arguments import split_names
from tidelog.errors import DeletesAllRows, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.collection.reading import CollectionDescription
    from tidelog.collection.table.history import TableCommit
    from tidelog.collection.table_handle import Table
    from tidelog.location import Location
    from tidelog.persist.format.schema import ShardSchema

app = group("Tables: collections that programs write.")


@app.command("create")
def create(
    context: typer.Context,
    name: TableName,
    *,
    schema: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help="Columns and their types: 'id bigint, name varchar'."),
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="The columns of the key, with commas between them. No two rows have the "
            "same key. By default, the table has no key.",
        ),
    ] = None,
    shards: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Divide the rows among N shards, each with its own merges."
        ),
    ] = 1,
    retain: Annotated[
        str,
        typer.Option(
            metavar="DURATION|forever",
            help="How long earlier times stay readable; see 'collection retain'.",
        ),
    ] = "forever",
    mode: Annotated[
        Literal["wal", "direct"],
        typer.Option(
            help="wal: a transaction can write the table together with others. direct: the table "
            "has one shard and times of its own, and no transaction can use it.",
        ),
    ] = "wal",
    as_json: AsJson = False,
) -> None:
    """Create a table, and the location if it does not exist."""
    from tidelog.collection.catalog.retention import parse_retention_ms
    from tidelog.collection.table_definition import table_schema
    from tidelog.core.ids import check_name

    check_name(name, of="name of a table")
    retain_ms = parse_retention_ms(retain, what="--retain")
    columns = [] if key is None else split_names(key)
    table_schema(schema, columns)  # A mistake must not create the location.
    if mode == "direct" and shards != 1:
        raise UsageError("--mode direct has one shard: remove --shards, or --mode direct")
    location_url(context)

    async def work(location: Location) -> None:
        await location.tables.create(
            name, schema, key=columns, shards=shards, retain_ms=retain_ms, mode=mode
        )

    on_location(context, work, create=True)
    show(
        {"table": name, "key": columns, "shards": shards, "retain_ms": retain_ms, "mode": mode},
        f"Created the table {name!r}. Write rows to it with: tidelog table insert {name} FILES",
        as_json=as_json,
        is_said=True,
    )


@app.command("list")
def list_tables(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tables."""

    async def work(location: Location) -> list[CollectionDescription]:
        return [
            await (await location.table(name)).describe() for name in await location.tables.list()
        ]

    columns: tuple[Column[CollectionDescription], ...] = (
        Column("name", lambda one: one.name),
        Column("key", lambda one: ", ".join(one.key) or "none"),
        Column("rows", lambda one: f"{one.rows:,}", right=True),
        Column("bytes", lambda one: bytes_text(one.bytes), right=True),
        Column("complete to", lambda one: one.complete_to or "nothing yet", whole=True),
    )
    show_list(
        on_location(context, work),
        columns,
        fields=lambda one: one.to_dict(),
        as_json=as_json,
        none_yet="No tables yet. Create one: tidelog table create NAME --schema COLUMNS",
    )


@app.command("describe")
def describe(context: typer.Context, name: TableName, as_json: AsJson = False) -> None:
    """Show a table: its columns, key, times, retention and sizes."""

    async def work(location: Location) -> tuple[Table, CollectionDescription]:
        table = await location.table(name)
        return table, await table.describe()

    table, found = on_location(context, work)
    info = table.info
    facts = {"retain_ms": info.retain_ms, "created_us": info.created_us, "mode": info.mode}
    show(found.to_dict() | facts, _fields(table, found), as_json=as_json)


def _fields(table: Table, found: CollectionDescription) -> list[Field]:
    from tidelog.cli.collection import kept_text, schema_lines
    from tidelog.cli.output import time_text
    from tidelog.collection.formats.times import format_time

    return [
        ("name", found.name),
        ("schema", schema_lines([(c.name, c.type) for c in found.schema], found.key)),
        ("rows", f"{found.rows:,} ({count_text(found.updates, 'update')})"),
        ("bytes", f"{bytes_text(found.bytes)} in {count_text(found.parts, 'part')}"),
        ("keeps", kept_text(table.info.retain_ms)),
        ("since", "never" if found.since is None else format_time(found.since)),
        ("complete to", found.complete_to or "nothing yet"),
        ("shards", str(len(table.shards))),
        ("mode", table.info.mode),
        ("created", time_text(table.info.created_us)),
    ]


app.command("alter")(alter_table)


@app.command("insert")
def insert(
    context: typer.Context,
    name: TableName,
    files: RowFiles = None,
    *,
    format: RowFormat = None,
    at: At = None,
    token: TokenText = None,
    delimiter: Delimiter = None,
    quote: Quote = None,
    null: Null = None,
    date_format: DateFormat = None,
    timestamp_format: TimestampFormat = None,
    header: Header = None,
    multiline: Multiline = None,
    as_json: AsJson = False,
) -> None:
    """Insert rows: all of them in one commit, or none.

    A column that a row lacks is null. If a row does not fit, or its key exists already, the
    command writes nothing, and names the row or the key. Memory holds the keys, not all rows.
    """
    source = RowSource.of(
        files,
        format,
        csv_options(
            delimiter=delimiter,
            quote=quote,
            null=null,
            date_format=date_format,
            timestamp_format=timestamp_format,
            header=header,
            multiline=multiline,
        ),
    )
    options = WriteOptions.of(at, token)
    done = _put(context, name, source, options, lambda table: table.insert)
    done.show(f"{count_text(done.rows, 'row')} inserted", as_json=as_json)


@app.command("upsert")
def upsert(
    context: typer.Context,
    name: TableName,
    files: RowFiles = None,
    *,
    format: RowFormat = None,
    at: At = None,
    token: TokenText = None,
    delimiter: Delimiter = None,
    quote: Quote = None,
    null: Null = None,
    date_format: DateFormat = None,
    timestamp_format: TimestampFormat = None,
    header: Header = None,
    multiline: Multiline = None,
    as_json: AsJson = False,
) -> None:
    """Insert rows, or replace the rows of their keys: all of them in one commit, or none.

    A column that a row lacks becomes null. A row that is equal to the stored one changes nothing.
    Memory holds the keys and the replaced rows, not all rows.
    """
    source = RowSource.of(
        files,
        format,
        csv_options(
            delimiter=delimiter,
            quote=quote,
            null=null,
            date_format=date_format,
            timestamp_format=timestamp_format,
            header=header,
            multiline=multiline,
        ),
    )
    options = WriteOptions.of(at, token)
    done = _put(context, name, source, options, lambda table: table.upsert)
    done.show(f"{count_text(done.rows, 'row')} upserted{done.counts}", as_json=as_json)


@app.command("merge")
def merge(
    context: typer.Context,
    name: TableName,
    files: RowFiles = None,
    *,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS",
            help="The columns to compare, with commas between them. The default is the key.",
        ),
    ] = None,
    when_matched: Annotated[
        Literal["update", "delete", "ignore"],
        typer.Option(help="The action for rows of the table that match a row of the files."),
    ] = "update",
    when_not_matched: Annotated[
        Literal["insert", "ignore"],
        typer.Option(help="The action for rows of the files that match no row."),
    ] = "insert",
    format: RowFormat = None,
    at: At = None,
    token: TokenText = None,
    delimiter: Delimiter = None,
    quote: Quote = None,
    null: Null = None,
    date_format: DateFormat = None,
    timestamp_format: TimestampFormat = None,
    header: Header = None,
    multiline: Multiline = None,
    as_json: AsJson = False,
) -> None:
    """Compare rows with those of a table, and update, delete or insert rows, in one commit.

    As in SQL, a null matches nothing. Many rows are stored in a temporary file until the commit.
    """
    columns = None if on is None else split_names(on)
    source = RowSource.of(
        files,
        format,
        csv_options(
            delimiter=delimiter,
            quote=quote,
            null=null,
            date_format=date_format,
            timestamp_format=timestamp_format,
            header=header,
            multiline=multiline,
        ),
    )
    options = WriteOptions.of(at, token)

    def verb(table: Table) -> Callable[..., Awaitable[int]]:
        return partial(
            table.merge, on=columns, when_matched=when_matched, when_not_matched=when_not_matched
        )

    def given(schema: ShardSchema) -> ShardSchema:
        from tidelog.collection.table.changes import rule_of

        rule = rule_of(
            columns, schema, when_matched=when_matched, when_not_matched=when_not_matched
        )
        return rule.given(schema)

    done = _put(context, name, source, options, verb, given=given, needed=columns or ())
    done.show(f"{count_text(done.rows, 'row')} merged{done.counts}", as_json=as_json)


@app.command("delete")
def delete(
    context: typer.Context,
    name: TableName,
    *,
    where: Condition = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file of keys, with the key columns; - for stdin."),
    ] = None,
    format: RowFormat = None,
    at: At = None,
    token: TokenText = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the rows that meet a condition, or those of some keys, in one commit.

    A key without a row is no error. The command asks first if no row would be left. Reads as of
    earlier times still return the rows.
    """
    if (where is None) == (keys is None):
        raise UsageError("pass either --where or --keys; for all rows: --where true")
    source = None if keys is None else RowSource.of([keys], format)
    if source is None and format is not None:
        raise UsageError("--format needs --keys: remove --format")
    options = WriteOptions.of(at, token)

    given: pa.Table | None = None
    if source is not None:
        given = on_location(context, partial(_keys, name=name, source=source))
    all_rows_max = None if yes else 0

    async def write(table: Table) -> tuple[int, int]:
        time = await table.delete(
            keys=given,
            where=where,
            all_rows_max=all_rows_max,
            at=options.at,
            token=options.token,
        )
        return time, 0 if given is None else given.num_rows

    while True:
        try:
            done = written(context, name, options.token, write)
            break
        except DeletesAllRows as error:
            # More rows may come while the user answers; then the command asks again.
            all_rows_max = count = cast("int", error.facts["rows"])
            ask_first(
                partial(_question, name, count),
                deed="delete all rows",
                undone="Nothing was deleted.",
            )
    done.show(f"{count_of(done.removed)} deleted", as_json=as_json)


@app.command("update")
def update(
    context: typer.Context,
    name: TableName,
    *,
    set: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN=SQL",
            help="A column, and an expression over the old row: 'price = price * 2'; may be "
            "repeated.",
        ),
    ],
    where: Annotated[
        str, typer.Option(metavar="SQL", help="The rows to update; true updates all rows.")
    ],
    at: At = None,
    token: TokenText = None,
    as_json: AsJson = False,
) -> None:
    """Set columns of the rows that meet a condition, in one commit."""
    expressions = expressions_of(set)
    options = WriteOptions.of(at, token)

    async def write(table: Table) -> tuple[int, int]:
        time = await table.update(set=expressions, where=where, at=options.at, token=options.token)
        return time, 0

    done = written(context, name, options.token, write)
    done.show(f"{count_of(done.removed)} changed", as_json=as_json)


@app.command("advance")
def advance(context: typer.Context, as_json: AsJson = False) -> None:
    """Make all tables complete up to now, without writing rows.

    A query over a table and the collection of a source reads both as of a time at which both are
    complete. If no program wrote a table lately, run this before such a query.
    """
    from tidelog.collection.formats.times import format_time

    time = on_location(context, lambda location: location.tables.advance())
    show(
        {"time": time},
        f"All tables are complete up to {format_time(time)}.",
        as_json=as_json,
        is_said=True,
    )


@app.command("drop")
def drop(
    context: typer.Context, name: TableName, *, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Drop a table with all its history for good.

    The rows become unreadable. 'tidelog collect' deletes their bytes.
    """
    readers = on_location(context, lambda location: readers_in(location, name))
    if not yes:
        on_location(context, partial(_check_droppable, name=name))
        ask_first(
            lambda: f"Drop the table {name!r} with all its history?{readers_text(readers)}",
            deed="drop the table",
        )
    on_location(context, lambda location: location.tables.drop(name))
    show(
        {"table": name, "dropped": True, "read_by": readers},
        f"Dropped the table {name!r}.{readers_text(readers)}",
        as_json=as_json,
        is_said=True,
    )


async def _check_droppable(location: Location, *, name: str) -> None:
    from tidelog.collection.catalog.catalog import plan_drop_table

    plan_drop_table(await location.controller.catalog(), name)


def history(
    context: typer.Context,
    name: TableName,
    *,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show commits after this time (exclusive). The default is the earliest readable "
            "time.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Show commits up to this time (inclusive). The default is the newest complete "
            "time.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the commits of a table, oldest first: their times, writers, and rows added and removed.

    An updated row counts as one added and one removed. The writer is the name of --token, or
    user@host:pid. After a merge of batches (tidelog compact), the bytes and the writer of a commit
    are unknown; the counts stay exact. The command reads the rows of these commits.
    """

    async def work(location: Location) -> list[TableCommit]:
        return await (await location.table(name)).history(since, until)

    from tidelog.collection.formats.times import format_time

    columns: tuple[Column[TableCommit], ...] = (
        Column("time", lambda one: format_time(one.time), whole=True),
        Column("added", lambda one: f"{one.added:,}", right=True),
        Column("removed", lambda one: f"{one.removed:,}", right=True),
        Column(
            "bytes",
            lambda one: "merged" if one.bytes is None else bytes_text(one.bytes),
            right=True,
        ),
        Column("by", lambda one: one.by or "unknown"),
    )
    show_list(
        on_location(context, work),
        columns,
        fields=asdict,
        as_json=as_json,
        none_yet=f"The table {name!r} has no commits in these times.",
    )


async def _keys(location: Location, *, name: str, source: RowSource) -> pa.Table:
    return await source.keys((await location.table(name)).columns)


def _question(name: str, rows: int) -> str:
    return f"Delete all {count_text(rows, 'row')} of the table {name!r}?"


def _put(
    context: typer.Context,
    name: str,
    source: RowSource,
    options: WriteOptions,
    verb: Callable[[Table], Callable[..., Awaitable[int]]],
    *,
    given: Callable[[ShardSchema], ShardSchema] = lambda schema: schema,
    needed: Sequence[str] = (),
) -> Written:
    """Write the rows of a source in one commit, by the method that ``verb`` returns.

    ``given`` returns the schema of these rows for that of the table.
    """

    async def write(table: Table) -> tuple[int, int]:
        count = 0

        async def counted() -> AsyncGenerator[pa.Table, None]:
            nonlocal count
            async with aclosing(source.pieces(given(table.columns), needed=needed)) as pieces:
                async for piece in pieces:
                    count += piece.num_rows
                    yield piece

        time = await verb(table)(counted(), at=options.at, token=options.token)
        return time, count

    return written(context, name, options.token, write)
