"""Background merges: an ingester that follows a source also merges the shards that it writes.

It runs one merge at a time. Ticks do not wait for a merge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tidelog.errors import LocationError, TidelogError
from tidelog.persist.handle.shard import Shard
from tidelog.persist.maintenance.compactor import CompactionReport, compact, is_due
from tidelog.persist.maintenance.merging import Expiry


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
    _busy_with: str = ""

    def look(self) -> None:
        """Start a merge if a shard needs one and no merge is running."""
        if self._task is not None:
            if not self._task.done():
                return
            self._finish(self._task)
            self._task = None
        due = (one for one in self.shards if one.id not in self.trouble)
        shard = next((one for one in due if is_due(one)), None)
        if shard is not None:
            self._busy_with = shard.id
            self._task = asyncio.create_task(self._merge(shard), name="merge")

    async def _merge(self, shard: Shard) -> CompactionReport:
        async with self.turn:
            # The ticks of this process keep the state of the handle new.
            expiry = self.expiries.get(shard.id)
            return await compact(shard, expiry=expiry, merges_max=1, is_read=True)

    async def stop(self) -> None:
        """Cancel the running merge. Its commit is atomic, so it has happened or not."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError, TidelogError):
            await self._task
        self._task = None

    def _finish(self, task: asyncio.Task[CompactionReport]) -> None:
        try:
            task.result()
        except LocationError:
            return  # The next call of `look` tries again.
        except TidelogError as error:
            # Ingestion does not need merges, so it continues. The run reports the error, and a
            # reader or another merger of this shard meets the same one.
            self.trouble[self._busy_with] = str(error)
