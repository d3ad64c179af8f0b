"""Shared code of the verbs of ``tidelog keyed``: open a keyed log, work on it, close it."""

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
    """Open a log to read it, now or as of a checkpoint, and return the result of ``work``."""

    async def whole(location: Location) -> T:
        found = await location.keyed.reader(name, checkpoint=checkpoint)
        async with closing(found) as log:
            return await work(log)

    check_keyed(name)
    return on_location(context, whole)


def on_writer(context: typer.Context, name: str, work: Callable[[KeyedWrites], Awaitable[T]]) -> T:
    """Open a log to change it, and return the result of ``work``."""

    async def whole(location: Location) -> T:
        async with closing(await location.keyed.open(name)) as log:
            return await work(log)

    check_keyed(name)
    return on_location(context, whole)


L = TypeVar("L", bound="KeyedReads")


@asynccontextmanager
async def closing(log: L) -> AsyncIterator[L]:
    """Yield the log, and close it at the end."""
    try:
        yield log
    finally:
        await log.close()


def check_keyed(name: str) -> None:
    """Raise unless the name is valid for a keyed log.

    Raises:
        UsageError: it is not.
    """
    from tidelog.core.ids import check_name

    check_name(name, of="name of a keyed log")
