"""Writing a wal3 log: appends are gathered into batches, and acknowledged when they are durable.

One batch is under way at a time; what is appended meanwhile makes the next. An idle log does not
wait.
Source: wal3, "Write Path"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyarrow as pa

from tidelog.errors import TidelogError
from tidelog.wal.batching import Batching, Queue, Work, bodies_of, told_to_those_who_wait
from tidelog.wal.committer import Committer


@dataclass(slots=True, kw_only=True)
class Wal3Writer:
    """Appends to one log. Several writers of a log, in any processes, contend and take turns."""

    committer: Committer
    batching: Batching = field(default_factory=Batching)
    _queue: Queue = field(init=False)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._queue = Queue(batching=self.batching)

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
        work = await self._queue.add(bodies, wait=wait)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="wal writer")
            self._task.add_done_callback(told_to_those_who_wait)
        return await asyncio.shield(work.done)

    async def close(self) -> None:
        """Wait until all that was appended has been answered, and refuse more."""
        await self._queue.close()
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

    async def _run(self) -> None:
        try:
            await self._serve()
        except BaseException as error:
            # Nobody will answer those who wait, be it for an answer or for room.
            await self._queue.abandon(error)
            raise

    async def _serve(self) -> None:
        """Send batch after batch, until closed and nothing is left."""
        clock, queue = self.committer.clock, self._queue
        while True:
            async with queue.changed:
                await queue.changed.wait_for(lambda: queue.is_closing or len(queue) > 0)
                if not queue:
                    return
            begun_us = clock.monotonic_us()
            await self._send(queue.take())
            if not queue.fills_a_batch and not queue.is_closing:
                left = begun_us + self.batching.interval_us - clock.monotonic_us()
                await clock.sleep(max(0, left))

    async def _send(self, batch: Sequence[Work]) -> None:
        try:
            position = await self.committer.commit(bodies_of(batch))
        except TidelogError as error:
            await self._queue.fail(batch, error)
        except BaseException as error:
            await self._queue.fail(batch, error)
            raise
        else:
            await self._queue.settle(batch, position)
