"""Decoding of csv by a dialect. Pure.

An empty field without quotes is null; with quotes it is the empty string. `lines` and
`csv.fields` find the boundaries of records and fields. Arrow's reader parses only records that
these find well formed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from tidelog.collection.formats.csv.fields import (
    QuotedFields,
    count_fields,
    find_fields,
    split_fields,
)
from tidelog.collection.formats.lines import (
    Bools,
    CsvDialect,
    Int64s,
    are_text,
    record_ends,
    split_records,
)
from tidelog.collection.formats.names import match_names
from tidelog.collection.formats.records import (
    BadRowSearch,
    Misfit,
    Records,
    blocks_of,
    gather,
    parsed_rows,
    shown,
    texts_of,
)

BLOCK_BYTES: Final = 1 << 22
_MARK: Final = b"\xef\xbb\xbf"
# A line before the header that names the delimiter: Excel reads it, and some programs write it.
_SAID: Final = re.compile(rb"(?:\xef\xbb\xbf)?sep=([\t !#-&(-~])\r?\n", re.IGNORECASE)


def said_delimiter(data: bytes) -> tuple[str, int]:
    """Return the delimiter of a line ``sep=;`` at the beginning, and the length of that line.

    Without such a line, return ``("", 0)``.
    """
    found = _SAID.match(data)
    return ("", 0) if found is None else (found.group(1).decode(), found.end())


def header_names(header: bytes, dialect: CsvDialect) -> list[str]:
    """Return the column names of a header line; names without quotes are trimmed.

    A column without a name is named by its place: column1, column2.

    Raises:
        ValueError: the line is not a csv record.
    """
    _, said = said_delimiter(header)
    fields = split_fields(header[said:].removeprefix(_MARK), dialect)
    names = [name if quoted else name.strip() for name, quoted in fields]
    return [name or f"column{place + 1}" for place, name in enumerate(names)]


def header_of(data: bytes, dialect: CsvDialect) -> bytes | None:
    """Return the header line of a file that begins with ``data``; None if it is not whole yet.

    A line before it that names the delimiter is part of the result.
    """
    _, said = said_delimiter(data)
    ends = record_ends(data[said:] if said else data, dialect, final=False)
    return data[: said + int(ends[0])] if len(ends) else None


def decode_csv(
    data: bytes, wanted: pa.Schema, *, base: int, header: bytes, dialect: CsvDialect
) -> Records:
    """Parse the records of a range; one that starts at offset 0 begins with the header itself."""
    names = header_names(header, dialect) if dialect.has_header else list(dialect.names)
    if dialect.folds_case:
        names = match_names(names, wanted.names)
    mark = said_delimiter(data)[1] or len(_MARK) * data.startswith(_MARK)
    skip = len(header) if dialect.has_header else mark
    skip = skip if base == 0 else 0
    body = data[skip:]
    starts, ends = split_records(body, dialect)
    faults = np.flatnonzero(~are_text(body, ends)) if len(starts) else np.zeros(0, np.int64)
    records = _Records(
        body, starts, ends, len(names), dialect, find_fields(body, starts, ends, dialect)
    )
    search = BadRowSearch(records.parse, [records.guess])
    fit = np.ones(len(starts), dtype=np.bool_)
    fit[faults] = False
    fit[list(records.fields.faults)] = False
    search.bad.extend(np.flatnonzero(~fit).tolist())
    for rows in blocks_of(starts, np.flatnonzero(fit), BLOCK_BYTES):
        search.take(rows)
    parsed, rows = parsed_rows(search, _empty(len(names)))
    misfits = [
        Misfit(base + skip + int(starts[row]), records.fault(row), shown(records.record(row)))
        for row in search.bad
    ]
    table, dropped = _by_name(parsed, names, wanted)
    return Records(
        table,
        base + skip + starts[rows],
        lambda some: texts_of([shown(records.record(row)) for row in rows[some].tolist()]),
        misfits,
        dropped,
    )


def _by_name(
    parsed: pa.Table, names: list[str], wanted: pa.Schema
) -> tuple[pa.Table, dict[str, int]]:
    """Return the wanted columns, and the number of values in each other column."""
    # If two columns have the same name, the first counts: its type was inferred under that name.
    known = {n: i for i, n in reversed(list(enumerate(names)))}
    nothing = pa.nulls(parsed.num_rows, pa.string())
    columns = [parsed.column(known[f.name]) if f.name in known else nothing for f in wanted]
    unknown = known.keys() - {*wanted.names}
    counts = {n: parsed.num_rows - parsed.column(known[n]).null_count for n in unknown}
    return pa.table(columns, names=wanted.names), {n: c for n in names if (c := counts.get(n))}


@dataclass(frozen=True, slots=True)
class _Records:
    """The records of a range, with the parser and the guess for a search."""

    data: bytes
    starts: Int64s
    ends: Int64s
    columns: int
    dialect: CsvDialect
    fields: QuotedFields
    _uneven: set[int] = field(default_factory=set)

    def record(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.ends[row]]

    def parse(self, rows: Int64s) -> pa.Table | None:
        """Parse records at once; None if one of them is bad."""
        if len(rows) == 1 and int(rows[0]) in self._uneven:
            return None
        chunk = gather(self.data, self.starts, self.ends, rows)
        if chunk.startswith(_MARK):
            chunk = _MARK + chunk  # Arrow drops one byte order mark at the beginning.
        if not chunk.endswith(b"\n"):
            # Without a line end, Arrow may take an empty last field for a quoted one.
            chunk += b"\n"
        names = [str(i) for i in range(self.columns)]
        try:
            table = pcsv.read_csv(
                pa.BufferReader(chunk),  # type: ignore[arg-type]
                read_options=pcsv.ReadOptions(
                    use_threads=False, block_size=len(chunk) + 1, column_names=names
                ),
                parse_options=pcsv.ParseOptions(
                    delimiter=self.dialect.delimiter,
                    quote_char=self.dialect.quote or False,
                    newlines_in_values=True,
                ),
                convert_options=pcsv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=["", *self.dialect.nulls],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return None
        return table if table.num_rows == len(rows) else None

    def guess(self, rows: Int64s) -> Bools:
        """Return a mask of the records with too few or too many fields: these are surely bad."""
        starts, ends = self.starts[rows], self.ends[rows]
        counts = count_fields(self.data, starts, ends, self.fields.toggles, self.dialect)
        doubted: Bools = counts != self.columns
        self._uneven.update(rows[doubted].tolist())
        return doubted

    def fault(self, row: int) -> str:
        """Return the fault of a bad record, in words that do not depend on a library's version."""
        record = self.record(row)
        try:
            count = len(split_fields(record, self.dialect))
        except UnicodeDecodeError:
            return "the record is not UTF-8"
        except ValueError as error:
            return str(error)
        if count != self.columns:
            return f"the record has {count} fields, the header {self.columns}"
        return "the record is not csv"


def _empty(columns: int) -> pa.Table:
    return pa.table({str(i): pa.array([], pa.string()) for i in range(columns)})
