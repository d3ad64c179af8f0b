"""Small limits: events that take thousands of steps in production happen here after a few.

Spills, forgotten write ids, rollups with truncation and parts in objects of their own are rare in a
short run. They are also where bugs are likely.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from tidelog.consensus import group_object, object_consensus
from tidelog.machine.machine import Machine
from tidelog.persist.format import part
from tidelog.persist.format.duck import duck
from tidelog.persist.states import state


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for one run; None leaves the real limit."""

    records_max: int | None = None
    writes_kept: int | None = None
    commits_kept: int | None = None
    inline_bytes: int | None = None
    rollup_every: int | None = None


def limits_of(seed: int) -> Limits:
    """Choose limits for a seed, some of them the real ones."""
    dice = random.Random(f"limits {seed}")
    return Limits(
        records_max=dice.choice([None, 2, 6]),
        writes_kept=dice.choice([None, 1, 4]),
        commits_kept=dice.choice([None, None, 2, 5]),
        inline_bytes=dice.choice([None, 0, 1_500]),
        rollup_every=dice.choice([None, 1, 3, 8]),
    )


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Apply the limits inside the block."""
    with ExitStack() as stack:
        for module, name, value in (
            (object_consensus, "RECORDS_MAX", limits.records_max),
            (object_consensus, "WRITES_KEPT", limits.writes_kept),
            (group_object, "RECORDS_MAX", limits.records_max),
            (group_object, "WRITES_KEPT", limits.writes_kept),
            (state, "COMMITS_KEPT", limits.commits_kept),
            (part, "INLINE_BYTES", limits.inline_bytes),
        ):
            if value is not None:
                stack.enter_context(patch.object(module, name, value))
        if limits.rollup_every is not None:
            stack.enter_context(_rollup_every(limits.rollup_every))
        stack.enter_context(_one_thread())
        yield


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run DuckDB on one thread, so that the rows of a query have one order."""
    with duck() as connection:
        connection.execute("SET threads = 1")
    try:
        yield
    finally:
        with duck() as connection:
            connection.execute("RESET threads")


@contextmanager
def _rollup_every(count: int) -> Iterator[None]:
    begin = Machine.__post_init__

    def begin_small(self: Machine[object, object]) -> None:
        begin(self)
        self.rollup_every = count

    with patch.object(Machine, "__post_init__", begin_small):
        yield
