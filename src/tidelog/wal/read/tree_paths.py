"""Walking the tree of a wal3 log: every object that a manifest names, at whatever depth.

Source: wal3, "Data Structures"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidelog.clock import run_all
from tidelog.errors import ObjectNotFound
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.snapshot import Pointer
from tidelog.wal.read.head import load_past
from tidelog.wal.read.tree_reader import TreeReader


async def paths_named(reader: TreeReader) -> tuple[Manifest, set[str]]:
    """Return the manifest, and the paths of all snapshots and fragments that it names.

    Every snapshot is read: one request for each, and each must be what its parent says.

    Raises:
        CorruptionError: one is missing, or is not what was written.
    """
    manifest = await reader.manifest()
    while True:
        try:
            return manifest, await _named(reader, manifest.children)
        except ObjectNotFound as error:
            manifest = await load_past(reader.store, manifest, error)


async def _named(reader: TreeReader, children: Sequence[Pointer | Fragment]) -> set[str]:
    named: set[str] = set()
    while children:
        named.update(child.path for child in children)
        pointers = [child for child in children if isinstance(child, Pointer)]
        work = [partial(reader.snapshot, pointer) for pointer in pointers]
        read = await run_all(work, at_once=reader.reads)
        children = [child for snapshot in read for child in snapshot.children]
    return named
