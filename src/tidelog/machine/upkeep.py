"""Upkeep: rollups that shorten what a newcomer reads, and the deletion of what nothing names.

It rides along: a rollup that was written is named by the next record, and so is the floor that a
collection raises, so that neither costs a record, but where a process may have no next one. All of
it is best effort, and none of it is ever half done in a way that somebody could read: what a crash
leaves is done again, or swept.
Source: persist, "Rollups" and "Garbage Collection".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic

from tidelog.clock import wall_us
from tidelog.errors import LocationError
from tidelog.ids import SeqNo
from tidelog.machine import record as records
from tidelog.machine.history import Collectible, History, plan_collection
from tidelog.machine.language import D, S
from tidelog.machine.record import RolledUp, Rollup

if TYPE_CHECKING:
    from tidelog.machine.machine import Machine


@dataclass(slots=True, eq=False)
class Upkeep(Generic[S, D]):
    """The upkeep of one machine, by this process."""

    machine: Machine[S, D]
    _commits: int = field(init=False, default=0)
    _pending: Rollup | None = field(init=False, default=None)
    _collected: Collectible | None = field(init=False, default=None)
    _overtaken: list[str] = field(init=False, default_factory=list)

    def to_name(self, history: History) -> tuple[Rollup | None, int, int]:
        """Return the newest rollup, the floor, and what is erased, that the next record names."""
        newest, pending = history.newest, self._pending
        if pending is not None and newest is not None and pending.seqno <= newest.seqno:
            # Named by a record whose answer was lost, or overtaken: the next one can be written.
            if pending not in history.rollups:
                self._overtaken.append(pending.path)
            pending = self._pending = None
        done = self._collected
        if done is None:
            return pending or newest, history.floor, history.erased
        return (
            pending or newest,
            max(history.floor, done.floor),
            max(history.erased, done.erased),
        )

    async def after_commit(self) -> None:
        """Do what has become due. Best effort: the change that it follows has landed."""
        self._commits += 1
        try:
            await self._truncate()
            await self._delete(self.machine.vanished_us)
            await self._roll_up()
            await self._name_at_once()
            await self._sweep()
        except LocationError:
            return

    async def _name_at_once(self) -> None:
        """Name what waits for the next record, where there may be none.

        Of many processes that each commit once and end, each would write the rollup that is due,
        and delete what may go, and no record would ever say so.
        """
        waits = self._is_unnamed() or self._collected is not None
        if waits and self._commits < self.machine.rollup_every:
            await self.machine.append((), self.machine.state)
            await self._truncate()

    async def collect(self, after_us: int) -> int:
        """Delete all that may go now; return how many objects were named. See `Machine.collect`."""
        machine = self.machine
        if self._is_unnamed():
            await machine.append((), machine.state)
        deleted = await self._delete(after_us, eager=True)
        if self._collected is not None and await machine.append((), machine.state):
            deleted += await self._truncate()
        return deleted

    async def roll_up_now(self) -> None:
        """Write a rollup of the newest state, unless one waits, and name it in a record.

        The record is not written if another process writes one first.
        """
        if not self._is_unnamed():
            await self._write_rollup()
        await self.machine.append((), self.machine.state)

    async def settle(self, after_us: int) -> int:
        """Collect; then delete records up to the floor, and rollups that no record will name.

        A collector that died after it raised the floor leaves both.
        """
        deleted = await self.collect(after_us)
        return deleted + await self.clear()

    async def clear(self) -> int:
        """Delete what killed calls left: records up to the floor, rollups and spills."""
        machine, history = self.machine, self.machine.history
        if history.floor:
            # The rollup at the floor has the change of that record; a later one raised the floor.
            await machine.consensus.truncate(machine.key, SeqNo(history.floor + 1))
        named = {one.path for one in history.rollups}
        listed = [entry.key async for entry in machine.store.list(f"{machine.prefix}/rollup/")]
        dead = [
            path
            for path in listed
            if path not in named and 0 <= records.rollup_seqno(path) <= history.rolled_up
        ]
        if dead:
            await machine.store.delete(dead)
        return len(dead) + await machine.consensus.sweep(machine.key)

    async def _sweep(self) -> int:
        """Delete rollups of ours that no record names, nor can: others were named instead."""
        gone = self._overtaken
        if gone:
            await self.machine.store.delete(gone)
            self._overtaken = []
        return len(gone)

    def _is_unnamed(self) -> bool:
        newest = self.machine.history.newest
        return self._pending is not None and (newest is None or newest.seqno < self._pending.seqno)

    async def _roll_up(self) -> None:
        """Write a rollup if one is due."""
        machine, newest = self.machine, self.machine.history.newest
        since = machine.seqno - (newest.seqno if newest else 0)
        if since >= machine.rollup_every and not self._is_unnamed():
            await self._write_rollup()

    async def _write_rollup(self) -> None:
        machine = self.machine
        body = RolledUp(
            state=machine.language.encode_state(machine.state),
            floor=machine.history.floor,
            rollups=machine.history.rollups,
            erased=machine.history.erased,
            gone=machine.history.gone,
        )
        data = records.encode_rollup(body)
        path = records.rollup_path(machine.prefix, machine.seqno, machine.clock.unique())
        await machine.store.put(path, data)
        self._pending = records.describe_rollup(machine.seqno, path, data)

    async def _delete(self, after_us: int, *, eager: bool = False) -> int:
        """Delete objects that vanished ``after_us`` ago, or longer; the next record says so."""
        machine = self.machine
        if self._collected is not None:
            return 0
        found = plan_collection(
            machine.history,
            machine.language.seqno_since(machine.state),
            before_us=wall_us(machine.clock) - after_us + 1,
            eager=eager,
        )
        if found is None:
            return 0
        if found.objects:
            await machine.store.delete(list(found.objects))
        self._collected = found
        return len(found.objects)

    async def _truncate(self) -> int:
        """Drop the records and rollups below a floor that a record of ours has raised."""
        done, history = self._collected, self.machine.history
        if done is None or history.floor < done.floor or history.erased < done.erased:
            return 0
        self._collected = None
        if history.floor > done.floor or not done.raises_floor:
            return 0  # Somebody else has raised it further, and drops what is below.
        await self.machine.consensus.truncate(self.machine.key, SeqNo(done.floor))
        if done.rollups:
            await self.machine.store.delete(list(done.rollups))
        return len(done.rollups)
