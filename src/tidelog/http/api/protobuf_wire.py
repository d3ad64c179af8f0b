"""An encoder and a decoder of protobuf for the kinds of fields that the messages have.

The API has a dozen flat messages with a few kinds of fields, so tidelog has a codec of its own. The
package ``protobuf`` would need a compiler, generated code, and a runtime of a matching version. It
could also check limits, such as the records of a request, only after decoding. Tests compare this
codec with that package.

As in proto3, unknown fields are ignored, the last value of a field counts, and an absent number,
text or list is 0 or empty. Groups, and fields with a wrong wire type, are errors.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tidelog.errors import UsageError
from tidelog.http.api.keys import Base64, plain_bytes
from tidelog.http.api.messages import Number

T = TypeVar("T", bound=Struct)

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_VARINT_BYTES: Final = 10
_ZERO: Final[dict[str, Any]] = {"int": 0, "bool": False, "str": "", "bytes": "", "list": []}


@dataclass(frozen=True, slots=True)
class WireField:
    """A field of a message: its number, its kind, and the type of its items.

    ``is_optional``: an absent field differs from 0. Bytes have the type `JsonBytes` in messages.
    """

    name: str
    number: int
    kind: str
    is_optional: bool
    note: str = ""
    item: type[Any] | None = None


def encode_message(message: Struct) -> bytes:
    """Encode a message as protobuf."""
    out = bytearray()
    for field in fields_of(type(message)):
        _put_field(out, field, getattr(message, field.name))
    return bytes(out)


def decode_message(data: bytes, wanted: type[T], *, items_max: int) -> T:
    """Decode a message from protobuf.

    Raises:
        UsageError: the bytes are not such a message, or a list has more than ``items_max`` items.
    """
    values = _decoded(memoryview(data), wanted, items_max)
    try:
        return msgspec.convert(values, wanted)
    except msgspec.ValidationError as error:
        raise UsageError(f"the message does not match its description: {error}") from error


@cache
def fields_of(message: type[Struct]) -> tuple[WireField, ...]:
    """Return the fields of a message in the order of their numbers."""
    hints = get_type_hints(message, include_extras=True)
    fields = [_field(name, hints[name]) for name in message.__struct_fields__]
    return tuple(sorted(fields, key=lambda field: field.number))


def _field(name: str, hint: Any) -> WireField:
    (number,) = (note for note in get_args(hint) if isinstance(note, Number))
    hint, notes = _bare(hint)
    is_optional = any((note.extra or {}).get("is_optional") for note in notes)
    if get_origin(hint) in (Union, types.UnionType):
        kinds = get_args(hint)
        is_optional = is_optional or UnsetType in kinds
        # In the union of text and base64, base64 holds the bytes.
        hint, _ = _bare(Base64 if Base64 in kinds else kinds[0])
    if get_origin(hint) is list:
        (item,) = get_args(hint)
        return WireField(name, number.number, "list", is_optional, number.note, item=item)
    kind = "bytes" if hint is Base64 else hint.__name__
    return WireField(name, number.number, kind, is_optional, number.note)


def _bare(hint: Any) -> tuple[Any, list[Meta]]:
    """Return a type without its annotations, and the annotations."""
    if get_origin(hint) is not Annotated:
        return hint, []
    bare, *notes = get_args(hint)
    return bare, [note for note in notes if isinstance(note, Meta)]


def _put_field(out: bytearray, field: WireField, value: Any) -> None:
    if value is UNSET:
        return
    if field.kind == "list":
        for item in value:
            body = item.encode() if isinstance(item, str) else encode_message(item)
            _put_varint(out, field.number << 3 | LENGTH)
            _put_varint(out, len(body))
            out += body
        return
    if field.kind in ("int", "bool"):
        # An absent field decodes as 0.
        if field.is_optional or value:
            _put_varint(out, field.number << 3 | VARINT)
            _put_varint(out, int(value))
        return
    body = plain_bytes(value)
    if field.is_optional or body:
        _put_varint(out, field.number << 3 | LENGTH)
        _put_varint(out, len(body))
        out += body


def _put_varint(out: bytearray, value: int) -> None:
    value &= 2**64 - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _decoded(data: memoryview, wanted: type[Struct], items_max: int) -> dict[str, Any]:
    """Return a message's values by their JSON names, in their JSON forms, but with plain bytes."""
    fields = {field.number: field for field in fields_of(wanted)}
    names = {field.name: field.encode_name for field in msgspec.structs.fields(wanted)}
    values: dict[str, Any] = {
        names[field.name]: [] if field.kind == "list" else _ZERO[field.kind]
        for field in fields.values()
        if not field.is_optional
    }
    for number, kind, value in _values(data):
        field = fields.get(number)
        if field is None:
            continue
        if kind != (VARINT if field.kind in ("int", "bool") else LENGTH):
            raise UsageError("a field has a wrong wire type", field=number)
        name = names[field.name]
        if field.kind == "list":
            if len(values[name]) >= items_max:
                raise UsageError(
                    f"the message has more than {items_max} items: send fewer in a request",
                    field=number,
                )
            values[name].append(_item_of(field, value, items_max))
        else:
            values[name] = _value_of(field, value)
    return values


def _item_of(field: WireField, value: memoryview, items_max: int) -> Any:
    if field.item is str:
        return _text_of(value, field)
    assert field.item is not None
    return _decoded(value, field.item, items_max)


def _value_of(field: WireField, value: Any) -> Any:
    if field.kind == "bool":
        return bool(value)
    if field.kind == "int":
        return value
    if field.kind == "str":
        return _text_of(value, field)
    return {"base64": bytes(value)}


def _text_of(value: memoryview, field: WireField) -> str:
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise UsageError("a text is not UTF-8", field=field.number) from error


def _values(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yield the number, the wire type and the value of each field; fixed-size values as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            raise _malformed("a field has no number", at)
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
            continue
        if kind == LENGTH:
            size, at = _varint(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise _malformed("a wire type is unknown, or a group's", at)
        if size > len(data) - at:
            raise _malformed("a field ends after the message", at)
        yield number, kind, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for count in range(_VARINT_BYTES):
        if at + count >= len(data):
            raise _malformed("a number ends after the message", at)
        byte = data[at + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if value >= 2**64:
                break
            return value, at + count + 1
    raise _malformed("a number has more than 64 bits", at)


def _malformed(what: str, at: int) -> UsageError:
    return UsageError(f"the body is not such a protobuf message: {what}", byte=at)
