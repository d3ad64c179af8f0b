"""Csv with a header. Pure.

A field that is empty and not quoted is null; in quotes it is the empty string.
"""

from __future__ import annotations

import csv
import io

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from tidelog.collection.lines import record_ends, split_records
from tidelog.collection.records import Int64s, Misfit, Records, gather, shown


def header_names(header: bytes) -> list[str]:
    """Give the column names of a header line."""
    text = header.decode("utf-8-sig", errors="replace").strip("\r\n")
    return next(csv.reader([text]), [])


def decode_csv(data: bytes, wanted: pa.Schema, *, base: int, header: bytes) -> Records:
    """Parse the records of a range; one that starts at offset 0 begins with the header itself."""
    names = header_names(header)
    skip = len(header) if base == 0 else 0
    body = data[skip:]
    starts, ends = split_records(body, quoted=True)
    known = {n: i for i, n in enumerate(names)}
    tables: list[pa.Table] = []
    kept: list[Int64s] = []
    misfits: list[Misfit] = []

    def parse(rows: Int64s) -> None:
        """Parse some records; where they do not parse together, parse each half."""
        if not len(rows):
            return
        chunk = gather(body, starts, ends, rows)
        found = _parse_chunk(chunk, names, len(rows))
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
        lambda row: shown(body[starts[rows[row]] : ends[rows[row]]]),
        misfits,
        {n: c for n, c in dropped.items() if c},
    )


def header_of(data: bytes) -> bytes | None:
    """Give the header line of a file that begins with ``data``; None if it is not whole yet."""
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


def _empty(names: list[str]) -> pa.Table:
    return pa.table({str(i): pa.array([], pa.string()) for i in range(len(names))})


def _reason(line: bytes, columns: int) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return "the record is not UTF-8"
    found = len(next(csv.reader([text.strip("\r\n")]), []))
    if found != columns:
        return f"the record has {found} fields, the header {columns}"
    return "the record is not csv"
