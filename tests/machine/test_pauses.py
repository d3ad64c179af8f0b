"""Pauses of machines that race each other, in virtual time over a store of known speed."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from kit.words import Place, Words, say
from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from tidelog.consensus.memory import MemoryConsensus
from tidelog.consensus.port import VersionedRecord
from tidelog.core.ids import SeqNo
from tidelog.machine.machine import Machine
from tidelog.store.memory import MemoryStore


class SlowConsensus(MemoryConsensus):
    """Consensus whose requests take ``request_us`` microseconds, half of them on the way there."""

    def __init__(self, request_us: int) -> None:
        super().__init__()
        self.half_s = request_us / 2e6
        self.refused = 0

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        await asyncio.sleep(self.half_s)
        landed = await super().compare_and_set(key, seqno, data)
        self.refused += not landed
        await asyncio.sleep(self.half_s)
        return landed

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[VersionedRecord]:
        await asyncio.sleep(self.half_s)
        found = await super().scan(key, start, limit)
        await asyncio.sleep(self.half_s)
        return found


class SlowStore(MemoryStore):
    """A store whose puts take as long as the requests of the consensus."""

    def __init__(self, half_s: float) -> None:
        super().__init__()
        self.half_s = half_s

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        await asyncio.sleep(2 * self.half_s)
        return await super().put(key, data, if_absent=if_absent, if_match=if_match)


async def commits_of_each(consensus: SlowConsensus, machines: int, seconds: float) -> list[int]:
    """Commit with several machines for some seconds; return the commits of each."""
    place, loop = Place(), asyncio.get_running_loop()
    place.store = SlowStore(consensus.half_s)
    end = loop.time() + seconds

    async def commit(machine: Machine[Words, str]) -> int:
        done = 0
        while loop.time() < end:
            await machine.commit(say("a"))
            done += 1
        return done

    clocks = [SimClock(f"{consensus.half_s} {number}") for number in range(machines)]
    racing = [place.machine(consensus=consensus, clock=clock) for clock in clocks]
    return await asyncio.gather(*map(commit, racing))


@pytest.mark.parametrize("request_us", [2_000, 40_000])
@pytest.mark.parametrize("machines", [4, 16])
def test_racing_machines_share_the_commits(machines: int, request_us: int) -> None:
    """Each of several machines that race has a share of the commits, and the store is not idle."""
    consensus = SlowConsensus(request_us)

    each = run(partial(commits_of_each, consensus, machines, 2_000 * request_us / 1e6), 1)

    assert min(each) * 3 >= sum(each) / machines
    assert sum(each) >= 1_000  # A machine alone makes 2,000.
    assert consensus.refused <= 5 * sum(each)


def test_a_machine_alone_never_pauses() -> None:
    """A machine without rivals commits at the speed of the store."""
    consensus = SlowConsensus(2_000)

    [done] = run(partial(commits_of_each, consensus, 1, 2.0), 1)

    assert done >= 950  # Each 64th commit also writes a rollup, and deletes older records.


async def waits_after_a_stall(stall_s: float) -> list[float]:
    """Return the seconds of each commit of a machine that lost a race and then won a slow one."""
    place, consensus, loop = Place(), SlowConsensus(2_000), asyncio.get_running_loop()
    winner, loser = (place.machine(consensus=consensus, clock=SimClock(name)) for name in "wl")
    await winner.commit(say("a"))
    await loser.commit(say("b"))  # Its first try loses, because it does not know the first record.
    consensus.half_s = stall_s / 2
    await loser.commit(say("c"))
    consensus.half_s = 0.001

    found: list[float] = []
    for _ in range(8):
        begin = loop.time()
        await loser.commit(say("d"))
        found.append(loop.time() - begin)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_stall_does_not_prolong_the_next_commits(seed: int) -> None:
    """A store that stalled for minutes, or a laptop that slept, costs its own time and no more."""
    waits = run(partial(waits_after_a_stall, 600.0), seed)

    assert max(waits) < 1.1
