"""Random writers and readers of a hedged store that is slow and fails: no wrong answer.

Each seed is one run in virtual time. A cancelled request still arrives late.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from kit.clocks import simulated
from kit.stores import LingeringStore
from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from tidelog.errors import (
    LocationError,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    Outcome,
    TidelogError,
)
from tidelog.store import conditional
from tidelog.store.memory import MemoryStore
from tidelog.store.wrappers.hedged import HedgedStore
from tidelog.store.wrappers.hedging import Hedging
from tidelog.testing import Fault, FaultyStore, Request

SEEDS = range(60)
EAGER = Hedging(least_us=1_000, most_us=1_000, samples_min=1, extra_permille=1_000)


@dataclass(frozen=True)
class CreationEnd:
    """The end of a creation: an e-tag or an error."""

    key: str
    body: bytes
    result: str | TidelogError


class World:
    """One store with faults drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"world {seed}")
        self.clock = SimClock(seed)
        self.inner = MemoryStore()
        faulty = FaultyStore(self.inner, toss=self._toss)
        self.slow = LingeringStore(faulty, clock=self.clock, delays_us=lambda op: self._delays_us())

    def handle(self) -> HedgedStore:
        return HedgedStore(
            self.slow, clock=self.clock, is_immutable=lambda key: key != "head", hedging=EAGER
        )

    def _delays_us(self) -> tuple[int, int]:
        slow = self.dice.choice((100, 600, 5_000))
        return self.dice.randrange(slow), self.dice.randrange(slow)

    def _toss(self, request: Request) -> Fault:
        return Fault(happened=self.dice.random() > 0.1, told=self.dice.random() > 0.1)


def create_at_once(seed: int) -> tuple[list[CreationEnd], MemoryStore, int]:
    """Let three writers create twelve objects; return the ends, the store, the hedges."""
    world, ends, again_count = World(seed), list[CreationEnd](), 0

    async def writer(name: int) -> None:
        nonlocal again_count
        store = world.handle()
        for number in range(12):
            key, body = f"slot/{number}", f"{name} {number}".encode()
            result: str | TidelogError
            try:
                result = await store.put(key, body, if_absent=True)
            except TidelogError as error:
                result = error
            ends.append(CreationEnd(key, body, result))
        again_count += store.hedges().again_count

    async def main() -> None:
        await asyncio.gather(*(writer(name) for name in range(3)))
        await world.slow.settled()

    run(main, seed)
    return ends, world.inner, again_count


def lies(ends: Sequence[CreationEnd], inner: MemoryStore) -> list[CreationEnd]:
    """Return the ends that the content of the store contradicts."""
    found = []
    for end in ends:
        there = inner.objects.get(end.key)
        ours = there is not None and there.data == end.body
        if isinstance(end.result, str):
            true = ours and there is not None and there.e_tag == end.result
        else:
            true = not ours or end.result.outcome is Outcome.UNKNOWN
            if isinstance(end.result, ObjectExists):
                true = true and there is not None
        if not true:
            found.append(end)
    return found


def test_what_is_said_of_a_creation_is_true() -> None:
    """A creation's reported end stays true after all late requests."""
    seen: set[object] = set()
    again_count = 0
    for seed in SEEDS:
        ends, inner, again = create_at_once(seed)
        assert lies(ends, inner) == [], seed
        again_count += again
        seen |= {end.result.outcome for end in ends if isinstance(end.result, LocationError)}
        seen |= {type(end.result) for end in ends}

    print(f"seeds={len(SEEDS)} creations={36 * len(SEEDS)} sent_again={again_count}")
    assert again_count > 10 * len(SEEDS)
    assert seen >= {str, ObjectExists, LocationError, Outcome.UNKNOWN, Outcome.NOT_APPLIED}


def test_a_store_that_does_not_look_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The canary: without reading back, a writer gets ObjectExists for its own object."""
    monkeypatch.setattr("tidelog.store.wrappers.hedged.may_be_ours", lambda results: False)

    found = [end for seed in SEEDS for end in lies(*create_at_once(seed)[:2])]

    assert found
    assert {type(end.result) for end in found} == {ObjectExists}


@pytest.mark.parametrize("seed", SEEDS)
def test_no_update_is_lost(seed: int) -> None:
    """Three writers increment a counter conditionally, and no acknowledged update is lost.

    The count exceeds the acknowledged updates at most by those in doubt.

    A reader never sees less than was acknowledged before its request.
    """
    world = World(seed)
    answered, doubted, reads_count = [0], [0], [0]

    async def writer(name: int) -> None:
        store = world.handle()
        for number in range(8):
            try:
                found = await store.get("head")
                body = f"{int(found.data.split()[0]) + 1} by {name} {number}".encode()
                await conditional.replace(store, "head", body, e_tag=found.e_tag, clock=world.clock)
            except TidelogError as error:
                doubted[0] += error.outcome is Outcome.UNKNOWN
            else:
                answered[0] += 1

    async def reader() -> None:
        store, e_tag = world.handle(), ""
        seen = b"0"
        for _ in range(40):
            before = answered[0]
            try:
                found = await store.refresh("head", e_tag)
            except LocationError:
                continue
            if found is not None:
                e_tag, seen = found.e_tag, found.data
            assert int(seen.split()[0]) >= before
            reads_count[0] += 1

    async def main() -> None:
        await world.inner.put("head", b"0")
        await asyncio.gather(*(writer(name) for name in range(3)), reader(), reader())
        await world.slow.settled()

    run(main, seed)
    count = int(world.inner.objects["head"].data.split()[0])
    assert answered[0] <= count <= answered[0] + doubted[0]
    assert answered[0] > 0
    assert reads_count[0] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_reads_see_what_was_answered(seed: int) -> None:
    """A read after an acknowledged creation finds the object, every byte of it."""
    world = World(seed)
    missing_count = [0]

    async def main() -> None:
        store = world.handle()
        for number in range(20):
            key, body = f"a/{number}", f"{number} ".encode() * number
            try:
                await store.get(key)
            except (ObjectNotFound, LocationError) as error:
                missing_count[0] += isinstance(error, ObjectNotFound)
            await conditional.create(store, key, body, clock=world.clock)
            for start, limit in ((0, None), (1, 4)):
                try:
                    assert (await store.get(key, start=start, limit=limit)).data == body[
                        start:limit
                    ]
                except LocationError:
                    continue
        await world.slow.settled()

    run(main, seed)
    assert missing_count[0] > 0


@simulated
async def test_a_stale_e_tag_is_refused_through_it() -> None:
    """A conditional replacement passes through unchanged, so a stale e-tag is refused."""
    inner = MemoryStore()
    store = HedgedStore(inner, clock=SimClock(1), is_immutable=lambda key: True, hedging=EAGER)
    stale = await store.put("a", b"1")
    await store.put("a", b"2", if_match=stale)
    with pytest.raises(ObjectChanged):
        await store.put("a", b"3", if_match=stale)
    assert inner.objects["a"].data == b"2"
