"""Following: the changes of a collection, step by step, as they become complete.

A step ends at a time that is complete in all shards. Together, a snapshot and the steps after it
have each update once: the parts of a step are whole times, whatever merges do meanwhile.
Source: persist, "Listen"; design page 6, "Following".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.collection.formats.times import format_time
from tidelog.collection.reading import Reading
from tidelog.core.clock import Clock
from tidelog.core.frontier import TIME_MAX, Frontier
from tidelog.errors import DeadlineExceeded, ReadOvertaken
from tidelog.persist.format.schema import TIME
from tidelog.persist.handle.argument_checks import check_flag, check_timeout
from tidelog.persist.handle.listening import NotYet, Patience, poll
from tidelog.persist.handle.port import Progress


class Followed(Protocol):
    """The part of a collection that a listener uses."""

    name: str
    clock: Clock

    @property
    def upper(self) -> Frontier: ...

    async def refresh(self) -> None: ...

    def check_since(self, as_of: int) -> None: ...

    def changes_of(
        self, reading: Reading, since: int, until: int
    ) -> AsyncGenerator[pa.Table, None]: ...


async def follow(
    collection: Followed, reading: Reading, reached: int
) -> AsyncGenerator[Progress, None]:
    """Yield the changes after the time ``reached``, until the collection is finished.

    Raises:
        AsOfBeforeSince: the times after the last step are no longer readable.
        CorruptionError, LocationError: a read fails; follow again after the last step.
    """
    while reached < TIME_MAX:
        look = partial(_look, collection, reached + 1)
        end = await poll(collection.clock, look, reached + 1, Patience(wait=True))
        collection.check_since(max(0, reached))
        begin = reached
        try:
            async with aclosing(_steps(collection, reading, reached, end)) as steps:
                async for progress in steps:
                    yield progress
                    reached = _last_before(progress.upper)
        except ReadOvertaken:
            if reached == begin:
                raise


def checked_patience(wait: bool, timeout_us: int | None) -> Patience:
    """Return the limits of a wait, as a caller gives them.

    Raises:
        UsageError: ``wait`` is not True or False, or ``timeout_us`` is not a number.
    """
    check_flag(wait, "wait")
    check_timeout(timeout_us)
    return Patience(wait=wait, timeout_us=timeout_us)


async def until_complete(collection: Followed, time: int | None, patience: Patience) -> None:
    """Refresh a collection. A caller that waits gets it complete at ``time``, or at any time.

    Raises:
        DeadlineExceeded: the time did not become complete in time.
    """
    if not patience.waits:
        await collection.refresh()
        return
    wanted = 0 if time is None else time
    try:
        await poll(collection.clock, partial(_look, collection, wanted), wanted, patience)
    except DeadlineExceeded as error:
        if "asked" not in error.facts:
            raise
        upper = collection.upper
        if upper == Frontier.at(0):
            raise DeadlineExceeded(
                f"{collection.name!r} has no complete time yet: write to it, or wait longer"
            ) from error
        raise DeadlineExceeded(
            f"{collection.name!r} is complete up to {format_time(upper.time - 1)}: read at that "
            "time or earlier, or wait longer",
            asked=format_time(wanted),
        ) from error


async def _look(collection: Followed, time: int) -> Frontier | NotYet:
    await collection.refresh()
    upper = collection.upper
    return upper if upper.passed(time) else NotYet(upper)


async def _steps(
    collection: Followed, reading: Reading, reached: int, end: Frontier
) -> AsyncGenerator[Progress, None]:
    """Yield the changes after ``reached`` and before ``end``, of one group of parts each.

    Each step is yielded at once, so that a read that is overtaken later continues after it.
    """
    lower = Frontier.at(reached + 1)
    changes = collection.changes_of(reading, reached, _last_before(end))
    async with aclosing(changes) as pieces:
        async for piece in pieces:
            # Pieces come in time order, and no two have updates of the same time.
            last = pc.max(piece.column(TIME)).as_py()
            upper = end if last == _last_before(end) else Frontier.at(last + 1)
            yield Progress(piece, lower, upper)
            lower = upper
    if lower != end:
        yield Progress(reading.narrow.updates.empty_table(), lower, end)


def _last_before(upper: Frontier) -> int:
    return TIME_MAX if upper.is_empty else upper.time - 1
