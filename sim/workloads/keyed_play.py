"""A run of keyed logs from beginning to end, and the checks once all clients have stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sim.checkers.demands import demand
from sim.checkers.keyed_truth import KeyedTruth, Row
from sim.checkers.watch_keyed import RUNS
from sim.kernel.faults import Dice
from sim.kernel.rates import MINUTE_US
from sim.kernel.world import Client
from sim.workloads.keyed import KEYS, LOG, KeyedRun
from sim.workloads.keyed_following import follow_on
from sim.workloads.keyed_maintenance import SEALINGS, fork_on, maintain_until_done, read_checkpoint
from sim.workloads.keyed_reading import ReadHandle, read_on
from sim.workloads.keyed_writing import write_on
from sim.workloads.scenario import persist
from tidelog.errors import NameTaken, NoSuchLog, UsageError
from tidelog.keyed.log import KeyedLog

LIVES = 2


async def play(scenario: KeyedRun) -> None:
    """Run all clients until no writer is left."""
    dice, world = scenario.dice, scenario.world
    maker = world.client("maker")
    sealing = dice.choice([None, *SEALINGS])

    async def make() -> None:
        with suppress(NameTaken):
            await scenario.logs(maker).create(LOG, sealing=sealing)

    await persist(maker, make)
    writers = [world.client(f"w{n}") for n in range(dice.choice([1, 2, 2]))]
    scenario.writing.update(writers)
    async with asyncio.TaskGroup() as group:
        for client in writers:
            client.start(group, _write_on(scenario, client))
        for name in ("t0", "t1")[: dice.choice([1, 2])]:
            maintainer = world.client(name)
            maintainer.start(group, _mortal(scenario, maintainer, maintain_until_done))
        for name, work in (("r0", read_on), ("l0", follow_on)):
            if dice.random() < 0.7:
                client = world.client(name)
                client.start(group, client.live(work(scenario, client)))
        if dice.random() < 0.6:
            forker = world.client("f0")
            forker.start(group, _mortal(scenario, forker, fork_on))


async def _write_on(scenario: KeyedRun, client: Client) -> None:
    """Write; a writer that dies returns as another process."""
    living = client
    try:
        await _mortal(scenario, living, write_on)
        for life in range(1, LIVES):
            if not living.is_dead:
                return
            living = scenario.world.client(f"{client.name}.{life}")
            await _mortal(scenario, living, write_on)
    finally:
        scenario.writing.discard(client)


async def _mortal(
    scenario: KeyedRun, client: Client, work: Callable[[KeyedRun, Client], Awaitable[None]]
) -> None:
    try:
        await client.live(work(scenario, client))  # type: ignore[arg-type]
    finally:
        scenario.bury(client)


async def finish(scenario: KeyedRun) -> None:
    """Read everything once no outcome is unknown, and again after all has landed and is tidy."""
    world = scenario.world
    scenario.watch.check()
    if isinstance(world.schedule, Dice):
        world.schedule.calm = True
    await world.until_all_has_landed()
    scenario.watch.check()
    last = world.client("last")
    for name in sorted(scenario.dropping):
        with suppress(NoSuchLog, UsageError):  # The client that began to drop it may have died.
            await scenario.logs(last).drop(name)
    for name in scenario.watch.living():
        await _read_all(scenario, last, name)
    _check_told(scenario)
    if scenario.watch.clocks_jump:
        # Objects that vanished by a clock that ran ahead become due.
        await last.clock.sleep(2 * 60 * MINUTE_US)
    opened = [await _opened(scenario, last, name) for name in scenario.watch.living()]
    for log in opened:
        await log.compact(full=True)
    for _ in range(4):
        for log in opened:  # A source can collect more once its forks have.
            scenario.report.collected += await log.collect(after_us=0)
    for log in opened:
        found = await log.scrub()
        demand(found.is_clean, "a log is not whole", log=log.name, problems=found.problems)
        await log.close()
    again = world.client("again")
    for name in scenario.watch.living():
        await look(scenario, again, name)
    scenario.watch.check()
    _check_told(scenario)
    _check_store(scenario)


async def look(scenario: KeyedRun, client: Client, name: str) -> None:
    """Read a whole log in all ways, while no client writes."""
    reading, wanted = await _read_all(scenario, client, name)
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
            await read_checkpoint(scenario, client, truth, checkpoint)
    await log.close()


async def _read_all(scenario: KeyedRun, client: Client, name: str) -> tuple[ReadHandle, list[Row]]:
    """Read the whole log; return the reading, and the expected rows."""
    truth = scenario.truth(name)
    log = await persist(client, lambda: scenario.logs(client).reader(name, refresh_us=0))
    following = await log.refresh()
    demand(following == truth.next, "the log ends elsewhere", log=name, at=following)
    reading = ReadHandle(scenario, client, log, truth, lambda: truth.next)
    rows = await reading.scan_all()
    wanted = truth.rows(lambda _: True, truth.retired, truth.next)
    demand(rows is not None and sorted(rows) == sorted(wanted), "a log reads otherwise", log=name)
    return reading, wanted


async def _check_segments(log: object, truth: KeyedTruth) -> None:
    """Check segments, and the keys in each, against the log."""
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


async def _opened(scenario: KeyedRun, client: Client, name: str) -> KeyedLog:
    return await persist(client, lambda: scenario.logs(client).open(name, maintenance=False))


def _check_told(scenario: KeyedRun) -> None:
    """Check the answers of appends against the log."""
    for truth in scenario.watch.logs.values():
        for sequence, (_, value, _) in truth.records.items():
            is_own = sequence >= truth.wal.first
            demand(
                not is_own or scenario.never.get(value) != truth.name,
                "what was told not to be there is there",
                value=value,
            )
            told = scenario.told.get(value)
            demand(
                told is None or told[0] != truth.name or told[1] == sequence,
                "a record is elsewhere, or twice",
                value=value,
            )
        own = [one[1] for at, one in truth.records.items() if at >= truth.wal.first]
        demand(len(own) == len(set(own)), "a record is there twice", log=truth.name)


def _check_store(scenario: KeyedRun) -> None:
    """Demand that all named objects exist, and that no other object of runs is left."""
    stored = {
        key for key in scenario.world.store.objects if key.startswith(RUNS) and "/run/" in key
    }
    named = {path for one in scenario.watch.logs.values() for path in one.named()}
    demand(named <= stored, "what is named is missing", missing=sorted(named - stored)[:3])
    demand(stored <= named, "objects are left that nothing names", left=sorted(stored - named)[:3])
