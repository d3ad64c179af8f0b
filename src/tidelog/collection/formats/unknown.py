"""Fields of the data that a schema lacks, at any depth, and the counts of their values. Pure.

A top-level field has its name, and a field within a struct has a dotted path: ``place.city``. A
list adds nothing to a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from tidelog.collection.formats.types import without_maps
from tidelog.persist.format.duck import duck, text_literal

_POINTER: Final = "'/' || replace(replace(name, '~', '~0'), '/', '~1')"


def unknown_paths(found: pa.Schema, wanted: pa.Schema) -> list[str]:
    """Return the paths of the fields of ``found`` that ``wanted`` lacks, in order.

    A field of the type null has no values, and is left out.
    """
    known = {field.name: field.type for field in reversed(list(wanted))}
    paths: list[str] = []
    for field in found:
        if pa.types.is_null(field.type):
            continue
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
            if pa.types.is_null(field.type):
                continue
            if field.name not in known:
                yield below
            else:
                yield from _within(field.type, known[field.name], below)


def count_unknown(chunk: bytes, wire: pa.Schema, dropped: dict[str, int]) -> None:
    """Count the values of the fields that the schema lacks in lines of json.

    A null is no value, so the count of a field that is always null is 0.
    """
    row = pa.struct(list(wire))
    lines = pa.table({"line": pa.array(chunk.split(b"\n"), pa.binary()).cast(pa.string())})
    with duck() as connection:
        connection.register("lines", lines)
        # Lines that are not strict json (with NaN) are not counted. The counts only inform users.
        plain = "SELECT line::JSON AS v FROM lines WHERE json_valid(line)"
        for prefix, objects, dtype in _objects(plain, row, ""):
            counted = connection.execute(
                f"SELECT name, count(*) FILTER (json_type(v, {_POINTER}) <> 'NULL') FROM "
                f"(SELECT v, unnest(json_keys(v)) AS name FROM ({objects})) "
                "WHERE name NOT IN (SELECT unnest(?)) GROUP BY name ORDER BY name",
                [[field.name for field in dtype]],
            ).fetchall()
            for name, count in counted:
                dropped[prefix + name] = dropped.get(prefix + name, 0) + count


def _objects(
    query: str, dtype: pa.DataType, prefix: str
) -> Iterator[tuple[str, str, pa.StructType]]:
    """Yield the path of each struct in a type, a query that selects its values, and its type."""
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
