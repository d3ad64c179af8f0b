"""Background merges: an ingester that follows a source also merges the shards that it writes.

It runs one merge at a time. Ticks do not wait for a merge. The commit of a merge rides on the next
tick, so it costs no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tidelog.errors import LocationError, TidelogError
from tidelog.persist.handle.port import ShardHandle
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.compactor import HERE, CompactionReport, compact, is_due
from tidelog.persist.maintenance.merger import MergedParts
from tidelog.persist.maintenance.merging import Expiry, MergeRequest

_STOP_S: Final = 2.0  # A failed store must not delay the end of a run.


@dataclass(frozen=True, slots=True)
class _InTurn:
    """A merger that works in its turn: that needs memory. Its merge may then wait for a commit."""

    turn: asyncio.Lock

    async def write(self, shard: ShardHandle, request: MergeRequest) -> MergedParts:
        async with self.turn:
            return await HERE.write(shard, request)


@dataclass(slots=True)
class BackgroundMerges:
    """The background merges of some shards. One merge runs at a time under a ``turn``.

    Shape: ``expiries`` is by the id of a shard. So is ``trouble``: it has the error of each shard
        whose merge failed. Such a shard is not merged again in this run.
    """

    shards: Sequence[Shard]
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    expiries: Mapping[str, Expiry] = field(default_factory=dict)
    trouble: dict[str, str] = field(default_factory=dict)
    _task: asyncio.Task[CompactionReport] | None = None
    _busy: Shard | None = None
    _is_waiting: bool = False  # At the last look, the merge waited for a commit already.

    def look(self) -> None:
        """Start a merge if a shard needs one and no merge is running."""
        if self._task is not None:
            if not self._task.done():
                self._flush(is_waited_for=False)
                return
            self._finish(self._task)
            self._task = None
        due = (one for one in self.shards if one.id not in self.trouble)
        shard = next((one for one in due if is_due(one)), None)
        if shard is not None:
            self._busy, self._is_waiting = shard, False
            self._task = asyncio.create_task(self._merge(shard), name="merge")

    async def _merge(self, shard: Shard) -> CompactionReport:
        # The ticks of this process keep the state of the handle new.
        return await compact(
            shard,
            expiry=self.expiries.get(shard.id),
            merges_max=1,
            merger=_InTurn(self.turn),
            is_read=True,
            rides=True,
        )

    def _flush(self, *, is_waited_for: bool) -> None:
        """Commit a merge that no tick took along since the last look, or since now."""
        if self._busy is None or not self._busy.machine.has_riders:
            return
        if self._is_waiting or is_waited_for:
            self._busy.machine.nudge()
        self._is_waiting = True

    async def stop(self) -> None:
        """Commit the merge that waits, or cancel it: its commit is atomic."""
        if self._task is None:
            return
        if self._busy is not None and self._busy.machine.has_riders:
            self._flush(is_waited_for=True)
        else:
            self._task.cancel()
        with suppress(asyncio.CancelledError, TidelogError, TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._task
        self._task = self._busy = None

    def _finish(self, task: asyncio.Task[CompactionReport]) -> None:
        try:
            task.result()
        except LocationError:
            return  # The next call of `look` tries again.
        except TidelogError as error:
            # Ingestion does not need merges, so it continues. The run reports the error, and a
            # reader or another merger of this shard meets the same one.
            if self._busy is not None:
                self.trouble[self._busy.id] = str(error)
