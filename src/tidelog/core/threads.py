"""Computations of one call on several threads.

Arrow, numpy and compiled hashes release the interpreter's lock, so threads use all cores. The
threads outlive a call, because they keep memory: new memory costs as much time as decoding rows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

T = TypeVar("T")

_helpers: ThreadPoolExecutor


def _begin() -> None:
    """Begin with no thread: a forked child has none of its parent's."""
    global _helpers  # noqa: PLW0603 - a process has one pool
    _helpers = ThreadPoolExecutor(os.cpu_count() or 1, "tidelog-core")


_begin()
os.register_at_fork(after_in_child=_begin)


def cores() -> int:
    """Return the number of cores that this process may use: 1 in a task of Spark."""
    return pa.cpu_count()


def on_cores(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Return the results of calls that compute, in order; the calls share the cores.

    The caller's thread computes too, so calls may make such calls themselves. After an error, no
    other call begins: Ctrl-C, too, is the error of a call.

    Raises:
        The first error of a call, after the calls that began have ended.
    """
    if len(calls) < 2 or cores() < 2:
        return [call() for call in calls]
    futures: list[Future[T]] = [Future() for _ in calls]
    left = iter(list(zip(calls, futures, strict=True)))

    def work() -> None:
        for call, future in left:
            if not _succeeds(call, future):
                deque(left, maxlen=0)

    helpers = [_helpers.submit(work) for _ in range(min(len(calls), cores()) - 1)]
    work()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    return [future.result() for future in futures]


def _succeeds(call: Callable[[], T], future: Future[T]) -> bool:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - the caller gets it
        future.set_exception(error)
        return False
    future.set_result(result)
    return True
