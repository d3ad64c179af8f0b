"""Shared code of compact, collect, inspect and scrub: their names, repetition and end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Protocol, TypeVar, cast

import typer

from tidelog.cli.command import Damaged
from tidelog.cli.keyed.arguments import closing
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

    from tidelog.collection.maintenance import ShardGroup
    from tidelog.keyed.log import KeyedLog
    from tidelog.location import Location

ShardNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Collections and shards. The default is all."),
]
TargetNames = Annotated[
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
    str,
    typer.Option(metavar="DURATION", help="How long --follow waits between two runs."),
]


class WithName(Protocol):
    """A target of maintenance, with the name that users know."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class LogTarget:
    """A keyed log as a target of maintenance."""

    name: str
    location: Location

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[KeyedLog]:
        """Yield the open log, and close it at the end."""
        async with closing(await self.location.keyed.open(self.name)) as log:
            yield log


async def maintenance_targets(
    location: Location, names: Sequence[str], *, dropped: bool = False
) -> tuple[list[ShardGroup], list[LogTarget]]:
    """Return the shards and the keyed logs with these names, or all; see `Maintenance.groups`.

    Raises:
        NoSuchCollection: no collection, shard or keyed log has a name.
    """
    keyed, maintenance = location.keyed, location.maintenance
    if not names:
        groups = await maintenance.groups(dropped=dropped)
        return groups, [LogTarget(name, location) for name in await keyed.list()]
    groups, logs = [], []
    for name in dict.fromkeys(names):
        with suppress(UsageError):
            if await keyed.has(name):
                logs.append(LogTarget(name, location))
        try:
            groups += await maintenance.groups([name])
        except NoSuchCollection:
            if name not in [log.name for log in logs]:
                raise
    return groups, logs


K = TypeVar("K", bound=WithName)
V = TypeVar("V")


@dataclass(slots=True)
class Turn:
    """One round of maintenance over all targets."""

    stopping: asyncio.Event
    damaged: list[str] = field(default_factory=list)

    async def each(
        self, groups: Sequence[K], work: Callable[[Sequence[K]], AsyncIterator[V]]
    ) -> AsyncIterator[V]:
        """Yield the results of ``work`` on each target; report a damaged one, and continue."""
        for one in groups:
            if self.stopping.is_set():
                return
            try:
                async with aclosing(cast("AsyncGenerator[V, None]", work([one]))) as found:
                    async for done in found:
                        yield done
            except NoSuchLog:
                continue  # Another process dropped it after the listing.
            except CorruptionError as error:
                self.damaged.append(one.name)
                say(f"tidelog: {one.name}: {error}")


class Round(Protocol):
    """The work of one round."""

    async def __call__(self, location: Location, turn: Turn, /) -> None: ...


async def again_and_again(location: Location, once: Round, follow: bool, wait_us: int) -> None:
    """Run one round, or repeat rounds until SIGTERM; with ``follow``, retry if the store fails.

    Several processes may do this concurrently. On SIGTERM, the present target is finished.

    Raises:
        Damaged: the last round found damage.
        StoreRefused: the store refused a request; a retry would not help.
        LocationError: the store failed, without ``follow``.
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
                say(f"tidelog: {error}; trying again in {wait_us / 1e6:g} seconds")
            if follow:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), wait_us / 1e6)
            if not follow or stopping.is_set():
                break
    if turn.damaged:
        raise Damaged(
            f"{', '.join(dict.fromkeys(turn.damaged))}: damaged, see the messages above; the "
            "others are intact"
        )


@contextmanager
def stopped_by_sigterm() -> Iterator[asyncio.Event]:
    """Yield an event that SIGTERM sets; SIGTERM no longer ends the process by itself."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Some systems have no signal handlers, and no thread except the main one can set them.
    with suppress(NotImplementedError, RuntimeError, ValueError):
        loop.add_signal_handler(signal.SIGTERM, stopping.set)
    try:
        yield stopping
    finally:
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.remove_signal_handler(signal.SIGTERM)
