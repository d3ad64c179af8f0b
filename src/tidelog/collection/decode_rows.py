"""Decoding of rows that a source has in columns, or in one column as text. Pure.

Columns are fitted to the types that are wanted, as those of parquet are. Text is decoded as lines
of a file would be, each row being one: a row that holds no record, or more than one, is a bad one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.collection.catalog import ERRORS_SCHEMA
from tidelog.collection.decode import Decoded, decode_range, errors_table, fit_records
from tidelog.collection.places import Int64s
from tidelog.collection.records import OFFSET, Misfit, Records, shown
from tidelog.collection.source.binding import AddressRange, SourceRange
from tidelog.collection.source.kind import BODY, ROWS

_BREAK: Final = re.compile(rb'"(?:[^"\\\r\n]|\\[^\r\n])*"|[\r\n]|"')


def decode_rows(
    rows: pa.Table,
    found: AddressRange,
    wanted: pa.Schema,
    *,
    format: str,
    required: Sequence[str] = (),
    counted: bool = True,
) -> Decoded:
    """Decode the rows of a range; see `decode_range`."""
    if format != ROWS:
        return _decode_bodies(rows, found, wanted, required=required, counted=counted)
    missing = [name for name in wanted.names if name not in rows.column_names]
    for name in missing:
        nothing: Any = pa.nulls(rows.num_rows)
        rows = rows.append_column(name, nothing)
    addresses = rows.column(OFFSET).to_numpy()
    data = rows.select(wanted.names)
    records = Records(data, addresses, lambda some: _texts(data, some))
    return fit_records(records, found.path, wanted, required=required)


def _texts(data: pa.Table, some: Int64s) -> list[str]:
    return [repr(row) for row in data.take(some).to_pylist()]


def _decode_bodies(
    rows: pa.Table,
    found: AddressRange,
    wanted: pa.Schema,
    *,
    required: Sequence[str],
    counted: bool,
) -> Decoded:
    addresses = rows.column(OFFSET).to_numpy()
    lines, misfits = [], []
    for row, body in enumerate(rows.column(BODY).cast(pa.binary()).to_pylist()):
        line = None if body is None else one_line(body)
        if line is None:
            why = "the record is empty" if not (body or b"").strip() else "it is not one json value"
            misfits.append(Misfit(int(addresses[row]), why, shown(body or b"")))
        lines.append(line or b"")
    sizes = np.fromiter((len(line) + 1 for line in lines), np.int64, len(lines))
    # From 1 on: what marks the beginning of a file may stand at 0, and here is none.
    starts = 1 + np.cumsum(sizes) - sizes
    data = b"".join(line + b"\n" for line in lines)
    whole = SourceRange(path=found.path, start=1, limit=1 + len(data))
    done = decode_range(data, whole, wanted, format="json", required=required, counted=counted)
    good, bad = (
        _with_addresses(table, name, starts, addresses)
        for table, name in ((done.rows, OFFSET), (done.errors, "offset"))
    )
    errors = pa.concat_tables([bad, errors_table(found.path, misfits)])
    return Decoded(good, errors.sort_by("offset").cast(ERRORS_SCHEMA.data), done.dropped)


def _with_addresses(table: pa.Table, name: str, starts: Int64s, addresses: Int64s) -> pa.Table:
    """Return a table in which addresses of records stand for the places of their lines."""
    places = table.column(name).to_numpy()
    rows = np.searchsorted(starts, places, side="right") - 1
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array(addresses[rows], pa.int64()))


def one_line(body: bytes) -> bytes | None:
    """Return json as one line; None if it is empty, or a line ends within a string."""
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
