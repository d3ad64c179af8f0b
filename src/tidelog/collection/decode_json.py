"""Json lines: one object a line. Pure.

Arrow's reader is given only lines that begin with ``{`` and end with ``}``: it crashes the process
on a line that is a bare ``null``, and takes several objects in one line, or one over several
lines, for rows. Nor is it asked to infer fields that the schema lacks: deep nesting in one of
those crashes it too.
"""

from __future__ import annotations

import io
import json
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from tidelog.collection.lines import outer_bytes, split_records
from tidelog.collection.records import Int64s, Misfit, Records, gather, shown
from tidelog.collection.types import json_wire, sql_type
from tidelog.persist.duck import duck

_MARK: Final = b"\xef\xbb\xbf"  # What some editors put at the beginning of a file of UTF-8.
_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")


def decode_json(data: bytes, wanted: pa.Schema, *, base: int, counted: bool = True) -> Records:
    """Parse the lines of a range that starts at offset ``base`` of its file.

    ``counted`` asks for counts of the fields that ``wanted`` lacks.
    """
    if base == 0 and data.startswith(_MARK):
        data = b" " * len(_MARK) + data[len(_MARK) :]
    starts, ends = split_records(data, quoted=False)
    wire = pa.schema([pa.field(f.name, json_wire(f.type)) for f in wanted])
    tables: list[pa.Table] = []
    kept: list[Int64s] = []
    misfits: list[Misfit] = []
    dropped: dict[str, int] | None = {} if counted else None

    def parse(rows: Int64s) -> None:
        """Parse some lines; where they do not parse together, parse each half."""
        if not len(rows):
            return
        chunk = gather(data, starts, ends, rows)
        found = _parse_chunk(chunk, wire, len(rows), dropped)
        if found is not None:
            tables.append(found)
            kept.append(rows)
        elif len(rows) == 1:
            where = base + int(starts[rows[0]])
            misfits.append(Misfit(where, _reason(chunk, wanted), shown(chunk)))
        else:
            middle = len(rows) // 2
            parse(rows[:middle])
            parse(rows[middle:])

    if len(starts):
        first, last = outer_bytes(data, starts, ends)
        whole = (first == _OPEN) & (last == _CLOSE)
        parse(np.flatnonzero(whole))
        for row in np.flatnonzero(~whole):
            line = data[starts[row] : ends[row]]
            misfits.append(Misfit(base + int(starts[row]), _reason(line, wanted), shown(line)))
    rows = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    table = pa.concat_tables(tables) if tables else wire.empty_table()
    return Records(
        table,
        base + starts[rows],
        lambda row: shown(data[starts[rows[row]] : ends[rows[row]]]),
        misfits,
        dropped or {},
    )


def _parse_chunk(
    chunk: bytes, wire: pa.Schema, records: int, dropped: dict[str, int] | None
) -> pa.Table | None:
    """Parse lines at once; None if one of them is bad. Counts fields that the schema lacks."""
    try:
        chunk.decode("utf-8")
    except UnicodeDecodeError:
        return None
    # Most chunks have no unknown field, and those that do show it in their first lines.
    table = None if dropped is None else _read(chunk, wire, unknown="error")
    if table is None:
        table = _read(chunk, wire, unknown="ignore")
        if dropped is not None and table is not None and table.num_rows == records:
            _count_unknown(chunk, wire, dropped)
    return None if table is None or table.num_rows != records else table.select(wire.names)


def _read(chunk: bytes, wire: pa.Schema, *, unknown: Literal["error", "ignore"]) -> pa.Table | None:
    """Parse lines; None if one is bad."""
    try:
        return pj.read_json(
            io.BytesIO(chunk),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
            parse_options=pj.ParseOptions(explicit_schema=wire, unexpected_field_behavior=unknown),
        )
    except pa.ArrowInvalid:
        return None


def _count_unknown(chunk: bytes, wire: pa.Schema, dropped: dict[str, int]) -> None:
    """Count the fields of a chunk's objects that the schema lacks."""
    lines = pa.table({"line": pa.array(chunk.split(b"\n"), pa.binary()).cast(pa.string())})
    with duck() as connection:
        connection.register("lines", lines)
        # What is not strictly json (NaN) is not counted: the count informs, and decides nothing.
        counted = connection.execute(
            "SELECT name, count(*) FROM (SELECT unnest(json_keys(line)) AS name FROM lines "
            "WHERE json_valid(line)) GROUP BY name"
        ).fetchall()
    for name, count in counted:
        if name not in wire.names:
            dropped[name] = dropped.get(name, 0) + count


def _reason(line: bytes, wanted: pa.Schema) -> str:
    """Say what is wrong with one line, in words that do not change with a library's version."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return "the line is not UTF-8"
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return "the line is not one json value"
    if not isinstance(value, dict):
        return "the line is not a json object"
    for field in wanted:
        if field.name in value and not _fits_alone(value[field.name], field):
            return f"column {field.name!r} does not fit its type {sql_type(field.type)}"
    return "the line is not a plain json object (is a field named twice?)"


def _fits_alone(value: Any, field: pa.Field[Any]) -> bool:
    wire = pa.schema([pa.field(field.name, json_wire(field.type))])
    found = _read(json.dumps({field.name: value}).encode(), wire, unknown="ignore")
    return found is not None and found.num_rows == 1
