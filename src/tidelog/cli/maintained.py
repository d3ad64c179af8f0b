"""What the verbs of maintenance share: what they work on, how often, and how they end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar, cast

import typer

from tidelog.cli.keyed.opened import closing
from tidelog.cli.output import say
from tidelog.errors import (
    CorruptionError,
    LocationError,
    NoSuchCollection,
    NoSuchLog,
    StoreRefused,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tidelog.collection.maintenance import Kept
    from tidelog.keyed.log import KeyedLog
    from tidelog.location import Location

MaintainedNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Collections and shards. The default is all."),
]
TendedNames = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...", help="Collections, shards and keyed logs. The default is all."
    ),
]
Follow = Annotated[
    bool,
    typer.Option("--follow", help="Repeat until Ctrl-C or SIGTERM."),
]
Wait = Annotated[
    float,
    typer.Option(min=0.1, metavar="SECONDS", help="How long --follow waits between two runs."),
]


class Damaged(CorruptionError):
    """Some of what was to be kept in order is damaged, and was told."""


class WithName(Protocol):
    """What is kept in order, by the name that people know."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class TendedLog:
    """A keyed log that is kept in order."""

    name: str
    location: Location

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[KeyedLog]:
        """Yield it opened; it is closed in the end."""
        async with closing(await self.location.keyed(self.name)) as log:
            yield log


async def tended(
    location: Location, names: Sequence[str], *, dropped: bool = False
) -> tuple[list[Kept], list[TendedLog]]:
    """Find the shards and the keyed logs that have these names, or all; see `Maintenance.kept`.

    Raises:
        NoSuchCollection: there is nothing of a name.
    """
    shelf, tending = location.keyed_shelf, location.maintenance
    if not names:
        kept = await tending.kept(dropped=dropped)
        return kept, [TendedLog(name, location) for name in await shelf.names()]
    kept, logs = [], []
    for name in dict.fromkeys(names):
        with suppress(UsageError):
            if await shelf.has(name):
                logs.append(TendedLog(name, location))
        try:
            kept += await tending.kept([name])
        except NoSuchCollection:
            if name not in [log.name for log in logs]:
                raise
    return kept, logs


K = TypeVar("K", bound=WithName)


@dataclass(slots=True)
class Turn:
    """One time through what is to be kept in order."""

    stopping: asyncio.Event
    damaged: list[str] = field(default_factory=list)

    async def each(
        self, kept: Sequence[K], work: Callable[[Sequence[K]], AsyncIterator[Any]]
    ) -> AsyncIterator[Any]:
        """Yield what comes of the work on each; what is damaged is told, and stops no other."""
        for one in kept:
            if self.stopping.is_set():
                return
            try:
                async with aclosing(cast("AsyncGenerator[Any, None]", work([one]))) as found:
                    async for done in found:
                        yield done
            except NoSuchLog:
                continue  # It was dropped since it was found.
            except CorruptionError as error:
                self.damaged.append(one.name)
                say(f"tidelog: {one.name}: {error}")


class Round(Protocol):
    """What is done each time."""

    async def __call__(self, location: Location, turn: Turn, /) -> None: ...


async def again_and_again(location: Location, once: Round, follow: bool, interval_s: float) -> None:
    """Do something once, or until the process is stopped; a store that fails is waited for.

    Any number of processes may. On SIGTERM, what is under way is done to its end.

    Raises:
        Damaged: something was damaged the last time. LocationError: the store failed, once.
    """
    with stopped_by_sigterm() as stopping:
        while True:
            turn = Turn(stopping)
            try:
                await once(location, turn)
            except StoreRefused:
                raise
            except LocationError as error:
                if not follow:
                    raise
                say(f"tidelog: {error}; trying again in {interval_s:g} seconds")
            if follow:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), interval_s)
            if not follow or stopping.is_set():
                break
    if turn.damaged:
        raise Damaged(
            f"{', '.join(dict.fromkeys(turn.damaged))}: damaged, as is said above; the others are "
            "in order"
        )


@contextmanager
def stopped_by_sigterm() -> Iterator[asyncio.Event]:
    """Yield an event that SIGTERM sets, which then ends nothing by itself."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # There are no signals on some systems, nor outside of the main thread.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGTERM, stopping.set)
    try:
        yield stopping
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGTERM)
