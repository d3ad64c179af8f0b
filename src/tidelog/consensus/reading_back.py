"""The read of a consensus object after a put of unknown outcome.

Objects of a key (`tidelog.consensus.store`) and of a group (`tidelog.consensus.groups`) use it.
Source: persist, "Consensus"; style.md, "Errors".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog.core.clock import Clock, backoff_us
from tidelog.errors import CorruptionError, LocationError, Outcome

T = TypeVar("T")


async def read_back(
    refresh: Callable[[], Awaitable[T]], *, clock: Clock, attempts: int, key: str
) -> T:
    """Read an object after a put of unknown outcome; if this fails, the outcome stays UNKNOWN.

    Without delay: the object names only the newest writes, and other writers may push ours out.
    """
    for again in range(attempts):
        try:
            return await refresh()
        except LocationError:
            await clock.sleep(backoff_us(again, clock))
        except CorruptionError as error:
            error.outcome = Outcome.UNKNOWN  # The outcome of the put, not that of this read.
            raise
    raise LocationError(
        "the store does not answer, so the write may be stored: read back before a retry",
        outcome=Outcome.UNKNOWN,
        key=key,
    )
