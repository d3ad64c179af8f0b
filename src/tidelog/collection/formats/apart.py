"""Isolation of bad rows: if a row makes a library fail, the work is done without that row. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidelog.errors import TidelogError

T = TypeVar("T")


def do_apart(count: int, work: Callable[[int, int], T]) -> tuple[list[T], dict[int, str]]:
    """Do work on ``count`` rows; if it fails, split the rows in halves and do each half.

    Return the results in order, and the name of the error for each row that fails alone. An error
    of tidelog, or a lack of memory, is not the fault of a row, and is raised.
    """
    done: list[T] = []
    failed: dict[int, str] = {}
    waiting = [(0, count)]
    while waiting:
        start, limit = waiting.pop()
        try:
            done.append(work(start, limit))
        except (TidelogError, MemoryError):
            raise
        except Exception as error:
            if limit - start < 1:
                raise  # The work fails even without rows.
            if limit - start == 1:
                failed[start] = type(error).__name__
            else:
                middle = (start + limit) // 2
                waiting += [(middle, limit), (start, middle)]
    return done, failed
