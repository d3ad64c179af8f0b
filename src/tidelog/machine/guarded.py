"""Consensus that may be moved away: what every process uses, and what keeps it off after a move.

One place decides: the location's mark, replaced on condition. A move fences each key, copies it,
and switches the mark; so that no write lands where nobody looks any more,
- whoever meets a fence as the newest record asks the mark what it means (`fence`), and waits while
  the move is under way; longer than ``patience_us`` without a sign of it, and the move is given up;
- a key that a process makes is asked for in the mark right after: unless a move had begun by then,
  it was there before any move listed the keys;
- a second record is written only once the mark was asked: so from then on the first one is known to
  have been in time.
Source: persist, "Consensus".
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from tidelog.clock import Clock, backoff_us
from tidelog.consensus.port import Consensus, Versioned
from tidelog.errors import ConsensusMoved, LocationError, Outcome
from tidelog.ids import SeqNo
from tidelog.machine.fence import fence_of

PATIENCE_US = 30_000_000


@dataclass(frozen=True, slots=True)
class MoveStanding:
    """What the mark says: where consensus is now, if elsewhere; the move that is under way.

    ``stamp`` changes as long as somebody is at work on the move.
    """

    moved_to: str = ""
    move: str = ""
    stamp: str = ""


class MoveMark(Protocol):
    """The mark, as far as moves are concerned."""

    async def standing(self) -> MoveStanding:
        """Read it."""
        ...

    async def give_up(self, standing: MoveStanding) -> None:
        """End the move that is under way, unless there was a sign of it, or it ended, since."""
        ...


@dataclass(slots=True, kw_only=True)
class GuardedConsensus:
    """See the module. Once a location has moved, every call says so."""

    inner: Consensus
    moves: MoveMark
    clock: Clock
    patience_us: int = PATIENCE_US
    _gone: str = field(init=False, default="")
    _over: dict[str, int] = field(init=False, default_factory=dict)
    _fenced: dict[str, tuple[int, str]] = field(init=False, default_factory=dict)

    async def head(self, key: str) -> Versioned | None:
        self._check_here()
        found = await self.inner.head(key)
        await self._look(key, found)
        return found

    async def scan(self, key: str, start: SeqNo, limit: int | None = None) -> list[Versioned]:
        self._check_here()
        found = await self.inner.scan(key, start, limit)
        if found:
            await self._look(key, found[-1])
        elif start <= 1 or key in self._fenced:
            # What nobody wrote here may be written elsewhere by now.
            await self._standing()
        return found

    async def compare_and_set(self, key: str, seqno: SeqNo, data: bytes) -> bool:
        self._check_here()
        fenced_at, move = self._fenced.get(key, (0, ""))
        if fenced_at and fenced_at == seqno - 1:
            await self._wait_out(move)
            self._fenced.pop(key, None)
        if seqno == 2:
            await self._wait_out()
        landed = await self.inner.compare_and_set(key, seqno, data)
        if landed and seqno == 1:
            try:
                await self._wait_out()
            except (ConsensusMoved, LocationError) as error:
                error.outcome = Outcome.UNKNOWN  # It may have been copied, or not.
                raise
        return landed

    async def truncate(self, key: str, before: SeqNo) -> int:
        self._check_here()
        return await self.inner.truncate(key, before)

    async def sweep(self, key: str) -> int:
        self._check_here()
        return await self.inner.sweep(key)

    async def list_keys(self, prefix: str = "") -> AsyncIterator[str]:
        await self._standing()
        async for key in self.inner.list_keys(prefix):
            yield key

    async def _look(self, key: str, newest: Versioned | None) -> None:
        """Find out what a fence means, if one is newest."""
        fence = None if newest is None else fence_of(newest.data)
        if newest is None or fence is None:
            self._fenced.pop(key, None)
            return
        if fence.moved_to:
            self._leave(fence.moved_to)
        if self._over.get(key) == newest.seqno:
            return
        standing = await self._standing()
        if standing.move:
            # Also if the fence is another's, who was overtaken and did not know it: that of the
            # move that is under way may lie below.
            self._fenced[key] = (newest.seqno, standing.move)
        else:
            # From here on a move has to fence the key after this record.
            self._over[key] = newest.seqno
            self._fenced.pop(key, None)

    async def _wait_out(self, move: str = "") -> None:
        """Wait until no move, or not this one, is under way; give it up when it seems dead.

        Raises:
            ConsensusMoved: the location has moved. LocationError: the store failed.
        """
        seen, since = MoveStanding(), self.clock.monotonic_us()
        attempt = 0
        while (standing := await self._standing()).move and (not move or standing.move == move):
            now_us = self.clock.monotonic_us()
            if standing != seen:
                seen, since = standing, now_us
            if now_us - since >= self.patience_us:
                await self.moves.give_up(standing)
                continue
            await self.clock.sleep(backoff_us(attempt, self.clock, most_us=1_000_000))
            attempt += 1

    async def _standing(self) -> MoveStanding:
        self._check_here()
        found = await self.moves.standing()
        if found.moved_to:
            self._leave(found.moved_to)
        return found

    def _check_here(self) -> None:
        if self._gone:
            self._leave(self._gone)

    def _leave(self, moved_to: str) -> None:
        self._gone = moved_to
        raise ConsensusMoved(
            "the location's consensus was moved since it was opened: open the location again, or "
            "begin the command anew",
            consensus=moved_to,
        )
