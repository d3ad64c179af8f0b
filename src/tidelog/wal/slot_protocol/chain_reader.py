"""Reading a slot log past its manifest, slot by slot, several at once.

Nothing is concluded from a slot that is missing: whoever walks looks at the manifest again. Nor is
a seal believed before the manifest, read after it was met, has been seen not to have gone past it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from tidelog.clock import Clock, run_all
from tidelog.errors import ObjectNotFound
from tidelog.store.port import Store
from tidelog.wal.format.epoch import Epoch, Seal
from tidelog.wal.format.link import Link, Tail
from tidelog.wal.format.slot_object import decode_link
from tidelog.wal.read.head import load_head
from tidelog.wal.slot_protocol.chain import Step, has_passed, step
from tidelog.wal.slot_protocol.tail_listing import first_free_slot

READS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Passed:
    """One object that was walked past: what it means, its bytes and link, and the tail after it."""

    step: Step
    data: bytes
    link: Link
    tail: Tail


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReader:
    """Walks a log. At most ``reads`` slots are read at once."""

    store: Store
    clock: Clock
    reads: int = READS_MAX

    async def walk(self, tail: Tail, *, bounded: bool = False) -> AsyncIterator[Passed]:
        """Yield object after object from ``tail`` on, to the first slot that is missing, or a seal.

        A walk that is ``bounded`` lists each epoch when it comes there, and goes no further than
        the listing shows. So it ends however quickly the log is written; what was acknowledged
        before it began is in it.

        Raises:
            CorruptionError: one does not continue the log. LocationError: the store failed.
        """
        window, seen = self.reads if bounded else 1, None
        while True:
            if bounded and seen is None:
                seen = await first_free_slot(self.store, tail)
            count = window if seen is None else min(window, seen - tail.slot)
            reads = [
                partial(self._get, replace(tail, slot=tail.slot + number).path)
                for number in range(count)
            ]
            if not reads:
                return
            window = min(2 * window, self.reads)
            for data in await run_all(reads, at_once=self.reads):
                if data is None:
                    return
                path, epoch = tail.path, tail.epoch
                link = await self.clock.offload(partial(decode_link, data, path=path))
                tail, met = step(tail, link, len(data))
                if isinstance(met, Seal) and await self._is_stray(epoch, met):
                    return
                yield Passed(met, data, link, tail)
                if isinstance(met, Seal):
                    return
                if tail.epoch != epoch:
                    seen = None
                    break  # What else was read is void: it lies past the fence.

    async def _is_stray(self, epoch: Epoch, seal: Seal) -> bool:
        """Say whether a seal was put into a slot that was empty because it had been collected.

        A stray fence that opens an epoch needs no look: that epoch is empty, and leads to one.
        """
        manifest = (await load_head(self.store)).manifest
        return has_passed(manifest, epoch, seal.slot, None)

    async def _get(self, path: str) -> bytes | None:
        try:
            return (await self.store.get(path)).data
        except ObjectNotFound:
            return None
