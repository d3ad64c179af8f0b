"""Consensus under faults: random calls of several clients, and a checker of calls and answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
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
from sim.kernel.faults import Dice
from sim.kernel.loop import run
from sim.kernel.rates import rates_of
from sim.kernel.small import limited, limits_of
from sim.kernel.world import Client, World
from tidelog.consensus.port import Consensus, KeyRecord
from tidelog.core.ids import SeqNo
from tidelog.errors import LocationError, Outcome

KEYS = ("one", "two")
GROUPED = tuple("g" + "0" * 32 + f"-{n:012x}" for n in (1, 2))  # Their records share an object.
STORMS = (0.0, 0.1, 0.3, 0.6)


@dataclass(slots=True)
class Report:
    """The counts of a run."""

    trace: str = ""
    sets: int = 0
    landed: int = 0
    lost: int = 0
    unsure: int = 0
    reads: int = 0
    deaths: int = 0
    requests: int = 0


@dataclass(slots=True)
class Scenario:
    """One run; ``wrap`` can wrap each client's consensus."""

    world: World
    dice: random.Random
    wrap: Callable[[Client], Consensus]
    keys: tuple[str, ...] = KEYS
    histories: dict[str, History] = field(init=False)
    together: set[bytes] = field(default_factory=set)  # The values of writes to all keys.

    def __post_init__(self) -> None:
        self.histories = {key: History() for key in self.keys}


def simulate_consensus(
    seed: int, *, wrap: Callable[[Client], Consensus] = lambda client: client.consensus
) -> Report:
    """Run one seed, and check its histories.

    Raises:
        NotLinear, Violated: a check failed.
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
    scenario = Scenario(world, dice, wrap, GROUPED if seed % 2 else KEYS)
    with limited(limits_of(seed)):
        run(lambda: _play(scenario, names), seed)
    demand(not watch.violations, "a step was not allowed", violations=watch.violations)
    for history in scenario.histories.values():
        check_history(history)
    check_whole(watch, scenario.keys, scenario.together)
    calls = [call for history in scenario.histories.values() for call in history.sets]
    return Report(
        trace=world.trace(),
        sets=len(calls),
        landed=sum(c.answer == LANDED for c in calls),
        lost=sum(c.answer == LOST for c in calls),
        unsure=count_unsure(calls),
        reads=sum(len(h.reads) for h in scenario.histories.values()),
        deaths=sum(c.is_dead for c in world.clients.values()),
        requests=world.requests_count,
    )


def check_whole(watch: Watch, keys: Sequence[str], together: set[bytes]) -> None:
    """Check that the records of a write to several keys are all there, or none.

    Raises:
        Violated: a write is there in part.
    """
    found = {key: {one.data for one in watch.entries.get(key, [])} for key in keys}
    both = {value for value in together if any(value in there for there in found.values())}
    halves = {value for value in both if not all(value in there for there in found.values())}
    demand(not halves, "a write of several keys landed in part", halves=halves)


async def _play(scenario: Scenario, names: list[str]) -> None:
    async with asyncio.TaskGroup() as group:
        for name in names:
            client = scenario.world.client(name)
            group.create_task(client.live(_call_on(scenario, client)), name=name)
    # All requests land within this time, so the last look comes after them.
    await asyncio.sleep(3_600)
    assert isinstance(scenario.world.schedule, Dice)
    scenario.world.schedule.calm = True
    last = scenario.world.client("last")
    for key in scenario.keys:
        await _read(scenario, last, scenario.wrap(last), key, start=1, limit=None)


async def _call_on(scenario: Scenario, client: Client) -> None:
    consensus = scenario.wrap(client)
    guess = dict.fromkeys(scenario.keys, 0)
    for number in range(scenario.dice.randrange(5, 30)):
        await client.clock.sleep(scenario.dice.randrange(20_000))
        key = scenario.dice.choice(scenario.keys)
        toss = scenario.dice.random()
        if toss < 0.6:
            # Mostly a call that can win, as far as the client knows; sometimes one that cannot.
            seqno = max(1, guess[key] + scenario.dice.choice([1, 1, 1, 1, 0, 2]))
            value = f"{client.name}-{number}".encode()
            wanted = {key: seqno}
            if scenario.keys == GROUPED and scenario.dice.random() < 0.5:
                wanted |= {other: guess[other] + 1 for other in scenario.keys if other != key}
            if await _set(scenario, client, consensus, wanted, value):
                guess |= wanted
        elif toss < 0.75:
            guess[key] = await _head(scenario, client, consensus, key) or guess[key]
        elif toss < 0.9:
            start = scenario.dice.randrange(1, guess[key] + 2)
            limit = scenario.dice.choice([None, None, 1, 3])
            await _read(scenario, client, consensus, key, start=start, limit=limit)
        elif guess[key]:
            await _cut(scenario, consensus, key, scenario.dice.randrange(1, guess[key] + 1))


async def _set(
    scenario: Scenario, client: Client, consensus: Consensus, wanted: dict[str, int], value: bytes
) -> bool:
    """Append a record to each wanted key, at its seqno; all land, or none."""
    begin, end, answer = _now(), FOREVER, UNSURE
    if len(wanted) > 1:
        scenario.together.add(value)
    records = [KeyRecord(key, SeqNo(seqno), value) for key, seqno in wanted.items()]
    try:
        landed = await consensus.compare_and_set_all(records)
        end, answer = _now(), LANDED if landed else LOST
        return landed
    except LocationError as error:
        end = _now()
        answer = NEVER if error.outcome is Outcome.NOT_APPLIED else UNSURE
        return False
    finally:
        # LOST proves only that one of the keys had another seqno.
        is_sure = answer != LOST or len(wanted) == 1
        for key, seqno in wanted.items():
            call = Set(
                client=client.name,
                seqno=seqno,
                value=value,
                begin=begin,
                end=end,
                answer=answer if is_sure else NEVER,
            )
            scenario.histories[key].sets.append(call)


async def _head(scenario: Scenario, client: Client, consensus: Consensus, key: str) -> int | None:
    begin = _now()
    try:
        found = await consensus.head(key)
    except LocationError:
        return None
    seen = () if found is None else ((int(found.seqno), found.data),)
    read = Read(client=client.name, begin=begin, end=_now(), start=None, found=seen)
    scenario.histories[key].reads.append(read)
    return None if found is None else int(found.seqno)


async def _read(
    scenario: Scenario,
    client: Client,
    consensus: Consensus,
    key: str,
    *,
    start: int,
    limit: int | None,
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
    scenario.histories[key].reads.append(read)


async def _cut(scenario: Scenario, consensus: Consensus, key: str, before: int) -> None:
    begin, end = _now(), FOREVER
    try:
        await consensus.truncate(key, SeqNo(before))
        end = _now()
    except LocationError:
        pass
    finally:
        scenario.histories[key].cuts.append(Cut(begin=begin, end=end, before=before))


def _now() -> float:
    return asyncio.get_running_loop().time()
