"""Forks: make a fork, and release the holds of attempts that failed or no longer need them.

An attempt first holds the source's runs by a checkpoint. It then holds the loose records by a pin
of the source's wal, and makes a wal of its own from them. Finally, the fork's state begins with
both. If the forker dies between these steps, the source's next `settle` cleans up. It first voids
the attempt in the fork's state, unless the fork has begun with it.
Source: docs/decisions/0025; design page 5.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidelog.core.clock import wall_us
from tidelog.errors import NoSuchLog, NoSuchPin, PositionCollected, TidelogError
from tidelog.keyed.read.state_handle import WALS, KeyedStateHandle
from tidelog.keyed.states.forking import (
    checkpoint_of_try,
    decide_fork,
    decide_release_checkpoint,
    decide_void_checkpoint,
    is_begun_with,
    may_begin_with,
    wal_of_try,
)
from tidelog.keyed.states.state import ForkOrigin, KeyedCheckpoint, KeyedDiff, KeyedState
from tidelog.keyed.states.transition import decide_checkpoint
from tidelog.machine.language import Decision
from tidelog.store.keys import Within
from tidelog.wal.admin.destroy import destroy_log
from tidelog.wal.admin.fork import Fork
from tidelog.wal.format.pin import pins_named
from tidelog.wal.gc.pin_objects import held_pins
from tidelog.wal.gc.pins import Pins
from tidelog.wal.slot_log import SlotLog

# An attempt that takes longer is given up, and the forker must start again.
GIVE_UP_US: Final = 3_600_000_000
_WAL_OF_TRY: Final = re.compile(r"fork_[0-9a-f]{16}")


def is_kept_for_forks(name: str) -> bool:
    """Return True if the name is reserved for the wal of a fork."""
    return _WAL_OF_TRY.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forks:
    """The forks of one keyed log. ``writer`` is a name for people."""

    source: KeyedStateHandle
    writer: str

    async def make(self, target: KeyedStateHandle) -> bool:
        """Create ``target`` with the present contents of the source; False if it exists already.

        Raises:
            PositionCollected: the source was collected concurrently: try again. NoSuchLog: the
                source is gone. ContentionError: another process gave up this attempt.
                LocationError: the store failed; after an OutcomeUnknown the fork may exist.
        """
        source, clock = self.source, self.source.clock
        await source.refresh()
        name = checkpoint_of_try(target.name, clock.unique()[:16])
        limit = source.tail.next
        before: list[KeyedState] = []

        def hold(state: KeyedState) -> Decision[KeyedDiff, KeyedCheckpoint | None]:
            before.append(state)
            return decide_checkpoint(
                state, name, next_sequence=limit, at_us=wall_us(clock), fork=target.name
            )

        point = await source.machine.commit(hold)
        assert point is not None, "the log of a fork has all records that are not compacted yet"
        origin = ForkOrigin(log=source.name, checkpoint=name)
        try:
            await self._fork_wal(wal_of_try(name), point)
            return await target.machine.commit(
                lambda state: decide_fork(
                    state,
                    point,
                    origin,
                    sealing=before[-1].sealing,
                    retention=before[-1].retention,
                    sinks=before[-1].sinks,
                )
            )
        except TidelogError:
            # If the outcome is unknown, the fork's state now shows it. Another process that created
            # the log otherwise may also have just erased this attempt.
            with suppress(TidelogError):
                await self._settle(target, name, gives_up=True)
                if target.state.is_made:
                    return is_begun_with(target.state, origin)
            raise

    async def _fork_wal(self, name: str, point: KeyedCheckpoint) -> None:
        source = self.source
        wal = SlotLog(
            name=source.wal_name, store=source.wal, clock=source.clock, writer=self.writer
        )
        bounds = await wal.bounds()
        # The newest record is always kept, so a fork of a non-empty log shares some records.
        start = min(point.compacted, bounds.next - 1) if bounds.next > bounds.oldest else 0
        made = await Fork(
            store=source.wal,
            source=source.wal_name,
            name=name,
            clock=source.clock,
            writer=self.writer,
        ).make(start=start)
        if not made.oldest <= point.compacted <= made.next:
            raise PositionCollected(
                "the source was compacted and collected before the fork: fork again",
                log=source.name,
            )

    async def settle(self, *, gives_up: bool = False) -> None:
        """Release the holds of failed attempts, and of forks that no longer need them.

        Attempts under way are given up after one hour, or immediately if ``gives_up`` is True.

        Raises:
            LocationError: the store failed; nothing else is released.
        """
        source = self.source
        pins = await self._pins()
        state = await source.machine.refresh()
        now_us = wall_us(source.clock)
        tries = [name for name, checkpoint in state.checkpoints.items() if checkpoint.fork]
        for name in tries:
            checkpoint = state.checkpoints[name]
            is_old = checkpoint.made_us <= now_us - GIVE_UP_US
            await self._settle(source.beside(checkpoint.fork), name, gives_up=gives_up or is_old)
        # An attempt makes its checkpoint before its pin, and an existing fork releases its pin
        # before its checkpoint. The pins were read before the checkpoints. So a pin without a
        # checkpoint, if it still exists now, was left by a forker that was late and died.
        if lost := pins - {wal_of_try(name) for name in tries}:
            for wal in sorted(lost & await self._pins()):
                await self._erase(wal)

    async def _pins(self) -> set[str]:
        """Return the wals of attempts for which the source's wal has a pin."""
        held = [held_pin.pin.name for held_pin in await held_pins(self.source.wal)]
        return {wal for wal in held if is_kept_for_forks(wal)}

    async def _settle(self, target: KeyedStateHandle, name: str, *, gives_up: bool) -> None:
        """Release the holds of one attempt, unless it is or may become a fork that needs them."""
        source = self.source
        origin = ForkOrigin(log=source.name, checkpoint=name)
        state = await target.machine.refresh()
        if may_begin_with(state, name):
            if not gives_up:
                return
            await target.machine.commit(partial(decide_void_checkpoint, checkpoint=name))
            state = target.state
        if is_begun_with(state, origin):
            if state.origin == origin:
                return
        else:
            await self._erase(wal_of_try(name))
        await source.machine.commit(partial(decide_release_checkpoint, checkpoint=name))

    async def _erase(self, wal: str) -> None:
        """Delete the wal of a failed attempt, and release its pin in the source's wal."""
        source = self.source
        folder = Within(source.store, f"{WALS}{wal}")
        with suppress(NoSuchLog):
            await destroy_log(folder, clock=source.clock, writer=self.writer, grace_us=0)
        with suppress(NoSuchPin, NoSuchLog):
            await Pins(store=source.wal, clock=source.clock, writer=self.writer).release(
                wal, force=True
            )

    async def holds(self, wal: str) -> bool:
        """Return True if the source's wal has a pin for a fork's wal."""
        return bool(await held_pins(self.source.wal, prefix=pins_named(wal)))
