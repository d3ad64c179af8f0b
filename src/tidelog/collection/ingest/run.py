"""Runs of an ingester: up to the source's current head, or until it is stopped.

A run decides nothing about data: the ingester's ticks do. It reads the source's head, ticks until
that is ingested, and retries if a store fails. It reports its progress to its caller after each
tick. It also stores a health report in the location, for ``source status``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from tidelog.collection.ingest.background_merges import BackgroundMerges
from tidelog.collection.ingest.expiry import expiries_of
from tidelog.collection.ingest.health import Health, encode_health, health_path
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.ingest.status import taken_now
from tidelog.collection.ingest.summary import RunProgress, Summary, column_warnings
from tidelog.collection.ingest.tick import Tick
from tidelog.collection.ingest.turns import Turns
from tidelog.collection.source.port import SourceHead
from tidelog.core.clock import Clock, backoff_us
from tidelog.errors import LocationError, SourceDropped, StoreRefused, TidelogError, unforeseen
from tidelog.store.wrappers.metered import Usage, usage_of

# Each report costs a put. The first one, and those of failures, come soon.
HEALTH_SOON_US, HEALTH_BUSY_US, HEALTH_IDLE_US = 5_000_000, 60_000_000, 300_000_000
HEARTBEAT_US: Final = 60_000_000
TRIES_ONCE: Final = 5
PAUSE_FIRST_US, PAUSE_MOST_US = 250_000, 30_000_000
_LOOK_US: Final = 100_000  # How often a pause checks whether the run must stop.
_HEALTH_S: Final = 2.0  # Timeout of a health report: a failed store must not delay the run's end.


@dataclass(frozen=True, slots=True)
class FirstHead:
    """A source's head that was read before a run, and the usage of stores before that read.

    A listing of 100,000 files takes seconds. A caller that read the head to choose an engine passes
    it to the run, so that the run need not read it again.
    """

    head: SourceHead
    before: Usage


async def look_ahead(ingester: Ingester) -> tuple[FirstHead, int]:
    """Read a source's head. Return it for the run's first round, and its bytes not ingested yet.

    Raises:
        LocationError: the store of the location or of the source failed.
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
    turns: Turns | None = None,
) -> Summary:
    """Ingest the source up to its current head; with ``follow``, go on until ``stop`` is True.

    A binding that is not committed yet is committed first. With times from the clock, a run that
    finds nothing new ticks once, to advance the upper. The run calls ``stop`` between ticks. With
    ``merges``, it also merges the source's shards in the background. Runs of several sources in one
    process share ``turns``.

    Units: ``interval_us`` is the pause before the next look at the source, if nothing is left.
        With ``follow`` and times from the clock, an idle tick advances the upper after
        ``heartbeat_us`` without a tick.

    Raises:
        LocationError: a store refused, or (without ``follow``) kept failing after several tries.
        TidelogError: see `Ingester.tick`; commits made before it remain.
    """
    turns = turns or Turns()
    run = _Run(ingester, on_tick, stop, heartbeat_us if follow else 0, first, turns)
    if merges:
        expiries = expiries_of(ingester.rendition, ingester.info)
        shards = [*ingester.written, ingester.remap]
        run.background_merges = BackgroundMerges(shards, turns.merging, expiries)
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
        await run.background_merges.stop()
    await run.tell_health(None, running=False)
    return run.summary()


async def pause(clock: Clock, duration_us: int, stop: Callable[[], bool]) -> None:
    """Wait for ``duration_us``, or until ``stop`` is True."""
    until = clock.monotonic_us() + duration_us
    while not stop() and (left := until - clock.monotonic_us()) > 0:
        await clock.sleep(min(left, _LOOK_US))


def _usage_of_driver(ingester: Ingester) -> Usage:
    return usage_of(ingester.store) + ingester.source.usage()


@dataclass(slots=True)
class _Run:
    """One run of an ingester, with its counts so far."""

    ingester: Ingester
    on_tick: Callable[[RunProgress], None]
    stop: Callable[[], bool]
    heartbeat_us: int
    first: FirstHead | None
    turns: Turns
    background_merges: BackgroundMerges = field(default_factory=lambda: BackgroundMerges([]))
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
        """Ingest one head, or with ``follow`` one after another; retry transient errors.

        Raises:
            TidelogError: see `run_ingest`.
        """
        failures = 0
        while not self.stop():
            ticks = self.so_far.ticks
            try:
                if failures:
                    # The outcome of an interrupted commit is unknown. Read the states back before
                    # the next tick decides.
                    await self.ingester.refresh()
                await self._copy()
                first, self.first = self.first, None
                await self._take(await self._head() if first is None else first.head)
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
            # A run that waits for data must appear as running in the status. The first report is
            # not delayed, because until then the status shows the previous run, or a failure.
            await self._tell_after(HEALTH_IDLE_US if self._is_told else 0)
            self.background_merges.look()
            await pause(self.ingester.clock, interval_us, self.stop)

    async def _copy(self) -> None:
        """Copy the rows of another rendition. This needs no source, which may be out of reach."""
        if self.ingester.former is None:
            return
        while self.ingester.is_copying and not self.stop():
            async with self.turns.tick():
                tick = await self.ingester.copy()
            if tick is not None:
                self._count(tick, tick.left_bytes)
                await self._after(tick)

    async def _after(self, tick: Tick, warnings: tuple[str, ...] = ()) -> None:
        """Report a counted tick, start a merge, and store the health."""
        self._ticked_us = self.ingester.clock.monotonic_us()
        self.on_tick(RunProgress(so_far=self.summary(), tick=tick, warnings=warnings))
        self.background_merges.look()
        period_us = HEALTH_IDLE_US if tick.computed is None else HEALTH_BUSY_US
        await self._tell_after(period_us if self._is_told else HEALTH_SOON_US)

    async def _head(self) -> SourceHead:
        async with self.turns.tick():
            return await self.ingester.source.head()

    async def _tick(self, head: SourceHead) -> Tick | None:
        is_elsewhere = self.ingester.engine.name == "spark"
        async with self.turns.tick(0 if is_elsewhere else self.so_far.left_bytes):
            return await self.ingester.tick(head, may_idle=self._is_due())

    async def _take(self, head: SourceHead) -> None:
        """Tick until nothing of ``head`` is left."""
        if not self.so_far.ticks:
            _, taken = await taken_now(self.ingester)
            self.so_far = replace(self.so_far, left_bytes=head.left_bytes(taken))
            self.on_tick(RunProgress(so_far=self.summary()))
        timed = not self.ingester.info.is_clocked
        while not self.stop():
            tick = await self._tick(head)
            left = await self._left_bytes(tick, head)
            if tick is None:
                self.so_far = replace(self.so_far, left_bytes=left)
                return
            self._count(tick, left)
            await self._after(tick, self._new_columns(tick))
            # With times from the clock, one more tick would find nothing and only move upper on.
            # But bindings of another rendition may be left, which have no new bytes.
            is_done = tick.exhausted or (not timed and not left)
            if is_done and not self.ingester.is_behind:
                return

    def _new_columns(self, tick: Tick) -> tuple[str, ...]:
        """Return the warnings about columns in files that this run meets for the first time."""
        new = [name for name in tick.dropped if name not in self._named]
        self._named.update(new)
        if not (new or tick.added):
            return ()
        return tuple(column_warnings(tick.added, new, self.ingester.schema))

    def _is_due(self) -> bool:
        """Return True if an idle tick is due: the run's first tick, or one per heartbeat."""
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
        self._executors = self._executors + tick.usage
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
        """Return the results of the run so far."""
        upper = self.ingester.upper
        return replace(
            self.so_far,
            duration_us=self.ingester.clock.monotonic_us() - self._start_us,
            upper=None if upper.is_empty or not upper.time else upper.time,
            waiting=self.ingester.source.waiting(),
            notes={**self.ingester.source.notes(), **self.background_merges.trouble},
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
        # The source's store may have failed, and the location's may work: then users see the error.
        await self._tell_after(HEALTH_SOON_US, error)
        await pause(clock, pause_us, self.stop)

    async def _tell_after(self, period_us: int, error: TidelogError | None = None) -> None:
        if self.ingester.clock.monotonic_us() - self._told_us >= period_us:
            await self.tell_health(error, running=True)

    async def tell_health(self, error: TidelogError | None, *, running: bool) -> None:
        """Write the health. It is a hint, so a failure to write it does not stop the run."""
        ingester, done = self.ingester, self.summary()
        self._told_us, self._is_told = ingester.clock.monotonic_us(), error is None
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
            merges=dict(self.background_merges.trouble),
            dropped=dict(done.dropped),
            error=None if error is None else str(error),
            error_kind=None if error is None else error.kind,
        )
        with suppress(TidelogError, TimeoutError):
            async with asyncio.timeout(_HEALTH_S):
                await ingester.store.put(health_path(ingester.info.id), encode_health(health))
