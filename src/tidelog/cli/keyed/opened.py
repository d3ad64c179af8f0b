"""What the verbs of ``tidelog keyed`` share: the location, and a log of it that is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar, cast

import typer

from tidelog.cli.command import on_location

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedReads, KeyedWrites
    from tidelog.keyed.values import Retention, Sealing
    from tidelog.location import Location

T = TypeVar("T")

KeyedName = Annotated[str, typer.Argument(metavar="NAME", help="A keyed log.")]


class KeyedLocation(Protocol):
    """What a location does with keyed logs."""

    async def create_keyed(
        self, name: str, sealing: Sealing | None = None, retention: Retention | None = None
    ) -> KeyedWrites:
        """Make a log."""
        ...

    async def keyed(self, name: str) -> KeyedWrites:
        """Open a log to write and read it."""
        ...

    async def keyed_reader(self, name: str) -> KeyedReads:
        """Open a log to read it."""
        ...

    async def keyed_logs(self) -> list[str]:
        """Return the names of all logs."""
        ...

    async def fork_keyed(self, source: str, name: str) -> KeyedWrites:
        """Make a log that begins as another is."""
        ...

    async def drop_keyed(self, name: str) -> None:
        """Drop a log."""
        ...


def keyed_of(location: Location) -> KeyedLocation:
    """Return a location as what it does with keyed logs."""
    return cast("KeyedLocation", location)


def on_keyed(context: typer.Context, work: Callable[[KeyedLocation], Awaitable[T]]) -> T:
    """Open the location, do the work there, and return its result; see `on_location`."""
    return on_location(context, lambda location: work(keyed_of(location)))


def on_reader(context: typer.Context, name: str, work: Callable[[KeyedReads], Awaitable[T]]) -> T:
    """Open a log to read it, do the work, and return its result."""

    async def whole(location: KeyedLocation) -> T:
        async with closing(await location.keyed_reader(name)) as log:
            return await work(log)

    check_keyed(name)
    return on_keyed(context, whole)


def on_writer(context: typer.Context, name: str, work: Callable[[KeyedWrites], Awaitable[T]]) -> T:
    """Open a log to change it, do the work, and return its result."""

    async def whole(location: KeyedLocation) -> T:
        async with closing(await location.keyed(name)) as log:
            return await work(log)

    check_keyed(name)
    return on_keyed(context, whole)


L = TypeVar("L", bound="KeyedReads")


@asynccontextmanager
async def closing(log: L) -> AsyncIterator[L]:
    """Yield a log that is closed in the end."""
    try:
        yield log
    finally:
        await log.close()


def check_keyed(name: str) -> None:
    """Refuse what can be no keyed log's name.

    Raises:
        UsageError: so it is.
    """
    from tidelog.ids import check_name

    check_name(name, of="name of a keyed log")
