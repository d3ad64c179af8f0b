"""The start of work in a Python worker of Spark."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pyarrow as pa
from pyspark import cloudpickle

from tidelog.persist.format.duck import duck
from tidelog.spark.reach import lacking_text

Work: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def use_one_core() -> None:
    """Let libraries use the one core that a task has; on the others, other tasks run.

    What the process has loaded by then is not looked through for garbage any more.
    """
    pa.set_cpu_count(1)
    with duck() as connection:
        connection.execute("SET threads = 1")
    # After each task Spark's worker looks for garbage among all that there is: most of it are
    # modules, which stay.
    gc.collect()
    gc.freeze()


def guarded(work: Work) -> Work:
    """Return work for ``mapInArrow`` that names the packages that a worker lacks.

    The work travels as bytes in a function that needs no package: Spark would load the work itself
    before any of it could explain a failure.
    """
    payload: bytes = cloudpickle.dumps(work)  # type: ignore[no-untyped-call]
    sentence = lacking_text("at {0}", "{1}")

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import pickle
        import sys

        try:
            loaded = pickle.loads(payload)
        except ImportError as error:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # PySpark puts the traceback first otherwise.
            package = str(error.name).partition(".")[0]
            raise ImportError(sentence.format(sys.executable, package)) from None
        yield from loaded(batches)

    return run
