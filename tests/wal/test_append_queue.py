"""The append queue of a writer: order, memory, errors and waiting times."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tidelog.errors import (
    BusyError,
    CorruptionError,
    Fenced,
    HandleError,
    InvariantError,
    LocationError,
    Outcome,
    OutcomeUnknown,
    TidelogError,
    UsageError,
)
from tidelog.wal.append.batching import Batching
from tidelog.wal.append.queue import LOOKS, Queue
from tidelog.wal.append.work import Work

TEN = pa.array([b"x" * 6], pa.binary())  # 14 bytes, because its offsets count too.


def queue_of(count: int = 2) -> Queue:
    """Return a queue with room for ``count`` appends of `TEN`."""
    return Queue(batching=Batching(pending_bytes=count * TEN.nbytes, batch_bytes=TEN.nbytes))


def error_of(work: Work) -> BaseException | None:
    return work.done.exception() if work.done.done() else None


async def test_appends_that_wait_for_room_are_served_in_order() -> None:
    """A later append does not pass those that wait for room, even if it is small."""
    queue = queue_of(2)
    works = [queue.add(TEN) for _ in range(5)]
    small = queue.add(pa.array([b""], pa.binary()))
    with pytest.raises(BusyError):
        queue.add(pa.array([b""], pa.binary()), wait=False)

    served: list[Work] = []
    while len(queue):
        batch = queue.take()
        served += batch
        queue.settle(batch, 1)

    assert served == [*works, small]
    assert all(work.done.result() == 1 for work in works)


async def test_what_is_under_way_takes_room_as_well() -> None:
    """Appends that are sent but not answered still count as pending bytes."""
    queue = queue_of(2)
    sent = []
    for _ in range(2):
        queue.add(TEN)
        sent.append(queue.take())

    with pytest.raises(BusyError):
        queue.add(TEN, wait=False)
    late = queue.add(TEN)

    assert not len(queue)
    queue.settle(sent[0], 1)
    assert queue.take() == [late]


async def test_who_stops_waiting_in_line_was_never_there() -> None:
    """A cancelled wait for room drops the append; an append inside the queue is written."""
    queue = queue_of(1)
    inside, gone, last = queue.add(TEN), queue.add(TEN), queue.add(TEN)

    inside.done.cancel()
    queue.withdraw(inside)
    gone.done.cancel()
    queue.withdraw(gone)

    assert queue.take() == [inside]
    queue.settle([inside], 1)
    assert queue.take() == [last]


async def test_the_queue_keeps_nothing_of_answered_appends() -> None:
    """The queue keeps no bytes and no futures of answered appends, for any answer."""
    queue = queue_of(3)
    endings: list[Callable[[list[Work]], object]] = [
        lambda batch: queue.settle(batch, 1),
        lambda batch: queue.fail(batch, LocationError("no")),
        lambda batch: queue.doubt(batch, LocationError("no")),
        queue.give_back,
    ]
    for end in endings:
        bodies = pa.array([b"x"], pa.binary())
        kept = weakref.ref(bodies)
        queue.add(bodies)
        del bodies
        end(queue.take())
        queue.refuse_waiting(LocationError("no"))
        gc.collect()
        assert kept() is None
    assert (len(queue), queue.is_waited_for, queue._bytes) == (0, False, 0)


async def test_refusals_of_a_queue_that_ended_leave_nothing() -> None:
    """An error raised by an ended queue does not grow its traceback with each append."""
    queue = queue_of()
    queue.abandon(Fenced("another writer took over"))

    lengths = []
    for _ in range(3):
        with pytest.raises(Fenced, match="another writer") as refused:
            queue.add(TEN)
        lengths.append(len(refused.traceback))
    assert len(set(lengths)) == 1
    assert not queue.is_waited_for


async def test_each_has_an_error_of_their_own() -> None:
    """Each append gets an error object of its own, because raising adds a traceback to it."""
    queue = queue_of(9)
    works = [queue.add(TEN) for _ in range(3)]

    queue.abandon(LocationError("gone", key="k"))

    told = [error_of(work) for work in works]
    assert len({id(error) for error in told}) == 3
    assert {str(error) for error in told} == {"gone (key=k)"}


@pytest.mark.parametrize(
    ("reason", "unsent", "sent"),
    [
        (LocationError("x"), LocationError, OutcomeUnknown),
        (LocationError("x", outcome=Outcome.UNKNOWN), LocationError, OutcomeUnknown),
        (OutcomeUnknown("x"), LocationError, OutcomeUnknown),
        (CorruptionError("x"), CorruptionError, CorruptionError),
        (ValueError("x"), InvariantError, OutcomeUnknown),
        (asyncio.CancelledError(), HandleError, OutcomeUnknown),
    ],
)
async def test_what_is_told_depends_on_what_was_sent(
    reason: BaseException, unsent: type[TidelogError], sent: type[TidelogError]
) -> None:
    """When the writer ends, unsent appends report NOT_APPLIED and sent ones UNKNOWN."""
    queue = queue_of(1)
    away, waiting, in_line = queue.add(TEN), queue.add(TEN), queue.add(TEN)
    queue.take()
    away.is_sent = True

    queue.abandon(reason)

    for work, kind, outcome in (
        (away, sent, Outcome.UNKNOWN),
        (waiting, unsent, Outcome.NOT_APPLIED),
        (in_line, unsent, Outcome.NOT_APPLIED),
    ):
        error = error_of(work)
        assert type(error) is kind
        assert isinstance(error, TidelogError)
        assert error.outcome is outcome


async def test_patience_is_counted_in_looks_without_headway() -> None:
    """The queue counts checks without progress, so a stopped process refuses no append."""
    queue = queue_of(1)
    away, waiting = queue.add(TEN), queue.add(TEN)
    queue.take()
    away.is_sent = True
    queue.trouble = LocationError("the manifest cannot be replaced")

    for _ in range(LOOKS - 1):
        queue.look()
    assert not waiting.done.done()
    late = queue.add(TEN)
    queue.look()
    error = error_of(waiting)
    assert isinstance(error, LocationError)
    assert error.outcome is Outcome.NOT_APPLIED
    assert "the manifest cannot be replaced" in str(error)
    assert not late.done.done(), "it has just come"
    for _ in range(LOOKS):
        queue.look()
    assert isinstance(error_of(late), LocationError)
    assert isinstance(error_of(away), OutcomeUnknown)


async def test_headway_gives_new_patience() -> None:
    """Progress resets the patience: a slow store that answers refuses no append."""
    queue = Queue(batching=Batching(batch_bytes=1))
    for _ in range(6):
        queue.add(TEN)
    last = queue.add(TEN)

    for _ in range(6):
        for _ in range(LOOKS - 1):
            queue.look()
        queue.settle(queue.take(), 1)

    assert not last.done.done()


async def test_who_was_told_that_it_is_not_known_is_not_sent_again() -> None:
    """An append reported as UNKNOWN is never resent, because its caller may have repeated it."""
    queue = queue_of(9)
    told, silent = queue.add(TEN), queue.add(TEN)
    queue.take()
    queue.take()
    told.is_sent = silent.is_sent = True
    silent.done.cancel()
    for _ in range(2 * LOOKS):
        queue.look()
    assert isinstance(error_of(told), OutcomeUnknown)

    queue.give_back([told, silent])

    assert queue.take() == [silent]


async def test_what_is_refused_is_not_queued() -> None:
    """A refused append takes no room in the queue and does not affect other appends."""
    queue = queue_of()
    wrong: Any = pa.chunked_array([[b"x"]], pa.binary())

    with pytest.raises(UsageError):
        queue.add(wrong)

    assert (len(queue), queue._bytes) == (0, 0)
