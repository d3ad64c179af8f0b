"""Appending: updates are written as parts, and one commit names them.

Source: persist, "Append" and "Backpressure"; design page 4, "Writing".
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from tidelog.core.clock import offload_waiting, run_all
from tidelog.core.frontier import TIME_MAX, Frontier
from tidelog.core.ids import new_writer_id
from tidelog.errors import (
    OutcomeUnknown,
    PartMissing,
    PartsSwept,
    SchemaEvolved,
    UpperMismatch,
    UsageError,
)
from tidelog.persist.format.inputs import (
    PIECE_BYTES,
    check_rows,
    is_stream,
    joined_tables,
    pieces_of,
    whole_of,
)
from tidelog.persist.format.part import Part, sums_of
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import prepare_updates
from tidelog.persist.read.reader import parts_between
from tidelog.persist.read.rereading import READS_MAX, overtaken
from tidelog.persist.states import transition
from tidelog.persist.states.evolution import check_newest, newest_schema, schema_id_at
from tidelog.persist.states.state import State, Token
from tidelog.persist.states.transition import AppendResult, CompareAndAppend, Verdict
from tidelog.persist.write.covered import (
    Span,
    check_same,
    compare_remembered,
    from_time,
    keeps_apart,
    sum_of,
)
from tidelog.persist.write.streaming import Stream, gathered, write_each
from tidelog.rowhash import RowSum

if TYPE_CHECKING:
    from tidelog.persist.handle.port import ShardHandle

WRITES_MAX: Final = 3
PARTS_COMPARED: Final = 2  # The number of parts decoded concurrently: each is large.
# Rows of a kind of `tidelog.persist.format.inputs`, or an async iterable of Arrow tables, or None.
Updates: TypeAlias = object


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions:
    """Options of a commit in addition to its times; see `Shard.compare_and_append`."""

    token: Token | None = None
    named: bool = False
    holds: Mapping[str, Frontier] = field(default_factory=dict)
    schema: ShardSchema | None = None  # The schema of the written parts; by default the handle's.
    write_epoch: int | None = None  # The result is a MISMATCH if the shard has another one.


async def compare_and_append(
    shard: ShardHandle, updates: Updates, lower: Frontier, upper: Frontier, options: AppendOptions
) -> AppendResult:
    """Append updates at times in ``[lower, upper)``; see `Shard.compare_and_append`."""
    if _may_stream(updates):
        check_rows(updates)
    try:
        return await _append(shard, updates, lower, upper, options)
    except (SchemaEvolved, UsageError, OutcomeUnknown):
        # The rows of a retry may fit only the schema in which the first call stored them. Its sum
        # answers the retry even if a merge no longer keeps the stored times apart.
        if options.token is None or not shard.state.retired:
            raise
        answer = await _answer_by_stored_schema(shard, updates, lower, upper, options)
        if answer is None:
            raise
        return answer


async def _answer_by_stored_schema(
    shard: ShardHandle, updates: Updates, lower: Frontier, upper: Frontier, options: AppendOptions
) -> AppendResult | None:
    """Return the result of a retry whose rows fit the schema of the stored write, or None.

    Raises:
        OutcomeUnknown, UsageError, DataDiffers: see `tidelog.persist.states.transition`.
    """
    state = await shard.refresh()
    if (_may_stream(updates) and is_stream(updates)) or not state.schema:
        return None  # A stream cannot be read twice.
    stored = stored_schema(state, lower)
    command = append_command(shard, [], lower, upper, options, schema=stored.encoded)
    try:
        table = await _whole(shard, updates, newest_schema(state))
        sum_t = await sum_by_stored_schema(shard, state, table, lower, upper)
    except UsageError:
        return None
    return transition.decide_retry(state, command, sum_t=sum_t)


def stored_schema(state: State, lower: Frontier) -> ShardSchema:
    """Return the schema in which a write from ``lower`` was stored."""
    return newest_schema(state).of_part(schema_id_at(state, lower.time))


async def sum_by_stored_schema(
    shard: ShardHandle, state: State, updates: pa.Table | None, lower: Frontier, upper: Frontier
) -> bytes:
    """Return T of updates in the schema of a stored write from ``lower``.

    The result is empty if the updates have values in a column that was added later, because no
    stored write has such values.

    Raises:
        UsageError: the updates do not fit that schema.
    """
    if updates is None or not updates.num_rows:
        return RowSum.zero().to_bytes()
    stored = stored_schema(state, lower)
    ready = await shard.clock.offload(
        lambda: prepare_updates(updates, stored, lower=lower, upper=upper)
    )
    added = set(newest_schema(state).names) & set(updates.column_names) - set(stored.names)
    if any(updates.column(name).null_count < updates.num_rows for name in added):
        return b""
    sums = await shard.clock.offload(lambda: sums_of(ready, stored))
    return sums[1].to_bytes()


async def write_updates(
    shard: ShardHandle, updates: pa.Table | None, span: Span, schema: ShardSchema
) -> list[Part]:
    """Write a table of updates at times in a span as parts, for a later commit.

    Raises:
        UsageError: the updates do not fit. LocationError: the store failed.
    """
    lower, upper = span
    transition.check_interval(lower, upper, rows=0 if updates is None else updates.num_rows)
    if updates is None or not updates.num_rows:
        return []
    work = partial(prepare_updates, updates, schema, lower=lower, upper=upper)
    ready = await shard.clock.offload(work)
    return await shard.writer(schema).write(ready, inline=shard.may_inline)


async def _append(
    shard: ShardHandle, updates: Updates, lower: Frontier, upper: Frontier, options: AppendOptions
) -> AppendResult:
    schema = await _schema_of(shard)
    options = replace(options, schema=schema)
    if _may_stream(updates) and is_stream(updates):
        transition.check_interval(lower, upper, rows=0)
        parts = await _write_stream(shard, updates, schema, lower, upper)
        return await commit_parts(shard, parts, lower, upper, options)
    table = await _whole(shard, updates, schema)

    async def write() -> AppendResult:
        parts = await write_updates(shard, table, (lower, upper), schema)
        return await commit_parts(shard, parts, lower, upper, options)

    for _ in range(WRITES_MAX - 1):
        with suppress(PartsSwept):
            return await write()
    return await write()


async def _schema_of(shard: ShardHandle) -> ShardSchema:
    """Return the schema in which a handle writes: its own, or the shard's.

    Raises:
        UsageError: there is no schema. SchemaEvolved: the handle's is no longer the newest.
    """
    if shard.schema is None and not shard.state.schema:
        await shard.refresh()  # Only a handle that has not read the state yet needs this request.
    return shard.written_schema()


async def commit_parts(
    shard: ShardHandle, parts: list[Part], lower: Frontier, upper: Frontier, options: AppendOptions
) -> AppendResult:
    """Commit parts that any process has written before; see `Shard.compare_and_append`."""
    schema = (options.schema or shard.written_schema()).encoded
    command = append_command(shard, parts, lower, upper, options, schema=schema)
    try:
        return await shard.machine.commit(lambda state: transition.decide_append(state, command))
    except SchemaEvolved:
        if schema != shard.state.schema:
            raise
        # The parts have the newest schema, so only the stored write of the token has another.
        return await _answer_by_reading(shard, command)


async def _answer_by_reading(shard: ShardHandle, command: CompareAndAppend) -> AppendResult:
    """Return the result of a retry whose stored rows have an earlier schema, by reading them.

    Raises:
        DataDiffers: the shard has other rows in the newest schema. NOT_APPLIED.
        OutcomeUnknown: the shard no longer keeps the rows' times distinct.
    """
    lower, upper = command.expected_upper, command.upper
    state = shard.state
    for _ in range(READS_MAX):
        check_newest(state, command.schema)
        if not keeps_apart(state, lower):
            raise OutcomeUnknown(
                "the write with this token used an earlier schema, and begins at or before since, "
                "so its rows cannot be compared with the stored ones: read the shard to find out "
                "whether it has the rows",
                token=command.token,
                lower=lower,
                since=state.since_frontier,
            )
        try:
            stored = await _sum_of_stored(shard, state, newest_schema(state), (lower, upper))
        except PartMissing as error:
            state = await shard.check_replaced(error)
            continue
        if stored.to_bytes() == transition.sum_t_of(command.parts):
            return AppendResult(Verdict.ALREADY, upper)
        if command.named:
            return AppendResult(Verdict.MISMATCH, state.upper_frontier)
        raise transition.reused(command.token, lower, upper)
    raise overtaken()


def append_command(
    shard: ShardHandle,
    parts: list[Part],
    lower: Frontier,
    upper: Frontier,
    options: AppendOptions,
    *,
    schema: bytes,
) -> CompareAndAppend:
    """Return the command of a commit of parts to a shard."""
    return CompareAndAppend(
        schema=schema,
        parts=parts,
        expected_upper=lower,
        upper=upper,
        token=options.token or (new_writer_id(shard.clock), 0),
        named=options.named,
        fresh=options.token is None,
        holds=options.holds,
        first_holds=shard.first_holds,
        write_epoch=options.write_epoch,
    )


async def append(
    shard: ShardHandle, updates: object, start: Frontier, until: Frontier
) -> AppendResult:
    """Make the shard hold these updates for ``[start, until)``; see `Shard.append`."""
    check_rows(updates)
    schema = await _schema_of(shard)
    table = await _read_whole(shard, updates, schema)
    transition.check_interval(start, until, rows=table.num_rows)
    work = partial(prepare_updates, table, schema, lower=start, upper=until)
    ready = await shard.clock.offload(work)
    state = await shard.refresh()
    while True:
        transition.check_not_dropped(state)
        check_newest(state, schema.encoded)
        reached = state.upper_frontier
        if reached < start:
            raise UpperMismatch(
                "the shard's upper is below lower, and nothing was appended: pass the shard's "
                "upper as lower",
                upper=reached,
                lower=start,
            )
        covered = min(until, reached)
        if start < covered:
            state = await _compare_covered(shard, state, ready, (start, covered))
        if until <= reached:
            return AppendResult(Verdict.ALREADY, reached)
        rest = from_time(ready, reached.time)
        done = await compare_and_append(shard, rest, reached, until, AppendOptions())
        if done.verdict is Verdict.COMMITTED:
            return done
        start, ready = reached, rest
        state = shard.state


async def _compare_covered(shard: ShardHandle, state: State, ready: pa.Table, span: Span) -> State:
    """Compare updates in a span with the shard's; return the newest state that was read.

    Raises:
        DataDiffers, AsOfBeforeSince: see `Shard.append`. ReadOvertaken: merges replaced the parts
            faster than they were read. NOT_APPLIED.
    """
    for _ in range(READS_MAX):
        try:
            schema = newest_schema(state)
            for left in compare_remembered(state, schema, ready, span):
                check_same([ready], schema, left, await _sum_of_stored(shard, state, schema, left))
        except PartMissing as error:
            state = await shard.check_replaced(error)
        else:
            return state
    raise overtaken()


async def _sum_of_stored(
    shard: ShardHandle, state: State, schema: ShardSchema, span: Span
) -> RowSum:
    lower, upper = span
    last = TIME_MAX if upper.is_empty else upper.time - 1

    async def sum_of_part(part: Part) -> RowSum:
        tables = await shard.reader.read([part], schema)
        return await shard.clock.offload(lambda: sum_of(tables, schema, span))

    parts = parts_between(state, lower.time - 1, last)
    sums = await run_all([partial(sum_of_part, part) for part in parts], at_once=PARTS_COMPARED)
    return sum(sums, RowSum.zero())


def _may_stream(updates: Updates) -> bool:
    return not isinstance(updates, pa.Table | pa.RecordBatch | None)


async def _whole(shard: ShardHandle, updates: Updates, schema: ShardSchema) -> pa.Table | None:
    """Return updates that are not a stream as one table."""
    if updates is None or isinstance(updates, pa.Table):
        return updates
    if isinstance(updates, pa.RecordBatch):
        return pa.Table.from_batches([updates])
    return await offload_waiting(lambda: whole_of(updates, schema.updates), shard.clock)


async def _read_whole(shard: ShardHandle, updates: object, schema: ShardSchema) -> pa.Table:
    """Return updates of any kind as one table; a stream is read to its end."""
    if isinstance(updates, pa.Table):
        return updates
    stream = _stream(updates, schema)
    async with aclosing(gathered(stream, PIECE_BYTES, shard.clock)) as tables:
        found = [one async for one in tables]
    return joined_tables(found) if found else schema.updates.empty_table()


def _stream(updates: Updates, schema: ShardSchema) -> Stream:
    if isinstance(updates, AsyncIterable):
        return updates
    return pieces_of(updates, schema.updates)


async def _write_stream(
    shard: ShardHandle, updates: Updates, schema: ShardSchema, lower: Frontier, upper: Frontier
) -> list[Part]:
    """Write updates as they arrive, one part at a time."""
    writer = shard.writer(schema)

    async def ready() -> AsyncGenerator[pa.Table, None]:
        async with aclosing(
            gathered(_stream(updates, schema), writer.part_bytes, shard.clock)
        ) as tables:
            async for table in tables:
                transition.check_interval(lower, upper, rows=table.num_rows)
                work = partial(prepare_updates, table, schema, lower=lower, upper=upper)
                yield await shard.clock.offload(work)

    async with aclosing(ready()) as tables:
        return await write_each(writer, tables, inline=shard.may_inline)
