"""Spark's parent of Python workers, less one message: see ``spark.python.daemon.module``.

When a JVM ends, its idle workers are sent a signal and lose their sockets at once. In one run of
ten the loss is noticed first, and a traceback of it is the last thing that a user reads.

Imports nothing but pyspark, since a process that forks must not have started threads: pyarrow does.
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace

from pyspark import daemon


def print_exception() -> None:
    """Print the exception being handled, unless it says that the JVM has gone."""
    if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
        traceback.print_exc()


if __name__ == "__main__":
    # All that it uses of the module; other users of the module are not to see a changed one.
    vars(daemon)["traceback"] = SimpleNamespace(
        print_exc=print_exception, format_exc=traceback.format_exc
    )
    daemon.manager()
