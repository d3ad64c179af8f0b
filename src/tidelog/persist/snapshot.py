"""Snapshots: the contents of a shard at one time, as parts that are still to be read.

Source: persist, "Snapshot".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.errors import AsOfBeforeSince, PartMissing, ReadOvertaken, UsageError
from tidelog.ids import ShardId
from tidelog.persist.part import Part
from tidelog.persist.reader import PartReader, Split, plan_splits
from tidelog.persist.schema import ShardSchema
from tidelog.persist.state import State
from tidelog.persist.updates import accumulate

READS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSnapshot:
    """The contents at ``as_of``, not read yet.

    ``again`` plans the same by the newest state, where that names other parts than are missing.
    """

    shard: ShardId
    schema: ShardSchema
    as_of: int
    parts: tuple[Part, ...]
    reader: PartReader
    again: Callable[[PartMissing], Awaitable[ShardSnapshot]]

    def splits(self, count: int) -> list[Split]:
        """Share the snapshot out into exactly ``count`` plain values, balanced by bytes.

        Raises:
            UsageError: ``count`` is less than 1.
        """
        if count < 1:
            raise UsageError("a snapshot has at least one split", count=count)
        return plan_splits(self.shard, self.schema, self.as_of, self.parts, count)

    async def to_arrow(self) -> pa.Table:
        """Return the contents: data columns and ``_diff``, consolidated.

        Raises:
            CorruptionError: a part is missing, or not what was written. AsOfBeforeSince: the time
                is not kept any more. LocationError: the store failed.
        """
        snapshot = self
        for _ in range(READS_MAX):
            try:
                tables = await snapshot.reader.read(snapshot.parts, self.schema)
            except PartMissing as error:
                snapshot = await self.again(error)
                continue
            work = partial(accumulate, tables, self.schema, as_of=self.as_of)
            return await self.reader.clock.offload(work)
        raise overtaken()


def overtaken() -> ReadOvertaken:
    """Return the error of a read whose parts go quicker than it reads them."""
    return ReadOvertaken(
        "what was still to be read was merged and deleted meanwhile: read again, or collect less "
        "eagerly (tidelog collect --after)"
    )


def require_replaced(states: Iterable[State], error: PartMissing) -> None:
    """Raise an error again where one of the newest states names the missing part still.

    Raises:
        PartMissing: so it is: the object is lost, and was not replaced by a merge.
    """
    path = str(error.facts["path"]).encode()
    if any(path in batch.packed for state in states for batch in state.batches):
        raise error


def check_readable(state: State, as_of: int) -> None:
    """Refuse a time that is below since.

    Raises:
        AsOfBeforeSince: it is; the message has the smallest time that can be read.
    """
    if state.since is None:
        raise AsOfBeforeSince("nobody may read this shard any more")
    if as_of < state.since:
        raise AsOfBeforeSince(
            f"the time asked for is no longer kept: the earliest is {state.since}", asked=as_of
        )
