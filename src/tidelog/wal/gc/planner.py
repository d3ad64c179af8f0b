"""The I/O for planning a collection; `tidelog.wal.gc.plan` decides.

Source: wal3, "Garbage Collection"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tidelog.core.clock import Clock, run_all
from tidelog.errors import ManifestMoved, ObjectNotFound, VerificationError
from tidelog.store.port import Store
from tidelog.wal.format.gc_plan import Garbage
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.snapshot import Snapshot
from tidelog.wal.gc.cursors import Cursors
from tidelog.wal.gc.plan import (
    Keep,
    check_share,
    cutoff_of,
    fragments_of_control,
    missing_for_plan,
    plan_collection,
)
from tidelog.wal.read.head import TreeReader, load_past
from tidelog.wal.slot_protocol.stream_history import read_controls


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The position below which records are not needed, by the current cursors.

    ``position`` is None if there is no cursor. ``held_by`` is the name of the lowest cursor.
    ``foreign`` are keys in the cursors' folder that are not valid names.
    """

    position: int | None
    held_by: str | None
    foreign: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """The plans of collections of the log at the root of ``store``."""

    store: Store
    clock: Clock
    writer: str
    keep: Keep

    async def cutoff(self, manifest: Manifest) -> Cutoff:
        """Read the cursors, and return their cutoff.

        Raises:
            CorruptionError: a cursor cannot be read.
            LocationError: the store failed.
        """
        listed = await Cursors(store=self.store, clock=self.clock, writer=self.writer).list()
        places = {name: cursor.position for name, cursor in listed.cursors.items()}
        return Cutoff(
            cutoff_of(manifest, places.values(), self.keep),
            min(places, key=places.__getitem__, default=None),
            listed.foreign,
        )

    async def plan(self, manifest: Manifest, cutoff: int, *, force: bool) -> Garbage:
        """Plan to delete the fragments below ``cutoff``; see `plan_collection`.

        Raises:
            ManifestMoved: the log was collected concurrently.
            VerificationError: the share is too large, and ``force`` is False.
            CorruptionError: the log does not add up.
        """
        known: dict[str, Snapshot] = {}
        reader = TreeReader(store=self.store, clock=self.clock)
        try:
            while missing := missing_for_plan(manifest, known, cutoff=cutoff):
                work = [partial(reader.snapshot, pointer) for pointer in missing]
                read = await run_all(work, at_once=reader.reads)
                known.update({p.path: one for p, one in zip(missing, read, strict=True)})
            said = fragments_of_control(manifest, known, cutoff=cutoff)
            controls = await read_controls(self.store, self.clock, said)
        except ObjectNotFound as error:
            await load_past(self.store, manifest, error)
            raise ManifestMoved(
                "another process collected the log concurrently: plan again"
            ) from error
        decide = partial(plan_collection, manifest, known, cutoff=cutoff, controls=controls)
        plan = await self.clock.offload(decide)
        if not plan.is_empty and not force:
            check_share(manifest, plan, self.keep)
        return plan

    async def still_fits(self, plan: Garbage, manifest: Manifest, *, force: bool) -> bool:
        """Return True if the current cursors allow a plan.

        Raises:
            See `cutoff`.
        """
        cutoff = (await self.cutoff(manifest)).position
        if cutoff is None or cutoff < plan.first_to_keep:
            return False
        try:
            if not force:
                check_share(manifest, plan, self.keep)
        except (ManifestMoved, VerificationError):
            return False
        return True
