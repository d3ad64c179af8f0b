"""A settled machine keeps its newest state and no removed value, after any kill."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from kit.words import Words, WordsLanguage, say
from tidelog.consensus.store import StoreConsensus
from tidelog.core.clock import SystemClock
from tidelog.core.ids import SeqNo
from tidelog.errors import LocationError
from tidelog.machine.machine import Machine
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.testing import Fault, FaultyStore, Request


class ForgettingLanguage(WordsLanguage):
    """A language in which ``-word`` removes a word and ``@3`` holds the state of a seqno."""

    def apply(self, state: Words, diff: str) -> Words:
        if diff.startswith("-"):
            return tuple(word for word in state if word != diff[1:])
        return (*state, diff)

    def seqno_since(self, state: Words) -> int | None:
        return min((int(word[1:]) for word in state if word.startswith("@")), default=None)


def machine(store: Store, *, rollup_every: int = 64) -> Machine[Words, str]:
    """Return a machine as in a new process, whose consensus sends each request once."""
    clock = SystemClock()
    return Machine(
        key="k",
        prefix="words/k",
        language=ForgettingLanguage(),
        store=store,
        consensus=StoreConsensus(store=store, clock=clock, attempts=1),
        clock=clock,
        rollup_every=rollup_every,
    )


@dataclass(slots=True, kw_only=True)
class OvertakenConsensus(StoreConsensus):
    """The consensus of a process that is overtaken by another record before each of its own."""

    other: Machine[Words, str]

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        await self.other.commit(say("late"))
        return await StoreConsensus.compare_and_set(self, key, seqno, data)


def keys_with(store: MemoryStore, text: bytes) -> list[str]:
    return [key for key, one in store.objects.items() if text in one.data]


async def written(*words: str, rollup_every: int = 64) -> MemoryStore:
    store = MemoryStore()
    one = machine(store, rollup_every=rollup_every)
    for word in words:
        await one.commit(say(word))
    return store


@pytest.mark.parametrize("rollup_every", [1, 3, 64, 1_000])
async def test_a_value_that_a_change_took_away_is_nowhere(rollup_every: int) -> None:
    """A removed value is in no record, spill or rollup; newer ones stay."""
    many = [f"word {n}" for n in range(300)]
    store = await written("xqzv", *many, "-xqzv", rollup_every=rollup_every)
    assert keys_with(store, b"xqzv") or rollup_every == 1

    await machine(store).settle()

    assert not keys_with(store, b"xqzv")
    assert await machine(store).refresh() == tuple(many)
    assert len([key for key in store.objects if "/rollup/" in key]) == 1
    puts = store.puts_count
    await machine(store).settle()
    assert store.puts_count == puts, "the second time nothing is written"
    await machine(store).commit(say("more"))
    assert await machine(store).refresh() == (*many, "more")


async def test_a_state_that_a_reader_holds_stays_until_its_hold_goes() -> None:
    """The state of a reader's hold is deleted by the next call after the release."""
    store = await written("xqzv", "@1", "-xqzv")
    await machine(store).settle()
    assert keys_with(store, b"xqzv")
    await machine(store).commit(say("-@1"))
    await machine(store).settle()
    assert not keys_with(store, b"xqzv")


async def test_a_machine_that_was_never_written_is_not_written() -> None:
    """The settlement of a machine without records writes nothing."""
    store = MemoryStore()
    assert await machine(store).settle() == 0
    assert not store.objects


@pytest.mark.parametrize("happens", [False, True])
async def test_who_comes_after_a_collector_that_died_at_any_request_deletes_the_rest(
    happens: bool,
) -> None:
    """After a kill at any request, the next settlement deletes the rest and loses no state."""
    for last in range(40):
        store, asked = await written("xqzv", "a", "-xqzv", rollup_every=2), list[str]()

        def toss(request: Request, last: int = last, asked: Any = asked) -> Fault:
            asked.append(request.op)
            if len(asked) <= last:
                return Fault(happened=True)
            is_first = len(asked) == last + 1
            return Fault(happened=happens and is_first, told=False)

        with suppress(LocationError):
            await machine(FaultyStore(store, toss=toss)).settle()
        is_whole = len(asked) <= last
        await machine(store).settle()

        assert await machine(store).refresh() == ("a",)
        assert not keys_with(store, b"xqzv"), last
        if is_whole:
            return
    raise AssertionError("a collection has fewer requests")


async def test_a_writer_that_is_first_at_every_try_loses_nothing() -> None:
    """A writer that wins every race loses nothing. Its changes are settled by the next call."""
    store = await written("xqzv", "-xqzv")
    other, collector = machine(store), machine(store)
    collector.consensus = OvertakenConsensus(store=store, clock=SystemClock(), other=other)
    await collector.settle()
    late = await machine(store).refresh()
    assert late
    await machine(store).settle()
    assert not keys_with(store, b"xqzv")
    assert await machine(store).refresh() == late
