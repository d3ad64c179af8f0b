"""Maintenance: rollups that shorten the first read of a state, and deletion of unnamed objects.

It adds few records: the next record of a change names a new rollup and a raised floor. Only a
process that may write no further record writes one for that alone. All of it is best effort. A
reader never sees a step half done, and a later call repeats or cleans up the steps that a crash
interrupted.
Source: persist, "Rollups" and "Garbage Collection".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol

from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock, wall_us
from tidelog.core.ids import SeqNo
from tidelog.errors import LocationError
from tidelog.machine import record as records
from tidelog.machine.language import D, Language, S
from tidelog.machine.record import History, HistoryGarbage, Rollup, RollupBody, plan_collection
from tidelog.store.port import Store


class MaintainedMachine(Protocol[S, D]):
    """The part of a `tidelog.machine.machine.Machine` that its maintenance uses."""

    key: str
    prefix: str
    language: Language[S, D]
    store: Store
    consensus: Consensus
    clock: Clock
    rollup_every: int
    vanished_us: int
    state: S
    seqno: SeqNo
    history: History

    async def append(self, diffs: tuple[D, ...], after: S) -> bool:
        """Write one record; return True if it landed."""
        ...


@dataclass(slots=True, eq=False)
class MachineMaintenance(Generic[S, D]):
    """The maintenance of one machine in this process."""

    machine: MaintainedMachine[S, D]
    _commits: int = field(init=False, default=0)
    _pending: Rollup | None = field(init=False, default=None)
    _collected: HistoryGarbage | None = field(init=False, default=None)
    _overtaken: list[str] = field(init=False, default_factory=list)

    def to_name(self, history: History) -> tuple[Rollup | None, int, int]:
        """Return the rollup, the floor and the erased seqno that the next record must state."""
        newest, pending = history.newest, self._pending
        if pending is not None and newest is not None and pending.seqno <= newest.seqno:
            # A record whose answer was lost names it, or another process's newer rollup overtook
            # it. In both cases this process may write its next rollup.
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
        """Do the maintenance that is due. Errors are ignored: the change itself has landed."""
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
        """Write a record for a waiting rollup or collection, in case no commit follows.

        Many processes commit once and end. Without this, each of them would write the same rollup
        and delete the same objects, and no record would ever state it.
        """
        waits = self._is_unnamed() or self._collected is not None
        if waits and self._commits < self.machine.rollup_every:
            await self.machine.append((), self.machine.state)
            await self._truncate()

    async def collect(self, after_us: int) -> int:
        """Delete all that is due; return the number of objects. See `Machine.collect`."""
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
        """Collect; then delete records up to the floor, and rollups that no record can name.

        A collector that dies after it raised the floor leaves both.
        """
        deleted = await self.collect(after_us)
        return deleted + await self.clear()

    async def clear(self) -> int:
        """Delete the remains of killed calls: records up to the floor, rollups and spills."""
        machine, history = self.machine, self.machine.history
        if history.floor:
            # The rollup at the floor includes the change of the record at the floor. A later record
            # raised the floor, so the newest record is never truncated.
            await machine.consensus.truncate(machine.key, SeqNo(history.floor + 1))
        named = {rollup.path for rollup in history.rollups}
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
        """Delete this process's rollups that no record can name because a newer one was named."""
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
        body = RollupBody(
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
        """Delete objects that vanished at least ``after_us`` ago; the next record states it."""
        machine = self.machine
        if self._collected is not None:
            return 0
        garbage = plan_collection(
            machine.history,
            machine.language.seqno_since(machine.state),
            before_us=wall_us(machine.clock) - after_us + 1,
            eager=eager,
        )
        if garbage is None:
            return 0
        # Delete before the record states it: after a crash in between, `gone` still lists the
        # objects and the next collection deletes them again. The other order could leave objects
        # forever.
        if garbage.objects:
            await machine.store.delete(list(garbage.objects))
        self._collected = garbage
        return len(garbage.objects)

    async def _truncate(self) -> int:
        """Delete records and rollups below the floor, once a record of this process raised it."""
        done, history = self._collected, self.machine.history
        # Only after the record: until then, readers start from the rollups that these deletes
        # remove.
        if done is None or history.floor < done.floor or history.erased < done.erased:
            return 0
        self._collected = None
        if history.floor > done.floor or not done.raises_floor:
            return 0  # Another process raised the floor further and deletes below it.
        await self.machine.consensus.truncate(self.machine.key, SeqNo(done.floor))
        if done.rollups:
            await self.machine.store.delete(list(done.rollups))
        return len(done.rollups)
