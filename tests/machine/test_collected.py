"""Deletion of objects that vanished from a state: late enough for readers, through any failure."""

from __future__ import annotations

import asyncio

import pytest

from kit.clocks import StuckClock
from kit.words import Place, papers, say, say_all
from tidelog.errors import LocationError
from tidelog.testing import Fault, FaultyStore, Request


@pytest.mark.parametrize("anew", [False, True])
async def test_what_vanished_is_deleted_once_a_rollup_is_past_it(anew: bool) -> None:
    """Any machine that commits deletes a vanished object once a rollup is past it."""
    place = Place()
    for word in "abc":
        await place.store.put(word, b"")
    machine = papers(place, rollup_every=4)
    await say_all(machine, "abc")
    await machine.commit(say("-a"))
    assert "a" in place.store.objects, "records from the first on name it"
    if anew:
        machine = papers(place, rollup_every=4)
    for number in range(4):
        await machine.commit(say(f"word {number}"))

    assert {"b", "c"} <= place.store.objects.keys()
    assert "a" not in place.store.objects
    assert await papers(place).refresh() == ("b", "c", *(f"word {n}" for n in range(4)))


async def test_a_held_object_stays_until_the_hold_is_released() -> None:
    """An object, record or rollup of a held state stays until the hold is released."""
    place = Place()
    await place.store.put("a", b"")
    machine = papers(place, rollup_every=2)
    await say_all(machine, ["a", "@1", "-a"])
    await say_all(machine, "bcdefgh")
    assert "a" in place.store.objects
    assert place.kept()[0] == 1

    await machine.commit(say("@9"))
    await machine.collect()
    assert "a" not in place.store.objects
    assert place.kept()[0] > 3


async def test_a_vanished_object_stays_for_the_grace_period() -> None:
    """A vanished object stays for the readers' grace, for any number of collections."""
    place, clock = Place(), StuckClock()
    await place.store.put("a", b"")
    await place.store.put("b", b"")
    machine = papers(place, clock=clock, rollup_every=2, vanished_us=3_600_000_000)
    await say_all(machine, ["a", "b", "-a"])
    clock.wall_us += 3_599_000_000
    await say_all(machine, ["c", "d", "-b", "e", "f"])
    await machine.collect()
    assert place.store.objects.keys() >= {"a", "b"}

    clock.wall_us += 1_000_001
    newcomer = papers(place, clock=clock, rollup_every=2, vanished_us=3_600_000_000)
    await say_all(newcomer, "gh")
    assert place.store.objects.keys() & {"a", "b"} == {"b"}, "a commit found that its time had come"
    clock.wall_us += 3_600_000_000
    await papers(place, clock=clock).collect()
    assert not place.store.objects.keys() & {"a", "b"}


async def test_what_was_deleted_is_not_deleted_again() -> None:
    """A deleted object is not deleted again, because a record states its deletion."""
    place, asked = Place(), list[str]()

    def toss(request: Request) -> Fault:
        if request.op == "delete":
            asked.append(request.key)
        return Fault(happened=True)

    await place.store.put("a", b"")
    store = FaultyStore(place.store, toss=toss)
    machine = papers(place, store=store)
    await say_all(machine, ["a", "-a"])
    assert await machine.collect() == 1
    assert len(asked) == 1
    assert await papers(place, store=store).collect() == 0
    assert len(asked) == 1


async def test_a_collection_deletes_all_that_it_may_at_once() -> None:
    """A collection deletes all due objects at once; a second one deletes and writes nothing."""
    place = Place()
    for word in "ab":
        await place.store.put(word, b"")
    machine = papers(place)
    await say_all(machine, ["a", "b", "-a"])

    assert await machine.collect() == 1
    assert place.store.objects.keys() == {"b"}
    commits = machine.seqno
    assert await machine.collect() == 0
    assert machine.seqno == commits, "nothing is written for nothing"
    assert await papers(place).refresh() == ("b",)


async def test_a_collection_that_fails_is_done_again() -> None:
    """A failed collection can be repeated, and the state stays whole until then."""
    place, stuck = Place(), asyncio.Event()
    stuck.set()
    for word in "ab":
        await place.store.put(word, b"")

    def toss(request: Request) -> Fault:
        return Fault(happened=not (stuck.is_set() and request.op == "delete"))

    machine = papers(place, store=FaultyStore(place.store, toss=toss))
    await say_all(machine, ["a", "b", "-a"])
    with pytest.raises(LocationError):
        await machine.collect()
    stuck.clear()
    assert await papers(place).refresh() == ("b",)

    await machine.collect()
    assert place.store.objects.keys() & {"a", "b"} == {"b"}
    assert await papers(place).refresh() == ("b",)
