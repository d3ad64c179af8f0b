"""The ingester: turns the messages of one source into commits to its shards, tick by tick.

A tick proposes a binding, or finds one that is not committed yet. It reads back the recorded
binding, computes its updates, and commits them to each shard. Any number of ingesters may tick
concurrently, and each may die at any point. The shards alone decide the next step, and every
ingester computes the same updates for a binding. Commands announce their changes of the catalog, so
a tick does not read it (`tidelog.collection.catalog.announcing`).
Source: storage, "The recipe"; design page 6, "The recipe, as it runs".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest

import msgspec

from tidelog.collection.catalog.announcing import epoch_of_bindings
from tidelog.collection.catalog.catalog import FILES, INGEST_HOLD
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.catalog.retention import history_at
from tidelog.collection.ingest.compute import Job, target_of
from tidelog.collection.ingest.copier import Copier
from tidelog.collection.ingest.engine import (
    Engine,
    TickParts,
    compute_carefully,
    nothing_computed,
    rows_refused,
    write_skipped,
)
from tidelog.collection.ingest.evolving import candidates, new_columns, not_given_up, with_columns
from tidelog.collection.ingest.notes import add_notes
from tidelog.collection.ingest.program import check_program
from tidelog.collection.ingest.source_shards import SourceShards, same_as_theirs
from tidelog.collection.ingest.tick import Commits, Proposal, Tick, TickCommit
from tidelog.collection.source.binding import (
    AddressRange,
    Binding,
    FileRange,
    SourceProgress,
    Taken,
    advance,
    reached_before,
)
from tidelog.collection.source.given_up import skip_key
from tidelog.collection.source.kinds import release_opened
from tidelog.collection.source.moves import is_skipped
from tidelog.collection.source.port import Plan, SourceHead, SurveyResult
from tidelog.collection.source.survey_result import SurveyJob
from tidelog.core.frontier import Frontier
from tidelog.core.metrics import observe_tick
from tidelog.errors import (
    AsOfBeforeSince,
    ContentionError,
    DataDiffers,
    GoneError,
    NoSuchCollection,
    PartMissing,
    PartsSwept,
    SchemaEvolved,
    SourceDropped,
)
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import encode_with_known
from tidelog.persist.handle.shard import Shard
from tidelog.persist.handle.together import ShardAppend
from tidelog.persist.states.holding import HISTORY_HOLD
from tidelog.store.wrappers.metered import Usage

TRIES_MAX = 100
REST_SHARE = 1.25
COMPUTED_FIRST_BYTES = 8 * 1024 * 1024
_AHEAD = f"gave up after {TRIES_MAX} tries: other ingesters committed first; try again"


@dataclass(slots=True, kw_only=True)
class Ingester(SourceShards):
    """The ingester of one source.

    Shape: ``strict`` makes rows that do not fit the schema an error, before they are committed.
        ``final`` means that no more data follows: rows held back for ``--lateness`` are released.
    Units: a tick ingests about ``bytes_max`` of the source. If at most a quarter more is left, it
        ingests all of it. ``surveyed`` counts the requests of other processes for surveys.
    """

    engine: Engine
    controller: Controller
    bytes_max: int = 64 * 1024 * 1024
    strict: bool = False
    final: bool = False
    surveyed: Usage = field(default_factory=Usage)
    _is_held: bool = False
    _is_checked: bool = False
    _skipped: frozenset[str] = frozenset()
    _retain_ms: int | None = None
    _left: tuple[SourceHead, Taken, int] | None = None
    _noted: Mapping[str, str] = field(default_factory=dict)
    _added: tuple[str, ...] = ()  # New columns that the next tick reports.

    async def tick(self, head: SourceHead, *, may_idle: bool = True) -> Tick | None:
        """Do one tick; return None if the source has nothing new up to ``head``.

        With times from the clock and ``may_idle``, a tick without new data advances the upper.

        Raises:
            SourceDropped: the source is no longer in the catalog.
            RenditionSucceeded: readers read another rendition, and need no more rows of this one.
            SourceRewritten, GoneError: a bound file was changed, or no longer exists.
            SourceRowsRefused: with ``strict``, rows do not fit the schema.
            ProgramDiffers: this process would decide other rows than the creating one.
            DataDiffers: another ingester computed different rows; stop both and compare them.
            ContentionError: other ingesters committed first at every try.
            LocationError: a store failed.
        """
        # Other processes may have changed the catalog since the proposal of a waiting binding.
        if self.is_look_due or self.remap.state.upper_frontier != self.upper:
            await self._check_there()
        is_copy = self.rendition.copies is not msgspec.UNSET
        if is_copy and (copied := await self.copy()) is not None:
            return copied
        start_us = self.clock.monotonic_us()
        if not self._is_held:
            await self._begin_to_hold()
            self._is_held = True
        for _ in range(TRIES_MAX):
            reached = self.upper
            try:
                done = await self._tick(head, may_idle=may_idle)
            except (AsOfBeforeSince, PartMissing, PartsSwept) as error:
                # The state in this process is stale: other processes have committed, merged or
                # swept since.
                await self.catch_up(error)
                continue
            except SchemaEvolved:
                # Another process has announced a change of the source, or has altered it.
                await self.refresh()
                await self._check_there()
                continue
            except GoneError:
                # A source may drop messages that another ingester has committed. The error counts
                # only if the upper shows no such commit.
                await self.refresh()
                if self.upper <= reached:
                    raise
                continue
            if done is not None:
                await self._hold(make=False)
                seconds = (self.clock.monotonic_us() - start_us) / 1e6
                observe_tick(self.info.name, seconds, done.rows)
            return done
        raise ContentionError(_AHEAD, source=self.info.name)

    async def copy(self) -> Tick | None:
        """Copy the next times of another rendition; return None if all are copied.

        Raises:
            GoneError: the other rendition was dropped before that.
            SourceDropped, RenditionSucceeded, DataDiffers, ContentionError, LocationError: see
                `tick`.
        """
        if not self.is_copying:
            return None
        if self.is_look_due:
            await self._check_there()
        if self.former is None:
            raise GoneError(
                f"the rendition whose rows {self.rendition.called!r} copies was dropped before all "
                "were copied: drop the copy, and create another one"
            )
        copier = Copier(self, self.former, self.engine, self._check_there)
        for _ in range(TRIES_MAX):
            try:
                return await copier.copy(self.bytes_max)
            except (AsOfBeforeSince, PartMissing, PartsSwept) as error:
                await self.catch_up(error)  # A stale state, as in `tick`.
        raise ContentionError(_AHEAD, source=self.info.name)

    async def mint(self, head: SourceHead) -> bool:
        """Propose a binding for new data, while none waits; return False without new data.

        Raises:
            TidelogError: see `tick`.
        """
        await self._check_there()
        plan = await self.plan(head, self.upper.time)
        if plan is None or not plan.ranges:
            return False
        await self._propose(plan, head, self.upper.time, may_commit=False)
        return True

    async def _begin_to_hold(self) -> None:
        if self.former is not None:
            await self.former.release(self.remap)  # An ingester may have died before it did so.
        await self._hold(make=True)
        if self.info.kind == FILES:
            return  # A source of files needs no hold.
        try:
            await self._check_there()
        except SourceDropped:
            # The drop may have released the source's holds before this ingester made its own. So
            # the ingester releases that one itself.
            await release_opened(self.source, self.info, store=self.store, clock=self.clock)
            raise

    async def _hold(self, *, make: bool) -> None:
        """Report to the source which messages are all committed; with ``make``, create a hold."""
        for _ in range(TRIES_MAX):
            upper = self.upper
            if upper.is_empty or self.remap.state.upper_frontier < upper:
                return
            try:
                progress = await self.progress(upper.time)
            except (AsOfBeforeSince, PartMissing) as error:
                await self.catch_up(error)  # A stale state, as in `tick`.
                continue
            await self.source.hold(progress.needed, make=make)
            return
        raise ContentionError(_AHEAD, source=self.info.name)

    async def _tick(self, head: SourceHead, *, may_idle: bool) -> Tick | None:
        """Propose a binding, unless one waits; read it back, compute it and commit it."""
        upper = self.upper
        if self.remap.state.upper_frontier < upper:
            # Other ingesters are ticks ahead: this handle has read their commits to the outputs,
            # but not yet their bindings.
            await self.remap.refresh()
        self.check_needed()
        lower = upper.time
        plan: Plan | None = None
        proposed: Proposal | None = None
        if self.remap.state.upper == lower:
            plan = await self.plan(head, lower)
            await self._store_notes()
            # With times from the data, a plan without ranges may still release rows held back.
            if plan is None or not (plan.ranges or may_idle or plan.upper is not None):
                return None
            proposed = await self._propose(plan, head, lower)
            self.check_alive()
            if proposed.commits is None and self.is_look_due:
                await self._check_there()
        exhausted = plan is not None and not plan.ranges and plan.upper is None
        landed = None if proposed is None else proposed.commits
        binding = proposed.binding if proposed and landed else await self._binding(lower)
        # Read the progress before the commit. This read fails if other ingesters are ahead, and a
        # failure after the commit would lose the counts of this tick.
        progress = await self.progress(lower)
        if self.is_altered and landed is None:
            await self.evolve(self.schema_id_of(binding, progress))
        if proposed is not None and proposed.binding == binding and proposed.computed is not None:
            computed = proposed.computed
        else:
            computed = await self._compute(binding)
        commits = landed or await self._commit(binding, computed)
        if not binding.ranges and not progress.held:
            self._progress = binding.upper, progress
            return Tick(lower, binding.upper, won=commits.won, exhausted=exhausted)
        tick, after = self._land(head, binding, progress, computed, commits)
        if after is not None:
            schema = self.remap_schema_of(self.remap.state)
            await self.checkpoints.write(after, schema, binding.upper)
        added, self._added = self._added, ()
        return replace(tick, exhausted=exhausted, added=added)

    async def _propose(
        self, plan: Plan, head: SourceHead, lower: int, *, may_commit: bool = True
    ) -> Proposal:
        """Propose a plan's binding; if its parts can be computed before, together with them."""
        progress = await self.progress(lower)
        planned = Binding(lower, self._upper_of(plan, lower), plan.ranges)
        is_together = may_commit and self._binds_with_rows(head, planned, progress)
        computed: TickParts | None = None
        if plan.ranges:
            if not self._is_checked:
                await self._check_program()
            await self.engine.prepare(self.info, plan.ranges)
        # With strict or evolve, compute before the binding in any case: it fixes the bytes of its
        # files and the columns, so a user could not correct refused rows after it.
        if is_together or (plan.ranges and (self.strict or self.info.evolve is True)):
            found = await self._computed(planned)
            if self.info.evolve is True and await self._evolve_source(planned, found[0]):
                # The outputs get new columns only after the binding.
                plan, is_together = self._marked(plan, progress), False
                planned = replace(planned, ranges=plan.ranges)
                found = await self._computed(planned)
            computed = await self._completed(*found)
        rows: list[ShardAppend] = []
        if is_together and computed is not None:
            rows = self._commit_of(planned, computed).appends(self.written)
        landed = await self._mint(plan, lower, planned.upper, rows)
        won = len(rows) if landed else 0
        return Proposal(planned, computed, Commits(won, 0, True) if won else None)

    def _binds_with_rows(
        self, head: SourceHead, planned: Binding, progress: SourceProgress
    ) -> bool:
        """Return True if one commit can have a binding and its rows.

        Much data is bound before it is computed: of several ingesters, only one then computes a
        plan in vain. An output that needs other columns first must not get them before the binding.
        The first binding is proposed alone, because commands announce nothing before it.
        """
        if not self.is_one_group or self._looked[0] is None:
            return False
        if self._left_bytes(head, progress.taken) > COMPUTED_FIRST_BYTES:
            return False
        schema_id = self.schema_id_of(planned, progress)
        return all(len(one.state.retired) == schema_id for one in self.outputs)

    async def _evolve_source(self, planned: Binding, computed: TickParts) -> bool:
        """Add columns to the source for new fields of rows to bind; return True if it has changed.

        Raises:
            SourceDropped: the source was dropped. LocationError: a store failed.
        """
        names = candidates(list(computed.dropped), self.schema)
        if not names:
            return False
        added = await new_columns(self.source, self.info, planned.ranges, names)
        if not added.names:
            return False
        before = self.schema
        try:
            await self.controller.alter_source(self.info.name, partial(with_columns, added))
        except NoSuchCollection as error:
            raise self.dropped() from error
        await self.remap.refresh()  # It has this ingester's own announcement.
        await self._check_there()
        self._added += tuple(name for name in self.schema.names if name not in before.names)
        return self.schema is not before

    def _land(
        self,
        head: SourceHead,
        binding: Binding,
        progress: SourceProgress,
        computed: TickParts,
        commits: Commits,
    ) -> tuple[Tick, SourceProgress | None]:
        """Advance past a committed binding; return its report, and a progress to checkpoint."""
        before = progress.taken
        left = self._left_bytes(head, before)
        left_after = head.left_after(left, before, binding.ranges)
        after = advance(progress, binding)
        is_due = self._advance(binding.upper, after)
        self._left = head, after.taken, left_after
        tick = Tick(
            binding.lower,
            binding.upper,
            left_bytes=left_after,
            won=commits.won,
            unchecked=commits.unchecked,
            computed=computed,
            usage=computed.usage,
        )
        if commits.is_completed:
            tick = replace(
                tick,
                rows=computed.rows,
                bad=computed.bad,
                late=late_in(binding, before),
                size_bytes=left - left_after,
                dropped=computed.dropped,
            )
        return tick, after if is_due else None

    async def _store_notes(self) -> None:
        """Store a plan's new reports about files before its rows are bound: a kill loses none."""
        notes = self.source.notes()
        new = {path: note for path, note in notes.items() if self._noted.get(path) != note}
        if new:
            await add_notes(self.store, self.info.id, new)
        self._noted = dict(notes)

    def _left_bytes(self, head: SourceHead, taken: Taken) -> int:
        """Return the bytes of a head after ``taken``; the last tick's result is cached."""
        known = self._left
        if known is not None and known[0] is head and known[1] is taken:
            return known[2]
        return head.left_bytes(taken)

    async def _compute(self, binding: Binding) -> TickParts:
        return await self._completed(*await self._computed(binding))

    async def _computed(self, binding: Binding) -> tuple[TickParts, Job | None, list[AddressRange]]:
        """Return a binding's parts, its job if it has one, and its skipped ranges that end here."""
        progress = await self.progress(binding.lower)
        computed = nothing_computed(len(self.outputs))
        if not binding.ranges and not progress.held:
            return computed, None, []
        job, skipped = self.job_of(binding, progress), self.lost_in(binding, progress)
        if job.ranges:
            if not self._is_checked:
                await self._check_program()
            computed = await compute_carefully(self.engine, job, self.source)
        if computed.dropped:
            ignore_case = self.info.csv.ignore_case is True
            left = not_given_up(computed.dropped, self.schema, ignore_case=ignore_case)
            computed = replace(computed, dropped=left)
        return computed, job, skipped

    async def _check_program(self) -> None:
        """Check that this process may decide rows; see `check_program`."""
        await self.clock.offload(partial(check_program, self.info))
        self._is_checked = True

    async def _completed(
        self, computed: TickParts, job: Job | None, skipped: Sequence[AddressRange]
    ) -> TickParts:
        """Return computed parts with a bad row for each skipped range.

        Raises:
            SourceRowsRefused: with ``strict``, rows do not fit the schema.
        """
        if self.strict and (computed.bad or computed.dropped):
            raise rows_refused(computed)
        if skipped and job is not None:
            return await write_skipped(computed, skipped, job, store=self.store, clock=self.clock)
        return computed

    async def _check_there(self) -> None:
        looked = epoch_of_bindings(self.remap.state), self.clock.monotonic_us()
        catalog = await self.controller.catalog()
        known = catalog.sources.get(self.info.name)
        if known is None or known.id != self.info.id:
            raise self.dropped()
        rendition = catalog.renditions[known.rendition]
        if rendition.schemas != self.rendition.schemas:
            self.adopt(rendition)
        self._skipped = frozenset(known.skipped)
        self._retain_ms = known.retain_ms
        self.source.pass_over(self._skipped)
        self._looked = looked

    def lost_in(self, binding: Binding, progress: SourceProgress) -> list[AddressRange]:
        """Return the skipped ranges that end with a binding: no row of them is held back after it.

        Messages that were lost before their binding end with it. Each range becomes one bad row, in
        that binding only.
        """
        there = (*progress.held, *binding.ranges)
        done = (found for found in there if found.reached < binding.upper)
        lost = (found.given_up for found in binding.ranges)
        return [
            *(found for found in lost if found is not None),
            *(found for found in done if self.is_skipped(found)),
        ]

    def is_skipped(self, found: AddressRange) -> bool:
        """Return True if `tidelog source skip` has skipped a range."""
        if isinstance(found, FileRange):
            return is_skipped(found, self._skipped)
        return skip_key(found) in self._skipped

    async def plan(
        self, head: SourceHead, lower: int, *, taken: Taken | None = None
    ) -> Plan | None:
        """Return the ranges for the next binding; with times from the clock, there may be none.

        ``taken`` is the source's progress, by default that at the outputs' upper.
        """
        progress = await self.progress(lower)
        taken = progress.taken if taken is None else taken
        left = self._left_bytes(head, taken)
        # A small rest would become a tick of its own, and cost mostly the fixed price of a tick.
        bytes_max = self.bytes_max if left > REST_SHARE * self.bytes_max else left
        plan = await self.source.plan(
            taken,
            head,
            lower=lower,
            bytes_max=max(bytes_max, self.bytes_max),
            survey=self._survey,
        )
        if plan is not None:
            reached = reached_before(plan.ranges, progress)
            return self._marked(plan, progress) if reached is None else Plan((), reached + 1)
        if self.final and progress.held:
            return Plan((), max(found.reached for found in progress.held) + 1)
        return Plan((), None) if self.info.is_clocked else None

    def _marked(self, plan: Plan, progress: SourceProgress) -> Plan:
        """Return a plan whose ranges name the newest schema: it decodes them, for all ingesters.

        Raises:
            SchemaEvolved: the source was altered since the catalog was read. A range of an earlier
                schema must not replace one of a later schema: the outputs cannot go back.
        """
        if not self.is_altered:
            return plan
        newest = len(self.rendition.schemas) - 1
        if progress.schema_id > newest:
            raise self.altered()
        marked = (msgspec.structs.replace(one, schema_id=newest) for one in plan.ranges)
        return replace(plan, ranges=tuple(marked))

    async def _survey(self, job: SurveyJob) -> SurveyResult:
        done = await self.engine.survey(job, self.source)
        self.surveyed = self.surveyed + done.usage
        return done

    def _upper_of(self, plan: Plan, lower: int) -> int:
        if plan.upper is not None:
            return plan.upper
        return max(self.clock.now_us() // 1_000, lower) + 1

    def schema_id_of(self, binding: Binding, progress: SourceProgress) -> int:
        """Return the id of the schema in which the outputs get the rows of a binding."""
        if not (self.is_altered or self.remap.machine.state.retired):
            return 0  # There may be 100,000 ranges to look at.
        return max([progress.schema_id, *(one.schema_id for one in binding.ranges)])

    def job_of(
        self, binding: Binding, progress: SourceProgress, *, schema_id: int | None = None
    ) -> Job:
        """Return the job that computes a binding, by default in the schema of the outputs then.

        Raises:
            SchemaEvolved: see `SourceShards.schema_of`.
        """
        schema_id = self.schema_id_of(binding, progress) if schema_id is None else schema_id
        schema = self.schema_of(schema_id)
        upsert = self.info.envelope == "upsert"
        there = (r for r in (*progress.held, *binding.ranges) if not self.is_skipped(r))
        ranges = sorted((r for r in there if r.is_read), key=lambda r: (r.path, r.start))
        held = {(r.path, r.start) for r in progress.held}
        return Job(
            source=self.info,
            schema=encode_with_known(schema) if self.is_altered else schema.encoded,
            columns=self.rendition.schemas[: schema_id + 1] if self.is_altered else (),
            lower=binding.lower,
            upper=binding.upper,
            ranges=tuple(ranges),
            held=frozenset(n for n, r in enumerate(ranges) if (r.path, r.start) in held),
            shards=tuple(
                target_of(shard, binding, feedback=upsert, deletions=beside)
                for shard, beside in zip_longest(self.outputs, self.deletions)
            ),
            errors=target_of(self.errors, binding, feedback=False),
            kind=self.kind,
        )

    def parts_of(self, computed: TickParts) -> list[Sequence[Part]]:
        """Return the computed parts, in the order of the shards of `written`."""
        # Errors are last. Only the ingester that commits them reports the tick's rows, so ingesters
        # that share a tick report each row once.
        rows = [one.rows for one in computed.written]
        deleted = [one.deleted for one in computed.written[: len(self.deletions)]]
        return [*rows, *deleted, computed.error_parts]

    async def _commit(self, binding: Binding, computed: TickParts) -> Commits:
        return await self._commit_of(binding, computed).commit()

    def _commit_of(self, binding: Binding, computed: TickParts) -> TickCommit:
        """Return the commit of a binding's parts to all shards."""
        return TickCommit(
            to=self,
            lower=binding.lower,
            upper=binding.upper,
            parts=self.parts_of(computed),
            holds=partial(self._holds_of, binding=binding),
            is_same=partial(self._same, binding),
        )

    def _holds_of(self, shard: Shard, binding: Binding) -> dict[str, Frontier]:
        """Return the holds that a commit moves: the ingesters', and with a retention, `history`."""
        holds = {INGEST_HOLD: Frontier.at(max(binding.lower - 1, 0))}
        is_read = HISTORY_HOLD in shard.first_holds
        if is_read and self._retain_ms is not None:
            holds[HISTORY_HOLD] = history_at(binding.upper, self._retain_ms)
        return holds

    async def _same(self, binding: Binding, shard: Shard, parts: Sequence[Part]) -> bool | None:
        """Compare computed parts with another ingester's commit; see `same_as_theirs`.

        The result is None if the other ingester skipped a file that is in these parts. The rest of
        them must not be committed next to its commit: a deletion could contradict a row. The next
        tick computes the binding without the file.

        Raises:
            DataDiffers: they differ, although no file of the binding was skipped.
        """
        try:
            return same_as_theirs(shard, parts, *map(Frontier.at, (binding.lower, binding.upper)))
        except DataDiffers:
            # One of the two ingesters may have skipped a file that the other one still read.
            skipped = self._skipped
            await self._check_there()
            held = (await self.progress(binding.lower)).held
            if not any(self.is_skipped(found) for found in (*binding.ranges, *held)):
                raise
            return None if self._skipped != skipped else False


def late_in(binding: Binding, before: Taken) -> int:
    """Return the number of late rows of a binding: their times were complete before it."""
    return sum(r.late - (before[r.path].late if r.path in before else 0) for r in binding.ranges)
