"""What stateful tests share: a loop of their own, and a store that fails as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kit.shards import on_store
from tidelog.errors import LocationError
from tidelog.store.memory import MemoryStore
from tidelog.testing import Fault, Faulty, Request

FAULTS_MAX = 12
FAULTS = st.sampled_from(
    [Fault(), Fault(), Fault(told=False), Fault(happened=False), Fault(happened=False, told=False)]
)


async def end_tasks() -> None:
    """End what is still under way of this loop, as the end of its process would."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


class OnBadStore(RuleBasedStateMachine):
    """A machine whose calls are awaited one after the other, and whose requests may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.inner = MemoryStore()
        self.place = on_store(self.inner)
        self.faults: list[Fault] = []

    def teardown(self) -> None:
        self.loop.run_until_complete(end_tasks())
        self.loop.close()

    @rule(faults=st.lists(FAULTS, min_size=2, max_size=FAULTS_MAX))
    def weather(self, faults: list[Fault]) -> None:
        """What becomes of the next requests, of whoever sends them."""
        self.faults = list(faults)

    def bad_store(self) -> Faulty:
        return Faulty(self.inner, toss=self._toss)

    def _toss(self, request: Request) -> Fault:
        return self.faults.pop(0) if self.faults else Fault()

    def run(self, work: Awaitable[Any]) -> Any:
        async def done() -> Any:
            return await work

        return self.loop.run_until_complete(done())

    def calmly(self, work: Awaitable[Any]) -> Any:
        """Await while nothing fails; the weather goes on after."""
        faults, self.faults = self.faults, []
        try:
            return self.run(work)
        finally:
            self.faults = faults

    def tried(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Call, and again while the store fails; what repeats must be safe to repeat."""
        for _ in range(FAULTS_MAX + 2):
            try:
                return self.run(call())
            except LocationError:
                continue
        raise AssertionError("faults are few, and yet it failed at every try")
