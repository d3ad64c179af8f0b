"""Kinds of sources: the base class for a new one, which fits in a small file.

A kind returns the addresses of its messages, and reads them. The ingester does all else: bindings,
times, engines, bad rows and late rows. Messages belong to paths (a table, a partition or a log; one
path is enough). Each message has an address: a whole number that rises within its path. Register a
kind of your own with `tidelog.collection.source.kinds.register_kind`.
Source: design page 6, "Raw sources"; storage, "Ingredients".
"""

from __future__ import annotations

import abc
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import pyarrow as pa

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.formats.lines import Int64s
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.source.binding import AddressRange
from tidelog.core.arguments import quoted
from tidelog.core.clock import Clock
from tidelog.errors import LocationError, TidelogError, UsageError
from tidelog.store.port import Store

ADDRESS: Final = OFFSET  # The column of a batch with each row's address.
BODY: Final = "body"  # The column of a batch with the text to decode, if the format is not `ROWS`.
SAMPLE_BYTES: Final = 2 * 1024 * 1024
ROWS: Final = "rows"  # The format of a source that uses the columns of its kind unchanged.

Frontier = Mapping[str, int]  # The first address of each path that is not included.


_GIVEN_UP: Final = re.compile("given up until ([0-9]+):(.*)", re.DOTALL)


class RowRange(AddressRange, frozen=True, kw_only=True):
    """A range of a source whose addresses count messages, not bytes.

    Units: ``size_bytes`` is the approximate size of its messages. ``proof`` comes from the kind: a
        reader compares it, to detect that the messages have changed since the binding. If the range
        gives up messages at its start, the proof begins with the address after them.
    """

    size_bytes: int = 0
    proof: str = ""

    @property
    def weight_bytes(self) -> int:
        return self.size_bytes

    @property
    def first(self) -> int:
        given_up = _GIVEN_UP.fullmatch(self.proof)
        return self.start if given_up is None else int(given_up[1])

    @property
    def given_up(self) -> AddressRange | None:
        if self.first == self.start:
            return None
        return AddressRange(path=self.path, start=self.start, limit=self.first)

    @property
    def present(self) -> RowRange:
        """Return the range without the messages that it gives up."""
        given_up = _GIVEN_UP.fullmatch(self.proof)
        if given_up is None:
            return self
        return msgspec.structs.replace(self, start=int(given_up[1]), proof=given_up[2])

    def giving_up(self, start: int) -> RowRange:
        """Return the range with the messages since ``start`` added: it gives them up."""
        proof = f"given up until {self.start}:{self.proof}"
        return msgspec.structs.replace(self, start=start, proof=proof)

    def cut_at(self, places: Int64s) -> Int64s:
        return places[places > self.first]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedWith:
    """The arguments for opening a kind: the source, and the store of its location.

    ``open_store`` opens another store by URL; its requests count as the source's.
    """

    info: SourceInfo
    store: Store
    clock: Clock
    open_store: Callable[[str], Store]

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the settings of the source, as given by ``--set``."""
        return self.info.settings

    def text(self, name: str) -> str:
        """Return a required setting.

        Raises:
            UsageError: the setting is missing.
        """
        if name not in self.settings:
            raise UsageError(f"a source of the kind {self.info.kind!r} needs settings[{name!r}]")
        return self.settings[name]

    def secret(self, name: str) -> str | None:
        """Return the secret that a setting names; None without the setting.

        The setting is ``env:NAME``, a variable of this process, or ``file:PATH``: the location has
        only the name. Each process that reads the source needs the variable, or the file.

        Raises:
            UsageError: this process has no such variable or file.
        """
        text = self.settings.get(name)
        if text is None:
            return None
        how, _, where = text.partition(":")
        try:
            return os.environ[where] if how == "env" else Path(where).read_text().rstrip("\r\n")
        except KeyError:
            raise UsageError(
                f"settings[{name!r}]={quoted(text)} names a variable that this process does not "
                f"have: set {where} in its environment"
            ) from None
        except (OSError, ValueError) as error:
            raise UsageError(
                f"settings[{name!r}]={quoted(text)} names a file that this process cannot read: "
                f"{error}"
            ) from error

    def whole(self, name: str, default: int, *, least: int = 0, most: int = 2**53) -> int:
        """Return a setting that is a whole number.

        Raises:
            UsageError: the setting is not a whole number, or not between ``least`` and ``most``.
        """
        text = self.settings.get(name)
        if text is None:
            return default
        digits = text.replace("_", "")
        if not (digits.isascii() and digits.isdigit()) or not least <= int(digits) <= most:
            raise UsageError(
                f"settings[{name!r}]={quoted(text)} must be a whole number from {least} to {most}"
            )
        return int(digits)


def has_tombstones(envelope: str, key: Sequence[str], included: Mapping[str, str]) -> bool:
    """Return True if a message without a body deletes its key: no column of that is decoded."""
    return envelope == "upsert" and {*key} <= included.keys()


def check_secrets(kind: type[SourceKind], settings: Mapping[str, str]) -> None:
    """Check that each setting of a secret names a place, because settings are stored.

    Raises:
        UsageError: one has the secret itself.
    """
    for name in kind.secrets & settings.keys():
        if not settings[name].startswith(("env:", "file:")):
            raise UsageError(
                f"settings[{name!r}] would be stored, so it must not have the secret itself: write "
                "env:NAME for a variable of the environment, or file:PATH for a file"
            )


@contextmanager
def told(kind: SourceKind) -> Iterator[None]:
    """Turn an unforeseen error of a kind into a LocationError, so that ingestion retries.

    Raises:
        LocationError: the kind raised an error that is not one of tidelog. NOT_APPLIED.
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

    An address always has the same message, in every process. If the message is lost or has changed,
    `read` must raise an error.

    Shape: ``name`` is the name of the kind. ``knows`` describes each of its settings. Those of
        ``secrets`` must name the place of a secret; see `OpenedWith.secret`. ``body`` is the
        column that a format other than `ROWS` decodes. ``wanted`` has the columns that the reader
        uses, or None for all: `read` may leave out the others. Raise ``version`` in a change after
        which an address has another row: existing sources then refuse the new version, until a
        rendition is created with it.
    Units: ``row_bytes`` is the approximate size of a message.
    """

    name: ClassVar[str]
    knows: ClassVar[Mapping[str, str]] = {}
    secrets: ClassVar[frozenset[str]] = frozenset()
    body: ClassVar[str] = BODY
    version: ClassVar[int] = 1
    row_bytes: int = 100
    wanted: frozenset[str] | None = None

    def __init__(self, opening: OpenedWith) -> None:
        self.opening = opening

    @abc.abstractmethod
    async def columns(self) -> pa.Schema:
        """Return the schema of its rows, without the column `ADDRESS`.

        Raises:
            UsageError: a setting is wrong. GoneError: the data do not exist.
        """

    @abc.abstractmethod
    async def head(self) -> Frontier:
        """Return the current end of each path: the address after its last message."""

    @abc.abstractmethod
    def read(self, found: RowRange) -> AsyncIterator[pa.Table]:
        """Yield the rows of a range, in the order of their addresses, with a column `ADDRESS`.

        Raises:
            SourceRewritten: the rows differ from those bound.
            GoneError: the rows no longer exist.
        """

    async def settle(self) -> Mapping[str, str]:
        """Return the settings to store with a new source; by default, the given ones.

        A kind can resolve relative settings here, for example "newest" to a position.
        """
        return self.opening.settings

    async def sample(self) -> pa.Table:
        """Return about 2 MiB of its first rows, to infer columns from."""
        reached = await self.head()
        ranges = await self.plan({}, reached, bytes_max=SAMPLE_BYTES)
        nothing = (await self.columns()).empty_table()
        found = [
            batch.select(nothing.column_names) for one in ranges async for batch in self.read(one)
        ]
        return pa.concat_tables([nothing, *found])

    async def plan(self, start: Frontier, limit: Frontier, *, bytes_max: int) -> Sequence[RowRange]:
        """Return the ranges after ``start`` and before ``limit``, of about ``bytes_max`` in all.

        Each path with messages left gets an equal part. The result is empty if none is left.
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
        """Return a text that changes if the messages of a range change, such as a checksum.

        Raises:
            SourceRewritten: the path now ends before the range does.
            GoneError: the messages no longer exist.
        """
        return ""

    async def gone(self, start: Frontier) -> Sequence[RowRange]:
        """Return the ranges from ``start`` on whose messages no longer exist, before later ones.

        'tidelog source skip' gives them up. By default, a kind loses no messages.
        """
        return []

    async def hold(self, taken: Frontier, *, make: bool) -> None:  # noqa: B027 - most need none
        """Keep the messages after ``taken``, and release those before it.

        With ``make``, begin to keep them if there is no hold yet.
        """

    async def release(self) -> None:  # noqa: B027 - as above
        """Release all messages: the source was dropped."""
