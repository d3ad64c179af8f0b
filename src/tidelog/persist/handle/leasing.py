"""Leased readers: their times and parts are kept as long as they renew their lease.

A background task renews the lease at each third of it, with one small write. A reader that dies, or
pauses for longer than its lease, loses it; its next step raises HoldExpired. Reads are correct
without a lease, too: merged parts are kept for an hour, and a slower reader starts again or gets an
error.
Source: persist, "Leasing"; design page 4, "Holds".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from weakref import ref

from tidelog.core.arguments import check_kind, check_whole
from tidelog.core.clock import Clock, in_time, wall_us
from tidelog.core.frontier import Frontier, join
from tidelog.errors import HoldExpired, LocationError, OutcomeUnknown, TidelogError, UsageError
from tidelog.machine.language import Decision
from tidelog.persist.handle.listening import reaching
from tidelog.persist.states.evolution import check_opened
from tidelog.persist.states.holding import (
    Lease,
    Watch,
    decide_keep,
    decide_lease,
    decide_renew,
    decide_watch,
)
from tidelog.persist.states.state import Diff, State

if TYPE_CHECKING:
    from tidelog.persist.handle.port import Progress, ShardHandle
    from tidelog.persist.read.snapshot import ShardSnapshot

RENEWALS: Final = 3  # Within the time of a lease.
LEASE_LEAST_US: Final = 1_000


@dataclass(slots=True, kw_only=True, weakref_slot=True)
class LeasedReader:
    """A reader whose times, and whose snapshots' and listeners' parts, are not deleted.

    ``since`` is the earliest time that it can read; the empty frontier if the shard was dropped.
    Units: ``until_us`` is the wall time, in microseconds, at which a fixed lease ends.
    """

    shard: ShardHandle
    name: str
    lease_us: int
    since: Frontier
    until_us: int | None = None
    _beating: asyncio.Task[None] | None = field(init=False, default=None)
    _failed: TidelogError | None = field(init=False, default=None)

    async def snapshot(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> ShardSnapshot:
        """Return the contents at ``as_of``; see `Shard.snapshot`.

        Its parts, and those of its splits, are kept until `move_hold` or `close`.

        Raises:
            HoldExpired: the lease is over.
        """
        self._check()
        return await self.shard.snapshot(
            as_of, columns=columns, where=where, wait=wait, timeout_us=timeout_us
        )

    async def listen(
        self,
        as_of: int,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        wait: bool = False,
    ) -> AsyncIterator[Progress]:
        """Yield all updates at times after ``as_of``; see `Shard.listen`.

        Call `move_hold` with the times that are processed, so that old times can be
        collected.

        Raises:
            HoldExpired: the lease is over.
        """
        self._check()
        found = self.shard.listen(as_of, columns=columns, where=where, wait=wait)
        async with aclosing(found):
            async for progress in found:
                self._check()
                yield progress

    async def move_hold(self, since: Frontier | int) -> Frontier:
        """Give up times before ``since``, and the parts of all earlier snapshots.

        Return the shard's since.

        Raises:
            HoldExpired: the lease is over. UsageError: ``since`` is past upper.
        """
        at = Frontier.of(since)
        found = await reaching(self.shard, at, self._renew)
        self.since = join([at, self.since])
        return found

    async def renew(self) -> None:
        """Renew the lease now, in addition to the renewals in the background.

        Raises:
            HoldExpired: the lease is over.
        """
        await self._renew(None)

    async def close(self) -> None:
        """Release the hold. Best effort, because the lease ends anyway."""
        await self.stop()
        self._failed = self._failed or HoldExpired(
            "this reader was closed, and its hold was released: open another reader", hold=self.name
        )
        with suppress(LocationError):
            await self.shard.drop_hold(self.name)

    async def stop(self) -> None:
        """Stop the renewals, so that the lease ends."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
            self._beating = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.close()

    def begin(self) -> None:
        """Start to renew the lease in the background."""
        work = _beat(ref(self), self.shard.clock, self.lease_us // RENEWALS)
        self._beating = asyncio.create_task(work, name=f"lease {self.name}")

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self.until_us is not None and wall_us(self.shard.clock) >= self.until_us:
            raise HoldExpired(
                "the term of this reader has ended, and a collector may have deleted the objects "
                "that it held: open a reader with a longer term",
                hold=self.name,
            )

    async def beat(self) -> bool:
        """Renew the lease; return False once it cannot be renewed."""
        try:
            await self._renew(None)
        except HoldExpired as error:
            self._failed = error
            return False
        except TidelogError:
            return True  # The store may recover before the lease ends.
        return True

    async def _renew(self, since: Frontier | None) -> Frontier:
        self._check()
        machine = self.shard.machine

        def decide(state: State) -> Decision[Diff, Frontier]:
            seqno = None if since is None else machine.seqno
            now_us = wall_us(self.shard.clock)
            return decide_renew(state, self.name, at_us=now_us, seqno=seqno, since=since)

        work = machine.commit(decide)
        return await in_time(self.shard.clock, work, self.shard.timeout_us, writes=True)


async def _beat(reader_of: ref[LeasedReader], clock: Clock, every_us: int) -> None:
    """Renew a lease periodically, until its reader is garbage-collected or its lease is over."""
    while True:
        await clock.sleep(every_us)
        reader = reader_of()
        if reader is None or not await reader.beat():
            return
        del reader


async def open_lease(
    shard: ShardHandle, since: Frontier | None, *, lease_us: int, is_fixed: bool, purpose: str
) -> LeasedReader:
    """Place a lease and return its reader; see `Shard.lease`."""
    check_whole(lease_us, "lease_us")
    check_kind(purpose, str, "the purpose of a lease must be a str")
    if lease_us < LEASE_LEAST_US:
        raise UsageError("lease_us must be at least 1,000 (a millisecond)", lease_us=lease_us)
    name = f"{'term' if is_fixed else 'reader'}-{shard.clock.unique()}"
    begun_us = wall_us(shard.clock)

    def decide(state: State) -> Decision[Diff, Frontier]:
        check_opened(state, shard.schema)
        # The decision uses the state of this seqno or the next; the smaller one holds more.
        lease = Lease(
            name=name,
            lease_us=lease_us,
            at_us=begun_us,
            seqno=shard.machine.seqno,
            since=since,
            is_fixed=is_fixed,
            purpose=purpose,
        )
        return decide_lease(state, lease)

    try:
        start = await shard.machine.commit(decide)
    except OutcomeUnknown:
        # Only this call uses the name, so a second decision finds the lease or places it.
        start = await shard.machine.commit(decide)
    reader = LeasedReader(
        shard=shard,
        name=name,
        lease_us=lease_us,
        since=start,
        until_us=begun_us + lease_us if is_fixed else None,
    )
    if not is_fixed and not start.is_empty:
        reader.begin()
    return reader


async def keep_lease(
    shard: ShardHandle, lease: Lease, *, moved_to: Frontier | None = None
) -> Frontier:
    """Place a lease, or renew it and move it forward; return its since: see `decide_keep`.

    Raises:
        UsageError: the hold would be before the shard's since, or past upper.
        LocationError: the store failed; the call can be repeated.
    """

    async def kept(at: Frontier | None) -> Frontier:
        asked, to = (replace(lease, since=at), None) if moved_to is None else (lease, at)
        work = shard.machine.commit(partial(decide_keep, lease=asked, moved_to=to))
        return await in_time(shard.clock, work, shard.timeout_us, writes=True)

    return await reaching(shard, lease.since if moved_to is None else moved_to, kept)


async def end_leases(shard: ShardHandle) -> int:
    """End the leases that no reader renews; return their number.

    This handle has watched them for their whole length, or an earlier process recorded their beats
    that long ago: on this machine, or on another one whose clock may differ by an hour. Beats that
    no process has recorded are recorded for the next process.
    """
    state = await shard.refresh()
    clock = shard.clock
    now_us, monotonic_us = wall_us(clock), clock.monotonic_us()
    overdue = shard.beats.overdue(state.holds, monotonic_us=monotonic_us, now_us=now_us)
    watch = Watch(at_us=now_us, monotonic_us=monotonic_us, boot=clock.boot())
    decide = partial(decide_watch, watch=watch, overdue=overdue)
    if decide(state).diff is None:
        return 0
    return await shard.machine.commit(decide)
