"""Rows apart: work that some row makes a library fail at is done without that row. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tidelog.errors import TidelogError

T = TypeVar("T")


def do_apart(count: int, work: Callable[[int, int], T]) -> tuple[list[T], dict[int, str]]:
    """Do work on the rows ``[start, limit)`` of ``count``; where that fails, on each half of them.

    Return what was done, in order, and for each row that fails alone the name of its error. An
    error of ours, or a lack of memory, is no row's fault, and is raised.
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
                raise  # Not even nothing can be done.
            if limit - start == 1:
                failed[start] = type(error).__name__
            else:
                middle = (start + limit) // 2
                waiting += [(middle, limit), (start, middle)]
    return done, failed
