"""The outline of a log: its manifest's tree, its epochs, and what holds its records.

Source: wal3, "Data Structures"; docs/log.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from tidelog.clock import Clock, run_all
from tidelog.store.port import Store
from tidelog.wal.format.epoch import Chain
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.snapshot import Pointer
from tidelog.wal.read.head import load_head
from tidelog.wal.read.tree_reader import Wal3Reader, tree_reader


async def outline_log(store: Store, clock: Clock, *, deep: bool = False) -> dict[str, Any]:
    """Return the outline of the log at the root of a store, as plain values.

    Shape: ``tree`` has snapshots and runs of fragments, oldest first, each with ``start``,
        ``limit`` and ``bytes``; snapshots have ``depth``, and ``children`` if ``deep`` is True:
        then every snapshot is read. ``epochs`` and ``origin`` are those of a slot log.

    Raises:
        NoSuchLog: there is none. CorruptionError: it cannot be read. ObjectNotFound: a snapshot is
        gone, maybe collected just now.
    """
    manifest = (await load_head(store)).manifest
    reader = tree_reader(store, clock) if deep else None
    found: dict[str, Any] = {"tree": await _tree(manifest.children, reader)}
    if manifest.chain is not None:
        origin = manifest.chain.origin
        found["epochs"] = list(_epochs(manifest.chain))
        found["origin"] = None if origin is None else {"log": origin.log, "pin": origin.pin}
    return found


async def _tree(
    children: Sequence[Pointer | Fragment], reader: Wal3Reader | None
) -> list[dict[str, Any]]:
    below: dict[Pointer, list[dict[str, Any]]] = {}
    pointers = [child for child in children if isinstance(child, Pointer)]
    if reader is not None and pointers:
        read = await run_all([partial(reader.snapshot, p) for p in pointers], at_once=reader.reads)
        for pointer, snapshot in zip(pointers, read, strict=True):
            below[pointer] = await _tree(snapshot.children, reader)
    found: list[dict[str, Any]] = []
    for is_pointer, run in groupby(children, key=lambda child: isinstance(child, Pointer)):
        if is_pointer:
            found += [_node(child, below.get(child)) for child in run if isinstance(child, Pointer)]
        else:
            found.append(_run(list(run)))
    return found


def _node(pointer: Pointer, below: list[dict[str, Any]] | None) -> dict[str, Any]:
    node: dict[str, Any] = {
        "kind": "snapshot",
        "depth": pointer.depth,
        "start": pointer.start,
        "limit": pointer.limit,
        "bytes": pointer.num_bytes,
    }
    return node if below is None else {**node, "children": below}


def _run(fragments: Sequence[Pointer | Fragment]) -> dict[str, Any]:
    return {
        "kind": "fragments",
        "count": len(fragments),
        "start": fragments[0].start,
        "limit": fragments[-1].limit,
        "bytes": sum(fragment.num_bytes for fragment in fragments),
    }


def _epochs(chain: Chain) -> Iterator[dict[str, Any]]:
    for epoch in chain.epochs:
        yield {
            "number": epoch.number,
            "first_slot": epoch.first_slot,
            "opener": epoch.opener,
            "lanes": epoch.lanes,
            "alpha": epoch.alpha,
            "log": epoch.log or None,
        }
