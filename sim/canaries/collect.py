"""Broken collectors and cursors, which the simulator must catch; see `sim.canaries.builds`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace as changed
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from tidelog.core.clock import Clock
from tidelog.errors import ManifestMoved, ObjectChanged, ObjectNotFound, OutcomeUnknown
from tidelog.store.conditional import replace
from tidelog.store.port import Store
from tidelog.wal.format.cursor import Cursor
from tidelog.wal.format.gc_plan import GARBAGE, Garbage, decode_garbage, encode_garbage
from tidelog.wal.format.link import Epoch
from tidelog.wal.format.manifest import FIRST_POSITION, MANIFEST, Manifest, encode_manifest
from tidelog.wal.format.snapshot import object_of
from tidelog.wal.gc import collector, cursors, pins, plan_file, planner
from tidelog.wal.gc.collector import Collector, CollectReport
from tidelog.wal.gc.cursors import Cursors
from tidelog.wal.gc.pin_reach import paths_pinned
from tidelog.wal.gc.pins import Pins
from tidelog.wal.gc.plan import apply_garbage, cutoff_of, is_collected, paths_to_delete
from tidelog.wal.gc.planner import Planner
from tidelog.wal.read.head import Head, TreeReader, load_head
from tidelog.wal.read.manifest_store import Change, ManifestStore
from tidelog.wal.read.named_objects import store_named


@contextmanager
def collector_reads_cursors_once() -> Iterator[None]:
    """A collector carries out its plan although a cursor was made since."""

    async def may(*_: object, **__: object) -> bool:
        return True

    with patch.object(Planner, "still_fits", may):
        yield


@contextmanager
def collector_deletes_before_the_manifest() -> Iterator[None]:
    """Planned objects are deleted while the log still names them."""
    real = Collector._carry_out

    async def hasty(self: Collector, ours: Any, head: Any) -> Any:
        await self.store.delete(paths_to_delete(ours.plan, head.manifest.chain))
        return await real(self, ours, head)

    with patch.object(Collector, "_carry_out", hasty):
        yield


@contextmanager
def collector_ignores_the_grace() -> Iterator[None]:
    """A collector deletes objects of the older manifest at once, without the grace for readers."""
    real = Collector._finish

    async def hasty(self: Collector, written: Any, report: CollectReport) -> bool:
        self.grace_us = 0
        return await real(self, written, report)

    with patch.object(Collector, "_finish", hasty):
        yield


@contextmanager
def collector_believes_plans() -> Iterator[None]:
    """A plan that is found counts as carried out, without a look at what the log names."""

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
    """A collector discards a plan without a fence, so its writer may still carry it out."""

    async def careless(self: Collector, ours: Any, report: CollectReport) -> None:
        report.discarded += 1
        empty = encode_garbage(Garbage(), write_id=self.clock.unique())
        with suppress(ObjectChanged, OutcomeUnknown):
            await replace(self.store, GARBAGE, empty, e_tag=ours.e_tag, clock=self.clock)

    with patch.object(Collector, "_discard", careless):
        yield


@contextmanager
def collector_fences_too_late() -> Iterator[None]:
    """A collector discards a plan before the fence, and a cursor may be made in between."""
    real = Collector._discard

    async def too_late(self: Collector, ours: Any, report: CollectReport) -> None:
        empty = encode_garbage(Garbage(), write_id=self.clock.unique())
        with suppress(ObjectChanged, OutcomeUnknown):
            await replace(self.store, GARBAGE, empty, e_tag=ours.e_tag, clock=self.clock)
        await real(self, ours, report)

    with patch.object(Collector, "_discard", too_late):
        yield


@contextmanager
def collector_keeps_to_a_plan_that_was_taken() -> Iterator[None]:
    """A collector that lost to a writer retries without a look at the present plan."""

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
    """Equal plans of two collectors are equal bytes, so each takes the other's for its own."""

    def unsigned(plan: Garbage, **_: object) -> bytes:
        return encode_garbage(plan)

    with patch.object(plan_file, "encode_garbage", unsigned):
        yield


@contextmanager
def cursors_sign_nothing() -> Iterator[None]:
    """Two writes of one position in one microsecond are equal bytes."""

    def unsigned(self: Cursors, position: int) -> Cursor:
        return Cursor(position=position, epoch_us=0, writer=self.writer)

    with patch.object(Cursors, "_cursor", unsigned):
        yield


@contextmanager
def collector_replaces_whatever_is_there() -> Iterator[None]:
    """Manifest and plan are replaced without a condition."""

    async def careless(store: Store, key: str, data: bytes, **_: Any) -> str:
        return await store.put(key, data)

    def careless_manifests(self: Collector) -> _CarelessStore:
        return _CarelessStore(store=self.store, clock=self.clock)

    with (
        patch.object(plan_file, "replace", careless),
        patch.object(Collector, "_manifests", careless_manifests),
    ):
        yield


class _CarelessStore(ManifestStore):
    """A store that replaces a manifest without a condition."""

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
    """A client that makes a cursor relies on it in spite of an existing plan."""

    async def all_of_it(_: Cursors) -> tuple[int, int]:
        return FIRST_POSITION, FIRST_POSITION

    with patch.object(Cursors, "_look", all_of_it):
        yield


@contextmanager
def cursors_look_at_the_manifest_first() -> Iterator[None]:
    """A cursor's owner looks at the manifest before the plan; a whole collection fits between."""

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
    """Cursors are replaced without a condition, so the later of two writes wins."""

    async def careless(store: Store, key: str, data: bytes, **_: Any) -> str:
        return await store.put(key, data)

    with patch.object(cursors, "replace", careless):
        yield


@contextmanager
def collector_ignores_pins() -> Iterator[None]:
    """A collection deletes pinned objects."""

    async def none(*_: object) -> set[str]:
        return set()

    with patch.object(collector, "paths_pinned", none):
        yield


@contextmanager
def collector_reads_pins_before_the_manifest() -> Iterator[None]:
    """The collector reads pins too early, and so misses a pin made before the manifest changed."""
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
    """A client that makes a pin relies on it in spite of a concurrent collection."""

    async def trusting(self: Pins, name: str, *, start: int, limit: int, **_: object) -> Any:
        manifest = (await load_head(self.store)).manifest
        return await self._put(changed(self._pin(name, manifest, start, limit, ""), is_sure=True))

    with patch.object(Pins, "create", trusting):
        yield


@contextmanager
def pins_do_not_see_snapshots_made_anew() -> Iterator[None]:
    """A pin counts as sure though a collection has split the snapshots in its range."""

    async def as_it_was(store: Store) -> Any:
        head = await load_head(store)
        return SimpleNamespace(manifest=SimpleNamespace(oldest=_Lowest(head.manifest.oldest)))

    with patch.object(pins, "load_head", as_it_was):
        yield


class _Lowest(int):
    """A position that orders as usual, and equals any other."""

    def __eq__(self, _: object) -> bool:
        return True

    __hash__ = int.__hash__


@contextmanager
def collector_deletes_fences() -> Iterator[None]:
    """The fence that ended an epoch is deleted together with the void slots after it."""
    real = Epoch.void_paths

    def too_many(self: Epoch, fence: int, reach: int) -> list[str]:
        return [self.path(fence), *real(self, fence, reach)]

    with patch.object(Epoch, "void_paths", too_many):
        yield


Canary = Callable[[], AbstractContextManager[None]]


@contextmanager
def collector_forgets_streams() -> Iterator[None]:
    """A collection keeps the streams open at the log's old start for its new start."""

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
