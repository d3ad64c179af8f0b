"""Histories of slot logs: what processes leave that die, sleep, come late, collect by halves.

Each step is done by the project's own code over a store in which a process can be held up or killed
at its puts; what a dead process had sent may still land later.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

from kit.clocks import SwiftClock
from tidelog.errors import Fenced, ObjectExists, TidelogError
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object, Store
from tidelog.store.within import Within
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.epoch import EPOCHS
from tidelog.wal.format.link import DataLink, FenceLink
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.slot_object import decode_link
from tidelog.wal.gc.plan import Keep
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs
from tidelog.wal.slot_protocol.shape import Shape

T = TypeVar("T")
ALL = Keep(share_max=1)
NAME = "x"
TURNS_MAX = 400  # Of the loop, until whoever can go on has come to where he cannot.


class InlineClock(SwiftClock):
    """A clock that waits for nothing, works where it is asked to, and gives the same ids again."""

    def __init__(self) -> None:
        super().__init__()
        self._given = 0

    def uniform(self) -> float:
        return 0.5

    def unique(self) -> str:
        self._given += 1
        return blake2b(b"%d" % self._given, digest_size=16).hexdigest()

    async def offload(self, work: Callable[[], T]) -> T:
        return work()


@dataclass(slots=True)
class Link:
    """A process's way to the store. Of its puts of a ``kind`` those in ``holes`` do not arrive.

    What did not arrive is kept in ``late``. While ``gate`` is closed, no such put goes out.
    """

    store: Store
    late: list[tuple[str, bytes]]
    kind: type[DataLink | FenceLink]
    holes: frozenset[int] = frozenset()
    gate: asyncio.Event | None = None
    doomed: Callable[[str], bool] | None = None  # Which keys a broken off deletion gets to.
    puts: int = 0

    @property
    def url(self) -> str:
        return self.store.url

    def has_sent(self, count: int) -> bool:
        return self.puts >= count

    async def get(self, key: str, *, start: int = 0, limit: int | None = None) -> Object:
        return await self.store.get(key, start=start, limit=limit)

    async def refresh(self, key: str, e_tag: str) -> Object | None:
        return await self.store.refresh(key, e_tag)

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        if EPOCHS in key and isinstance(decode_link(data, path=_inside(key)), self.kind):
            turn, self.puts = self.puts, self.puts + 1
            if self.gate is not None:
                await self.gate.wait()
            if turn in self.holes:
                self.late.append((key, data))
                await asyncio.Event().wait()
        return await self.store.put(key, data, if_absent=if_absent, if_match=if_match)

    async def delete(self, keys: Sequence[str]) -> None:
        if self.doomed is None:
            await self.store.delete(keys)
            return
        await self.store.delete([key for key in keys if self.doomed(key)])
        await asyncio.Event().wait()

    def list(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Entry]:
        return self.store.list(prefix, after=after)


@dataclass(slots=True)
class History:
    """A log, and all who have come by."""

    store: MemoryStore = field(default_factory=MemoryStore)
    late: list[tuple[str, bytes]] = field(default_factory=list)
    sleepers: list[tuple[asyncio.Event, asyncio.Task[object]]] = field(default_factory=list)
    clock: InlineClock = field(default_factory=InlineClock)
    written: int = 0
    writer: Log | None = None

    @property
    def within(self) -> Within:
        return Within(self.store, f"log/{NAME}")

    def logs(self, store: Store | None = None) -> Logs:
        return Logs(store=store or self.store, clock=self.clock, writer="me")

    async def begin(self) -> None:
        """Make the log."""
        await self.logs().create(NAME)

    async def write(self, count: int, *, alpha: int = 4, lanes: int = 1) -> None:
        """Have a new writer append batches, each of one or two records, and close."""
        async with await self._open(self.store, alpha=alpha, lanes=lanes) as log:
            for _ in range(count):
                await log.append(self._bodies())

    async def go_on(self, count: int) -> None:
        """Have one writer append, who stays; if he was fenced, another comes in his place."""
        for _ in range(count):
            self.writer = self.writer or await self._open(self.store)
            try:
                await self.writer.append(self._bodies())
            except Fenced:
                self.writer = None

    async def die_writing(self, landed: Sequence[bool], *, alpha: int = 4) -> None:
        """Have a new writer send batches at once, of which some land, and die."""
        holes = frozenset(n for n, lands in enumerate(landed) if not lands)
        link = Link(self.store, self.late, DataLink, holes=holes)
        log = await self._open(link, alpha=alpha)
        count = min(len(landed), alpha)

        async def live() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(1, count + 1):
                    group.create_task(log.append(self._bodies()))
                    await turns(partial(link.has_sent, number))

        await killed(live(), partial(link.has_sent, count))

    async def die_opening(self, landed: Sequence[bool]) -> None:
        """Have an opener send fences, of which some land, and die."""
        holes = frozenset(n for n in range(64) if not landed[n % len(landed)])
        link = Link(self.store, self.late, FenceLink, holes=holes)
        log = await self._open(link)
        await killed(log.append(self._bodies()), lambda: False)

    async def sleep_opening(self) -> None:
        """Have an opener come to where he would send fences, and sleep there."""
        gate = asyncio.Event()
        link = Link(self.store, self.late, FenceLink, gate=gate)
        log = await self._open(link)

        async def live() -> None:
            async with log:
                await log.append(self._bodies())

        task = asyncio.create_task(survive(live()))
        await turns(partial(link.has_sent, 1))
        self.sleepers.append((gate, task))

    async def wake(self) -> None:
        """Have the first sleeper go on to his end."""
        if self.sleepers:
            gate, task = self.sleepers.pop(0)
            gate.set()
            await task

    async def bury(self) -> None:
        """Kill all who sleep."""
        self.sleepers.clear()
        await kill(asyncio.all_tasks() - {asyncio.current_task()})

    async def land(self, number: int) -> None:
        """Have something arrive that a process had sent which is dead by now."""
        if self.late:
            key, data = self.late.pop(number % len(self.late))
            with suppress(ObjectExists):
                await self.store.put(key, data, if_absent=True)

    async def pin(self, name: str, share: float) -> None:
        """Pin what lies about a place of the log."""
        log = await self.logs().open(NAME)
        bounds = await log.bounds()
        start = bounds.oldest + int(share * (bounds.next - bounds.oldest))
        await survive(log.create_pin(name, start=start, limit=min(start + 3, bounds.next)))

    async def release(self, name: str) -> None:
        """Let go of a pin."""
        await survive((await self.logs().open(NAME)).release_pin(name))

    async def fork(self, name: str) -> None:
        """Fork the log."""
        await survive(self.logs().fork(NAME, name))

    async def collect(self, share: float, *, cut: int | None = None) -> None:
        """Collect up to a place of the log; with ``cut`` die in the midst of the deletion."""
        log = await self.logs().open(NAME)
        bounds = await log.bounds()
        position = bounds.oldest + int(share * (bounds.next - bounds.oldest))
        if (await log.cursors()).cursors:
            witness = await log.load_cursor("c")
            await survive(log.save_cursor(witness, max(position, witness.position)))
        else:
            await survive(log.create_cursor("c", position))
        link = Link(self.store, self.late, FenceLink)
        if cut is not None:
            link.doomed = lambda key: sum(key.encode()) % 3 != cut
        collector = await self.logs(link).open(NAME)
        await killed(survive(collector.collect(keep=ALL, grace_us=0)), lambda: False)

    async def sweep(self) -> None:
        """Delete what nothing names."""
        await survive((await self.logs().open(NAME)).sweep(grace_us=0))

    async def _open(self, store: Store, *, alpha: int = 4, lanes: int = 1) -> Log:
        shape = Shape(
            alpha=alpha,
            lanes=lanes,
            rollup_slots=5,
            rollover=Rollover(fragments=3, snapshots=2),
        )
        return await self.logs(store).open(NAME, shape=shape, batching=Batching(interval_us=0))

    def _bodies(self) -> list[bytes]:
        self.written += 1
        return [b"%d-%d" % (self.written, n) for n in range(1 + self.written % 2)]


def _inside(key: str) -> str:
    return key[key.index(EPOCHS) :]


async def turns(is_there: Callable[[], bool]) -> None:
    """Let everybody go on until something is so, or nobody can."""
    for _ in range(TURNS_MAX):
        if is_there():
            return
        await asyncio.sleep(0)


async def killed(work: Coroutine[Any, Any, object], is_time: Callable[[], bool]) -> None:
    """Do work in a process that is killed: when it is time, or when it gets no further."""
    before = asyncio.all_tasks()
    task = asyncio.create_task(work)
    await turns(lambda: task.done() or is_time())
    await turns(task.done)
    await kill((asyncio.all_tasks() | {task}) - before)


async def kill(tasks: Collection[asyncio.Task[Any] | None]) -> None:
    """End tasks, at once and with all that they wait for."""
    found = [task for task in tasks if task is not None]
    for task in found:
        task.cancel()
    await asyncio.gather(*found, return_exceptions=True)


async def survive(work: Awaitable[object]) -> None:
    """Do what may be refused."""
    with suppress(TidelogError):
        await work
