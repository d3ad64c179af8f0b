"""Raw sources: what the recipe asks of them.

A raw source hands out messages in the order of their addresses, can start at any address, and gives
the same message for the same address for ever, or says it is gone.
Source: storage, "Ingredients".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tidelog.collection.binding import SourceRange, Taken
from tidelog.store.wrappers.metered import Usage


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next binding would take; ``upper`` is None where times are the clock's."""

    ranges: tuple[SourceRange, ...]
    upper: int | None


class SourceHead(Protocol):
    """How far a source had got when it was asked."""

    def left_bytes(self, taken: Taken) -> int:
        """Return how many bytes lie between a frontier and this head."""
        ...


class RawSource(Protocol):
    """One raw source."""

    async def head(self) -> SourceHead:
        """Look how far the source has got."""
        ...

    async def left_bytes(self, taken: Taken) -> int:
        """Return how many bytes the source has now that lie beyond a frontier."""
        ...

    async def plan(
        self, taken: Taken, head: SourceHead, *, lower: int, bytes_max: int
    ) -> Plan | None:
        """Choose the next binding's ranges, of about ``bytes_max``; None if nothing is new.

        Raises:
            SourceRewritten: what was taken before is no longer what it was.
        """
        ...

    def waiting(self) -> Mapping[str, str]:
        """Return the files that could not be taken at the last plan, by path, and why not yet."""
        ...

    def usage(self) -> Usage:
        """Return what the source's store was asked for so far, as far as this process did."""
        ...

    async def read(self, found: SourceRange) -> bytes:
        """Return the bytes of a range, proven to be those that the binding names.

        Raises:
            SourceRewritten: they are others. GoneError: they are gone.
        """
        ...
