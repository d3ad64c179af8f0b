"""Tending: what an ingester that goes on and on does for its shards beside its ticks.

One merge at a time, of whichever shard has one due; ticks do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tidelog.errors import LocationError, TidelogError
from tidelog.persist.handle.shard import Shard
from tidelog.persist.upkeep.compactor import Compacted, compact, is_due
from tidelog.persist.upkeep.merging import Expiry


@dataclass(slots=True)
class Tending:
    """The merges of some shards, in the background. ``trouble`` says why one goes on no more.

    Shape: ``expiries`` by the id of a shard.
    """

    shards: Sequence[Shard]
    expiries: Mapping[str, Expiry] = field(default_factory=dict)
    trouble: dict[str, str] = field(default_factory=dict)
    _task: asyncio.Task[Compacted] | None = None
    _busy_with: str = ""

    def look(self) -> None:
        """Begin a merge if one is due, and none is under way."""
        if self._task is not None:
            if not self._task.done():
                return
            self._finish(self._task)
            self._task = None
        due = (one for one in self.shards if one.id not in self.trouble)
        shard = next((one for one in due if is_due(one)), None)
        if shard is not None:
            self._busy_with = shard.id
            work = compact(shard, expiry=self.expiries.get(shard.id), merges_max=1)
            self._task = asyncio.create_task(work, name="merge")

    async def stop(self) -> None:
        """Give up the merge that is under way: it has changed nothing, or all."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError, TidelogError):
            await self._task
        self._task = None

    def _finish(self, task: asyncio.Task[Compacted]) -> None:
        try:
            task.result()
        except LocationError:
            return  # The next look tries again.
        except TidelogError as error:
            # Rows come in all the same; whoever merges this shard, or reads it, is told.
            self.trouble[self._busy_with] = str(error)
