"""Commits of several machines of a group: all changes are written, or none.

Source: decision 37.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from kit.words import CLOCK, Words, WordsLanguage, say, say_once
from tidelog.consensus.store import StoreConsensus
from tidelog.errors import LocationError, UsageError
from tidelog.machine.language import Decision
from tidelog.machine.machine import Machine
from tidelog.machine.together import Command, commit_together
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore, RecordedStore, Request

GROUP = "g" + "0" * 32
Decide = Callable[[Words], Decision[str, bool]]


def machines(store: Store, *, attempts: int = 20) -> list[Machine[Words, str]]:
    """Return new handles of two machines of a group, with a consensus of their own."""
    consensus = StoreConsensus(store=store, clock=CLOCK, attempts=attempts)
    return [
        Machine(
            key=f"{GROUP}-{n:012x}",
            prefix=f"words/{n}",
            language=WordsLanguage(),
            store=store,
            consensus=consensus,
            clock=CLOCK,
        )
        for n in range(2)
    ]


async def words(store: Store) -> list[Words]:
    return [await one.refresh() for one in machines(store)]


async def both(pair: list[Machine[Words, str]], decide: Decide) -> list[bool]:
    return await commit_together([Command(one, decide) for one in pair])


async def test_changes_of_two_machines_are_one_put() -> None:
    """Both states have the change, in this process and in others."""
    store = RecordedStore(MemoryStore())
    pair = machines(store)
    assert await both(pair, say_once("a")) == [True, True]
    store.records.clear()
    assert await both(pair, say_once("b")) == [True, True]
    assert [one.op for one in store.records] == ["put"]
    assert [one.state for one in pair] == await words(store) == [("a", "b")] * 2


async def test_nothing_is_written_if_one_machine_decides_no_change() -> None:
    """The answers are those of the newest states, although both handles are old."""
    store = MemoryStore()
    pair, others = machines(store), machines(store)
    await both(pair, say_once("a"))
    await others[1].commit(say_once("b"))

    assert await both(pair, say_once("b")) == [True, False]
    assert await words(store) == [("a",), ("a", "b")]
    assert pair[1].state == ("a", "b")


async def test_an_error_of_one_machine_writes_nothing() -> None:
    """An error over an old state would be wrong, so it counts only over the newest one."""
    store = MemoryStore()
    pair, others = machines(store), machines(store)
    await both(pair, say_once("a"))
    await both(others, say_once("b"))

    def needs(word: str) -> Decide:
        def decide(state: Words) -> Decision[str, bool]:
            if word not in state:
                raise UsageError(f"{word} is needed")
            return Decision(True, "after")

        return decide

    assert await both(pair, needs("b")) == [True, True]
    with pytest.raises(UsageError, match="c is needed"):
        await commit_together([Command(pair[0], say_once("x")), Command(pair[1], needs("c"))])
    assert await words(store) == [("a", "b", "after")] * 2


async def test_racing_pairs_lose_no_change() -> None:
    """Five processes write both machines, and one machine alone, at one time."""
    store = MemoryStore()
    pairs = [machines(store) for _ in range(5)]
    await asyncio.gather(
        *(both(pair, say_once(f"w{n}")) for n, pair in enumerate(pairs)),
        *(pair[0].commit(say(f"alone{n}")) for n, pair in enumerate(pairs)),
    )
    first, second = await words(store)
    assert sorted(second) == [f"w{n}" for n in range(5)]
    assert sorted(first) == sorted([*second, *(f"alone{n}" for n in range(5))])


async def test_a_change_that_rides_needs_no_put_of_its_own() -> None:
    """It waits for the next commit of its machine, or for a nudge."""
    store = RecordedStore(MemoryStore())
    pair = machines(store)
    await both(pair, say_once("a"))
    store.records.clear()
    rider = asyncio.create_task(pair[0].commit(say_once("rider"), rides=True))
    await asyncio.sleep(0.01)
    assert store.records == []
    assert pair[0].has_riders

    assert await both(pair, say_once("b")) == [True, True]
    assert await rider
    assert [one.op for one in store.records] == ["put"]
    assert await words(store) == [("a", "b", "rider"), ("a", "b")]

    other = asyncio.create_task(pair[1].commit(say_once("late"), rides=True))
    await asyncio.sleep(0)
    pair[1].nudge()
    assert await other
    assert not pair[1].has_riders


async def test_a_rider_without_a_change_waits_for_a_newer_state() -> None:
    """The state of the commit that it would ride on may be an old one."""
    store = MemoryStore()
    pair = machines(store)
    await both(pair, say_once("a"))
    rider = asyncio.create_task(pair[0].commit(say_once("a"), rides=True))
    await asyncio.sleep(0)
    await both(pair, say_once("b"))
    assert not rider.done()
    pair[0].nudge()
    assert await rider is False


@pytest.mark.parametrize("happened", [False, True], ids=["lost", "landed"])
async def test_a_rider_gets_the_error_of_a_put_that_may_have_landed(happened: bool) -> None:
    """A second decision would find its own change, and take it for that of another process.

    A merge would then delete the parts that it has just committed.
    """
    store, fails = MemoryStore(), False

    def toss(request: Request) -> Fault:
        is_put = fails and request.key == f"consensus/{GROUP}"
        return Fault(happened=happened or not request.changes, told=False) if is_put else Fault()

    pair = machines(FaultyStore(store, toss=toss), attempts=1)
    await both(pair, say_once("a"))
    rider = asyncio.create_task(pair[0].commit(say_once("rider"), rides=True))
    await asyncio.sleep(0)
    fails = True
    with pytest.raises(LocationError):
        await both(pair, say_once("b"))
    fails = False

    await both(pair, say_once("c"))
    with pytest.raises(LocationError):
        await rider
    assert ("rider" in (await words(store))[0]) == happened
