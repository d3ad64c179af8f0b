"""Concurrent changes of the catalog through one connection: none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import cycle
from typing import TypeVar

from kit.clocks import OneThread
from tidelog.collection.spec_types import SourceSpec
from tidelog.location import open_location
from tidelog.store.memory import MemoryStore

T = TypeVar("T")
NAMES = [f"s{n}" for n in range(4)]


class Uneven(OneThread):
    """A clock whose offloaded work takes turns of the event loop, a different number each time."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = cycle((0, 7, 1, 20, 3))

    async def offload(self, work: Callable[[], T]) -> T:
        for _ in range(next(self._turns)):
            await asyncio.sleep(0)
        return work()


async def test_concurrent_changes_of_one_connection_are_all_kept() -> None:
    """A change is decided on the catalog that it read, not on one that another call read later."""
    store, clock = MemoryStore(name="memory://"), Uneven()
    location = await open_location("memory://", create=True, clock=clock, store=store)
    for name in NAMES:
        settings = {"shape": "counter"}
        await location.sources.create(SourceSpec(name=name, kind="generator", settings=settings))

    for round_number in range(1, 4):
        changes = [location.controller.retain(name, 1_000 * round_number) for name in NAMES]
        skips = [location.controller.skip_files("s0", [f"{round_number}-{n}"]) for n in range(6)]
        await asyncio.gather(*changes, *skips)
        sources = (await location.controller.catalog()).sources
        assert [sources[name].retain_ms for name in NAMES] == [1_000 * round_number] * len(NAMES)
        assert len(sources["s0"].skipped) == 6 * round_number
