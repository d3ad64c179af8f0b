"""Spark: a data source, an engine for ingestion, and a session that starts fast and logs little.

Importing this package starts no JVM; only a call of `session` does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

# Not lazy: an import of the submodule `session` would otherwise replace the function of this name.
from tidelog.spark.session import session

if TYPE_CHECKING:
    from tidelog.spark.engine import SparkEngine
    from tidelog.spark.log_verify import verify
    from tidelog.spark.shard_scrub import scrub
    from tidelog.spark.views import register

__all__ = ["SparkEngine", "register", "scrub", "session", "verify"]

_HOMES = {
    "SparkEngine": "tidelog.spark.engine",
    "register": "tidelog.spark.views",
    "scrub": "tidelog.spark.shard_scrub",
    "verify": "tidelog.spark.log_verify",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidelog.spark' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
