"""An opener with lost answers recognises its own fences and puts no extra ones."""

from __future__ import annotations

import pytest

from kit.clocks import SwiftClock
from kit.stores import InterposedStore
from tidelog.errors import LocationError, Outcome
from tidelog.store.memory import MemoryStore
from tidelog.wal.slot_protocol.fencing import Fencer, make_log

ALPHA = 8


@pytest.mark.parametrize("lost", [0, 8, 52, 129])
async def test_lost_answers_do_not_multiply_fences(lost: int) -> None:
    """An opener takes no round of its own for a busy writer's, so fences do not multiply."""
    inner = MemoryStore()
    left = lost

    async def after(op: str, _: str) -> None:
        nonlocal left
        if op == "put" and left:
            left -= 1
            raise LocationError("the answer was lost", outcome=Outcome.UNKNOWN)

    clock = SwiftClock()
    await make_log(inner, clock=clock, writer="maker")
    await Fencer(store=inner, clock=clock, writer="one").open(lanes=1, alpha=ALPHA)
    before = len(inner.objects)
    store = InterposedStore(inner, after=after)

    ended = await Fencer(store=store, clock=clock, writer="two").open(lanes=1, alpha=ALPHA)

    assert ended.tail.epoch.opener == "two"
    assert len(inner.objects) - before <= 2 * ALPHA + 6
