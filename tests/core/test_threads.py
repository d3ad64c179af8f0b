"""Computations on several threads: their results come in order, and their errors arrive."""

from __future__ import annotations

import threading
from functools import partial
from unittest.mock import patch

import pytest

from tidelog.core import threads
from tidelog.core.threads import on_cores


def test_calls_run_at_the_same_time_and_their_results_come_in_order() -> None:
    """Two calls that wait for each other both end, so that no core idles."""
    meeting = threading.Barrier(2, timeout=10)

    def call(number: int) -> int:
        meeting.wait()
        return number

    with patch.object(threads, "cores", return_value=2):
        assert on_cores([partial(call, 1), partial(call, 2)]) == [1, 2]


def test_calls_of_a_process_with_one_core_start_no_thread() -> None:
    """A task of Spark has one core, so more threads would slow its neighbors."""
    with patch.object(threads, "cores", return_value=1):
        found = on_cores([threading.get_ident, threading.get_ident])

    assert found == [threading.get_ident()] * 2


def test_the_error_of_a_call_is_raised() -> None:
    """The caller gets the error itself, not an empty result."""
    with patch.object(threads, "cores", return_value=2), pytest.raises(ZeroDivisionError):
        on_cores([partial(divmod, 1, 0), partial(divmod, 1, 1)])
