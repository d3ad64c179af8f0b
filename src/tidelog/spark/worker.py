"""What every Python worker of Spark is told first."""

from __future__ import annotations

import pyarrow as pa

from tidelog.persist.duck import duck


def use_one_core() -> None:
    """Let libraries use the one core that a task has; on the others, other tasks run."""
    pa.set_cpu_count(1)
    with duck() as connection:
        connection.execute("SET threads = 1")
