"""Column types: their SQL names, and the type that a parser of text uses for each. Pure.

Text formats have fewer types: a date in json is a string, and in csv all values are. So a column is
parsed as its *wire* type and then cast (see casts.py). A value that the cast refuses makes its row
bad; other rows have no influence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
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
# A name, and a type of words, brackets and numbers. It matches no other SQL clause or statement.
_COLUMN: Final = re.compile(
    r"""\s*("(?:[^"]|"")+"|\w+)\s+((?:(?!default\b|check\b|primary\b|unique\b|not\b)"""
    r"""[\w\s()\[\],"])+)""",
    re.IGNORECASE,
)
_JSON: Final = {MEANING: b"json"}
_CONSTRAINT: Final = re.compile(r"\b(default|check|primary|unique|not)\b", re.IGNORECASE)
_UNKNOWN_TYPE: Final = re.compile(r"Type with name (.+?) does not exist")
_NAMED_TWICE: Final = re.compile(r'Column with name "?(.+?)"? already exists')
_TYPES: Final = (
    "boolean, integer, bigint, double, decimal(10, 2), varchar, blob, date, time, timestamp, "
    "timestamptz, json, lists such as int[], and struct(a int, b varchar)"
)


def json_field(name: str) -> pa.Field[Any]:
    """Return a column whose values are the unchanged text of any json value."""
    return pa.field(name, pa.string(), metadata=_JSON)


def is_json(field: pa.Field[Any]) -> bool:
    """Return True if a column accepts any json value, and stores its text."""
    return (field.metadata or {}).get(MEANING) == _JSON[MEANING]


def sql_type_of(field: pa.Field[Any]) -> str:
    """Return the name of a column's type, as users write it."""
    return "JSON" if is_json(field) else sql_type(field.type)


def sql_type(dtype: pa.DataType) -> str:
    """Return the DuckDB name of a canonical type."""
    if dtype in _SQL:
        return _SQL[dtype]
    if pa.types.is_decimal(dtype):
        return f"DECIMAL({dtype.precision}, {dtype.scale})"
    if pa.types.is_list(dtype):
        return f"{sql_type(dtype.value_type)}[]"
    if pa.types.is_struct(dtype):
        return f"STRUCT({', '.join(f'{quoted(f.name)} {sql_type(f.type)}' for f in dtype)})"
    raise UsageError(
        f"a column cannot have the type {dtype}: use another type, such as bigint or varchar"
    )


# DuckDB takes milliseconds to read a text, and a program may give the same one in each call.
@lru_cache(maxsize=256)
def parse_schema(text: str, *, what: str = "schema") -> pa.Schema:
    """Parse a schema such as ``flight int, day date``, in DuckDB's types.

    ``what`` is the argument that errors name.

    Raises:
        UsageError: the text is not such a list of columns.
    """
    import duckdb  # Imported on demand, because it takes 50 ms to load.

    split = _split_columns(text, what)
    columns = ", ".join(f"{name} {kind}" for name, kind in split)
    with duck() as connection:
        try:
            connection.execute(f"CREATE TEMP TABLE given ({columns})")
            found = connection.sql("SELECT * FROM given LIMIT 0").to_arrow_table().schema
        except duckdb.Error as error:
            raise _unreadable(what, str(error).splitlines()[0]) from error
        finally:
            connection.execute("DROP TABLE IF EXISTS given")
    kinds = [kind.strip().upper() for _, kind in split]
    return pa.schema(
        [
            json_field(f.name) if kind == "JSON" else pa.field(f.name, canonical_type(f.type))
            for f, kind in zip(found, kinds, strict=True)
        ]
    )


def _split_columns(text: str, what: str) -> list[tuple[str, str]]:
    """Split ``name type, name type`` at the commas outside of brackets and of double quotes.

    Return quoted names.

    Users need not quote a name that SQL requires quotes for, such as ``at``.
    """
    if "\0" in text:
        # DuckDB and Arrow would end the name there.
        raise UsageError(f"{what}= contains a zero byte: remove it", given=text)
    items, depth, start, is_quoted = [], 0, 0, False
    for place, sign in enumerate(text + ","):
        is_quoted ^= sign == '"'
        depth += 0 if is_quoted else (sign in "([") - (sign in ")]")
        if sign == "," and depth == 0 and not (is_quoted and place < len(text)):
            items.append(text[start:place])
            start = place + 1
    columns: list[tuple[str, str]] = []
    for item in items:
        found = _COLUMN.fullmatch(item)
        if found is None:
            raise _unreadable_at(what, item.strip())
        name = found.group(1)
        plain = name[1:-1].replace('""', '"') if name.startswith('"') else name
        columns.append((quoted(plain), found.group(2)))
    return columns


def _unreadable(what: str, why: str) -> UsageError:
    """Return the error for a schema that DuckDB refuses, for the reason ``why``."""
    unknown = _UNKNOWN_TYPE.search(why)
    if unknown is not None:
        return UsageError(
            f"{what}= cannot be read: {unknown[1]!r} is not a type; the types are {_TYPES}"
        )
    twice = _NAMED_TWICE.search(why)
    if twice is not None:
        return UsageError(
            f"{what}= has the column {twice[1]!r} twice: rename one; the case of letters does not "
            "distinguish names"
        )
    reason = why.partition(" Error: ")[2] or why
    return UsageError(f"{what}= cannot be read: {reason}; write it as 'flight int, day date'")


def _unreadable_at(what: str, item: str) -> UsageError:
    """Return the error for a part of a schema that is not a name and a type."""
    if not item:
        return UsageError(
            f"{what}= has a column without a name: write names and types, such as 'flight int, day "
            "date', with single commas between them"
        )
    remedy = (
        "write names and types, such as 'flight int, day date', and put names with other "
        "characters in double quotes"
    )
    if "<" in item:
        remedy = "write a list as int[], and a structure as struct(a int, b varchar)"
    elif _CONSTRAINT.search(item):
        remedy = "write only names and types; the columns of a key are in key="
    return UsageError(f"{what}= cannot be read at {item!r}: {remedy}")


def without_maps(dtype: pa.DataType) -> pa.DataType:
    """Return the type with lists of entries in place of maps, because maps cannot be compared."""
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
    """Return the type without views and extensions: Arrow cannot take single rows of these.

    Views of lists stay: Arrow's cast of them to lists has wrong offsets next to nulls.
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
        made: Any = pa.map_  # It accepts fields, but its stubs do not declare that.
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
    """Return the type as which json is parsed for a column; numbers and booleans are native."""
    if pa.types.is_list(dtype):
        return pa.list_(pa.field("item", json_wire(dtype.value_type)))
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, json_wire(f.type)) for f in dtype])
    if pa.types.is_boolean(dtype) or pa.types.is_integer(dtype) or pa.types.is_floating(dtype):
        return dtype
    if pa.types.is_decimal(dtype):
        # A decimal is read from a number or from text. Arrow counts a number's digits before it
        # appends those of the scale, and 128 bits may be too few for all. The cast checks the fit.
        return pa.decimal256(dtype.precision, dtype.scale)
    return pa.string()
