"""Histories of slot logs, with processes that die, are suspended, or collect only in part.

The project's own code runs each step over a store that can suspend or kill a process at its puts.
Puts of a dead process may still arrive later.
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
from tidelog.store.keys import Within
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Entry, Object, Store
from tidelog.wal.append.batching import Batching
from tidelog.wal.format.link import EPOCHS, DataLink, FenceLink
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.format.slot_object import decode_link
from tidelog.wal.gc.plan import Keep
from tidelog.wal.log import Log
from tidelog.wal.logs import Logs
from tidelog.wal.slot_protocol.shape import Shape

T = TypeVar("T")
ALL = Keep(share_max=1)
NAME = "x"
TURNS_MAX = 400  # Turns of the loop that suffice for each task to reach its next wait.


class InlineClock(SwiftClock):
    """A deterministic clock that never waits, and runs offloaded work in the caller's thread."""

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
    """A process's connection to the store, which loses some of its puts of one ``kind``.

    ``holes`` has the numbers of the lost puts, which wait in ``late``. While ``gate`` is closed, no
    put of that kind is sent.
    """

    store: Store
    late: list[tuple[str, bytes]]
    kind: type[DataLink | FenceLink]
    holes: frozenset[int] = frozenset()
    gate: asyncio.Event | None = None
    doomed: Callable[[str], bool] | None = None  # The keys of an aborted deletion.
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
    """A log, and the processes that have used it."""

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
        """Create the log."""
        await self.logs().create(NAME)

    async def write(self, count: int, *, alpha: int = 4, lanes: int = 1) -> None:
        """Let a new writer append batches of one or two records each, and close."""
        async with await self._open(self.store, alpha=alpha, lanes=lanes) as log:
            for _ in range(count):
                await log.append(self._bodies())

    async def go_on(self, count: int) -> None:
        """Let the writer of the last call append; a new writer replaces it if it is fenced."""
        for _ in range(count):
            self.writer = self.writer or await self._open(self.store)
            try:
                await self.writer.append(self._bodies())
            except Fenced:
                self.writer = None

    async def die_writing(self, landed: Sequence[bool], *, alpha: int = 4) -> None:
        """Let a new writer send batches concurrently and die; only some of them arrive."""
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
        """Let an opener send fences and die; only some of them arrive."""
        holes = frozenset(n for n in range(64) if not landed[n % len(landed)])
        link = Link(self.store, self.late, FenceLink, holes=holes)
        log = await self._open(link)
        await killed(log.append(self._bodies()), lambda: False)

    async def sleep_opening(self) -> None:
        """Let an opener run up to its first fence, and suspend it there."""
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
        """Resume the opener that was suspended first, and wait for its end."""
        if self.sleepers:
            gate, task = self.sleepers.pop(0)
            gate.set()
            await task

    async def bury(self) -> None:
        """Kill all suspended openers."""
        self.sleepers.clear()
        await kill(asyncio.all_tasks() - {asyncio.current_task()})

    async def land(self, number: int) -> None:
        """Let one lost put of a dead process arrive."""
        if self.late:
            key, data = self.late.pop(number % len(self.late))
            with suppress(ObjectExists):
                await self.store.put(key, data, if_absent=True)

    async def pin(self, name: str, share: float) -> None:
        """Pin up to three records at a share of the log's length."""
        log = await self.logs().open(NAME)
        bounds = await log.bounds()
        start = bounds.oldest + int(share * (bounds.next - bounds.oldest))
        await survive(log.create_pin(name, start=start, limit=min(start + 3, bounds.next)))

    async def release(self, name: str) -> None:
        """Release a pin."""
        await survive((await self.logs().open(NAME)).drop_pin(name))

    async def fork(self, name: str) -> None:
        """Fork the log."""
        await survive(self.logs().fork(NAME, name))

    async def collect(self, share: float, *, cut: int | None = None) -> None:
        """Collect up to a share of the log; with ``cut``, die during the deletion."""
        log = await self.logs().open(NAME)
        bounds = await log.bounds()
        position = bounds.oldest + int(share * (bounds.next - bounds.oldest))
        if (await log.cursors()).cursors:
            witness = await log.load_cursor("c")
            await survive(log.move_cursor(witness, max(position, witness.position)))
        else:
            await survive(log.create_cursor("c", position))
        link = Link(self.store, self.late, FenceLink)
        if cut is not None:
            link.doomed = lambda key: sum(key.encode()) % 3 != cut
        collector = await self.logs(link).open(NAME)
        await killed(survive(collector.collect(keep=ALL, grace_us=0)), lambda: False)

    async def sweep(self) -> None:
        """Delete the objects that no manifest names."""
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
    """Let all tasks run until a condition holds, or all of them wait."""
    for _ in range(TURNS_MAX):
        if is_there():
            return
        await asyncio.sleep(0)


async def killed(work: Coroutine[Any, Any, object], is_time: Callable[[], bool]) -> None:
    """Do work in a process that is killed at a condition, or once it makes no progress."""
    before = asyncio.all_tasks()
    task = asyncio.create_task(work)
    await turns(lambda: task.done() or is_time())
    await turns(task.done)
    await kill((asyncio.all_tasks() | {task}) - before)


async def kill(tasks: Collection[asyncio.Task[Any] | None]) -> None:
    """Cancel tasks, and wait for their end."""
    found = [task for task in tasks if task is not None]
    for task in found:
        task.cancel()
    await asyncio.gather(*found, return_exceptions=True)


async def survive(work: Awaitable[object]) -> None:
    """Do work that may raise a TidelogError."""
    with suppress(TidelogError):
        await work
