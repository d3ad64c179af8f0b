"""The only module of `persist` that imports `tidelog.spark`.

Users pass a Spark session to objects of a shard. If a session exists, the package for it does too.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def spark_room(name: str) -> Any:
    """Import and return a module of `tidelog.spark`."""
    return import_module(f"tidelog.spark.{name}")
