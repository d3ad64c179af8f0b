"""The common part of both protocols' writers: a queue, and one task of the log that serves it.

Each append gets an answer. If the store refuses everything or does not answer, appends fail within
`Batching.patience_us`, and closing ends. Records that were sent without an answer by then have an
unknown outcome.
"""

from __future__ import annotations

import abc
import asyncio
import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from tidelog.core.clock import Clock
from tidelog.errors import HandleError, LocationError, Outcome
from tidelog.wal.append.append_errors import closed, copy_of, no_answer
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.closing import Closing
from tidelog.wal.append.queue import LOOKS, Queue
from tidelog.wal.append.work import PlacedRecords, Work
from tidelog.wal.format.streams import Control

REST_US: Final = 100_000  # How often a writer that must wait checks for other events.
FAREWELL_S: Final = 1.0  # How long a cancelled task may take to end.


@dataclass(slots=True, kw_only=True)
class BatchWriter(Closing):
    """A writer that gathers appends into batches. Its task starts with the first append."""

    batching: Batching = field(default_factory=Batching)
    _queue: Queue = field(init=False)
    _task: asyncio.Task[None] | None = None
    _closing: asyncio.Task[None] | None = None
    _look_due: asyncio.TimerHandle | None = None
    _bucket: TokenBucket | None = None

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
            self._closing.add_done_callback(_told_to_those_who_wait)
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

    async def _submit(
        self,
        bodies: pa.BinaryArray,
        *,
        timestamp_us: int | None = None,
        stream: bytes | None = None,
        keys: bytes | pa.BinaryArray | None = None,
        control: Control | None = None,
        wait: bool = True,
    ) -> int:
        """Queue records, and wait for the position of the first; see `Queue.add`."""
        self._refuse_other_loop()
        work = self._queue.add(
            bodies, timestamp_us=timestamp_us, stream=stream, keys=keys, control=control, wait=wait
        )
        return await self._told(work, work.done)

    async def _place(
        self,
        bodies: pa.BinaryArray,
        *,
        timestamp_us: int | None,
        keys: bytes | pa.BinaryArray | None,
        wait: bool,
    ) -> PlacedRecords:
        """Queue records, and wait for their expected position; see `Queue.add`."""
        self._refuse_other_loop()
        work = self._queue.add(bodies, timestamp_us=timestamp_us, keys=keys, wait=wait, placed=True)
        placing = work.placing
        assert placing is not None, "it is placed"
        return PlacedRecords(await self._told(work, placing.ordered), work.done, placing)

    async def _told(self, work: Work, waiter: asyncio.Future[int]) -> int:
        """Start the task if needed, and wait for the answer to an append."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="wal writer")
            self._task.add_done_callback(_told_to_those_who_wait)
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
                "this handle belongs to another event loop: open the log again in this one, "
                "which fences the other handle, or share a handle of 'import tidelog' among "
                "threads"
            )

    def _look_later(self) -> None:
        if self._look_due is None:
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
                "some appends were not acknowledged: those not sent are not in the log; open the "
                "log again to see which of those sent are in it",
                outcome=Outcome.UNKNOWN if sent else Outcome.NOT_APPLIED,
                appends_sent=sent,
                appends_not_sent=unsent,
                reason=reason or self._queue.ended_by or "the callers were cancelled",
            )

    async def _work_waits(self) -> bool:
        """Wait for work; return False once the writer is closed and the queue is empty."""
        queue = self._queue
        await queue.changed.wait_for(lambda: queue.is_closing or len(queue) > 0)
        return len(queue) > 0

    async def _has_token(self, clock: Clock) -> bool:
        """Take a token for a put; if the bucket is empty, wait a while and return False."""
        rate = self.batching.puts_per_second
        if rate is None:
            return True
        now_us = clock.monotonic_us()
        bucket = self._bucket or full(rate, now_us)
        if left_us := wait_us(bucket, now_us):
            await self._rest(left_us, clock)
            return False
        self._bucket = spend(bucket, now_us)
        return True

    async def _pace(self, begun_us: int, clock: Clock) -> None:
        """Wait for `Batching.interval_us` between batches, unless the next is full or the last."""
        due_us = begun_us + self.batching.interval_us
        while not self._queue.fills_a_batch and not self._queue.is_closing:
            left_us = max(0, due_us - clock.monotonic_us())
            await self._rest(left_us, clock)
            if left_us <= REST_US:
                return

    async def _rest(self, left_us: int, clock: Clock) -> None:
        """Wait for a setting, but only briefly, so that a close is noticed."""
        self._queue.is_resting = True
        await clock.sleep(min(left_us, REST_US))
        self._queue.is_resting = False


def _told_to_those_who_wait(task: asyncio.Task[None]) -> None:
    """Mark a task's error as retrieved; callers get it from their futures."""
    if not task.cancelled():
        task.exception()


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """The tokens left at a moment. The bucket holds one second's worth, and at least one.

    Units:
        at_us: monotonic time.
    """

    per_second: float
    tokens: float
    at_us: int

    @property
    def capacity(self) -> float:
        return max(1.0, self.per_second)


def full(per_second: float, now_us: int) -> TokenBucket:
    """Return a full bucket."""
    return TokenBucket(per_second, max(1.0, per_second), now_us)


def wait_us(bucket: TokenBucket, now_us: int) -> int:
    """Return the time until the bucket has a token; 0 if it has one now."""
    missing = 1.0 - _refilled(bucket, now_us).tokens
    return max(0, math.ceil(missing / bucket.per_second * 1e6))


def spend(bucket: TokenBucket, now_us: int) -> TokenBucket:
    """Take a token. The bucket must have one."""
    refilled = _refilled(bucket, now_us)
    return replace(refilled, tokens=max(0.0, refilled.tokens - 1.0))


def _refilled(bucket: TokenBucket, now_us: int) -> TokenBucket:
    gained = max(0, now_us - bucket.at_us) * bucket.per_second / 1e6
    tokens = min(bucket.capacity, bucket.tokens + gained)
    return replace(bucket, tokens=tokens, at_us=max(now_us, bucket.at_us))
