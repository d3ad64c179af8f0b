"""``tidelog keyed scan``, ``follow``, ``count`` and ``keys``: read a keyed log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.arguments import (
    From,
    FromKey,
    Key,
    KeyedName,
    KeyForm,
    OneKey,
    Prefix,
    RowsMax,
    To,
    ToKey,
    check_form,
    check_sequence_range,
    key_bytes,
    keys_of,
    on_reader,
    shown_key,
)
from tidelog.cli.output import (
    choose_format,
    count_text,
    first_rows,
    say,
    show,
    shown_rows,
    write_text,
)
from tidelog.cli.records import (
    Format,
    FromTime,
    New,
    check_rows,
    choose_record_format,
    escaped,
    text_columns,
    text_or_base64,
    time_us_of,
    times_of,
    write_tables,
)
from tidelog.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.keyed.port import KeyedReads

Newest = Annotated[bool, typer.Option("--newest", help="Newest records first.")]
Checkpoint = Annotated[
    str | None, typer.Option(metavar="CHECKPOINT", help="Read the log as of this checkpoint.")
]


def scan(
    context: typer.Context,
    name: KeyedName,
    *,
    key: Key = None,
    prefix: Prefix = None,
    from_key: FromKey = None,
    to_key: ToKey = None,
    key_form: KeyForm = "text",
    start: From = 0,
    to: To = None,
    rows: RowsMax = None,
    from_time: FromTime = None,
    newest: Newest = False,
    checkpoint: Checkpoint = None,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Write the records of a key, a prefix, a range, or all keys."""
    check_form(key_form)
    check_sequence_range(start, to)
    check_rows(rows)
    if start and from_time is not None:
        raise UsageError("--from and --from-time exclude each other: pass one")
    chosen = choose_record_format(format, as_json=as_json)
    time_us = None if from_time is None else time_us_of(from_time, "--from-time")
    keys = keys_of(key_form, key=key, prefix=prefix, from_key=from_key, to_key=to_key)

    async def work(log: KeyedReads) -> None:
        at = start if time_us is None else await log.sequence_at(time_us)
        if rows == 0 or (to is not None and to <= at):
            return
        async with log.scan(keys, at, to, rows=rows, newest_first=newest) as found:
            await _write_records(shown_rows(aiter(found), chosen, rows), chosen, key_form)

    on_reader(context, name, work, checkpoint=checkpoint)


def follow(
    context: typer.Context,
    name: KeyedName,
    *,
    key: Key = None,
    prefix: Prefix = None,
    key_form: KeyForm = "text",
    start: From = 0,
    new: New = False,
    format: Format = None,
    as_json: AsJson = False,
) -> None:
    """Write records as writers append them, until Ctrl-C."""
    check_form(key_form)
    check_sequence_range(start, None)
    if new and start:
        raise UsageError("--new and --from exclude each other: pass one")
    chosen = choose_record_format(format, as_json=as_json)
    keys = keys_of(key_form, key=key, prefix=prefix)

    async def work(log: KeyedReads) -> None:
        coming = await log.next_sequence()
        if start > coming:
            say(f"The log {name!r} ends before {start}; the next sequence is {coming}: waiting ...")
        async with log.follow(keys, start=None if new else start) as found:
            await _write_records(aiter(found), chosen, key_form)

    on_reader(context, name, work)


def count(
    context: typer.Context,
    name: KeyedName,
    *,
    key: OneKey,
    key_form: KeyForm = "text",
    start: From = 0,
    to: To = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Read only indexes, and show bounds of the count.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count the records of a key, also between two sequences."""
    check_form(key_form)
    check_sequence_range(start, to)
    wanted = key_bytes(key, key_form, "--key")

    async def work(log: KeyedReads) -> dict[str, int]:
        if not approximate:
            return {"count": await log.count(wanted, start, to)}
        found = await log.count_approximate(wanted, start, to)
        return {"count": found.value, "least": found.least, "most": found.most}

    found = on_reader(context, name, work)
    told = count_text(found["count"], "record")
    if approximate:
        told += f", at least {found['least']:,} and at most {found['most']:,}"
    fields = {"log": name, **shown_key(wanted, key_form), **found}
    show(fields, partial(write_text, f"{told}\n"), as_json=as_json)


FromSegment = Annotated[
    int | None,
    typer.Option("--from-segment", min=0, metavar="ID", help="The first segment to read."),
]
ToSegment = Annotated[
    int | None,
    typer.Option("--to-segment", min=0, metavar="ID", help="Stop before this segment."),
]


def keys(
    context: typer.Context,
    name: KeyedName,
    *,
    prefix: Prefix = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="KEY", help="Only keys after this key.")
    ] = None,
    key_form: KeyForm = "text",
    rows: RowsMax = None,
    from_segment: FromSegment = None,
    to_segment: ToSegment = None,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="table|json|csv",
            help="The output format. The default is a table on a terminal, else JSON lines.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the keys in the order of their bytes.

    The list has the number of records of each key, and its first and last sequence.
    """
    check_form(key_form)
    check_rows(rows)
    chosen = choose_format(format, as_json=as_json)
    begins = b"" if prefix is None else key_bytes(prefix, key_form, "--prefix")
    follows = None if after is None else key_bytes(after, key_form, "--after")
    segments = (from_segment or 0, to_segment)
    is_any = from_segment is None and to_segment is None

    async def work(log: KeyedReads) -> None:
        if rows == 0:
            return
        found = log.keys(begins, after=follows, segments=None if is_any else segments)
        shown = shown_rows(found, chosen, rows)
        await _write_keys(first_rows(shown, rows), chosen, key_form)

    on_reader(context, name, work)


async def _write_keys(pages: AsyncIterator[pa.Table], format: str, form: str) -> None:
    def fields(row: dict[str, Any]) -> dict[str, object]:
        return {**shown_key(row.pop("key"), form), **row}

    def columns(table: pa.Table, is_csv: bool) -> pa.Table:  # noqa: ARG001
        import pyarrow as pa

        keys: list[Any] = table.column("key").to_pylist()
        texts = [key_text(key, form) for key in keys]
        return table.set_column(0, "key", pa.array(texts, pa.string()))

    await write_tables(pages, format, fields=fields, columns=columns)


async def _write_records(tables: AsyncIterator[pa.Table], format: str, form: str) -> None:
    def fields(record: dict[str, Any]) -> dict[str, object]:
        return {
            **shown_key(record["key"], form),
            "sequence": record["sequence"],
            "timestamp_us": record["timestamp_us"],
            **text_or_base64("value", record["value"]),
        }

    def columns(table: pa.Table, is_csv: bool) -> pa.Table:
        import pyarrow as pa

        keys: list[Any] = table.column("key").to_pylist()
        if form == "text":
            shown = text_columns("key", keys, is_csv=is_csv)
        else:
            texts = pa.array([key_text(key, form) for key in keys], pa.string())
            shown = {"key": pa.chunked_array([texts])}
        shown["sequence"] = table.column("sequence")
        shown["timestamp"] = times_of(table.column("timestamp_us"))
        return pa.table(
            shown | text_columns("value", table.column("value").to_pylist(), is_csv=is_csv)
        )

    await write_tables(tables, format, raw="value", fields=fields, columns=columns)


def key_text(key: bytes, form: str) -> str:
    """Return the text of a key for tables."""
    return escaped(key) if form == "text" else shown_key(key, form)["key"]
