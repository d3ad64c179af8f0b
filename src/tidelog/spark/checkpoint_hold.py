"""The hold of a stream's checkpoint: it keeps the times that the query has yet to read.

The hold is a lease of each shard of the collection. Its name is in each offset, so a restarted
query finds it, wherever its checkpoint is stored. The query renews it while it runs, and moves it
after the micro-batches that Spark has committed. If a checkpoint is abandoned, its hold ends: a
collector ends a lease that was not renewed for its whole length.

A request is one small write for each shard. The query places or renews the hold when it starts,
moves it at most once a minute, and renews it after a third of its length.
Source: design page 4, "Holds"; page 6, "Following".
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tidelog.collection.collection import Collection
from tidelog.core.clock import Clock, wall_us
from tidelog.core.frontier import TIME_MAX, Frontier, meet
from tidelog.errors import StoreRefused, TidelogError
from tidelog.persist.handle.leasing import RENEWALS, keep_lease
from tidelog.persist.states.holding import Lease

MOVE_US: Final = 60_000_000
PURPOSE: Final = "a checkpoint of a Spark stream"


@dataclass(slots=True, kw_only=True)
class CheckpointHold:
    """The hold of one checkpoint, in the process of its query.

    Units: microseconds; ``committed`` is the last time that the query has processed for good.
    """

    name: str
    lease_us: int
    clock: Clock
    committed: int | None = None
    _since: int = field(init=False, default=TIME_MAX)
    _kept_us: int | None = field(init=False, default=None)
    _moved_us: int | None = field(init=False, default=None)

    async def keep(self, eras: Sequence[Collection], first: int) -> None:
        """Place the hold at ``first``, unless it exists; renew and move it if that is due.

        ``eras`` are the renditions of the collection; each is held as far as it is needed.

        Raises:
            StoreRefused: the store forbids to place a hold; the message names the option.
            UsageError: a new hold would be before the since of a shard.
            LocationError: the store failed.
        """
        if self._kept_us is None:
            try:
                await self._write(eras, first)
            except StoreRefused as error:
                raise StoreRefused(
                    "the query may not place a hold for its checkpoint: allow it to write to the "
                    "location, or set option('checkpointHold', 'none')"
                ) from error
        elif self._is_due(self._kept_us):
            self._kept_us = self.clock.monotonic_us()
            with suppress(TidelogError):  # The store may recover before the lease ends.
                await self._write(eras, first)

    def _is_due(self, kept_us: int) -> bool:
        now_us = self.clock.monotonic_us()
        if now_us - kept_us >= self.lease_us // RENEWALS:
            return True
        may_move = self._moved_us is None or now_us - self._moved_us >= MOVE_US
        return may_move and self.committed is not None and self.committed > self._since

    async def _write(self, eras: Sequence[Collection], first: int) -> None:
        if self.committed is not None:
            self._moved_us = self.clock.monotonic_us()
        needed = [one for one in eras if one.ends is None or first < one.ends]
        placed = meet([await self._write_on(era, first) for era in needed])
        for era in eras[: -len(needed)]:
            for shard in era.shards:
                if self.name in shard.state.holds:
                    await shard.drop_hold(self.name)
        self._since = TIME_MAX if placed.is_empty else placed.time
        self._kept_us = self.clock.monotonic_us()

    async def _write_on(self, era: Collection, first: int) -> Frontier:
        moved_to = None if self.committed is None else max(self.committed, era.begins)
        lease = Lease(
            name=self.name,
            lease_us=self.lease_us,
            at_us=wall_us(self.clock),
            seqno=None,
            since=Frontier.at(max(first, era.begins)),
            purpose=PURPOSE,
        )
        to = None if moved_to is None else Frontier.at(moved_to)
        return meet([await keep_lease(shard, lease, moved_to=to) for shard in era.shards])
