"""The one way from here to Spark, which no room up to `location` knows.

Users hand a session of Spark to what they have of a shard; where there is a session, there is the
room that works with it, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def spark_room(name: str) -> Any:
    """Return a module of the room of Spark."""
    return import_module(f"tidelog.spark.{name}")
