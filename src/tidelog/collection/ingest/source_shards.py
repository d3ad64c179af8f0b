"""The shards of one source: its outputs and its bindings, and the progress that they record.

The shards alone decide the next step of an ingester. The upper of the outputs is the progress: all
bindings below it are committed. The remap shard has these bindings, and perhaps one more beyond the
outputs. Each ingester must commit that one before it makes another.

A checkpoint has the contents of the remap shard at one upper, so that a restart reads few of its
parts. All times below it are complete, so every ingester writes the same checkpoint. If it is
missing, or its bytes do not match the digest in its name, the ingester reads all parts.
Source: storage, "The recipe"; design page 6, "The recipe, as it runs".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from msgspec import UNSET

from tidelog.collection.catalog.announcing import LOOK_US, epoch_of_bindings
from tidelog.collection.catalog.catalog import (
    BINDINGS_HOLD,
    ERRORS_SCHEMA,
    RenditionInfo,
    SourceInfo,
)
from tidelog.collection.catalog.lost import check_states
from tidelog.collection.formats.times import format_time
from tidelog.collection.ingest.copying import CopiedShards
from tidelog.collection.ingest.envelope import deletions_schema
from tidelog.collection.source.binding import (
    Binding,
    SourceProgress,
    Taken,
    bindings_in,
    next_binding,
    plan_updates,
    progress_at,
    remap_schema,
)
from tidelog.collection.source.kind import SourceKind
from tidelog.collection.source.kinds import registered_kind
from tidelog.collection.source.port import Plan, RawSource
from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier, meet
from tidelog.core.ids import ShardId
from tidelog.errors import (
    DataDiffers,
    PartMissing,
    RenditionSucceeded,
    SchemaEvolved,
    SourceDropped,
    TidelogError,
    UsageError,
    require,
)
from tidelog.persist.format.parquet import decode_parquet, encode_parquet
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import TIME, ShardSchema, decode_schema
from tidelog.persist.format.updates import accumulate
from tidelog.persist.handle.appending import AppendOptions, write_updates
from tidelog.persist.handle.shard import Shard
from tidelog.persist.handle.together import (
    ShardAppend,
    append_together,
    by_group,
    refresh_all,
)
from tidelog.persist.read.reader import parts_between
from tidelog.persist.read.snapshot import require_replaced
from tidelog.persist.states.evolution import decide_found, newest_schema
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.persist.states.state import State
from tidelog.persist.states.transition import difference
from tidelog.rowhash import RowSum
from tidelog.store.port import Store


@dataclass(slots=True, kw_only=True)
class SourceShards:
    """The handles of the shards of a source's rendition, and the progress that they record."""

    info: SourceInfo
    rendition: RenditionInfo
    source: RawSource
    store: Store
    consensus: Consensus
    clock: Clock
    former: CopiedShards | None = None  # The shards that this rendition copies, or has copied.
    schema: ShardSchema = field(init=False)
    is_altered: bool = field(init=False)  # It has had other columns.
    outputs: list[Shard] = field(init=False)
    deletions: list[Shard] = field(init=False)
    errors: Shard = field(init=False)
    remap: Shard = field(init=False)
    written: list[Shard] = field(init=False)  # A tick writes them in this order: errors last.
    groups: list[list[Shard]] = field(init=False)  # The same shards, by their groups.
    # One commit can write the bindings and all of ``written``.
    is_one_group: bool = field(init=False)
    kind: type[SourceKind] | None = field(init=False)
    checkpoints: Checkpoints = field(init=False)
    _founded: ShardSchema = field(init=False)
    _hold_name: str = field(init=False)
    _progress: tuple[int, SourceProgress] | None = field(init=False, default=None)
    # The epoch of the bindings that was known before the last read of the catalog, and its time.
    _looked: tuple[int | None, int] = field(init=False, default=(None, 0))

    def __post_init__(self) -> None:
        self.schema = self.rendition.data_schema
        self.is_altered = len(self.schema.known) > 1
        beginning = Frontier.at(0)
        history = {HISTORY_HOLD: beginning}
        # An output may still have an earlier schema: its next binding decides.
        first = None if self.is_altered else self.schema
        self.outputs = [self._shard(s, first, history) for s in self.rendition.shards]
        self.deletions, column = [], self.info.time_column
        if column is not None:
            kept = deletions_schema(self.schema, column)
            self.deletions = [self._shard(s, kept, {}) for s in self.rendition.deletions]
        require(
            self.rendition.errors and self.rendition.remap,
            "a source's rendition must have shards for bad rows and progress",
        )
        self.errors = self._shard(self.rendition.errors or "", ERRORS_SCHEMA, history)
        self.written = [*self.outputs, *self.deletions, self.errors]
        self._founded = remap_schema(self.source.range_type)
        founded = None if self.is_altered else self._founded
        held = {BINDINGS_HOLD: beginning} if self.info.keeps_bindings is True else {}
        self.remap = self._shard(self.rendition.remap or "", founded, held)
        self.groups = by_group(self.written)
        self.is_one_group = len(by_group([self.remap, *self.written])) == 1
        self._hold_name = self.rendition.ingest_hold
        self.kind = registered_kind(self.info.kind)
        self.checkpoints = Checkpoints(
            store=self.store,
            clock=self.clock,
            shard=self.remap.id,
        )

    def remap_schema_of(self, state: State) -> ShardSchema:
        """Return the schema of the remap shard in one of its states."""
        return newest_schema(state) if state.retired else self._founded

    @property
    def live_bytes(self) -> int:
        """Return the bytes of the stored parts that the newest known states name."""
        totals = [shard.state.totals for shard in (*self.written, self.remap)]
        return sum(one.size_bytes - one.inline_bytes for one in totals)

    def _shard(
        self, shard_id: str, schema: ShardSchema | None, holds: Mapping[str, Frontier]
    ) -> Shard:
        return Shard(
            id=ShardId(shard_id),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            schema=schema,
            first_holds=holds,
            # Each tick reads rows of the remap shard, to plan and to read its binding.
            cache_bytes=16 * 1024 * 1024,
        )

    @property
    def upper(self) -> Frontier:
        """Return the upper of the collection as last read: the meet of its shards' uppers."""
        return meet([shard.state.upper_frontier for shard in self.written])

    @property
    def is_copying(self) -> bool:
        """Return True if rows of another rendition are still to be copied; see `copying`."""
        is_copy = self.rendition.copies is not UNSET
        return is_copy and self._hold_name not in self.remap.state.holds

    def check_copied(self) -> None:
        """Check that the rows of another rendition are copied, if this one copies them.

        Raises:
            UsageError: some are not. NOT_APPLIED.
        """
        if self.is_copying:
            name = self.info.name
            raise UsageError(
                f"{name!r} has not copied all rows yet: complete it first, with 'tidelog ingest "
                f"{name}'"
            )

    @property
    def resumes_at(self) -> Frontier:
        """Return the upper from which the source is read: after a copy, if one is not complete."""
        return self.former.upper if self.is_copying and self.former is not None else self.upper

    @property
    def is_behind(self) -> bool:
        """Return True if a recorded binding is not committed yet, by the last known states."""
        return self.upper < self.remap.state.upper_frontier

    async def refresh(self) -> None:
        """Read the newest state of each shard, the remap shard last (see `check_states`).

        Raises:
            SourceDropped: the source was dropped. RenditionSucceeded: see `check_needed`.
            CorruptionError: the state of a shard is lost or set back.
            LocationError: the store failed.
        """
        await refresh_all(self.written)
        await self.remap.refresh()
        self.check_needed()
        if self.is_copying and self.former is not None:
            await self.former.refresh()
        await check_states(self.written, self.remap, hold=self.rendition.ingest_hold)

    def adopt(self, rendition: RenditionInfo) -> None:
        """Continue with a newer entry of the rendition in the catalog: with other columns."""
        self.rendition, self.schema = rendition, rendition.data_schema
        self.is_altered = True
        self.source.adopt(self.schema)
        for shard in (*self.outputs, self.remap):
            shard.schema = None

    def schema_of(self, schema_id: int) -> ShardSchema:
        """Return the schema of an id, with the ids that the outputs' parts have.

        Raises:
            SchemaEvolved: the catalog that was read last does not have it, or an output has gone on
                to a later schema: read the newest states and the catalog.
        """
        later = any(len(shard.machine.state.retired) > schema_id for shard in self.outputs)
        if not self.is_altered and not later and not schema_id:
            return self.schema
        schemas = self.rendition.schemas
        if later or schema_id >= len(schemas):
            raise self.altered()
        known = tuple(decode_schema(one).data for one in schemas[: schema_id + 1])
        return replace(decode_schema(schemas[schema_id]), known=known)

    @property
    def is_look_due(self) -> bool:
        """Return True if the catalog may have a change that its last read did not show."""
        epoch, at_us = self._looked
        is_announced = epoch is None or epoch != epoch_of_bindings(self.remap.state)
        return is_announced or self.clock.monotonic_us() - at_us >= LOOK_US

    def altered(self) -> SchemaEvolved:
        """Return the error for a binding of other columns than this ingester knows."""
        return SchemaEvolved(
            f"the source {self.info.name!r} was altered during its ingestion: ingest it again"
        )

    async def evolve(self, schema_id: int) -> None:
        """Give each output the schema of an id; the call is idempotent.

        Raises:
            SchemaEvolved: another ingester has given an output a later one.
            LocationError: the store failed.
        """
        wanted = self.schema_of(schema_id)
        steps = [decode_schema(one) for one in self.rendition.schemas[: schema_id + 1]]
        for shard in self.outputs:
            await self._evolve(shard, steps)
            shard.schema = wanted

    async def _evolve(self, shard: Shard, steps: Sequence[ShardSchema]) -> None:
        try:
            await evolve_to(shard, steps)
        except UsageError:
            self.check_alive()  # A drop finishes the shards.
            raise

    def check_alive(self) -> None:
        """Check that no shard is finished in its last known state: only a drop finishes a shard.

        Raises:
            SourceDropped: a shard is finished.
        """
        self._living()

    def check_needed(self) -> None:
        """Check that readers still need rows of this rendition, by the last known states.

        Raises:
            RenditionSucceeded: a handover was made, and all times before it are complete.
            SourceDropped: see `check_alive`.
        """
        written = self._living()[:-1]
        mark = written[0].mark
        if mark is None or not meet([one.upper_frontier for one in written]).passed(mark.at - 1):
            return
        name = self.rendition.collection
        raise RenditionSucceeded(
            f"readers of {name!r} read another rendition since {format_time(mark.at)}: ingest that "
            f"one, with 'tidelog ingest {name}'"
        )

    def _living(self) -> list[State]:
        """Return the last known states of all shards, the remap shard's last; see `check_alive`."""
        found = []
        for shard in (*self.written, self.remap):
            found.append(state := shard.state)
            if state.upper is None:
                raise self.dropped()
        return found

    def dropped(self) -> SourceDropped:
        """Return the error for a source that is no longer in the catalog."""
        name = self.info.name
        what = "source" if name == self.rendition.collection else "rendition"
        return SourceDropped(
            f"the {what} {name!r} was dropped during its ingestion: create it again to ingest it; "
            f"if the name is still taken, finish the drop first, with 'tidelog {what} drop {name}'"
        )

    async def left_to_copy(self) -> int:
        """Return the bytes of the other rendition's parts that are not copied yet.

        Raises:
            LocationError: the store failed.
        """
        if self.former is None:
            return 0
        await self.former.refresh()
        return self.former.left_bytes(self.upper.time)

    async def catch_up(self, error: TidelogError) -> None:
        """Read the newest states, after an error that may come from a stale state.

        Raises:
            PartMissing: the newest state still names the missing part, so the part is lost.
            SourceDropped, CorruptionError, LocationError: see `refresh`.
        """
        await self.refresh()
        if isinstance(error, PartMissing):
            known = [*self.written, self.remap]
            if self.former is not None:
                known += self.former.shards
            require_replaced((shard.state for shard in known), error)

    async def taken(self, upper: int) -> Taken:
        """Return the last range of each path at an upper that the remap shard has reached."""
        return (await self.progress(upper)).taken

    async def progress(self, upper: int) -> SourceProgress:
        """Return the progress of the source at an upper that the remap shard has reached."""
        if self._progress is not None and self._progress[0] == upper:
            return self._progress[1]
        if upper == 0:
            return SourceProgress()
        found = progress_at(await self._remap_rows(upper - 1), self.source.range_type, upper)
        self._progress = upper, found
        return found

    async def _remap_rows(self, as_of: int) -> pa.Table:
        """Return the remap shard's contents; if it has many parts, since its newest checkpoint.

        A checkpoint is used only if the state still separates updates before and after it.
        """
        state = self.remap.state
        schema = self.remap_schema_of(state)
        parts = self.remap.snapshot_of(state, as_of).parts
        checkpoint = await self.checkpoints.find(parts, schema, as_of + 1)
        if checkpoint is not None and not is_told_apart(state, checkpoint.upper):
            checkpoint = None
        if checkpoint is not None:
            parts = tuple(parts_between(state, checkpoint.upper - 1, as_of))
        read = await self.remap.reader.read(parts, schema)
        return await self.clock.offload(
            lambda: accumulate(tables_of(checkpoint, read), schema, as_of=as_of)
        )

    def _advance(self, upper: int, progress: SourceProgress) -> bool:
        """Remember the progress at an upper; return True if a checkpoint of it is due."""
        self._progress = upper, progress
        newest = self.checkpoints.written
        return self.checkpoints.are_due(parts_between(self.remap.state, newest - 1, upper - 1))

    async def pending(self) -> Binding | None:
        """Return the binding beyond the outputs; None if all bindings are committed."""
        lower = self.upper.time
        if self.remap.state.upper_frontier.time <= lower:
            return None
        return await self._binding(lower)

    async def _mint(
        self, plan: Plan, lower: int, upper: int, rows: Sequence[ShardAppend] = ()
    ) -> bool:
        """Propose a binding, together with its ``rows`` if given; return True if it landed.

        If another ingester was first, its binding is recorded instead. Unless rows landed, the
        caller reads back the recorded binding in either case, and commits that one.

        Raises:
            SchemaEvolved: a command has changed the source since the catalog was read.
        """
        epoch = self._looked[0]
        if epoch != epoch_of_bindings(self.remap.state):
            raise self.altered()
        progress = await self.progress(lower)
        schema = self._founded
        if self.is_altered:
            schema = remap_schema(self.source.range_type, altered=True)
            await self._evolve(self.remap, [self._founded, schema])
        updates = plan_updates(progress, plan.ranges, schema, upper=upper)
        # No ingester of this rendition reads bindings below the outputs' upper, so merges may drop
        # them (persist: "bounded input reliance"), unless the source keeps its bindings.
        holds = {self._hold_name: Frontier.at(max(lower - 1, 0))}
        options = AppendOptions(holds=holds, write_epoch=epoch)
        span = Frontier.at(lower), Frontier.at(upper)
        parts = await write_updates(self.remap, updates, span, self.remap.written_schema())
        landed = await append_together([ShardAppend(self.remap, parts, *span, options), *rows])
        self.check_alive()
        if not landed and self.remap.state.upper_frontier == span[0]:
            raise self.altered()
        return landed

    async def _binding(self, lower: int) -> Binding:
        state = self.remap.state
        reached = state.upper_frontier.time
        require(
            reached > lower,
            "the source's progress must be past its output",
            remap=reached,
            lower=lower,
        )
        state.check_readable(max(lower - 1, 0))
        parts = parts_between(state, lower - 1, reached - 1)
        tables = await self.remap.reader.read(parts, self.remap_schema_of(state))
        return await self.clock.offload(
            lambda: next_binding(tables, lower, reached, self.source.range_type)
        )

    async def recorded(self, upper: int) -> Iterator[Binding]:
        """Return the recorded bindings before ``upper`` that merges have kept distinct."""
        # Merges of the remap shard end with a binding, so the next one begins here.
        state = self.remap.state
        since = state.since_frontier.time
        lower = since + 1 if since else 0
        parts = parts_between(state, lower - 1, upper - 1)
        tables = await self.remap.reader.read(parts, self.remap_schema_of(state))
        return bindings_in(tables, lower, upper, self.source.range_type)


async def evolve_to(shard: Shard, schemas: Sequence[ShardSchema]) -> None:
    """Give a shard the last of ``schemas``, one after another; a new shard begins with the first.

    So an id of a schema means the same in each shard of a rendition, and handles that were opened
    with an earlier one still read.

    Raises:
        SchemaEvolved: the shard has a later schema. LocationError: the store failed.
    """
    shard.schema = None
    if not shard.state.schema:
        await shard.machine.commit(lambda state: decide_found(state, schemas[0]))
    while shard.state.schema_id + 1 < len(schemas):
        number = shard.state.schema_id + 1
        # If another ingester was first, the handle has read its change now.
        await shard.evolve_schema(schemas[number].data, expected=number - 1)


def is_told_apart(state: State, time: int) -> bool:
    """Return True if no merge moved an update from before a time to that time or later.

    A merge moves the times of old updates up to its since. An update that was moved past a
    checkpoint's upper would be read twice: in the checkpoint, and after it.
    """
    straddling = (b for b in state.batches.after(time - 1) if b.lower < time)
    return all(batch.since < time for batch in straddling)


def same_as_theirs(shard: Shard, parts: Sequence[Part], lower: Frontier, upper: Frontier) -> bool:
    """Compare the computed parts with the commit of another ingester for the same times.

    Return True if they are equal, False if the state no longer has that commit's sum.

    Raises:
        DataDiffers: the other ingester committed different data.
    """
    is_same = has_same_sum(shard, parts, lower, upper)
    if is_same is False:
        raise DataDiffers(
            "another ingester of this source computed different rows for the same times: stop "
            "both, and find the right one with 'tidelog source check'; if wrong rows are stored, "
            "create a rendition with 'tidelog rendition create'",
            shard=shard.id,
            lower=lower,
            upper=upper,
        )
    return is_same is True


def has_same_sum(
    shard: Shard, parts: Sequence[Part], lower: Frontier, upper: Frontier
) -> bool | None:
    """Compare parts with the updates of a shard by their sums; None if the state has no sum now."""
    theirs = difference(shard.state, lower, upper)
    return None if theirs is None else theirs == reduce(add, (p.t for p in parts), RowSum.zero())


EVERY: Final = 64  # About how many objects of the remap shard a restart reads, at most.
ROWS: Final = 65_536  # About how many of its rows: a source may keep all bindings.
KEPT: Final = 2  # Another ingester may read the previous one while this one is written.
_NAME: Final = re.compile(r"/([0-9]{20})-([0-9a-f]{32})$")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The ranges of a source at an upper, as updates at the time ``upper - 1``."""

    upper: int
    updates: pa.Table


@dataclass(slots=True, kw_only=True)
class Checkpoints:
    """The checkpoints of one source. ``written`` is the upper of the newest one known."""

    store: Store
    clock: Clock
    shard: str
    every: int = EVERY
    written: int = 0

    @property
    def _prefix(self) -> str:
        return f"shard/{self.shard}/standing/"

    def are_due(self, parts: Sequence[Part]) -> bool:
        """Return True if enough parts follow the newest checkpoint to be worth another put."""
        return self._are_many(parts)

    def _are_many(self, parts: Sequence[Part]) -> bool:
        stored = sum(part.path is not None for part in parts)  # Others are inline in the state.
        return stored > self.every or sum(part.rows for part in parts) > ROWS

    async def find(
        self, parts: Sequence[Part], schema: ShardSchema, upper: int
    ) -> Checkpoint | None:
        """Return the newest readable checkpoint at or before ``upper``; None if parts are few.

        Raises:
            LocationError: the store failed.
        """
        if not self._are_many(parts):
            return None
        for found, key, digest in reversed(await self._listed()):
            if found <= upper and (read := await self._read(key, digest, schema)) is not None:
                self.written = max(self.written, found)
                return Checkpoint(found, read)
        return None

    async def write(self, progress: SourceProgress, schema: ShardSchema, upper: int) -> None:
        """Write a checkpoint at an upper, in the remap shard's schema, and delete older ones.

        A failure of the store is ignored, because no ingester depends on a checkpoint.
        """
        ranges = dict.fromkeys((*progress.taken.values(), *progress.held))
        body = await self.clock.offload(
            lambda: encode_parquet(plan_updates(SourceProgress(), ranges, schema, upper=upper))
        )
        key = f"{self._prefix}{upper:020d}-{xxhash.xxh3_128_hexdigest(body)}"
        with suppress(TidelogError):
            await self.store.put(key, body)
            self.written = upper
            await self.store.delete([key for _, key, _ in (await self._listed())[:-KEPT]])

    async def _listed(self) -> list[tuple[int, str, str]]:
        found = [entry.key async for entry in self.store.list(self._prefix)]
        names = [(key, name) for key in found if (name := _NAME.search(key)) is not None]
        return sorted((int(name[1]), key, name[2]) for key, name in names)

    async def _read(self, key: str, digest: str, schema: ShardSchema) -> pa.Table | None:
        """Return a checkpoint's updates; None if it is missing, damaged or of other columns."""
        wanted = schema.updates
        try:
            data = (await self.store.get(key)).data
        except TidelogError:
            return None
        if xxhash.xxh3_128_hexdigest(data) != digest:
            return None
        table = await self.clock.offload(lambda: decode_parquet(data))
        # Another version of the source's kind may have written it, with other fields in its ranges.
        return table.cast(wanted) if table.column_names == wanted.names else None


def tables_of(checkpoint: Checkpoint | None, read: Sequence[pa.Table]) -> list[pa.Table]:
    """Return a checkpoint's updates, and those of the updates read that are not in it."""
    if checkpoint is None:
        return list(read)
    since = [one.filter(pc.field(TIME) >= checkpoint.upper) for one in read]
    return [checkpoint.updates, *since]
