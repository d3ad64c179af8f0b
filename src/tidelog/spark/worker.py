"""The preparation of a Python worker of Spark for tidelog's tasks."""

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
    """Limit libraries to the one core of a task, since other tasks use the other cores.

    The objects that the process has loaded so far are frozen, so garbage collection skips them.
    """
    pa.set_cpu_count(1)
    with duck() as connection:
        connection.execute("SET threads = 1")
    # After each task, Spark's worker collects garbage among all objects; most of them are modules,
    # which never become garbage.
    gc.collect()
    gc.freeze()


def guarded(work: Work) -> Work:
    """Return work for ``mapInArrow`` that names the packages that a worker lacks.

    The work is sent as bytes in a function that needs no package. Otherwise Spark would unpickle
    the work itself, and its error would not name a remedy.
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
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # Otherwise PySpark prints a traceback first.
            package = str(error.name).partition(".")[0]
            raise ImportError(sentence.format(sys.executable, package)) from None
        yield from loaded(batches)

    return run
