"""Cursors of a log: each write is conditional on the version read.

A cursor races with a collection, because the collector may have read the cursors before this one
was written. So a process that creates a cursor, moves one back, or takes one over reads the plan
afterwards, and then the manifest. The collector writes its plan, and then reads the cursors again.
One of the two sees the other, and gives up. A forward move needs no check: at each moment either
the old or the new position is stored, and both are held.

Invariants: the holder of a `Witness` can read all records from its position on, until the cursor is
moved or deleted. Two writes of cursors never have the same bytes, because ``writer`` ends in an id.
Source: wal3, "Cursoring" and "Timing Assumptions"; docs/internals/wal3.md.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tidelog.core.clock import Clock, backoff_us, run_all, wall_us
from tidelog.core.lookahead import AT_ONCE_MAX
from tidelog.errors import (
    BusyError,
    CorruptionError,
    CursorMoved,
    LocationError,
    NoSuchCursor,
    ObjectChanged,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    PositionCollected,
    UsageError,
)
from tidelog.store.conditional import create, replace
from tidelog.store.port import Store
from tidelog.wal.format.cursor import (
    CURSORS,
    Cursor,
    check_length,
    cursor_name,
    cursor_path,
    decode_cursor,
    encode_cursor,
)
from tidelog.wal.format.manifest import FIRST_POSITION
from tidelog.wal.gc.plan_file import PlanFile
from tidelog.wal.read.head import load_living, read_decoded
from tidelog.wal.slot_protocol.reader import SlotReader

LOOKS_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Witness:
    """A cursor as it was read or written, with its version.

    Shape: ``position`` is the first record that the cursor holds. ``cursor`` also has the writer
    and the time of the write. ``e_tag`` is the version that `Log.move_cursor` replaces.
    """

    name: str
    cursor: Cursor
    e_tag: str

    @property
    def position(self) -> int:
        return self.cursor.position


@dataclass(slots=True)
class CursorList:
    """All cursors by name, and the keys in their folder that are not valid names."""

    cursors: dict[str, Cursor] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Cursors:
    """The cursors of the log at the root of ``store``. ``writer`` is a name for people."""

    store: Store
    clock: Clock
    writer: str

    async def load(self, name: str) -> Witness:
        """Read a cursor.

        A plan past the cursor may be older than the cursor, and will then be removed. So this waits
        up to about 15 seconds for the fate of such a plan.

        Raises:
            NoSuchCursor: the cursor does not exist.
            PositionCollected: the log was collected past the cursor, because its creator died
            before its check. The cursor holds back all further collection until it is deleted.
            BusyError: a plan past the cursor exists, and no collector works on it: collect, and
            load again.
            CorruptionError: the cursor cannot be read.
        """
        try:
            witness = await self._read(name)
        except ObjectNotFound:
            await load_living(self.store)
            raise NoSuchCursor("the log has no cursor of that name: create it", name=name) from None
        for attempt in range(LOOKS_MAX):
            planned, oldest = await self._look()
            if oldest > witness.position:
                witness = await self._moved_on(witness, oldest)
                continue
            if planned <= witness.position:
                return witness
            await self.clock.sleep(backoff_us(attempt, self.clock, first_us=50_000))
        raise BusyError(
            "a killed collector has left a plan to delete records that the cursor holds: collect "
            "the log, which finishes the plan, then read the cursor again",
            name=name,
            position=witness.position,
        )

    async def create(self, name: str, position: int) -> Witness:
        """Create a cursor that holds ``position`` and all later records.

        Raises:
            UsageError: the position is beyond the log's end, or the name is invalid.
            CursorMoved: the cursor exists. NOT_APPLIED.
            PositionCollected: the records were collected, or a collection is about to delete them.
            If the collection was concurrent, the cursor exists at the log's start.
            OutcomeUnknown: the store failed after the cursor was or may have been written: load it.
        """
        path = cursor_path(name)
        check_length(name, of="cursor")
        await self._check(position)
        written = self._cursor(position)
        try:
            e_tag = await create(
                self.store, path, encode_cursor(written), clock=self.clock, replaceable=True
            )
        except ObjectExists as error:
            raise CursorMoved(
                "the log already has a cursor of that name: move it, or choose another name",
                name=name,
            ) from error
        return await self._held(Witness(name, written, e_tag), back_to=None)

    async def save(self, witness: Witness, position: int, *, allow_back: bool = False) -> Witness:
        """Move a cursor if no other process has moved it since ``witness`` was read.

        Raises:
            UsageError: the position is beyond the log's end, or it is lower than the cursor's and
            ``allow_back`` is False.
            CursorMoved: another process moved or deleted it; load it and decide again. NOT_APPLIED.
            PositionCollected: the records to go back to were collected, or a collection is about to
            delete them. The cursor is at its old position.
            OutcomeUnknown: the store failed after the cursor was or may have been moved: load it.
        """
        is_back = position < witness.position
        if is_back and not allow_back:
            raise UsageError(
                "the new position is before the cursor: pass allow_back=True to move it back",
                name=witness.name,
                position=position,
                stands_at=witness.position,
            )
        await self._check(position)
        moved = await self._replace(witness, position)
        return await self._held(moved, back_to=witness.position) if is_back else moved

    async def delete(self, name: str) -> None:
        """Delete a cursor, if it exists.

        A delete has no condition, so the caller must know that no process creates the cursor again.
        """
        await self.store.delete([cursor_path(name)])

    async def refuse_missing(self, name: str) -> None:
        """Raise an error if a cursor does not exist, without decoding it.

        Raises:
            NoSuchCursor: the cursor does not exist.
        """
        path = cursor_path(name)
        try:
            await self.store.get(path)
        except ObjectNotFound:
            await load_living(self.store)
            raise NoSuchCursor("the log has no cursor of that name", name=name) from None

    async def list(self) -> CursorList:
        """Read all cursors concurrently; skip those that are deleted during the call.

        Raises:
            CorruptionError: a cursor cannot be read.
        """
        keys = [entry.key async for entry in self.store.list(CURSORS)]
        names = {key: name for key in keys if (name := cursor_name(key)) is not None}
        work = [partial(self._read_if_there, name) for name in names.values()]
        read = await run_all(work, at_once=AT_ONCE_MAX)
        return CursorList(
            cursors={found.name: found.cursor for found in read if found is not None},
            foreign=[key for key in keys if key not in names],
        )

    async def _read_if_there(self, name: str) -> Witness | None:
        try:
            return await self._read(name)
        except ObjectNotFound:
            return None

    async def _read(self, name: str) -> Witness:
        path = cursor_path(name)
        return await read_decoded(
            self.store,
            path,
            lambda read: Witness(name, decode_cursor(read.data, where=path), read.e_tag),
        )

    async def _replace(self, witness: Witness, position: int) -> Witness:
        written = self._cursor(position)
        try:
            e_tag = await replace(
                self.store,
                cursor_path(witness.name),
                encode_cursor(written),
                e_tag=witness.e_tag,
                clock=self.clock,
            )
        except ObjectChanged as error:
            raise CursorMoved(
                "another process moved or dropped the cursor: read it again, and decide again",
                name=witness.name,
            ) from error
        return Witness(witness.name, written, e_tag)

    async def _held(self, witness: Witness, *, back_to: int | None) -> Witness:
        """Check whether a collection went past the cursor just written, and undo the write if so.

        The undo is a conditional forward move. A delete has no condition, and could hit a process
        that has taken the cursor over.
        """
        try:
            kept = max(await self._look())
        except (LocationError, CorruptionError) as error:  # The cursor is stored in any case.
            raise OutcomeUnknown(
                "the cursor was written, but the check for a concurrent collector failed: read "
                "the cursor again, which repeats the check",
                name=witness.name,
                reason=error,
            ) from error
        if kept <= witness.position:
            return witness
        # Another process that has moved it since has made its own check.
        with suppress(CursorMoved, OutcomeUnknown):
            await self._replace(witness, kept if back_to is None else back_to)
        raise _collected(witness.position, kept)

    async def _moved_on(self, witness: Witness, oldest: int) -> Witness:
        """Read a cursor again that the log was collected past: its holder may just have moved it.

        Raises:
            PositionCollected: the cursor has not moved.
            NoSuchCursor: the cursor was deleted.
        """
        try:
            newer = await self._read(witness.name)
        except ObjectNotFound:
            raise NoSuchCursor(
                "the log has no cursor of that name: create it", name=witness.name
            ) from None
        if newer.position <= witness.position:
            raise _collected(witness.position, oldest)
        return newer

    async def _look(self) -> tuple[int, int]:
        """Return the first position that no plan deletes, and the log's oldest position.

        Read the plan first: if it disappears between the reads, the manifest shows its result.
        """
        plan = (await PlanFile(store=self.store, clock=self.clock).read()).plan
        # An empty plan may be left over from an aborted copy at this location.
        planned = FIRST_POSITION if plan.is_empty else plan.first_to_keep
        return planned, (await load_living(self.store)).manifest.oldest

    async def _check(self, position: int) -> None:
        manifest = (await load_living(self.store)).manifest
        following = manifest.next
        if manifest.chain is not None and position > following:
            # The manifest of a slot log may lag behind its end.
            following = (await SlotReader(store=self.store, clock=self.clock).bounds()).next
        if not FIRST_POSITION <= position <= following:
            raise UsageError(
                "a cursor's position must be from the log's oldest to its next position",
                position=position,
                oldest=manifest.oldest,
                next=following,
            )
        if position < manifest.oldest:
            raise _collected(position, manifest.oldest)

    def _cursor(self, position: int) -> Cursor:
        return Cursor(
            position=position,
            epoch_us=wall_us(self.clock),
            writer=f"{self.writer} {self.clock.unique()}",
        )


def _collected(position: int, kept: int) -> PositionCollected:
    return PositionCollected(
        f"the records since {position} were collected, or a collector is deleting them: start "
        f"from {kept}",
        oldest=kept,
    )
