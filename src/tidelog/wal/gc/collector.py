"""The collector: it deletes records that no cursor needs, in three phases that can each resume.

1. Write the plan to ``gc/GARBAGE``, then read the cursors again.
2. Write the plan's new snapshots, then replace the manifest by one without the deleted objects.
3. After the readers' grace, delete the objects, then replace the plan by the empty one.

The collector that wrote the bytes of a plan owns it. A collector that finds another one's plan
takes it over: it writes the plan again with an id of its own. If the plan must not be carried out,
it first replaces the manifest, so that other collectors' conditional writes fail. Only then it
removes the plan. docs/internals/wal3.md has the argument for each pair of requests.

Pins do not hold back the manifest. The collector reads them after it has replaced the manifest, and
does not delete the objects that they name until they are released. A process that creates a pin
reads the manifest afterwards, so one of the two sees the other.

Invariants: the manifest is replaced only on condition of a version that was read before the
collector verified that it owns the plan. Only objects that the manifest proves dead are deleted:
fragments below its first number, snapshots that begin below its first position, and in slot logs
void objects. Objects that the manifest or a pin names are never deleted.
Source: wal3, "Garbage Collection"; docs/internals/wal3.md.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any, Final

from tidelog.core.clock import Clock
from tidelog.errors import (
    ContentionError,
    ManifestMoved,
    ObjectChanged,
    ObjectExists,
    OutcomeUnknown,
)
from tidelog.store.port import Store
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.gc_plan import Garbage
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.snapshot import object_of
from tidelog.wal.gc.deletion import AT_ONCE, Pace, check_deletion, delete_all
from tidelog.wal.gc.pin_reach import paths_pinned, sweep_pins
from tidelog.wal.gc.plan import Keep, apply_garbage, is_collected, paths_to_delete
from tidelog.wal.gc.plan_file import PlanFile, WrittenPlan
from tidelog.wal.gc.planner import Planner
from tidelog.wal.read.epoch_history import with_epochs_of
from tidelog.wal.read.head import Head, TreeReader, load_head, load_living
from tidelog.wal.read.manifest_store import Change, ManifestStore
from tidelog.wal.read.tree_paths import paths_named

TRIES_MAX: Final = 50
GRACE_US: Final = 60_000_000


@dataclass(slots=True)
class CollectReport:
    """The result of a collection.

    Shape: ``held_by`` is the lowest cursor; None means that there is no cursor, so nothing was
    collected. ``pinned`` counts objects left because of pins. ``foreign`` are keys in the cursors'
    folder that are not valid names. ``spared`` are objects that a plan would have deleted although
    the log names them. ``discarded`` counts removed plans of other collectors.
    """

    held_by: str | None = None
    oldest: int | None = None
    fragments: int = 0
    snapshots: int = 0
    made: int = 0
    discarded: int = 0
    pinned: int = 0
    foreign: list[str] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


class _End(enum.Enum):
    """How the attempt to replace the manifest ended."""

    COLLECTED = "the manifest no longer names the records that the plan deletes"
    LOST = "another collector has taken over or removed the plan"
    UNFIT = "the log's beginning no longer matches the plan"


@dataclass(slots=True, kw_only=True)
class Collector:
    """The collector of the log at the root of ``store``. ``writer`` is a name for people.

    Units:
        grace_us: microseconds between the manifest's change and the deletion. They should exceed a
        reader's work on one manifest, and the 8 seconds for which a writer may send a put again.
        pace: rate of deletion, oldest first.
    """

    store: Store
    clock: Clock
    writer: str
    keep: Keep = field(default_factory=Keep)
    grace_us: int = GRACE_US
    pace: Pace = AT_ONCE

    async def collect(self, *, force: bool = False) -> CollectReport:
        """Delete all records that no cursor needs, once; first finish another collector's plan.

        Raises:
            NoSuchLog: the log does not exist.
            VerificationError: the share is too large, and ``force`` is False. NOT_APPLIED.
            CorruptionError: the log does not add up, or names a missing object; nothing more was
            deleted.
            ContentionError: other processes were first at every try.
            LocationError: the store failed; the next collection continues.
        """
        check_deletion(self.grace_us, self.pace)
        report = CollectReport()
        if await self._collect(report, force=force) is not None:
            await sweep_pins(self.store, self.clock, grace_us=self.grace_us, pace=self.pace)
        return report

    async def _collect(self, report: CollectReport, *, force: bool) -> Chain | None:
        """Collect; return the chain of a slot log, which may have pins."""
        for _ in range(TRIES_MAX):
            # Read before the plan, because `_carry_out` depends on this order.
            head = await load_living(self.store)
            found = await self._file().read()
            if not found.plan.is_empty:
                if is_collected(head.manifest, found.plan):
                    await self._finish(found, report)
                else:
                    await self._run(found.plan, found, head, report, force=force)
                continue
            try:
                plan = await self._plan(head.manifest, report, force=force)
            except ManifestMoved:
                continue
            if plan.is_empty:
                report.oldest = head.manifest.oldest
                return head.manifest.chain
            if await self._run(plan, found, head, report, force=force):
                return head.manifest.chain
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries to collect the log: other processes kept changing "
            "its plan or its beginning; try again"
        )

    async def _run(
        self, plan: Garbage, found: WrittenPlan, head: Head, report: CollectReport, *, force: bool
    ) -> bool:
        """Write a plan and take it through all phases; return False if it was not carried out."""
        try:
            ours = await self._file().write(plan, found)
        except (ObjectExists, ObjectChanged, OutcomeUnknown):
            return False
        end = _End.UNFIT
        if await self._planner().still_fits(plan, head.manifest, force=force):
            end = await self._carry_out(ours, head)
        if end is _End.UNFIT:
            await self._discard(ours, report)
        return end is _End.COLLECTED and await self._finish(ours, report)

    async def _plan(self, manifest: Manifest, report: CollectReport, *, force: bool) -> Garbage:
        """Make a new plan; return the empty plan if there is no cursor."""
        cutoff = await self._planner().cutoff(manifest)
        report.held_by, report.foreign = cutoff.held_by, list(cutoff.foreign)
        if cutoff.position is None:
            return Garbage()
        return await self._planner().plan(manifest, cutoff.position, force=force)

    async def _carry_out(self, ours: WrittenPlan, head: Head) -> _End:
        """Replace the manifest by one without the objects that the plan deletes.

        ``head`` was read before the plan was written. A process that has taken the plan over since
        then replaces the manifest later, so ``head`` fails its condition. No check of the plan is
        needed for the first try. Each later try reads a newer manifest, and so must check that the
        plan is still owned.
        """
        to_store = tuple(map(object_of, ours.plan.snapshots_to_make))
        for _ in range(TRIES_MAX):
            if is_collected(head.manifest, ours.plan):
                return _End.COLLECTED
            try:
                after = apply_garbage(head.manifest, ours.plan)
            except ManifestMoved:
                return _End.UNFIT
            try:
                await self._manifests().replace(head, Change(after, to_store))
            except (ManifestMoved, OutcomeUnknown):
                to_store = ()  # The first try stored them.
                head = await load_head(self.store)
                is_ours = (await self._file().read()).e_tag == ours.e_tag
                if not is_ours and not is_collected(head.manifest, ours.plan):
                    return _End.LOST
            else:
                return _End.COLLECTED
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries to collect the log: writers kept replacing the "
            "manifest; try again"
        )

    async def _discard(self, ours: WrittenPlan, report: CollectReport) -> None:
        """Remove a plan that no collector may carry out.

        Another collector may believe that it owns the plan and be about to replace the manifest. It
        would then collect past a new cursor, whose creator saw neither the plan nor the change. So
        replace the manifest first: then the other collector's condition fails.
        """
        head = await load_head(self.store)
        if is_collected(head.manifest, ours.plan):
            return
        fence = changed(head.manifest, writer=f"{self.writer} {self.clock.unique()}")
        try:
            await self._manifests().replace(head, Change(fence))
        except (ManifestMoved, OutcomeUnknown):
            # Another process replaced it, which has the same effect, unless it carried out this
            # plan.
            if is_collected((await load_head(self.store)).manifest, ours.plan):
                return
        report.discarded += 1
        # With an id, so that a late put of an older plan cannot mistake these bytes for its own.
        await self._file().clear(ours, head.manifest, write_id=self.clock.unique())

    async def _finish(self, written: WrittenPlan, report: CollectReport) -> bool:
        """Delete a plan's objects after the readers' grace; return False if not proven dead.

        The owner of the plan does not matter: only the manifest proves objects dead.
        """
        await self.clock.sleep(self.grace_us)
        manifest, named = await paths_named(TreeReader(store=self.store, clock=self.clock))
        if not is_collected(manifest, written.plan):
            return False
        pinned = set() if manifest.chain is None else await paths_pinned(self.store, self.clock)
        chain, begin = manifest.chain, written.plan.fragments_start
        if chain is not None:
            chain = await with_epochs_of(self.store, chain, begin)
        doomed = paths_to_delete(written.plan, chain)
        dead = [path for path in doomed if path not in named and path not in pinned]
        report.spared += [path for path in doomed if path in named]
        report.pinned += sum(path in pinned for path in doomed)
        await delete_all(self.store, dead, clock=self.clock, pace=self.pace)
        report.snapshots += sum(path.startswith("snapshot/") for path in dead)
        report.fragments += written.plan.fragments_limit - written.plan.fragments_start
        report.made += len(written.plan.snapshots_to_make)
        report.oldest = manifest.oldest
        await self._file().clear(written, manifest)
        return True

    def _planner(self) -> Planner:
        return Planner(store=self.store, clock=self.clock, writer=self.writer, keep=self.keep)

    def _file(self) -> PlanFile:
        return PlanFile(store=self.store, clock=self.clock)

    def _manifests(self) -> ManifestStore:
        return ManifestStore(store=self.store, clock=self.clock)
