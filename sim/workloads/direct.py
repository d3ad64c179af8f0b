"""A direct table under faults: all writes, merges, retention, readers and a follower.

Writers change one table with calls that they repeat after a lost answer. They may die or lose their
handles. The model is the decisions in the records of the table's only shard: these calls, applied
to counted rows in the order of their times, give the contents at each time. The results of reads,
the steps of the follower and the updates in the shard must equal the model.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from sim.checkers.invariants import check_all
from sim.checkers.transactions import decided_in_shard
from sim.checkers.watch import Watch
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import rates_of
from sim.kernel.small import limited, limits_of
from sim.kernel.world import Client, World
from sim.workloads.tables import (
    UNSURE,
    TablesReport,
    TablesScenario,
    check_tables,
    follow_on,
    maintain_on,
    persist,
    read_tables,
    write_on,
    write_table,
)
from tidelog.collection.table.direct import DIRECT
from tidelog.errors import AsOfBeforeSince, AsOfNotComplete

NAME = "direct"


@dataclass(slots=True)
class DirectScenario(TablesScenario):
    """One run."""

    key: tuple[str, ...] = ()
    retain_ms: int | None = None

    def definition(self, name: str) -> dict[str, Any]:
        return {"key": self.key, "mode": DIRECT, "retain_ms": self.retain_ms}


def simulate_direct(seed: int) -> TablesReport:
    """Run one seed, and check everything.

    Raises:
        Violated: a check failed. Any other error: a client failed with an error that it must
            not raise.
    """
    dice = random.Random(f"direct {seed}")
    mortal = frozenset(["w0", "w1", "m0"])
    faults = Dice(random.Random(f"dice {seed}"), rates_of(seed), mortal)
    world = World(seed, faults, attempts=dice.choice([1, 2, 20]))
    watch = Watch(world.store)
    world.watchers.append(watch)
    key, retain_ms = dice.choice([("id",), ("id",), ()]), dice.choice([None, 400])
    scenario = DirectScenario(world, dice, key=key, retain_ms=retain_ms)
    with limited(limits_of(seed)):
        shard, rendition = run(lambda: _play(scenario), seed)
        shards = check_all(world.store, watch)
        check_tables(scenario, decided_in_shard(watch, shard), shards, {rendition: [shard]})
    scenario.report.trace = world.trace()
    scenario.report.requests = world.requests_count
    scenario.report.deaths = sum(client.is_dead for client in world.clients.values())
    return scenario.report


async def _play(scenario: DirectScenario) -> tuple[str, str]:
    """Run all clients; return the shard and the rendition of the table."""
    world = scenario.world
    table = await scenario.made(world.client("maker"), NAME)
    writers = [world.client(f"w{number}") for number in range(scenario.dice.choice([1, 2, 3]))]
    scenario.writers_left = len(writers)
    last = world.client("last")
    async with asyncio.TaskGroup() as group:
        for client in writers:
            writes = _write_all(scenario, client)
            group.create_task(write_on(scenario, client, writes), name=client.name)
        for name, work in (("r0", _read_on), ("m0", maintain_on), ("m1", maintain_on)):
            client = world.client(name)
            group.create_task(client.live(work(scenario, client)), name=name)
        follower = world.client("follower")
        group.create_task(follow_on(scenario, follower, NAME), name="follower")
        group.create_task(_advance_on(scenario, last), name="last")
    await asyncio.sleep(3_600)  # By then each late request of a dead client has landed.
    assert isinstance(world.schedule, Dice)
    world.schedule.calm = True
    await persist(last, partial(read_tables, scenario, [await scenario.made(last, NAME)], None))
    return table.shards[0].id, table.info.rendition


async def _write_all(scenario: DirectScenario, client: Client) -> None:
    table = await scenario.made(client, NAME)
    for number in range(scenario.dice.randrange(4, 12)):
        await client.clock.sleep(scenario.dice.randrange(60_000))
        if scenario.dice.random() < 0.2:  # The process starts again.
            table = await scenario.made(client, NAME)
        await write_table(scenario, client, table, number)


async def _read_on(scenario: DirectScenario, client: Client) -> None:
    while scenario.writers_left:
        await client.clock.sleep(scenario.dice.randrange(120_000))
        try:
            table = await scenario.made(client, NAME)
            past = scenario.told - scenario.dice.choice([0, 20, 500])
            is_past = scenario.dice.random() < 0.3 and past >= 0
            await read_tables(scenario, [table], past if is_past else None)
        except (AsOfBeforeSince, AsOfNotComplete):
            scenario.report.too_old += 1
        except UNSURE:
            continue


async def _advance_on(scenario: DirectScenario, client: Client) -> None:
    """After the last writer, write until the follower has ended: only a write moves upper."""
    table, number = await scenario.made(client, NAME), 0
    while scenario.follows:
        await client.clock.sleep(200_000)
        if not scenario.writers_left:
            number += 1
            with suppress(*UNSURE):
                await write_table(scenario, client, table, number)
