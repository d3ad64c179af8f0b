"""The next puts of a writer: the appends that it admits, and the slots in flight. Pure.

An append to a stream is admitted only if the stream is open at the append's place in the log. The
tail supplies the open streams, and counts all batches in flight as written. If one of those batches
fails and no later slot is in use, the writer takes its place back and admits the later batches
again. Otherwise the epoch stops.

A slot is acknowledged once its own put and the puts of all lower slots are answered as done. A
fence in a slot decides nothing about lower slots, because one of them may hold another fence. So
the writer sends the puts of lower slots until each is answered.
Invariants: ``base <= committed <= next``; at most alpha slots are in flight, counted from
``committed``. `tidelog.wal.slot_protocol.burst` relies on the second one: it shows how an opener
overtakes a writer.
Source: wal3-draft, "Concurrent Writes"; design page 3, "Append"; docs/decisions/0010.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidelog.errors import UsageError
from tidelog.wal.append.work import Work
from tidelog.wal.format.streams import Streams, enact, no_such_stream, refusal


@dataclass(frozen=True, slots=True)
class SendWindow:
    """The slots ``[base, next)`` that a writer used. Slots below ``base`` are committed.

    ``done`` has the slots whose put is answered as done. ``fence`` is the lowest slot known to hold
    a fence.
    """

    base: int
    next: int
    done: frozenset[int] = frozenset()
    fence: int | None = None

    @property
    def committed(self) -> int:
        """Return the first slot that is not known to be committed."""
        slot = self.base
        while slot in self.done and slot != self.fence:
            slot += 1
        return slot

    @property
    def is_over(self) -> bool:
        """Return True if all slots below the first fence are committed; all others are void."""
        return self.fence is not None and self.committed == self.fence

    def has_room(self, alpha: int) -> bool:
        """Return True if the writer may send another put."""
        return self.fence is None and self.next - self.committed < alpha


def launch(window: SendWindow) -> SendWindow:
    """Return the window after the next slot is given to a batch."""
    return replace(window, next=window.next + 1)


def answer(window: SendWindow, slot: int) -> SendWindow:
    """Return the window after the data of a slot is known to be stored."""
    noted = replace(window, done=window.done | {slot})
    base = noted.committed
    return replace(noted, base=base, done=frozenset(s for s in noted.done if s >= base))


def meet_fence(window: SendWindow, slot: int) -> SendWindow:
    """Return the window after a fence was found in a slot of the writer's batch."""
    fence = slot if window.fence is None else min(window.fence, slot)
    return replace(window, fence=fence)


def admit(
    streams: Streams, batch: Sequence[Work]
) -> tuple[list[Work], list[tuple[Work, UsageError]]]:
    """Return the appends that fit the open streams, and the others with their errors."""
    if not any(work.control or work.stream is not None for work in batch):
        return list(batch), []
    open_now = dict(streams.by_id) if any(work.control for work in batch) else streams.by_id
    admitted: list[Work] = []
    refused: list[tuple[Work, UsageError]] = []
    for work in batch:
        error: UsageError | None = None
        if work.control is not None:
            error = refusal(open_now, work.control)
            if error is None and isinstance(open_now, dict):
                # The position is not known yet, and does not matter here.
                enact(open_now, work.control, 0)
        elif work.stream is not None and work.stream not in open_now:
            error = no_such_stream(work.stream)
        if error is None:
            admitted.append(work)
        else:
            refused.append((work, error))
    return admitted, refused
