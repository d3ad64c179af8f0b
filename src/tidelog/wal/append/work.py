"""One append that waits, and what whoever placed it without waiting for the store holds of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from tidelog.wal.format.streams import Control


@dataclass(slots=True, eq=False)
class Placing:
    """The answers to a caller that places records: ``ordered`` is the position expected first.

    ``moved`` is called with another position, if they are sent at one. ``heard`` is called by a
    caller that begins to wait for more, if they came to nothing already.
    """

    ordered: asyncio.Future[int]
    is_awaited: bool = False
    heard: Callable[[], None] | None = None
    moved: Callable[[int], None] | None = None

    @property
    def is_adrift(self) -> bool:
        """Say whether they were placed, and nobody waits for what becomes of them."""
        return self.ordered.done() and not self.is_awaited

    def order(self, position: int) -> None:
        """Answer with the position that they are given; report another one to ``moved``."""
        if not self.ordered.done():
            self.ordered.set_result(position)
        elif self.moved is not None:
            self.moved(position)

    def listen(self) -> None:
        """Note that somebody waits for what becomes of them."""
        self.is_awaited = True
        if self.heard is not None:
            self.heard()
            self.heard = None


@dataclass(slots=True, eq=False)
class Work:
    """Records that wait, and who waits for their position.

    All are in one stream, or in none; ``control`` is what the one record says that is a control
    record; ``keys`` are theirs, if any has one. ``since`` is the look at which they came.
    ``placing`` is there where somebody waits for no more than a position.
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
    placing: Placing | None = None
    expected: int | None = None  # The position that follows all that is accepted before it.

    @property
    def is_told(self) -> bool:
        """Say whether whoever waited has an answer; whoever stopped waiting has none."""
        return self.done.done() and not self.done.cancelled()


@dataclass(frozen=True, slots=True)
class Placed:
    """Records that the queue has accepted, and that may not be durable yet.

    ``position`` is the one that the first has if all before them is written. Until they are durable
    it is no promise: if the store refuses a batch, or another writer takes the log over, positions
    from there on are given to other records.
    """

    position: int
    _done: asyncio.Future[int]  # Not the work itself, which has the records.
    _placing: Placing

    def on_moved(self, moved: Callable[[int], None] | None) -> None:
        """Call a function with each position at which they are sent, until it is None."""
        self._placing.moved = moved

    @property
    def durable(self) -> asyncio.Future[int]:
        """Return what is told the position at which the records really are, once they are durable.

        That is another one than ``position`` if they were placed again. It raises what `append`
        would. To cancel it is to stop waiting. Nobody has to await it: `flush` and `close` tell,
        too, of what came to nothing.
        """
        self._placing.listen()
        shown = asyncio.shield(self._done)
        shown.add_done_callback(_noticed)
        return shown


def _noticed(shown: asyncio.Future[int]) -> None:
    if not shown.cancelled():
        shown.exception()  # Whoever does not await it is not to be told at the end.
