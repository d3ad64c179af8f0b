"""Moves of a location's consensus to another place: the store, SQLite or PostgreSQL.

A move has these steps:

1. The marker states that a move has begun.
2. The mover fences each key, and copies its records with their seqnos to a place that no other move
   uses.
3. The mover switches the marker. At this moment the new place replaces the old one.
4. The mover writes the new place into the old keys.

After a crash before step 3, the old place stays in use; a writer gives the dead move up (see
`machine.guarded`). After a crash later, the new place is in use, and the marker's ``left`` states
that the old one must still be closed. The same move, begun again, resumes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from tidelog.consensus.kinds import (
    STORE,
    ConsensusPlace,
    check_there,
    open_consensus,
    parse_consensus,
)
from tidelog.consensus.port import Consensus, Copies, VersionedRecord
from tidelog.core.clock import Clock, backoff_us, wall_us
from tidelog.core.ids import SeqNo
from tidelog.errors import (
    ConsensusGone,
    ConsensusMoved,
    ContentionError,
    CorruptionError,
    LocationError,
    ObjectChanged,
)
from tidelog.location.marker import (
    MARKER,
    WITNESS,
    FormerPlace,
    Marker,
    MoveInProgress,
    encode_marker,
    read_marker,
)
from tidelog.machine.fence import MoveFence, encode_fence, fence_of
from tidelog.machine.guarded import MoveProgress
from tidelog.store.conditional import replace
from tidelog.store.port import Store

BEAT_US = 5_000_000
TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """A finished move: the place, and the numbers of copied keys and records (0 if no move)."""

    consensus: str
    keys: int = 0
    records: int = 0


@dataclass(slots=True, kw_only=True)
class MarkMoves:
    """The marker of a location, for a process that opened it after ``moves`` moves."""

    store: Store
    clock: Clock
    moves: int

    async def progress(self) -> MoveProgress:
        marker, _ = await load_marker(self.store)
        moving = marker.moving
        return MoveProgress(
            moved_to="" if marker.moves == self.moves else marker.consensus_at or marker.consensus,
            move="" if moving is None else moving.id,
            stamp=marker.stamp,
        )

    async def give_up(self, progress: MoveProgress) -> None:
        marker, e_tag = await load_marker(self.store)
        if marker.moving is None or marker.stamp != progress.stamp:
            return
        await _replaced(self.store, marker, e_tag, self.clock, moving=None)


async def load_marker(store: Store) -> tuple[Marker, str]:
    """Return the marker of a location, and the e_tag that proves the read.

    Raises:
        ObjectNotFound: the location has no marker.
        CorruptionError, UsageError: see `read_marker`.
    """
    stored = await store.get(MARKER)
    return read_marker(stored.data, where=store.url), stored.e_tag


async def move_consensus(
    store: Store, old: Consensus, to: ConsensusPlace, *, moves: int, clock: Clock
) -> MoveReport:
    """Move consensus from ``old``, which is in use since the marker counts ``moves``, to ``to``.

    Raises:
        ContentionError: other writers gave the move up at every try.
        ConsensusMoved: another process has moved it elsewhere.
        LocationError: a store or a database failed; the same call resumes.
    """
    await check_there(to, clock=clock)
    for attempt in range(TRIES):
        marker, e_tag = await load_marker(store)
        if marker.left is not None:
            try:
                await _close_left(store, marker, marker.left, clock=clock)
                continue
            except (LocationError, ConsensusGone):
                if _is_at(marker, to):
                    raise  # A move elsewhere need not wait: the left place may be lost for good.
        if _is_at(marker, to):
            return MoveReport(consensus=marker.consensus_at or marker.consensus)
        if marker.moves != moves:
            raise ConsensusMoved(
                "another process has moved the location's consensus: open the location again, and "
                "repeat the move if it is still needed",
                consensus=marker.consensus_at or marker.consensus,
            )
        wanted = to.told or to.kind
        moving = marker.moving
        if moving is None or moving.to != wanted:
            # This ends a move to another place: its mover finds the new id, and stops.
            moving = MoveInProgress(id=clock.unique(), to=wanted)
            if not await _replaced(store, marker, e_tag, clock, moving=moving):
                await clock.sleep(backoff_us(attempt, clock))
                continue
        mover = _Mover(
            store=store,
            clock=clock,
            old=old,
            new=open_consensus(to, location=moving.id, store=store, clock=clock),
            move=moving.id,
        )
        if await mover.copy() and await mover.switch(to):
            await mover.close()
            return MoveReport(consensus=wanted, keys=len(mover.fenced), records=mover.records)
    raise ContentionError(
        f"gave up after {TRIES} tries: other processes kept ending the move; try again"
    )


async def _close_left(store: Store, marker: Marker, left: FormerPlace, *, clock: Clock) -> None:
    """Close the place that a move left, instead of a mover that died or concurrently with it."""
    old = parse_consensus(left.at or left.consensus)
    new = parse_consensus(marker.consensus_at or marker.consensus)
    mover = _Mover(
        store=store,
        clock=clock,
        old=open_consensus(old, location=left.id, store=store, clock=clock, founded=True),
        new=open_consensus(new, location=marker.id, store=store, clock=clock, founded=True),
        move=marker.id,
    )
    await mover.close()


def _is_at(marker: Marker, to: ConsensusPlace) -> bool:
    return marker.consensus == to.kind and marker.consensus_at == to.told


async def _replaced(
    store: Store,
    marker: Marker,
    e_tag: str,
    clock: Clock,
    **changed: object,
) -> bool:
    """Replace the marker; return False if another process changed it first."""
    # The stamp makes each body unique: a store's e_tag may be a hash of the body.
    changed_marker = msgspec.structs.replace(marker, stamp=clock.unique(), **changed)
    try:
        await replace(store, MARKER, encode_marker(changed_marker), e_tag=e_tag, clock=clock)
    except ObjectChanged:
        return False
    return True


@dataclass(slots=True, kw_only=True)
class _Mover:
    """One move, and the progress of this process in it."""

    store: Store
    clock: Clock
    old: Consensus
    new: Copies
    move: str
    beaten_us: int = 0
    records: int = 0
    fenced: dict[str, SeqNo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.beaten_us = self.clock.monotonic_us()

    async def copy(self) -> bool:
        """Fence each key, and copy it; return False if another process gave the move up."""
        keys = [key async for key in self.old.list_keys()]
        await self.new.found()
        for key in keys:
            if not await self._beat():
                return False
            fence = await self._fence(key, MoveFence(self.move), is_there=self._is_ours)
            if fence is None:
                return False
            records = await self.old.scan(key, SeqNo(1))
            kept = [record for record in records if record.seqno <= fence]
            if not kept and not self._is_under_way((await load_marker(self.store))[0]):
                return False  # Another process completed the move, and truncated the old keys.
            await self.new.adopt(key, kept)
            head = await self.new.head(key)
            if head is None or head.seqno < fence or not kept:
                raise CorruptionError(
                    "the copy of a state differs from the original: repeat the move to an empty "
                    "place",
                    key=key,
                )
            self.fenced[key] = fence
            self.records += len(kept)
        return True

    async def switch(self, to: ConsensusPlace) -> bool:
        """Make the new place the current one; return False if a process gave the move up."""
        for attempt in range(TRIES):
            marker, e_tag = await load_marker(self.store)
            if _is_at(marker, to):
                return True  # Another process switched it for the same move.
            if not self._is_under_way(marker):
                return False
            switched = await _replaced(
                self.store, marker, e_tag, self.clock,
                moving=None, moves=marker.moves + 1,
                consensus=to.kind, consensus_at=to.told, id=self.move,
                left=FormerPlace(marker.consensus, marker.consensus_at, marker.id),
            )  # fmt: skip
            if switched:
                return True
            await self.clock.sleep(backoff_us(attempt, self.clock))
        return False

    async def close(self) -> None:
        """Write the new place into the old keys, and delete their other records."""
        # The marker names the former place until the end. If this process dies before, the next
        # call of `move_consensus` repeats all of these steps, and none of them harms twice.
        marker, e_tag = await load_marker(self.store)
        final = MoveFence(self.move, marker.consensus_at or marker.consensus)
        for key in [key async for key in self.old.list_keys()]:
            # The final fence comes first: a truncation keeps the newest record, which must name the
            # new place.
            seqno = await self._fence(key, final, is_there=lambda f: bool(f.moved_to))
            if seqno is not None:
                await self.old.truncate(key, seqno)
        # Without its marker, a location must not be taken for an empty folder. States in the store
        # prove that it exists, and with a database the witness does.
        if marker.consensus == STORE:
            await self.store.delete([WITNESS])
        else:
            await self.store.put(WITNESS, encode_marker(msgspec.structs.replace(marker, left=None)))
        await _replaced(self.store, marker, e_tag, self.clock, left=None)

    async def _fence(
        self, key: str, fence: MoveFence, *, is_there: Callable[[MoveFence], bool]
    ) -> SeqNo | None:
        """Make a fence the newest record of a key, and return its seqno.

        Return None if the newest record is a final fence: the location has moved.
        """
        while True:
            newest = await self.old.head(key)
            if newest is None:
                raise CorruptionError(
                    "a state disappeared during the move: restore it, then repeat the move", key=key
                )
            there = fence_of(newest.data)
            if there is not None and is_there(there):
                return newest.seqno
            if there is not None and there.moved_to:
                return None
            data = self._record(key, newest, fence)
            seqno = SeqNo(newest.seqno + 1)
            if await self.old.compare_and_set(key, seqno, data):
                return seqno

    def _record(self, key: str, newest: VersionedRecord, fence: MoveFence) -> bytes:
        at_us = wall_us(self.clock)
        return encode_fence(newest.data, fence, at_us=at_us, key=key, seqno=newest.seqno)

    def _is_ours(self, fence: MoveFence) -> bool:
        return fence.move == self.move and not fence.moved_to

    def _is_under_way(self, marker: Marker) -> bool:
        return marker.moving is not None and marker.moving.id == self.move

    async def _beat(self) -> bool:
        """Change the marker now and then as a sign of life; return False if the move is over."""
        now_us = self.clock.monotonic_us()
        if now_us - self.beaten_us < BEAT_US:
            return True
        marker, e_tag = await load_marker(self.store)
        if not self._is_under_way(marker):
            return False
        # If this loses a race, another process of the same move gave a sign of life.
        await _replaced(self.store, marker, e_tag, self.clock)
        self.beaten_us = now_us
        return True
