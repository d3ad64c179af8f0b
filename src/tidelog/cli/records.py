"""Records of logs and keyed logs on standard output, and the options that both share."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from tidelog.cli.output import FORMATS, Rows, choose_format, open_rows, print_json, write_bytes
from tidelog.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

BASE64: Final = "_base64"
ISO_MAX_US: Final = 253_402_300_799_999_999  # The end of the year 9999, Python's last.

Format = Annotated[
    str | None,
    typer.Option(
        metavar="table|json|csv|raw",
        help="The output format; raw writes only the contents of records, one per line. The "
        "default is a table on a terminal, else JSON lines.",
    ),
]
FromTime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Start at the first record of this time or later: ISO 8601, now, yesterday, -1h, or "
        "microseconds since 1970.",
    ),
]
New = Annotated[bool, typer.Option("--new", help="Only records appended from now on.")]


async def write_tables(
    tables: AsyncIterator[pa.Table],
    format: str,
    *,
    raw: str = "",
    fields: Callable[[dict[str, Any]], Mapping[str, object]],
    columns: Callable[[pa.Table, bool], pa.Table],
) -> int:
    """Write rows to standard output, table by table, and return their number.

    The format ``raw`` writes only the column ``raw``, one value per line. ``fields`` returns the
    JSON object of a row. ``columns`` returns the columns for people, or for csv if its second
    argument is True. The text of a row must not depend on the other rows of its table, so that the
    sizes of reads do not change the output.
    """
    count = 0
    rows: Rows | None = None
    names: list[str] = []
    async for table in tables:
        count += table.num_rows
        if format == "raw":
            values: list[Any] = table.column(raw).to_pylist()
            write_bytes(b"".join(value + b"\n" for value in values))
        elif format == "json":
            print_json(*map(fields, table.to_pylist()))
        else:
            shown = columns(table, format == "csv")
            if rows is None or shown.column_names != names:
                # Some records need more columns than those before, so a new table begins.
                if rows is not None:
                    rows.close()
                rows, names = open_rows(format, shown.schema), shown.column_names
            rows.write(shown)
    if rows is not None:
        rows.close()
    return count


async def write_records(tables: AsyncIterator[pa.Table], format: str) -> int:
    """Write the records of a log, and return their number; see `write_tables`."""
    return await write_tables(
        tables, format, raw="body", fields=_json_fields, columns=_record_columns
    )


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """Return bytes as a JSON field: text if they are UTF-8, else base64 as ``NAME_base64``."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}{BASE64}": base64.b64encode(value).decode()}


def escaped(value: bytes) -> str:
    r"""Return bytes as text for tables; bytes that are not UTF-8 become ``\xff``."""
    return value.decode(errors="backslashreplace")


def _json_fields(record: dict[str, Any]) -> dict[str, object]:
    """Return the JSON fields of a record, without an absent ``stream`` or ``key``."""
    beside = [(name, record[name]) for name in ("stream", "key") if record[name] is not None]
    return {
        "position": record["position"],
        "timestamp_us": record["timestamp_us"],
        **{name: text for one in beside for name, text in text_or_base64(*one).items()},
        **text_or_base64("body", record["body"]),
    }


def _record_columns(table: pa.Table, is_csv: bool) -> pa.Table:
    """Return the columns of records; a table leaves out ``stream`` or ``key`` without values."""
    import pyarrow as pa

    columns: dict[str, pa.ChunkedArray[Any]] = {
        "position": table.column("position"),
        "timestamp": times_of(table.column("timestamp_us")),
    }
    for name in ("stream", "key", "body"):
        values: list[bytes | None] = table.column(name).to_pylist()
        if is_csv or name == "body" or any(value is not None for value in values):
            columns |= text_columns(name, values, is_csv=is_csv)
    return pa.table(columns)


def text_columns(
    name: str, values: list[bytes | None], *, is_csv: bool
) -> dict[str, pa.ChunkedArray[Any]]:
    """Return bytes as text: for csv the column and its base64 column, else one escaped column.

    In each row of csv one of the two is null: base64 holds only bytes that are not UTF-8.
    """
    import pyarrow as pa

    if is_csv:
        found = [{} if value is None else text_or_base64(name, value) for value in values]
        names = [name, f"{name}{BASE64}"]
    else:
        found = [{} if value is None else {name: escaped(value)} for value in values]
        names = [name]
    return {
        each: pa.chunked_array([pa.array([one.get(each) for one in found], pa.string())])
        for each in names
    }


def times_of(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Return times in ISO 8601; after the year 9999 as numbers, the only form --from-time reads."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from tidelog.cli.values import iso_text

    times = column.cast(pa.timestamp("us", "UTC"))
    is_past = pc.greater(column, pa.scalar(ISO_MAX_US, pa.int64()))
    if not pc.any(is_past).as_py():
        return times
    texts = pa.chunked_array([iso_text(chunk) for chunk in times.chunks], pa.string())
    told = pc.if_else(is_past, column.cast(pa.string()), texts)
    return cast("pa.ChunkedArray[Any]", told)


def choose_record_format(format: str | None, *, as_json: bool) -> str:
    """Return the format of records: ``raw``, or the choice of `choose_format`.

    Raises:
        UsageError: the format is unknown, or contradicts ``--json``.
    """
    if format not in (None, "raw", *FORMATS):
        known = ", ".join((*FORMATS, "raw"))
        raise UsageError(f"--format must be one of {known}, not {format!r}")
    if as_json and format == "raw":
        raise UsageError("--json and --format raw exclude each other: pass one")
    return format if format == "raw" else choose_format(format, as_json=as_json)


def time_us_of(text: str, what: str) -> int:
    """Return a time option in microseconds since 1970; ``what`` names the option in errors.

    Raises:
        UsageError: the text is not a time.
    """
    from tidelog.collection.formats.times import parse_time_us
    from tidelog.core.clock import SystemClock
    from tidelog.wal.read.limits import check_time_us

    time_us = parse_time_us(text, what=what, now_us=SystemClock().now_us())
    check_time_us(time_us)
    return time_us


def check_rows(rows: int | None) -> None:
    """Raise unless ``--limit`` is a number of rows.

    Raises:
        UsageError: it is negative.
    """
    if rows is not None and rows < 0:
        raise UsageError(f"--limit must be 0 or more, not {rows}")
