"""Checkpoints of a remap shard: stored contents, so that a restart reads few of its parts.

A checkpoint has the contents of the remap shard at one upper. All times below it are complete, so
every ingester writes the same checkpoint. It only saves requests: if it is missing, or its bytes do
not match the digest in its name, the ingester reads all parts.
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

from tidelog.collection.source.binding import (
    AddressRange,
    SourceProgress,
    plan_updates,
    remap_schema,
)
from tidelog.core.clock import Clock
from tidelog.errors import TidelogError
from tidelog.persist.format.parquet import decode_parquet, encode_parquet
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import TIME
from tidelog.store.port import Store

EVERY: Final = 64  # About how many objects of the remap shard a restart reads, at most.
KEPT: Final = 2  # Another ingester may read the previous one while this one is written.
_NAME: Final = re.compile(r"/([0-9]{20})-([0-9a-f]{32})$")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The ranges of a source at an upper, as updates at the time ``upper - 1``."""

    upper: int
    updates: pa.Table


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """The checkpoints of one source. ``written`` is the upper of the newest one known."""

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
        """Return True if enough parts follow the newest checkpoint to be worth another put."""
        return _stored(parts) > self.every

    async def find(self, parts: Sequence[Part], upper: int) -> Checkpoint | None:
        """Return the newest readable checkpoint at or before ``upper``; None if parts are few.

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

    async def write(self, progress: SourceProgress, upper: int) -> None:
        """Write a checkpoint at an upper, and delete older ones.

        A failure of the store is ignored, because no ingester depends on a checkpoint.
        """
        ranges = dict.fromkeys((*progress.taken.values(), *progress.held))
        body = await self.clock.offload(
            lambda: encode_parquet(plan_updates(SourceProgress(), ranges, self.kind, upper=upper))
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
        """Return a checkpoint's updates; None if it is missing, damaged or of other columns."""
        wanted = remap_schema(self.kind).updates
        try:
            data = (await self.store.get(key)).data
        except TidelogError:
            return None
        if xxhash.xxh3_128_hexdigest(data) != digest:
            return None
        table = await self.clock.offload(lambda: decode_parquet(data))
        # Another version of the source's kind may have written it, with other fields in its ranges.
        return table.cast(wanted) if table.column_names == wanted.names else None


def _stored(parts: Sequence[Part]) -> int:
    """Count the parts that are objects, not inline in the state."""
    return sum(part.path is not None for part in parts)


def tables_of(checkpoint: Checkpoint | None, read: Sequence[pa.Table]) -> list[pa.Table]:
    """Return a checkpoint's updates, and those of the updates read that are not in it."""
    if checkpoint is None:
        return list(read)
    since = [one.filter(pc.field(TIME) >= checkpoint.upper) for one in read]
    return [checkpoint.updates, *since]
