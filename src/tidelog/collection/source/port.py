"""The port of raw sources: the operations that an ingester needs of a source.

A raw source returns messages in the order of their addresses, from any address. An address always
has the same message; if the message is lost, a read raises an error. The process that plans a
binding reads no data. It reads listings, has the engine survey the pieces that must be read before
a binding, and chooses the ranges by the results.
Source: storage, "Ingredients"; design page 6, "Who reads what".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from tidelog.collection.source.binding import AddressRange, Taken
from tidelog.collection.source.decode import ReadData
from tidelog.collection.source.survey_facts import AnyPiece, SurveyFacts
from tidelog.collection.source.survey_result import SurveyJob
from tidelog.persist.format.schema import ShardSchema
from tidelog.store.wrappers.metered import Usage


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges of the next binding, and its ``upper``; None if times are from the clock."""

    ranges: tuple[AddressRange, ...]
    upper: int | None


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """The result for each piece, in order, and the store usage of other processes."""

    found: Sequence[SurveyFacts]
    usage: Usage = field(default_factory=Usage)


Survey = Callable[[SurveyJob], Awaitable[SurveyResult]]


class SourceHead(Protocol):
    """The extent of a source at the time of a request."""

    def left_bytes(self, taken: Taken) -> int:
        """Return the number of bytes after ``taken`` and up to this head."""
        ...

    def left_after(self, left_bytes: int, taken: Taken, ranges: Iterable[AddressRange]) -> int:
        """Return the bytes left after ``ranges`` are ingested; before, ``left_bytes`` were left.

        Its cost depends on the number of ranges, not on the number of files.
        """
        ...


class RawSource(Protocol):
    """One raw source, as engines and the ingester use it.

    To add a kind of source, implement `tidelog.collection.source.kind.SourceKind` instead.
    """

    @property
    def range_type(self) -> type[AddressRange]:
        """Return the type of its ranges: the fields are the columns of the remap shard."""
        ...

    def adopt(self, schema: ShardSchema) -> None:
        """Plan the next ranges for these columns: the source was altered."""
        ...

    def pass_over(self, paths: frozenset[str]) -> None:
        """Leave these paths out of all later heads and plans."""
        ...

    async def head(self) -> SourceHead:
        """Return the current extent of the source."""
        ...

    async def plan(
        self, taken: Taken, head: SourceHead, *, lower: int, bytes_max: int, survey: Survey
    ) -> Plan | None:
        """Return the next binding's ranges, of about ``bytes_max``; None if nothing is new.

        The engine runs ``survey`` for the pieces that must be read first.

        Raises:
            SourceRewritten: messages that were bound before have changed.
        """
        ...

    async def survey(self, piece: AnyPiece, job: SurveyJob) -> SurveyFacts:
        """Read a piece of the data after the last binding, and return what a plan needs of it.

        Raises:
            SourceRewritten: messages that were bound before have changed.
        """
        ...

    def waiting(self) -> Mapping[str, str]:
        """Return the paths that the last plan could not bind yet, each with the reason."""
        ...

    def notes(self) -> Mapping[str, str]:
        """Return reports about paths for the user, such as files that were moved."""
        ...

    def usage(self) -> Usage:
        """Return the requests that this process has sent to the source's store so far."""
        ...

    async def gone(self, taken: Taken) -> Sequence[AddressRange]:
        """Return the ranges after ``taken`` that were lost before their binding.

        A source of files has none: it binds only files that exist.
        """
        ...

    async def read(
        self,
        found: AddressRange,
        low: int | None = None,
        high: int | None = None,
        *,
        anew: bool = False,
    ) -> tuple[AddressRange, ReadData]:
        """Return the messages of a bound range, checked against the proof in the binding.

        With ``anew``, the source ignores its cache of decoded rows.
        Shape: bytes of a file, or rows with their addresses: see
            `tidelog.collection.source.decode`. With ``low`` or ``high``, only the records that
            start in ``[low, high)``, with a range that describes them.

        Raises:
            SourceRewritten: the data differ from those bound.
            GoneError: the data no longer exist.
        """
        ...

    async def hold(self, taken: Taken, *, make: bool) -> None:
        """Report to the source that all messages before ``taken`` are committed.

        The source may delete those. With ``make``, it begins to keep all later ones, if it does
        not yet.

        Raises:
            GoneError: later messages are lost already. LocationError: the source's store failed.
        """
        ...


@runtime_checkable
class Releasing(Protocol):
    """A source that releases its holds itself, because it reads the location's own shards."""

    async def release(self) -> None:
        """Release its holds; the call is idempotent.

        Raises:
            LocationError: the store failed; call again.
        """
        ...
