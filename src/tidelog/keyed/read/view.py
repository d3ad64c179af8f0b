"""A view: the readable records of a keyed log at one moment, as consecutive sources."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.keyed.read.sources import Source
from tidelog.keyed.states.state import KeyedState


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedView:
    """Sources in sequence order, and the next sequence after them."""

    state: KeyedState
    sources: tuple[Source, ...]
    next: int

    @property
    def oldest(self) -> int:
        return self.state.retired

    def between(self, start: int, limit: int | None) -> list[Source]:
        """Return the sources that overlap the sequences ``[start, limit)``."""
        upper = self.next if limit is None else min(limit, self.next)
        return [one for one in self.sources if one.upper > start and one.lower < upper]
