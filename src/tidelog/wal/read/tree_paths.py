"""A walk of a log's tree that collects the paths of all objects below a manifest.

Source: wal3, "Data Structures"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidelog.core.clock import run_all
from tidelog.errors import ObjectNotFound
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.snapshot import Pointer
from tidelog.wal.read.head import TreeReader, load_past


async def paths_named(reader: TreeReader) -> tuple[Manifest, set[str]]:
    """Return the manifest, and the paths of all snapshots and fragments below it.

    This reads every snapshot, with one request each, and checks it against its pointer.

    Raises:
        CorruptionError: a snapshot is missing or changed.
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
