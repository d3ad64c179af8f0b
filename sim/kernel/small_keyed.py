"""Small limits of keyed logs: runs, merges, segments and memory misses within a few appends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from sim.kernel.small import Limits, limited
from tidelog.keyed import log
from tidelog.keyed.maintenance import compactor, merge, plan
from tidelog.keyed.read import scanning
from tidelog.keyed.read.feed import KeyedFeed
from tidelog.keyed.read.state_handle import LooseTail
from tidelog.keyed.write import arrow
from tidelog.machine.machine import Machine
from tidelog.wal.format.manifest_update import Rollover
from tidelog.wal.slot_protocol.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedLimits:
    """Limits for one run; None leaves the real limit.

    Units: ``.._bytes``; ``vanished_us``: microseconds for which a replaced object is kept.
    """

    loose_max: int = 3
    fan_in: int = 2
    run_bytes: int | None = None
    range_rows: int = 4
    part_rows: int = 5
    chunk_rows: int | None = None
    memory_bytes: int | None = None
    window_bytes: int | None = None
    rollup_slots: int = 3
    batch_bytes: int | None = None
    vanished_us: int | None = None
    machine: Limits = field(default_factory=Limits)


def keyed_limits_of(seed: int) -> KeyedLimits:
    """Choose limits for a seed, some of them the real ones."""
    dice = random.Random(f"keyed limits {seed}")
    return KeyedLimits(
        loose_max=dice.choice([2, 3, 5]),
        fan_in=dice.choice([2, 3]),
        run_bytes=dice.choice([None, 1, 3_000]),
        range_rows=dice.choice([1, 3, 100]),
        part_rows=dice.choice([1, 4, 100]),
        chunk_rows=dice.choice([None, 1, 2]),
        memory_bytes=dice.choice([None, None, 1, 300]),
        window_bytes=dice.choice([None, 1, 200]),
        rollup_slots=dice.choice([1, 3, 64]),
        batch_bytes=dice.choice([None, 40]),
        vanished_us=dice.choice([None, 200_000]),
        machine=Limits(
            records_max=dice.choice([None, 2, 6]),
            writes_kept=dice.choice([None, 4]),
            rollup_every=dice.choice([None, 2, 5]),
        ),
    )


@contextmanager
def keyed_limited(limits: KeyedLimits) -> Iterator[None]:
    """Apply the limits inside the block."""
    with ExitStack() as stack:
        for module, name, value in (
            (plan, "LOOSE_MAX", limits.loose_max),
            (log, "LOOSE_MAX", limits.loose_max),
            (plan, "FAN_IN", limits.fan_in),
            (plan, "RUN_BYTES_MAX", limits.run_bytes),
            (merge, "RANGE_ROWS", limits.range_rows),
            (compactor, "PART_ROWS", limits.part_rows),
            (scanning, "CHUNK_ROWS", limits.chunk_rows),
            (arrow, "BATCH_BYTES", limits.batch_bytes),
        ):
            if value is not None:
                stack.enter_context(patch.object(module, name, value))
        rollover = Rollover(fragments=2, snapshots=2)
        for made, name, given in (
            (LooseTail, "memory_bytes", limits.memory_bytes),
            (KeyedFeed, "window_bytes", limits.window_bytes),
            (Shape, "rollup_slots", limits.rollup_slots),
            (Shape, "rollover", rollover if limits.rollup_slots < 64 else None),
            (Machine, "vanished_us", limits.vanished_us),
        ):
            if given is not None:
                stack.enter_context(_default(made, name, given))
        stack.enter_context(limited(limits.machine))
        yield


@contextmanager
def _default(made: type[Any], name: str, value: object) -> Iterator[None]:
    """Give a field of a dataclass another default inside the block."""
    begin = made.__init__

    def begin_small(self: Any, *given: Any, **named: Any) -> None:
        named.setdefault(name, value)
        begin(self, *given, **named)

    with patch.object(made, "__init__", begin_small):
        yield
