"""Named writers: one interval after the other, each exactly once, whatever happens to the answers.

A name's newest write is remembered in the state until the writer is dropped, so that who comes back
under the name knows what landed. Progress without data, and what is given up of a hold, may wait
for a write that is made anyway, or for the next beat: requests need not follow the frontiers.
Source: persist, "Append"; design page 4, "Writing".
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tidelog.errors import HandleError, Outcome, TidelogError, UpperMismatch, UsageError
from tidelog.frontier import Frontier, join
from tidelog.persist.handle.appending import AppendOptions, Updates, compare_and_append
from tidelog.persist.handle.asked import check_owner
from tidelog.persist.handle.timeout import in_time
from tidelog.persist.states.transition import Verdict, check_not_finalized

if TYPE_CHECKING:
    from tidelog.persist.handle.shard import Shard

Attempt = tuple[bool, Frontier]  # whether with updates, and up to where


@dataclass(slots=True, kw_only=True)
class Appender:
    """One named writer of a shard; close it, so that nothing waits any more.

    ``upper`` is what it has brought its interval to; what is durable may be behind it by progress
    without data. Units: ``heartbeat_us`` microseconds; 0 lets nothing wait.
    """

    shard: Shard
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
            UpperMismatch: another call wrote these times. UsageError: this writer wrote them: a
                writer that begins again goes on from ``upper``; or the shard was finalized.
                HandleError: it was closed. And the errors of `Shard.compare_and_append`: after
                UNKNOWN, repeat the call.
        """
        until = Frontier.of(upper)
        self._check_open()
        check_not_finalized(self.shard.state)
        is_past = not self.upper < until and (updates is not None or until < self.upper)
        if is_past and self._unsure != (updates is not None, until):
            raise UsageError(
                f"the writer {self.name!r} is past that already: append the updates after its "
                "upper",
                upper=self.upper,
                asked=until,
            )
        await self._write(updates, until)

    async def advance(self, upper: Frontier | int) -> None:
        """Say that nothing more comes before ``upper``: now, or with the next beat or append.

        Raises:
            UsageError: it is before what was said. What the last beat raised.
        """
        reached = Frontier.of(upper)
        self._check_open()
        if not self.upper <= reached:
            raise UsageError("an upper never goes back", upper=self.upper, asked=reached)
        self.upper = reached
        await self._soon()

    async def downgrade_since(self, hold: str, since: Frontier | int | None) -> None:
        """Move a hold up: now, or with the next beat or append.

        Raises:
            UsageError: it would be past upper. What the last beat raised.
        """
        at = Frontier.of(since)
        check_owner(hold, "hold")
        self._check_open()
        self._holds[hold] = join([at, self._holds.get(hold, at)])
        await self._soon()

    async def flush(self) -> None:
        """Have all that was said be durable."""
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.wait({self._beat})
            self._beat = None
        if self._waits:
            await self._write(None, self.upper)

    async def close(self) -> None:
        """Have all that was said be durable; the name stays known until `Shard.drop_writer`."""
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
            raise HandleError("the appender was closed: open it again", name=self.name)

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
        # An append without an answer is the caller's to repeat: what became of it is his to learn.
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
                # Times between what is durable and what was said have no updates: we said so.
                work = compare_and_append(self.shard, updates, self._durable, upper, options)
                done = await in_time(self.shard.clock, work, self.shard.timeout_us, writes=True)
                if done.verdict is Verdict.MISMATCH:
                    check_not_finalized(self.shard.state)
                    raise UpperMismatch(
                        "another writer, or another call of this one, has written these times: "
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
        """Learn whether a write without an answer landed, before another one is made."""
        told = (await self.shard.refresh()).writers.get(self.name)
        upper = last[1]
        if told is not None and (self.number, upper) == (told.number, Frontier.of(told.upper)):
            self._landed(upper)
            return
        # It may land yet, and would then answer for another write of its number.
        self.number += 1

    def _landed(self, upper: Frontier) -> None:
        self._unsure = None
        self.number += 1
        self._durable = upper
        self.upper = join([self.upper, upper])
        self._beaten_us = self.shard.clock.monotonic_us()


async def open_appender(shard: Shard, name: str, *, heartbeat_us: int) -> Appender:
    """Return the writer of a name as the newest state knows it."""
    state = await shard.refresh()
    last = state.writers.get(name)
    return Appender(
        shard=shard,
        name=name,
        number=0 if last is None else last.number + 1,
        upper=state.upper_frontier,
        heartbeat_us=heartbeat_us,
    )
