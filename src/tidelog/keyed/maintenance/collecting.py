"""Collection: delete data that was compacted, merged or retired long ago, and unnamed objects.

The wal is erased up to the point that runs covered ``after_us`` ago, by means of a cursor. A reader
with a state younger than that therefore finds everything that its state names. A listing finds the
objects of runs that were written but never named. The write epoch in their path distinguishes them
from runs under construction. It rises at most once per ``after_us``, so that the writer of a run or
a batch has that much time.
Source: design page 5; anchors (1.8); persist, "Garbage Collection".
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from tidelog.core.clock import wall_us
from tidelog.errors import CursorMoved, NoSuchCursor, PositionCollected
from tidelog.keyed.maintenance.forks import Forks
from tidelog.keyed.read.state_handle import KeyedStateHandle
from tidelog.keyed.states.forking import decide_leave_origin
from tidelog.keyed.states.language import prefix_of
from tidelog.keyed.states.state import KeyedState
from tidelog.keyed.states.transition import (
    EPOCHS_LATE,
    decide_epoch,
    named_by,
)
from tidelog.wal.gc.plan import Keep
from tidelog.wal.log import Log

CURSOR = "compacted"
AFTER_US = 3_600_000_000


@dataclass(slots=True, kw_only=True)
class KeyedCollector:
    """Deletes the unneeded objects of one keyed log.

    Units: an object is deleted once it has not been needed for ``after_us`` microseconds.
    """

    state_handle: KeyedStateHandle
    wal: Log
    writer: str
    after_us: int = AFTER_US

    async def collect(self) -> int:
        """Collect; return the number of objects of runs and of states that were deleted.

        Raises:
            NoSuchLog: the log is gone. LocationError: the store failed; collect again.
        """
        await self.state_handle.refresh()
        await self._erase_wal()
        machine = self.state_handle.machine
        deleted = await machine.collect(after_us=self.after_us)
        if machine.history.erased > machine.history.rolled_up:
            # Older records and rollups contain the first and last keys of the deleted runs.
            deleted += await machine.settle(after_us=self.after_us)
        else:
            # A killed collector may have raised the floor without deleting the records below it.
            deleted += await machine.clear()
        deleted += await self._sweep()
        await self._leave_origin()
        await Forks(source=self.state_handle, writer=self.writer).settle()
        return deleted

    async def _erase_wal(self) -> None:
        before_us = wall_us(self.state_handle.clock) - self.after_us
        position = needed_from(self.state_handle.state, before_us)
        try:
            cursor = await self.wal.load_cursor(CURSOR)
        except NoSuchCursor:
            # Another collector may have created the cursor, and collected, concurrently.
            with suppress(CursorMoved, PositionCollected):
                await self.wal.create_cursor(CURSOR, self.state_handle.tail.oldest)
            cursor = await self.wal.load_cursor(CURSOR)
        if position > cursor.position:
            # Another collector has moved it concurrently, and further.
            with suppress(CursorMoved, PositionCollected):
                await self.wal.move_cursor(cursor, position)
        # In a compacted log, nearly the whole wal may be deletable, so set no limit on its share.
        await self.wal.collect(keep=Keep(share_max=1.0), grace_us=0)

    async def _sweep(self) -> int:
        """Delete run objects that no state can name; raise the epoch for the young unnamed ones."""
        state_handle = self.state_handle
        prefix = f"{prefix_of(state_handle.name)}/run/"
        listed = [entry.key async for entry in state_handle.store.list(prefix)]
        if not listed:
            return 0
        # List first, then read the state. The state then includes each listed object that another
        # process has named since.
        await state_handle.refresh()
        named = named_by(state_handle.state) | {
            path for gone in state_handle.machine.history.gone for path in gone.paths
        }
        epoch = state_handle.state.write_epoch
        loose = {path: _epoch_of(path, prefix) for path in listed if path not in named}
        dead = [path for path, of in loose.items() if of + EPOCHS_LATE < epoch]
        if dead:
            await state_handle.store.delete(dead)
        if len(dead) < len(loose):
            now_us = wall_us(state_handle.clock)
            await state_handle.machine.commit(
                partial(decide_epoch, known=epoch, at_us=now_us, after_us=self.after_us)
            )
        return len(dead)

    async def _leave_origin(self) -> None:
        """Release the fork's source, once this log names none of its objects."""
        state_handle = self.state_handle
        origin = state_handle.state.origin
        if origin is None:
            return
        source = Forks(source=state_handle.beside(origin.log), writer=self.writer)
        await source.source.machine.refresh()
        own = f"{prefix_of(state_handle.name)}/"
        if any(not path.startswith(own) for path in named_by(state_handle.state)):
            return
        if not await source.holds(state_handle.wal_name):
            await state_handle.machine.commit(decide_leave_origin)
            await source.settle()


def needed_from(state: KeyedState, before_us: int) -> int:
    """Return the position before which all records were in runs at a time, or were retired.

    Runs are written oldest first. If a run existed at that time, so did all runs before it, even if
    their writer's clock was years ahead.
    """
    uppers = (run.upper for run in state.runs if run.at_us <= before_us)
    return max((state.retired, *uppers))


def _epoch_of(path: str, prefix: str) -> int:
    digits = path.removeprefix(prefix).partition("/")[0]
    try:
        return int(digits, 16)
    except ValueError:
        return 2**63  # A foreign object: keep it.
