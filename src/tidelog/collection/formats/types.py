"""Column types: how SQL writes them, and what each is on the wire. Pure.

Text formats carry less than types: a date in json is a string, and everything in csv is. So a
column is parsed as its *wire* type and then cast (see casts.py); a value that the cast refuses
makes its row a bad one, whatever stands in other rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, cast

import pyarrow as pa

from tidelog.errors import UsageError
from tidelog.persist.format.duck import duck, quoted
from tidelog.persist.format.schema import MEANING, canonical_type

_SQL: Final[dict[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
}
# A name, and a type: words, brackets, numbers; nothing that could be another clause or statement.
_COLUMN: Final = re.compile(
    r"""\s*("(?:[^"]|"")+"|\w+)\s+((?:(?!default\b|check\b|primary\b|unique\b|not\b)"""
    r"""[\w\s()\[\],"])+)""",
    re.IGNORECASE,
)
_JSON: Final = {MEANING: b"json"}


def json_field(name: str) -> pa.Field[Any]:
    """Return a column whose values are the text of any json value, as it stands."""
    return pa.field(name, pa.string(), metadata=_JSON)


def is_json(field: pa.Field[Any]) -> bool:
    """Say whether a column takes any json value, and keeps its text."""
    return (field.metadata or {}).get(MEANING) == _JSON[MEANING]


def sql_type_of(field: pa.Field[Any]) -> str:
    """Return a column's type as users write it."""
    return "JSON" if is_json(field) else sql_type(field.type)


def sql_type(dtype: pa.DataType) -> str:
    """Return a canonical type as DuckDB writes it."""
    if dtype in _SQL:
        return _SQL[dtype]
    if pa.types.is_decimal(dtype):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    if pa.types.is_list(dtype):
        return f"{sql_type(dtype.value_type)}[]"
    if pa.types.is_struct(dtype):
        return f"STRUCT({', '.join(f'{quoted(f.name)} {sql_type(f.type)}' for f in dtype)})"
    raise UsageError(f"a column cannot be of type {dtype} here")


def parse_schema(text: str) -> pa.Schema:
    """Read ``flight int, day date, ...`` in DuckDB's types.

    Raises:
        UsageError: it is not that.
    """
    import duckdb  # Not where types are only told: it takes 50 ms to load.

    split = _split_columns(text)
    columns = ", ".join(f"{name} {kind}" for name, kind in split)
    with duck() as connection:
        try:
            connection.execute(f"CREATE TEMP TABLE given ({columns})")
            found = connection.sql("SELECT * FROM given LIMIT 0").to_arrow_table().schema
        except duckdb.Error as error:
            why = str(error).splitlines()[0]
            raise UsageError(
                f"--schema cannot be read: {why}; write it as 'flight int, day date'"
            ) from error
        finally:
            connection.execute("DROP TABLE IF EXISTS given")
    kinds = [kind.strip().upper() for _, kind in split]
    return pa.schema(
        [
            json_field(f.name) if kind == "JSON" else pa.field(f.name, canonical_type(f.type))
            for f, kind in zip(found, kinds, strict=True)
        ]
    )


def _split_columns(text: str) -> list[tuple[str, str]]:
    """Split ``name type, name type`` at the commas that no bracket holds; names come back quoted.

    A name that SQL would want quoted, such as ``at``, needs no quotes here.
    """
    items, depth, start = [], 0, 0
    for place, sign in enumerate(text + ","):
        depth += (sign in "([") - (sign in ")]")
        if sign == "," and depth == 0:
            items.append(text[start:place])
            start = place + 1
    columns: list[tuple[str, str]] = []
    for item in items:
        found = _COLUMN.fullmatch(item)
        if found is None:
            raise UsageError(
                f"--schema cannot be read at {item.strip()!r}: write names and types, "
                "such as 'flight int, day date'"
            )
        name = found.group(1)
        plain = name[1:-1].replace('""', '"') if name.startswith('"') else name
        columns.append((quoted(plain), found.group(2)))
    return columns


def without_maps(dtype: pa.DataType) -> pa.DataType:
    """Return the type with lists of entries for maps: two lists can be compared, maps not."""
    if pa.types.is_map(dtype):
        entries = [("key", dtype.key_type), ("value", dtype.item_type)]
        return without_maps(pa.list_(pa.struct(entries)))
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, without_maps(f.type)) for f in dtype])
    kind = canonical_type(dtype)
    return pa.list_(without_maps(kind.value_type)) if pa.types.is_list(kind) else dtype


def bytes_type(dtype: Any) -> pa.DataType:
    """Return the type with bytes in place of text."""
    if pa.types.is_string(dtype):
        return pa.binary()
    if pa.types.is_large_string(dtype):
        return pa.large_binary()
    if pa.types.is_dictionary(dtype):
        kind = bytes_type(dtype.value_type)
        return kind if kind != dtype.value_type else cast("pa.DataType", dtype)
    return _with_inner(dtype, bytes_type)


def plain_type(dtype: Any) -> pa.DataType:
    """Return the type without views and extensions, of which Arrow cannot take single rows.

    Views of lists stay: what Arrow makes lists of has wrong offsets where there are nulls.
    """
    if isinstance(dtype, pa.BaseExtensionType):
        return plain_type(dtype.storage_type)
    if pa.types.is_string_view(dtype) or pa.types.is_binary_view(dtype):
        return pa.string() if pa.types.is_string_view(dtype) else pa.binary()
    return _with_inner(dtype, plain_type)


def _with_inner(dtype: Any, change: Callable[[Any], pa.DataType]) -> pa.DataType:
    """Return a nested type with its inner types changed; other types stay."""

    def changed(field: pa.Field[Any]) -> pa.Field[Any]:
        return field.with_type(change(field.type))

    if pa.types.is_map(dtype):
        made: Any = pa.map_  # It takes fields, which its types do not say.
        return cast(
            "pa.DataType",
            made(changed(dtype.key_field), changed(dtype.item_field), dtype.keys_sorted),
        )
    if pa.types.is_struct(dtype):
        return pa.struct([changed(field) for field in dtype])
    if pa.types.is_fixed_size_list(dtype):
        size: int = dtype.list_size
        return pa.list_(changed(dtype.value_field), size)
    if pa.types.is_list(dtype):
        return pa.list_(changed(dtype.value_field))
    if pa.types.is_large_list(dtype):
        return pa.large_list(changed(dtype.value_field))
    return cast("pa.DataType", dtype)


def json_wire(dtype: pa.DataType) -> pa.DataType:
    """Return the type that json parses a column as: numbers, booleans and text are native there."""
    if pa.types.is_list(dtype):
        return pa.list_(pa.field("item", json_wire(dtype.value_type)))
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, json_wire(f.type)) for f in dtype])
    if pa.types.is_boolean(dtype) or pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        return dtype
    if pa.types.is_decimal(dtype):
        # Read from numbers and from text. Arrow counts a number's digits before it appends those
        # of the scale, which 128 bits need not hold: whether they fit is asked by the cast.
        return pa.decimal256(dtype.precision, dtype.scale)
    return pa.string()
