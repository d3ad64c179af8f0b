"""Json lines: one object a line. Pure."""

from __future__ import annotations

import io
import json
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from tidelog.collection.lines import split_records
from tidelog.collection.records import Int64s, Misfit, Records, shown
from tidelog.collection.types import json_wire, sql_type

_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")


def decode_json(data: bytes, wanted: pa.Schema, *, base: int) -> Records:
    """Parse the lines of a range that starts at offset ``base`` of its file."""
    starts, ends = split_records(data, quoted=False)
    wire = pa.schema([pa.field(f.name, json_wire(f.type)) for f in wanted])
    tables: list[pa.Table] = []
    kept: list[Int64s] = []
    misfits: list[Misfit] = []
    dropped: dict[str, int] = {}

    def parse(low: int, high: int) -> None:
        """Parse records ``[low, high)``; where they do not parse together, parse each half."""
        if low == high:
            return
        chunk = data[starts[low] : ends[high - 1]]
        found = _parse_chunk(chunk, wire, high - low, dropped)
        if found is not None:
            tables.append(found)
            kept.append(np.arange(low, high, dtype=np.int64))
        elif high - low == 1:
            misfits.append(Misfit(base + int(starts[low]), _reason(chunk, wanted), shown(chunk)))
        else:
            middle = (low + high) // 2
            parse(low, middle)
            parse(middle, high)

    if len(starts) and _lines_look_whole(data, starts, ends):
        parse(0, len(starts))
    else:
        # A line that is no object could join with its neighbours into one: parse each line alone.
        for row in range(len(starts)):
            parse(row, row + 1)
    rows = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    table = pa.concat_tables(tables) if tables else wire.empty_table()
    return Records(
        table,
        base + starts[rows],
        lambda row: shown(data[starts[rows[row]] : ends[rows[row]]]),
        misfits,
        dropped,
    )


def _lines_look_whole(data: bytes, starts: Int64s, ends: Int64s) -> bool:
    """Say whether each line begins with ``{`` and ends with ``}``, but for its line end."""
    raw = np.frombuffer(data, dtype=np.uint8)
    last = ends - 1
    for _ in range(2):  # the line end itself, and a carriage return before it
        last = np.where(np.isin(raw[np.maximum(last, starts)], (10, 13)), last - 1, last)
    return bool(np.all(raw[starts] == _OPEN) and np.all(raw[np.maximum(last, starts)] == _CLOSE))


def _parse_chunk(
    chunk: bytes, wire: pa.Schema, records: int, dropped: dict[str, int]
) -> pa.Table | None:
    """Parse lines at once; None if one of them is bad. Counts fields that the schema lacks."""
    try:
        chunk.decode("utf-8")
        table = _read(chunk, wire, "ignore")
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    if table.num_rows != records:
        return None
    nulls = sum(table.column(n).null_count for n in wire.names)
    if _keys_count(chunk) != records * len(wire) - nulls:
        _count_unknown(chunk, wire, dropped)
    return table.select(wire.names)


def _read(chunk: bytes, wire: pa.Schema, unexpected: Literal["ignore", "infer"]) -> pa.Table:
    return pj.read_json(
        io.BytesIO(chunk),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
        parse_options=pj.ParseOptions(explicit_schema=wire, unexpected_field_behavior=unexpected),
    )


def _keys_count(chunk: bytes) -> int:
    """Give how many keys a chunk has at the most (a ``":`` inside of a string counts too)."""
    raw = np.frombuffer(chunk, dtype=np.uint8)
    quotes = np.flatnonzero(raw[:-1] == ord('"'))
    direct = int(np.count_nonzero(raw[quotes + 1] == ord(":")))
    # Spaces before colons are rare; where there are any, the count is not to be relied on.
    return direct if b'" :' not in chunk and b'"\t:' not in chunk else -1


def _count_unknown(chunk: bytes, wire: pa.Schema, dropped: dict[str, int]) -> None:
    known = set(wire.names)
    try:
        table = _read(chunk, wire, "infer")
        counts = {
            n: table.num_rows - table.column(n).null_count
            for n in table.column_names
            if n not in known
        }
    except pa.ArrowInvalid:
        # Fields that the schema lacks may be of several types; then only counting one by one does.
        counts = {}
        for line in chunk.splitlines():
            for name, value in (json.loads(line) if line.strip() else {}).items():
                if name not in known and value is not None:
                    counts[name] = counts.get(name, 0) + 1
    for name, count in counts.items():
        dropped[name] = dropped.get(name, 0) + count


def _reason(line: bytes, wanted: pa.Schema) -> str:
    """Say what is wrong with one line, in words that do not change with a library's version."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return "the line is not UTF-8"
    try:
        value: Any = json.loads(text)
    except ValueError:
        return "the line is not one json value"
    if not isinstance(value, dict):
        return "the line is not a json object"
    for field in wanted:
        if field.name in value and not _fits_alone(value[field.name], field):
            return f"column {field.name!r} does not fit its type {sql_type(field.type)}"
    return "the line is not a plain json object (is a field named twice?)"


def _fits_alone(value: Any, field: pa.Field[Any]) -> bool:
    wire = pa.schema([pa.field(field.name, json_wire(field.type))])
    try:
        return _read(json.dumps({field.name: value}).encode(), wire, "ignore").num_rows == 1
    except pa.ArrowInvalid:
        return False
