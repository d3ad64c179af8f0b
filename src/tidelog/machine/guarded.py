"""Guarded consensus: the access that every process uses, so that a move loses no write.

The location's marker decides where consensus is, and it is replaced by a conditional put. A move
fences each key, copies it, and then switches the marker. These rules keep a process from writing to
the old place after the switch:

- A process that finds a fence as the newest record reads the marker. While the move is under way,
  it waits before it writes after the fence. If the marker does not change for ``patience_us``, the
  process gives the move up.
- A process that writes the first record of a key reads the marker directly after the write. If no
  move has begun by then, the key existed before any move listed the keys, so the move copies it.
- A process reads the marker before it writes the second record of a key, because the first writer
  may have died before its own check. If no move has begun by then, a later move lists the key.

Source: persist, "Consensus".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tidelog.consensus.port import Consensus, KeyRecord, VersionedRecord
from tidelog.core.clock import Clock, backoff_us
from tidelog.core.ids import SeqNo
from tidelog.errors import ConsensusMoved, LocationError, Outcome
from tidelog.machine.fence import fence_of

PATIENCE_US = 30_000_000


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """The move that the marker states: the new place after a move, or the move under way.

    ``stamp`` changes as long as the mover is alive.
    """

    moved_to: str = ""
    move: str = ""
    stamp: str = ""


class MoveMark(Protocol):
    """The part of the location's marker that states moves."""

    async def progress(self) -> MoveProgress:
        """Read the marker."""
        ...

    async def give_up(self, progress: MoveProgress) -> None:
        """End this move, unless it ended or its stamp changed after ``progress`` was read."""
        ...


@dataclass(slots=True, kw_only=True)
class GuardedConsensus:
    """Consensus with the rules of this module. After a move every call raises `ConsensusMoved`."""

    inner: Consensus
    moves: MoveMark
    clock: Clock
    patience_us: int = PATIENCE_US
    _gone: str = field(init=False, default="")
    _over: dict[str, int] = field(init=False, default_factory=dict)
    _fenced: dict[str, tuple[int, str]] = field(init=False, default_factory=dict)

    async def head(self, key: str) -> VersionedRecord | None:
        self._check_here()
        newest = await self.inner.head(key)
        await self._look(key, newest)
        return newest

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[VersionedRecord]:
        self._check_here()
        records = await self.inner.scan(key, start, limit)
        if records:
            await self._look(key, records[-1])
        elif start <= 1 or key in self._fenced:
            # A key without records here may have records at the new place: read the marker.
            await self._progress()
        return records

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        return await self.compare_and_set_all([KeyRecord(key, seqno, data)])

    async def compare_and_set_all(self, records: Sequence[KeyRecord]) -> bool:
        self._check_here()
        for one in records:
            # Only a record directly after the fence can land: the fence has its own seqno, and
            # seqnos are dense. The mover copies records up to its fence, so a record after it would
            # be lost.
            fenced_at, move = self._fenced.get(one.key, (0, ""))
            if fenced_at and fenced_at == one.seqno - 1:
                # Only that move matters: a later one fences the key again. Either its fence or this
                # record gets the seqno, and the other write finds it taken.
                await self._wait_out(move)
                self._fenced.pop(one.key, None)
        seqnos = {one.seqno for one in records}
        if 2 in seqnos:
            await self._wait_out()
        landed = await self.inner.compare_and_set_all(records)
        if landed and 1 in seqnos:
            try:
                await self._wait_out()
            except (ConsensusMoved, LocationError) as error:
                error.outcome = Outcome.UNKNOWN  # The move may have copied the records, or not.
                raise
        return landed

    async def truncate(self, key: str, before: SeqNo) -> int:
        self._check_here()
        return await self.inner.truncate(key, before)

    async def sweep(self, key: str) -> int:
        self._check_here()
        return await self.inner.sweep(key)

    async def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        await self._progress()
        async for key in self.inner.list_keys(prefix):
            yield key

    async def _look(self, key: str, newest: VersionedRecord | None) -> None:
        """If the newest record is a fence, read the marker to decide whether the key is closed."""
        fence = None if newest is None else fence_of(newest.data)
        if newest is None or fence is None:
            self._fenced.pop(key, None)
            return
        if fence.moved_to:
            self._leave(fence.moved_to)
        if self._over.get(key) == newest.seqno:
            return
        progress = await self._progress()
        if progress.move:
            # This holds for any fence, not only that of the current move: a mover that was
            # overtaken may have written its fence above the current one.
            self._fenced[key] = (newest.seqno, progress.move)
        else:
            # No move is under way, so this fence is void. A later move must write its fence after
            # this record, so the marker need not be read for it again.
            self._over[key] = newest.seqno
            self._fenced.pop(key, None)

    async def _wait_out(self, move: str = "") -> None:
        """Wait until the move ``move`` has ended (default: any move); give up one that seems dead.

        Raises:
            ConsensusMoved: the location has moved. LocationError: the store failed.
        """
        seen, since = MoveProgress(), self.clock.monotonic_us()
        attempt = 0
        while (progress := await self._progress()).move and (not move or progress.move == move):
            now_us = self.clock.monotonic_us()
            if progress != seen:
                seen, since = progress, now_us
            if now_us - since >= self.patience_us:
                await self.moves.give_up(progress)
                continue
            await self.clock.sleep(backoff_us(attempt, self.clock, most_us=1_000_000))
            attempt += 1

    async def _progress(self) -> MoveProgress:
        self._check_here()
        progress = await self.moves.progress()
        if progress.moved_to:
            self._leave(progress.moved_to)
        return progress

    def _check_here(self) -> None:
        if self._gone:
            self._leave(self._gone)

    def _leave(self, moved_to: str) -> None:
        self._gone = moved_to
        raise ConsensusMoved(
            "another process moved the location's consensus after this one opened the location: "
            "open it again, or run the command again",
            consensus=moved_to,
        )
