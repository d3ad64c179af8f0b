"""What the verbs of ``tidelog keyed`` share: the location, and a log of it that is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidelog.cli.command import on_location

if TYPE_CHECKING:
    from tidelog.keyed.port import KeyedReads, KeyedWrites
    from tidelog.location import Location

T = TypeVar("T")

KeyedName = Annotated[str, typer.Argument(metavar="NAME", help="A keyed log.")]


def on_reader(
    context: typer.Context,
    name: str,
    work: Callable[[KeyedReads], Awaitable[T]],
    *,
    checkpoint: str | None = None,
) -> T:
    """Open a log to read it, as it is or as it was at a checkpoint, and do the work."""

    async def whole(location: Location) -> T:
        found = await location.keyed_reader(name, checkpoint=checkpoint)
        async with closing(found) as log:
            return await work(log)

    check_keyed(name)
    return on_location(context, whole)


def on_writer(context: typer.Context, name: str, work: Callable[[KeyedWrites], Awaitable[T]]) -> T:
    """Open a log to change it, do the work, and return its result."""

    async def whole(location: Location) -> T:
        async with closing(await location.keyed(name)) as log:
            return await work(log)

    check_keyed(name)
    return on_location(context, whole)


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
