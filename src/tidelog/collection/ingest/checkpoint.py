"""Where a source stands, kept beside its remap shard, so that a restart reads few of its parts.

A checkpoint is what the remap shard says at one upper: a function of times that are complete, so
that whoever writes it writes the same. It only saves requests: one that is missing, or not what its
own name sums up, is passed over, and all parts are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tidelog.clock import Clock
from tidelog.collection.source.binding import (
    AddressRange,
    Standing,
    plan_updates,
    remap_schema,
)
from tidelog.errors import TidelogError
from tidelog.persist.format.parquet import decode_parquet, encode_parquet
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import TIME
from tidelog.store.port import Store

EVERY: Final = 64  # Objects that a restart reads of the remap shard, about, at the most.
KEPT: Final = 2  # One may be read while the next is written.
_NAME: Final = re.compile(r"/([0-9]{20})-([0-9a-f]{32})$")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a source stood at: its ranges, as updates at the time before ``upper``."""

    upper: int
    updates: pa.Table


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """The checkpoints of one source. ``every``: see `EVERY`; ``written`` is the newest known."""

    store: Store
    clock: Clock
    shard: str
    kind: type[AddressRange]
    every: int = EVERY
    written: int = 0

    @property
    def _prefix(self) -> str:
        return f"shard/{self.shard}/standing/"

    def are_due(self, parts: Sequence[Part]) -> bool:
        """Say whether the parts since the newest one are so many that another is worth its put."""
        return _stored(parts) > self.every

    async def find(self, parts: Sequence[Part], upper: int) -> Checkpoint | None:
        """Return the newest one that is of no later upper; none where there are few parts.

        Raises:
            LocationError: the store failed.
        """
        if _stored(parts) <= self.every:
            return None
        for found, key, digest in reversed(await self._listed()):
            if found <= upper and (read := await self._read(key, digest)) is not None:
                self.written = max(self.written, found)
                return Checkpoint(found, read)
        return None

    async def write(self, standing: Standing, upper: int) -> None:
        """Write where a source stands at an upper, and forget what is older.

        That it cannot be written is no reason to stop.
        """
        ranges = dict.fromkeys((*standing.taken.values(), *standing.held))
        body = await self.clock.offload(
            lambda: encode_parquet(plan_updates(Standing(), ranges, self.kind, upper=upper))
        )
        key = f"{self._prefix}{upper:020d}-{xxhash.xxh3_128_hexdigest(body)}"
        with suppress(TidelogError):
            await self.store.put(key, body)
            self.written = upper
            await self.store.delete([key for _, key, _ in (await self._listed())[:-KEPT]])

    async def _listed(self) -> list[tuple[int, str, str]]:
        found = [entry.key async for entry in self.store.list(self._prefix)]
        names = [(key, name) for key in found if (name := _NAME.search(key)) is not None]
        return sorted((int(name[1]), key, name[2]) for key, name in names)

    async def _read(self, key: str, digest: str) -> pa.Table | None:
        """Return a checkpoint's updates; None where it is gone, or is not what was written."""
        wanted = remap_schema(self.kind).updates
        try:
            data = (await self.store.get(key)).data
        except TidelogError:
            return None
        if xxhash.xxh3_128_hexdigest(data) != digest:
            return None
        table = await self.clock.offload(lambda: decode_parquet(data))
        # A kind's ranges may have got another field since.
        return table.cast(wanted) if table.column_names == wanted.names else None


def _stored(parts: Sequence[Part]) -> int:
    """Count the parts that are objects."""
    return sum(part.path is not None for part in parts)


def tables_of(checkpoint: Checkpoint | None, read: Sequence[pa.Table]) -> list[pa.Table]:
    """Return a checkpoint's updates, and of those that were read what comes after it."""
    if checkpoint is None:
        return list(read)
    since = [one.filter(pc.field(TIME) >= checkpoint.upper) for one in read]
    return [checkpoint.updates, *since]
