"""Consensus under fire: random calls of several clients, and a checker that stands outside."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from sim.checkers.demands import demand
from sim.checkers.linear import (
    FOREVER,
    LANDED,
    LOST,
    NEVER,
    UNSURE,
    Cut,
    History,
    Read,
    Set,
    check_history,
    count_unsure,
)
from sim.checkers.watch import Watch
from sim.kernel.fates import Dice
from sim.kernel.loop import run
from sim.kernel.small import limited, limits_of
from sim.kernel.weather import rates_of
from sim.kernel.world import Client, World
from tidelog.consensus.port import Consensus
from tidelog.errors import LocationError, Outcome
from tidelog.ids import SeqNo

KEYS = ("one", "two")
STORMS = (0.0, 0.1, 0.3, 0.6)


@dataclass(slots=True)
class Report:
    """What a run did."""

    trace: str = ""
    sets: int = 0
    landed: int = 0
    lost: int = 0
    unsure: int = 0
    reads: int = 0
    deaths: int = 0
    requests: int = 0


@dataclass(slots=True)
class Plot:
    """One run; ``wrap`` puts something between a client and its consensus."""

    world: World
    dice: random.Random
    wrap: Callable[[Client], Consensus]
    histories: dict[str, History] = field(default_factory=lambda: {k: History() for k in KEYS})


def simulate_consensus(
    seed: int, *, wrap: Callable[[Client], Consensus] = lambda client: client.consensus
) -> Report:
    """Run one seed, and check its histories.

    Raises:
        NotLinear, Violated: something does not hold.
    """
    dice = random.Random(f"consensus {seed}")
    names = [f"c{number}" for number in range(dice.choice([2, 3, 5]))]
    world = World(
        seed,
        Dice(random.Random(f"dice {seed}"), rates_of(seed, storms=STORMS), frozenset(names)),
        attempts=dice.choice([1, 3, 20]),
    )
    watch = Watch(world.store, shards=False)
    world.watchers.append(watch)
    plot = Plot(world, dice, wrap)
    with limited(limits_of(seed)):
        run(lambda: _play(plot, names), seed)
    demand(not watch.violations, "a step was not allowed", violations=watch.violations)
    for history in plot.histories.values():
        check_history(history)
    calls = [call for history in plot.histories.values() for call in history.sets]
    return Report(
        trace=world.trace(),
        sets=len(calls),
        landed=sum(c.answer == LANDED for c in calls),
        lost=sum(c.answer == LOST for c in calls),
        unsure=count_unsure(calls),
        reads=sum(len(h.reads) for h in plot.histories.values()),
        deaths=sum(c.is_dead for c in world.clients.values()),
        requests=world.requests_count,
    )


async def _play(plot: Plot, names: list[str]) -> None:
    async with asyncio.TaskGroup() as group:
        for name in names:
            client = plot.world.client(name)
            group.create_task(client.live(_call_on(plot, client)), name=name)
    # What is still under way may land until then; the last look comes after all of it.
    await asyncio.sleep(3_600)
    assert isinstance(plot.world.fates, Dice)
    plot.world.fates.calm = True
    last = plot.world.client("last")
    for key in KEYS:
        await _read(plot, last, plot.wrap(last), key, start=1, limit=None)


async def _call_on(plot: Plot, client: Client) -> None:
    consensus = plot.wrap(client)
    guess = dict.fromkeys(KEYS, 0)
    for number in range(plot.dice.randrange(5, 30)):
        await client.clock.sleep(plot.dice.randrange(20_000))
        key = plot.dice.choice(KEYS)
        toss = plot.dice.random()
        if toss < 0.6:
            # Mostly what would win as far as is known, sometimes what cannot.
            seqno = max(1, guess[key] + plot.dice.choice([1, 1, 1, 1, 0, 2]))
            value = f"{client.name}-{number}".encode()
            if await _set(plot, client, consensus, key, seqno=seqno, value=value):
                guess[key] = seqno
        elif toss < 0.75:
            guess[key] = await _head(plot, client, consensus, key) or guess[key]
        elif toss < 0.9:
            start = plot.dice.randrange(1, guess[key] + 2)
            limit = plot.dice.choice([None, None, 1, 3])
            await _read(plot, client, consensus, key, start=start, limit=limit)
        elif guess[key]:
            await _cut(plot, consensus, key, plot.dice.randrange(1, guess[key] + 1))


async def _set(
    plot: Plot, client: Client, consensus: Consensus, key: str, *, seqno: int, value: bytes
) -> bool:
    begin, end, answer = _now(), FOREVER, UNSURE
    try:
        landed = await consensus.compare_and_set(key, SeqNo(seqno), value)
        end, answer = _now(), LANDED if landed else LOST
        return landed
    except LocationError as error:
        end = _now()
        answer = NEVER if error.outcome is Outcome.NOT_APPLIED else UNSURE
        return False
    finally:
        call = Set(
            client=client.name, seqno=seqno, value=value, begin=begin, end=end, answer=answer
        )
        plot.histories[key].sets.append(call)


async def _head(plot: Plot, client: Client, consensus: Consensus, key: str) -> int | None:
    begin = _now()
    try:
        found = await consensus.head(key)
    except LocationError:
        return None
    seen = () if found is None else ((int(found.seqno), found.data),)
    read = Read(client=client.name, begin=begin, end=_now(), start=None, found=seen)
    plot.histories[key].reads.append(read)
    return None if found is None else int(found.seqno)


async def _read(
    plot: Plot, client: Client, consensus: Consensus, key: str, *, start: int, limit: int | None
) -> None:
    begin = _now()
    try:
        found = await consensus.scan(key, SeqNo(start), limit)
    except LocationError:
        return
    read = Read(
        client=client.name,
        begin=begin,
        end=_now(),
        start=start,
        found=tuple((int(r.seqno), r.data) for r in found),
        limit=limit,
    )
    plot.histories[key].reads.append(read)


async def _cut(plot: Plot, consensus: Consensus, key: str, before: int) -> None:
    begin, end = _now(), FOREVER
    try:
        await consensus.truncate(key, SeqNo(before))
        end = _now()
    except LocationError:
        pass
    finally:
        plot.histories[key].cuts.append(Cut(begin=begin, end=end, before=before))


def _now() -> float:
    return asyncio.get_running_loop().time()
