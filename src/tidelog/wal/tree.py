"""Walking the tree of a wal3 log: every object that a manifest names, at whatever depth.

Source: wal3, "Data Structures"; docs/wal3.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tidelog.clock import run_all
from tidelog.errors import CorruptionError, ObjectNotFound
from tidelog.wal.manifest import Manifest
from tidelog.wal.reader import Wal3Reader
from tidelog.wal.snapshot import Fragment, Pointer


async def paths_named(reader: Wal3Reader) -> tuple[Manifest, set[str]]:
    """Give the manifest, and the paths of all snapshots and fragments that it names.

    Every snapshot is read: one request for each, and each must be what its parent says.

    Raises:
        CorruptionError: one is missing, or is not what was written.
    """
    manifest = await reader.manifest()
    while True:
        try:
            return manifest, await _named(reader, manifest.children)
        except ObjectNotFound as error:
            newer = await reader.manifest()
            if newer == manifest:
                raise CorruptionError(
                    f"the log names a snapshot that is not there: restore it ({error})"
                ) from error
            manifest = newer  # A collection went past.


async def _named(reader: Wal3Reader, children: Sequence[Pointer | Fragment]) -> set[str]:
    named: set[str] = set()
    while children:
        named.update(child.path for child in children)
        pointers = [child for child in children if isinstance(child, Pointer)]
        work = [partial(reader.snapshot, pointer) for pointer in pointers]
        read = await run_all(work, at_once=reader.reads) if work else []
        children = [child for snapshot in read for child in snapshot.children]
    return named
