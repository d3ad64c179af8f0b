"""Scrubbing a wal3 log: everything is read, and everything wrong is reported, not the first alone.

What is checked: the manifest's and each snapshot's sums, bounds, depths and names; each fragment's
size, positions, time and records; cursors. Objects that the log does not name are told, and are no
fault: a crash leaves such, and so does a collection under way.
Source: wal3, "Scrub"; docs/wal3.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from tidelog.clock import run_all
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.setsum import Setsum
from tidelog.wal.cursor import CURSORS, cursor_name, decode_cursor
from tidelog.wal.fragment import decode_fragment, problems_of_fragment
from tidelog.wal.garbage import GARBAGE, decode_garbage
from tidelog.wal.manifest import (
    MANIFEST,
    Fragment,
    Manifest,
    Pointer,
    decode_snapshot,
    problems_of_manifest,
    problems_of_snapshot,
)
from tidelog.wal.reader import Wal3Reader

Check: TypeAlias = Callable[[bytes, Fragment], tuple[list[str], int]]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with one object of a log."""

    path: str
    why: str


@dataclass(slots=True)
class Scrubbed:
    """What a scrub found.

    Shape: ``setsum`` is that of all records that were found whole; ``unnamed`` are the keys of
        objects that the log does not name.
    """

    problems: list[Problem] = field(default_factory=list)
    setsum: Setsum = field(default_factory=Setsum.zero)
    records: int = 0
    bytes_read: int = 0
    fragments: int = 0
    snapshots: int = 0
    unnamed: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Give plain values."""
        return {
            "problems": [{"path": p.path, "why": p.why} for p in self.problems],
            "setsum": self.setsum.hex(),
            "records": self.records,
            "bytes_read": self.bytes_read,
            "fragments": self.fragments,
            "snapshots": self.snapshots,
            "unnamed": self.unnamed,
        }


async def scrub(reader: Wal3Reader, *, run_by: StartScrub | None = None) -> Scrubbed:
    """Read a whole log and check all of it; ``run_by`` is `TreeScrub`, or what does as that does.

    Raises:
        NoSuchLog: there is none. CorruptionError: its manifest cannot be read, so that nothing
            says what there should be. LocationError: the store failed.
    """
    manifest = await reader.manifest()
    found = Scrubbed()
    run = (run_by or TreeScrub)(reader, found, problems_and_records)
    await run.tree(manifest)
    await run.others()
    return found


@dataclass(slots=True)
class TreeScrub:
    """One scrub, as it goes.

    ``check`` gives what is wrong with a fragment's bytes, and how many records it has.
    """

    reader: Wal3Reader
    found: Scrubbed
    check: Check
    named: set[str] = field(default_factory=lambda: {MANIFEST, GARBAGE})

    async def tree(self, manifest: Manifest) -> None:
        """Check a manifest, and all that it reaches."""
        self.found.problems += [Problem(MANIFEST, why) for why in problems_of_manifest(manifest)]
        await self.children(manifest.children)
        await self.settle()
        reached = self.found.setsum + manifest.collected
        if not self.found.problems and reached != manifest.setsum:
            self.tell(MANIFEST, "its setsum is not that of what it reaches")

    async def children(self, children: list[Pointer | Fragment]) -> None:
        """Check what a manifest or a snapshot names."""
        for child in children:
            if isinstance(child, Pointer):
                await self.snapshot(child)
        leaves = [child for child in children if isinstance(child, Fragment)]
        work = [partial(self.fragment, leaf) for leaf in leaves]
        await run_all(work, at_once=self.reader.reads)

    async def snapshot(self, pointer: Pointer) -> None:
        """Check a snapshot, and what it names."""
        self.named.add(pointer.path)
        data = await self._get(pointer.path)
        if data is None:
            return
        self.found.snapshots += 1
        try:
            snapshot = decode_snapshot(data, where=pointer.path)
        except CorruptionError as error:
            self.tell(pointer.path, str(error))
            return
        problems = problems_of_snapshot(snapshot, pointer)
        for why in problems:
            self.tell(pointer.path, why)
        deep = [child for child in snapshot.snapshots if child.depth < snapshot.depth]
        await self.children([*deep, *snapshot.fragments])

    async def fragment(self, fragment: Fragment) -> None:
        """Check a fragment."""
        self.named.add(fragment.path)
        data = await self._get(fragment.path)
        if data is None:
            return
        await self.bytes_of(fragment, data)

    async def settle(self) -> None:
        """Wait for what is checked elsewhere; here nothing is."""

    async def bytes_of(self, fragment: Fragment, data: bytes) -> None:
        """Check a fragment's bytes."""
        self.found.fragments += 1
        self.found.bytes_read += len(data)
        try:
            problems, records = await self.reader.clock.offload(partial(self.check, data, fragment))
        except CorruptionError as error:
            self.tell(fragment.path, str(error))
            return
        for why in problems:
            self.tell(fragment.path, why)
        if not problems:
            self.found.records += records
            self.found.setsum = self.found.setsum + fragment.setsum

    async def others(self) -> None:
        """Check cursors and garbage, and tell of objects that the log does not name."""
        if (data := await self._get(GARBAGE, missing_is_fine=True)) is not None:
            try:
                decode_garbage(data)
            except CorruptionError as error:
                self.tell(GARBAGE, str(error))
        async for entry in self.reader.store.list(""):
            if entry.key.startswith(CURSORS) and cursor_name(entry.key) is not None:
                await self._cursor(entry.key)
            elif entry.key not in self.named:
                self.found.unnamed.append(entry.key)

    async def _cursor(self, key: str) -> None:
        data = await self._get(key, missing_is_fine=True)
        try:
            if data is not None:
                decode_cursor(data, where=key)
        except CorruptionError as error:
            self.tell(key, str(error))

    async def _get(self, path: str, *, missing_is_fine: bool = False) -> bytes | None:
        try:
            return (await self.reader.store.get(path)).data
        except ObjectNotFound:
            if not missing_is_fine:
                self.tell(path, "it is not there")
            return None

    def tell(self, path: str, why: str) -> None:
        """Report a problem."""
        self.found.problems.append(Problem(path, why))


StartScrub: TypeAlias = Callable[[Wal3Reader, Scrubbed, Check], TreeScrub]


def problems_and_records(data: bytes, fragment: Fragment) -> tuple[list[str], int]:
    """Give what is wrong with the bytes of a fragment of wal3's, and how many records it has.

    Raises:
        CorruptionError: it cannot be read.
    """
    records = decode_fragment(data, path=fragment.path)
    return problems_of_fragment(records, len(data), fragment), records.num_rows
