"""Timeouts: a call that takes too long ends with an error that states the outcome of its change.

Source: persist, "Errors and Timeouts".
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tidelog.core.clock import Clock
from tidelog.errors import DeadlineExceeded, Outcome

T = TypeVar("T")


async def in_time(
    clock: Clock, work: Coroutine[Any, Any, T], timeout_us: int | None, *, writes: bool = False
) -> T:
    """Return the result of ``work`` if it ends within ``timeout_us`` microseconds (None: no limit).

    Raises:
        DeadlineExceeded: it did not end in time. If it ``writes``, its change may still land:
            UNKNOWN.
    """
    if timeout_us is None:
        return await work
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(timeout_us))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if not task.cancelled():
        return task.result()
    if writes:
        raise DeadlineExceeded(
            "the write did not finish within its timeout, and may still be applied: repeat it "
            "with the same token, or read the shard",
            outcome=Outcome.UNKNOWN,
            timeout_us=timeout_us,
        )
    raise DeadlineExceeded(
        "the call did not finish within its timeout: try again, or wait longer",
        timeout_us=timeout_us,
    )
