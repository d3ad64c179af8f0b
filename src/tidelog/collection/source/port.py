"""Raw sources: what the recipe asks of them.

A raw source hands out messages in the order of their addresses, can start at any address, and gives
the same message for the same address for ever, or says it is gone. The process that plans what is
taken next reads no data: it looks at listings, has what must be looked into surveyed by whoever
does the work, and cuts by what these tell.
Source: storage, "Ingredients"; design page 6, "Who reads what".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidelog.collection.source.binding import AddressRange, Taken
from tidelog.collection.source.look import SurveyJob
from tidelog.collection.source.messages import ReadData
from tidelog.collection.source.surveyed import AnyPiece, Surveyed
from tidelog.store.wrappers.metered import Usage


@dataclass(frozen=True, slots=True)
class Plan:
    """What the next binding would take; ``upper`` is None where times are the clock's."""

    ranges: tuple[AddressRange, ...]
    upper: int | None


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """What was found of each piece, in order, and what other processes asked of stores for it."""

    found: Sequence[Surveyed]
    usage: Usage = field(default_factory=Usage)


Survey = Callable[[SurveyJob], Awaitable[SurveyResult]]


class SourceHead(Protocol):
    """How far a source had got when it was asked."""

    def left_bytes(self, taken: Taken) -> int:
        """Return how many bytes lie between a frontier and this head."""
        ...

    def left_after(self, left_bytes: int, taken: Taken, ranges: Iterable[AddressRange]) -> int:
        """Return what is left once ranges were taken, of what was left of it before.

        It costs what the ranges do, and not what all files do.
        """
        ...


class RawSource(Protocol):
    """One raw source, as engines and the ingester know it.

    Who brings a new kind of source writes no such thing, but a `tidelog.collection.source.kind`.
    """

    @property
    def range_type(self) -> type[AddressRange]:
        """Return what its ranges are: their fields are the columns of its remap shard."""
        ...

    def pass_over(self, paths: frozenset[str]) -> None:
        """Take nothing more of these paths, and have them in no head."""
        ...

    async def head(self) -> SourceHead:
        """Look how far the source has got."""
        ...

    async def plan(
        self, taken: Taken, head: SourceHead, *, lower: int, bytes_max: int, survey: Survey
    ) -> Plan | None:
        """Choose the next binding's ranges, of about ``bytes_max``; None if nothing is new.

        What has to be looked into, ``survey`` does.

        Raises:
            SourceRewritten: what was taken before is no longer what it was.
        """
        ...

    async def survey(self, piece: AnyPiece, job: SurveyJob) -> Surveyed:
        """Look into a piece of what may be taken next.

        Raises:
            SourceRewritten: what was taken before is no longer what it was.
        """
        ...

    def waiting(self) -> Mapping[str, str]:
        """Return what could not be taken at the last plan, by path, and why not yet."""
        ...

    def notes(self) -> Mapping[str, str]:
        """Return what there is to tell of what was taken, or was not, by path."""
        ...

    def usage(self) -> Usage:
        """Return what the source's store was asked for so far, as far as this process did."""
        ...

    async def read(
        self,
        found: AddressRange,
        low: int | None = None,
        high: int | None = None,
        *,
        anew: bool = False,
    ) -> tuple[AddressRange, ReadData]:
        """Return what lies in a range, proven to be what the binding names.

        ``anew``: what was decoded before, and kept, is not wanted.
        Shape: bytes of a file, or rows with their addresses: see
            `tidelog.collection.source.messages`. Of a share of it: of its records that start in
            ``[low, high)``, as a range of their own.

        Raises:
            SourceRewritten: there is something else. GoneError: it is gone.
        """
        ...

    async def hold(self, taken: Taken, *, make: bool) -> None:
        """Tell the source that what lies before a frontier is in, and may be forgotten.

        ``make`` asks it to keep what comes after, if it does not yet.

        Raises:
            GoneError: that is gone already. LocationError: the source's store failed.
        """
        ...
