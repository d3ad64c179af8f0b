"""Languages: the initial value, the changes and the encoding of a kind of state. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tidelog.errors import UsageError

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
