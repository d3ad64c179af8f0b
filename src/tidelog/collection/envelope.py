"""Envelopes: from messages to updates of the output. Pure.

Shape: messages have the schema's columns, ``_time`` (int64), ``_rank`` (int64: which range, in
    path order), ``_offset`` and ``_delete`` (bool). ``none`` appends each; ``upsert`` makes the
    newest value of a key its only one, and a delete takes it away.
Source: design page 6, "The recipe, as it runs", step 4.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from tidelog.collection.catalog import SourceInfo
from tidelog.collection.records import OFFSET
from tidelog.collection.times import times_of
from tidelog.persist.duck import duck, quoted
from tidelog.persist.schema import DIFF, TIME, ShardSchema

RANK: Final = "_rank"
DELETE: Final = "_delete"


def messages_schema(schema: ShardSchema) -> pa.Schema:
    """Give the schema of a table of messages."""
    fields = [pa.field(n, pa.int64()) for n in (TIME, RANK, OFFSET)]
    return pa.schema([*schema.data, *fields, pa.field(DELETE, pa.bool_())])


def stamp_rows(
    rows: pa.Table, source: SourceInfo, *, lower: int, upper: int, rank: int
) -> tuple[pa.Table, pa.Table]:
    """Give decoded rows their times, ranks; and those apart whose time is none.

    With a time column, a row's time is its own, moved up to ``lower`` where that is complete;
    without one, all rows come at ``upper - 1``.
    """
    count = rows.num_rows
    if source.time_column is None:
        times = np.full(count, upper - 1, dtype=np.int64)
        timeless = rows.slice(0, 0)
    else:
        times, there = times_of(rows.column(source.time_column), source.time_unit)
        timeless = rows.filter(pa.array(~there))
        rows, times = rows.filter(pa.array(there)), times[there]
        times = np.clip(times, lower, upper - 1)
    ranks = np.full(len(times), rank, dtype=np.int64)
    stamped = rows.append_column(TIME, pa.array(times)).append_column(RANK, pa.array(ranks))
    return stamped, timeless


def apply_none(messages: pa.Table, schema: ShardSchema) -> pa.Table:
    """Append each message."""
    ones = pa.array(np.ones(messages.num_rows, dtype=np.int64))
    return messages.select([*schema.names, TIME]).append_column(DIFF, ones).cast(schema.updates)


def apply_upsert(messages: pa.Table, current: pa.Table, schema: ShardSchema) -> pa.Table:
    """Chain the messages of each key, in the order of (time, range, offset), onto its current row.

    Shape: ``current`` has the schema's columns: the output's rows as they are before these
        messages (those of other keys do no harm). Several changes of a key give each their -old,
        +new at their own time.
    """
    if not messages.num_rows:
        return schema.updates.empty_table()
    data = ", ".join(quoted(n) for n in schema.names)
    key = ", ".join(quoted(n) for n in schema.key)
    same = " AND ".join(f"c.{quoted(n)} = f.{quoted(n)}" for n in schema.key)
    of_current = ", ".join(f"c.{quoted(n)}" for n in schema.names)
    sql = f"""
        WITH chained AS (
          SELECT *, lead({TIME}) OVER (PARTITION BY {key} ORDER BY {TIME}, {RANK}, {OFFSET}) AS
          _until FROM messages
        ), first AS (SELECT {key}, min({TIME}) AS {TIME} FROM messages GROUP BY {key}),
        changes AS (
          SELECT {data}, {TIME}, 1 AS {DIFF} FROM chained WHERE NOT {DELETE}
          UNION ALL
          SELECT {data}, _until, -1 FROM chained WHERE NOT {DELETE} AND _until IS NOT NULL
          UNION ALL
          SELECT {of_current}, f.{TIME}, -1 FROM current AS c JOIN first AS f ON {same}
        )
        SELECT {data}, {TIME}, sum({DIFF})::BIGINT AS {DIFF} FROM changes
        GROUP BY {data}, {TIME} HAVING sum({DIFF}) <> 0
    """
    with duck() as connection:
        connection.register("messages", messages)
        connection.register("current", current)
        found: pa.Table = connection.sql(sql).to_arrow_table()
    return found.cast(schema.updates)


def current_rows(
    updates: list[pa.Table], messages: pa.Table, schema: ShardSchema, *, as_of: int
) -> pa.Table:
    """Give the output's rows at ``as_of`` for the keys that messages name: the feedback."""
    filled = [t for t in updates if t.num_rows]
    if not filled or not messages.num_rows:
        return schema.data.empty_table()
    data = ", ".join(quoted(n) for n in schema.names)
    key = ", ".join(quoted(n) for n in schema.key)
    sql = f"""
        SELECT {data} FROM updates SEMI JOIN (SELECT DISTINCT {key} FROM messages) AS wanted
        USING ({key}) WHERE {TIME} <= {as_of} GROUP BY {data} HAVING sum({DIFF}) <> 0
    """
    with duck() as connection:
        connection.register("updates", pa.concat_tables(filled))
        connection.register("messages", messages.select(schema.key))
        found: pa.Table = connection.sql(sql).to_arrow_table()
    return found.cast(schema.data)
