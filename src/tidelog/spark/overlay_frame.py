"""DataFrames of a large base with few changes: Spark scans the base, and a task adds the changes.

A table to which rows were added has parts whose updates are all +1. After an upsert of some keys,
few other parts have the updates that remove old rows and add new ones. Tasks consolidate only these
parts. Spark scans the base, without the keys of removed rows, and appends the added rows. So it
skips columns, row groups and pages of the base.

A removal names only a key, so the base must have each key at most once. That follows if each key
has at most one row at a time: a part of updates +1 has a key twice only if another part of its
batch removes the first row in between. So a base part meets no other part of its batch, or all its
updates have one time. Base parts of one shard meet neither, unless they have the same one time.
Source: design page 6, "Reading on Spark".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tidelog.persist.format.part import Part, decode_bounds
from tidelog.persist.format.schema import DIFF, encode_with_known
from tidelog.persist.states.state import State
from tidelog.spark.place import url_for_executors
from tidelog.spark.scan import Scan
from tidelog.spark.scan_plan import share
from tidelog.spark.shard_frame import (
    TaskSelection,
    quoted,
    scan_of_parts,
    shown_updates,
    updates_frame,
)
from tidelog.spark.types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidelog.collection.collection import Collection

ROWS_MAX: Final = 1_000_000  # Spark sends the keys of removed rows to each task.
BASE_LEAST: Final = 4  # The base has at least so many times the bytes of the changes.


@dataclass(frozen=True, slots=True)
class Overlay:
    """The parts that Spark scans, and the parts of each shard whose updates meet these."""

    base: tuple[Part, ...]
    changes: tuple[tuple[Part, ...], ...]


def overlay_of(states: Sequence[State], key: Sequence[str], as_of: int) -> Overlay | None:
    """Divide the parts with updates up to a time; None if the base would be small. Pure.

    Each key has at most one row at a time, and a key is in one shard.
    """
    base: list[Part] = []
    changes: list[tuple[Part, ...]] = []
    for state in states:
        ours: list[Part] = []
        others: list[Part] = []
        for batch in state.batches.until(as_of):
            parts = [part for part in batch.parts if part.time_min <= as_of]
            for part in parts:
                (ours if _is_base(part, batch.parts, key) else others).append(part)
        if not _are_apart(ours, key[0]):
            return None
        base += ours
        changes.append(tuple(others))
    few = [part for parts in changes for part in parts]
    is_small = sum(part.rows for part in few) <= ROWS_MAX
    if not is_small or _size(base) < BASE_LEAST * _size(few):
        return None
    return Overlay(tuple(base), tuple(changes)) if base else None


async def overlay_frame(
    spark: SparkSession, collection: Collection, overlay: Overlay, columns: Sequence[str], time: int
) -> DataFrame:
    """Return columns of a collection at a resolved time, from the parts of an overlay.

    Raises:
        SchemaEvolved: a column of the handle was dropped. LocationError: the store failed.
    """
    store, schema = collection.store, collection.served(collection.schema)
    url = url_for_executors(store.url, store)
    key = [name for name in schema.names if name in schema.key]
    names = [*key, *(name for name in columns if name not in key)]
    scans: list[Scan] = []
    for parts in overlay.changes:
        scan = Scan(schema=encode_with_known(schema), columns=tuple(names), as_of=time, parts=parts)
        scans += await share(scan, store)
    chosen = TaskSelection(tuple(names), None, None)
    shown = spark_schema(shown_updates(schema, names))
    updates = updates_frame(spark, scans, url, chosen, shown)
    gone = updates.where(f"{DIFF} < 0").select(*[quoted(name) for name in key]).hint("broadcast")
    added = updates.where(f"{DIFF} > 0").selectExpr(
        *[quoted(name) for name in names], f"explode(array_repeat(0, int({DIFF}))) AS {DIFF}"
    )
    base = scan_of_parts(spark, overlay.base, schema, time, url)
    stays = base.select(*[quoted(name) for name in names]).join(gone, key, "left_anti")
    wanted = [quoted(name) for name in columns]
    return stays.select(*wanted).unionAll(added.select(*wanted))


def _is_base(part: Part, batch: Sequence[Part], key: Sequence[str]) -> bool:
    if not part.plain or part.path is None:
        return False
    bounds = decode_bounds(part)
    if any(None in bounds.get(name, (None, None)) for name in key):
        return False
    if part.time_min == part.time_max:
        return True
    return all(_is_apart(part, other, key[0]) for other in batch if other is not part)


def _is_apart(part: Part, other: Part, name: str) -> bool:
    (least, greatest), (low, high) = (_bounds(each, name) for each in (part, other))
    return low is not None and (greatest < low or high < least)


def _are_apart(parts: Sequence[Part], name: str) -> bool:
    """Return True if no key is in two parts, except in parts that have the same one time."""
    ranges: dict[object, tuple[Any, Any]] = {}
    for number, part in enumerate(parts):
        own = part.time_min if part.time_min == part.time_max else ("part", number)
        low, high = _bounds(part, name)
        least, greatest = ranges.get(own, (low, high))
        ranges[own] = min(low, least), max(high, greatest)
    return all(a[1] < b[0] for a, b in pairwise(sorted(ranges.values())))


def _bounds(part: Part, name: str) -> tuple[Any, Any]:
    return decode_bounds(part).get(name, (None, None))


def _size(parts: Sequence[Part]) -> int:
    return sum(part.size_bytes for part in parts)
