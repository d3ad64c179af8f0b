"""Keeping a slot log's manifest close behind its writer, in the background.

It is on nobody's way to an acknowledgement, until the manifest is so late that readers would have
far to go: then appends wait for it, and are told what keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tidelog.clock import Clock, backoff_us
from tidelog.errors import ContentionError, CorruptionError, LocationError
from tidelog.wal.append.queue import Queue
from tidelog.wal.format.link import Tail
from tidelog.wal.read.head import Head
from tidelog.wal.slot_protocol.chain import Step
from tidelog.wal.slot_protocol.checkpoint import Checkpointer

LOOK_US: Final = 50_000  # How often it looks whether there is enough to roll up.
BEHIND_MAX: Final = 8  # Roll-ups by which the manifest may be late before appends wait for it.
# A collector or a fork reads the manifest and then replaces it. Where gets take longer than puts a
# busy writer would be ahead at every try: so once in so many roll-ups it leaves it alone so long,
# unless it is half as late as it may be.
BREATH_EVERY: Final = 4
BREATH_US: Final = 500_000
WAIT_FIRST_US: Final = 50_000
WAIT_MOST_US: Final = 5_000_000
BROKEN_MAX: Final = 5  # So often in a row, what cannot be read was not cut short on the way.


@dataclass(slots=True, kw_only=True)
class ManifestKeeper:
    """Rolls up what a writer has committed, after ``slots`` of them or ``interval_us``."""

    checkpointer: Checkpointer
    queue: Queue
    clock: Clock
    slots: int
    interval_us: int
    _head: Head | None = None
    _steps: list[Step] = field(default_factory=list)
    _broken: int = 0
    _rolled: int = 0

    @property
    def behind(self) -> int:
        """Return how many slots the manifest is late by."""
        return len(self._steps)

    @property
    def behind_max(self) -> int:
        """Return how many slots the manifest may be late by before appends are to wait for it."""
        return BEHIND_MAX * self.slots

    def begin(self, head: Head, steps: list[Step]) -> None:
        """Go on from a manifest that was read, and what is known to come after it."""
        self._head, self._steps = head, steps

    def add(self, step: Step) -> None:
        """Note what was committed next."""
        self._steps.append(step)

    async def run(self) -> None:
        """Roll up again and again, and wait longer and longer where that fails."""
        failures = 0
        while True:
            await self.queue.changed.wait_for(lambda: bool(self._steps))
            await self._until_due()
            if await self.roll_up():
                failures = 0
                self.queue.changed.notify()
                continue
            wait_us = backoff_us(failures, self.clock, first_us=WAIT_FIRST_US, most_us=WAIT_MOST_US)
            await self.clock.sleep(wait_us)
            failures += 1

    async def _until_due(self) -> None:
        begun_us = self.clock.monotonic_us()
        breath_us = 0 if (self._rolled + 1) % BREATH_EVERY else BREATH_US
        while (waited_us := self.clock.monotonic_us() - begun_us) < self.interval_us:
            most = self.behind_max // 2 if waited_us < breath_us else self.slots
            if self.behind >= most:
                return
            await self.clock.sleep(min(self.interval_us - waited_us, LOOK_US))

    async def roll_up(self, *, closing: Tail | None = None) -> bool:
        """Roll up what is committed, once; False if it could not be, and the queue has the reason.

        Raises:
            CorruptionError: the log cannot be read, or does not fit together, and stays so.
        """
        steps = list(self._steps)
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
        del self._steps[: len(steps)]
        return True
