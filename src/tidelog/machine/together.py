"""Commits of several machines at once: all of their changes are written, or none.

The keys of the machines are of one group, so consensus appends a record to each with one put
(`tidelog.consensus.port.Consensus.compare_and_set_all`).
Source: decision 37.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Generic

from tidelog.core.clock import run_all
from tidelog.core.metrics import observe_commit
from tidelog.errors import ContentionError, TidelogError
from tidelog.machine.language import D, Decision, R, S, check_storable
from tidelog.machine.machine import Machine


@dataclass(frozen=True, slots=True)
class Command(Generic[S, D, R]):
    """A command for one machine; see `Machine.commit`."""

    machine: Machine[S, D]
    decide: Callable[[S], Decision[D, R]]


async def commit_together(commands: Sequence[Command[S, D, R]]) -> list[R]:
    """Decide each command on the newest state of its machine, and write all changes or none.

    Nothing is written if a command decides no change. The results are then those of the newest
    states. Cancelling the call does not cancel the changes.

    Raises:
        the errors that the commands raise; ContentionError, LocationError, OutcomeUnknown: see
        `Machine.commit`.
    """
    work = asyncio.create_task(_commit(commands), name="commits together")
    return await asyncio.shield(work)


async def _commit(commands: Sequence[Command[S, D, R]]) -> list[R]:
    machines = [one.machine for one in commands]
    first, is_fresh = machines[0], False
    async with AsyncExitStack() as stack:
        for machine in sorted(machines, key=lambda one: one.key):
            await stack.enter_async_context(machine.lock)
        begun_us = first.clock.monotonic_us()
        for attempt in range(first.commits_max):
            tried_us = first.clock.monotonic_us()
            decided = _decide(commands, may_fail=not is_fresh)
            changes = [one.diff for one in decided if one.diff is not None]
            if len(changes) < len(commands):
                if is_fresh:
                    return [one.result for one in decided]
            elif await _append(machines, changes, attempt):
                seconds = (first.clock.monotonic_us() - begun_us) / 1e6
                observe_commit(first.prefix.partition("/")[0], seconds, attempt + 1)
                await run_all([one.maintenance.after_commit for one in machines], at_once=8)
                return [one.result for one in decided]
            elif attempt:
                await first.pause(attempt, first.clock.monotonic_us() - tried_us)
            await run_all([one.catch_up for one in machines], at_once=len(machines))
            is_fresh = True
    raise ContentionError(
        f"gave up after {first.commits_max} tries: other processes kept committing first; try "
        "again",
        key=first.key,
    )


def _decide(commands: Sequence[Command[S, D, R]], *, may_fail: bool) -> list[Decision[D, R]]:
    """Return the decisions; with ``may_fail``, none if a command fails, as on an old state."""
    try:
        decided = [one.decide(one.machine.state) for one in commands]
        for one, decision in zip(commands, decided, strict=True):
            if decision.diff is not None:
                check_storable(one.machine.language, decision.diff)
    except TidelogError:
        if may_fail:
            return []
        raise
    return decided


async def _append(machines: Sequence[Machine[S, D]], changes: Sequence[D], attempt: int) -> bool:
    """Write the changes with one put, and with them those that wait for such a put."""
    decided = [one.with_riders(diff) for one, diff in zip(machines, changes, strict=True)]
    prepared = [
        machine.prepare(one.diffs, one.state)
        for machine, one in zip(machines, decided, strict=True)
    ]
    written = [one.written for one in prepared]
    try:
        if not await machines[0].consensus.compare_and_set_all(written):
            return False
    except BaseException as error:
        # The record may have landed. A second decision would then take it for another writer's.
        for machine, one in zip(machines, decided, strict=True):
            machine.fail_riders(one, error)
        raise
    for machine, record, one in zip(machines, prepared, decided, strict=True):
        machine.land(record)
        machine.answer_riders(one, attempt)
    return True
