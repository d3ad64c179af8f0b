"""Codecs: Python values as rows of a shard, and back.

A shard has columns. For Python objects, a `Codec` defines their columns and a `Codec64` their
times. Both are small protocols that users may implement. `RecordCodec` is the codec for data
classes, named tuples and `msgspec.Struct`. For many rows, columns are much faster than a codec.
Invariants: a codec decodes everything that it or an earlier form of it has encoded. New fields of a
    record therefore need defaults, because added columns are null in older rows.
Source: persist, "Codec"; design page 4, "Types".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from operator import index
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import pyarrow as pa

from tidelog.core.clock import micros_of, moment_of
from tidelog.errors import UsageError
from tidelog.persist.format.part import int64_of
from tidelog.persist.format.schema import DIFF, TIME, shard_schema

T = TypeVar("T")
_PLAIN_TYPES: Final = (bytes, date, datetime, time, Decimal)


class Codec(Protocol[T]):
    """Defines the columns of Python values.

    Shape: ``schema`` has the data columns, and ``key`` names the columns of the shard's key. Pass
        both to `Location.shard`.
    """

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def key(self) -> list[str]: ...

    def encode(self, values: Sequence[T]) -> pa.Table:
        """Return values as rows, in their order, with the columns of ``schema``."""
        ...

    def decode(self, rows: pa.Table) -> list[T]:
        """Return rows as values; ``rows`` have the columns of ``schema``, and may have others."""
        ...


class Codec64(Protocol[T]):
    """Maps values to numbers from 0 to 2^63 - 2; a larger value must be a larger number."""

    def encode(self, value: T) -> int: ...

    def decode(self, number: int) -> T: ...


class Numbers:
    """The `Codec64` for times that are numbers already."""

    def encode(self, value: int) -> int:
        return value

    def decode(self, number: int) -> int:
        return number


class Moments:
    """The `Codec64` of moments since 1970, in microseconds; a moment without a zone is in UTC."""

    def encode(self, value: datetime) -> int:
        return micros_of(value)

    def decode(self, number: int) -> datetime:
        return moment_of(number)


class RecordUpdate(NamedTuple, Generic[T]):
    """A value that is added (``diff`` > 0) or removed (``diff`` < 0) at a time."""

    data: T
    time: Any
    diff: int


class RecordCodec(Generic[T]):
    """The codec of a data class, a named tuple, a typed dict, or a `msgspec.Struct`.

    Fields whose Python type does not determine the column type, such as decimals, need ``schema``.

    Raises:
        UsageError: the type has no fields, or a field needs ``schema``.
    """

    def __init__(
        self, record: type[T], *, key: list[str] | None = None, schema: pa.Schema | None = None
    ) -> None:
        self.record = record
        fields = _fields_of(record)
        made = _schema_of(record, fields) if schema is None else schema
        self._optional = frozenset(f.name for f in fields if not f.required)
        checked = shard_schema(made, key=key)
        self._schema, self._key = checked.data, checked.key

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def key(self) -> list[str]:
        return self._key

    def encode(self, values: Sequence[T]) -> pa.Table:
        """Return records as rows.

        Raises:
            UsageError: a value is not such a record, or does not fit its column.
        """
        for value in values:
            if not isinstance(value, self._instances()):
                raise UsageError(
                    f"a value must be a {self.record.__name__}, not a {type(value).__name__}: "
                    "encode records of one type"
                )
        rows = [msgspec.to_builtins(value, builtin_types=_PLAIN_TYPES) for value in values]
        named = [row if isinstance(row, dict) else self._by_name(row) for row in rows]
        try:
            return pa.Table.from_pylist(named, schema=self._schema)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise UsageError(f"a record does not fit its columns: {error}") from error

    def decode(self, rows: pa.Table) -> list[T]:
        """Return rows as records; a column that the record does not have is ignored.

        Raises:
            UsageError: a row lacks a field without a default, or has a null that the field forbids.
        """
        there = [name for name in self._schema.names if name in rows.column_names]
        values = [self._known(row) for row in rows.select(there).to_pylist()]
        try:
            return msgspec.convert(values, list[self.record])  # type: ignore[name-defined]
        except msgspec.ValidationError as error:
            raise UsageError(
                f"a row cannot be decoded as {self.record.__name__}: {error}; set a default for "
                "each field that older rows lack, and let a nullable field be None"
            ) from error

    def _known(self, row: dict[str, Any]) -> Any:
        """Drop the nulls of fields that have a default; see the module's invariants."""
        some = {n: v for n, v in row.items() if v is not None or n not in self._optional}
        if not issubclass(self.record, tuple):
            return some
        defaults: dict[str, Any] = getattr(self.record, "_field_defaults", {})
        names: tuple[str, ...] = getattr(self.record, "_fields", ())
        return [some.get(name, defaults.get(name)) for name in names]

    def _instances(self) -> type:
        return dict if issubclass(self.record, dict) else self.record

    def _by_name(self, row: Sequence[Any]) -> dict[str, Any]:
        names = getattr(self.record, "_fields", ())
        return dict(zip(names, row, strict=True))


def encode_updates(
    codec: Codec[T], updates: Iterable[tuple[T, Any, int]], times: Codec64[Any] | None = None
) -> pa.Table:
    """Return updates as a table for `Shard.compare_and_append`.

    Raises:
        UsageError: a value does not fit its column, or a time is out of range.
    """
    given = [RecordUpdate(*update) for update in updates]
    numbers = Numbers() if times is None else times
    made = codec.encode([update.data for update in given])
    try:
        when = pa.array([index(numbers.encode(update.time)) for update in given], pa.int64())
        diffs = pa.array([index(update.diff) for update in given], pa.int64())
    except (pa.ArrowException, OverflowError, TypeError, AttributeError) as error:
        raise UsageError(f"a time or a diff must be a 64-bit number: {error}") from error
    return made.append_column(TIME, when).append_column(DIFF, diffs)


def decode_updates(
    codec: Codec[T], updates: pa.Table, times: Codec64[Any] | None = None
) -> list[RecordUpdate[T]]:
    """Decode the updates that a listener received, in their order."""
    numbers = Numbers() if times is None else times
    when = [numbers.decode(int(number)) for number in int64_of(updates, TIME)]
    diffs = int64_of(updates, DIFF).tolist()
    return [RecordUpdate(*each) for each in zip(codec.decode(updates), when, diffs, strict=True)]


def decode_contents(codec: Codec[T], contents: pa.Table) -> list[tuple[T, int]]:
    """Decode the contents of a snapshot: values, each with its count."""
    return list(zip(codec.decode(contents), int64_of(contents, DIFF).tolist(), strict=True))


def _fields_of(record: type[Any]) -> Sequence[msgspec.inspect.Field]:
    try:
        told = msgspec.inspect.type_info(record)
    except TypeError as error:
        raise UsageError(f"{record!r} is not a record type: {error}") from error
    fields: Sequence[msgspec.inspect.Field] = getattr(told, "fields", ())
    if not fields:
        raise UsageError(f"{record!r} has no fields: use a data class, or another type with fields")
    return fields


def _schema_of(record: type[Any], fields: Sequence[msgspec.inspect.Field]) -> pa.Schema:
    return pa.schema([pa.field(f.name, _column_type(record, f.name, f.type)) for f in fields])


_COLUMN_TYPES: Final[dict[type[msgspec.inspect.Type], pa.DataType]] = {
    msgspec.inspect.BoolType: pa.bool_(),
    msgspec.inspect.IntType: pa.int64(),
    msgspec.inspect.FloatType: pa.float64(),
    msgspec.inspect.StrType: pa.string(),
    msgspec.inspect.BytesType: pa.binary(),
    msgspec.inspect.DateType: pa.date32(),
    msgspec.inspect.TimeType: pa.time64("us"),
    msgspec.inspect.DateTimeType: pa.timestamp("us", tz="UTC"),
}


def _column_type(record: type[Any], name: str, told: msgspec.inspect.Type) -> pa.DataType:
    if isinstance(told, msgspec.inspect.UnionType):
        some = [one for one in told.types if not isinstance(one, msgspec.inspect.NoneType)]
        if len(some) == 1:
            return _column_type(record, name, some[0])
    if isinstance(told, msgspec.inspect.ListType):
        return pa.list_(_column_type(record, name, told.item_type))
    if isinstance(told, msgspec.inspect.StructType | msgspec.inspect.DataclassType):
        return pa.struct(
            [
                pa.field(f.name, _column_type(record, f"{name}.{f.name}", f.type))
                for f in told.fields
            ]
        )
    found = _COLUMN_TYPES.get(type(told))
    if found is None:
        raise UsageError(
            f"the type of {record.__name__}.{name} does not determine a column type: pass schema="
        )
    return found
