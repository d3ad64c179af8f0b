"""The object in which a collection's plan stands, ``gc/GARBAGE``: whose bytes are there owns it.

Invariants: it is replaced only on condition of the version that was read or written. Each plan that
is written has an id of its own, so that equal plans of two collectors are not equal bytes.
Source: wal3, "Garbage Collection"; docs/internals/wal3.md.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tidelog.clock import Clock
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
from tidelog.wal.read.read_again import read_decoded


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """A plan as it was read or written; without an e_tag there has never been one."""

    e_tag: str
    plan: Garbage


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """The plan of the log at the root of ``store``."""

    store: Store
    clock: Clock

    async def read(self) -> WrittenPlan:
        """Read the plan that stands there; the empty one, if there has never been one.

        Raises:
            CorruptionError: it cannot be read. LocationError: the store failed.
        """
        try:
            return await read_decoded(
                self.store, GARBAGE, lambda read: WrittenPlan(read.e_tag, decode_garbage(read.data))
            )
        except ObjectNotFound:
            return WrittenPlan("", Garbage())

    async def write(self, plan: Garbage, over: WrittenPlan) -> WrittenPlan:
        """Write a plan over one that was read: from now on it is ours.

        Raises:
            ObjectExists, ObjectChanged: another has written one since. NOT_APPLIED.
            OutcomeUnknown: another has written one, over ours or not. ContentionError,
            LocationError: see `tidelog.store.conditional`.
        """
        data = encode_garbage(plan, write_id=self.clock.unique())
        if over.e_tag:
            e_tag = await replace(self.store, GARBAGE, data, e_tag=over.e_tag, clock=self.clock)
        else:
            e_tag = await create(self.store, GARBAGE, data, clock=self.clock, replaceable=True)
        return WrittenPlan(e_tag, plan)

    async def clear(self, over: WrittenPlan, manifest: Manifest, *, write_id: str = "") -> None:
        """Replace a plan by the empty one; if another has written since, that is as good."""
        empty = encode_garbage(nothing_to_erase(manifest), write_id=write_id)
        with suppress(ObjectChanged, OutcomeUnknown):
            await replace(self.store, GARBAGE, empty, e_tag=over.e_tag, clock=self.clock)
