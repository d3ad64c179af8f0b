"""Appends that wait to be written, and how they are gathered into batches.

A write that others wait for runs in a task of the log, not of its caller: to cancel an append is to
stop waiting for it. What waits is bounded in bytes.
Source: wal3, "Dropped Async Tasks"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidelog.errors import BusyError, HandleError, UsageError
from tidelog.wal.format.streams import Control

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
SHARE_BYTES: Final = 1024 * 1024  # Below that, a batch more costs more than it gains.


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """When a batch leaves: as soon as there is room and it is full, or time has passed.

    Units: ``batch_bytes`` of bodies fill a batch; ``interval_us`` is the least time between the
        beginnings of two that are not full; more than ``pending_bytes`` make appends wait. At most
        ``puts_per_second`` batches leave on average, and a second's worth of them at once: fewer
        cost less, and make appends wait longer.
    """

    batch_bytes: int = 8 * 1024 * 1024
    interval_us: int = 10_000
    pending_bytes: int = 64 * 1024 * 1024
    puts_per_second: float | None = None

    def __post_init__(self) -> None:
        rate = self.puts_per_second
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UsageError("puts_per_second is a number over 0", puts_per_second=rate)


@dataclass(slots=True, eq=False)
class Work:
    """Records that wait, and who waits for their position.

    All are in one stream, or in none; ``control`` is what the one record says that is a control
    record.
    """

    bodies: pa.BinaryArray
    size: int
    timestamp_us: int | None
    done: asyncio.Future[int]
    stream: bytes | None = None
    control: Control | None = None


@dataclass(slots=True, kw_only=True)
class Queue:
    """What was appended and is not settled yet, in the order in which it came."""

    batching: Batching
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    is_closing: bool = False
    ended_by: BaseException | None = None
    _waiting: deque[Work] = field(default_factory=deque)
    _unsettled: set[Work] = field(default_factory=set)
    _bytes: int = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def fills_a_batch(self) -> bool:
        return self._bytes >= self.batching.batch_bytes

    async def add(
        self,
        bodies: pa.BinaryArray,
        *,
        timestamp_us: int | None = None,
        stream: bytes | None = None,
        control: Control | None = None,
        wait: bool = True,
    ) -> Work:
        """Add records, once there is room.

        Raises:
            UsageError: there are none, or one is over 64 MiB. BusyError: ``wait`` is False, and
            there is no room. HandleError: the queue is closed. Whatever ended it, if something did.
        """
        check_bodies(bodies)
        size = bodies.nbytes
        async with self.changed:
            if not wait and self._is_full(size):
                raise BusyError("too much is waiting to be appended: back off, then retry")
            await self.changed.wait_for(lambda: self.is_closing or not self._is_full(size))
            if self.is_closing:
                raise self.ended_by or HandleError("the log's writer is closed: open another")
            done = asyncio.get_running_loop().create_future()
            work = Work(bodies, size, timestamp_us, done, stream, control)
            self._waiting.append(work)
            self._unsettled.add(work)
            self._bytes += size
            self.changed.notify_all()
        return work

    def take(self, *, shares: int = 1) -> list[Work]:
        """Take what makes the next batch: at least one, and more while it is not full.

        Where several batches can be under way at once, one takes no more than its share of all that
        is not settled: while one is sent, the next is encoded already.
        """
        most = min(self.batching.batch_bytes, max(SHARE_BYTES, self._bytes // shares))
        batch = [self._waiting.popleft()]
        size = batch[0].size
        while self._waiting and size + self._waiting[0].size <= most:
            batch.append(self._waiting.popleft())
            size += batch[-1].size
        return batch

    def give_back(self, batch: Sequence[Work]) -> None:
        """Put work that was taken, and was never written, before all that waits."""
        self._waiting.extendleft(reversed(batch))

    async def settle(self, batch: Sequence[Work], position: int) -> None:
        """Tell that a batch is durable, from a position on."""
        for work in batch:
            if not work.done.done():
                work.done.set_result(position)
            position += len(work.bodies)
        await self._let_go(batch)

    async def fail(self, batch: Iterable[Work], error: BaseException) -> None:
        """Tell that a batch came to nothing, or that it is not known."""
        failed = list(batch)
        for work in failed:
            if not work.done.done():
                work.done.set_exception(error)
                work.done.exception()  # Whoever stopped waiting is not to be told at the end.
        await self._let_go(failed)

    async def close(self) -> None:
        """Refuse more; what is there stays."""
        async with self.changed:
            self.is_closing = True
            self.changed.notify_all()

    async def abandon(self, error: BaseException) -> None:
        """Refuse more, and tell all that wait, be it for an answer or for room."""
        self.ended_by = self.ended_by or error
        await self.close()
        self._waiting.clear()
        await self.fail(self._unsettled, error)

    def _is_full(self, size: int) -> bool:
        # One that is larger than the limit goes alone.
        return bool(self._waiting) and self._bytes + size > self.batching.pending_bytes

    async def _let_go(self, batch: Iterable[Work]) -> None:
        async with self.changed:
            for work in batch:
                if work in self._unsettled:
                    self._unsettled.remove(work)
                    self._bytes -= work.size
            self.changed.notify_all()


def bodies_of(batch: Sequence[Work]) -> pa.BinaryArray:
    """Return the bodies of a batch, one after the other."""
    joined: pa.BinaryArray = pa.concat_arrays([work.bodies for work in batch])
    return joined


def check_bodies(bodies: pa.BinaryArray) -> None:
    """Refuse what is no append.

    Raises:
        UsageError: there are no records, one is null, or one is over 64 MiB.
    """
    if not len(bodies):
        raise UsageError("an append has at least one record")
    if bodies.null_count:
        raise UsageError("a record is bytes, never null")
    if bodies.nbytes > RECORD_BYTES_MAX:
        largest = max(len(body.as_buffer()) for body in bodies)
        if largest > RECORD_BYTES_MAX:
            raise UsageError(
                f"a record is over {RECORD_BYTES_MAX} bytes: keep large values elsewhere and "
                "name them",
                size_bytes=largest,
            )
