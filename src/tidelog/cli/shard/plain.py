"""Conversion of states and changes of shards to JSON values, with all their fields."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from tidelog.persist.format.schema import decode_schema
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.spine import Spine


def plain(value: Any, *, name: str = "") -> Any:
    """Return a value for JSON: bytes in hex, a schema as its columns, a batch as its totals."""
    if isinstance(value, bytes):
        return _columns(value) if name == "schema" and value else value.hex()
    if isinstance(value, Batch):
        told = {n: plain(getattr(value, n)) for n in value.__struct_fields__ if n != "packed"}
        return {**_without_nothing(told), "parts": len(value.parts)}
    if isinstance(value, Spine | tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {str(n): plain(one) for n, one in value.items()}
    if isinstance(value, msgspec.Struct):
        return plain_fields(value, value.__struct_fields__)
    if is_dataclass(value):
        return plain_fields(value, [field.name for field in fields(value)])
    return value


def plain_fields(value: Any, names: Any) -> dict[str, Any]:
    """Return the named fields of a value, converted by `plain`."""
    return _without_nothing({name: plain(getattr(value, name), name=name) for name in names})


def changed_fields(value: msgspec.Struct, nothing: msgspec.Struct) -> dict[str, Any]:
    """Return the fields in which a value differs from ``nothing``, converted by `plain`."""
    names = [n for n in value.__struct_fields__ if getattr(value, n) != getattr(nothing, n)]
    return {name: plain(getattr(value, name), name=name) for name in names}


def _without_nothing(told: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in told.items() if name != "extra" or one}


def _columns(schema: bytes) -> Any:
    from tidelog.collection.formats.types import sql_type_of

    found = decode_schema(schema)
    key = set(found.key)
    return [
        {"name": one.name, "type": sql_type_of(one), "key": one.name in key} for one in found.data
    ]
