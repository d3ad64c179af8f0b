"""Descriptions of a log: its bounds, its manifest's tree, its epochs.

Source: wal3, "Data Structures"; docs/concepts/logs.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from tidelog.core.clock import Clock, run_all
from tidelog.store.port import Store
from tidelog.wal.format.epoch_chain import Origin, Seal
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.link import Epoch
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.snapshot import Pointer
from tidelog.wal.read.bounds import Bounds
from tidelog.wal.read.head import TreeReader, load_head


@dataclass(frozen=True, slots=True, kw_only=True)
class LogInfo:
    """The current state of a log.

    Units:
        bytes: bytes of all fragments, also of collected ones, up to the manifest.
        rolled_up: position up to which the manifest lists fragments.
    """

    name: str
    protocol: str
    oldest: int
    next: int
    bytes: int
    rolled_up: int
    fragments: int
    snapshots: tuple[Pointer, ...]
    setsum: str
    epoch: Epoch | None
    seal: Seal | None

    @property
    def records(self) -> int:
        return self.next - self.oldest

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; the epoch and the seal only for slot logs."""
        found: dict[str, Any] = {
            "name": self.name,
            "protocol": self.protocol,
            "oldest": self.oldest,
            "next": self.next,
            "records": self.records,
            "bytes": self.bytes,
            "manifest": {
                "next": self.rolled_up,
                "fragments": self.fragments,
                "snapshots": [
                    {"depth": p.depth, "start": p.start, "limit": p.limit} for p in self.snapshots
                ],
                "setsum": self.setsum,
            },
        }
        if (epoch := self.epoch) is not None:
            found["epoch"] = {
                "number": epoch.number,
                "opener": epoch.opener,
                "lanes": epoch.lanes,
                "alpha": epoch.alpha,
            }
            found["sealed"] = self.seal is not None
            found["successor"] = (self.seal.successor or None) if self.seal else None
        return found


def describe_log(name: str, protocol: str, bounds: Bounds, manifest: Manifest) -> LogInfo:
    """Return the description of a log from its bounds and its manifest."""
    chain = manifest.chain
    return LogInfo(
        name=name,
        protocol=protocol,
        oldest=bounds.oldest,
        next=bounds.next,
        bytes=manifest.acc_bytes,
        rolled_up=manifest.next,
        fragments=len(manifest.fragments),
        snapshots=tuple(manifest.snapshots),
        setsum=manifest.setsum.hex(),
        epoch=None if chain is None else chain.last,
        seal=bounds.seal,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotNode:
    """A snapshot in a log's tree; ``children`` is None if it was not read."""

    depth: int
    start: int
    limit: int
    bytes: int
    children: tuple[TreeNode, ...] | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        found: dict[str, Any] = {
            "kind": "snapshot",
            "depth": self.depth,
            "start": self.start,
            "limit": self.limit,
            "bytes": self.bytes,
        }
        if self.children is not None:
            found["children"] = [child.to_dict() for child in self.children]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentsNode:
    """Consecutive fragments in a log's tree."""

    count: int
    start: int
    limit: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "kind": "fragments",
            "count": self.count,
            "start": self.start,
            "limit": self.limit,
            "bytes": self.bytes,
        }


TreeNode = SnapshotNode | FragmentsNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A log's tree, oldest first; for a slot log also its epochs, and the origin of a fork."""

    tree: tuple[TreeNode, ...]
    epochs: tuple[Epoch, ...]
    origin: Origin | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; the epochs only for slot logs."""
        found: dict[str, Any] = {"tree": [node.to_dict() for node in self.tree]}
        if self.epochs:
            origin = self.origin
            found["epochs"] = [_epoch_fields(epoch) for epoch in self.epochs]
            found["origin"] = None if origin is None else {"log": origin.log, "pin": origin.pin}
        return found


def _epoch_fields(epoch: Epoch) -> dict[str, Any]:
    return {
        "number": epoch.number,
        "first_slot": epoch.first_slot,
        "opener": epoch.opener,
        "lanes": epoch.lanes,
        "alpha": epoch.alpha,
        "log": epoch.log or None,
    }


async def outline_log(store: Store, clock: Clock, *, deep: bool = False) -> Outline:
    """Read the outline of the log at the root of a store; ``deep`` reads every snapshot.

    Raises:
        NoSuchLog: the log does not exist.
        CorruptionError: the log cannot be read.
        ObjectNotFound: a snapshot is missing, maybe collected concurrently.
    """
    manifest = (await load_head(store)).manifest
    reader = TreeReader(store=store, clock=clock) if deep else None
    chain = manifest.chain
    return Outline(
        tree=await _tree(manifest.children, reader),
        epochs=() if chain is None else tuple(chain.epochs),
        origin=None if chain is None else chain.origin,
    )


async def _tree(
    children: Sequence[Pointer | Fragment], reader: TreeReader | None
) -> tuple[TreeNode, ...]:
    below: dict[Pointer, tuple[TreeNode, ...]] = {}
    pointers = [child for child in children if isinstance(child, Pointer)]
    if reader is not None and pointers:
        read = await run_all([partial(reader.snapshot, p) for p in pointers], at_once=reader.reads)
        for pointer, snapshot in zip(pointers, read, strict=True):
            below[pointer] = await _tree(snapshot.children, reader)
    found: list[TreeNode] = []
    for is_pointer, run in groupby(children, key=lambda child: isinstance(child, Pointer)):
        if is_pointer:
            found += [_node(child, below.get(child)) for child in run if isinstance(child, Pointer)]
        else:
            found.append(_run(list(run)))
    return tuple(found)


def _node(pointer: Pointer, below: tuple[TreeNode, ...] | None) -> SnapshotNode:
    return SnapshotNode(
        depth=pointer.depth,
        start=pointer.start,
        limit=pointer.limit,
        bytes=pointer.num_bytes,
        children=below,
    )


def _run(fragments: Sequence[Pointer | Fragment]) -> FragmentsNode:
    return FragmentsNode(
        count=len(fragments),
        start=fragments[0].start,
        limit=fragments[-1].limit,
        bytes=sum(fragment.num_bytes for fragment in fragments),
    )
