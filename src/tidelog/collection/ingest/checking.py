"""The check of a source: compute its bindings again, and compare the rows with the stored ones.

A binding fixes which data its rows come from. So the same data must give the same updates, in any
process and at any later time. The check computes each binding again, on the engine of an ingester,
and compares the sums T of each shard. The parts that it writes for this are deleted again.
Source: design page 4, "Parts"; storage, "Definite".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from tidelog.collection.catalog.catalog import ERRORS_SCHEMA
from tidelog.collection.formats.times import format_time
from tidelog.collection.ingest.engine import (
    TickParts,
    compute_carefully,
    nothing_computed,
    write_skipped,
)
from tidelog.collection.ingest.ingest import TRIES_MAX, Ingester
from tidelog.collection.ingest.source_shards import has_same_sum
from tidelog.collection.source.binding import Binding, SourceProgress
from tidelog.core.frontier import Frontier
from tidelog.errors import (
    ContentionError,
    GoneError,
    PartMissing,
    PartsSwept,
    SourceRewritten,
    UsageError,
)
from tidelog.persist.format.part import Part, negated
from tidelog.persist.format.schema import TIME, ShardSchema
from tidelog.persist.format.updates import consolidate
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.reader import parts_between


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """An interval ``[lower, upper)`` that was not computed again, and the reason."""

    lower: int
    upper: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCheck:
    """The result of a check.

    Shape: it covers the times ``[lower, upper)``: the check begins and ends with a binding.
        ``unchecked`` are intervals in it whose data are gone. ``first`` is the first time with
        another row, None if all rows are equal. ``differing`` has the differing updates of the
        first such interval, in time order: ``_diff`` is 1 for an inserted row that only the check
        computed, and -1 for one that only the collection has. ``differing_errors`` has the bad
        rows, in the same way.
    Units: times are in milliseconds; ``bindings`` and ``rows`` count the computed ones.
    """

    lower: int
    upper: int
    bindings: int
    rows: int
    unchecked: Sequence[Unchecked]
    first: int | None
    differing: pa.Table
    differing_errors: pa.Table


async def check_source(
    ingester: Ingester,
    *,
    since: int | None = None,
    until: int | None = None,
    on_binding: Callable[[SourceCheck], None] = lambda _: None,
) -> SourceCheck:
    """Compute the bindings of a source again, up to the first one that has other rows.

    Units: the check begins with the binding that has the time ``since``, and ends with the one that
        has ``until``, in milliseconds.

    Raises:
        UsageError: no binding at these times can be computed again, a copy is not complete, or
            ``since`` is after ``until``.
        SchemaEvolved, RenditionSucceeded: another process has changed the source and merged its
            shards during the check: check again.
        LocationError: a store failed, or Spark. SourceDropped: the source was dropped.
    """
    ingester.check_copied()
    if since is not None and until is not None and since > until:
        raise UsageError("since= must not be after until=")
    checker = _Checker(ingester, ingester.schema_of(len(ingester.rendition.schemas) - 1))
    found: SourceCheck | None = None
    async for binding in checker.bindings(since, until):
        found = checker.nothing(binding.lower) if found is None else found
        found = await checker.check(binding, found)
        on_binding(found)
        if found.first is not None:
            break
    if found is None:
        raise UsageError(checker.none_found())
    return found


@dataclass(frozen=True, slots=True)
class _Checker:
    """The check of one source; ``schema`` is the newest one of its outputs."""

    ingester: Ingester
    schema: ShardSchema

    def nothing(self, lower: int) -> SourceCheck:
        """Return the result before the first binding."""
        return SourceCheck(
            lower=lower,
            upper=lower,
            bindings=0,
            rows=0,
            unchecked=(),
            first=None,
            differing=self.schema.updates.empty_table(),
            differing_errors=ERRORS_SCHEMA.updates.empty_table(),
        )

    def none_found(self) -> str:
        """Return the message for times without a binding that can be computed again."""
        name, upper = self.ingester.info.name, self.ingester.upper.time
        if not upper:
            return f"the source {name!r} was not ingested yet: run 'tidelog ingest {name}'"
        return (
            f"no tick of the source {name!r} at these times can be checked: its checkable times "
            f"are after {format_time(self.floor)}, and before {format_time(upper)}"
        )

    @property
    def floor(self) -> int:
        """Return the time up to which merges may have moved updates, in any of the shards."""
        shards = (*self.ingester.written, self.ingester.remap)
        return max(shard.state.since_frontier.time for shard in shards)

    async def bindings(self, since: int | None, until: int | None) -> AsyncIterator[Binding]:
        """Yield the committed bindings of these times whose rows and progress are distinct."""
        floor = self.floor
        for binding in await self.ingester.recorded(self.ingester.upper.time):
            if until is not None and binding.lower > until:
                return
            is_distinct = not floor or binding.lower > floor
            if is_distinct and (since is None or since < binding.upper):
                yield binding

    async def check(self, binding: Binding, so_far: SourceCheck) -> SourceCheck:
        """Return the result after one more binding."""
        done = replace(so_far, upper=binding.upper)
        for _ in range(TRIES_MAX):
            try:
                return await self._check(binding, done)
            except (PartMissing, PartsSwept) as error:
                await self.ingester.catch_up(error)  # Another process has merged its parts.
            except (GoneError, SourceRewritten):
                # If the source was dropped, its shards say so. The others keep their states: the
                # source may have other columns by now.
                await self.ingester.errors.refresh()
                self.ingester.check_alive()
                return _without(done, binding, await self._lost(binding))
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries: other processes merge the source's shards all the "
            "time; try again",
            source=self.ingester.info.name,
        )

    async def _check(self, binding: Binding, done: SourceCheck) -> SourceCheck:
        ingester = self.ingester
        if self.floor and binding.lower <= self.floor:
            return _without(done, binding, "its times were merged during the check")
        progress = await ingester.progress(binding.lower)
        ranges = (*progress.held, *binding.ranges)
        skipped = next((one.path for one in ranges if ingester.is_skipped(one)), None)
        if skipped is not None:
            return _without(done, binding, f"{skipped!r} was skipped")
        computed = await self._compute(binding, progress)
        try:
            differing = await self._compare(binding, computed)
        finally:
            await self._delete(computed)
        times = [one.column(TIME)[0].as_py() for one in differing if one.num_rows]
        return replace(
            done,
            bindings=done.bindings + 1,
            rows=done.rows + computed.rows + computed.bad,
            first=min(times, default=None),
            differing=differing[0],
            differing_errors=differing[1],
        )

    async def _lost(self, binding: Binding) -> str:
        """Return the reason for which a binding cannot be computed again."""
        held = (await self.ingester.progress(binding.lower)).held
        for found in (*held, *binding.ranges):
            try:
                if found.is_read:
                    await self.ingester.source.read(found, anew=True)
            except GoneError:
                return f"{found.path!r} is gone"
            except SourceRewritten:
                return f"{found.path!r} has changed"
        return "some of its data were gone, and are there again"

    async def _compute(self, binding: Binding, progress: SourceProgress) -> TickParts:
        ingester = self.ingester
        job = ingester.job_of(binding, progress, schema_id=self.schema.newest_id)
        computed = nothing_computed(len(ingester.outputs))
        if job.ranges:
            computed = await compute_carefully(ingester.engine, job, ingester.source)
        lost = ingester.lost_in(binding, progress)
        if not lost:
            return computed
        return await write_skipped(computed, lost, job, store=ingester.store, clock=ingester.clock)

    async def _compare(self, binding: Binding, computed: TickParts) -> tuple[pa.Table, pa.Table]:
        """Return the differing updates of the outputs, and those of the errors."""
        ingester = self.ingester
        rows = [
            (shard, one.rows) for shard, one in zip(ingester.outputs, computed.written, strict=True)
        ]
        return (
            await self._difference(rows, self.schema, binding),
            await self._difference(
                [(ingester.errors, computed.error_parts)], ERRORS_SCHEMA, binding
            ),
        )

    async def _difference(
        self, pairs: Sequence[tuple[Shard, Sequence[Part]]], schema: ShardSchema, binding: Binding
    ) -> pa.Table:
        """Return the computed updates that are not stored, and the negated ones of the others.

        A row without a key may be in another shard than before an alteration, so the shards are
        compared together.
        """
        tables = []
        for shard, parts in pairs:
            if self._has_same_sum(shard, parts, binding):
                continue
            held = parts_between(shard.state, binding.lower - 1, binding.upper - 1)
            tables += [negated(table) for table in await shard.reader.read(held, schema)]
            known = [msgspec.structs.replace(part, schema_id=schema.newest_id) for part in parts]
            tables += await shard.reader.read(known, schema)
        if not tables:
            return schema.updates.empty_table()
        after, until = binding.lower - 1, binding.upper - 1
        return await self.ingester.clock.offload(
            lambda: consolidate(tables, schema, after=after, until=until)
        )

    def _has_same_sum(self, shard: Shard, parts: Sequence[Part], binding: Binding) -> bool:
        """Return True if a known sum proves that a shard has the computed updates."""
        if self.ingester.is_altered:
            return False  # A sum of fewer columns is another one.
        lower, upper = Frontier.at(binding.lower), Frontier.at(binding.upper)
        return has_same_sum(shard, parts, lower, upper) is True

    async def _delete(self, computed: TickParts) -> None:
        """Delete the computed parts. A process that dies before leaves them to the sweeper."""
        written = [*computed.error_parts]
        for one in computed.written:
            written += [*one.rows, *one.deleted]
        paths = [part.path for part in written if part.path is not None]
        if paths:
            await self.ingester.store.delete(paths)


def _without(so_far: SourceCheck, binding: Binding, reason: str) -> SourceCheck:
    missed = Unchecked(lower=binding.lower, upper=binding.upper, reason=reason)
    return replace(so_far, unchecked=(*so_far.unchecked, missed))
