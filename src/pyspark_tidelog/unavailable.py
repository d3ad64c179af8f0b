"""The source that stands in for tidelog's own where that cannot be imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql.datasource import DataSource


class Unavailable(DataSource):
    """Answers to the name, and to every use with the reason."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        try:
            import tidelog.spark.datasource  # noqa: F401  The import is what is tried.
        except Exception as error:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # PySpark puts the traceback first otherwise.
            raise ImportError(
                f"tidelog is installed, but its Spark source cannot be imported by {sys.executable}"
                f": {error!r}; set PYSPARK_PYTHON to a Python that has tidelog and its "
                "dependencies, or call tidelog.spark.register(spark)"
            ) from error
        raise ImportError("tidelog's Spark source can be imported by now: restart the session")

    @classmethod
    def name(cls) -> str:
        return "tidelog"
