"""The pace of roll-ups of a busy writer: frequent for readers, with turns for other processes.

The tests run in virtual time and use no store.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import cast

import pytest

from sim.kernel.clock import SimClock
from sim.kernel.loop import run
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.queue import Queue
from tidelog.wal.format.link import Tail
from tidelog.wal.read.head import Head
from tidelog.wal.slot_protocol.chain import Step
from tidelog.wal.slot_protocol.checkpoint import Checkpointer
from tidelog.wal.slot_protocol.manifest_maintenance import BREATH_EVERY, ManifestMaintenance

SLOTS = 64
PUT_US = 20_000
A_STEP = cast(Step, None)  # `ManifestMaintenance` never reads it.


class TimedCheckpointer(Checkpointer):
    """A checkpointer that records the time of each roll-up, and the number of its steps."""

    clock: SimClock
    at_us: list[int]
    late: list[int]

    def __init__(self, clock: SimClock) -> None:
        object.__setattr__(self, "clock", clock)
        object.__setattr__(self, "at_us", [])
        object.__setattr__(self, "late", [])

    async def roll_up(
        self, head: Head, steps: Sequence[Step], *, closing: Tail | None = None
    ) -> Head:
        await self.clock.sleep(PUT_US)
        self.at_us.append(self.clock.monotonic_us())
        self.late.append(len(steps))
        return head


def rolled_up(*, slots_a_second: int, seconds: float) -> TimedCheckpointer:
    """Return the roll-ups of a writer that commits slots at a steady rate."""
    found: list[TimedCheckpointer] = []

    async def main() -> None:
        clock, queue = SimClock(1), Queue(batching=Batching())
        told = TimedCheckpointer(clock)
        maintenance = ManifestMaintenance(
            checkpointer=told, queue=queue, clock=clock, slots=SLOTS, interval_us=1_000_000
        )
        maintenance.begin(cast(Head, object()), [])
        task = asyncio.create_task(maintenance.run())
        for _ in range(int(slots_a_second * seconds)):
            await clock.sleep(1_000_000 // slots_a_second)
            maintenance.steps.append(A_STEP)
            queue.notify()
        task.cancel()
        found.append(told)

    run(main, 1)
    return found[0]


@pytest.mark.parametrize("slots_a_second", [400, 1_600])
def test_others_have_a_turn_at_the_manifest(slots_a_second: int) -> None:
    """A busy writer regularly leaves the manifest to slower processes, which must win a race."""
    at_us = rolled_up(slots_a_second=slots_a_second, seconds=8).at_us

    apart_us = [after - before for before, after in itertools.pairwise(at_us)]
    turns = [at for at, wait_us in enumerate(apart_us) if wait_us >= 150_000]
    assert len(turns) >= 3
    assert max(b - a for a, b in itertools.pairwise(turns)) <= BREATH_EVERY


def test_it_is_never_so_late_that_appends_would_wait() -> None:
    """The pauses for other processes never delay a roll-up so far that appends would wait."""
    told = rolled_up(slots_a_second=1_600, seconds=5)

    assert max(told.late) < 8 * SLOTS
    assert sum(told.late) > 5 * 1_600 - 8 * SLOTS


def test_a_slow_writer_rolls_up_once_a_second() -> None:
    """A slow writer rolls up its few slots about once a second."""
    at_us = rolled_up(slots_a_second=10, seconds=10).at_us

    apart_us = [after - before for before, after in itertools.pairwise(at_us)]
    assert len(at_us) >= 9
    assert max(apart_us) <= 1_300_000
