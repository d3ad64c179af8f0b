"""Schemas of shards: the columns of an update's key and value.

Shape: a table of updates has the key columns, the value columns, then ``_time`` (int64, from 0) and
    ``_diff`` (int64, never 0). The last two are never null.
Source: persist, "Codec"; design page 4, "What a shard is".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Final, TypeGuard

import msgspec
import pyarrow as pa

from tidelog.core.arguments import joined_names
from tidelog.errors import CorruptionError, UsageError
from tidelog.rowhash import check_supported

TIME: Final = "_time"
DIFF: Final = "_diff"
# The prefix of columns that tables have temporarily, before they are written.
OWN_PREFIX: Final = "_tidelog_"
MEANING: Final = b"tidelog.meaning"  # A metadata key of fields: the meaning of the field's values.
_RESERVED: Final = frozenset({TIME, DIFF})
_KEY_COLUMNS: Final = b"tidelog.key_columns"
_KNOWN: Final = b"tidelog.schemas"


@dataclass(frozen=True)
class ShardSchema:
    """The data columns in order; the first ``key_columns`` of them are the key.

    ``known`` are the data columns of all schemas that the shard has had, by their ids. Each part is
    read in the schema in which it was written. ``known`` is empty if it was not loaded.
    """

    data: pa.Schema
    key_columns: int
    known: tuple[pa.Schema, ...] = field(default=(), compare=False, repr=False)

    @property
    def key(self) -> list[str]:
        return self.data.names[: self.key_columns]

    @property
    def names(self) -> list[str]:
        return list(self.data.names)

    @property
    def newest_id(self) -> int:
        """The id of the newest known schema."""
        return max(0, len(self.known) - 1)

    def of_part(self, schema_id: int) -> ShardSchema:
        """Return the schema with which a part was written.

        Raises:
            CorruptionError: the id is not among the known schemas.
        """
        if not self.known and not schema_id:
            return self
        if schema_id >= len(self.known):
            raise CorruptionError(
                "a part has a schema that this reader does not know: open the shard again",
                schema_id=schema_id,
            )
        return self._of_parts[schema_id]

    @cached_property
    def _of_parts(self) -> tuple[ShardSchema, ...]:
        return tuple(replace(self, data=data) for data in self.known)

    @cached_property
    def encoded(self) -> bytes:
        """The columns and the key as bytes; equal columns give equal bytes."""
        marked = self.data.with_metadata({_KEY_COLUMNS: str(self.key_columns).encode()})
        return marked.serialize().to_pybytes()

    @cached_property
    def updates(self) -> pa.Schema:
        """The schema of a table of updates."""
        return self.data.append(pa.field(TIME, pa.int64(), nullable=False)).append(
            pa.field(DIFF, pa.int64(), nullable=False)
        )

    @property
    def contents(self) -> pa.Schema:
        """The schema of a table of contents: the columns and ``_diff``."""
        return self.data.append(pa.field(DIFF, pa.int64(), nullable=False))


def shard_schema(schema: pa.Schema, *, key: list[str] | None = None) -> ShardSchema:
    """Return a shard's schema: key columns first, in types that all engines here support.

    Raises:
        UsageError: a name is reserved or used twice (ignoring case, as SQL does), a type is not
            supported (maps have no equality), or a key column is missing.
    """
    if not schema.names:
        raise UsageError("a shard must have at least one column: name its columns")
    key = list(schema.names) if key is None else key
    seen: dict[str, str] = {}
    for name in schema.names:
        if name.lower() in _RESERVED or name.lower().startswith(OWN_PREFIX):
            raise UsageError(
                f"a column cannot be named {name}, which is reserved for tidelog: rename it"
            )
        other = seen.get(name.lower())
        if other is not None:
            raise UsageError(
                "two columns have the same name (SQL ignores case): rename one",
                first=other,
                second=name,
            )
        seen[name.lower()] = name
    for name in key:
        if name not in schema.names:
            known = joined_names(schema.names)
            raise UsageError(f"no column named {name!r} for the key: the columns are {known}")
    if len(set(key)) != len(key):
        raise UsageError("a key column occurs twice: name it once", key=key)
    order = [*key, *(n for n in schema.names if n not in key)]
    for name in order:
        _check_column(name, schema.field(name).type)
    canonical = pa.schema([_canonical_field(schema.field(n)) for n in order])
    check_supported(canonical)
    return ShardSchema(canonical, len(key))


def differ_by_case(one: str, other: str) -> UsageError:
    """Return the error for two columns that SQL treats as one."""
    return UsageError(
        f"the columns {one!r} and {other!r} differ only in case, which SQL ignores: pass schema= "
        "with one of them, or ignore_case=True to read both as one"
    )


def _canonical_field(field: pa.Field[Any]) -> pa.Field[Any]:
    meaning = (field.metadata or {}).get(MEANING)
    kept = None if meaning is None else {MEANING: meaning}
    return pa.field(field.name, canonical_type(field.type), metadata=kept)


def _check_column(name: str, dtype: pa.DataType) -> None:
    if not name or "\0" in name:
        raise UsageError(
            f"a column cannot be named {name!r}, because SQL cannot name it: rename it"
        )
    # DuckDB cannot group by these without changing them: durations become intervals, for example.
    if pa.types.is_duration(dtype) or pa.types.is_null(dtype) or pa.types.is_decimal256(dtype):
        raise UsageError(
            f"column {name!r} cannot have the type {dtype}: use another type, such as bigint or "
            "varchar"
        )
    # Arrow has such decimals; Parquet and SQL do not.
    if pa.types.is_decimal(dtype) and not 0 <= dtype.scale <= dtype.precision:
        raise UsageError(
            f"column {name!r} cannot have the type {dtype}: its scale must be from 0 to "
            f"{dtype.precision}"
        )
    if pa.types.is_struct(dtype) and not dtype.num_fields:
        raise UsageError(f"column {name!r} is a struct without fields: remove it")
    within: set[str] = set()
    for index in range(dtype.num_fields if pa.types.is_nested(dtype) else 0):
        field = dtype.field(index)
        if field.name.lower() in within:
            raise UsageError(
                f"column {name!r} has two fields named {field.name!r} (SQL ignores case): remove "
                "one of them from the schema, or rename it"
            )
        within.add(field.name.lower())
        _check_column(f"{name}.{field.name}" if field.name else "", field.type)


def is_list(dtype: pa.DataType) -> TypeGuard[pa.ListType[Any]]:
    """Return True for lists of any offset width, and for lists of a fixed length."""
    return (
        pa.types.is_list(dtype)
        or pa.types.is_large_list(dtype)
        or pa.types.is_fixed_size_list(dtype)
    )


def canonical_type(dtype: pa.DataType) -> pa.DataType:
    """Return the type that shards use for ``dtype``: one per kind of value, no encodings."""
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
    if pa.types.is_decimal32(dtype) or pa.types.is_decimal64(dtype):
        return pa.decimal128(dtype.precision, dtype.scale)
    if pa.types.is_date(dtype):
        return pa.date32()
    if pa.types.is_time(dtype):
        return pa.time64("us")
    if is_list(dtype):
        return pa.list_(pa.field("item", canonical_type(dtype.value_type)))
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, canonical_type(f.type)) for f in dtype])
    return dtype


def encode_with_known(schema: ShardSchema) -> bytes:
    """Encode a schema together with its known schemas, for a process that reads parts with it."""
    if len(schema.known) < 2:
        return schema.encoded
    known = msgspec.msgpack.encode([one.serialize().to_pybytes() for one in schema.known])
    count = str(schema.key_columns).encode()
    marked = schema.data.with_metadata({_KEY_COLUMNS: count, _KNOWN: known})
    return marked.serialize().to_pybytes()


@lru_cache(maxsize=1_024)
def decode_schema(data: bytes) -> ShardSchema:
    """Read a schema.

    Raises:
        CorruptionError: the bytes are not a schema.
    """
    try:
        marked = pa.ipc.read_schema(pa.py_buffer(data))
        metadata = marked.metadata or {}
        count = int(metadata[_KEY_COLUMNS])
        packed = msgspec.msgpack.decode(metadata.get(_KNOWN, b"\x90"), type=tuple[bytes, ...])
        known = tuple(pa.ipc.read_schema(pa.py_buffer(one)) for one in packed)
    except (pa.ArrowException, msgspec.MsgspecError, KeyError, ValueError, OSError) as error:
        raise CorruptionError(
            "a shard's schema cannot be decoded: restore the shard's state from a backup, or from "
            "an older version of its object"
        ) from error
    return ShardSchema(marked.remove_metadata(), count, known)


def fitted(table: pa.Table, names: Iterable[str], schema: pa.Schema) -> pa.Table:
    """Return the named columns; a column of ``schema`` that the table lacks is null."""
    wanted = list(names)
    there = set(table.column_names)
    if there.issuperset(wanted):
        return table.select(wanted)
    columns = {
        name: table.column(name)
        if name in there
        else pa.nulls(table.num_rows, schema.field(name).type)
        for name in wanted
    }
    own = table.schema
    fields = [own.field(name) if name in there else schema.field(name) for name in wanted]
    return pa.table(columns, schema=pa.schema(fields))
