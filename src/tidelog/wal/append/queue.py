"""The queue of pending appends, and how it forms batches.

Writes run in a task of the log, not of the caller, so cancelling an append only stops its wait. The
bytes of pending records are bounded: when the queue is full, further appends wait in line.

Patience is counted in looks, not in time. A process that was suspended for a minute finds that one
look has passed, and no append fails for that. Time in which the settings delay the writer, with
nothing in flight, does not count either.

Invariants: appends are served in the order of their calls. An append that was answered with
`OutcomeUnknown` is never sent again.
Source: wal3, "Dropped Async Tasks"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa

from tidelog.errors import BusyError, LocationError, Outcome, TidelogError
from tidelog.wal.append.append_errors import (
    closed,
    copy_of,
    no_answer,
    refusal,
    sent_error,
    unsent_error,
)
from tidelog.wal.append.batching import Batching, TokenBucket, full, spend, wait_us
from tidelog.wal.append.bodies import APPEND_BYTES_MAX, checked, keys_of, size_of
from tidelog.wal.append.work import Placement, Work
from tidelog.wal.format.parquet import BYTES_MIN, RECORDS_MAX
from tidelog.wal.format.streams import Control

Told: TypeAlias = Callable[[int], object]
SHARE_BYTES: Final = 1024 * 1024  # For smaller batches, one more request costs more than it gains.
LOOKS: Final = 8  # Patience runs out after so many looks.
REST_US: Final = 100_000  # How often a writer that must wait checks for other events.


@dataclass(slots=True)
class Watermark:
    """The position below which all records are durable. It never falls; 1 means unknown."""

    position: int = 1
    _told: dict[int, Told] = field(default_factory=dict)
    _given: int = 0

    def advance(self, position: int) -> None:
        """Raise the durable position, and call the listeners if it rose."""
        if position <= self.position:
            return
        self.position = position
        loop = asyncio.get_running_loop()
        for number in list(self._told):
            # Each listener runs in a callback of its own, so its error cannot stop the writer.
            loop.call_soon(self._tell, number, position)

    def subscribe(self, told: Told) -> Callable[[], None]:
        """Call a function with each new position; return a function that ends the subscription."""
        self._given += 1
        number = self._given
        self._told[number] = told
        return lambda: self._forget(number)

    def _tell(self, number: int, position: int) -> None:
        if (told := self._told.get(number)) is not None:
            told(position)

    def _forget(self, number: int) -> None:
        self._told.pop(number, None)


@dataclass(slots=True, kw_only=True)
class Queue:
    """The appends that are not settled yet, in the order of their calls.

    ``trouble`` is the writer's last error, the reason in the errors of appends. ``heard`` is the
    store's last error about a put that is sent again. ``is_resting`` is True if only the settings
    in `Batching` delay the writer. ``next_position`` is the position after all sent records, and
    None until the log is open. ``unheard`` counts failed appends without a waiting caller, by
    whether they were sent. ``lost`` counts failed placed appends in the same way. ``loss`` is the
    error of the first of these, for the next flush.
    """

    batching: Batching
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_closing: bool = False
    is_resting: bool = False
    ended_by: BaseException | None = None
    trouble: BaseException | None = None
    heard: LocationError | None = None
    headway: int = 0  # Number of acknowledged batches.
    unheard: Counter[bool] = field(default_factory=Counter)
    lost: Counter[bool] = field(default_factory=Counter)
    loss: BaseException | None = None
    durable: Watermark = field(default_factory=Watermark)
    next_position: int | None = None
    begun_us: int | None = None  # The start of the last batch, until the writer has rested for it.
    _bucket: TokenBucket | None = None
    _last: Work | None = None  # The newest accepted append.
    _in_line: OrderedDict[Work, None] = field(default_factory=OrderedDict)
    _waiting: deque[Work] = field(default_factory=deque)
    _unsettled: dict[Work, None] = field(default_factory=dict)
    _bytes: int = 0
    _looks: int = 0
    _quiet_since: int = 0
    _headway_seen: int = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def fills_a_batch(self) -> bool:
        return self._bytes >= self.batching.batch_bytes

    @property
    def is_waited_for(self) -> bool:
        """Return True if a caller waits for an answer."""
        return bool(self._in_line) or any(not work.done.done() for work in self._unsettled)

    @property
    def waits_for_the_store(self) -> bool:
        """Return True if the store's silence counts: puts are sent, or the writer may send."""
        return not self.is_resting or any(work.is_sent for work in self._unsettled)

    def add(
        self,
        bodies: pa.BinaryArray,
        *,
        timestamp_us: int | None = None,
        stream: bytes | None = None,
        keys: bytes | pa.BinaryArray | None = None,
        control: Control | None = None,
        wait: bool = True,
        placed: bool = False,
    ) -> Work:
        """Add records, or put them in line if the queue is full. For ``placed`` see `Work.placing`.

        Raises:
            UsageError: the records are not a valid append.
            BusyError: ``wait`` is False and the queue is full.
            HandleError: the queue is closed.
            The error that ended the queue, if any.
        """
        bodies = checked(bodies, stream=stream)
        column = keys_of(keys, len(bodies))
        size = size_of(bodies, stream, column)
        if self.is_closing:
            raise self._ended()
        is_full = bool(self._in_line) or self._is_full(size)
        if is_full and not wait:
            raise BusyError("the queue of appends is full: back off, then retry")
        loop = asyncio.get_running_loop()
        work = Work(bodies, size, timestamp_us, loop.create_future(), stream, control, self._looks)
        work.keys, work.placing = column, Placement(loop.create_future()) if placed else None
        if is_full:
            self._in_line[work] = None
        else:
            self._enter(work)
        return work

    def withdraw(self, work: Work) -> None:
        """Remove an append that is still in line, because its caller stopped waiting."""
        if work in self._in_line:
            del self._in_line[work]
            work.done.cancel()

    def take(self, *, shares: int = 1) -> list[Work]:
        """Take the next batch: at least one append, and more until the batch is full.

        If ``shares`` batches may be in flight, a batch takes at most its share of the unsettled
        bytes. So the next batch is encoded while this one is sent.
        """
        share = max(SHARE_BYTES, self._bytes // shares)
        # Limits of readers on one object, which no setting may exceed.
        most = min(self.batching.batch_bytes, share, APPEND_BYTES_MAX, BYTES_MIN)
        batch = [self._waiting.popleft()]
        size, count = batch[0].size, len(batch[0].bodies)
        while self._waiting:
            size += self._waiting[0].size
            count += len(self._waiting[0].bodies)
            if size > most or count > RECORDS_MAX:
                break
            batch.append(self._waiting.popleft())
        self._let_in()
        return batch

    def pause_us(self, now_us: int) -> int | None:
        """Return the next rest between two batches; None if the next one is due, full or the last.

        ``begun_us`` is None once the last rest was returned.
        """
        if self.begun_us is None or self.fills_a_batch or self.is_closing:
            self.begun_us = None
            return None
        left_us = max(0, self.begun_us + self.batching.interval_us - now_us)
        if left_us <= REST_US:
            self.begun_us = None
        return min(left_us, REST_US)

    def token_us(self, now_us: int) -> int | None:
        """Take a token for a put and return None, or return the next rest until there is one."""
        rate = self.batching.puts_per_second
        if rate is None:
            return None
        bucket = self._bucket or full(rate, now_us)
        if left_us := wait_us(bucket, now_us):
            return min(left_us, REST_US)
        self._bucket = spend(bucket, now_us)
        return None

    def give_back(self, batch: Sequence[Work]) -> None:
        """Put appends that are not in the log back to the front of the queue."""
        # A caller that got `OutcomeUnknown` may have read the log and appended again.
        self._forget(work for work in batch if work.is_told)
        for work in reversed(batch):
            if work in self._unsettled:
                work.is_sent = False
                self._waiting.appendleft(work)
        self.notify()

    def settle(self, batch: Sequence[Work], position: int) -> None:
        """Answer the appends of a batch that is durable at ``position``."""
        for work in batch:
            if not work.done.done():
                work.done.set_result(position)
            position += len(work.bodies)
        self.durable.advance(position)
        self.headway += 1
        self.trouble = self.heard = None
        self._forget(batch)

    def hear(self, error: TidelogError) -> None:
        """Note the store's error about a put that is sent again."""
        # Other errors describe the stored object, not a failure.
        if isinstance(error, LocationError):
            self.heard = error

    def fail(self, batch: Iterable[Work], reason: BaseException) -> None:
        """Answer that a batch is not in the log."""
        self._end(batch, partial(unsent_error, reason), is_sent=False)

    def doubt(self, batch: Iterable[Work], reason: BaseException) -> None:
        """Answer that a batch may be in the log."""
        self._end(batch, partial(sent_error, reason), is_sent=True)

    def answer(self, batch: Iterable[Work], error: TidelogError) -> None:
        """Answer a batch by the outcome of an error."""
        self.trouble = error
        tell = self.fail if error.outcome is Outcome.NOT_APPLIED else self.doubt
        tell(batch, error)

    def refuse_waiting(self, reason: BaseException) -> None:
        """Fail all accepted appends that were not sent."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self.fail(waiting, reason)

    def notify(self) -> None:
        """Wake all tasks that wait for a change; each then looks at the queue again."""
        self.changed.set()
        self.changed.clear()

    def close(self) -> None:
        """Refuse further appends; pending ones stay."""
        self.is_closing = True
        self.notify()

    def abandon(self, reason: BaseException) -> None:
        """Refuse further appends, and fail all pending ones, also those in line."""
        self.ended_by = self.ended_by or unsent_error(reason)
        in_line, self._in_line = list(self._in_line), OrderedDict()
        self._waiting.clear()
        self.close()
        self.fail(in_line, reason)
        self.fail([work for work in self._unsettled if not work.is_sent], reason)
        self.doubt(self._unsettled, reason)

    def count_waiting(self) -> tuple[int, int]:
        """Return how many awaited appends were sent, and how many were not."""
        waiting = [
            work
            for work in self._unsettled
            if not work.done.done() and not (work.placing and work.placing.is_adrift)
        ]
        sent = sum(work.is_sent for work in waiting)
        return sent, len(waiting) - sent + len(self._in_line)

    def placed(self) -> list[asyncio.Future[int]]:
        """Return the futures of all placed appends that have no outcome yet."""
        waiting = (*self._unsettled, *self._in_line)
        placed = [work.done for work in waiting if work.placing is not None]
        return [done for done in placed if not done.done()]

    def take_loss(self) -> BaseException | None:
        """Return the error of the first lost placed append, and clear it."""
        loss, self.loss = self.loss, None
        self.lost.clear()
        return loss

    def look(self) -> None:
        """Count one look; fail the appends whose patience has run out."""
        if not self.waits_for_the_store:
            return
        self._looks += 1
        if self._headway_seen != self.headway:
            self._headway_seen, self._quiet_since = self.headway, self._looks
        late = self._looks - LOOKS
        if self._quiet_since > late:
            return
        unsent = [work for work in (*self._waiting, *self._in_line) if work.since <= late]
        if unsent:
            self._refuse(unsent)
        if self._quiet_since <= late - LOOKS:
            for work in self._unsettled:
                if work.is_sent and work.since <= late - LOOKS:
                    self._tell(
                        work, sent_error(self.trouble or no_answer(self.batching, self.heard))
                    )

    def _refuse(self, late: list[Work]) -> None:
        gone = set(late)
        self._waiting = deque(work for work in self._waiting if work not in gone)
        for work in late:
            self._in_line.pop(work, None)
        self.fail(late, refusal(self.trouble or self.heard, self.batching))

    def _end(
        self, batch: Iterable[Work], told: Callable[[], BaseException], *, is_sent: bool
    ) -> None:
        """Answer the appends of a batch; count those without a waiting caller for `close`."""
        ended = list(batch)
        for work in ended:
            self._tell(work, told())
            self.unheard[is_sent] += work.done.cancelled() and work in self._unsettled
        self._forget(ended)

    def _tell(self, work: Work, error: BaseException) -> None:
        if work.done.done():
            return
        _raise_in(work.done, error)
        placing = work.placing
        if placing is None:
            return
        if not placing.ordered.done():
            _raise_in(placing.ordered, copy_of(error))
            return
        # A copy, because a raised error keeps all frames that it passed.
        self.loss = self.loss or copy_of(error)
        if not placing.is_awaited:
            is_sent = work.is_sent
            self.lost[is_sent] += 1
            placing.heard = partial(self._hear_of_loss, is_sent)

    def _hear_of_loss(self, is_sent: bool) -> None:
        self.lost[is_sent] = max(0, self.lost[is_sent] - 1)

    def _ended(self) -> BaseException:
        return closed() if self.ended_by is None else copy_of(self.ended_by)

    def _is_full(self, size: int) -> bool:
        # An append above the limit is accepted only alone, because data in flight also uses memory.
        return bool(self._unsettled) and self._bytes + size > self.batching.pending_bytes

    def _enter(self, work: Work) -> None:
        self._waiting.append(work)
        self._unsettled[work] = None
        self._bytes += work.size
        work.expected, self._last = self._expected(), work
        if work.placing is not None and work.expected is not None:
            work.placing.order(work.expected)
        if len(self._waiting) == 1:
            self.notify()

    def _expected(self) -> int | None:
        """Return the position after all accepted records; None until the log is open."""
        last = self._last
        if last is None or last.is_sent or last not in self._unsettled:
            return self.next_position
        return None if last.expected is None else last.expected + len(last.bodies)

    def _let_in(self) -> None:
        """Accept appends from the line as far as there is room."""
        while self._in_line:
            work = next(iter(self._in_line))
            if self._is_full(work.size):
                return
            self._in_line.popitem(last=False)
            self._enter(work)

    def _forget(self, batch: Iterable[Work]) -> None:
        for work in list(batch):
            if work in self._unsettled:
                del self._unsettled[work]
                self._bytes -= work.size
                self._last = None if work is self._last else self._last
        self._let_in()
        self.notify()


def _raise_in(waiter: asyncio.Future[int], error: BaseException) -> None:
    waiter.set_exception(error)
    # Mark the error as retrieved: a caller that stopped waiting needs no warning.
    waiter.exception()
