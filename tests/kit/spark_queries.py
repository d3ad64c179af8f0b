"""Streaming queries that take everything available and end."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.streaming.readwriter import DataStreamWriter

STARTS_MAX = 5


def run_available(writer: DataStreamWriter, place: str) -> list[dict[str, Any]]:
    """Run a query to its end; return the progress of its batches.

    Spark gives the Python process of a query ten seconds to start, without a setting for it. If a
    busy machine takes longer, the query is started again.
    """
    for left in reversed(range(STARTS_MAX)):
        query = writer.trigger(availableNow=True).start(place)
        try:
            query.awaitTermination()
            return [dict(progress) for progress in query.recentProgress]
        except PySparkException as error:
            if not left or "failed to connect back" not in str(error):
                raise
        finally:
            query.stop()
    raise AssertionError("the last start returns or raises")
