"""``tidelog keyed keys``: the keys of a keyed log, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog.cli.command import AsJson
from tidelog.cli.keyed.opened import KeyedName, on_reader
from tidelog.cli.keyed.options import (
    KeyForm,
    Prefix,
    RowsMax,
    check_form,
    check_rows,
    key_bytes,
    shown_key,
)
from tidelog.cli.keyed.record_output import key_text
from tidelog.cli.output import Rows, choose_format, open_rows, print_json
from tidelog.cli.shown_rows import shown_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.keyed.port import KeyedReads

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
        await _write(shown_rows(found, chosen, rows), rows, chosen, key_form)

    on_reader(context, name, work)


async def _write(pages: AsyncIterator[pa.Table], rows: int | None, format: str, form: str) -> None:
    writer: Rows | None = None
    left = rows
    async for page in pages:
        table = page if left is None else page.slice(0, left)
        left = None if left is None else left - table.num_rows
        if format == "json":
            print_json(*({**shown_key(row.pop("key"), form), **row} for row in table.to_pylist()))
        else:
            shown = _with_text(table, form)
            writer = writer or open_rows(format, shown.schema)
            writer.write(shown)
        if left == 0:
            break
    if writer is not None:
        writer.close()


def _with_text(table: pa.Table, form: str) -> pa.Table:
    import pyarrow as pa

    texts = [key_text(key, form) for key in table.column("key").to_pylist() if key is not None]
    return table.set_column(0, "key", pa.array(texts, pa.string()))
