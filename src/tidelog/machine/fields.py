"""Fields of states and diffs, as msgpack maps, of which unknown ones survive a round trip. Pure.

An older tidelog beside a newer one drops nothing that it does not know.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from tidelog.errors import CorruptionError, InvariantError

Decoders = dict[str, msgspec.msgpack.Decoder[Any]]
_MAP = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_T = TypeVar("_T")


def decoders_of(types: dict[str, Any]) -> Decoders:
    """Return what reads each field, by its name and type."""
    return {name: msgspec.msgpack.Decoder(kind) for name, kind in types.items()}


def fields_of(
    data: bytes, known: Decoders, *, of: str = "a shard"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields that this version knows, and the others.

    Raises:
        CorruptionError: it is no such map, or a field is none that there can be.
    """
    try:
        raw = _MAP.decode(data)
        found = {name: known[name].decode(raw[name]) for name in raw if name in known}
        extra = {name: msgspec.msgpack.decode(raw[name]) for name in raw if name not in known}
    except (msgspec.MsgspecError, UnicodeDecodeError, InvariantError) as error:
        raise CorruptionError(f"the state of {of} cannot be read") from error
    return found, extra


def made_of(kind: type[_T], fields: dict[str, Any], *, of: str = "a shard") -> _T:
    """Return a state or a diff of fields.

    Raises:
        CorruptionError: some are missing.
    """
    try:
        return kind(**fields)
    except TypeError as error:
        raise CorruptionError(f"the state of {of} cannot be read", why=error) from error
