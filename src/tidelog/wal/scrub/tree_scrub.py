"""Scrub of a wal3 log or a range of it. It reports all faults, not only the first.

It checks the sums, bounds, depths and names of the manifest and the snapshots; the size, positions,
times and records of fragments; and the cursors. It lists objects that the log does not name, but
they are not faults: a crash leaves some, and so does a concurrent collection. For a range it checks
the manifest and the objects of the range, but not cursors, plan and other objects.

A concurrent collection deletes objects that the manifest named when it was read. If a snapshot is
missing, the scrub continues from a newer manifest. If it finds faults, it reads the manifest again,
and drops the faults of fragments that were collected since. If others remain, and the log's start
has moved, it scrubs again from the beginning.
Source: wal3, "Scrub"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from tidelog.core.clock import run_all
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
from tidelog.wal.read.head import TreeReader, collected, read_again, read_decoded
from tidelog.wal.scrub.report import Before, Problem, ScrubRange, ScrubReport

RUNS_MAX: Final = 5


Check: TypeAlias = Callable[[bytes, Fragment, Before], tuple[list[str], int]]


async def scrub(
    reader: Wal3Reader,
    start: int = 0,
    limit: int | None = None,
    *,
    run_by: StartScrub | None = None,
) -> ScrubReport:
    """Read a log, or its positions ``[start, limit)``, and check everything.

    ``run_by`` is `TreeScrub`, or a function that returns a subclass of it.

    Raises:
        UsageError: the range is empty.
        NoSuchLog: the log does not exist.
        PositionCollected: ``start`` was collected, before or during the scrub.
        CorruptionError: the manifest cannot be read, so the expected objects are unknown.
        LocationError: the store failed.
    """
    within = ScrubRange(start, limit)

    async def once(manifest: Manifest) -> ScrubReport:
        run = (run_by or TreeScrub)(reader.tree, ScrubReport(), problems_and_records, within)
        await run.tree(manifest)
        await run.forgive(manifest)
        await run.others()
        return run.found

    return await scrub_again(partial(reader.manifest, checked=False), once)


async def scrub_again(
    load: Callable[[], Awaitable[Manifest]], once: Callable[[Manifest], Awaitable[ScrubReport]]
) -> ScrubReport:
    """Scrub until no fault can be due to a concurrent collection.

    A fault found from two manifests is not due to a collection, because the second manifest does
    not name the objects that the first collection deleted. If collections keep intervening five
    times, all faults of the last run are reported.
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
    """One scrub in progress.

    ``check`` returns the faults of a fragment's bytes, and its number of records.
    """

    reader: TreeReader
    found: ScrubReport
    check: Check
    within: ScrubRange = field(default_factory=ScrubRange)
    named: set[str] = field(default_factory=lambda: {MANIFEST, GARBAGE})
    # The limits of the range's fragments, by path.
    limits: dict[str, int] = field(default_factory=dict)
    # The numbers of the same fragments, by path.
    slots: dict[str, int] = field(default_factory=dict)
    reached: int = 0  # Positions before this one are checked.
    lost: set[str] = field(default_factory=set)  # Missing snapshots that were reported.
    visited: set[str] = field(default_factory=set)  # Snapshots visited in this pass.
    told: set[Problem] = field(default_factory=set)

    async def tree(self, manifest: Manifest) -> None:
        """Check a manifest, and the part of its tree in the range.

        Raises:
            PositionCollected: the range starts before the oldest retained position.
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
            except _SnapshotMissing as missing:
                newer = await self.reader.manifest(checked=False)
                if newer.oldest > manifest.oldest:
                    # A collection went past, and may have deleted checked objects.
                    manifest, is_all = newer, False
                else:
                    self.tell(missing.pointer.path, "it is missing")
                    self.lost.add(missing.pointer.path)
                self.reached = missing.pointer.start
        await self.settle()
        reached = self.found.setsum + manifest.collected
        if is_all and not self.found.problems and reached != manifest.setsum:
            self.tell(MANIFEST, "its setsum is not the sum of its reachable and collected records")

    async def forgive(self, manifest: Manifest) -> None:
        """Drop the faults of fragments that were collected since ``manifest`` was read.

        Raises:
            PositionCollected: the range now starts before the oldest retained position.
        """
        if not self.found.problems:
            return
        newer = await self.reader.manifest(checked=False)
        if newer.oldest <= manifest.oldest or problems_of_manifest(newer):
            return
        self._refuse_collected(newer)
        gone = {path for path, limit in self.limits.items() if limit <= newer.oldest}
        self.found.problems = [one for one in self.found.problems if one.path not in gone]
        # A pin may hold them; the check of pins then reports their faults.
        self.named -= gone

    def _refuse_collected(self, manifest: Manifest) -> None:
        if 0 < self.within.start < manifest.oldest:
            raise collected(self.within.start, manifest.oldest)

    async def children(self, children: list[Pointer | Fragment], before: Before) -> None:
        """Check the children of a manifest or a snapshot, given the log's state before them."""
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
        """Check a snapshot and its children."""
        if pointer.path in self.lost:
            return
        if pointer.path in self.visited:
            # A forged tree whose snapshots each name the next one twice has exponentially many
            # paths.
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
        # Go only to less deep snapshots, so that a forged cycle ends.
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
            raise _SnapshotMissing(pointer) from error

    async def fragment(self, fragment: Fragment, before: Before) -> None:
        """Check a fragment."""
        self.named.add(fragment.path)
        try:
            data = (await self.reader.store.get(fragment.path)).data
        except ObjectNotFound:
            self.tell(fragment.path, "it is missing")
        except CorruptionError as error:
            self.tell(fragment.path, str(error))
        else:
            await self.bytes_of(fragment, data, before)

    async def settle(self) -> None:
        """Wait for checks in other processes; a subclass has some."""

    async def bytes_of(self, fragment: Fragment, data: bytes, before: Before) -> None:
        """Check a fragment's bytes; if they are damaged, read them once more."""
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
        """Check cursors and garbage, and list the objects that the log does not name.

        For a range this does nothing, because the rest of the log names other objects.
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
        """Check that an object can be decoded, if it exists."""
        try:
            with suppress(ObjectNotFound):
                await read_decoded(self.reader.store, path, lambda read: decode(read.data))
        except CorruptionError as error:
            self.tell(path, str(error))

    def tell(self, path: str, why: str) -> None:
        """Report a fault once."""
        problem = Problem(path, why)
        if problem not in self.told:
            self.told.add(problem)
            self.found.problems.append(problem)


class _SnapshotMissing(Exception):
    """A snapshot does not exist."""

    def __init__(self, pointer: Pointer) -> None:
        super().__init__(pointer.path)
        self.pointer = pointer


StartScrub: TypeAlias = Callable[[TreeReader, ScrubReport, Check, ScrubRange], TreeScrub]


def problems_and_records(data: bytes, fragment: Fragment, _: Before) -> tuple[list[str], int]:
    """Return the faults of a wal3 fragment's bytes, and its number of records.

    Raises:
        CorruptionError: the bytes cannot be decoded.
    """
    records = decode_fragment(data, path=fragment.path)
    return problems_of_fragment(records, len(data), fragment), records.num_rows
