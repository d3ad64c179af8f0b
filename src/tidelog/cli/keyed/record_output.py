"""Output of a keyed log's records, for people and programs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from tidelog.cli.keyed.options import shown_key
from tidelog.cli.log.feed import escaped, text_or_base64
from tidelog.cli.output import Rows, open_rows, print_json, write_bytes

if TYPE_CHECKING:
    import pyarrow as pa


async def write_keyed(tables: AsyncIterator[pa.Table], format: str, form: str) -> int:
    """Write records to standard output, table by table, and return their number.

    The format ``raw`` writes only values, one per line.
    """
    count = 0
    rows: Rows | None = None
    async for table in tables:
        count += table.num_rows
        if format == "raw":
            values: list[Any] = table.column("value").to_pylist()
            write_bytes(b"".join(value + b"\n" for value in values))
        elif format == "json":
            print_json(*(_json_fields(record, form) for record in table.to_pylist()))
        else:
            shown = _columns(table, form, is_csv=format == "csv")
            rows = rows or open_rows(format, shown.schema)
            rows.write(shown)
    if rows is not None:
        rows.close()
    return count


def key_text(key: bytes, form: str) -> str:
    """Return the text of a key for tables."""
    return escaped(key) if form == "text" else shown_key(key, form)["key"]


def _json_fields(record: dict[str, Any], form: str) -> dict[str, Any]:
    return {
        **shown_key(record["key"], form),
        "sequence": record["sequence"],
        "timestamp_us": record["timestamp_us"],
        **text_or_base64("value", record["value"]),
    }


def _columns(table: pa.Table, form: str, *, is_csv: bool) -> pa.Table:
    """Return the columns of records for csv and tables.

    In csv, bytes that are not UTF-8 are base64 in a column of their own, ``NAME_base64``.
    """
    import pyarrow as pa

    keys: list[Any] = table.column("key").to_pylist()
    values: list[Any] = table.column("value").to_pylist()
    numbers = {
        "sequence": table.column("sequence"),
        "timestamp": table.column("timestamp_us").cast(pa.timestamp("us", "UTC")),
    }
    if not is_csv:
        told = {"key": [key_text(key, form) for key in keys]}
        shown = {"value": [escaped(value) for value in values]}
    else:
        names = ("key", "key_base64") if form == "text" else ("key",)
        told = _texts([shown_key(key, form) for key in keys], names)
        shown = _texts([text_or_base64("value", value) for value in values], _VALUE)
    columns = {name: pa.array(texts, pa.string()) for name, texts in told.items()}
    last = {name: pa.array(texts, pa.string()) for name, texts in shown.items()}
    return pa.table({**columns, **numbers, **last})


_VALUE = ("value", "value_base64")


def _texts(found: list[dict[str, str]], names: tuple[str, ...]) -> dict[str, list[Any]]:
    return {name: [one.get(name) for one in found] for name in names}
