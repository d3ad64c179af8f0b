"""A run of keyed logs from its beginning to its end, and what must hold when all is quiet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sim.checkers.demands import demand
from sim.checkers.keyed_truth import KeyedTruth, Row
from sim.checkers.watch_keyed import RUNS
from sim.kernel.fates import Dice
from sim.kernel.weather import MINUTE_US
from sim.kernel.world import Client
from sim.workloads.keyed import KEYS, LOG, Keyed
from sim.workloads.keyed_following import follow_on
from sim.workloads.keyed_reading import Reading, read_on
from sim.workloads.keyed_tending import SEALINGS, fork_on, read_checkpoint, tend_on
from sim.workloads.keyed_writing import write_on
from sim.workloads.plot import persist
from tidelog.errors import NameTaken, NoSuchLog, UsageError
from tidelog.keyed.log import KeyedLog

LIVES = 2


async def play(plot: Keyed) -> None:
    """Play a run until nobody writes any more."""
    dice, world = plot.dice, plot.world
    maker = world.client("maker")
    sealing = dice.choice([None, *SEALINGS])

    async def make() -> None:
        with suppress(NameTaken):
            await plot.logs(maker).create(LOG, sealing=sealing)

    await persist(maker, make)
    writers = [world.client(f"w{n}") for n in range(dice.choice([1, 2, 2]))]
    plot.writing.update(writers)
    async with asyncio.TaskGroup() as group:
        for client in writers:
            client.start(group, _write_on(plot, client))
        for name in ("t0", "t1")[: dice.choice([1, 2])]:
            tender = world.client(name)
            tender.start(group, _mortal(plot, tender, tend_on))
        for name, work in (("r0", read_on), ("l0", follow_on)):
            if dice.random() < 0.7:
                client = world.client(name)
                client.start(group, client.live(work(plot, client)))
        if dice.random() < 0.6:
            forker = world.client("f0")
            forker.start(group, _mortal(plot, forker, fork_on))


async def _write_on(plot: Keyed, client: Client) -> None:
    """Write; whoever dies over it comes back as another process."""
    living = client
    try:
        await _mortal(plot, living, write_on)
        for life in range(1, LIVES):
            if not living.is_dead:
                return
            living = plot.world.client(f"{client.name}.{life}")
            await _mortal(plot, living, write_on)
    finally:
        plot.writing.discard(client)


async def _mortal(
    plot: Keyed, client: Client, work: Callable[[Keyed, Client], Awaitable[None]]
) -> None:
    try:
        await client.live(work(plot, client))  # type: ignore[arg-type]
    finally:
        plot.bury(client)


async def finish(plot: Keyed) -> None:
    """Read what is there when nothing is in doubt, and again once all has landed and is tidy."""
    world = plot.world
    plot.watch.check()
    if isinstance(world.fates, Dice):
        world.fates.calm = True
    await world.until_all_has_landed()
    plot.watch.check()
    last = world.client("last")
    for name in sorted(plot.dropping):
        with suppress(NoSuchLog, UsageError):  # Whoever began to drop it may have died.
            await plot.logs(last).drop(name)
    for name in plot.watch.living():
        await _read_all(plot, last, name)
    _check_told(plot)
    if plot.watch.clocks_jump:
        await last.clock.sleep(2 * 60 * MINUTE_US)  # What vanished by a clock that ran ahead goes.
    opened = [await _opened(plot, last, name) for name in plot.watch.living()]
    for log in opened:
        await log.compact(everything=True)
    for _ in range(4):
        for log in opened:  # Sources can let go of something once forks have.
            plot.report.collected += await log.collect(after_us=0)
    for log in opened:
        found = await log.scrub()
        demand(found.is_clean, "a log is not whole", log=log.name, problems=found.problems)
        await log.close()
    again = world.client("again")
    for name in plot.watch.living():
        await look(plot, again, name)
    plot.watch.check()
    _check_told(plot)
    _check_store(plot)


async def look(plot: Keyed, client: Client, name: str) -> None:
    """Read all that there is of a log in all ways, at a time when nobody writes."""
    reading, wanted = await _read_all(plot, client, name)
    truth, log = reading.truth, reading.log
    await reading.keys()
    await reading.look()
    for key in KEYS:
        count = sum(row[0] == key for row in wanted)
        demand(await log.count(key) == count, "a count is another", log=name, key=key)
        await reading.scan()
    await _check_segments(log, truth)
    for checkpoint in list(truth.checkpoints):
        if not truth.checkpoints[checkpoint].fork:
            await read_checkpoint(plot, client, truth, checkpoint)
    await log.close()


async def _read_all(plot: Keyed, client: Client, name: str) -> tuple[Reading, list[Row]]:
    """Read all that is left of a log; return how, and what there is."""
    truth = plot.truth(name)
    log = await persist(client, lambda: plot.logs(client).reader(name, refresh_us=0))
    following = await log.refresh()
    demand(following == truth.next, "the log ends elsewhere", log=name, at=following)
    reading = Reading(plot, client, log, truth, lambda: truth.next)
    rows = await reading.scan_all()
    wanted = truth.rows(lambda _: True, truth.retired, truth.next)
    demand(rows is not None and sorted(rows) == sorted(wanted), "a log reads otherwise", log=name)
    return reading, wanted


async def _check_segments(log: object, truth: KeyedTruth) -> None:
    """Hold segments, and the keys in each, against the log."""
    segments = await log.segments()  # type: ignore[attr-defined]
    limits = [one.limit for one in segments if one.limit is not None]
    demand(limits == [limit for limit, _ in truth.seals], "segments end elsewhere", of=truth.name)
    for one in segments:
        rows = truth.rows(lambda _: True, one.start, one.limit or truth.next)
        listed = [
            (row["key"], row["records"])
            async for page in log.keys(segments=(one.id, one.id + 1))  # type: ignore[attr-defined]
            for row in page.to_pylist()
        ]
        there = {key: sum(row[0] == key for row in rows) for key in {row[0] for row in rows}}
        demand(dict(listed) == there, "a segment has other keys", it=one, keys=listed, there=there)


async def _opened(plot: Keyed, client: Client, name: str) -> KeyedLog:
    return await persist(client, lambda: plot.logs(client).open(name, upkeep=False))


def _check_told(plot: Keyed) -> None:
    """Hold what appends were told against what is there."""
    for truth in plot.watch.logs.values():
        for sequence, (_, value, _) in truth.records.items():
            is_own = sequence >= truth.wal.first
            demand(
                not is_own or plot.never.get(value) != truth.name,
                "what was told not to be there is there",
                value=value,
            )
            told = plot.told.get(value)
            demand(
                told is None or told[0] != truth.name or told[1] == sequence,
                "a record is elsewhere, or twice",
                value=value,
            )
        own = [one[1] for at, one in truth.records.items() if at >= truth.wal.first]
        demand(len(own) == len(set(own)), "a record is there twice", log=truth.name)


def _check_store(plot: Keyed) -> None:
    """Demand that all that is named is there, and that nothing else is left of runs."""
    stored = {key for key in plot.world.store.objects if key.startswith(RUNS) and "/run/" in key}
    named = {path for one in plot.watch.logs.values() for path in one.named()}
    demand(named <= stored, "what is named is missing", missing=sorted(named - stored)[:3])
    demand(stored <= named, "objects are left that nothing names", left=sorted(stored - named)[:3])
