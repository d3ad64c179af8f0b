"""Which engine does an ingester's work, where the user leaves that open.

Both engines give the same contents, so that this decides nothing but how long it takes. Spark takes
seconds to start, in which one process ingests some hundred megabytes.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.collection.ingest import Ingester

ENGINES: Final = ("auto", "spark", "local")
SPARK_BYTES_MIN: Final = 1 << 30  # That a source has left, for a start of Spark to be worth it.


def check_engine(engine: str) -> None:
    """Refuse an engine that is not known, or not installed.

    Raises:
        UsageError: so it is.
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine!r} is not known: it is one of {', '.join(ENGINES)}")
    if engine == "spark":
        from tidelog.cli.late_spark import check_installed

        check_installed()


async def choose_engine(ingester: Ingester) -> str:
    """Return ``spark`` where it can run and the source has enough left for it, else ``local``.

    Raises:
        LocationError: the store failed, or the source's.
    """
    from tidelog.collection.status import taken_now

    if importlib.util.find_spec("pyspark") is None:
        return "local"
    _, taken = await taken_now(ingester)
    left = (await ingester.source.head()).left_bytes(taken)
    if left < SPARK_BYTES_MIN or not await ingester.clock.offload(_has_java):
        return "local"
    return "spark"


def _has_java() -> bool:
    import os

    from tidelog.spark.java import find_launcher

    try:
        find_launcher(os.environ)
    except UsageError:
        return False
    return True
