"""What is appended and not settled: ordered, and perhaps not durable yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.keyed.read.piece import LoosePiece
from tidelog.keyed.values import KEYED_RECORDS
from tidelog.wal.append.work import Placed


@dataclass(slots=True, eq=False)
class Ordered:
    """Records that have a place in the log; it may be another one once they are durable.

    ``is_awaited``: whoever appended them waits for that, and hears if it comes to nothing.
    """

    placed: Placed
    keys: pa.BinaryArray
    values: pa.BinaryArray
    timestamp_us: int
    is_awaited: bool
    durable: asyncio.Future[int] = field(init=False)
    _settled: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.durable = self.placed.durable
        self._settled = asyncio.get_running_loop().create_future()

    async def settled(self) -> None:
        """Wait until it is durable or failed, and until reads show it so."""
        await asyncio.shield(self._settled)

    async def position(self) -> int:
        """Wait until it is durable, and read so; return where it is."""
        await self.settled()
        return self.durable.result()

    def settle(self) -> None:
        """Let all go on who wait for it."""
        self._settled.set_result(None)

    def piece(self, position: int) -> LoosePiece:
        """Return them as a piece of the log that begins at a position."""
        count = len(self.values)
        columns: list[Any] = [
            self.keys,
            pa.array(np.arange(position, position + count, dtype=np.int64)),
            pa.array(np.full(count, self.timestamp_us, dtype=np.int64)),
            self.values,
        ]
        return LoosePiece(
            start=position,
            limit=position + count,
            records=pa.table(columns, schema=KEYED_RECORDS),
        )


@dataclass(slots=True, kw_only=True)
class PendingAppends:
    """The appends of one handle that are not settled, in their order.

    ``settled`` takes each that has become durable, as a piece; ``failed`` hears of each that came
    to nothing, or of which nothing is known.
    """

    settled: Callable[[LoosePiece], None]
    failed: Callable[[BaseException], None]
    _held: dict[Ordered, LoosePiece] = field(default_factory=dict)
    _lost: list[BaseException] = field(default_factory=list)

    def add(self, one: Ordered) -> None:
        """Take records that were just ordered."""
        self._held[one] = one.piece(one.placed.position)
        one.durable.add_done_callback(partial(self._settle, one))

    def pieces(self) -> list[LoosePiece]:
        """Return all that is ordered and not durable, where it was ordered."""
        return [*self._held.values()]

    async def flush(self) -> None:
        """Wait until all that is here now is settled.

        Raises:
            What became of the first that nobody waited for, and that is not in the log.
        """
        for one in list(self._held):
            await one.settled()
        if self._lost:
            lost, self._lost = self._lost, []
            raise lost[0]

    def _settle(self, one: Ordered, durable: asyncio.Future[int]) -> None:
        try:
            self._take(one, durable)
        finally:
            one.settle()

    def _take(self, one: Ordered, durable: asyncio.Future[int]) -> None:
        piece = self._held.pop(one)
        if durable.cancelled():
            return
        if (error := durable.exception()) is not None:
            if not one.is_awaited:
                self._lost.append(error)
            self.failed(error)
            return
        position = durable.result()
        if piece.start != position:
            piece = one.piece(position)
        self.settled(piece)
