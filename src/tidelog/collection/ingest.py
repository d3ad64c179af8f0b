"""The ingester: one tick of the recipe after another, for one source.

Each tick mints a binding, or finds one that stands beyond the output; obeys what is recorded;
computes what lies between; and commits it to each shard. Any number of ingesters may do so at
once, and each may die at any point: the shards alone say where to go on, and all compute the same.
Source: storage, "The recipe"; design page 6, "The recipe, as it runs".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec

from tidelog.clock import Clock
from tidelog.collection.catalog import ERRORS_SCHEMA, RenditionInfo, SourceInfo
from tidelog.collection.compute import Job, Target
from tidelog.collection.controller import Controller
from tidelog.collection.engine import Computed, Engine, Written
from tidelog.collection.envelope import deletions_schema
from tidelog.collection.source.binding import (
    AddressRange,
    Binding,
    Standing,
    Taken,
    advance,
    next_binding,
    plan_updates,
    remap_schema,
    standing_at,
)
from tidelog.collection.source.kinds import registered_kind
from tidelog.collection.source.look import SurveyJob
from tidelog.collection.source.port import Plan, RawSource, SourceHead, SurveyResult
from tidelog.consensus.port import Consensus
from tidelog.errors import (
    AsOfBeforeSince,
    ContentionError,
    DataDiffers,
    GoneError,
    InvariantError,
    SourceDropped,
    SourceRowsRefused,
    TidelogError,
    require,
    unforeseen,
)
from tidelog.frontier import Frontier, meet
from tidelog.ids import ShardId
from tidelog.metrics import observe_tick
from tidelog.persist.part import Part
from tidelog.persist.reader import parts_between, parts_until
from tidelog.persist.schema import ShardSchema, encode_schema
from tidelog.persist.shard import INLINE_STATE_BYTES_MAX, Shard
from tidelog.persist.transition import Verdict, difference
from tidelog.persist.updates import consolidate
from tidelog.rowhash import RowSum
from tidelog.store.port import Store
from tidelog.store.wrappers.metered import Usage

HISTORY_HOLD = "history"  # Keeps all times readable until somebody moves it.
INGEST_HOLD = "ingest"
TRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick did. ``won`` counts our own commits; the head has ``left_bytes`` more.

    ``exhausted``: nothing of the head was left to be taken. ``computed`` is None where none was.
    """

    lower: int
    upper: int
    rows: int = 0
    bad: int = 0
    late: int = 0
    size_bytes: int = 0
    left_bytes: int = 0
    won: int = 0
    unchecked: int = 0
    exhausted: bool = False
    dropped: Mapping[str, int] = field(default_factory=dict)
    computed: Computed | None = None


@dataclass(slots=True, kw_only=True)
class Ingester:
    """Ticks one source. ``strict`` stops at rows that do not fit, before they are committed.

    ``final`` says that nothing more comes: what is held back for ``--lateness`` comes in.
    ``surveyed`` is what other processes asked of stores so far for its surveys.
    Units: a tick takes about ``bytes_max`` of the source.
    """

    info: SourceInfo
    rendition: RenditionInfo
    source: RawSource
    engine: Engine
    store: Store
    consensus: Consensus
    clock: Clock
    controller: Controller
    bytes_max: int = 64 * 1024 * 1024
    strict: bool = False
    final: bool = False
    surveyed: Usage = field(default_factory=Usage)
    schema: ShardSchema = field(init=False)
    outputs: list[Shard] = field(init=False)
    deletions: list[Shard] = field(init=False)
    errors: Shard = field(init=False)
    remap: Shard = field(init=False)
    _is_held: bool = False
    _skipped: frozenset[str] = frozenset()
    _standing: tuple[int, Standing] | None = None
    _left: tuple[SourceHead, Taken, int] | None = None

    def __post_init__(self) -> None:
        self.schema = self.rendition.data_schema
        history = {HISTORY_HOLD: Frontier.at(0)}
        self.outputs = [self._shard(s, self.schema, history) for s in self.rendition.shards]
        self.deletions, column = [], self.info.time_column
        if column is not None:
            kept = deletions_schema(self.schema, column)
            self.deletions = [self._shard(s, kept, {}) for s in self.rendition.deletions]
        require(
            self.rendition.errors and self.rendition.remap, "a source's rendition has no shards"
        )
        self.errors = self._shard(self.rendition.errors or "", ERRORS_SCHEMA, history)
        self.remap = self._shard(self.rendition.remap or "", self._remap_schema, {})

    @property
    def _remap_schema(self) -> ShardSchema:
        return remap_schema(self.source.range_type)

    def _shard(self, shard_id: str, schema: ShardSchema, holds: Mapping[str, Frontier]) -> Shard:
        return Shard(
            id=ShardId(shard_id),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
            schema=schema,
            first_holds=holds,
            # Remap rows are read at each tick, by whichever binding is next.
            cache_bytes=16 * 1024 * 1024,
        )

    @property
    def written(self) -> list[Shard]:
        """Return the shards that a tick writes, errors last."""
        return [*self.outputs, *self.deletions, self.errors]

    @property
    def upper(self) -> Frontier:
        """Return how far the collection is complete, as known here: the meet of its shards."""
        return meet([shard.state.upper_frontier for shard in self.written])

    async def refresh(self) -> None:
        """Read where the shards stand."""
        for shard in (*self.written, self.remap):
            await shard.refresh()

    async def tick(self, head: SourceHead, *, may_idle: bool = True) -> Tick | None:
        """Do one tick; None if there is nothing to do up to ``head``.

        With times from the clock, an idle tick moves upper on, where it ``may_idle``; with times
        from the data, it is None.

        Raises:
            SourceDropped: the source is gone from the catalog. SourceRewritten, GoneError: a file
            is. SourceRowsRefused: ``strict``, and rows do not fit. DataDiffers: another ingester
            computes other data; stop, and find out which is wrong. LocationError: the store failed.
        """
        await self._check_there()
        start_us = self.clock.monotonic_us()
        if not self._is_held:
            await self._hold(make=True)
            self._is_held = True
        for _ in range(TRIES_MAX):
            reached = self.upper
            try:
                done = await self._tick(head, may_idle=may_idle)
            except AsOfBeforeSince:
                # Other ingesters went on while we knew no more than an earlier state.
                await self.refresh()
                continue
            except GoneError:
                # What others have taken already, the source may let go of.
                await self.refresh()
                if self.upper <= reached:
                    raise
                continue
            if done is not None:
                await self._hold(make=False)
                seconds = (self.clock.monotonic_us() - start_us) / 1e6
                observe_tick(self.info.name, seconds, done.rows)
            return done
        raise ContentionError("other ingesters are ahead at every try", source=self.info.name)

    async def _hold(self, *, make: bool) -> None:
        """Tell the source up to where all that it has is in."""
        for _ in range(TRIES_MAX):
            upper = self.upper
            if upper.is_empty or self.remap.state.upper_frontier < upper:
                return
            try:
                standing = await self.standing(upper.time)
            except AsOfBeforeSince:
                await self.refresh()  # Other ingesters went on, as in a tick.
                continue
            await self.source.hold(standing.needed, make=make)
            return
        raise ContentionError("other ingesters are ahead at every try", source=self.info.name)

    async def _tick(self, head: SourceHead, *, may_idle: bool) -> Tick | None:
        lower = self.upper.time
        if self.remap.state.upper_frontier < self.upper:
            # Commits were met whose bindings this handle has not seen: others are ticks ahead.
            await self.remap.refresh()
        plan: Plan | None = None
        ready: tuple[Binding, Computed] | None = None
        if self.remap.state.upper == lower:
            plan = await self.plan(head, lower)
            # With times from the data, a plan without ranges lets in what was held back.
            if plan is None or not (plan.ranges or may_idle or plan.upper is not None):
                return None
            upper = self._upper_of(plan, lower)
            if plan.ranges:
                await self.engine.prepare(self.info, plan.ranges)
            if self.strict and plan.ranges:
                # Rows that are refused must leave no binding: it would hold files to their bytes.
                planned = Binding(lower, upper, plan.ranges)
                ready = planned, await self._compute(planned)
            await self._mint(plan, lower, upper)
        exhausted = plan is not None and not plan.ranges
        binding = await self._binding(lower)
        # Before the commit, as it fails where others went on, and a tick is counted once.
        standing = await self.standing(lower)
        if not binding.ranges and not standing.held:
            idle, _ = await self._commit(binding, _nothing(len(self.outputs)))
            self._standing = binding.upper, standing
            return Tick(lower, binding.upper, won=idle, exhausted=exhausted)
        before = standing.taken
        if ready is None or ready[0] != binding:
            ready = binding, await self._compute(binding)
        computed = ready[1]
        won, unchecked = await self._commit(binding, computed)
        left = self._left_bytes(head, before)
        after = advance(standing, binding)
        left_after = head.left_after(left, before, binding.ranges)
        self._standing, self._left = (binding.upper, after), (head, after.taken, left_after)
        return Tick(
            lower=lower,
            upper=binding.upper,
            rows=computed.rows,
            bad=computed.bad,
            late=late_in(binding, before),
            size_bytes=left - left_after,
            left_bytes=left_after,
            won=won,
            unchecked=unchecked,
            exhausted=exhausted,
            dropped=computed.dropped,
            computed=computed,
        )

    def _left_bytes(self, head: SourceHead, taken: Taken) -> int:
        """Return what a head has beyond a frontier; known where a tick of ours ended there."""
        known = self._left
        if known is not None and known[0] is head and known[1] is taken:
            return known[2]
        return head.left_bytes(taken)

    async def _compute(self, binding: Binding) -> Computed:
        standing = await self.standing(binding.lower)
        job, skipped = self.job_of(binding, standing), self._lost(binding, standing)
        computed = _nothing(len(self.outputs))
        if job.ranges:
            computed = await self._compute_job(job)
        if self.strict and (computed.bad or computed.dropped):
            raise _refused(computed)
        if skipped:
            from tidelog.collection.skip import write_skipped

            return await write_skipped(computed, skipped, job, store=self.store, clock=self.clock)
        return computed

    async def _compute_job(self, job: Job) -> Computed:
        """Compute a job; where something fails that nobody foresaw, once more, row by row.

        Raises:
            InvariantError: that fails, too: it is no row's fault. TidelogError: see `Engine`.
        """
        try:
            return await self.engine.compute(job, self.source)
        except MemoryError:
            raise
        except Exception as error:
            if isinstance(error, TidelogError) and not isinstance(error, InvariantError):
                raise
        careful = msgspec.structs.replace(job, is_careful=True)
        first, last = job.ranges[0], job.ranges[-1]
        try:
            return await self.engine.compute(careful, self.source)
        except (TidelogError, MemoryError):
            raise
        except Exception as error:
            what = f"the files {first.path!r}, from {first.start} on, to {last.path!r}"
            raise unforeseen(error, what) from error

    async def taken(self, upper: int) -> Taken:
        """Return the frontier of the source at an upper that the remap shard has reached."""
        return (await self.standing(upper)).taken

    async def standing(self, upper: int) -> Standing:
        """Return what of the source is in at an upper that the remap shard has reached."""
        if self._standing is not None and self._standing[0] == upper:
            return self._standing[1]
        if upper == 0:
            return Standing()
        rows = await self.remap.snapshot_of(self.remap.state, upper - 1).to_arrow()
        found = standing_at(rows, self.source.range_type, upper)
        self._standing = upper, found
        return found

    async def _check_there(self) -> None:
        known = (await self.controller.catalog()).sources.get(self.info.name)
        if known is None or known.id != self.info.id:
            raise SourceDropped(
                f"the source {self.info.name!r} was dropped while it was ingested: create it again "
                "to go on"
            )
        self._skipped = frozenset(known.skipped)
        self.source.pass_over(self._skipped)

    def _lost(self, binding: Binding, standing: Standing) -> list[AddressRange]:
        """Return the ranges that would be all in with a binding, but that were skipped."""
        held = (found for found in standing.held if found.reached < binding.upper)
        return [found for found in (*held, *binding.ranges) if found.path in self._skipped]

    async def pending(self) -> Binding | None:
        """Return the binding that stands beyond the output, if one does."""
        lower = self.upper.time
        if self.remap.state.upper_frontier.time <= lower:
            return None
        return await self._binding(lower)

    async def plan(
        self, head: SourceHead, lower: int, *, taken: Taken | None = None
    ) -> Plan | None:
        """Choose what the next binding takes; with times from the clock, maybe nothing.

        ``taken`` is the frontier, unless it is that of the output.
        """
        standing = await self.standing(lower)
        taken = standing.taken if taken is None else taken
        plan = await self.source.plan(
            taken, head, lower=lower, bytes_max=self.bytes_max, survey=self._survey
        )
        if plan is None and self.final and standing.held:
            return Plan((), max(found.reached for found in standing.held) + 1)
        if plan is None and self.info.time_column is None:
            return Plan((), None)
        return plan

    async def _survey(self, job: SurveyJob) -> SurveyResult:
        done = await self.engine.survey(job, self.source)
        self.surveyed = self.surveyed + done.usage
        return done

    def _upper_of(self, plan: Plan, lower: int) -> int:
        if plan.upper is not None:
            return plan.upper
        return max(self.clock.now_us() // 1_000, lower) + 1

    async def _mint(self, plan: Plan, lower: int, upper: int) -> None:
        """Propose a binding; whoever was first, what stands then is read back and obeyed."""
        standing = await self.standing(lower)
        updates = plan_updates(standing, plan.ranges, self.source.range_type, upper=upper)
        # Nobody reads the frontier below what the output has reached: this is bounded input
        # reliance.
        holds = {INGEST_HOLD: Frontier.at(max(lower - 1, 0))}
        await self.remap.compare_and_append(
            updates if updates.num_rows else None, lower, upper, holds=holds
        )

    async def _binding(self, lower: int) -> Binding:
        state = self.remap.state
        reached = state.upper_frontier.time
        require(reached > lower, "a binding stands beyond the output", remap=reached, lower=lower)
        parts = parts_between(state, lower - 1, reached - 1)
        schema = self._remap_schema
        tables = await self.remap.reader.read(parts, schema)
        updates = await self.clock.offload(
            lambda: consolidate(tables, schema, after=lower - 1, until=reached - 1)
        )
        return next_binding(updates, lower, reached, self.source.range_type)

    def job_of(self, binding: Binding, standing: Standing) -> Job:
        """Return what has to be computed for a binding, where so much is in before it."""
        upsert = self.info.envelope == "upsert"
        there = (r for r in (*standing.held, *binding.ranges) if r.path not in self._skipped)
        ranges = sorted((r for r in there if r.is_read), key=lambda r: (r.path, r.start))
        held = {(r.path, r.start) for r in standing.held}
        return Job(
            source=self.info,
            schema=encode_schema(self.schema),
            lower=binding.lower,
            upper=binding.upper,
            ranges=tuple(ranges),
            held=frozenset(n for n, r in enumerate(ranges) if (r.path, r.start) in held),
            shards=tuple(
                self._target(shard, binding, feedback=upsert, deletions=beside)
                for shard, beside in zip_longest(self.outputs, self.deletions)
            ),
            errors=self._target(self.errors, binding, feedback=False),
            kind=registered_kind(self.info.kind),
        )

    def _target(
        self, shard: Shard, binding: Binding, *, feedback: bool, deletions: Shard | None = None
    ) -> Target:
        state = shard.state
        parts = parts_until(state, binding.lower - 1) if feedback else []
        return Target(
            shard=shard.id,
            write_epoch=state.write_epoch,
            may_inline=state.inline_bytes < INLINE_STATE_BYTES_MAX,
            parts=tuple(parts),
            deletions=None
            if deletions is None
            else self._target(deletions, binding, feedback=True),
        )

    def parts_of(self, computed: Computed) -> list[Sequence[Part]]:
        """Return the parts that were computed, by the shards that are `written`."""
        rows = [one.rows for one in computed.written]
        deleted = [one.deleted for one in computed.written[: len(self.deletions)]]
        return [*rows, *deleted, computed.error_parts]

    async def _commit(self, binding: Binding, computed: Computed) -> tuple[int, int]:
        """Commit to each shard not past the binding; count those that were ours, and unchecked."""
        won = unchecked = 0
        lower, upper = Frontier.at(binding.lower), Frontier.at(binding.upper)
        holds = {INGEST_HOLD: Frontier.at(max(binding.lower - 1, 0))}
        for shard, parts in zip(self.written, self.parts_of(computed), strict=True):
            done = None
            if shard.state.upper_frontier <= lower:
                done = await shard.commit_parts(list(parts), lower, upper, holds=holds)
            if done is not None and done.verdict is not Verdict.MISMATCH:
                won += 1
            elif upper <= shard.state.upper_frontier:
                unchecked += not await self._same(binding, shard, parts)
            # Otherwise another ingester moved an idle interval's upper in between; the next tick,
            # which starts from what the shards say, goes on from there.
        return won, unchecked

    async def _same(self, binding: Binding, shard: Shard, parts: Sequence[Part]) -> bool:
        """Compare what we computed with what another ingester committed, as `_same_as_theirs`.

        Raises:
            DataDiffers: it is other data.
        """
        try:
            return _same_as_theirs(shard, parts, *map(Frontier.at, (binding.lower, binding.upper)))
        except DataDiffers:
            # One of the two may have gone on without a file that the other one still had.
            await self._check_there()
            held = (await self.standing(binding.lower)).held
            if all(found.path not in self._skipped for found in (*binding.ranges, *held)):
                raise
            return False


def late_in(binding: Binding, before: Taken) -> int:
    """Return how many rows of a binding came after their time was complete."""
    return sum(r.late - (before[r.path].late if r.path in before else 0) for r in binding.ranges)


def _same_as_theirs(shard: Shard, parts: Sequence[Part], lower: Frontier, upper: Frontier) -> bool:
    """Compare what we computed with what another ingester committed; False if it cannot be told.

    Raises:
        DataDiffers: it is other data.
    """
    theirs = difference(shard.state, lower, upper)
    if theirs is None:
        return False
    ours = RowSum.zero()
    for part in parts:
        ours = ours + part.t
    if ours != theirs:
        raise DataDiffers(
            "another ingester of this source computed other data for the same times: stop both, "
            "and compare their versions",
            shard=shard.id,
            lower=lower,
            upper=upper,
        )
    return True


def _nothing(shards: int) -> Computed:
    return Computed([Written()] * shards, [], rows=0, bad=0, dropped={})


def _refused(computed: Computed) -> SourceRowsRefused:
    if computed.first_error is not None:
        return SourceRowsRefused(
            f"rows that do not fit were met ({computed.bad}), the first in {computed.first_error}; "
            "correct the data, or ingest without --strict to have them in the errors collection"
        )
    names = ", ".join(f"{name} ({count})" for name, count in computed.dropped.items())
    return SourceRowsRefused(
        f"fields that the schema lacks were met: {names}; name them in --schema, or ingest without "
        "--strict to drop them"
    )
