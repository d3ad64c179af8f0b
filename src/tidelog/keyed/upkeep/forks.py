"""Forks: making one, and letting go of what was held for those that are not, or need it no more.

A try to make a fork holds the source's runs by a checkpoint, then its loose records by a pin of the
source's wal, of which it makes a wal of its own; last the fork's state begins with both. Whoever
dies between leaves what the source's next `settle` finds: by then the try is voided in the fork's
state, unless that has begun with it.
Source: docs/decisions/0025; design page 5.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from tidelog.clock import wall_us
from tidelog.errors import NoSuchLog, NoSuchPin, PositionCollected, TidelogError
from tidelog.keyed.read.standing import WALS, KeyedStanding
from tidelog.keyed.states.forking import (
    checkpoint_of_try,
    decide_forked,
    decide_let_go,
    decide_voided,
    is_begun_with,
    may_begin_with,
    wal_of_try,
)
from tidelog.keyed.states.state import ForkOrigin, KeyedCheckpoint, KeyedDiff, KeyedState
from tidelog.keyed.states.transition import decide_checkpoint
from tidelog.machine.language import Decision
from tidelog.store.within import Within
from tidelog.wal.admin.destroy import destroy_log
from tidelog.wal.admin.fork import Fork
from tidelog.wal.format.pin import pins_named
from tidelog.wal.gc.pin_objects import held_pins
from tidelog.wal.gc.pins import Pins
from tidelog.wal.slot_log import SlotLog

GIVE_UP_US: Final = 3_600_000_000  # Whoever takes longer than this over a fork begins anew.
_WAL_OF_TRY: Final = re.compile(r"fork_[0-9a-f]{16}")


def is_kept_for_forks(name: str) -> bool:
    """Say whether the wals of forks are called so, and no log may be."""
    return _WAL_OF_TRY.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forks:
    """The forks of one keyed log. ``writer`` is a name for people."""

    source: KeyedStanding
    writer: str

    async def make(self, target: KeyedStanding) -> bool:
        """Have a log begin as the source is now; False, if it has begun otherwise meanwhile.

        Raises:
            PositionCollected: the source was collected meanwhile: try again. NoSuchLog: there is no
            source any more. ContentionError: others gave it up. LocationError: the store failed;
            after an OutcomeUnknown the fork may be there.
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
        assert point is not None, "a fork's wal has what is not compacted"
        origin = ForkOrigin(log=source.name, checkpoint=name)
        try:
            await self._fork_wal(wal_of_try(name), point)
            return await target.machine.commit(
                lambda state: decide_forked(
                    state,
                    point,
                    origin,
                    sealing=before[-1].sealing,
                    retention=before[-1].retention,
                    sinks=before[-1].sinks,
                )
            )
        except TidelogError:
            # Where it is not known whether it has begun, that shows now; and who made it otherwise
            # may just have erased what was made here.
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
        # The newest record is always there, and a fork of a log that has records shares some.
        start = min(point.compacted, bounds.next - 1) if bounds.next > bounds.oldest else 0
        made = await Fork(
            store=source.wal,
            source=source.wal_name,
            name=name,
            clock=source.clock,
            writer=self.writer,
        ).make(start=start)
        if not made.oldest <= point.compacted <= made.next:
            raise PositionCollected("the source went on before it was forked", log=source.name)

    async def settle(self, *, gives_up: bool = False) -> None:
        """Let go of all that is held for what is no fork, or needs it no more.

        Tries that are under way are given up after an hour, or at once, if it is said.

        Raises:
            LocationError: the store failed; what is held, still is.
        """
        source = self.source
        pins = await self._pins()
        state = await source.machine.refresh()
        now_us = wall_us(source.clock)
        tries = [name for name, one in state.checkpoints.items() if one.fork]
        for name in tries:
            one = state.checkpoints[name]
            is_old = one.made_us <= now_us - GIVE_UP_US
            await self._settle(source.beside(one.fork), name, gives_up=gives_up or is_old)
        # A try has its checkpoint before its pin; and a fork that is there has let go of its pin
        # before its checkpoint goes. So what was pinned, had no checkpoint then, and is pinned
        # still, was left by somebody who was late and died.
        if lost := pins - {wal_of_try(name) for name in tries}:
            for wal in sorted(lost & await self._pins()):
                await self._erase(wal)

    async def _pins(self) -> set[str]:
        """Return the wals of tries that the source's wal holds something for."""
        held = [found.pin.name for found in await held_pins(self.source.wal)]
        return {wal for wal in held if is_kept_for_forks(wal)}

    async def _settle(self, target: KeyedStanding, name: str, *, gives_up: bool) -> None:
        """Let go of what one try holds, unless it is the fork and needs it, or may yet be."""
        source = self.source
        origin = ForkOrigin(log=source.name, checkpoint=name)
        state = await target.machine.refresh()
        if may_begin_with(state, name):
            if not gives_up:
                return
            await target.machine.commit(partial(decide_voided, checkpoint=name))
            state = target.state
        if is_begun_with(state, origin):
            if state.origin == origin:
                return
        else:
            await self._erase(wal_of_try(name))
        await source.machine.commit(partial(decide_let_go, checkpoint=name))

    async def _erase(self, wal: str) -> None:
        """Delete the wal of a try that is no fork, and let go of what it was to share."""
        source = self.source
        folder = Within(source.store, f"{WALS}{wal}")
        with suppress(NoSuchLog):
            await destroy_log(folder, clock=source.clock, writer=self.writer, grace_us=0)
        with suppress(NoSuchPin, NoSuchLog):
            await Pins(store=source.wal, clock=source.clock, writer=self.writer).release(
                wal, force=True
            )

    async def holds(self, wal: str) -> bool:
        """Say whether the source's wal holds what a fork's shares with it."""
        return bool(await held_pins(self.source.wal, prefix=pins_named(wal)))
