"""Fields that a schema lacks: which ones, wherever they lie, and how many values they have. Pure.

Those of the row itself go by their name, those within structs by a dotted path: ``place.city``. A
list adds nothing to a path.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tidelog.collection.formats.types import without_maps
from tidelog.persist.format.duck import duck, text_literal


def unknown_paths(found: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Return what columns that are there lack in those that are wanted, in order."""
    known = {field.name: field.type for field in reversed(list(wanted))}
    paths: list[str] = []
    for field in found:
        if field.name not in known:
            paths.append(field.name)
        elif pa.types.is_nested(field.type):
            paths += _within(without_maps(field.type), known[field.name], field.name)
    return list(dict.fromkeys(paths))


def _within(found: pa.DataType, wanted: pa.DataType, path: str) -> Iterator[str]:
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        yield from _within(found.value_type, wanted.value_type, path)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        known = {field.name: field.type for field in wanted}
        for field in found:
            below = f"{path}.{field.name}"
            if field.name not in known:
                yield below
            else:
                yield from _within(field.type, known[field.name], below)


def count_unknown(chunk: bytes, wire: pa.Schema, dropped: dict[str, int]) -> None:
    """Count the fields of a chunk's lines of json that the schema lacks."""
    row = pa.struct(list(wire))
    lines = pa.table({"line": pa.array(chunk.split(b"\n"), pa.binary()).cast(pa.string())})
    with duck() as connection:
        connection.register("lines", lines)
        # What is not strictly json (NaN) is not counted: the count informs, and decides nothing.
        plain = "SELECT line::JSON AS v FROM lines WHERE json_valid(line)"
        for prefix, objects, dtype in _objects(plain, row, ""):
            counted = connection.execute(
                f"SELECT name, count(*) FROM (SELECT unnest(json_keys(v)) AS name FROM ({objects}))"
                " GROUP BY name"
            ).fetchall()
            known = {field.name for field in dtype}
            for name, count in counted:
                if name not in known:
                    dropped[prefix + name] = dropped.get(prefix + name, 0) + count


def _objects(
    query: str, dtype: pa.DataType, prefix: str
) -> Iterator[tuple[str, str, pa.StructType]]:
    """Yield each struct of a type: its path, what selects its values, and its own type."""
    if pa.types.is_list(dtype):
        items = f"SELECT unnest(json_extract(v, '$[*]')) AS v FROM ({query})"
        yield from _objects(items, dtype.value_type, prefix)
    if isinstance(dtype, pa.StructType):
        yield prefix, query, dtype
        for field in dtype:
            if pa.types.is_nested(field.type):
                pointer = text_literal("/" + field.name.replace("~", "~0").replace("/", "~1"))
                values = f"SELECT json_extract(v, {pointer}) AS v FROM ({query})"
                yield from _objects(values, field.type, f"{prefix}{field.name}.")
