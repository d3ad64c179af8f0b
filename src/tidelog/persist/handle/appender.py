"""Named writers: they append one interval after the other, each exactly once.

The state remembers the newest write of a name until the writer is dropped. A writer that opens the
name again, after a crash or a lost answer, therefore knows what landed. An upper without data, and
a hold's new since, may wait for the next append or heartbeat, so frontiers can move without a
request each.
Source: persist, "Append"; design page 4, "Writing".
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidelog.core.clock import in_time
from tidelog.core.frontier import Frontier, join
from tidelog.errors import HandleError, Outcome, TidelogError, UpperMismatch, UsageError
from tidelog.persist.handle.appending import AppendOptions, Updates, compare_and_append
from tidelog.persist.handle.argument_checks import check_owner
from tidelog.persist.states.transition import Verdict, check_not_dropped

if TYPE_CHECKING:
    from tidelog.persist.handle.port import ShardHandle

Attempt = tuple[bool, Frontier]  # Whether the write has updates, and its upper.


@dataclass(slots=True, kw_only=True)
class Appender:
    """One named writer of a shard; close it to write the waiting progress.

    ``upper`` is the end of the written interval; the stored upper may be behind it by progress
    without data. Units: ``heartbeat_us`` in microseconds; with 0, progress never waits.
    """

    shard: ShardHandle
    name: str
    number: int
    upper: Frontier
    heartbeat_us: int = 0
    _durable: Frontier = field(init=False)
    _holds: dict[str, Frontier] = field(init=False, default_factory=dict)
    _beaten_us: int = field(init=False, default=-(2**62))
    _beat: asyncio.Task[None] | None = field(init=False, default=None)
    _is_closed: bool = field(init=False, default=False)
    _unsure: Attempt | None = field(init=False, default=None)
    _lock: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._durable = self.upper

    async def append(self, updates: Updates, upper: Frontier | int | None) -> None:
        """Append updates at times in ``[self.upper, upper)``, and all progress before them.

        Raises:
            UpperMismatch: another call wrote these times. UsageError: this writer wrote them (a new
                writer of the name continues from ``upper``), or the shard was dropped.
                HandleError: the writer was closed. Also the errors of `Shard.compare_and_append`:
                after UNKNOWN, repeat the call.
        """
        until = Frontier.of(upper)
        self._check_open()
        check_not_dropped(self.shard.state)
        is_past = not self.upper < until and (updates is not None or until < self.upper)
        if is_past and self._unsure != (updates is not None, until):
            raise UsageError(
                f"the writer {self.name!r} is already past that upper: append the updates at its "
                "upper or later",
                upper=self.upper,
                asked=until,
            )
        await self._write(updates, until)

    async def advance(self, upper: Frontier | int) -> None:
        """Advance the upper without updates: now, or with the next heartbeat or append.

        Raises:
            UsageError: ``upper`` is below this writer's upper. Also the errors of the last
                heartbeat.
        """
        reached = Frontier.of(upper)
        self._check_open()
        if not self.upper <= reached:
            raise UsageError(
                "an upper cannot move back: pass an upper that is at least the present one",
                upper=self.upper,
                asked=reached,
            )
        self.upper = reached
        await self._soon()

    async def move_hold(self, hold: str, since: Frontier | int | None) -> None:
        """Advance a hold: now, or with the next heartbeat or append.

        Raises:
            UsageError: the hold would be past upper. Also the errors of the last heartbeat.
        """
        at = Frontier.of(since)
        check_owner(hold, "hold")
        self._check_open()
        self._holds[hold] = join([at, self._holds.get(hold, at)])
        await self._soon()

    async def flush(self) -> None:
        """Write all waiting progress."""
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.wait({self._beat})
            self._beat = None
        if self._waits:
            await self._write(None, self.upper)

    async def close(self) -> None:
        """Write all waiting progress; the name is remembered until `Shard.drop_writer`."""
        await self.flush()
        self._is_closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()
        elif self._beat is not None:
            self._beat.cancel()

    def _check_open(self) -> None:
        if self._is_closed:
            raise HandleError("the appender is closed: open another", name=self.name)

    @property
    def _waits(self) -> bool:
        return self._durable < self.upper or bool(self._holds)

    async def _soon(self) -> None:
        if self._beat is not None and self._beat.done():
            self._beat.result()
            self._beat = None
        wait_us = self._beaten_us + self.heartbeat_us - self.shard.clock.monotonic_us()
        if wait_us <= 0:
            await self.flush()
        elif self._beat is None:
            self._beat = asyncio.create_task(self._later(wait_us), name=f"beat of {self.name}")

    async def _later(self, wait_us: int) -> None:
        await self.shard.clock.sleep(wait_us)
        # The caller must repeat an append without an answer, and learns its outcome then. A
        # heartbeat must not resolve it first.
        if self._waits and not (self._unsure is not None and self._unsure[0]):
            await self._write(None, self.upper)

    async def _write(self, updates: Updates, upper: Frontier) -> None:
        async with self._lock:
            attempt = (updates is not None, upper)
            if self._unsure is not None and self._unsure != attempt:
                await self._settle(self._unsure)
            holds = dict(self._holds)
            options = AppendOptions(token=(self.name, self.number), named=True, holds=holds)
            self._unsure = attempt
            try:
                # No updates come between the stored upper and ``self.upper``, so the write covers
                # these times.
                work = compare_and_append(self.shard, updates, self._durable, upper, options)
                done = await in_time(self.shard.clock, work, self.shard.timeout_us, writes=True)
                if done.verdict is Verdict.MISMATCH:
                    check_not_dropped(self.shard.state)
                    raise UpperMismatch(
                        "another writer, or another call of this one, wrote these times first: "
                        "open the appender again, and append from its upper",
                        upper=done.upper,
                        expected=self._durable,
                    )
            except TidelogError as error:
                if error.outcome is Outcome.NOT_APPLIED:
                    self._unsure = None
                raise
            self._landed(upper)
            self._holds = {n: at for n, at in self._holds.items() if holds.get(n) != at}

    async def _settle(self, last: Attempt) -> None:
        """Find out whether a write without an answer landed, before another write."""
        told = (await self.shard.refresh()).writers.get(self.name)
        upper = last[1]
        if told is not None and (self.number, upper) == (told.number, Frontier.of(told.upper)):
            self._landed(upper)
            return
        # The write may still land. A later write of the same number would then count as committed,
        # so skip the number.
        self.number += 1

    def _landed(self, upper: Frontier) -> None:
        self._unsure = None
        self.number += 1
        self._durable = upper
        self.upper = join([self.upper, upper])
        self._beaten_us = self.shard.clock.monotonic_us()


async def open_appender(shard: ShardHandle, name: str, *, heartbeat_us: int) -> Appender:
    """Return the writer of a name, in the newest state of that name."""
    state = await shard.refresh()
    last = state.writers.get(name)
    return Appender(
        shard=shard,
        name=name,
        number=0 if last is None else last.number + 1,
        upper=state.upper_frontier,
        heartbeat_us=heartbeat_us,
    )
