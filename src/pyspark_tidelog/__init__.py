"""What Spark looks for to know ``format("tidelog")`` without being told of it.

Spark imports every top-level module called ``pyspark_...`` and takes its ``DefaultSource``; an
exception from any one of them hides the sources of all. So nothing is imported here before it is
asked for, and what cannot be imported is answered by a source that says so when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource


def __getattr__(name: str) -> type[DataSource]:
    if name != "DefaultSource":
        raise AttributeError(name)
    try:
        from tidelog.spark.datasource import TidelogDataSource
    except Exception:  # noqa: BLE001  Whatever it is, the sources of others must not suffer for it.
        from pyspark_tidelog.unavailable import Unavailable

        return Unavailable
    return TidelogDataSource
