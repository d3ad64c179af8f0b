"""Languages: how a kind of state begins, changes, and becomes bytes. All pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

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
