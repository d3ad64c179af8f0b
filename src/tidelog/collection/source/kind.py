"""Kinds of sources: what makes one, in one small file.

A kind says where its messages stand, how far they reach, and reads them; all else is the recipe's:
bindings, times, engines, bad rows, late ones. Its messages lie under paths (a table, a partition,
a log; one is enough), each at an address, a whole number that rises within its path. Kinds that
tidelog does not bring are made known by `tidelog.collection.source.kinds.register_kind`.
Source: design page 6, "Raw sources"; storage, "Ingredients".
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Final

import pyarrow as pa

from tidelog.arguments import quoted
from tidelog.clock import Clock
from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.source.binding import AddressRange
from tidelog.errors import LocationError, TidelogError, UsageError
from tidelog.store.port import Store

ADDRESS: Final = OFFSET  # The column of a batch that has each row's address.
BODY: Final = "body"  # The column that is decoded, where a source's format says so.
SAMPLE_BYTES: Final = 2 * 1024 * 1024
ROWS: Final = "rows"  # The format of a source that takes its kind's columns as they are.

Frontier = Mapping[str, int]  # By path, the address before which all is, and from which on nothing.


class RowRange(AddressRange, frozen=True, kw_only=True):
    """A range of a source whose addresses count messages, and not bytes.

    Units: ``size_bytes`` is about what its messages take. ``proof`` is the kind's: by it a reader
        knows that what lies there now is what was bound.
    """

    size_bytes: int = 0
    proof: str = ""

    @property
    def weight_bytes(self) -> int:
        return self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedWith:
    """What a kind is opened with: the source, and the store of the location that it feeds.

    ``open_store`` opens another, whose requests are counted as the source's.
    """

    info: SourceInfo
    store: Store
    clock: Clock
    open_store: Callable[[str], Store]

    @property
    def settings(self) -> Mapping[str, str]:
        """Return what was said of the source by ``--set``."""
        return self.info.settings

    def text(self, name: str) -> str:
        """Return a setting that must be there.

        Raises:
            UsageError: it is not.
        """
        if name not in self.settings:
            raise UsageError(f"a source of the kind {self.info.kind!r} needs --set {name}=...")
        return self.settings[name]

    def whole(self, name: str, default: int, *, least: int = 0, most: int = 2**53) -> int:
        """Return a setting that is a whole number.

        Raises:
            UsageError: it is none, or out of bounds.
        """
        text = self.settings.get(name)
        if text is None:
            return default
        digits = text.replace("_", "")
        if not (digits.isascii() and digits.isdigit()) or not least <= int(digits) <= most:
            raise UsageError(
                f"--set {name}={quoted(text)} is no whole number from {least} to {most}"
            )
        return int(digits)


@contextmanager
def told(kind: SourceKind) -> Iterator[None]:
    """Tell an error that a kind did not foresee as one of what it reads, which may pass.

    Raises:
        LocationError: there was one. NOT_APPLIED.
    """
    try:
        yield
    except (TidelogError, MemoryError):
        raise
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise LocationError(
            f"the source {kind.opening.info.name!r} cannot be read: its kind {kind.name!r} failed "
            f"with {type(error).__name__}: {said}"
        ) from error


class SourceKind(abc.ABC):
    """A kind of source, opened for one source.

    Whoever asks, and how often: an address has the same message for ever, or it is an error.

    Shape: ``name`` is the kind's; ``knows`` are its settings and what each says. ``row_bytes`` is
        about what a message takes.
    """

    name: ClassVar[str]
    knows: ClassVar[Mapping[str, str]] = {}
    row_bytes: int = 100

    def __init__(self, opening: OpenedWith) -> None:
        self.opening = opening

    @abc.abstractmethod
    async def columns(self) -> pa.Schema:
        """Return the columns that its rows have.

        Raises:
            UsageError: a setting is wrong. GoneError: there is nothing to read.
        """

    @abc.abstractmethod
    async def head(self) -> Frontier:
        """Look how far its messages reach."""

    @abc.abstractmethod
    def read(self, found: RowRange) -> AsyncIterator[pa.Table]:
        """Yield the rows of a range, in the order of their addresses, with a column `ADDRESS`.

        Raises:
            SourceRewritten: they are others than those that were bound. GoneError: they are gone.
        """

    async def settle(self) -> Mapping[str, str]:
        """Return the settings that the source is created with: as they are, unless a kind says."""
        return self.opening.settings

    async def sample(self) -> list[bytes]:
        """Return the first texts in the column `BODY`, of about 2 MiB, to infer columns from."""
        reached = await self.head()
        ranges = await self.plan({}, reached, bytes_max=SAMPLE_BYTES)
        found: list[bytes] = []
        for one in ranges:
            async for batch in self.read(one):
                found += [body for body in batch.column(BODY).cast(pa.binary()).to_pylist() if body]
        return found

    async def plan(self, start: Frontier, limit: Frontier, *, bytes_max: int) -> Sequence[RowRange]:
        """Return ranges from one frontier on, of about ``bytes_max``; none if there is no more.

        Each path that has something left gets as much.
        """
        left = {p: (start.get(p, 0), end) for p, end in limit.items() if start.get(p, 0) < end}
        rows = max(1, bytes_max // self.row_bytes // max(1, len(left)))
        return [
            RowRange(
                path=path,
                start=low,
                limit=min(high, low + rows),
                size_bytes=min(high - low, rows) * self.row_bytes,
            )
            for path, (low, high) in sorted(left.items())
        ]

    async def proof(self, found: RowRange) -> str:
        """Return what is the same each time that a range holds the same messages.

        Raises:
            SourceRewritten: the source does not reach that far any more. GoneError: it is gone.
        """
        return ""

    async def hold(self, taken: Frontier, *, make: bool) -> None:  # noqa: B027 - most need none
        """Keep what comes from a frontier on, and let go of what lies before it.

        ``make`` asks to begin with it, if need be.
        """

    async def release(self) -> None:  # noqa: B027 - as above
        """Let go of all: the source was dropped."""
