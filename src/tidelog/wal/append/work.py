"""Pending appends, and the handles of callers that do not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from tidelog.wal.format.streams import Control


@dataclass(slots=True, eq=False)
class Placement:
    """The answers to a caller that places records. ``ordered`` becomes their expected position.

    The queue calls ``moved`` with another position if the records are sent at another one. It calls
    ``heard`` if the records failed before and the caller begins to wait for them now.
    """

    ordered: asyncio.Future[int]
    is_awaited: bool = False
    heard: Callable[[], None] | None = None
    moved: Callable[[int], None] | None = None

    @property
    def is_adrift(self) -> bool:
        """Return True if the records were placed and their caller does not wait for the outcome."""
        return self.ordered.done() and not self.is_awaited

    def order(self, position: int) -> None:
        """Set the expected position, or report a different one to ``moved``."""
        if not self.ordered.done():
            self.ordered.set_result(position)
        elif self.moved is not None:
            self.moved(position)

    def listen(self) -> None:
        """Note that the caller waits for the outcome."""
        self.is_awaited = True
        if self.heard is not None:
            self.heard()
            self.heard = None


@dataclass(slots=True, eq=False)
class Work:
    """Records that wait to be written, and the future of their position.

    All records are in the same stream, or in none. ``control`` is set if the only record is a
    control record. ``keys`` is None if no record has a key. ``since`` is the number of looks when
    they were queued. ``placing`` is set if the caller waits only for an expected position.
    """

    bodies: pa.BinaryArray
    size: int
    timestamp_us: int | None
    done: asyncio.Future[int]
    stream: bytes | None = None
    control: Control | None = None
    since: int = 0
    is_sent: bool = False
    keys: pa.BinaryArray | None = None
    placing: Placement | None = None
    expected: int | None = None  # The position after all records accepted before these.

    @property
    def is_told(self) -> bool:
        """Return True if the caller has an answer; False if it stopped waiting."""
        return self.done.done() and not self.done.cancelled()


@dataclass(frozen=True, slots=True)
class PlacedRecords:
    """Records that the queue accepted, and that may not be durable yet.

    ``position`` is the position of the first record if all earlier records are written. It is not a
    promise until the records are durable. If the store refuses a batch, or another writer takes the
    log over, other records get these positions.
    """

    position: int
    _done: asyncio.Future[int]  # Not the whole `Work`, which holds the records.
    _placing: Placement

    def on_moved(self, moved: Callable[[int], None] | None) -> None:
        """Call ``moved`` with each new position at which the records are sent; None ends this."""
        self._placing.moved = moved

    @property
    def durable(self) -> asyncio.Future[int]:
        """Return a future of the position at which the records are durable.

        It differs from ``position`` if they were placed again. The future raises the errors of
        `append`. Cancelling the future only stops the wait. The caller need not await it: `flush`
        and `close` also report records that failed.
        """
        self._placing.listen()
        shown = asyncio.shield(self._done)
        shown.add_done_callback(_noticed)
        return shown


def _noticed(shown: asyncio.Future[int]) -> None:
    if not shown.cancelled():
        # Mark the error as retrieved: a caller that does not await it needs no warning.
        shown.exception()
