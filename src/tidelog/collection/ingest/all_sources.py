"""The ingestion of all sources of a location in one process.

Each source has a run of its own, in a task of its own; see `tidelog.collection.ingest.run`. The
failure of one source does not stop the others. With ``follow``, a source that is created
concurrently gets a run, and a source that failed is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tidelog.collection.catalog.controller import Controller
from tidelog.collection.ingest.run import pause
from tidelog.collection.ingest.summary import RunProgress, Summary, with_counts_of
from tidelog.core.clock import Clock
from tidelog.errors import (
    DataDiffers,
    NoSuchCollection,
    RenditionSucceeded,
    SourceDropped,
    SourcesFailed,
    TidelogError,
    UsageError,
    unforeseen,
)
from tidelog.store.wrappers.metered import meter_apart

RETRY_US: Final = 60_000_000
# A repetition meets the same error, or must not happen: after DataDiffers, a user has to find out
# which ingester is right.
FINAL: Final = (DataDiffers, UsageError)
DROPPED: Final = (SourceDropped, RenditionSucceeded, NoSuchCollection)

RunOne = Callable[[str, Callable[[RunProgress], None]], Awaitable[Summary]]


@dataclass(frozen=True, slots=True)
class AllResults:
    """The results of the sources, by name. A source that failed may have a summary, too."""

    summaries: Mapping[str, Summary]
    failed: Mapping[str, TidelogError]

    def total(self) -> Summary:
        """Return the counts and sizes of all sources together."""
        every = self.summaries.values()
        sizes = Summary(
            left_bytes=sum(one.left_bytes for one in every),
            live_bytes=sum(one.live_bytes for one in every),
            duration_us=max((one.duration_us for one in every), default=0),
        )
        return with_counts_of(sizes, *every)

    def check(self) -> None:
        """Raise if a source has failed.

        Raises:
            SourcesFailed: see above.
        """
        if not self.failed:
            return
        count = len(self.summaries.keys() | self.failed.keys())
        told = "; ".join(f"{name}: {error}" for name, error in self.failed.items())
        raise SourcesFailed(f"{len(self.failed)} of {count} sources failed: {told}", self.failed)


def ignore(*_: object) -> None:
    """Ignore a report of a run."""


@dataclass(slots=True, kw_only=True)
class AllSources:
    """One run of all sources.

    Shape: ``run`` ingests the source of a name, and reports its progress. ``on_error`` gets the
        name of a source that failed or was dropped; None if the catalog cannot be read.
    Units: ``interval_us`` is the pause between two reads of the catalog. ``on_error`` gets the
        pause in microseconds before the next try; 0 if there is no such try.
    """

    controller: Controller
    clock: Clock
    run: RunOne
    on_tick: Callable[[str, RunProgress], None] = ignore
    on_error: Callable[[str | None, TidelogError, int], None] = ignore
    stop: Callable[[], bool] = lambda: False
    follow: bool = False
    interval_us: int = 0
    _running: dict[str, tuple[str, asyncio.Task[None]]] = field(init=False, default_factory=dict)
    _given_up: set[str] = field(init=False, default_factory=set)
    _latest: dict[str, Summary] = field(init=False, default_factory=dict)
    _summaries: dict[str, Summary] = field(init=False, default_factory=dict)
    _failed: dict[str, TidelogError] = field(init=False, default_factory=dict)

    async def go(self) -> AllResults:
        """Ingest all sources to their present heads; with ``follow``, until ``stop`` is True.

        With ``follow``, the run also ends if each source has failed for good.

        Raises:
            TidelogError: the catalog cannot be read at the start.
        """
        known = await self._known()
        async with asyncio.TaskGroup() as group:
            while True:
                self._start(group, known)
                if not self.follow:
                    break
                await pause(self.clock, self.interval_us, self.stop)
                if self.stop() or (known and self._given_up.issuperset(known.values())):
                    break
                known = await self._look(known)
        return AllResults(dict(sorted(self._summaries.items())), dict(sorted(self._failed.items())))

    async def _known(self) -> dict[str, str]:
        """Return the ids of all sources, by name, except those of former renditions."""
        catalog = await self.controller.catalog()
        return {one.name: one.id for one in catalog.living_sources}

    async def _look(self, known: dict[str, str]) -> dict[str, str]:
        """Read the catalog again; if that fails, return the sources known before."""
        try:
            return await self._known()
        except TidelogError as error:
            self.on_error(None, error, self.interval_us)
            return known

    def _start(self, group: asyncio.TaskGroup, known: Mapping[str, str]) -> None:
        """Start a run for each source that has none, except those that failed for good.

        An ingester learns of a drop with its next binding. So the run of a dropped source is
        cancelled here, and another source may have its name.
        """
        if self.stop():
            return
        self._running = {n: run for n, run in self._running.items() if not run[1].done()}
        for name, (source_id, task) in self._running.items():
            if known.get(name) != source_id and not task.cancelling():
                task.cancel()
                self._failed.pop(name, None)
                self.on_error(name, SourceDropped(f"the source {name!r} was dropped"), 0)
        for name, source_id in known.items():
            if name not in self._running and source_id not in self._given_up:
                work = self._ingest(name, source_id)
                task = group.create_task(work, name=f"ingest {name}")
                self._running[name] = source_id, task

    async def _ingest(self, name: str, source_id: str) -> None:
        """Ingest one source to its end; with ``follow``, try again after an error."""
        meter_apart()
        while (error := await self._run(name)) is not None:
            is_dropped = isinstance(error, DROPPED)
            is_final = is_dropped or not self.follow or self.stop() or isinstance(error, FINAL)
            self.on_error(name, error, 0 if is_final else RETRY_US)
            if is_dropped:
                self._failed.pop(name, None)
                break
            self._failed[name] = error
            if is_final:
                self._given_up.add(source_id)
                break
            await pause(self.clock, RETRY_US, self.stop)
            if self.stop():
                break

    async def _run(self, name: str) -> TidelogError | None:
        """Run a source once; return the error that ended the run."""
        failed: TidelogError | None = None
        try:
            self._latest[name] = await self.run(name, partial(self._tell, name))
            self._failed.pop(name, None)
        except TidelogError as error:
            failed = error
        except Exception as error:  # noqa: BLE001  The other sources continue.
            failed = unforeseen(error, f"the source {name!r}")
        finally:
            latest, before = self._latest.pop(name, None), self._summaries.get(name)
            if latest is not None:
                # A repeated run counts from zero.
                self._summaries[name] = with_counts_of(latest, *([before] if before else []))
        return failed

    def _tell(self, name: str, progress: RunProgress) -> None:
        self._latest[name] = progress.so_far
        if progress.tick is not None:
            self._failed.pop(name, None)
        self.on_tick(name, progress)
