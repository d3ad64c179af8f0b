"""The computation of a tick: from the bytes of a binding's ranges to updates, by shard. Pure.

Both engines run these functions: the local one in threads, Spark in its executors. Their result
depends only on the messages, the binding, and the output as of ``lower - 1``. So ingesters that
compute the same binding, with any engine and any number of tasks, get the same updates.
Source: storage, "The recipe", steps 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.collection.catalog.catalog import COLLECTION, ERRORS_SCHEMA, SourceInfo
from tidelog.collection.formats.lines import Bools
from tidelog.collection.formats.records import OFFSET, Misfit, do_without_bad_rows, listed
from tidelog.collection.formats.times import format_time
from tidelog.collection.ingest.envelope import (
    DELETE,
    KeysBefore,
    Updates,
    apply_none,
    apply_upsert,
    current_rows,
    deletions_schema,
    hash_keys,
    messages_schema,
    stamp_rows,
)
from tidelog.collection.ingest.expiry import are_forgotten
from tidelog.collection.source.binding import AddressRange, Binding
from tidelog.collection.source.decode import (
    ReadData,
    TextsNotKept,
    decode_file,
    errors_table,
    required_columns,
)
from tidelog.collection.source.decode_messages import TOMBSTONE, decode_messages
from tidelog.collection.source.followed import followed_updates
from tidelog.collection.source.kind import SourceKind
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import ShardId
from tidelog.errors import ExpressionTooSlow, TidelogError, UsageError, unforeseen
from tidelog.persist.format.part import Part, key_box, may_overlap, may_share_bucket
from tidelog.persist.format.schema import DIFF, TIME, ShardSchema, decode_schema, fitted
from tidelog.persist.format.updates import check_updates
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.reader import parts_until
from tidelog.persist.write.writer import PartWriter
from tidelog.rowhash import Hashes, hash_rows
from tidelog.store.port import Store

if TYPE_CHECKING:
    from tidelog.predicate.predicate import Predicate


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A shard to write: the settings of its new parts, and its existing parts, for feedback.

    Shape: only keys of the ``bucket`` are written; see `Part`. ``deletions`` is the shard with the
        deletion times of this shard's keys, if the source has one.
    """

    shard: str
    write_epoch: int
    may_inline: bool
    parts: tuple[Part, ...] = ()
    bucket: tuple[int, int] = (1, 0)
    deletions: Target | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One tick's work, as a plain value: any process can do it, or a part of it.

    Shape: ``schema`` is that of the outputs. ``columns`` are the schemas in which the ranges are
        decoded, by their ids; empty if there is only one. ``held`` has the indexes of the
        ``ranges`` that an earlier binding has, and of which some messages were held back. ``kind``
        is the source's kind, if it is registered only in this process, so that an executor could
        not find it by name. ``is_careful`` is True after a tick failed with an unforeseen error:
        then each row is tried, to find the bad ones.
    """

    source: SourceInfo
    schema: bytes
    lower: int
    upper: int
    ranges: tuple[AddressRange, ...]
    shards: tuple[Target, ...]
    errors: Target
    columns: tuple[bytes, ...] = ()
    held: frozenset[int] = frozenset()
    kind: type[SourceKind] | None = None
    is_careful: bool = False

    @property
    def data_schema(self) -> ShardSchema:
        return decode_schema(self.schema)

    @property
    def deletions_schema(self) -> ShardSchema | None:
        """Return the schema of the deletions shards; None without a time column."""
        column = self.source.time_column
        return None if column is None else deletions_schema(self.data_schema, column)


@dataclass(frozen=True, slots=True)
class ShapedRange:
    """The messages of a range, its bad records, and counts of fields that the schema lacks.

    Units: ``rows`` counts the decoded rows. Equal rows of another collection are one message.
    """

    messages: pa.Table
    errors: pa.Table
    dropped: Mapping[str, int]
    rows: int


def shape_messages(data: ReadData, found: AddressRange, rank: int, job: Job) -> ShapedRange:
    """Decode a range, or a piece of one, and stamp its rows. ``rank`` is its index in the job.

    Raises:
        TextsNotKept: rows are bad, and the caller must read their text again.
        InvariantError: an unforeseen error that no single row causes.
    """
    try:
        return _shape(data, found, rank, job)
    except (TidelogError, TextsNotKept, MemoryError):
        raise
    except Exception as error:
        raise unforeseen(error, f"the file {found.path!r} from offset {found.start}") from error


def _shape(data: ReadData, found: AddressRange, rank: int, job: Job) -> ShapedRange:
    source, schema = job.source, job.data_schema
    if source.kind == COLLECTION and isinstance(data, pa.Table):
        return ShapedRange(*followed_updates(data, found, schema, source))
    required = required_columns(source, schema)
    own = decode_schema(job.columns[found.schema_id]) if job.columns else schema
    if isinstance(data, pa.Table):
        decoded = decode_messages(data, found, own.data, source=source, required=required)
    else:
        decoded = decode_file(data, found, own.data, source=source, required=required)
    rows, errors, dropped = decoded.rows, decoded.errors, decoded.dropped
    if own is not schema:
        marks = [TOMBSTONE] if TOMBSTONE in rows.column_names else []
        rows = fitted(rows, [*schema.names, OFFSET, *marks], schema.data)
    done, failed = do_without_bad_rows(
        rows.num_rows,
        lambda start, limit: _stamped(rows.slice(start, limit - start), found, rank, job),
    )
    if rank in job.held:
        # The earlier binding of this range has reported its bad rows and fields already.
        errors, dropped, failed = ERRORS_SCHEMA.data.empty_table(), {}, {}
    messages = pa.concat_tables([messages_schema(schema).empty_table(), *(one for one, _ in done)])
    out = [misfit for _, misfits in done for misfit in misfits]
    out += _unusable(rows, failed)
    if job.is_careful:
        probed, failed = do_without_bad_rows(
            messages.num_rows,
            lambda start, limit: _probe(messages.slice(start, limit - start), job),
        )
        out += _unusable(messages, failed)
        messages = pa.concat_tables([messages.schema.empty_table(), *probed])
    if out:
        texts = decoded.texts(np.array([misfit.offset for misfit in out], np.int64))
        told = [replace(misfit, text=text) for misfit, text in zip(out, listed(texts), strict=True)]
        errors = pa.concat_tables([errors, errors_table(found.path, told)])
    return ShapedRange(messages, errors, dropped, messages.num_rows)


def _unusable(rows: pa.Table, failed: Mapping[int, str]) -> list[Misfit]:
    offsets = rows.column(OFFSET)
    return [
        Misfit(offsets[row].as_py(), f"the row cannot be used: {name}", "")
        for row, name in failed.items()
    ]


def _stamped(
    rows: pa.Table, found: AddressRange, rank: int, job: Job
) -> tuple[pa.Table, list[Misfit]]:
    """Return the messages of some rows, and the rows that are bad."""
    source, schema, was_held = job.source, job.data_schema, rank in job.held
    stamps = stamp_rows(
        rows,
        source,
        lower=job.lower,
        upper=job.upper,
        rank=rank,
        time_max=found.time_max,
        is_held=found.reached >= job.upper,
        was_held=was_held,
    )
    if was_held:
        none = np.zeros(0, np.int64)
        stamps = replace(stamps, timeless=none, ahead=none)
    stamped = stamps.rows
    deletes, failing = _deletes(stamped, source, schema)
    deleting = stamped.append_column(DELETE, pa.array(deletes))
    if failing.any():
        deleting = deleting.filter(pa.array(~failing))
    messages = deleting.select(messages_schema(schema).names).cast(messages_schema(schema))
    time = f"column {source.time_column!r}"
    reasons = [
        (f"{time} is missing or out of range", stamps.timeless),
        ("the condition delete_when fails on the row", stamped.column(OFFSET).to_numpy()[failing]),
    ]
    if len(stamps.ahead):
        late = f"{time} is later than {format_time(found.time_max)}, further ahead of the clock"
        reasons.insert(1, (f"{late} than max_ahead allows", stamps.ahead))
    return messages, [
        Misfit(offset, why, "") for why, offsets in reasons for offset in offsets.tolist()
    ]


def _probe(messages: pa.Table, job: Job) -> pa.Table:
    """Run all later steps of the tick on messages, to find the ones that make a step fail."""
    bare = msgspec.structs.replace(job.shards[0], parts=(), deletions=None)
    rows = updates_of(messages, bare, Feedback(), job).rows
    hash_rows([rows.column(name) for name in rows.column_names], rows=rows.num_rows)
    pq.write_table(rows, pa.BufferOutputStream())
    return messages


def _deletes(rows: pa.Table, source: SourceInfo, schema: ShardSchema) -> tuple[Bools, Bools]:
    """Return a mask of the rows that delete, and one of the rows on which the SQL fails."""
    failing = np.zeros(rows.num_rows, dtype=np.bool_)
    dead = failing
    if TOMBSTONE in rows.column_names:
        dead = np.asarray(rows.column(TOMBSTONE).to_numpy(), dtype=np.bool_)
    if source.delete_when is None:
        return dead, failing
    predicate = _checked(source.delete_when, schema.encoded)
    data = rows.select(schema.names)
    try:
        return dead | predicate.mask(data), failing
    except ExpressionTooSlow:
        raise  # The time depends on the machine, so no row may be called bad for it.
    except UsageError:
        failing = predicate.failing(data)
        if not failing.any():
            raise
        deletes = np.zeros(rows.num_rows, dtype=np.bool_)
        deletes[~failing] = predicate.mask(data.filter(pa.array(~failing)))
        return dead | deletes, failing & ~dead


@lru_cache(maxsize=16)
def _checked(sql: str, schema: bytes) -> Predicate:
    from tidelog.predicate.expression import check_predicate  # Loads DuckDB.

    # Cached, because the check costs more than the rows of a small tick, and each tick repeats it.
    data = decode_schema(schema).data
    return check_predicate(sql, data, definite=True, what="delete_when=")


def feedback_parts(messages: pa.Table, target: Target, job: Job) -> list[Part]:
    """Return the parts of the output before ``lower`` that may contain a key of these messages."""
    if job.source.envelope != "upsert" or not messages.num_rows:
        return []
    schema = job.data_schema
    box = key_box(messages, schema.key)
    before = [p for p in target.parts if p.time_min < job.lower]
    ours = [p for p in before if may_share_bucket(p.bucket, target.bucket)]
    return [p for p in ours if may_overlap(p, box)]


@dataclass(frozen=True, slots=True)
class Feedback:
    """The updates in the parts that may contain a tick's keys: of rows, and of deletions."""

    rows: Sequence[pa.Table] = ()
    deleted: Sequence[pa.Table] = ()


def updates_of(messages: pa.Table, target: Target, feedback: Feedback, job: Job) -> Updates:
    """Return the checked updates of one shard and of its deletions shard."""
    schema, source = job.data_schema, job.source
    if source.envelope == "upsert":
        named = hash_keys(messages, schema)
        before = _before(named, target, feedback, job)
        found = apply_upsert(messages, before, schema, time_column=source.time_column, named=named)
    else:
        found = Updates(apply_none(messages, schema))
    lower, upper = Frontier.at(job.lower), Frontier.at(job.upper)
    rows = check_updates(found.rows, schema, lower=lower, upper=upper)
    kept = job.deletions_schema
    if found.deleted is None or kept is None:
        return replace(found, rows=rows, deleted=None)
    deleted = check_updates(found.deleted, kept, lower=lower, upper=upper)
    return replace(found, rows=rows, deleted=deleted)


def _before(named: Hashes, target: Target, feedback: Feedback, job: Job) -> KeysBefore:
    schema, source, as_of = job.data_schema, job.source, job.lower - 1
    rows = current_rows(feedback.rows, named, schema, as_of=as_of)
    kept = job.deletions_schema
    if target.deletions is None or kept is None or source.time_column is None:
        return KeysBefore(rows)
    # A full merge may have dropped the forgotten deletions, or not yet. Each tick must ignore them,
    # so that its result does not depend on the merges of other processes.
    counting = [
        one.filter(pa.array(~are_forgotten(one, source, before=job.lower)))
        for one in feedback.deleted
    ]
    return KeysBefore(rows, current_rows(counting, named, kept, as_of=as_of))


def error_updates(errors: pa.Table, job: Job) -> pa.Table:
    """Return the updates of the errors shard. All have the binding's last time, ``upper - 1``."""
    rows = errors.num_rows
    stamped = errors.append_column(
        TIME, pa.array(np.full(rows, job.upper - 1, dtype=np.int64))
    ).append_column(DIFF, pa.array(np.ones(rows, dtype=np.int64)))
    return check_updates(
        stamped, ERRORS_SCHEMA, lower=Frontier.at(job.lower), upper=Frontier.at(job.upper)
    )


def target_of(
    shard: Shard, binding: Binding, *, feedback: bool, deletions: Shard | None = None
) -> Target:
    """Return the target of a binding's rows in a shard; with ``feedback``, with its earlier parts.

    Raises:
        AsOfBeforeSince: the state no longer has the rows before the binding.
    """
    state = shard.state
    parts: list[Part] = []
    if feedback and binding.lower:
        # If other ingesters are ticks ahead, the output before this binding may no longer be
        # readable.
        state.check_readable(binding.lower - 1)
        parts = parts_until(state, binding.lower - 1)
    beside = None if deletions is None else target_of(deletions, binding, feedback=True)
    return msgspec.structs.replace(bare_target(shard), parts=tuple(parts), deletions=beside)


def bare_target(shard: Shard) -> Target:
    """Return the target of rows in a shard, without earlier parts."""
    return Target(shard=shard.id, write_epoch=shard.state.write_epoch, may_inline=shard.may_inline)


def part_writer(store: Store, clock: Clock, target: Target, schema: ShardSchema) -> PartWriter:
    """Return a writer for a target's parts."""
    return PartWriter(
        store=store,
        clock=clock,
        shard=ShardId(target.shard),
        schema=schema,
        write_epoch=target.write_epoch,
        is_sorted=False,
        bucket=target.bucket,
    )
