"""Schemas of Avro, and how the values of each type become an Arrow array. Pure.

fastavro reads datums by a *plain* schema, which has the same bytes but fewer types: text is bytes,
an enum is a number, and a map is an array of entries. Values without Python objects of their own
are read several times faster. The arrays of plain values are then converted at once.
Source: the Avro specification 1.12.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from tidelog.collection.formats.avro.values import (
    as_decimals,
    as_int,
    as_json_texts,
    as_symbols,
    as_text,
    first_valid,
    viewed,
    with_children,
)
from tidelog.collection.formats.types import json_field
from tidelog.errors import CorruptionError, UsageError

Array: TypeAlias = "pa.Array[Any]"
SEVERAL: Final = 64
TYPES_MAX: Final = 10_000  # A short schema can repeat a named type exponentially often.
_DIGITS_MAX: Final = 76
_PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_PLAIN: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
}
# Fewest bytes of a value.
_SIZES: Final = {"null": 0, "float": 4, "double": 8}
# Logical types that are numbers: the name, the type below, and the Arrow type.
_MOMENTS: Final[Mapping[tuple[str, str], pa.DataType]] = {
    ("date", "int"): pa.date32(),
    ("time-millis", "int"): pa.time32("ms"),
    ("time-micros", "long"): pa.time64("us"),
    ("timestamp-millis", "long"): pa.timestamp("ms", tz="UTC"),
    ("timestamp-micros", "long"): pa.timestamp("us", tz="UTC"),
    ("timestamp-nanos", "long"): pa.timestamp("ns", tz="UTC"),
    ("local-timestamp-millis", "long"): pa.timestamp("ms"),
    ("local-timestamp-micros", "long"): pa.timestamp("us"),
    ("local-timestamp-nanos", "long"): pa.timestamp("ns"),
}
_INT: Final = pa.int32()
_INVALID: Final = (ValueError, RecursionError, KeyError, TypeError, AttributeError)


def require_fastavro() -> Any:
    """Return the module fastavro.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import fastavro
    except ImportError as error:
        raise UsageError("avro needs fastavro: pip install 'tidelog[avro]'") from error
    return fastavro


@dataclass(frozen=True, slots=True)
class AvroType:
    """A type of a schema.

    Shape: ``plain`` is the schema by which fastavro reads values, and ``raw`` the Arrow type of
        these. ``settle`` converts an array of them; ``natural`` is the type of the result, and of
        the column that a source infers. An array of decimals has more digits than ``natural``.
        ``size_min`` is the least number of bytes of a value. ``fields`` are those of a record. A
        union of several types has ``branches``: ``raw`` is a struct with one field for each, and
        one of the fields has a value.
    """

    plain: Any
    raw: pa.DataType
    natural: pa.DataType
    size_min: int
    settle: Callable[[Array], Array] | None = None
    branches: tuple[AvroType, ...] = ()
    fields: tuple[AvroType, ...] = ()

    @property
    def is_mixed(self) -> bool:
        """Return True for a union whose values have no common type: they become json."""
        kinds = {one.natural for one in self.branches}
        return len(kinds) > 1 and pa.types.is_string(self.natural)

    def settled(self, array: Array) -> Array:
        """Return an array of plain values as one of values."""
        return array if self.settle is None else self.settle(array)


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A schema of records: the names and types of the fields.

    Shape: ``plain`` is the parsed schema of one row in plain types. ``several`` is that of
        `SEVERAL` rows, one after another, and ``block`` that of an array of rows: fastavro reads
        them in one call. A row has at least ``size_min`` bytes.
    """

    names: tuple[str, ...]
    types: tuple[AvroType, ...]
    plain: Any
    several: Any
    block: Any
    size_min: int

    @property
    def columns(self) -> pa.Schema:
        """Return the fields as Arrow columns, in the types that a source infers."""
        typed = zip(self.names, self.types, strict=True)
        return pa.schema(
            [
                json_field(name) if one.is_mixed else pa.field(name, one.natural)
                for name, one in typed
            ]
        )

    @property
    def raw(self) -> pa.StructType:
        typed = zip(self.names, self.types, strict=True)
        return pa.struct([pa.field(name, one.raw) for name, one in typed])


@lru_cache(maxsize=64)
def parse_avro_schema(text: str | bytes) -> AvroSchema:
    """Return the schema of records that a text in json defines.

    Raises:
        CorruptionError: it is no such schema, is recursive, or has a type that tidelog lacks.
        UsageError: fastavro is not installed.
    """
    library = require_fastavro().schema
    try:
        given = json.loads(text)
        record = _Types().of(given, "")
        fields = given.get("fields") if isinstance(given, dict) else None
        if not isinstance(fields, list) or given.get("type") not in ("record", "error"):
            raise _bad("its top level is not a record, so it has no columns")
        if not fields:
            raise _bad("its record has no fields")
        plain = library.parse_schema(_copy(record.plain))
        several = library.parse_schema(_copy(_several(record.plain)))
        block = library.parse_schema(_copy({"type": "array", "items": record.plain}))
    except (*_INVALID, library.SchemaParseException, library.UnknownType) as error:
        raise _bad(f"it is not valid: {type(error).__name__}") from error
    names = tuple(one["name"] for one in fields)
    return AvroSchema(names, record.fields, plain, several, block, record.size_min)


def _several(row: Any) -> Any:
    others = [{"name": f"r{place}", "type": row["name"]} for place in range(1, SEVERAL)]
    return {"type": "record", "name": "rows", "fields": [{"name": "r0", "type": row}, *others]}


def _copy(plain: Any) -> Any:
    """Return a copy of a plain schema: the parser changes its argument, and parts are shared."""
    return msgspec.json.decode(msgspec.json.encode(plain))


def _bad(why: str) -> CorruptionError:
    return CorruptionError(f"the avro schema cannot be read: {why}")


@dataclass(slots=True)
class _Types:
    """The named types of one schema so far, and those that are being defined."""

    named: dict[str, tuple[Any, str]] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)
    count: int = 0

    def of(self, given: Any, space: str) -> AvroType:
        """Return the type that a json value defines, in a namespace."""
        self.count += 1
        if self.count > TYPES_MAX:
            raise _bad(f"it has more than {TYPES_MAX:,} types")
        if isinstance(given, list):
            return self._union([self.of(one, space) for one in given])
        if isinstance(given, str):
            return _primitive(given) if given in _PRIMITIVES else self._known(given, space)
        if not isinstance(given, dict):
            raise _bad(f"{given!r} is not a type")
        kind = given.get("type")
        if not isinstance(kind, str):
            return self.of(kind, space)
        if kind in _PRIMITIVES:
            return _logical(_primitive(kind), kind, given)
        if kind in ("record", "error", "enum", "fixed"):
            return self._named(given, space)
        if kind == "array":
            return _array(self.of(given["items"], space))
        if kind == "map":
            return _map(self.of(given["values"], space), self._new_name())
        return self._known(kind, space)

    def _new_name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def _known(self, name: str, space: str) -> AvroType:
        full = name if "." in name or not space else f"{space}.{name}"
        found = self.named.get(full) or self.named.get(name)
        if found is None:
            raise _bad(f"it has the type {name!r}, which it does not define")
        return self._defined(full if full in self.named else name, *found)

    def _named(self, given: Mapping[str, Any], space: str) -> AvroType:
        name = given["name"]
        if "." not in name:
            space = given.get("namespace", space) or ""
            name = f"{space}.{name}" if space else name
        space = name.rpartition(".")[0]
        self.named[name] = given, space
        return self._defined(name, given, space)

    def _defined(self, name: str, given: Mapping[str, Any], space: str) -> AvroType:
        if name in self.opened:
            raise _bad(
                f"the type {name!r} contains itself, and a column cannot have a recursive type"
            )
        if given["type"] == "fixed":
            return _logical(_fixed(int(given["size"]), self._new_name()), "fixed", given)
        if given["type"] == "enum":
            return _enum([str(one) for one in given["symbols"]])
        self.opened.append(name)
        fields = [(str(one["name"]), self.of(one["type"], space)) for one in given["fields"]]
        self.opened.pop()
        names = [one for one, _ in fields]
        if len(set(names)) < len(names):
            raise _bad(f"the record {name!r} has two fields of one name")
        return _record(fields, self._new_name())

    def _union(self, found: Sequence[AvroType]) -> AvroType:
        full = [one for one in found if one.plain != "null"]
        if not full:
            return AvroType([one.plain for one in found], pa.null(), pa.null(), 1)
        if len(full) == 1:
            one = full[0]
            plain = [other.plain for other in found]
            size = 1 + min(other.size_min for other in found)
            return AvroType(plain, one.raw, one.natural, size, one.settle)
        wraps = iter(_wrapped(place, one, self._new_name()) for place, one in enumerate(full))
        plain = ["null" if one.plain == "null" else next(wraps) for one in found]
        raw = pa.struct([pa.field(f"b{place}", one.raw) for place, one in enumerate(full)])
        natural = _common(full)
        settle = partial(_settle_union, full, natural)
        return AvroType(plain, raw, natural, 1, settle, tuple(full))


def _wrapped(place: int, one: AvroType, name: str) -> Any:
    """Return a record around a branch of a union: it has the same bytes, and tells the branch."""
    return {"type": "record", "name": name, "fields": [{"name": f"b{place}", "type": one.plain}]}


def _primitive(kind: str) -> AvroType:
    size = _SIZES.get(kind, 1)
    if kind == "int":
        return AvroType("long", pa.int64(), _INT, size, as_int)
    if kind == "string":
        return AvroType("bytes", pa.binary(), pa.string(), size, as_text)
    return AvroType(kind, _PLAIN[kind], _PLAIN[kind], size)


def _fixed(size: int, name: str) -> AvroType:
    if size < 0:
        raise _bad("it has a fixed type of a negative size")
    plain = {"type": "fixed", "name": name, "size": size}
    return AvroType(plain, pa.binary(), pa.binary(), size)


def _enum(symbols: Sequence[str]) -> AvroType:
    return AvroType("long", pa.int64(), pa.string(), 1, partial(as_symbols, symbols))


def _logical(below: AvroType, kind: str, given: Mapping[str, Any]) -> AvroType:
    """Return the logical type of a definition. One that does not fit the type below is ignored."""
    said = given.get("logicalType")
    moment = _MOMENTS.get((said, kind)) if isinstance(said, str) else None
    if moment is not None:
        return AvroType(
            below.plain, below.raw, moment, below.size_min, partial(viewed, dtype=moment)
        )
    digits, scale = given.get("precision"), given.get("scale", 0)
    if said != "decimal" or kind not in ("bytes", "fixed"):
        return below
    if not isinstance(digits, int) or not isinstance(scale, int):
        return below
    if not 0 <= scale <= digits <= _DIGITS_MAX or digits < 1:
        return below
    natural = pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)
    settle = partial(as_decimals, scale=scale)
    return AvroType(below.plain, below.raw, natural, below.size_min, settle)


def _array(item: AvroType) -> AvroType:
    if item.size_min == 0:
        raise _bad(
            "it has an array of values without bytes, so a file can claim any number of them"
        )
    raw, natural = (pa.list_(pa.field("item", one)) for one in (item.raw, item.natural))
    settle = None if item.settle is None else partial(with_children, changes=[item.settled])
    return AvroType({"type": "array", "items": item.plain}, raw, natural, 1, settle)


def _map(value: AvroType, name: str) -> AvroType:
    return _array(_record([("key", _primitive("string")), ("value", value)], name))


def _record(fields: Sequence[tuple[str, AvroType]], name: str) -> AvroType:
    types = [one for _, one in fields]
    plain = {
        "type": "record",
        "name": name,
        "fields": [{"name": own, "type": one.plain} for own, one in fields],
    }
    raw = pa.struct([pa.field(own, one.raw) for own, one in fields])
    size = sum(one.size_min for one in types)
    if not fields:
        return AvroType(plain, raw, pa.null(), 0, lambda array: pa.nulls(len(array)))
    natural = pa.struct([pa.field(own, one.natural) for own, one in fields])
    settle = partial(with_children, changes=[one.settled for one in types])
    return AvroType(plain, raw, natural, size, settle, fields=tuple(types))


def _common(branches: Sequence[AvroType]) -> pa.DataType:
    """Return the type of a union's values: one that has all of them exactly, or else json text."""
    kinds = {one.natural for one in branches}
    if len(kinds) == 1:
        return branches[0].natural
    if kinds <= {pa.int32(), pa.int64()}:
        return pa.int64()
    if kinds <= {pa.int32(), pa.float32(), pa.float64()}:
        return pa.float64()
    return pa.string()


def settled_branches(branches: Sequence[AvroType], array: Array) -> list[Array]:
    """Return the values of each branch of a union; those of the other branches are null."""
    raw: Any = array
    # A child of a null struct need not be null.
    return [one.settled(values) for one, values in zip(branches, raw.flatten(), strict=True)]


def _settle_union(branches: Sequence[AvroType], natural: pa.DataType, array: Array) -> Array:
    found = settled_branches(branches, array)
    if len({one.natural for one in branches}) > 1:
        # A nested column has no json type, so it has the text.
        is_json = pa.types.is_string(natural)
        found = [as_json_texts(one) if is_json else one.cast(natural) for one in found]
    return first_valid(found)


def changed_avro_types(schema: AvroSchema) -> list[str]:
    """Return a notice for each column whose values a collection stores in another type."""
    found: list[str] = []
    for name, one in zip(schema.names, schema.types, strict=True):
        if one.is_mixed:
            found.append(f"column {name!r} is a union of several types: its values become JSON")
        if _has(one.natural, _is_nanos):
            found.append(
                f"column {name!r} has nanoseconds: a value with digits past the microsecond is a "
                "bad row"
            )
    return found


def _is_nanos(dtype: Any) -> bool:
    return pa.types.is_timestamp(dtype) and dtype.unit == "ns"


def _has(dtype: Any, test: Callable[[Any], bool]) -> bool:
    """Return True if a type passes a test, or has a type within it that does."""
    if pa.types.is_nested(dtype):
        return any(_has(dtype.field(place).type, test) for place in range(dtype.num_fields))
    return test(dtype)
