"""The common part of both protocols' writers: a queue, and one task of the log that serves it.

Each append gets an answer. If the store refuses everything or does not answer, appends fail within
`Batching.patience_us`, and closing ends. Records that were sent without an answer by then have an
unknown outcome.
"""

from __future__ import annotations

import abc
import asyncio
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidelog.errors import HandleError, LocationError, Outcome
from tidelog.wal.append.append_errors import closed, copy_of, no_answer
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.bodies import array_of
from tidelog.wal.append.closing import ClosingHandle
from tidelog.wal.append.queue import LOOKS, Queue
from tidelog.wal.append.work import Work
from tidelog.wal.format.streams import check_stream
from tidelog.wal.read.limits import check_time_us

FAREWELL_S: Final = 1.0  # How long a cancelled task may take to end.


@dataclass(slots=True, kw_only=True)
class BatchWriter(ClosingHandle):
    """A writer that gathers appends into batches. Its task starts with the first append."""

    batching: Batching = field(default_factory=Batching)
    _queue: Queue = field(init=False)
    _task: asyncio.Task[None] | None = None
    _closing: asyncio.Task[None] | None = None
    _look_due: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._queue = Queue(batching=self.batching)

    async def close(self) -> None:
        """Wait until every append has its answer, and refuse further ones.

        The call ends at the latest when the store has acknowledged nothing for
        `Batching.patience_us`. Cancelling it only stops the wait: pending appends are still
        written.

        Raises:
            LocationError: the store acknowledged nothing for so long, or an append failed whose
            caller had stopped waiting; UNKNOWN if a sent append has no answer.
            HandleError: another event loop writes the log.
            The error that ended the writer, unless another writer took the log over.
        """
        self._refuse_other_loop()
        self._queue.close()
        if self._task is None:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(self._end(self._task), name="wal writer closing")
            self._closing.add_done_callback(_mark_retrieved)
        await asyncio.wait({self._closing})
        if (error := self._closing.exception()) is not None:
            raise copy_of(error) from error.__cause__

    def end_with(self, handle: object) -> None:
        """End the task as `close` does, once Python's garbage collector frees ``handle``."""
        weakref.finalize(handle, self._let_go).atexit = False

    def _let_go(self) -> None:
        # This runs in any thread, and maybe after the loop was closed.
        if self._task is not None:
            with suppress(RuntimeError):
                self._task.get_loop().call_soon_threadsafe(self._queue.close)

    @abc.abstractmethod
    async def _serve(self) -> None:
        """Send batch after batch, until the writer is closed and the queue is empty."""

    async def append(
        self,
        records: Sequence[bytes],
        *,
        stream: bytes | None = None,
        key: bytes | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append records; see `append` of `tidelog.wal.log`.

        The log refuses the options that its protocol lacks.
        """
        return await self.append_arrow(
            array_of(records), stream=stream, key=key, timestamp_us=timestamp_us, wait=wait
        )

    async def append_arrow(
        self,
        bodies: pa.BinaryArray,
        *,
        stream: bytes | None = None,
        key: bytes | pa.BinaryArray | None = None,
        timestamp_us: int | None = None,
        wait: bool = True,
    ) -> int:
        """Append the values of an array without nulls; see `append`."""
        if timestamp_us is not None:
            check_time_us(timestamp_us)
        if stream is not None:
            check_stream(stream)
        self._refuse_other_loop()
        work = self._queue.add(
            bodies, timestamp_us=timestamp_us, stream=stream, keys=key, wait=wait
        )
        return await self._answer(work, work.done)

    async def _answer(self, work: Work, waiter: asyncio.Future[int]) -> int:
        """Start the task if needed, and wait for the answer to an append."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="wal writer")
            self._task.add_done_callback(_mark_retrieved)
        if self._look_due is None:
            self._look_later()
        try:
            return await waiter
        except asyncio.CancelledError:
            self._queue.withdraw(work)
            raise

    async def flush(self) -> int:
        """Wait until all records placed so far are durable; return `durable_position`.

        Raises:
            The error of the first append since the last flush that failed or has an unknown
            outcome, as `append` would raise it.
            HandleError: another event loop writes the log.
        """
        self._refuse_other_loop()
        waiting = self._queue.placed()
        if waiting:
            await asyncio.wait(waiting)
        loss = self._queue.take_loss()
        failed = (one.exception() for one in waiting if not one.cancelled())
        # If two flushes run concurrently, the first takes the loss. The second finds it in its own
        # futures.
        loss = loss or next(filter(None, failed), None)
        if loss is not None:
            raise copy_of(loss)
        return self.durable_position()

    def durable_position(self) -> int:
        """Return the position below which all records are durable, as far as this writer knows."""
        return self._queue.durable.position

    def on_durable(self, told: Callable[[int], object]) -> Callable[[], None]:
        """Call ``told`` with each new `durable_position`; return a function that ends this."""
        return self._queue.durable.subscribe(told)

    def _refuse_other_loop(self) -> None:
        """Refuse a call from an event loop other than the task's, whose waiters would never wake.

        Raises:
            HandleError: the call is from another loop.
        """
        task = self._task
        if task is None or task.done():
            return
        if task.get_loop() is not asyncio.get_running_loop():
            raise HandleError(
                "this handle belongs to another event loop: open the log again in this loop, "
                "which fences that handle; threads can share a handle of 'import tidelog'"
            )

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._look_due = loop.call_later(self._look_s, self._look)

    def _look(self) -> None:
        self._look_due = None
        self._queue.look()
        if self._queue.is_waited_for:
            self._look_later()

    @property
    def _look_s(self) -> float:
        return self.batching.patience_us / 1e6 / LOOKS

    async def _run(self) -> None:
        first: BaseException
        try:
            await self._serve()
            return
        except BaseExceptionGroup as errors:
            first = errors.exceptions[0]
        except BaseException as error:
            self._queue.abandon(error)
            raise
        self._queue.abandon(first)
        raise first

    async def _end(self, task: asyncio.Task[None]) -> None:
        """Wait for the task as long as batches are acknowledged; then end it."""
        looks, headway = 0, self._queue.headway
        while looks < LOOKS and not task.done():
            await asyncio.wait({task}, timeout=self._look_s)
            is_silent = self._queue.waits_for_the_store and headway == self._queue.headway
            looks = looks + 1 if is_silent else 0
            headway = self._queue.headway
        reason = self._queue.trouble
        if not task.done():
            reason = reason or no_answer(self.batching, self._queue.heard)
            await self._break_off(task, reason)
        elif not task.cancelled() and (error := task.exception()) is not None:
            raise error
        self._tell_of_unheard(reason)

    async def _break_off(self, task: asyncio.Task[None], reason: BaseException) -> None:
        for is_sent, count in zip((True, False), self._queue.count_waiting(), strict=True):
            # Their callers get an error, and `close` reports them too.
            self._queue.unheard[is_sent] += count
        self._queue.ended_by = self._queue.ended_by or closed()
        self._queue.abandon(reason)
        task.cancel()
        await asyncio.wait({task}, timeout=FAREWELL_S)

    def _tell_of_unheard(self, reason: BaseException | None) -> None:
        """Raise the error that reports failed appends without a waiting caller.

        Raises:
            LocationError: there are such appends.
        """
        sent, unsent = (self._queue.unheard[way] + self._queue.lost[way] for way in (True, False))
        if sent or unsent:
            raise LocationError(
                "some appends were not acknowledged: those not sent are not in the log, and those "
                "sent may be: open the log again, and search it for the records before you append "
                "them again",
                outcome=Outcome.UNKNOWN if sent else Outcome.NOT_APPLIED,
                appends_sent=sent,
                appends_not_sent=unsent,
                reason=reason or self._queue.ended_by or "the callers were cancelled",
            )

    async def _work_waits(self) -> bool:
        """Wait for work; return False once the writer is closed and the queue is empty."""
        queue = self._queue
        while not queue and not queue.is_closing:
            await queue.changed.wait()
        return len(queue) > 0


def _mark_retrieved(task: asyncio.Task[None]) -> None:
    """Mark a task's error as retrieved; callers get it from their futures."""
    if not task.cancelled():
        task.exception()
