"""Writing a wal3 log: appends are gathered into batches, and acknowledged when they are durable.

While the manifest that names a batch is being written, the next batch is stored already; what is
appended meanwhile makes the one after that. An idle log does not wait.
Source: wal3, "Write Path"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pyarrow as pa

from tidelog.errors import ContentionError, OutcomeUnknown, TidelogError
from tidelog.wal.batching import Batching, Queue, Work, bodies_of, told_to_those_who_wait
from tidelog.wal.committer import Committer
from tidelog.wal.manifest import Fragment


@dataclass(frozen=True, slots=True)
class _Publishing:
    """A fragment that is being brought into the log."""

    fragment: Fragment
    task: asyncio.Task[bool]


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
            `Committer.store_next` and `Committer.publish`.
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
        first: BaseException
        try:
            async with asyncio.TaskGroup() as group:
                await self._serve(group)
            return
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
        except BaseException as error:
            await self._queue.abandon(error)
            raise
        await self._queue.abandon(first)
        raise first

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        """Send batch after batch, until closed and nothing is left."""
        clock, queue = self.committer.clock, self._queue
        before: _Publishing | None = None
        while True:
            async with queue.changed:
                await queue.changed.wait_for(lambda: queue.is_closing or len(queue) > 0)
            if not queue:
                return
            begun_us = clock.monotonic_us()
            if before is not None and before.task.done() and not before.task.result():
                before = None  # Where the log goes on is to be read again.
            batch = queue.take()
            fragment = await self._store(batch, before)
            if before is not None:
                await before.task
            before = None
            if fragment is not None:
                before = _Publishing(fragment, group.create_task(self._publish(batch, fragment)))
            if not queue.fills_a_batch and not queue.is_closing:
                left = begun_us + self.batching.interval_us - clock.monotonic_us()
                await clock.sleep(max(0, left))

    async def _store(self, batch: Sequence[Work], before: _Publishing | None) -> Fragment | None:
        """Store a batch, while the one before is being published; None if it came to nothing."""
        try:
            bodies = bodies_of(batch)
            if before is not None:
                fragment = await self.committer.store_after(bodies, before.fragment)
                is_in = await before.task
                if fragment is not None and not is_in:
                    raise OutcomeUnknown(
                        "the batch before it did not get into the log, or it is not known: whether "
                        "this one did shows once the log is opened again",
                        path=fragment.path,
                    )
                if fragment is not None:
                    return fragment
            return await self.committer.store_next(bodies)
        except TidelogError as error:
            await self._queue.fail(batch, error)
            return None

    async def _publish(self, batch: Sequence[Work], fragment: Fragment) -> bool:
        """Bring a stored batch into the log, and tell; say whether it is there."""
        try:
            is_in = await self.committer.publish(fragment)
        except TidelogError as error:
            await self._queue.fail(batch, error)
            return False
        if is_in:
            await self._queue.settle(batch, fragment.start)
        else:
            # This writer slept while others wrote, and its number was collected.
            lost = ContentionError("the log went on without this writer: append again")
            await self._queue.fail(batch, lost)
        return is_in
