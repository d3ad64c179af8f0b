"""Writing parts: from a table of updates to descriptors that a commit can name.

Any process may write parts, each under a unique name. A part has an effect once a state names it;
until then it is garbage.
Source: persist, "Append" and "Backpressure".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import pyarrow as pa

from tidelog.core.clock import Clock, run_all
from tidelog.core.ids import ShardId
from tidelog.core.threads import cores
from tidelog.errors import LocationError, Outcome, UsageError
from tidelog.persist.format.bounds import is_rising
from tidelog.persist.format.inputs import row_text
from tidelog.persist.format.part import Part, encode_part, large_rows, part_path
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema
from tidelog.persist.format.updates import is_sortable
from tidelog.rowhash import Hashes
from tidelog.store.port import Store

RECORD_BYTES_MAX = 8 * 1024 * 1024
ENCODES_MAX = 8  # Each encoded part waits in memory for its upload.
NAMED_COLUMNS = 3  # In the error of a row.


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWriter:
    """Writes the parts of one shard.

    ``is_sorted`` states that updates are in the order of `prepare_updates`; ``bucket`` is the
    bucket of their keys.

    Units: a part is cut at ``part_bytes`` of Arrow data; at most ``uploads`` puts are under way.
        At most `ENCODES_MAX` parts are being encoded or wait for their put.
    """

    store: Store
    clock: Clock
    shard: ShardId
    schema: ShardSchema
    write_epoch: int = 0
    is_sorted: bool = True
    bucket: tuple[int, int] = (1, 0)
    part_bytes: int = 64 * 1024 * 1024
    uploads: int = 2

    async def write(
        self, updates: pa.Table, *, inline: bool = True, hashes: Hashes | None = None
    ) -> list[Part]:
        """Write updates from `prepare_updates`; return their parts in order.

        ``inline`` allows a small part to be stored in its descriptor instead of an object.
        ``hashes`` are those of the rows, without their times, if known.

        Raises:
            UsageError: a record is too large. LocationError: the store failed; no state names the
                parts.
        """
        if not updates.num_rows:
            return []
        pieces = cut(updates, self.part_bytes, self.schema)
        inline = inline and len(pieces) == 1
        try:
            work, start = [], 0
            uploads = asyncio.Semaphore(self.uploads)
            for piece in pieces:
                limit = start + piece.num_rows
                some = None if hashes is None else hashes.between(start, limit)
                work.append(partial(self._put, piece, inline, some, uploads))
                start = limit
            if len(work) == 1:
                return [await work[0]()]
            # More parts than cores: the last part then does not leave cores idle.
            return await run_all(work, at_once=max(self.uploads, min(cores() + 1, ENCODES_MAX)))
        except LocationError as error:
            # Some objects may have been written, but no state names them or ever will.
            error.outcome = Outcome.NOT_APPLIED
            raise

    async def _put(
        self, piece: pa.Table, inline: bool, hashes: Hashes | None, uploads: asyncio.Semaphore
    ) -> Part:
        path = part_path(self.shard, self.write_epoch, self.clock.unique())

        def encoded() -> tuple[Part, bytes | None]:
            schema, is_sorted = self.schema, is_sortable(self.schema)
            # Rows that are in the order of unique keys are in the order of `prepare_updates`.
            is_sorted = is_sorted and (self.is_sorted or is_rising(piece, schema.key))
            return encode_part(
                piece, schema, path=path, is_sorted=is_sorted, inline=inline, hashes=hashes
            )

        part, data = await self.clock.offload(encoded)
        part = msgspec.structs.replace(part, bucket=self.bucket)
        if data is not None:
            async with uploads:
                await self.store.put(path, data)
        return part


def cut(updates: pa.Table, part_bytes: int, schema: ShardSchema) -> list[pa.Table]:
    """Cut a table into pieces of about ``part_bytes`` each.

    Raises:
        UsageError: a single row exceeds 8 MiB; the message names it by its key.
    """
    rows, size = updates.num_rows, updates.nbytes
    if large := large_rows(updates, RECORD_BYTES_MAX):
        raise _too_large(updates.slice(large[0], 1), schema.key)
    pieces = max(1, -(-size // part_bytes))
    step = -(-rows // pieces)
    return [updates.slice(start, step) for start in range(0, rows, step)]


def _too_large(row: pa.Table, key: Sequence[str]) -> UsageError:
    sizes = {name: row.column(name).nbytes for name in row.column_names}
    largest = max(sizes, key=lambda name: sizes[name])
    small = [name for name in row.column_names if name not in (TIME, DIFF) and name != largest]
    named = row_text(row, [*(key or small)][:NAMED_COLUMNS])
    return UsageError(
        f"the row with {named} has over 8 MiB, mostly in the column {largest!r}: store large "
        "values elsewhere, and write references to them"
        if named
        else f"a value of the column {largest!r} has over 8 MiB: store large values elsewhere, and "
        "write references to them"
    )
