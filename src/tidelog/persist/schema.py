"""Schemas of shards: the columns of an update's key and value.

Shape: a table of updates has the key columns, the value columns, then ``_time`` (int64, from 0) and
    ``_diff`` (int64, never 0), none of the last two ever null.
Source: persist, "Codec"; design page 4, "What a shard is".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidelog.errors import CorruptionError, UsageError
from tidelog.rowhash import check_supported

TIME: Final = "_time"
DIFF: Final = "_diff"
OWN_PREFIX: Final = "_tidelog_"  # Of columns that tables have on the way to a shard.
MEANING: Final = b"tidelog.meaning"  # In a field's metadata: what its values stand for.
_RESERVED: Final = frozenset({TIME, DIFF})


@dataclass(frozen=True, slots=True)
class ShardSchema:
    """Data columns in order, and how many of them, from the first, are the key."""

    data: pa.Schema
    key_columns: int

    @property
    def key(self) -> list[str]:
        return self.data.names[: self.key_columns]

    @property
    def names(self) -> list[str]:
        return list(self.data.names)

    @property
    def updates(self) -> pa.Schema:
        """Return the schema of a table of updates."""
        return self.data.append(pa.field(TIME, pa.int64(), nullable=False)).append(
            pa.field(DIFF, pa.int64(), nullable=False)
        )


def shard_schema(schema: pa.Schema, *, key: list[str] | None = None) -> ShardSchema:
    """Make a shard's schema, key columns first, in types that every engine here has.

    Raises:
        UsageError: a name is reserved or taken twice (ignoring case, as SQL does), a type is not
            supported (maps have no equality), or a key column is missing.
    """
    if not schema.names:
        raise UsageError("a shard has at least one column: name some")
    key = list(schema.names) if key is None else key
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in _RESERVED or name.lower().startswith(OWN_PREFIX):
            raise UsageError(f"a column cannot be called {name}: it is tidelog's own")
        other = seen.get(name.lower())
        if other is not None:
            raise UsageError(
                "two columns have one name (SQL ignores case): rename one", first=other, second=name
            )
        seen[name.lower()] = name
    for name in key:
        if name not in schema.names:
            known = ", ".join(schema.names)
            raise UsageError(f"there is no column {name!r} for the key: the columns are {known}")
    if len(set(key)) != len(key):
        raise UsageError("a key column is named twice", key=key)
    order = [*key, *(n for n in schema.names if n not in key)]
    for name in order:
        _check_column(name, schema.field(name).type)
    canonical = pa.schema([_canonical_field(schema.field(n)) for n in order])
    check_supported(canonical)
    return ShardSchema(canonical, len(key))


def differ_by_case(one: str, other: str) -> UsageError:
    """Return what refuses two columns that are one to SQL."""
    return UsageError(
        f"the columns {one!r} and {other!r} differ by case alone, which SQL does not tell apart: "
        "give --schema with one of them"
    )


def _canonical_field(field: pa.Field[Any]) -> pa.Field[Any]:
    meaning = (field.metadata or {}).get(MEANING)
    kept = None if meaning is None else {MEANING: meaning}
    return pa.field(field.name, canonical_type(field.type), metadata=kept)


def _check_column(name: str, dtype: pa.DataType) -> None:
    if not name or "\0" in name:
        raise UsageError(f"a column cannot be called {name!r}: SQL could not name it")
    # What SQL here cannot group by without changing it: durations become intervals, and so on.
    if pa.types.is_duration(dtype) or pa.types.is_null(dtype) or pa.types.is_decimal256(dtype):
        raise UsageError(
            f"column {name!r} cannot be of type {dtype}: give it another, such as bigint or varchar"
        )
    within: set[str] = set()
    for index in range(dtype.num_fields if pa.types.is_nested(dtype) else 0):
        field = dtype.field(index)
        if field.name.lower() in within:
            raise UsageError(
                f"column {name!r} has two fields {field.name!r} (SQL ignores case): leave one of "
                "them out of --schema, or rename it"
            )
        within.add(field.name.lower())
        _check_column(f"{name}.{field.name}" if field.name else "", field.type)


def canonical_type(dtype: pa.DataType) -> pa.DataType:
    """Return the type that stands for ``dtype`` in shards: one of each kind, never an encoding."""
    if pa.types.is_dictionary(dtype):
        return canonical_type(dtype.value_type)
    if pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype):
        return pa.string()
    if (
        pa.types.is_large_binary(dtype)
        or pa.types.is_binary_view(dtype)
        or pa.types.is_fixed_size_binary(dtype)
    ):
        return pa.binary()
    if pa.types.is_timestamp(dtype):
        return pa.timestamp("us", tz="UTC" if dtype.tz else None)
    if pa.types.is_float16(dtype):
        return pa.float32()
    if pa.types.is_date(dtype):
        return pa.date32()
    if pa.types.is_time(dtype):
        return pa.time64("us")
    if (
        pa.types.is_list(dtype)
        or pa.types.is_large_list(dtype)
        or pa.types.is_fixed_size_list(dtype)
    ):
        return pa.list_(pa.field("item", canonical_type(dtype.value_type)))
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, canonical_type(f.type)) for f in dtype])
    return dtype


def encode_schema(schema: ShardSchema) -> bytes:
    marked = schema.data.with_metadata({b"tidelog.key_columns": str(schema.key_columns).encode()})
    return marked.serialize().to_pybytes()


def decode_schema(data: bytes) -> ShardSchema:
    """Read a schema.

    Raises:
        CorruptionError: it is none.
    """
    try:
        marked = pa.ipc.read_schema(pa.py_buffer(data))
        count = int((marked.metadata or {})[b"tidelog.key_columns"])
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise CorruptionError("a shard's schema cannot be read") from error
    return ShardSchema(marked.remove_metadata(), count)
