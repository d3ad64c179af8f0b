"""Writing a wal3 log: appends are gathered into batches, and acknowledged when they are durable.

One batch is under way at a time; what is appended meanwhile makes the next. An idle log does not
wait. A write that others wait for runs in a task of the log, not of its caller: to cancel an append
is to stop waiting for it.
Source: wal3, "Write Path"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from tidelog.errors import BusyError, HandleError, TidelogError, UsageError
from tidelog.wal.committer import Committer

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """When a batch leaves: as soon as the one before is durable and it is full, or time has passed.

    Units: ``batch_bytes`` of bodies fill a batch; ``interval_us`` is the least time between the
        beginnings of two that are not full; more than ``pending_bytes`` make appends wait.
    """

    batch_bytes: int = 8 * 1024 * 1024
    interval_us: int = 10_000
    pending_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class _Append:
    """Records that wait, and who waits for their position."""

    bodies: pa.BinaryArray
    size: int
    done: asyncio.Future[int]


@dataclass(slots=True, kw_only=True)
class Wal3Writer:
    """Appends to one log. Several writers of a log, in any processes, contend and take turns."""

    committer: Committer
    batching: Batching = field(default_factory=Batching)
    _queue: deque[_Append] = field(default_factory=deque)
    _pending_bytes: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _task: asyncio.Task[None] | None = None
    _is_closing: bool = False

    async def append(self, records: Sequence[bytes], *, wait: bool = True) -> int:
        """Append records; give the position of the first once all are durable.

        The records of one call stand together, in their order.

        Raises:
            UsageError: there are none, or one is over 64 MiB. BusyError: ``wait`` is False, and
            too much is waiting already. HandleError: the writer is closed. Otherwise see
            `Committer.commit`.
        """
        return await self.append_arrow(pa.array(records, pa.binary()), wait=wait)

    async def append_arrow(self, bodies: pa.BinaryArray, *, wait: bool = True) -> int:
        """Append the values of an array, none of which is null; see `append`."""
        _check(bodies)
        size = bodies.nbytes
        async with self._changed:
            if not wait and self._is_full(size):
                raise BusyError("too much is waiting to be appended: back off, then retry")
            await self._changed.wait_for(lambda: self._is_closing or not self._is_full(size))
            if self._is_closing:
                raise HandleError("the log's writer is closed: open another")
            item = _Append(bodies, size, asyncio.get_running_loop().create_future())
            self._queue.append(item)
            self._pending_bytes += size
            if self._task is None:
                self._task = asyncio.create_task(self._run(), name="wal writer")
                self._task.add_done_callback(_told_to_those_who_wait)
            self._changed.notify_all()
        return await asyncio.shield(item.done)

    async def close(self) -> None:
        """Wait until all that was appended has been answered, and refuse more."""
        async with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._task is not None:
            await self._task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _is_full(self, size: int) -> bool:
        # One that is larger than the limit goes alone.
        return bool(self._queue) and self._pending_bytes + size > self.batching.pending_bytes

    async def _run(self) -> None:
        try:
            await self._serve()
        except BaseException as error:
            # Nobody will answer those who wait, be it for an answer or for room.
            async with self._changed:
                self._is_closing = True
                for item in self._queue:
                    _fail(item, error)
                self._changed.notify_all()
            raise

    async def _serve(self) -> None:
        """Send batch after batch, until closed and nothing is left."""
        clock = self.committer.clock
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._is_closing or bool(self._queue))
                if not self._queue:
                    return
            begun_us = clock.monotonic_us()
            batch = self._take()
            await self._send(batch)
            async with self._changed:
                self._pending_bytes -= sum(item.size for item in batch)
                self._changed.notify_all()
            if self._pending_bytes < self.batching.batch_bytes and not self._is_closing:
                left = begun_us + self.batching.interval_us - clock.monotonic_us()
                await clock.sleep(max(0, left))

    def _take(self) -> list[_Append]:
        batch = [self._queue.popleft()]
        size = batch[0].size
        while self._queue and size + self._queue[0].size <= self.batching.batch_bytes:
            batch.append(self._queue.popleft())
            size += batch[-1].size
        return batch

    async def _send(self, batch: Sequence[_Append]) -> None:
        try:
            bodies: Any = pa.concat_arrays([item.bodies for item in batch])
            position = await self.committer.commit(bodies)
        except TidelogError as error:
            for item in batch:
                _fail(item, error)
        except BaseException as error:
            for item in batch:
                _fail(item, error)
            raise
        else:
            for item in batch:
                if not item.done.done():
                    item.done.set_result(position)
                position += len(item.bodies)


def _told_to_those_who_wait(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _fail(item: _Append, error: BaseException) -> None:
    if not item.done.done():
        item.done.set_exception(error)
        item.done.exception()  # Whoever stopped waiting is not to be told of it at the end.


def _check(bodies: pa.BinaryArray) -> None:
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
