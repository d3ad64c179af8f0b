"""Upkeep: rollups that shorten what a newcomer reads, and the deletion of what nothing names.

It rides along: a rollup that was written is named by the next record, and so is the floor that a
collection raises, so that neither costs a record. All of it is best effort, and none of it is ever
half done in a way that somebody could read: what a crash leaves is done again, or swept.
Source: persist, "Rollups" and "Garbage Collection".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic

from tidelog.errors import LocationError
from tidelog.ids import SeqNo
from tidelog.machine import record as records
from tidelog.machine.history import Collectible, History, missing_records, plan_collection
from tidelog.machine.language import D, S
from tidelog.machine.record import RolledUp, Rollup

if TYPE_CHECKING:
    from tidelog.machine.machine import Machine


@dataclass(slots=True, eq=False)
class Upkeep(Generic[S, D]):
    """The upkeep of one machine, by this process."""

    machine: Machine[S, D]
    _pending: Rollup | None = field(init=False, default=None)
    _collected: Collectible | None = field(init=False, default=None)

    def to_name(self, history: History) -> tuple[Rollup | None, int]:
        """Return the newest rollup, and the floor, that the next record names."""
        newest, pending = history.newest, self._pending
        if pending is not None and newest is not None and pending.seqno <= newest.seqno:
            # Named by a record whose answer was lost, or overtaken: the next one can be written.
            pending = self._pending = None
        floor = self._collected.floor if self._collected is not None else 0
        return pending or newest, max(history.floor, floor)

    async def after_commit(self) -> None:
        """Do what has become due. Best effort: the change that it follows has landed."""
        try:
            await self._truncate()
            await self._delete()
            await self._roll_up()
        except LocationError:
            return

    async def collect(self) -> int:
        """Delete all that may go now; return how many objects were named. See `Machine.collect`."""
        machine = self.machine
        newest = machine.history.newest
        if any(at > (newest.seqno if newest else 0) for at, _ in machine.history.vanished):
            await self._roll_up(due=1)
        if self._is_unnamed():
            await machine.append((), machine.state)
        deleted = await self._delete()
        if self._collected is not None and await machine.append((), machine.state):
            deleted += await self._truncate()
        return deleted

    def _is_unnamed(self) -> bool:
        newest = self.machine.history.newest
        return self._pending is not None and (newest is None or newest.seqno < self._pending.seqno)

    async def _roll_up(self, *, due: int | None = None) -> bool:
        """Write a rollup if one is due; say whether one was written."""
        machine, newest = self.machine, self.machine.history.newest
        since = machine.seqno - (newest.seqno if newest else 0)
        if since < (machine.rollup_every if due is None else due) or self._is_unnamed():
            return False
        body = RolledUp(
            state=machine.language.encode_state(machine.state),
            floor=machine.history.floor,
            rollups=machine.history.rollups,
        )
        data = records.encode_rollup(body)
        path = records.rollup_path(machine.prefix, machine.seqno, machine.clock.unique())
        await machine.store.put(path, data)
        self._pending = records.describe_rollup(machine.seqno, path, data)
        return True

    async def _delete(self) -> int:
        """Delete the objects that no state from the new floor on names; then it may rise."""
        machine = self.machine
        since = machine.language.seqno_since(machine.state)
        if plan_collection(machine.history, since) is None or self._collected is not None:
            return 0
        found = plan_collection(machine.history, since, await self._older())
        if found is None:
            return 0
        if found.objects:
            await machine.store.delete(list(found.objects))
        self._collected = found
        return len(found.objects)

    async def _older(self) -> list[tuple[int, list[str]]]:
        """Return what records made vanish of which this process has read only a rollup."""
        machine, missing = self.machine, missing_records(self.machine.history)
        if missing is None:
            return []
        first, last = missing
        found = await machine.consensus.scan(machine.key, SeqNo(first), last - first + 1)
        return [
            (
                one.seqno,
                [
                    path
                    for data in records.decode_record(
                        one.data, key=machine.key, seqno=one.seqno
                    ).diffs
                    for path in machine.language.vanished(machine.language.decode_diff(data))
                ],
            )
            for one in found
        ]

    async def _truncate(self) -> int:
        """Drop the records and rollups below a floor that a record of ours has raised."""
        done = self._collected
        if done is None or self.machine.history.floor < done.floor:
            return 0
        self._collected = None
        if self.machine.history.floor > done.floor:
            return 0  # Somebody else has raised it further, and drops what is below.
        await self.machine.consensus.truncate(self.machine.key, SeqNo(done.floor))
        if done.rollups:
            await self.machine.store.delete(list(done.rollups))
        return len(done.rollups)
