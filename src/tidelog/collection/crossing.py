"""The crossing of a handover: the changes of a collection from one rendition to the next.

Below, a reader has the contents of the former rendition complete up to ``at - 1``. At the time
``at`` they become those of the latter. So the changes at ``at`` are the contents of the latter then
minus those of the former at ``at - 1``, consolidated.
Source: storage, "Rendition metadata"; design page 6, "Conditions of a handover".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from tidelog.collection.formats.times import format_time
from tidelog.collection.formats.types import sql_type_of
from tidelog.collection.reading import Reading
from tidelog.errors import SchemaEvolved, UsageError
from tidelog.persist.format.part import negated, with_one_time
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import sum_up


class RenditionReader(Protocol):
    """The part of a collection's handle that reads one rendition."""

    def contents(self, reading: Reading, time: int) -> AsyncGenerator[pa.Table, None]: ...

    def changes_of(
        self, reading: Reading, since: int, until: int
    ) -> AsyncGenerator[pa.Table, None]: ...


async def changes_across(
    former: RenditionReader,
    latter: RenditionReader,
    reading: Reading,
    since: int,
    until: int,
    *,
    at: int,
) -> AsyncGenerator[pa.Table, None]:
    """Yield the updates after ``since``, which is before ``at``, up to ``until``.

    Raises:
        SchemaEvolved: a rendition lacks a column of the read, or has another type for it.
        All errors of `Collection.changes_of`.
    """
    left = reading.wanted.limit
    steps: list[Callable[[Reading], AsyncGenerator[pa.Table, None]]] = [
        partial(former.changes_of, since=since, until=min(until, at - 1))
    ]
    if until >= at:
        steps.append(partial(_crossing, former, latter, at=at))
        steps.append(partial(latter.changes_of, since=at, until=until))
    for step in steps:
        limited = replace(reading, wanted=replace(reading.wanted, limit=left))
        async with aclosing(step(limited)) as pieces:
            async for piece in pieces:
                yield piece
                left = None if left is None else left - piece.num_rows


async def _crossing(
    former: RenditionReader, latter: RenditionReader, reading: Reading, *, at: int
) -> AsyncGenerator[pa.Table, None]:
    """Yield the changes at the time of the handover, in one table; see the module."""
    limit = reading.wanted.limit
    if limit == 0:
        return
    whole = replace(reading, wanted=replace(reading.wanted, limit=None), is_at_once=True)
    old = [piece async for piece in former.contents(whole, at - 1)]
    new = [piece async for piece in latter.contents(whole, at)]
    form = reading.narrow.contents
    together = [*(one.cast(form) for one in new), *(negated(one.cast(form)) for one in old)]
    changed = await reading.clock.offload(lambda: sum_up(together, reading.narrow))
    if changed.num_rows:
        yield with_one_time(changed, at, reading.narrow.updates).slice(0, limit)


def check_same_columns(
    columns: Iterable[str], of: ShardSchema, schema: ShardSchema, *, name: str, begins: int
) -> None:
    """Check that a rendition has the columns that a read needs, as the rendition ``of`` has them.

    Raises:
        SchemaEvolved: it lacks a column, or has another type for it.
    """
    for column in columns:
        wanted = of.data.field(column).type
        place = schema.data.get_field_index(column)
        if place < 0 or schema.data.field(place).type != wanted:
            found = "lacks it" if place < 0 else f"has the type {schema.data.field(place).type}"
            raise SchemaEvolved(
                f"the read needs the column {column!r} as {wanted}, and another rendition of "
                f"{name!r} {found}: open the collection again, or read the times before and from "
                f"{format_time(begins)} separately"
            )


def check_comparable(one: tuple[str, ShardSchema], other: tuple[str, ShardSchema]) -> None:
    """Check that two named renditions have the same columns, in any order.

    Raises:
        UsageError: one lacks a column, or has another type for it.
    """
    (name, schema), (other_name, other_schema) = one, other
    if {f.name: f.type for f in schema.data} == {f.name: f.type for f in other_schema.data}:
        return
    raise UsageError(
        f"{name!r} and {other_name!r} have different columns, so their rows cannot be compared: "
        f"{name!r} has {_columns_text(schema)}; {other_name!r} has {_columns_text(other_schema)}"
    )


def _columns_text(schema: ShardSchema) -> str:
    return ", ".join(f"{one.name} {sql_type_of(one)}" for one in schema.data)
