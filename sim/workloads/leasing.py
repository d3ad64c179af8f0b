"""Readers under leases, next to clients that merge and delete vanished parts at once.

While a lease is valid, each part planned under it must exist. A dead reader leaves a lease that
other clients end. A reader that pauses for longer than its lease loses it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sim.checkers.demands import demand
from sim.kernel.world import Client
from tidelog.errors import (
    AsOfBeforeSince,
    DeadlineExceeded,
    HoldExpired,
    LocationError,
    PartMissing,
)
from tidelog.persist.format.updates import accumulate
from tidelog.persist.handle.leasing import LeasedReader
from tidelog.persist.handle.shard import Shard
from tidelog.testing.models import Row, contents_of


@dataclass(slots=True)
class Leases:
    """The reads under leases in a run, and the number of leases that ended too early."""

    seen: list[tuple[int, Counter[Row]]] = field(default_factory=list)
    over: int = 0


async def lease_on(
    client: Client,
    shard: Shard,
    dice: random.Random,
    *,
    is_over: Callable[[], bool],
    done: Leases,
) -> None:
    """Take a lease, plan, read the planned parts after a delay, and release the lease or not."""
    while not is_over():
        await client.clock.sleep(dice.randrange(300_000))
        try:
            reader = await shard.lease(
                lease_us=dice.choice([600_000, 3_000_000, 60_000_000]), fixed=dice.random() < 0.2
            )
            if reader.since.is_empty:
                return
            try:
                await _read(client, shard, reader, dice, done)
            finally:
                await (reader.close() if dice.random() < 0.7 else reader.stop())
        except (HoldExpired, DeadlineExceeded, AsOfBeforeSince, LocationError):
            continue


async def _read(
    client: Client, shard: Shard, reader: LeasedReader, dice: random.Random, done: Leases
) -> None:
    upper = shard.state.upper_frontier
    newest = reader.since.time + 5 if upper.is_empty else upper.time - 1
    as_of = max(reader.since.time, newest - dice.randrange(3))
    planned = await reader.snapshot(as_of, timeout_us=1_000_000)
    await client.clock.sleep(dice.randrange(700_000))
    try:
        tables = await shard.reader.read(planned.parts, planned.schema)
    except PartMissing as error:
        state = await shard.refresh()
        demand(reader.name not in state.holds, "what a lease holds is gone", error=str(error))
        done.over += 1
        return
    done.seen.append((as_of, contents_of(accumulate(tables, planned.schema, as_of=as_of))))
    if reader.until_us is None and dice.random() < 0.5:
        await reader.move_hold(as_of)
