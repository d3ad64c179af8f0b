"""The writer of a wal3 log: it gathers appends into batches, and acknowledges durable ones.

While the manifest for one batch is being written, the writer already stores the next batch. Records
appended during that time form the batch after it. On an idle log an append starts at once.
Source: wal3, "Write Path"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from tidelog.errors import ContentionError, OutcomeUnknown, TidelogError
from tidelog.wal.append.batch_writer import BatchWriter
from tidelog.wal.append.bodies import bodies_of
from tidelog.wal.append.work import Work
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.manifest_protocol.committer import Committer

LOST_MAX: Final = 100  # Numbers in a row that other writers may take first.


@dataclass(frozen=True, slots=True)
class _Publication:
    """A stored fragment, and the task that adds it to the log."""

    fragment: Fragment
    task: asyncio.Task[bool]


@dataclass(slots=True, kw_only=True)
class Wal3Writer(BatchWriter):
    """An appender to one log. Several writers, also in other processes, compete for each number."""

    committer: Committer
    _lost: int = 0

    def __post_init__(self) -> None:
        BatchWriter.__post_init__(self)
        self.committer.resend = replace(self.committer.resend, heard=self._queue.hear)

    async def _serve(self) -> None:
        """Send batch after batch, until the writer is closed and the queue is empty."""
        async with asyncio.TaskGroup() as group:
            await self._send_all(group)

    async def _send_all(self, group: asyncio.TaskGroup) -> None:
        clock = self.committer.clock
        before: _Publication | None = None
        while await self._work_waits():
            if before is not None and before.task.done() and not before.task.result():
                before = None  # The end of the log must be read again.
            if before is None and not self.committer.is_open:
                await self._open()
                continue
            begun_us = clock.monotonic_us()
            if (rest_us := self._queue.token_us(begun_us)) is not None:
                await self._rest(rest_us)
                continue
            batch = self._queue.take()
            fragment = await self._store(batch, before)
            if before is not None:
                await before.task
            before = None
            if fragment is not None:
                before = _Publication(fragment, group.create_task(self._publish(batch, fragment)))
            if not self._lost:
                self._queue.begun_us = begun_us
            while (rest_us := self._queue.pause_us(clock.monotonic_us())) is not None:
                await self._rest(rest_us)

    async def _rest(self, rest_us: int) -> None:
        self._queue.is_resting = True
        await self.committer.clock.sleep(rest_us)
        self._queue.is_resting = False

    async def _open(self) -> None:
        """Open the log before a batch is taken; if that fails, fail the waiting appends."""
        try:
            await self.committer.open()
        except TidelogError as error:
            self._queue.trouble = error
            self._queue.refuse_waiting(error)

    async def _store(self, batch: Sequence[Work], before: _Publication | None) -> Fragment | None:
        """Store a batch while the previous one is being published; return None if it is not stored.

        If another writer took the number, the batch goes back to the queue as unsent.
        """
        for work in batch:
            work.is_sent = True
        lost, self._lost = self._lost, 0
        try:
            fragment = await self._stored(bodies_of(batch), before)
            if fragment is None and lost == LOST_MAX:
                raise ContentionError(
                    f"gave up after {LOST_MAX} tries: other writers kept appending first; append "
                    "again"
                )
        except TidelogError as error:
            self._queue.answer(batch, error)
            return None
        if fragment is None:
            self._lost = lost + 1
            self._queue.give_back(batch)
        return fragment

    async def _stored(self, bodies: pa.BinaryArray, before: _Publication | None) -> Fragment | None:
        if before is None:
            return await self.committer.store_next(bodies)
        fragment = await self.committer.store_after(bodies, before.fragment)
        if fragment is not None and not await before.task:
            raise OutcomeUnknown(
                "the previous batch may not be in the log, so this one may not be either: open "
                "the log again, and search it for the records before you append them again",
                path=fragment.path,
            )
        return fragment

    async def _publish(self, batch: Sequence[Work], fragment: Fragment) -> bool:
        """Add a stored batch to the log and answer its appends; return True if it is in the log."""
        try:
            is_in = await self.committer.publish(fragment)
        except TidelogError as error:
            self._queue.answer(batch, error)
            return False
        if is_in:
            self._queue.settle(batch, fragment.start)
        else:
            # This writer was suspended while others wrote, and its number was collected.
            lost = ContentionError(
                "other writers continued the log without these records: append them again"
            )
            self._queue.fail(batch, lost)
        return is_in
