"""Decoding of rows of sources that are not files: columns, or one column of text. Pure.

Columns are converted to the wanted types, like those of parquet. Text is decoded like lines of a
file, one line for each row. A row without a record, or with more than one, is bad.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import ERRORS_SCHEMA
from tidelog.collection.formats.dialect import CsvDialect
from tidelog.collection.formats.places import Int64s
from tidelog.collection.formats.records import OFFSET, Misfit, Records, shown
from tidelog.collection.formats.row_texts import row_texts, texts_of
from tidelog.collection.source.binding import AddressRange, FileRange
from tidelog.collection.source.decode import Decoded, decode_range, errors_table, fit_records
from tidelog.collection.source.kind import BODY, ROWS

_COMMAS: Final = CsvDialect()
_BREAK: Final = re.compile(rb'"(?:[^"\\\r\n]|\\[^\r\n])*"|[\r\n]|"')


def decode_rows(
    rows: pa.Table,
    found: AddressRange,
    wanted: pa.Schema,
    *,
    format: str,
    dialect: CsvDialect = _COMMAS,
    required: Sequence[str] = (),
    counted: bool = True,
) -> Decoded:
    """Decode the rows of a range; see `decode_range`."""
    if format != ROWS:
        bodies = rows.column(BODY).cast(pa.binary()).to_pylist()
        one_record = one_line if format == "json" else csv_line
        lines = [None if body is None else one_record(body) for body in bodies]
        addresses = rows.column(OFFSET).to_numpy()
        misfits = [
            Misfit(address, _no_record(body, format), shown(body or b""))
            for address, body, line in zip(addresses.tolist(), bodies, lines, strict=True)
            if line is None
        ]
        decode = partial(
            decode_range,
            wanted=wanted,
            format=format,
            dialect=dialect,
            required=required,
            counted=counted,
        )
        return _decode_records(lines, addresses, misfits, found.path, decode)
    missing = [name for name in wanted.names if name not in rows.column_names]
    for name in missing:
        nothing: Any = pa.nulls(rows.num_rows)
        rows = rows.append_column(name, nothing)
    addresses = rows.column(OFFSET).to_numpy()
    data = rows.select(wanted.names)
    dropped: dict[str, int] = {}
    if counted:
        others = (name for name in rows.column_names if name not in {OFFSET, *wanted.names})
        values = {name: rows.num_rows - rows.column(name).null_count for name in others}
        dropped = {name: count for name, count in values.items() if count}
    records = Records(data, addresses, lambda some: row_texts(data.take(some)), dropped=dropped)
    return fit_records(records, found.path, wanted, required=required)


def _no_record(body: bytes | None, format: str) -> str:
    if not (body or b"").strip():
        return "the record is empty"
    return "the record is not one json value" if format == "json" else "the record is not one line"


def _decode_records(
    records: Sequence[bytes | None],
    addresses: Int64s,
    misfits: Sequence[Misfit],
    path: str,
    decode: Callable[[bytes, FileRange], Decoded],
) -> Decoded:
    """Decode records as the lines of a file; those that are None are in ``misfits``."""
    lines = [record or b"" for record in records]
    sizes = np.fromiter((len(line) + 1 for line in lines), np.int64, len(lines))
    # Begin at offset 1: at 0, the decoder would look for the mark of a file's beginning.
    starts = 1 + np.cumsum(sizes) - sizes
    data = b"".join(line + b"\n" for line in lines)
    done = decode(data, FileRange(path=path, start=1, limit=1 + len(data)))
    good, bad = (
        _with_addresses(table, name, starts, addresses)
        for table, name in ((done.rows, OFFSET), (done.errors, "offset"))
    )
    errors = pa.concat_tables([bad, errors_table(path, misfits)])
    return Decoded(
        good,
        errors.sort_by("offset").cast(ERRORS_SCHEMA.data),
        done.dropped,
        lambda some: texts_of(
            [shown(lines[row]) for row in np.searchsorted(addresses, some).tolist()]
        ),
    )


def _with_addresses(table: pa.Table, name: str, starts: Int64s, addresses: Int64s) -> pa.Table:
    """Return a table with the offsets of lines replaced by the addresses of their records."""
    places = table.column(name).to_numpy()
    rows = np.searchsorted(starts, places, side="right") - 1
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array(addresses[rows], pa.int64()))


def csv_line(body: bytes) -> bytes | None:
    """Return a csv record without its line end; None if it is empty or has more than one line."""
    line = body.removesuffix(b"\n").removesuffix(b"\r")
    return None if not line.strip() or b"\n" in line or b"\r" in line else line


def one_line(body: bytes) -> bytes | None:
    """Return json as one line; None if it is empty or has a line break within a string."""
    body = body.strip()
    if not body:
        return None
    if b"\n" not in body and b"\r" not in body:
        return body
    torn: list[bool] = []

    def flat(found: re.Match[bytes]) -> bytes:
        text = found.group()
        torn.extend([True] * (text == b'"'))
        return b" " if text in (b"\n", b"\r") else text

    line = _BREAK.sub(flat, body)
    return None if torn else line
