"""Fields of states and diffs: msgpack maps whose unknown fields survive a round trip. Pure.

An older tidelog can therefore work next to a newer one without losing the newer one's fields.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from tidelog.errors import CorruptionError, InvariantError

Decoders = dict[str, msgspec.msgpack.Decoder[Any]]
_MAP = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_T = TypeVar("_T")


def decoders_of(types: dict[str, Any]) -> Decoders:
    """Return a decoder for each field, by the field's name."""
    return {name: msgspec.msgpack.Decoder(kind) for name, kind in types.items()}


def fields_of(
    data: bytes, known: Decoders, *, of: str = "a shard"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields that this version knows, and the other fields.

    Raises:
        CorruptionError: ``data`` is not a map of fields, or the value of a known field is invalid.
    """
    try:
        raw = _MAP.decode(data)
        found = {name: known[name].decode(raw[name]) for name in raw if name in known}
        extra = {name: msgspec.msgpack.decode(raw[name]) for name in raw if name not in known}
    except (msgspec.MsgspecError, UnicodeDecodeError, InvariantError) as error:
        raise CorruptionError(f"the state of {of} cannot be read") from error
    return found, extra


def made_of(kind: type[_T], fields: dict[str, Any], *, of: str = "a shard") -> _T:
    """Return a state or a diff with these fields.

    Raises:
        CorruptionError: a required field is missing.
    """
    try:
        return kind(**fields)
    except TypeError as error:
        raise CorruptionError(f"the state of {of} cannot be read", why=error) from error
