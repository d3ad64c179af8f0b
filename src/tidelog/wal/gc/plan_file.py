"""The object ``gc/GARBAGE`` with a collection's plan. The collector that wrote its bytes owns it.

Invariants: it is replaced only on condition of the version that was read or written. Each written
plan has an id of its own, so equal plans of two collectors differ in their bytes.
Source: wal3, "Garbage Collection"; docs/internals/wal3.md.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tidelog.core.clock import Clock
from tidelog.errors import ObjectChanged, ObjectNotFound, OutcomeUnknown
from tidelog.store.conditional import create, replace
from tidelog.store.port import Store
from tidelog.wal.format.gc_plan import (
    GARBAGE,
    Garbage,
    decode_garbage,
    encode_garbage,
    nothing_to_erase,
)
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.read.head import read_decoded


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """A plan with its version; an empty e_tag means that the object never existed."""

    e_tag: str
    plan: Garbage


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """The plan of the log at the root of ``store``."""

    store: Store
    clock: Clock

    async def read(self) -> WrittenPlan:
        """Read the current plan, or return the empty one if the object never existed.

        Raises:
            CorruptionError: the plan cannot be read.
            LocationError: the store failed.
        """
        try:
            return await read_decoded(
                self.store, GARBAGE, lambda read: WrittenPlan(read.e_tag, decode_garbage(read.data))
            )
        except ObjectNotFound:
            return WrittenPlan("", Garbage())

    async def write(self, plan: Garbage, over: WrittenPlan) -> WrittenPlan:
        """Replace a plan that was read; the caller owns the new one.

        Raises:
            ObjectExists: another collector has written a plan since. NOT_APPLIED.
            ObjectChanged: another collector has written a plan since. NOT_APPLIED.
            OutcomeUnknown: another collector has written a plan, and this one may have been written
            before it.
            ContentionError: see `tidelog.store.conditional`.
            LocationError: see `tidelog.store.conditional`.
        """
        data = encode_garbage(plan, write_id=self.clock.unique())
        if over.e_tag:
            e_tag = await replace(self.store, GARBAGE, data, e_tag=over.e_tag, clock=self.clock)
        else:
            e_tag = await create(self.store, GARBAGE, data, clock=self.clock, replaceable=True)
        return WrittenPlan(e_tag, plan)

    async def clear(self, over: WrittenPlan, manifest: Manifest, *, write_id: str = "") -> None:
        """Replace a plan by the empty one, unless another collector has replaced it."""
        empty = encode_garbage(nothing_to_erase(manifest), write_id=write_id)
        with suppress(ObjectChanged, OutcomeUnknown):
            await replace(self.store, GARBAGE, empty, e_tag=over.e_tag, clock=self.clock)
