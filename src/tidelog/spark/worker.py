"""What every Python worker of Spark is told first."""

from __future__ import annotations

import gc

import pyarrow as pa

from tidelog.persist.format.duck import duck


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
