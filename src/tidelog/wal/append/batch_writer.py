"""What writers of both protocols share: a queue, and one task of the log's own that serves it."""

from __future__ import annotations

import abc
import asyncio
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidelog.clock import Clock
from tidelog.wal.append.closing import Closing
from tidelog.wal.append.queue import Batching, Queue
from tidelog.wal.append.token_bucket import Bucket, full, spend, wait_us
from tidelog.wal.format.streams import Control

TOKEN_LOOK_US: Final = 100_000  # How often who waits for a token looks what else became of it.


@dataclass(slots=True, kw_only=True)
class BatchWriter(Closing):
    """A writer whose appends are gathered into batches; its task begins with the first."""

    batching: Batching = field(default_factory=Batching)
    _queue: Queue = field(init=False)
    _task: asyncio.Task[None] | None = None
    _bucket: Bucket | None = None

    def __post_init__(self) -> None:
        self._queue = Queue(batching=self.batching)

    async def close(self) -> None:
        """Wait until all that was appended has been answered, and refuse more."""
        await self._queue.close()
        if self._task is not None:
            await self._task

    @abc.abstractmethod
    async def _serve(self) -> None:
        """Send batch after batch, until closed and nothing is left."""

    async def _submit(
        self,
        bodies: pa.BinaryArray,
        *,
        timestamp_us: int | None = None,
        stream: bytes | None = None,
        control: Control | None = None,
        wait: bool = True,
    ) -> int:
        """Queue records, and wait for the position of the first; see `Queue.add`."""
        work = await self._queue.add(
            bodies, timestamp_us=timestamp_us, stream=stream, control=control, wait=wait
        )
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="wal writer")
            self._task.add_done_callback(_told_to_those_who_wait)
        return await asyncio.shield(work.done)

    async def _run(self) -> None:
        first: BaseException
        try:
            await self._serve()
            return
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
        except BaseException as error:
            await self._queue.abandon(error)
            raise
        await self._queue.abandon(first)
        raise first

    async def _work_waits(self) -> bool:
        """Wait for work; False once closed, with nothing left."""
        queue = self._queue
        async with queue.changed:
            await queue.changed.wait_for(lambda: queue.is_closing or len(queue) > 0)
        return len(queue) > 0

    async def _has_token(self, clock: Clock) -> bool:
        """Take leave for a put; False, after a while, if there is none: look around, ask again."""
        rate = self.batching.puts_per_second
        if rate is None:
            return True
        now_us = clock.monotonic_us()
        bucket = self._bucket or full(rate, now_us)
        if left_us := wait_us(bucket, now_us):
            await clock.sleep(min(left_us, TOKEN_LOOK_US))
            return False
        self._bucket = spend(bucket, now_us)
        return True

    async def _pace(self, begun_us: int, clock: Clock) -> None:
        """Wait out the least time between two batches, unless the next is full, or the last."""
        if not self._queue.fills_a_batch and not self._queue.is_closing:
            left = begun_us + self.batching.interval_us - clock.monotonic_us()
            await clock.sleep(max(0, left))


def _told_to_those_who_wait(task: asyncio.Task[None]) -> None:
    """Take note of a task's error, which its callers hear of from their futures."""
    if not task.cancelled():
        task.exception()
