"""Writing a wal3 log: appends are gathered into batches, and acknowledged when they are durable.

While the manifest that names a batch is being written, the next batch is stored already; what is
appended meanwhile makes the one after that. An idle log does not wait.
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
from tidelog.wal.append.bodies import array_of
from tidelog.wal.append.queue import bodies_of
from tidelog.wal.append.work import Work
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.manifest_protocol.committer import Committer

LOST_MAX: Final = 100  # Numbers in a row that other writers may have taken first.


@dataclass(frozen=True, slots=True)
class _Publishing:
    """A fragment that is being brought into the log."""

    fragment: Fragment
    task: asyncio.Task[bool]


@dataclass(slots=True, kw_only=True)
class Wal3Writer(BatchWriter):
    """Appends to one log. Several writers of a log, in any processes, contend and take turns."""

    committer: Committer
    _lost: int = 0

    def __post_init__(self) -> None:
        BatchWriter.__post_init__(self)
        self.committer.resend = replace(self.committer.resend, heard=self._queue.hear)

    async def append(self, records: Sequence[bytes], *, wait: bool = True) -> int:
        """Append records; return the position of the first once all are durable.

        The records of one call stand together, in their order.

        Raises:
            UsageError: they are no list of bytes, there are none, one is over 64 MiB, or all are
            over 1 GiB. BusyError: ``wait`` is False, and too much is waiting already. HandleError:
            the writer is closed. LocationError: the store failed, or nothing was acknowledged for
            `Batching.patience_us`; UNKNOWN if they may be in the log, and then the reason is told.
            ContentionError: other writers were first every time, NOT_APPLIED.
        """
        return await self.append_arrow(array_of(records), wait=wait)

    async def append_arrow(self, bodies: pa.BinaryArray, *, wait: bool = True) -> int:
        """Append the values of an array, none of which is null; see `append`."""
        return await self._submit(bodies, wait=wait)

    async def _serve(self) -> None:
        """Send batch after batch, until closed and nothing is left."""
        async with asyncio.TaskGroup() as group:
            await self._send_all(group)

    async def _send_all(self, group: asyncio.TaskGroup) -> None:
        clock = self.committer.clock
        before: _Publishing | None = None
        while await self._work_waits():
            if before is not None and before.task.done() and not before.task.result():
                before = None  # Where the log goes on is to be read again.
            if before is None and not self.committer.is_open:
                await self._open()
                continue
            if not await self._has_token(clock):
                continue
            begun_us = clock.monotonic_us()
            batch = self._queue.take()
            fragment = await self._store(batch, before)
            if before is not None:
                await before.task
            before = None
            if fragment is not None:
                before = _Publishing(fragment, group.create_task(self._publish(batch, fragment)))
            if not self._lost:
                await self._pace(begun_us, clock)

    async def _open(self) -> None:
        """Open the log before anything is taken to be sent; if that cannot be, tell why."""
        try:
            await self.committer.open()
        except TidelogError as error:
            self._queue.trouble = error
            self._queue.refuse_waiting(error)

    async def _store(self, batch: Sequence[Work], before: _Publishing | None) -> Fragment | None:
        """Store a batch, while the one before is being published; None if it is not stored.

        One whose number another writer has waits again, and was not sent.
        """
        for work in batch:
            work.is_sent = True
        lost, self._lost = self._lost, 0
        try:
            fragment = await self._stored(bodies_of(batch), before)
            if fragment is None and lost == LOST_MAX:
                raise ContentionError("other writers were first at every try to append")
        except TidelogError as error:
            self._queue.answer(batch, error)
            return None
        if fragment is None:
            self._lost = lost + 1
            self._queue.give_back(batch)
        return fragment

    async def _stored(self, bodies: pa.BinaryArray, before: _Publishing | None) -> Fragment | None:
        if before is None:
            return await self.committer.store_next(bodies)
        fragment = await self.committer.store_after(bodies, before.fragment)
        if fragment is not None and not await before.task:
            raise OutcomeUnknown(
                "the batch before it did not get into the log, or it is not known: whether this "
                "one did shows once the log is opened again",
                path=fragment.path,
            )
        return fragment

    async def _publish(self, batch: Sequence[Work], fragment: Fragment) -> bool:
        """Bring a stored batch into the log, and tell; say whether it is there."""
        try:
            is_in = await self.committer.publish(fragment)
        except TidelogError as error:
            self._queue.answer(batch, error)
            return False
        if is_in:
            self._queue.settle(batch, fragment.start)
        else:
            # This writer slept while others wrote, and its number was collected.
            lost = ContentionError("the log went on without this writer: append again")
            self._queue.fail(batch, lost)
        return is_in
