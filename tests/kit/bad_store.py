"""Shared parts of stateful tests: an event loop of their own, and a store with chosen faults.

A request may fail, or lose its answer. A change may be late: it takes effect long after its sender
got an unknown outcome. A change may also arrive twice, and get the answer of the second arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from kit.shards import on_store
from tidelog.errors import LocationError, Outcome, TidelogError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry
from tidelog.testing import Fault, FaultyStore, Request

FAULTS_MAX = 12
FAULTS = st.sampled_from(
    [Fault(), Fault(), Fault(told=False), Fault(happened=False), Fault(happened=False, told=False)]
)
Change = Callable[[], Awaitable[object]]
WELL, LATE, DOUBLED = "well", "late", "doubled"
WAYS = st.sampled_from([WELL, WELL, LATE, DOUBLED])


class UnrulyStore:
    """A store in which ``way`` chooses the fate of each change; late changes wait in ``late``."""

    def __init__(self, store: MemoryStore, *, way: Callable[[], str], late: list[Change]) -> None:
        self._store = store
        self._way = way
        self._late = late
        self.url, self.get, self.refresh = store.url, store.get, store.refresh

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        body = bytes(data)
        done = await self._send(
            lambda: self._store.put(key, body, if_absent=if_absent, if_match=if_match)
        )
        return str(done)

    async def delete(self, keys: Sequence[str]) -> None:
        gone = list(keys)
        await self._send(lambda: self._store.delete(gone))

    async def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        async for entry in self._store.list(prefix, after=after):
            yield entry

    async def _send(self, change: Change) -> object:
        way = self._way()
        if way == LATE:
            self._late.append(change)
            raise LocationError("no answer came in time", outcome=Outcome.UNKNOWN)
        if way == DOUBLED:
            with suppress(TidelogError):
                await change()
        return await change()


async def end_tasks() -> None:
    """Cancel all other tasks of this loop, as the end of its process would."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


def must_fail(machine: type[RuleBasedStateMachine], *, examples: int = 60) -> None:
    """Run a machine, without shrinking it; raise AssertionError if it finds no fault."""
    some = settings(
        max_examples=examples,
        stateful_step_count=40,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
    )
    try:
        run_state_machine_as_test(machine, settings=some)
    except (AssertionError, TidelogError):  # Any other error is a fault of the test.
        return
    raise AssertionError("a broken build passed")


class OnBadStore(RuleBasedStateMachine):
    """A machine whose calls are awaited one after the other, and whose requests may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.inner = MemoryStore()
        self.place = on_store(self.inner)
        self.faults: list[Fault] = []
        self.ways: list[str] = []
        self.late: list[Change] = []

    def teardown(self) -> None:
        self.loop.run_until_complete(end_tasks())
        self.loop.close()

    @rule(faults=st.lists(FAULTS, min_size=2, max_size=FAULTS_MAX))
    def weather(self, faults: list[Fault]) -> None:
        """Set the faults of the next requests, whichever handle sends them."""
        self.faults = list(faults)

    @rule(ways=st.lists(WAYS, min_size=1, max_size=FAULTS_MAX))
    def detours(self, ways: list[str]) -> None:
        """Set the fates of the next changes: normal, late or doubled."""
        self.ways = list(ways)

    @rule()
    def what_is_late_arrives(self) -> None:
        """Late changes arrive; their senders have retried, and other objects are in place."""
        self.arrive_all()

    def arrive_all(self) -> None:
        late = list(self.late)
        self.late.clear()
        for change in late:
            with suppress(TidelogError):
                self.run(change())

    def bad_store(self) -> FaultyStore:
        unruly = UnrulyStore(self.inner, way=self._way, late=self.late)
        return FaultyStore(unruly, toss=self._toss)

    def _way(self) -> str:
        return self.ways.pop(0) if self.ways else WELL

    def _toss(self, request: Request) -> Fault:
        return self.faults.pop(0) if self.faults else Fault()

    def run(self, work: Awaitable[Any]) -> Any:
        async def done() -> Any:
            return await work

        return self.loop.run_until_complete(done())

    def calmly(self, work: Awaitable[Any]) -> Any:
        """Await work without faults; the chosen faults apply again afterwards."""
        faults, self.faults = self.faults, []
        ways, self.ways = self.ways, []
        try:
            return self.run(work)
        finally:
            self.faults, self.ways = faults, ways

    def tried(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Call until the store does not fail; the call must be safe to repeat."""
        for _ in range(2 * FAULTS_MAX + 2):
            try:
                return self.run(call())
            except LocationError:
                continue
        raise AssertionError("faults are few, and yet it failed at every try")
