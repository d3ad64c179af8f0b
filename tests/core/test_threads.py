"""Computations on several threads: their results come in order, and their errors arrive."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
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


def test_calls_may_make_such_calls_themselves() -> None:
    """A merge that encodes a part inside of a computation does not wait for its own thread."""

    def inner(number: int) -> list[int]:
        return on_cores([partial(abs, number), partial(abs, -number), partial(abs, number)])

    with patch.object(threads, "cores", return_value=2):
        found = on_cores([partial(inner, number) for number in range(50)])

    assert found == [[number] * 3 for number in range(50)]


def test_many_callers_share_the_threads() -> None:
    """Callers that find all threads at work compute by themselves."""
    with patch.object(threads, "cores", return_value=2), ThreadPoolExecutor(16) as pool:
        calls = [partial(abs, -number) for number in range(20)]
        found = list(pool.map(lambda _: on_cores(calls), range(100)))

    assert found == [list(range(20))] * 100


def test_a_forked_child_has_threads_of_its_own() -> None:
    """A child of a fork has none of its parent's threads, and would wait for them forever."""
    with patch.object(threads, "cores", return_value=2):
        on_cores([threading.get_ident, threading.get_ident])
        child = os.fork()
        if not child:
            meeting = threading.Barrier(2, timeout=10)
            os._exit(len(on_cores([meeting.wait, meeting.wait])))
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 2


def test_the_error_of_a_call_is_raised() -> None:
    """The caller gets the error itself, not an empty result."""
    with patch.object(threads, "cores", return_value=2), pytest.raises(ZeroDivisionError):
        on_cores([partial(divmod, 1, 0), partial(divmod, 1, 1)])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_after_an_error_no_other_call_begins(error: type[BaseException]) -> None:
    """A user who presses Ctrl-C does not wait for the rest of the calls."""
    begun: list[int] = []

    def call(number: int) -> None:
        begun.append(number)
        raise error

    with patch.object(threads, "cores", return_value=2), pytest.raises(error):
        on_cores([partial(call, number) for number in range(50)])

    assert len(begun) <= 2
