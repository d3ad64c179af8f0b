"""Languages: the initial value, the changes and the encoding of a kind of state. Pure.

States and diffs are msgpack maps whose unknown fields survive a round trip. An older tidelog can
therefore work next to a newer one without losing the newer one's fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from tidelog.errors import CorruptionError, InvariantError, UsageError

S = TypeVar("S")
D = TypeVar("D")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Decision(Generic[D, R]):
    """The result of a command, and the change to write (None: no change)."""

    result: R
    diff: D | None = None


class Language(Protocol[S, D]):
    """The rules of a kind of state ``S`` and of its changes ``D``."""

    def initial(self) -> S: ...
    def apply(self, state: S, diff: D) -> S: ...
    def encode_diff(self, diff: D) -> bytes: ...
    def decode_diff(self, data: bytes) -> D: ...
    def encode_state(self, state: S) -> bytes: ...
    def decode_state(self, data: bytes) -> S: ...

    def vanished(self, diff: D) -> Sequence[str]:
        """Return the paths that the state names before a change and no longer names after it."""
        ...

    def seqno_since(self, state: S) -> int | None:
        """Return the least seqno that a reader may still read; None if no older state is needed."""
        ...


def check_storable(language: Language[S, D], diff: D) -> None:
    """Refuse a change that cannot be decoded after it is written: it would destroy the state.

    Callers may pass arguments of any type, and ``decide`` does not check types. Decoding the
    encoded change here does.

    Raises:
        UsageError: the change cannot be encoded, or not decoded again.
    """
    try:
        language.decode_diff(language.encode_diff(diff))
    except Exception as error:
        raise UsageError(
            "an argument cannot be stored: names must be text, times and numbers must be int, "
            "and parts must be of this shard",
            why=error.__cause__ or error,
        ) from error


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
        fields = {name: known[name].decode(raw[name]) for name in raw if name in known}
        extra = {name: msgspec.msgpack.decode(raw[name]) for name in raw if name not in known}
    except (msgspec.MsgspecError, UnicodeDecodeError, InvariantError) as error:
        raise CorruptionError(
            f"the state of {of} cannot be decoded: restore it from a backup, or from an older "
            "version of its object"
        ) from error
    return fields, extra


def made_of(kind: type[_T], fields: dict[str, Any], *, of: str = "a shard") -> _T:
    """Return a state or a diff with these fields.

    Raises:
        CorruptionError: a required field is missing.
    """
    try:
        return kind(**fields)
    except TypeError as error:
        raise CorruptionError(
            f"the state of {of} cannot be decoded: restore it from a backup, or from an older "
            "version of its object",
            why=error,
        ) from error
