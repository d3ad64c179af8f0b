"""The times of a collection: which of them are readable, and which are complete.

Source: design page 6, "Times".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from tidelog.collection.catalog.catalog import ERRORS_SUFFIX, TableInfo
from tidelog.collection.following import Followed, checked_patience, until_complete
from tidelog.collection.formats.times import When, format_time, is_now, parse_time
from tidelog.core.frontier import Frontier
from tidelog.errors import AsOfBeforeSince, AsOfNotComplete, NoSuchCollection, UsageError
from tidelog.persist.read.snapshot import start_after
from tidelog.persist.states.state import State

_log = logging.getLogger(__name__)


class ReadableTimes(Followed, Protocol):
    """The choice and the checks of the times at which a collection is read."""

    __slots__ = ()

    table: TableInfo | None
    ends: int | None
    is_errors: bool

    @property
    def since(self) -> Frontier: ...

    def states_at(self, time: int) -> Sequence[State]:
        """Return the states of the shards that readers read at a time, as of the last refresh."""
        ...

    async def resolve_as_of(
        self,
        as_of: When | None,
        *,
        what: str = "as_of",
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> int:
        """Return the time to read: ``as_of``, or by default the newest complete time.

        A time is as in `parse_time`, or relative: now, today, yesterday, -1h. ``now`` is the newest
        complete time, or the clock's time if that is earlier. With ``wait``, the call waits until
        the time is complete; ``timeout_us`` ends the wait, and alone implies ``wait``.

        Raises:
            AsOfBeforeSince: the time is no longer readable; the message has the earliest one.
            AsOfNotComplete: the time is not complete yet; the message has the newest complete one.
            DeadlineExceeded: the time did not become complete in time.
            UsageError: ``as_of`` is not a time.
        """
        patience = checked_patience(wait, timeout_us)
        asked = None if as_of is None else self._time(as_of, what)
        await until_complete(self, None if is_now(as_of) else asked, patience)
        self._check_there()
        upper = self.upper
        if upper == Frontier.at(0):
            raise AsOfNotComplete(f"{self.name!r} has no complete time yet: {self._begin}")
        if asked is None:
            if upper.is_empty:
                raise UsageError(
                    "the collection is finished, so it has no newest time: pass the time to read"
                )
            return upper.time - 1
        if is_now(as_of) and not upper.is_empty:
            asked = min(asked, upper.time - 1)
        self.check_since(asked, as_of)
        if not upper.passed(asked):
            raise AsOfNotComplete(
                f"{self.name!r} is complete up to {format_time(upper.time - 1)}: read at that "
                f"time or earlier, or {self._more}{_unit_of(as_of)}",
                asked=format_time(asked),
            )
        self._report_time_before_data(asked, as_of)
        return asked

    @property
    def _begin(self) -> str:
        """Return the remedy if no time is complete."""
        if self.table is not None:
            return "its creation was interrupted, so create the table again, or write to it"
        source = self.name.removesuffix(ERRORS_SUFFIX) if self.is_errors else self.name
        return f"run 'tidelog ingest {source}' first"

    @property
    def _more(self) -> str:
        """Return the remedy if a later time is wanted."""
        return "ingest more" if self.table is None else "write to the table"

    def _report_time_before_data(self, asked: int, as_of: When | None) -> None:
        """Log a warning if the collection has data, and all of it is later than the time read."""
        first = start_after(self.states_at(asked), asked)
        if first is None:
            return
        _log.warning(
            "%s is before all data of %r, which begins at %s%s",
            format_time(asked),
            self.name,
            format_time(first),
            _unit_of(as_of),
        )

    def _time(self, when: When, what: str) -> int:
        return parse_time(when, what=what, now_us=self.clock.now_us())

    async def resolve_start(
        self, since: When | None, *, wait: bool = False, timeout_us: int | None = None
    ) -> int:
        """Return the time after which a listener starts; see `listen`, `resolve_as_of`."""
        if since is None or is_now(since):
            return await self.resolve_as_of(since, what="since", wait=wait, timeout_us=timeout_us)
        patience = checked_patience(wait, timeout_us)
        reached = self._time(since, "since")
        await until_complete(self, reached, patience)
        self.check_since(reached, since)
        if not self.upper.passed(reached):
            raise AsOfNotComplete(
                "since= is not complete yet: pass an earlier since=",
                asked=format_time(reached),
            )
        return reached

    async def resolve_between(
        self,
        since: When,
        until: When | None,
        *,
        wait: bool = False,
        timeout_us: int | None = None,
    ) -> tuple[int, int]:
        """Return the resolved times of a read of changes; see `changes`.

        Raises:
            AsOfBeforeSince, AsOfNotComplete, DeadlineExceeded: see `resolve_as_of`.
            UsageError: ``until`` is before ``since``, or a value is not a time.
        """
        patience = checked_patience(wait, timeout_us)
        first = self._time(since, "since")
        if until is None and patience.waits:
            await until_complete(self, first, patience)
            wait, timeout_us = False, None
        last = await self.resolve_as_of(until, what="until", wait=wait, timeout_us=timeout_us)
        self.check_since(first, since)
        if last < first and until is None:
            raise UsageError(
                f"no time after since= is complete yet: pass an earlier since=, or {self._more}",
                since=format_time(first),
                complete_to=format_time(last),
            )
        if last < first:
            raise UsageError(
                "until= is before since=: pass a later until=",
                since=format_time(first),
                until=format_time(last),
            )
        return first, last

    def _check_there(self) -> None:
        if self.since.is_empty:
            raise NoSuchCollection(
                f"the collection {self.name!r} was dropped after this process opened it: open it "
                "again if a new collection has its name"
            )

    def check_since(self, as_of: int, given: When | None = None) -> None:
        """Check that a resolved time is readable, as of the last refresh.

        Raises:
            AsOfBeforeSince: it is not; the message has the earliest readable time.
        """
        since = self.since
        if since.is_empty and self.ends is not None:
            raise AsOfBeforeSince(
                f"the rendition of {self.name!r} that readers read at that time was dropped: read "
                f"at {format_time(self.ends)} or later",
                asked=format_time(as_of),
            )
        self._check_there()
        if as_of < since.time:
            raise AsOfBeforeSince(
                f"{self.name!r} is readable since {format_time(since.time)}: read at a later "
                f"time{_unit_of(given)}",
                asked=format_time(as_of),
            )


def _unit_of(given: When | None) -> str:
    """Return a note on the unit of a time that the caller gave as a number."""
    return "; a number counts milliseconds" if str(given).strip().isdigit() else ""
