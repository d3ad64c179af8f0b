"""Languages: how a kind of state begins, changes, and becomes bytes. All pure."""

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
    """What is to be answered, and what is to be written for it (None: nothing)."""

    result: R
    diff: D | None = None


class Language(Protocol[S, D]):
    """A kind of state ``S``, and of its changes ``D``."""

    def initial(self) -> S: ...
    def apply(self, state: S, diff: D) -> S: ...
    def encode_diff(self, diff: D) -> bytes: ...
    def decode_diff(self, data: bytes) -> D: ...
    def encode_state(self, state: S) -> bytes: ...
    def decode_state(self, data: bytes) -> S: ...

    def vanished(self, diff: D) -> Sequence[str]:
        """Return the objects that the state named before a change, and does not after it."""
        ...

    def seqno_since(self, state: S) -> int | None:
        """Return the least seqno whose state somebody may still read; None: no older one."""
        ...


def check_storable(language: Language[S, D], diff: D) -> None:
    """Refuse a change that nobody could read once it is written: the state would be lost.

    What a call means is decided, and not of what types its arguments are, which may be any.

    Raises:
        UsageError: it is one.
    """
    try:
        language.decode_diff(language.encode_diff(diff))
    except Exception as error:
        raise UsageError(
            "something that was given cannot be stored: names are texts, times and numbers whole "
            "(int), and parts those of this shard",
            why=error.__cause__ or error,
        ) from error
