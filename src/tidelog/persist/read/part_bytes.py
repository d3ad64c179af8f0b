"""The bytes of parts: whole objects, which a thread checks and works on.

A change of the thread takes as long as the work on a small part. So one thread works on several
small parts, while others arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, TypeVar

from tidelog.core.clock import Clock, run_all
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.persist.format.part import Part, missing_part
from tidelog.store.port import Store
from tidelog.store.wrappers.checked import read_checked

T = TypeVar("T")
# It checks the bytes of a part, and raises CorruptionError if they differ from those written.
Work: TypeAlias = Callable[[Part, bytes], T]

SMALL_ROWS: Final = 65_536  # One thread works on parts of so many rows in all.
PARTS_TOGETHER: Final = 16


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
