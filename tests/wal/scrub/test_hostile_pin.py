"""Pins with inconsistent fragments: a scrub reports them and readers refuse them.

A pin has its own checksum. An attacker, or the fuzzer, can compute it again after a change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kit.clocks import OneThread
from tidelog.errors import CorruptionError
from tidelog.store.memory import MemoryStore
from tidelog.wal.format.json import CHECK, check_of
from tidelog.wal.format.pin import PINS
from tidelog.wal.log import Log
from tidelog.wal.opening import create_log
from tidelog.wal.slot_protocol.shape import Shape

Change = Callable[[dict[str, Any]], None]


def put_later(pin: dict[str, Any]) -> None:
    pin["fragments"][0]["start"]["offset"] += 1


CHANGES: dict[str, Change] = {
    "without its last": lambda pin: pin["fragments"].pop(),
    "without its first": lambda pin: pin["fragments"].pop(0),
    "without one between": lambda pin: pin["fragments"].pop(1),
    "one twice": lambda pin: pin["fragments"].insert(1, pin["fragments"][1]),
    "turned round": lambda pin: pin["fragments"].reverse(),
    "without any": lambda pin: pin["fragments"].clear(),
    "a higher limit": lambda pin: pin["limit"].update(offset=2**40),
    "a later start of a fragment": put_later,
}


async def pinned() -> tuple[MemoryStore, Log]:
    """Return a log of four fragments with a pin on all of them."""
    store = MemoryStore()
    shape = Shape(alpha=1, rollup_slots=1)
    log = await create_log(store, name="log", clock=OneThread(), writer="test", shape=shape)
    for number in range(4):
        await log.append([b"%d" % number])
    await log.create_pin("whole")
    await log.close()
    return store, log


async def read_pin(log: Log) -> list[int]:
    found = list[int]()
    async for records in log.scan_pin("whole"):
        found += records.column("position").to_numpy().tolist()
    return found


@pytest.mark.parametrize("change", CHANGES)
async def test_a_pin_that_does_not_fit_is_told(change: str) -> None:
    """A read by an inconsistent pin raises CorruptionError instead of missing records."""
    store, log = await pinned()
    (key,) = [key for key in store.objects if key.startswith(PINS)]
    assert await read_pin(log) == [1, 2, 3, 4]
    assert (await log.scrub()).is_clean

    pin = json.loads(store.objects[key].data)
    CHANGES[change](pin)
    pin.pop(CHECK)
    await store.put(key, json.dumps({**pin, CHECK: check_of(pin)}).encode())

    with pytest.raises(CorruptionError):
        await read_pin(log)
    assert key in {problem.path for problem in (await log.scrub()).problems}
