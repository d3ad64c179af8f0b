"""Pending appends: ordered, but not yet known to be durable or lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.errors import LocationError, LogSealed, NoSuchLog, Outcome
from tidelog.keyed.read.sources import LoosePiece
from tidelog.keyed.states.transition import DROPPED
from tidelog.keyed.values import KEYED_RECORDS
from tidelog.wal.append.append_errors import copy_of
from tidelog.wal.append.work import PlacedRecords


@dataclass(slots=True, eq=False)
class OrderedRecords:
    """Records with a place in the log; the place may change until they are durable.

    ``number`` counts the appends. ``is_awaited``: the caller waits for the result, and so receives
    an error.
    """

    placed: PlacedRecords
    keys: pa.BinaryArray
    values: pa.BinaryArray
    timestamp_us: int
    number: int = 0
    is_awaited: bool = False
    durable: asyncio.Future[int] = field(init=False)
    _settled: asyncio.Future[None] = field(init=False)

    def __post_init__(self) -> None:
        self.durable = self.placed.durable
        self._settled = asyncio.get_running_loop().create_future()

    async def settled(self) -> None:
        """Wait until the records are durable and visible to reads, or have failed."""
        await asyncio.shield(self._settled)

    @property
    def loss(self) -> BaseException | None:
        """The reason why the records are not in the log, if known."""
        if not self.durable.done() or self.durable.cancelled():
            return None
        error = self.durable.exception()
        if isinstance(error, LogSealed):
            # Only a drop seals the wal of a keyed log.
            return NoSuchLog(DROPPED, outcome=error.outcome)
        return error

    def settle(self) -> None:
        """Wake all waiters."""
        self._settled.set_result(None)

    def piece(self, position: int) -> LoosePiece:
        """Return the records as a piece of the log that begins at a position."""
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
    """The appends of one handle that are not settled, in order.

    ``settled`` receives each durable append as a piece. ``failed`` receives each error, of a lost
    or an unknown append. If no caller awaited an append, the next flush raises its error, or `end`
    does.
    """

    settled: Callable[[LoosePiece], None]
    failed: Callable[[BaseException], None]
    _held: dict[OrderedRecords, LoosePiece] = field(default_factory=dict)
    _lost: dict[int, BaseException] = field(default_factory=dict)
    _count: int = 0

    def add(self, one: OrderedRecords) -> None:
        """Add records that were just ordered."""
        self._count += 1
        one.number = self._count
        self._held[one] = one.piece(one.placed.position)
        one.placed.on_moved(partial(self._move, one))
        one.durable.add_done_callback(partial(self._settle, one))

    def _move(self, records: OrderedRecords, position: int) -> None:
        if records in self._held and self._held[records].start != position:
            self._held[records] = records.piece(position)

    def pieces(self) -> list[LoosePiece]:
        """Return all ordered records that are not durable yet, at their present places."""
        return [*self._held.values()]

    async def positions(self, appended: Sequence[OrderedRecords]) -> list[int]:
        """Wait until these records are durable and visible to reads; return their positions.

        If the caller is cancelled, the next flush reports their errors.

        Raises:
            the error of the first append that is not in the log.
        """
        for records in appended:
            records.is_awaited = True
        try:
            for records in appended:
                await records.settled()
        except asyncio.CancelledError:
            for records in appended:
                records.is_awaited = False
                self._note(records)
            raise
        for records in appended:
            self._lost.pop(records.number, None)
        if lost := next((loss for records in appended if (loss := records.loss) is not None), None):
            raise copy_of(lost)
        return [records.durable.result() for records in appended]

    async def flush(self) -> None:
        """Wait until all present appends are settled.

        Raises:
            the error of the first append that no caller awaited and that is not in the log.
        """
        last, waited = self._count, list(self._held)
        for records in waited:
            await records.settled()
        # Two concurrent flushes both wait for a lost append, so both raise its error. A loss that
        # was ordered after this flush began belongs to a later flush.
        seen = {
            records.number: records.loss
            for records in waited
            if records.loss and not records.is_awaited
        }
        lost = seen | {number: error for number, error in self._lost.items() if number <= last}
        for number in lost:
            self._lost.pop(number, None)
        for number in sorted(lost):
            raise copy_of(lost[number])

    async def end(self) -> None:
        """Wait until all appends are settled, and raise for unreported losses.

        Raises:
            LocationError: some records may be missing from the log.
        """
        for records in list(self._held):
            await records.settled()
        lost, self._lost = self._lost, {}
        if lost:
            is_sure = all(
                getattr(error, "outcome", None) is Outcome.NOT_APPLIED for error in lost.values()
            )
            raise LocationError(
                "some appends whose result the program did not await may be missing: read the log, "
                "and append the missing records again",
                outcome=Outcome.NOT_APPLIED if is_sure else Outcome.UNKNOWN,
                appends=len(lost),
                reason=lost[min(lost)],
            )

    def _settle(self, records: OrderedRecords, durable: asyncio.Future[int]) -> None:
        try:
            self._take(records, durable)
        finally:
            records.settle()

    def _take(self, records: OrderedRecords, durable: asyncio.Future[int]) -> None:
        piece = self._held.pop(records)
        records.placed.on_moved(None)  # Drop the callback, because it holds the records.
        if durable.cancelled():
            return
        if (error := durable.exception()) is not None:
            self._note(records)
            self.failed(error)
            return
        position = durable.result()
        if piece.start != position:
            piece = records.piece(position)
        self.settled(piece)

    def _note(self, records: OrderedRecords) -> None:
        """Keep a loss for the next flush, unless a caller awaits it."""
        if not records.is_awaited and (error := records.loss) is not None:
            self._lost[records.number] = error
