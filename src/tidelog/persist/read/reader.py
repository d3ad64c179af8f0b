"""Reading parts: whole objects, each checked against its descriptor before any row is used.

A change of the thread takes as long as the work on a small part. So one thread works on several
small parts, while others arrive.
Source: persist, "Snapshot" and "Listen".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias, TypeVar

import pyarrow as pa

from tidelog.core.clock import Clock, run_all
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.persist.format.part import Part, decode_own, missing_part
from tidelog.persist.format.schema import ShardSchema, fitted
from tidelog.persist.states.state import State
from tidelog.store.port import Store
from tidelog.store.wrappers.checked import read_checked

T = TypeVar("T")
# It checks the bytes of a part, and raises CorruptionError if they differ from those written.
Work: TypeAlias = Callable[[Part, bytes], T]

SMALL_ROWS: Final = 65_536  # One thread works on parts of so many rows in all.
PARTS_TOGETHER: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PartBytes:
    """Loads the bytes of parts for work in a thread, ``reads`` of them at one time.

    Errors of each call: PartMissing, if an object is missing; CorruptionError, if the bytes differ
    from those written; LocationError, if the store failed.
    """

    store: Store
    clock: Clock
    reads: int = 8

    async def load(self, part: Part, work: Work[T]) -> T:
        """Return the result of ``work`` on the bytes of a part."""
        if part.path is None:
            return work(part, part.inline or b"")
        offload = self.clock.offload
        try:
            return await read_checked(
                self.store, part.path, lambda data: offload(partial(work, part, data))
            )
        except ObjectNotFound as error:
            raise missing_part(part.path) from error

    async def load_all(self, parts: Sequence[Part], work: Work[T]) -> list[T]:
        """Return the results of ``work`` on the bytes of parts, in order."""
        if not parts:
            return []
        calls = [partial(self._load_some, some, work) for some in together(parts)]
        return [one for some in await run_all(calls, at_once=self.reads) for one in some]

    async def _load_some(self, parts: Sequence[Part], work: Work[T]) -> list[T]:
        if len(parts) == 1 or all(part.path is None for part in parts):
            return [await self.load(part, work) for part in parts]
        data = await run_all([partial(self._bytes, part) for part in parts], at_once=self.reads)
        try:
            return await self.clock.offload(lambda: [*map(work, parts, data)])
        except CorruptionError:
            # It may be the damage of a cached copy, and `load` reads such a copy again.
            return [await self.load(part, work) for part in parts]

    async def _bytes(self, part: Part) -> bytes:
        if part.path is None:
            return part.inline or b""
        try:
            return (await self.store.get(part.path)).data
        except ObjectNotFound as error:
            raise missing_part(part.path) from error


def together(parts: Sequence[Part]) -> Iterator[Sequence[Part]]:
    """Yield adjacent parts that one thread works on."""
    start = rows = 0
    for place, part in enumerate(parts):
        is_full = rows + part.rows > SMALL_ROWS or place - start == PARTS_TOGETHER
        if place > start and is_full:
            yield parts[start:place]
            start, rows = place, 0
        rows += part.rows
    if parts:
        yield parts[start:]


@dataclass(slots=True, kw_only=True)
class PartReader:
    """Reads parts, a few at once, with a cache of decoded parts of up to ``cache_bytes``.

    Parts never change, so the cache is never stale.
    """

    store: Store
    clock: Clock
    cache_bytes: int = 0
    reads: int = 8
    _kept: OrderedDict[str, pa.Table] = field(default_factory=OrderedDict)
    _kept_bytes: int = 0

    async def read(self, parts: Sequence[Part], schema: ShardSchema) -> list[pa.Table]:
        """Return the updates of each part, in the columns of ``schema``.

        Raises:
            PartMissing: an object is missing. CorruptionError: the bytes differ from those written.
            LocationError: the store failed.
        """
        found = {
            part.path: kept
            for part in parts
            if part.path is not None and (kept := self._kept.get(part.path)) is not None
        }
        for path in found:
            self._kept.move_to_end(path)

        def decode(part: Part, data: bytes) -> pa.Table:
            return decode_own(part, data, schema.of_part(part.schema_id))

        missing = [part for part in parts if part.path is not None and part.path not in found]
        loader = PartBytes(store=self.store, clock=self.clock, reads=self.reads)
        for part, table in zip(missing, await loader.load_all(missing, decode), strict=True):
            if part.path is not None:
                found[part.path] = table
                self._keep(part.path, table)
        tables = (
            decode(part, part.inline or b"") if part.path is None else found[part.path]
            for part in parts
        )
        updates = schema.updates
        return [fitted(table, updates.names, updates) for table in tables]

    def _keep(self, path: str, table: pa.Table) -> None:
        # A concurrent call may have read the same part: count it once.
        # The size of a table takes longer than the rest of this call.
        if not self.cache_bytes or path in self._kept or table.nbytes > self.cache_bytes:
            return
        self._kept[path] = table
        self._kept_bytes += table.nbytes
        while self._kept_bytes > self.cache_bytes:
            self._kept_bytes -= self._kept.popitem(last=False)[1].nbytes


def parts_until(state: State, as_of: int) -> list[Part]:
    """Return the parts that hold updates at times up to ``as_of``."""
    return [p for b in state.batches.until(as_of) for p in b.parts if p.time_min <= as_of]


def parts_between(state: State, after: int, until: int) -> list[Part]:
    """Return the parts that hold updates at times after ``after``, up to ``until``."""
    held = (p for b in state.batches.after(after) for p in b.parts)
    return [p for p in held if p.time_max > after and p.time_min <= until]
