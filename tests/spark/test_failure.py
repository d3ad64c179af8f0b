"""What is told of Spark's failures: the cause, out of a hundred lines."""

from __future__ import annotations

import pytest

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
    """A user reads one line: it had better be the one that says what to do."""
    assert describe_failure(text) == cause


def test_a_cause_is_cut_where_it_would_fill_the_screen() -> None:
    """Some of Spark's messages hold whole plans."""
    assert len(describe_failure("x" * 10_000)) == CAUSE_MAX
