"""Messages for Spark's failures: the cause, out of a hundred lines."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tidelog.errors import InvariantError
from tidelog.spark import task
from tidelog.spark.failure import CAUSE_MAX, describe_failure

PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "pyspark/worker.py", line 3622, in main
    process()
           ^^^^^^^
ModuleNotFoundError: No module named 'tidelog'
"""
JAVA = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 \
times, most recent failure: Lost task 0.0 in stage 1.0 (TID 1) (localhost executor driver): \
org.apache.spark.SparkException: Python worker exited unexpectedly (crashed).
\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:704)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
\t... 22 more
"""
BOTH = """An error occurred while calling o42.collect.
: org.apache.spark.SparkException: Job aborted: org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "pyspark/worker.py", line 3622, in main
MemoryError: too much

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:704)
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (PYTHON, "ModuleNotFoundError: No module named 'tidelog'"),
        (JAVA, "Python worker exited unexpectedly (crashed)."),
        (BOTH, "MemoryError: too much"),
        ("[X] something else\nand more", "[X] something else"),
        ("", ""),
    ],
)
def test_the_cause_is_told_and_nothing_else(text: str, cause: str) -> None:
    """The message is the one line of Spark's text with the cause."""
    assert describe_failure(text) == cause


def test_a_cause_is_cut_where_it_would_fill_the_screen() -> None:
    """Some of Spark's messages hold whole plans."""
    assert len(describe_failure("x" * 10_000)) == CAUSE_MAX


@dataclass(frozen=True)
class Errand:
    """A stand-in for a share: only its location is read here."""

    location_url: str


def test_an_unexpected_error_of_a_task_is_an_invariant_error(tmp_path: Path) -> None:
    """Spark would retry an unexpected error without end, so it becomes an InvariantError."""

    async def breaking(share: object, bench: object) -> None:
        raise KeyError("no such thing")

    share: Any = Errand(str(tmp_path))
    found = task.with_worker(share, breaking)
    assert isinstance(found, InvariantError)
    assert "KeyError: 'no such thing'" in str(found)
    assert isinstance(pickle.loads(pickle.dumps(found)), InvariantError)


def test_a_lack_of_memory_is_tried_again_elsewhere(tmp_path: Path) -> None:
    """A task without memory is retried, since another executor may have more."""

    async def breaking(share: object, bench: object) -> None:
        raise MemoryError

    share: Any = Errand(str(tmp_path))
    with pytest.raises(MemoryError):
        task.with_worker(share, breaking)
