"""Sealing by age: the age of a segment is that of its own records."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from kit.keyed_engine import FAST, keyed_logs
from tidelog.core.clock import wall_us
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.maintenance import compactor
from tidelog.keyed.maintenance.plan import retired_by
from tidelog.keyed.states import transition
from tidelog.keyed.states.state import KeyedState
from tidelog.keyed.states.transition import decide_seal
from tidelog.keyed.values import Retention, Sealing

HOUR_US = 3_600_000_000


async def _log(age_us: int) -> KeyedLog:
    logs = keyed_logs()
    await logs.create("log", sealing=Sealing(age_us=age_us))
    return await logs.open("log", batching=FAST, maintenance=False)


async def test_a_segment_is_not_as_old_as_the_records_of_the_one_before() -> None:
    """Old loose records of the previous segment do not age the new one."""
    log = await _log(HOUR_US)
    now_us = wall_us(log.state_handle.clock)
    await log.append([(b"k", b"old")], timestamp_us=now_us - 2 * HOUR_US)
    await log.seal()
    await log.append([(b"k", b"new")], timestamp_us=now_us)
    await log.compact()
    assert [(one.start, one.limit) for one in await log.segments()] == [(1, 2), (2, None)]
    await log.close()


async def test_a_segment_that_was_sealed_is_compacted_before_another_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The compactor finishes a sealed segment before it seals the next one."""
    log = await _log(1)
    await log.append([(b"k", b"0")], timestamp_us=1)
    left = [b"1", b"2", b"3"]
    done: list[str] = []

    async def refresh() -> None:
        if left:
            await log.append([(b"k", left.pop())], timestamp_us=1)
        await real()

    real = log.state_handle.refresh
    for name in ("decide_seal", "decide_compact"):
        decide = getattr(transition, name)

        def noted(
            *args: object, _decide: object = decide, _name: str = name, **kw: object
        ) -> object:
            done.append(_name)
            assert callable(_decide)
            return _decide(*args, **kw)

        monkeypatch.setattr(compactor, name, noted)
    monkeypatch.setattr(type(log.state_handle), "refresh", lambda _: refresh())
    await log.compact()
    assert done[:4] == ["decide_seal", "decide_compact"] * 2
    monkeypatch.undo()
    await log.close()


async def test_young_records_stay_though_a_clock_that_is_behind_sealed_them() -> None:
    """Records of the last minute stay, although a slow clock dated the seal ten hours back."""
    log = await _log(HOUR_US)
    now_us = wall_us(log.state_handle.clock)
    seal = partial(decide_seal, at_us=now_us - 10 * HOUR_US)
    for time_us in (now_us - 60_000_000, now_us - 3 * HOUR_US, now_us + 9 * HOUR_US):
        first = await log.append([(b"k", b"v")] * 3, timestamp_us=time_us)
        assert await log.state_handle.machine.commit(partial(seal, limit=first + 3))
    await log.compact()
    by_age = Retention(age_us=HOUR_US)
    state = log.state_handle.state
    assert retired_by(state, by_age, now_us=now_us) == 10
    assert retired_by(_without_last(state, 2), by_age, now_us=now_us) == 1
    assert retired_by(_without_last(state, 2), by_age, now_us=now_us + HOUR_US) == 4
    await log.close()


def _without_last(state: KeyedState, count: int) -> KeyedState:
    runs, seals = state.runs[:-count], state.seals[:-count]
    return replace(state, runs=runs, seals=seals, compacted=runs[-1].upper)
