"""Collecting a log: what no cursor needs is erased, in three phases, from any of them anew.

1. The plan is written to ``gc/GARBAGE``, and then the cursors are read again.
2. The snapshots that it makes are written, and the manifest is replaced by one without the rest.
3. After the readers' grace, the objects are deleted, and the plan is replaced by the empty one.

A plan's owner is who wrote the bytes that stand there. Who finds a plan that another left takes it
over by writing it again, with an id of its own; if it must not be carried out, the manifest is
replaced, so that nobody who has read it before can carry it out either, and only then is the plan
taken away. docs/internals/wal3.md has the argument for each pair of requests.

Pins hold nothing back: they are read after the manifest was replaced, and what they name is left to
lie until they are released. Whoever makes one looks at the manifest after that.

Invariants: the manifest is replaced only on condition of a version that was read before the plan
was seen to be ours. Nothing is deleted but what the manifest proves dead: fragments below its first
number, snapshots that begin below its first position, in slot logs what is void; and nothing that
it or a pin names.
Source: wal3, "Garbage Collection"; docs/internals/wal3.md.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any, Final

from tidelog.clock import Clock
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
from tidelog.wal.read.head import Head, load_head, load_living
from tidelog.wal.read.manifest_store import Change, ManifestStore
from tidelog.wal.read.tree_paths import paths_named
from tidelog.wal.read.tree_reader import TreeReader

TRIES_MAX: Final = 50
GRACE_US: Final = 60_000_000


@dataclass(slots=True)
class Collected:
    """What a collection did.

    Shape: ``held_by`` is the cursor that stands lowest, None if there is none, and so nothing was
        collected; ``pinned`` counts objects that were left to pins; ``foreign`` are keys where
        cursors lie and none can; ``spared`` are objects that a plan would have erased, though the
        log names them; ``discarded`` counts plans of others that were taken away.
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
    """How the replacing of the manifest ended."""

    COLLECTED = "the manifest is past what the plan erases"
    LOST = "another has taken the plan over, or away"
    UNFIT = "the log has changed where the plan erases"


@dataclass(slots=True, kw_only=True)
class Collector:
    """Collects the log at the root of ``store``. ``writer`` is a name for people.

    Units: ``grace_us`` microseconds pass between the manifest's change and the deletion. They
        should outlast a reader's work on what it read of the manifest, and the 8 seconds for which
        a writer may be in doubt of a put. ``pace`` is how fast is deleted, oldest first.
    """

    store: Store
    clock: Clock
    writer: str
    keep: Keep = field(default_factory=Keep)
    grace_us: int = GRACE_US
    pace: Pace = AT_ONCE

    async def collect(self, *, force: bool = False) -> Collected:
        """Erase all that no cursor needs, once; first finish what another left unfinished.

        Raises:
            NoSuchLog: there is none. VerificationError: more would be erased at once than may be,
            and ``force`` is False; nothing was. CorruptionError: the log does not add up, or names
            what is not there; nothing more was deleted. ContentionError: others were ahead at
            every try. LocationError: the store failed; the next collection goes on from there.
        """
        check_deletion(self.grace_us, self.pace)
        report = Collected()
        if await self._collect(report, force=force) is not None:
            await sweep_pins(self.store, self.clock, grace_us=self.grace_us, pace=self.pace)
        return report

    async def _collect(self, report: Collected, *, force: bool) -> Chain | None:
        """Collect; return the epochs of a slot log, which may have pins."""
        for _ in range(TRIES_MAX):
            head = await load_living(self.store)  # Before the plan: `_carry_out` depends on it.
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
        raise ContentionError("others were ahead at every try to collect the log")

    async def _run(
        self, plan: Garbage, found: WrittenPlan, head: Head, report: Collected, *, force: bool
    ) -> bool:
        """Take a plan through all phases, from its writing on; False if it was not carried out."""
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

    async def _plan(self, manifest: Manifest, report: Collected, *, force: bool) -> Garbage:
        """Plan afresh; the empty plan, if no cursor says what may go."""
        cutoff = await self._planner().cutoff(manifest)
        report.held_by, report.foreign = cutoff.held_by, list(cutoff.foreign)
        if cutoff.position is None:
            return Garbage()
        return await self._planner().plan(manifest, cutoff.position, force=force)

    async def _carry_out(self, ours: WrittenPlan, head: Head) -> _End:
        """Replace the manifest by one without what the plan erases.

        ``head`` was read before the plan was written, so whoever has taken the plan over since
        replaces the manifest after that, and no look at the plan is needed. Later ones need it.
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
                to_store = ()  # They lie there since the first try.
                head = await load_head(self.store)
                is_ours = (await self._file().read()).e_tag == ours.e_tag
                if not is_ours and not is_collected(head.manifest, ours.plan):
                    return _End.LOST
            else:
                return _End.COLLECTED
        raise ContentionError("writers were ahead at every try to collect the log")

    async def _discard(self, ours: WrittenPlan, report: Collected) -> None:
        """Take a plan away that must not be carried out, by nobody.

        Others may have seen it as theirs, and wait for an answer of the manifest; they would carry
        it out after whoever made a cursor has seen neither plan nor change. So the manifest comes
        first: once it is another, their condition fails.
        """
        head = await load_head(self.store)
        if is_collected(head.manifest, ours.plan):
            return
        fence = changed(head.manifest, writer=f"{self.writer} {self.clock.unique()}")
        try:
            await self._manifests().replace(head, Change(fence))
        except (ManifestMoved, OutcomeUnknown):
            # Another did, which is as good, unless it was just that which must not be.
            if is_collected((await load_head(self.store)).manifest, ours.plan):
                return
        report.discarded += 1
        # With an id: no put of an older plan, still under way, takes this for what it waits for.
        await self._file().clear(ours, head.manifest, write_id=self.clock.unique())

    async def _finish(self, written: WrittenPlan, report: Collected) -> bool:
        """Delete what a plan erases, once the readers' grace is over; False if it may not be yet.

        Who wrote the plan does not matter: the manifest is what proves things dead.
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
