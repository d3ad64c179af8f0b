"""Merges next to other clients, due or full, with deletion of vanished and unnamed objects."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sim.kernel.world import Client
from tidelog.errors import LocationError
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.compactor import compact
from tidelog.persist.maintenance.sweeper import sweep


@dataclass(slots=True)
class Merges:
    """The counts of merges and sweeps in a run."""

    merges: int = 0
    swept: int = 0


async def merge_on(
    client: Client,
    shards: Sequence[Shard],
    dice: random.Random,
    *,
    is_over: Callable[[], bool],
    done: Merges,
) -> None:
    """Merge shards, due or not, and delete at once or later, until the other clients finish."""
    while not is_over():
        await client.clock.sleep(dice.randrange(400_000))
        shard = dice.choice(shards)
        try:
            full = dice.random() < 0.5
            done.merges += (await compact(shard, full=full, merges_max=dice.choice([1, 3]))).merges
            if dice.random() < 0.5:
                await shard.collect(after_us=dice.choice([0, 0, 300_000]))
            if dice.random() < 0.3:
                done.swept += (await sweep(shard)).deleted
        except LocationError:
            continue
