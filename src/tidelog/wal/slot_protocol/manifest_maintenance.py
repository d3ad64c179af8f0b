"""The background roll-ups of a writer, which keep the manifest close behind its log.

Appends do not wait for roll-ups unless the manifest is so far behind that readers would walk long.
Then appends wait, and their errors report why the roll-up fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidelog.core.clock import Clock, backoff_us
from tidelog.errors import ContentionError, CorruptionError, LocationError
from tidelog.wal.append.queue import Queue
from tidelog.wal.format.link import Tail
from tidelog.wal.read.head import Head
from tidelog.wal.slot_protocol.chain import Step
from tidelog.wal.slot_protocol.checkpoint import Checkpointer

LOOK_US: Final = 50_000  # How often the writer checks whether a roll-up is due.
BEHIND_MAX: Final = 8  # In roll-ups: if the manifest is later than this, appends wait for it.
# A collector or a fork reads the manifest, then replaces it. If gets take longer than puts, a busy
# writer would win every such race. So before every BREATH_EVERY-th roll-up the writer leaves the
# manifest alone for BREATH_US, unless it is half as late as it may be. Half a second is enough for
# a get and a put of 250 ms each. The writer spends it before few roll-ups, because readers walk
# each slot that the manifest does not name yet.
BREATH_EVERY: Final = 4
BREATH_US: Final = 500_000
# Pauses after failed roll-ups. Appends continue until the manifest is BEHIND_MAX roll-ups late.
WAIT_FIRST_US: Final = 50_000
WAIT_MOST_US: Final = 5_000_000
BROKEN_MAX: Final = 5  # After so many failures in a row, the cause is not an answer cut short.


@dataclass(slots=True, kw_only=True)
class ManifestMaintenance:
    """Roll-ups of a writer's committed slots, after ``slots`` slots or ``interval_us``.

    ``steps`` has the committed steps that the manifest lacks; the pipeline adds to it.
    """

    checkpointer: Checkpointer
    queue: Queue
    clock: Clock
    slots: int
    interval_us: int
    steps: list[Step] = field(default_factory=list)
    _head: Head | None = None
    _broken: int = 0
    _rolled: int = 0

    @property
    def behind_max(self) -> int:
        """Return by how many slots the manifest may be late before appends wait."""
        return BEHIND_MAX * self.slots

    def begin(self, head: Head, steps: list[Step]) -> None:
        """Continue from a manifest and the steps known to come after it."""
        self._head, self.steps = head, steps

    async def run(self) -> None:
        """Roll up whenever due, with growing pauses after failures."""
        failures = 0
        while True:
            while not self.steps:
                await self.queue.changed.wait()
            await self._until_due()
            if await self.roll_up():
                failures = 0
                self.queue.notify()
                continue
            wait_us = backoff_us(failures, self.clock, first_us=WAIT_FIRST_US, most_us=WAIT_MOST_US)
            await self.clock.sleep(wait_us)
            failures += 1

    async def _until_due(self) -> None:
        begun_us = self.clock.monotonic_us()
        breath_us = 0 if (self._rolled + 1) % BREATH_EVERY else BREATH_US
        while (waited_us := self.clock.monotonic_us() - begun_us) < self.interval_us:
            most = self.behind_max // 2 if waited_us < breath_us else self.slots
            if len(self.steps) >= most:
                return
            await self.clock.sleep(min(self.interval_us - waited_us, LOOK_US))

    async def roll_up(self, *, closing: Tail | None = None) -> bool:
        """Roll up the committed steps once; on failure give the queue the reason and return False.

        Raises:
            CorruptionError: the log could not be read several times in a row.
        """
        steps = list(self.steps)
        if self._head is None or not (steps or closing):
            return True
        try:
            self._head = await self.checkpointer.roll_up(self._head, steps, closing=closing)
        except (LocationError, ContentionError) as error:
            self.queue.trouble = error
            return False
        except CorruptionError as error:
            self._broken += 1
            if self._broken >= BROKEN_MAX:
                raise
            self.queue.trouble = error
            return False
        self._broken = 0
        self._rolled += 1
        del self.steps[: len(steps)]
        return True
