"""Broken collectors and cursors, which the simulator must catch; see `sim.canaries.builds`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace as changed
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from tidelog.clock import Clock
from tidelog.errors import ManifestMoved, ObjectChanged, ObjectNotFound, OutcomeUnknown
from tidelog.store.conditional import replace
from tidelog.store.port import Store
from tidelog.wal.format.cursor import Cursor
from tidelog.wal.format.epoch import Epoch
from tidelog.wal.format.gc_plan import GARBAGE, Garbage, decode_garbage, encode_garbage
from tidelog.wal.format.manifest import FIRST_POSITION, MANIFEST, Manifest, encode_manifest
from tidelog.wal.format.snapshot import object_of
from tidelog.wal.gc import collector, cursors, pins, plan_file, planner
from tidelog.wal.gc.collector import Collected, Collector
from tidelog.wal.gc.cursors import Cursors
from tidelog.wal.gc.pin_reach import paths_pinned
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import apply_garbage, cutoff_of, is_collected, paths_to_delete
from tidelog.wal.gc.planner import Planner
from tidelog.wal.read.head import Head, load_head
from tidelog.wal.read.manifest_store import Change, ManifestStore
from tidelog.wal.read.named_objects import store_named
from tidelog.wal.read.tree_reader import TreeReader


@contextmanager
def collector_reads_cursors_once() -> Iterator[None]:
    """A plan is carried out as it was made, whoever has made a cursor since."""

    async def may(*_: object, **__: object) -> bool:
        return True

    with patch.object(Planner, "still_fits", may):
        yield


@contextmanager
def collector_deletes_before_the_manifest() -> Iterator[None]:
    """What a plan erases is deleted while the log still names it."""
    real = Collector._carry_out

    async def hasty(self: Collector, ours: Any, head: Any) -> Any:
        await self.store.delete(paths_to_delete(ours.plan, head.manifest.chain))
        return await real(self, ours, head)

    with patch.object(Collector, "_carry_out", hasty):
        yield


@contextmanager
def collector_ignores_the_grace() -> Iterator[None]:
    """Readers who have the older manifest lose what it names at once."""
    real = Collector._finish

    async def hasty(self: Collector, written: Any, report: Collected) -> bool:
        self.grace_us = 0
        return await real(self, written, report)

    with patch.object(Collector, "_finish", hasty):
        yield


@contextmanager
def collector_believes_plans() -> Iterator[None]:
    """A plan that is found is taken for carried out, and nobody looks what the log names."""

    def past(*_: object) -> bool:
        return True

    async def nothing(reader: TreeReader) -> tuple[Manifest, set[str]]:
        return await reader.manifest(), set()

    with (
        patch.object(collector, "is_collected", past),
        patch.object(collector, "paths_named", nothing),
    ):
        yield


@contextmanager
def collector_takes_plans_away_without_a_fence() -> Iterator[None]:
    """Whoever wrote the plan may still carry it out, though a cursor was made since."""

    async def careless(self: Collector, ours: Any, report: Collected) -> None:
        report.discarded += 1
        empty = encode_garbage(Garbage(), write_id=self.clock.unique())
        with suppress(ObjectChanged, OutcomeUnknown):
            await replace(self.store, GARBAGE, empty, e_tag=ours.e_tag, clock=self.clock)

    with patch.object(Collector, "_discard", careless):
        yield


@contextmanager
def collector_fences_too_late() -> Iterator[None]:
    """The plan is taken away first, and in between somebody makes a cursor."""
    real = Collector._discard

    async def too_late(self: Collector, ours: Any, report: Collected) -> None:
        empty = encode_garbage(Garbage(), write_id=self.clock.unique())
        with suppress(ObjectChanged, OutcomeUnknown):
            await replace(self.store, GARBAGE, empty, e_tag=ours.e_tag, clock=self.clock)
        await real(self, ours, report)

    with patch.object(Collector, "_discard", too_late):
        yield


@contextmanager
def collector_keeps_to_a_plan_that_was_taken() -> Iterator[None]:
    """Where writers were ahead it tries again, and does not look whose plan stands there."""

    async def carry_out(self: Collector, ours: Any, head: Any) -> Any:
        to_store = tuple(map(object_of, ours.plan.snapshots_to_make))
        while not is_collected(head.manifest, ours.plan):
            try:
                after = apply_garbage(head.manifest, ours.plan)
            except ManifestMoved:
                return collector._End.UNFIT
            try:
                await self._manifests().replace(head, Change(after, to_store))
            except (ManifestMoved, OutcomeUnknown):
                head = await load_head(self.store)
            else:
                break
        return collector._End.COLLECTED

    with patch.object(Collector, "_carry_out", carry_out):
        yield


@contextmanager
def collector_signs_no_plan() -> Iterator[None]:
    """Equal plans of two collectors are equal bytes, and each takes the other's for its own."""

    def unsigned(plan: Garbage, **_: object) -> bytes:
        return encode_garbage(plan)

    with patch.object(plan_file, "encode_garbage", unsigned):
        yield


@contextmanager
def cursors_sign_nothing() -> Iterator[None]:
    """To write a position twice in one microsecond is to write equal bytes."""

    def unsigned(self: Cursors, position: int) -> Cursor:
        return Cursor(position=position, epoch_us=0, writer=self.writer)

    with patch.object(Cursors, "_cursor", unsigned):
        yield


@contextmanager
def collector_replaces_whatever_is_there() -> Iterator[None]:
    """Manifest and plan are replaced without their condition."""

    async def careless(store: Store, key: str, data: bytes, **_: Any) -> str:
        return await store.put(key, data)

    def careless_manifests(self: Collector) -> _Careless:
        return _Careless(store=self.store, clock=self.clock)

    with (
        patch.object(plan_file, "replace", careless),
        patch.object(Collector, "_manifests", careless_manifests),
    ):
        yield


class _Careless(ManifestStore):
    """Replaces a manifest whatever it is by now."""

    async def replace(self, head: Head, change: Change) -> Head:
        for one in change.objects:
            await store_named(self.store, one, clock=self.clock)
        return Head(
            change.manifest, await self.store.put(MANIFEST, encode_manifest(change.manifest))
        )


@contextmanager
def collector_erases_one_too_many() -> Iterator[None]:
    """The record at the cursor itself counts as read."""

    def further(manifest: Manifest, *rest: Any) -> int | None:
        found = cutoff_of(manifest, *rest)
        return None if found is None else min(found + 1, manifest.next)

    with patch.object(planner, "cutoff_of", further):
        yield


@contextmanager
def cursors_do_not_look() -> Iterator[None]:
    """Who makes a cursor relies on it, whatever plan stood there before."""

    async def all_of_it(_: Cursors) -> tuple[int, int]:
        return FIRST_POSITION, FIRST_POSITION

    with patch.object(Cursors, "_look", all_of_it):
        yield


@contextmanager
def cursors_look_at_the_manifest_first() -> Iterator[None]:
    """A whole collection fits between the look at the manifest and that at the plan."""

    async def wrong_way_round(self: Cursors) -> tuple[int, int]:
        oldest = (await load_head(self.store)).manifest.oldest
        try:
            plan = decode_garbage((await self.store.get(GARBAGE)).data)
        except ObjectNotFound:
            return FIRST_POSITION, oldest
        return plan.first_to_keep, oldest

    with patch.object(Cursors, "_look", wrong_way_round):
        yield


@contextmanager
def cursors_move_without_a_condition() -> Iterator[None]:
    """The later of two writes stands, whichever it is."""

    async def careless(store: Store, key: str, data: bytes, **_: Any) -> str:
        return await store.put(key, data)

    with patch.object(cursors, "replace", careless):
        yield


@contextmanager
def collector_ignores_pins() -> Iterator[None]:
    """What a collection erases is deleted, whoever has pinned it."""

    async def none(*_: object) -> set[str]:
        return set()

    with patch.object(collector, "paths_pinned", none):
        yield


@contextmanager
def collector_reads_pins_before_the_manifest() -> Iterator[None]:
    """A pin that is made in between looks at the manifest as it was, and is sure of itself."""
    real, begun = Collector._run, dict[int, set[str]]()

    async def early(self: Collector, *rest: Any, **named: Any) -> bool:
        begun[id(self.store)] = await paths_pinned(self.store, self.clock)
        return await real(self, *rest, **named)

    async def as_they_were(store: Store, clock: Clock) -> set[str]:
        before = begun.get(id(store))
        return await paths_pinned(store, clock) if before is None else before

    with (
        patch.object(Collector, "_run", early),
        patch.object(collector, "paths_pinned", as_they_were),
    ):
        yield


@contextmanager
def pins_do_not_look() -> Iterator[None]:
    """Who makes a pin relies on it, whatever was collected meanwhile."""

    async def trusting(self: Pins, name: str, *, start: int, limit: int, **_: object) -> Any:
        manifest = (await load_head(self.store)).manifest
        return await self._put(changed(self._pin(name, manifest, start, limit, ""), is_sure=True))

    with patch.object(Pins, "create", trusting):
        yield


@contextmanager
def pins_do_not_see_snapshots_made_anew() -> Iterator[None]:
    """A pin past whose start nothing was collected is sure, though its snapshots were halved."""

    async def as_it_was(store: Store) -> Any:
        head = await load_head(store)
        return SimpleNamespace(manifest=SimpleNamespace(oldest=_Lowest(head.manifest.oldest)))

    with patch.object(pins, "load_head", as_it_was):
        yield


class _Lowest(int):
    """A position that is as great as it is, and equal to any other."""

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = int.__hash__


@contextmanager
def collector_deletes_fences() -> Iterator[None]:
    """The fence that ended an epoch goes with what is void after it."""
    real = Epoch.void_paths

    def too_many(self: Epoch, fence: int, reach: int) -> list[str]:
        return [self.path(fence), *real(self, fence, reach)]

    with patch.object(Epoch, "void_paths", too_many):
        yield


Canary = Callable[[], AbstractContextManager[None]]


@contextmanager
def collector_forgets_streams() -> Iterator[None]:
    """What is open where the log begins then stays what it was."""

    def as_before(manifest: Manifest, _: object) -> Any:
        return None if manifest.chain is None else manifest.chain.streams_at_start

    with patch("tidelog.wal.gc.plan._streams_after", as_before):
        yield


FOR_COLLECTION: Final[tuple[Canary, ...]] = (
    collector_deletes_before_the_manifest,
    collector_ignores_the_grace,
    collector_believes_plans,
    collector_replaces_whatever_is_there,
    collector_erases_one_too_many,
    cursors_do_not_look,
)
FOR_SLOT_COLLECTION: Final[tuple[Canary, ...]] = (
    collector_ignores_pins,
    collector_forgets_streams,
    collector_deletes_fences,
    collector_deletes_before_the_manifest,
    collector_ignores_the_grace,
    collector_erases_one_too_many,
    cursors_do_not_look,
)
FOR_RACES: Final[tuple[Canary, ...]] = (
    collector_reads_cursors_once,
    collector_takes_plans_away_without_a_fence,
    collector_fences_too_late,
    collector_keeps_to_a_plan_that_was_taken,
    cursors_sign_nothing,
    cursors_do_not_look,
    cursors_look_at_the_manifest_first,
    cursors_move_without_a_condition,
)
FOR_PIN_RACES: Final[tuple[Canary, ...]] = (
    collector_ignores_pins,
    collector_reads_pins_before_the_manifest,
    pins_do_not_look,
    pins_do_not_see_snapshots_made_anew,
)
