"""Running an ingester: up to where its source is now, or on and on.

A run decides nothing about data: the ingester's ticks do. It takes the source's head, ticks until
that is taken, tries again where a store fails, and tells how it goes: to its caller after each
tick, and in the location as health, for ``source status``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from tidelog.clock import backoff_us
from tidelog.collection.ingest.expiry import expiries_of
from tidelog.collection.ingest.health import Health, encode_health, health_path
from tidelog.collection.ingest.ingest import Ingester, Tick
from tidelog.collection.ingest.status import taken_now
from tidelog.collection.ingest.summary import RunProgress, Summary, new_column
from tidelog.collection.ingest.tending import Tending
from tidelog.collection.source.port import SourceHead
from tidelog.errors import LocationError, SourceDropped, StoreRefused, TidelogError, unforeseen
from tidelog.store.wrappers.metered import Usage, usage_of

HEALTH_EVERY_US, HEALTH_IDLE_US = 5_000_000, 60_000_000
HEARTBEAT_US: Final = 60_000_000
TRIES_ONCE: Final = 5
PAUSE_FIRST_US, PAUSE_MOST_US = 250_000, 30_000_000
_LOOK_US: Final = 100_000  # How often a pause looks whether it is to stop.
_HEALTH_S: Final = 2.0  # A store that has failed for good is not waited for to tell it so.


@dataclass(frozen=True, slots=True)
class FirstHead:
    """A source's head that was looked at before a run, and what this process had asked until then.

    A listing of 100,000 files takes seconds: who looked at one to choose an engine hands it on.
    """

    head: SourceHead
    before: Usage


async def look_ahead(ingester: Ingester) -> tuple[FirstHead, int]:
    """Look at a source's head; return it for the run to begin with, and the bytes that it has left.

    Raises:
        LocationError: the store failed, or the source's.
    """
    before = _usage_of_driver(ingester)
    _, taken = await taken_now(ingester)
    head = await ingester.source.head()
    return FirstHead(head, before), head.left_bytes(taken)


async def run_ingest(
    ingester: Ingester,
    *,
    follow: bool,
    interval_us: int,
    on_tick: Callable[[RunProgress], None],
    stop: Callable[[], bool],
    heartbeat_us: int = HEARTBEAT_US,
    first: FirstHead | None = None,
    merges: bool = False,
) -> Summary:
    """Tick up to the source's head as it is now; with ``follow``, on and on until ``stop``.

    A binding that stands beyond the output is finished first. With times from the clock, a run that
    finds nothing new ticks once, to move upper on. ``stop`` is looked at between ticks. With
    ``merges``, what is due of its shards is merged beside.

    Units: ``interval_us`` is how long to wait where nothing is left, before looking again; after
        ``heartbeat_us`` without a tick one that finds nothing moves upper on all the same.

    Raises:
        LocationError: the store failed, and (without ``follow``) went on to after some tries.
        TidelogError: see `Ingester.tick`; what was committed stands.
    """
    run = _Run(ingester, on_tick, stop, heartbeat_us if follow else 0, first)
    if merges:
        expiries = expiries_of(ingester.rendition, ingester.info)
        run.tending = Tending([*ingester.written, ingester.remap], expiries)
    try:
        await run.go(follow=follow, interval_us=interval_us)
    except SourceDropped:
        raise
    except TidelogError as error:
        await run.tell_health(error, running=False)
        raise
    except Exception as error:
        failed = unforeseen(error, f"the source {ingester.info.name!r}")
        await run.tell_health(failed, running=False)
        raise failed from error
    finally:
        await run.tending.stop()
    await run.tell_health(None, running=False)
    return run.summary()


def _usage_of_driver(ingester: Ingester) -> Usage:
    return usage_of(ingester.store) + ingester.source.usage()


@dataclass(slots=True)
class _Run:
    """One run of an ingester, as it goes."""

    ingester: Ingester
    on_tick: Callable[[RunProgress], None]
    stop: Callable[[], bool]
    heartbeat_us: int
    first: FirstHead | None
    tending: Tending = field(default_factory=lambda: Tending([]))
    so_far: Summary = field(default_factory=Summary)
    _named: set[str] = field(default_factory=set)
    _executors: Usage = field(default_factory=Usage)
    _driver_before: Usage = field(init=False)
    _usage_before: Usage = field(init=False)
    _started_us: int = field(init=False)
    _start_us: int = field(init=False)
    _told_us: int = field(init=False)
    _is_told: bool = False
    _ticked_us: int | None = None

    def __post_init__(self) -> None:
        clock = self.ingester.clock
        now = _usage_of_driver(self.ingester)
        self._driver_before = now if self.first is None else self.first.before
        self._usage_before = self._driver_before + self.ingester.surveyed
        self._started_us = clock.now_us()
        self._start_us = self._told_us = clock.monotonic_us()

    async def go(self, *, follow: bool, interval_us: int) -> None:
        """Take head after head, or one; wait out what may pass.

        Raises:
            TidelogError: see `run_ingest`.
        """
        failures = 0
        while not self.stop():
            ticks = self.so_far.ticks
            try:
                if failures:
                    # What an interrupted commit came to is read back before anything is decided.
                    await self.ingester.refresh()
                first, self.first = self.first, None
                await self._take(await self.ingester.source.head() if first is None else first.head)
                failures = 0
            except LocationError as error:
                failures = 1 if self.so_far.ticks > ticks else failures + 1
                given_up = not follow and failures >= TRIES_ONCE
                if isinstance(error, StoreRefused) or given_up:
                    raise
                await self._wait_out(error, failures)
                continue
            if not follow:
                return
            # One that waits for more is alive, and is to be seen so, from the first time on: until
            # then its status is that of the run before it.
            await self._tell_after(HEALTH_IDLE_US if self._is_told else 0)
            self.tending.look()
            await self._pause(interval_us)

    async def _take(self, head: SourceHead) -> None:
        """Tick until nothing of ``head`` is left."""
        if not self.so_far.ticks:
            _, taken = await taken_now(self.ingester)
            self.so_far = replace(self.so_far, left_bytes=head.left_bytes(taken))
            self.on_tick(RunProgress(so_far=self.summary()))
        timed = self.ingester.info.time_column is not None
        while not self.stop():
            tick = await self.ingester.tick(head, may_idle=self._is_due())
            left = await self._left_bytes(tick, head)
            if tick is None:
                self.so_far = replace(self.so_far, left_bytes=left)
                return
            self._count(tick, left)
            self._ticked_us = self.ingester.clock.monotonic_us()
            warnings = self._new_columns(tick)
            self.on_tick(RunProgress(so_far=self.summary(), tick=tick, warnings=warnings))
            self.tending.look()
            await self._tell_after(HEALTH_EVERY_US)
            # With times from the clock, one more tick would find nothing and only move upper on.
            if tick.exhausted or (not timed and not left):
                return

    def _new_columns(self, tick: Tick) -> tuple[str, ...]:
        """Return a warning for each column in files that this run meets for the first time."""
        new = [name for name in tick.dropped if name not in self._named]
        self._named.update(new)
        return tuple(new_column(name, self.ingester.schema.names) for name in new)

    def _is_due(self) -> bool:
        """Say whether a tick that finds nothing is worth what it writes."""
        if self._ticked_us is None:
            return True
        return self.ingester.clock.monotonic_us() - self._ticked_us >= self.heartbeat_us

    async def _left_bytes(self, tick: Tick | None, head: SourceHead) -> int:
        if tick is not None and tick.computed is not None:
            return tick.left_bytes
        _, taken = await taken_now(self.ingester)
        return head.left_bytes(taken)

    def _count(self, tick: Tick, left_bytes: int) -> None:
        before = self.so_far
        if tick.computed is not None:
            self._executors = self._executors + tick.computed.usage
        self.so_far = replace(
            before,
            ticks=before.ticks + 1,
            rows=before.rows + tick.rows,
            late=before.late + tick.late,
            bad=before.bad + tick.bad,
            won=before.won + tick.won,
            dropped=dict(Counter(before.dropped) + Counter(tick.dropped)),
            size_bytes=before.size_bytes + tick.size_bytes,
            left_bytes=left_bytes,
        )

    def summary(self) -> Summary:
        """Return what was done until now."""
        upper = self.ingester.upper
        return replace(
            self.so_far,
            duration_us=self.ingester.clock.monotonic_us() - self._start_us,
            upper=None if upper.is_empty or not upper.time else upper.time,
            waiting=self.ingester.source.waiting(),
            notes={**self.ingester.source.notes(), **self.tending.trouble},
            store=self._usage() - self._usage_before + self._executors,
            live_bytes=self.ingester.live_bytes,
            driver_read_bytes=(_usage_of_driver(self.ingester) - self._driver_before).read_bytes,
        )

    def _usage(self) -> Usage:
        return _usage_of_driver(self.ingester) + self.ingester.surveyed

    async def _wait_out(self, error: LocationError, failures: int) -> None:
        clock = self.ingester.clock
        pause_us = backoff_us(failures, clock, first_us=PAUSE_FIRST_US, most_us=PAUSE_MOST_US)
        self.on_tick(RunProgress(so_far=self.summary(), trouble=error, pause_us=pause_us))
        await self._tell_after(HEALTH_EVERY_US, error)  # It may be the source that is away.
        await self._pause(pause_us)

    async def _pause(self, duration_us: int) -> None:
        clock = self.ingester.clock
        until = clock.monotonic_us() + duration_us
        while not self.stop() and (left := until - clock.monotonic_us()) > 0:
            await clock.sleep(min(left, _LOOK_US))

    async def _tell_after(self, period_us: int, error: TidelogError | None = None) -> None:
        if self.ingester.clock.monotonic_us() - self._told_us >= period_us:
            await self.tell_health(error, running=True)

    async def tell_health(self, error: TidelogError | None, *, running: bool) -> None:
        """Write the health. It is a hint: that it cannot be written is no reason to stop."""
        ingester, done = self.ingester, self.summary()
        self._told_us, self._is_told = ingester.clock.monotonic_us(), True
        health = Health(
            engine=ingester.engine.name,
            started_us=self._started_us,
            updated_us=ingester.clock.now_us(),
            running=running,
            upper=done.upper,
            ticks=done.ticks,
            rows=done.rows,
            late=done.late,
            bad=done.bad,
            waiting=dict(done.waiting),
            notes=dict(done.notes),
            merges=dict(self.tending.trouble),
            dropped=dict(done.dropped),
            error=None if error is None else str(error),
            error_kind=None if error is None else error.kind,
        )
        with suppress(TidelogError, TimeoutError):
            async with asyncio.timeout(_HEALTH_S):
                await ingester.store.put(health_path(ingester.info.id), encode_health(health))
