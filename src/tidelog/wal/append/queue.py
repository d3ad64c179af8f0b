"""Appends that wait to be written, and how they are gathered into batches.

A write that others wait for runs in a task of the log, not of its caller: to cancel an append is to
stop waiting for it. What waits is bounded in bytes; whoever comes when it is full stands in line.
How long somebody waits is counted in looks, not in time: a process that was stopped for a minute
finds that one look has passed, and nobody is refused for that. Nor for a time in which the store
was asked nothing, since the writer's own settings had it wait.

Invariants: those who wait are served in the order in which they came. Whoever is told that the
outcome is not known is not sent again.
Source: wal3, "Dropped Async Tasks"; design page 3, "Batching and back-pressure".
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from tidelog.errors import BusyError, LocationError, Outcome, TidelogError
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.bodies import APPEND_BYTES_MAX, checked, joined, size_of
from tidelog.wal.append.signal import Signal
from tidelog.wal.append.telling import closed, copy_of, no_answer, refusal, told_sent, told_unsent
from tidelog.wal.format.parquet import BYTES_MIN, RECORDS_MAX
from tidelog.wal.format.streams import Control

SHARE_BYTES: Final = 1024 * 1024  # Below that, a batch more costs more than it gains.
LOOKS: Final = 8  # In so many steps patience runs out.


@dataclass(slots=True, eq=False)
class Work:
    """Records that wait, and who waits for their position.

    All are in one stream, or in none; ``control`` is what the one record says that is a control
    record. ``since`` is the look at which they came.
    """

    bodies: pa.BinaryArray
    size: int
    timestamp_us: int | None
    done: asyncio.Future[int]
    stream: bytes | None = None
    control: Control | None = None
    since: int = 0
    is_sent: bool = False

    @property
    def is_told(self) -> bool:
        """Say whether whoever waited has an answer; whoever stopped waiting has none."""
        return self.done.done() and not self.done.cancelled()


@dataclass(slots=True, kw_only=True)
class Queue:
    """What was appended and is not settled yet, in the order in which it came.

    ``trouble`` is what the writer met last that keeps it from going on, for those who ask why;
    ``heard`` is what the store said last of a put that is sent again.
    ``is_resting``: the writer may not send yet, by `Batching`, and waits for nothing else.
    ``unheard`` counts, by whether they were sent, what came to nothing when nobody waited.
    """

    batching: Batching
    changed: Signal = field(default_factory=Signal)
    is_closing: bool = False
    is_resting: bool = False
    ended_by: BaseException | None = None
    trouble: BaseException | None = None
    heard: LocationError | None = None
    headway: int = 0  # Batches that were acknowledged.
    unheard: Counter[bool] = field(default_factory=Counter)
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
        """Say whether anybody waits for an answer."""
        return bool(self._in_line) or any(not work.done.done() for work in self._unsettled)

    @property
    def waits_for_the_store(self) -> bool:
        """Say whether its silence counts: not while the writer rests, and all sent is answered."""
        return not self.is_resting or any(work.is_sent for work in self._unsettled)

    def add(
        self,
        bodies: pa.BinaryArray,
        *,
        timestamp_us: int | None = None,
        stream: bytes | None = None,
        control: Control | None = None,
        wait: bool = True,
    ) -> Work:
        """Add records, or put them in line for when there is room.

        Raises:
            UsageError: they are no append. BusyError: ``wait`` is False, and there is no room.
            HandleError: the queue is closed. Whatever ended it, if something did.
        """
        bodies = checked(bodies, stream=stream)
        size = size_of(bodies, stream)
        if self.is_closing:
            raise self._ended()
        is_full = bool(self._in_line) or self._is_full(size)
        if is_full and not wait:
            raise BusyError("too much is waiting to be appended: back off, then retry")
        done = asyncio.get_running_loop().create_future()
        work = Work(bodies, size, timestamp_us, done, stream, control, self._looks)
        if is_full:
            self._in_line[work] = None
        else:
            self._enter(work)
        return work

    def withdraw(self, work: Work) -> None:
        """Take out what is still in line; whoever waited for it has gone."""
        self._in_line.pop(work, None)

    def take(self, *, shares: int = 1) -> list[Work]:
        """Take what makes the next batch: at least one, and more while it is not full.

        Where several batches can be under way at once, one takes no more than its share of all that
        is not settled: while one is sent, the next is encoded already.
        """
        share = max(SHARE_BYTES, self._bytes // shares)
        # Readers take no more from one object, whatever the settings are.
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

    def give_back(self, batch: Sequence[Work]) -> None:
        """Put work that was taken, and is not in the log, before all that waits."""
        # Whoever was told that it is not known may have read the log, and appended again.
        self._forget(work for work in batch if work.is_told)
        for work in reversed(batch):
            if work in self._unsettled:
                work.is_sent = False
                self._waiting.appendleft(work)
        self.changed.notify()

    def settle(self, batch: Sequence[Work], position: int) -> None:
        """Tell that a batch is durable, from a position on."""
        for work in batch:
            if not work.done.done():
                work.done.set_result(position)
            position += len(work.bodies)
        self.headway += 1
        self.trouble = self.heard = None
        self._forget(batch)

    def hear(self, error: TidelogError) -> None:
        """Note what the store said of a put that is sent again."""
        if isinstance(error, LocationError):  # All else says what is there, not what is wrong.
            self.heard = error

    def fail(self, batch: Iterable[Work], reason: BaseException) -> None:
        """Tell that a batch is not in the log."""
        self._end(batch, partial(told_unsent, reason), is_sent=False)

    def doubt(self, batch: Iterable[Work], reason: BaseException) -> None:
        """Tell that a batch may be in the log, or not."""
        self._end(batch, partial(told_sent, reason), is_sent=True)

    def answer(self, batch: Iterable[Work], error: TidelogError) -> None:
        """Tell what an error says of a batch."""
        self.trouble = error
        tell = self.fail if error.outcome is Outcome.NOT_APPLIED else self.doubt
        tell(batch, error)

    def refuse_waiting(self, reason: BaseException) -> None:
        """Tell all that has room, and was not sent, why it cannot be."""
        waiting = list(self._waiting)
        self._waiting.clear()
        self.fail(waiting, reason)

    def close(self) -> None:
        """Refuse more; what is there stays."""
        self.is_closing = True
        self.changed.notify()

    def abandon(self, reason: BaseException) -> None:
        """Refuse more, and tell all that wait, be it for an answer or for room."""
        self.ended_by = self.ended_by or told_unsent(reason)
        in_line, self._in_line = list(self._in_line), OrderedDict()
        self._waiting.clear()
        self.close()
        self.fail(in_line, reason)
        self.fail([work for work in self._unsettled if not work.is_sent], reason)
        self.doubt(self._unsettled, reason)

    def count_waiting(self) -> tuple[int, int]:
        """Return how many still wait for an answer and were sent, and how many were not."""
        waiting = [work for work in self._unsettled if not work.done.done()]
        sent = sum(work.is_sent for work in waiting)
        return sent, len(waiting) - sent + len(self._in_line)

    def look(self) -> None:
        """Note that a share of the patience has passed, and answer whoever has none left."""
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
                    _tell(work, told_sent(self.trouble or no_answer(self.batching, self.heard)))

    def _refuse(self, late: list[Work]) -> None:
        gone = set(late)
        self._waiting = deque(work for work in self._waiting if work not in gone)
        for work in late:
            self._in_line.pop(work, None)
        self.fail(late, refusal(self.trouble or self.heard, self.batching))

    def _end(
        self, batch: Iterable[Work], told: Callable[[], BaseException], *, is_sent: bool
    ) -> None:
        """Tell what became of a batch; where somebody stopped waiting, whoever closes is told."""
        ended = list(batch)
        for work in ended:
            _tell(work, told())
            self.unheard[is_sent] += work.done.cancelled() and work in self._unsettled
        self._forget(ended)

    def _ended(self) -> BaseException:
        return closed() if self.ended_by is None else copy_of(self.ended_by)

    def _is_full(self, size: int) -> bool:
        # One that is larger than the limit goes alone: also what is under way lies in memory.
        return bool(self._unsettled) and self._bytes + size > self.batching.pending_bytes

    def _enter(self, work: Work) -> None:
        self._waiting.append(work)
        self._unsettled[work] = None
        self._bytes += work.size
        if len(self._waiting) == 1:
            self.changed.notify()

    def _let_in(self) -> None:
        """Let those in line enter, as far as there is room: nobody else is woken for it."""
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
        self._let_in()
        self.changed.notify()


def _tell(work: Work, error: BaseException) -> None:
    if not work.done.done():
        work.done.set_exception(error)
        work.done.exception()  # Whoever stopped waiting is not to be told at the end.


def bodies_of(batch: Sequence[Work]) -> pa.BinaryArray:
    """Return the bodies of a batch, one after the other."""
    return joined([work.bodies for work in batch])
