"""The one way from keyed logs to Spark, which no room up to `location` knows.

Users hand a session of Spark to a log that they have; where there is a session, there is the room
that works with it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SparkView:
    """A DataFrame, and the sequence that it is complete to: a later view goes on from there."""

    frame: DataFrame
    next_sequence: int


def spark_keyed_room(name: str) -> Any:
    """Return a module of the room of keyed logs in Spark."""
    return import_module(f"tidelog.spark.keyed.{name}")
