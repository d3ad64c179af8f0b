"""Scrubbing a wal3 log: all of it, or a range, and all that is wrong is told, not the first alone.

What is checked: the manifest's and each snapshot's sums, bounds, depths and names; each fragment's
size, positions, time and records; cursors. Objects that the log does not name are told, and are no
fault: a crash leaves such, and so does a collection under way. For a range the manifest is checked,
and what it names of the range; cursors, plan and other objects are not looked at.

A collection that goes past meanwhile takes away what the manifest named when it was read. Where a
snapshot is missing, a newer manifest says how to go on. Who finds problems reads the manifest
again: those of fragments that were collected since are none; if there are others, and the log
begins later than it did, all is read anew.
Source: wal3, "Scrub"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from tidelog.clock import run_all
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.wal.format.cursor import CURSORS, cursor_name, decode_cursor
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.gc_plan import GARBAGE, decode_garbage
from tidelog.wal.format.manifest import MANIFEST, Manifest, problems_of_manifest
from tidelog.wal.format.snapshot import (
    Pointer,
    Snapshot,
    decode_snapshot,
    problems_of_snapshot,
)
from tidelog.wal.format.wal3_records import decode_fragment, problems_of_fragment
from tidelog.wal.manifest_protocol.reader import Wal3Reader
from tidelog.wal.read.head import collected
from tidelog.wal.read.read_again import read_again, read_decoded
from tidelog.wal.read.tree_reader import TreeReader
from tidelog.wal.scrub.report import Before, Problem, Scrubbed, ScrubRange

RUNS_MAX: Final = 5


Check: TypeAlias = Callable[[bytes, Fragment, Before], tuple[list[str], int]]


async def scrub(
    reader: Wal3Reader,
    start: int = 0,
    limit: int | None = None,
    *,
    run_by: StartScrub | None = None,
) -> Scrubbed:
    """Read a whole log, or its positions ``[start, limit)``, and check all of it.

    ``run_by`` is `TreeScrub`, or what does as that does.

    Raises:
        UsageError: there is no position in the range. NoSuchLog: there is no log.
        PositionCollected: ``start`` was collected, maybe meanwhile. CorruptionError: the manifest
        cannot be read, so that nothing says what there should be. LocationError: the store failed.
    """
    within = ScrubRange(start, limit)

    async def once(manifest: Manifest) -> Scrubbed:
        run = (run_by or TreeScrub)(reader.tree, Scrubbed(), problems_and_records, within)
        await run.tree(manifest)
        await run.forgive(manifest)
        await run.others()
        return run.found

    return await scrub_again(partial(reader.manifest, checked=False), once)


async def scrub_again(
    load: Callable[[], Awaitable[Manifest]], once: Callable[[Manifest], Awaitable[Scrubbed]]
) -> Scrubbed:
    """Scrub until no problem can be due to a collection that went past meanwhile.

    What is told of two manifests is no collection's doing: the second no longer names what one has
    erased. Where collections are quicker five times over, all that was found is told.
    """
    manifest, before = await load(), set[Problem]()
    found = await once(manifest)
    for _ in range(RUNS_MAX - 1):
        problems = set(found.problems)
        if problems <= before:
            break
        newer = await load()
        if newer.oldest <= manifest.oldest:
            break
        manifest, before = newer, problems
        found = await once(manifest)
    return found


@dataclass(slots=True)
class TreeScrub:
    """One scrub, as it goes.

    ``check`` gives what is wrong with a fragment's bytes, and how many records it has.
    """

    reader: TreeReader
    found: Scrubbed
    check: Check
    within: ScrubRange = field(default_factory=ScrubRange)
    named: set[str] = field(default_factory=lambda: {MANIFEST, GARBAGE})
    limits: dict[str, int] = field(default_factory=dict)  # By the fragments' paths, in the range.
    slots: dict[str, int] = field(default_factory=dict)  # By the same: their numbers.
    reached: int = 0  # What lies before this was checked.
    lost: set[str] = field(default_factory=set)  # Snapshots that are missing, and were told.
    visited: set[str] = field(default_factory=set)  # Snapshots, on the way down.
    told: set[Problem] = field(default_factory=set)

    async def tree(self, manifest: Manifest) -> None:
        """Check a manifest, and all of the range that it reaches.

        Raises:
            PositionCollected: the range starts before what is left.
        """
        is_all = self.within.is_all
        while True:
            self.visited.clear()
            self._refuse_collected(manifest)
            for why in problems_of_manifest(manifest):
                self.tell(MANIFEST, why)
            gone = manifest.acc_bytes - sum(child.num_bytes for child in manifest.children)
            try:
                await self.children(manifest.children, Before(manifest.collected, gone))
                break
            except _Missing as missing:
                newer = await self.reader.manifest(checked=False)
                if newer.oldest > manifest.oldest:
                    # A collection went past, and what was checked may be gone since.
                    manifest, is_all = newer, False
                else:
                    self.tell(missing.pointer.path, "it is not there")
                    self.lost.add(missing.pointer.path)
                self.reached = missing.pointer.start
        await self.settle()
        reached = self.found.setsum + manifest.collected
        if is_all and not self.found.problems and reached != manifest.setsum:
            self.tell(MANIFEST, "its setsum is not that of what it reaches")

    async def forgive(self, manifest: Manifest) -> None:
        """Drop the problems of fragments that were collected since ``manifest`` was read.

        Raises:
            PositionCollected: the range starts before what is left by now.
        """
        if not self.found.problems:
            return
        newer = await self.reader.manifest(checked=False)
        if newer.oldest <= manifest.oldest or problems_of_manifest(newer):
            return
        self._refuse_collected(newer)
        gone = {path for path, limit in self.limits.items() if limit <= newer.oldest}
        self.found.problems = [one for one in self.found.problems if one.path not in gone]
        # A pin may hold them, and is to tell so.
        self.named -= gone

    def _refuse_collected(self, manifest: Manifest) -> None:
        if 0 < self.within.start < manifest.oldest:
            raise collected(self.within.start, manifest.oldest)

    async def children(self, children: list[Pointer | Fragment], before: Before) -> None:
        """Check what a manifest or a snapshot names, after what the log held ``before``."""
        leaves = []
        for child in children:
            if self.within.holds(child.start, child.limit) and child.limit > self.reached:
                if isinstance(child, Pointer):
                    await self.snapshot(child, before)
                else:
                    self.limits[child.path] = child.limit
                    self.slots[child.path] = child.seq_no
                    leaves.append(partial(self.fragment, child, before))
            before = Before(before.setsum + child.setsum, before.bytes + child.num_bytes)
        await run_all(leaves, at_once=self.reader.reads)

    async def snapshot(self, pointer: Pointer, before: Before) -> None:
        """Check a snapshot, and what it names."""
        if pointer.path in self.lost:
            return
        if pointer.path in self.visited:
            # Where each names the next one twice, the ways down soon are too many to be gone.
            self.tell(pointer.path, "it is named twice")
            return
        self.visited.add(pointer.path)
        try:
            snapshot = await self._snapshot(pointer)
        except CorruptionError as error:
            self.tell(pointer.path, str(error))
            return
        problems = problems_of_snapshot(snapshot, pointer)
        for why in problems:
            self.tell(pointer.path, why)
        # Whatever lies there, each step goes down: one that leads to itself must not go round.
        depth = min(snapshot.depth, pointer.depth)
        deep = [child for child in snapshot.snapshots if child.depth < depth]
        await self.children([*deep, *snapshot.fragments], before)

    async def _snapshot(self, pointer: Pointer) -> Snapshot:
        async def once() -> Snapshot:
            found = await self.reader.store.get(pointer.path)
            self.found.snapshots += pointer.path not in self.named
            self.named.add(pointer.path)
            return decode_snapshot(found.data, where=pointer.path)

        try:
            return await read_again(once)
        except ObjectNotFound as error:
            raise _Missing(pointer) from error

    async def fragment(self, fragment: Fragment, before: Before) -> None:
        """Check a fragment."""
        self.named.add(fragment.path)
        try:
            data = (await self.reader.store.get(fragment.path)).data
        except ObjectNotFound:
            self.tell(fragment.path, "it is not there")
        except CorruptionError as error:
            self.tell(fragment.path, str(error))
        else:
            await self.bytes_of(fragment, data, before)

    async def settle(self) -> None:
        """Wait for what is checked elsewhere; here nothing is."""

    async def bytes_of(self, fragment: Fragment, data: bytes, before: Before) -> None:
        """Check a fragment's bytes; where they are damaged, those that a second read gives."""
        self.found.fragments += 1
        self.found.bytes_read += len(data)
        problems, records = await self._checked(data, fragment, before)
        if problems:
            with suppress(ObjectNotFound):
                again = (await self.reader.store.get(fragment.path)).data
                if again != data:
                    problems, records = await self._checked(again, fragment, before)
        for why in problems:
            self.tell(fragment.path, why)
        if not problems:
            self.found.records += records
            self.found.setsum = self.found.setsum + fragment.setsum

    async def _checked(
        self, data: bytes, fragment: Fragment, before: Before
    ) -> tuple[list[str], int]:
        try:
            return await self.reader.clock.offload(partial(self.check, data, fragment, before))
        except CorruptionError as error:
            return [str(error)], 0

    async def others(self) -> None:
        """Check cursors and garbage, and tell of objects that the log does not name.

        Of a range nothing: what it does not name is named by the rest.
        """
        if not self.within.is_all:
            return
        await self._decoded(GARBAGE, decode_garbage)
        async for entry in self.reader.store.list(""):
            if entry.key.startswith(CURSORS) and cursor_name(entry.key) is not None:
                await self._decoded(entry.key, partial(decode_cursor, where=entry.key))
            elif entry.key not in self.named:
                self.found.unnamed.append(entry.key)

    async def _decoded(self, path: str, decode: Callable[[bytes], object]) -> None:
        """Check that an object can be decoded; one that is missing is fine."""
        try:
            with suppress(ObjectNotFound):
                await read_decoded(self.reader.store, path, lambda read: decode(read.data))
        except CorruptionError as error:
            self.tell(path, str(error))

    def tell(self, path: str, why: str) -> None:
        """Report a problem."""
        problem = Problem(path, why)
        if problem not in self.told:
            self.told.add(problem)
            self.found.problems.append(problem)


class _Missing(Exception):
    """A snapshot is not there."""

    def __init__(self, pointer: Pointer) -> None:
        super().__init__(pointer.path)
        self.pointer = pointer


StartScrub: TypeAlias = Callable[[TreeReader, Scrubbed, Check, ScrubRange], TreeScrub]


def problems_and_records(data: bytes, fragment: Fragment, _: Before) -> tuple[list[str], int]:
    """Return what is wrong with the bytes of a fragment of wal3's, and how many records it has.

    Raises:
        CorruptionError: it cannot be read.
    """
    records = decode_fragment(data, path=fragment.path)
    return problems_of_fragment(records, len(data), fragment), records.num_rows
