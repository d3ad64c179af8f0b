"""Csv with a header. Pure.

A field that is empty and not quoted is null; in quotes it is the empty string.
"""

from __future__ import annotations

import csv
import io
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from tidelog.collection.lines import record_ends, split_records
from tidelog.collection.records import Int64s, Misfit, Records, gather, shown

Bools = np.ndarray[Any, np.dtype[np.bool_]]

_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_BEFORE_OPENING: Final = list(b',"\n')
_AFTER_CLOSING: Final = list(b',"\n\r')


def header_names(header: bytes) -> list[str]:
    """Return the column names of a header line."""
    text = header.decode("utf-8-sig", errors="replace").strip("\r\n")
    return _fields(text) or text.split(",")


def decode_csv(data: bytes, wanted: pa.Schema, *, base: int, header: bytes) -> Records:
    """Parse the records of a range; one that starts at offset 0 begins with the header itself."""
    names = header_names(header)
    skip = len(header) if base == 0 else 0
    body = data[skip:]
    starts, ends = split_records(body, quoted=True)
    # Of two columns of one name, the first is the one whose type was inferred under that name.
    known = {n: i for i, n in reversed(list(enumerate(names)))}
    odd = _odd_records(body, starts)
    tables: list[pa.Table] = []
    kept: list[Int64s] = []
    misfits: list[Misfit] = []

    def parse(rows: Int64s) -> None:
        """Parse some records; where they do not parse together, parse each half."""
        if not len(rows):
            return
        chunk = gather(body, starts, ends, rows)
        together = len(rows) == 1 or not odd[rows].any()
        found = _parse_chunk(chunk, names, len(rows)) if together else None
        if found is not None:
            tables.append(found)
            kept.append(rows)
        elif len(rows) == 1:
            where = base + skip + int(starts[rows[0]])
            misfits.append(Misfit(where, _reason(chunk, len(names)), shown(chunk)))
        else:
            middle = len(rows) // 2
            parse(rows[:middle])
            parse(rows[middle:])

    parse(np.arange(len(starts), dtype=np.int64))
    rows = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    parsed = pa.concat_tables(tables) if tables else _empty(names)
    nothing = pa.nulls(parsed.num_rows, pa.string())
    columns = [parsed.column(known[f.name]) if f.name in known else nothing for f in wanted]
    unknown = [n for n in names if n not in wanted.names]
    dropped = {
        n: parsed.num_rows - parsed.column(known[n]).null_count for n in unknown if parsed.num_rows
    }
    return Records(
        pa.table(columns, names=wanted.names),
        base + skip + starts[rows],
        lambda some: [shown(body[starts[row] : ends[row]]) for row in rows[some].tolist()],
        misfits,
        {n: c for n, c in dropped.items() if c},
    )


def header_of(data: bytes) -> bytes | None:
    """Return the header line of a file that begins with ``data``; None if it is not whole yet."""
    ends = record_ends(data, quoted=True)
    return data[: int(ends[0])] if len(ends) else None


def _parse_chunk(chunk: bytes, names: list[str], records: int) -> pa.Table | None:
    try:
        chunk.decode("utf-8")
        table = pcsv.read_csv(
            io.BytesIO(chunk),
            read_options=pcsv.ReadOptions(
                use_threads=False,
                block_size=len(chunk) + 1,
                column_names=[str(i) for i in range(len(names))],
            ),
            parse_options=pcsv.ParseOptions(newlines_in_values=True),
            convert_options=pcsv.ConvertOptions(
                column_types={str(i): pa.string() for i in range(len(names))},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return table if table.num_rows == records else None


def _odd_records(body: bytes, starts: Int64s) -> Bools:
    """Say which records hold a quote, or a carriage return, where csv has none.

    Arrow's reader sees their ends elsewhere, and could make one row of two of them: each of these
    is parsed alone.
    """
    raw = np.frombuffer(body, dtype=np.uint8)
    quotes = np.flatnonzero(raw == _QUOTE)
    opening, closing = quotes[0::2], quotes[1::2]
    before, after = raw[np.maximum(opening - 1, 0)], raw[np.minimum(closing + 1, len(raw) - 1)]
    misplaced = [
        opening[(opening > 0) & ~np.isin(before, _BEFORE_OPENING)],
        closing[(closing + 1 < len(raw)) & ~np.isin(after, _AFTER_CLOSING)],
        quotes[len(quotes) - len(quotes) % 2 :],
    ]
    returns = np.flatnonzero(raw == _RETURN)
    returns = returns[np.searchsorted(quotes, returns) % 2 == 0]
    misplaced.append(returns[raw[np.minimum(returns + 1, len(raw) - 1)] != _NEWLINE])
    odd = np.zeros(len(starts), dtype=np.bool_)
    if len(starts):
        places = np.searchsorted(starts, np.concatenate(misplaced), side="right") - 1
        odd[np.maximum(places, 0)] = True
    return odd


def _empty(names: list[str]) -> pa.Table:
    return pa.table({str(i): pa.array([], pa.string()) for i in range(len(names))})


def _reason(line: bytes, columns: int) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return "the record is not UTF-8"
    found = _fields(text.strip("\r\n"))
    if found is not None and len(found) != columns:
        return f"the record has {len(found)} fields, the header {columns}"
    return "the record is not csv"


def _fields(text: str) -> list[str] | None:
    """Return the fields of one record; None if it is not csv."""
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error:
        return None
