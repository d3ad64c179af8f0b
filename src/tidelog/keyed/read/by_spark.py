"""The only module of `keyed` that imports `tidelog.spark`.

Users pass a Spark session to a log. If a session exists, the package for it does too.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class SparkView:
    """A DataFrame, and the sequence to which it is complete: a later view starts there."""

    frame: DataFrame
    next_sequence: int


def spark_keyed_room(name: str) -> Any:
    """Import and return a module of `tidelog.spark.keyed`."""
    return import_module(f"tidelog.spark.keyed.{name}")
