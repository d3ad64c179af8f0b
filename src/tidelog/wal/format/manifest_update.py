"""Changes of a manifest: add a fragment, or roll over when it is too long. Pure.

Invariants: an append adds exactly the fragment's setsum and positions; a rollover changes neither.
The newest fragment stays in the manifest itself, because the next number follows from it.
Source: wal3, "Write Path" and "Snapshots"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidelog.core.arguments import check_whole
from tidelog.errors import CorruptionError, UsageError, require
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.manifest import Manifest, problems_of_manifest
from tidelog.wal.format.snapshot import (
    DEPTH_MAX,
    Pointer,
    Snapshot,
    last_us_of,
    snapshot_path,
    sum_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollover:
    """How many fragments make a snapshot, and how many snapshots of one depth make a deeper one.

    Both are at least 2: an append rolls over once at most, and with 1 the manifest would grow
    anyway.
    """

    fragments: int = 64
    snapshots: int = 64

    def __post_init__(self) -> None:
        for name in ("fragments", "snapshots"):
            check_whole(getattr(self, name), f"the rollover of {name}")
        if min(self.fragments, self.snapshots) < 2:
            raise UsageError(
                "rollover.fragments and rollover.snapshots must be at least 2",
                fragments=self.fragments,
                snapshots=self.snapshots,
            )


def add_fragment(manifest: Manifest, fragment: Fragment, *, writer: str) -> Manifest:
    """Return the manifest with its next fragment.

    Raises:
        CorruptionError: the fragment has another number or another start than the next one.
    """
    if (fragment.seq_no, fragment.start) != (manifest.next_seq_no, manifest.next):
        raise CorruptionError(
            "the fragment does not continue the log at its next position: scrub the log, and "
            "restore the objects that the scrub names",
            path=fragment.path,
            start=fragment.start,
            expected=manifest.next,
        )
    return replace(
        manifest,
        setsum=manifest.setsum + fragment.setsum,
        acc_bytes=manifest.acc_bytes + fragment.num_bytes,
        writer=writer,
        fragments=(*manifest.fragments, fragment),
    )


def roll_over(
    manifest: Manifest, rollover: Rollover, *, writer: str, maker: str = ""
) -> tuple[Manifest, Snapshot | None]:
    """Return the manifest with one new snapshot in place of its children, if one is due.

    The deepest run of snapshots that is long enough comes first, then fragments. The caller must
    store the snapshot before the manifest. For ``maker`` see `snapshot_path`.
    """
    children = _run_of_snapshots(manifest.snapshots, rollover.snapshots)
    if not children:
        children = _run_of_fragments(manifest.fragments, rollover.fragments)
    if not children:
        return manifest, None
    names_depth = manifest.chain is not None
    snapshot = snapshot_over(children, writer=writer, names_depth=names_depth, maker=maker)
    require(snapshot.depth <= DEPTH_MAX, "a snapshot is deeper than allowed")
    pointer = pointer_to(snapshot)
    gone = set(children)
    kept = [child for child in manifest.snapshots if child not in gone]
    before = [child for child in kept if child.start < pointer.start]
    rolled = replace(
        manifest,
        snapshots=(*before, pointer, *kept[len(before) :]),
        fragments=tuple(child for child in manifest.fragments if child not in gone),
    )
    check_manifest(rolled)
    return rolled, snapshot


def snapshot_over(
    children: Sequence[Pointer | Fragment],
    *,
    writer: str,
    names_depth: bool = False,
    maker: str = "",
) -> Snapshot:
    """Return the snapshot of ``children``; in slot logs its name contains its depth.

    For ``maker`` see `snapshot_path`.
    """
    pointers = tuple(child for child in children if isinstance(child, Pointer))
    setsum = sum_of(children)
    depth = max((pointer.depth for pointer in pointers), default=0) + 1
    return Snapshot(
        path=snapshot_path(setsum, depth if names_depth else None, maker),
        depth=depth,
        setsum=setsum,
        writer=writer,
        snapshots=pointers,
        fragments=tuple(child for child in children if isinstance(child, Fragment)),
    )


def pointer_to(snapshot: Snapshot) -> Pointer:
    """Return the pointer that names a snapshot in its parent."""
    children = snapshot.children
    return Pointer(
        setsum=snapshot.setsum,
        path=snapshot.path,
        depth=snapshot.depth,
        start=children[0].start,
        limit=children[-1].limit,
        num_bytes=sum(child.num_bytes for child in children),
        last_us=last_us_of(children),
    )


def check_manifest(manifest: Manifest) -> None:
    """Refuse a manifest that contradicts itself, before it is written.

    Raises:
        CorruptionError: the manifest contradicts itself.
    """
    if problems := problems_of_manifest(manifest):
        raise CorruptionError(
            f"the log's manifest contradicts itself ({'; '.join(problems)}): nothing was written"
        )


def _run_of_snapshots(pointers: Sequence[Pointer], count: int) -> list[Pointer | Fragment]:
    for depth in range(max((p.depth for p in pointers), default=0), 0, -1):
        run: list[Pointer | Fragment] = []
        for pointer in reversed(pointers):
            # A newer, shallower snapshot is not due yet. Within a run it would leave a gap.
            is_end = pointer.depth > depth or (run and pointer.depth < depth)
            if is_end or len(run) == count:
                break
            if pointer.depth == depth:
                run.insert(0, pointer)
        if len(run) < count:
            continue
        first = pointers[0]
        if first.depth < depth and first.limit == run[0].start:
            # A collection left this snapshot. Without this it would never join a deeper one.
            run.insert(0, first)
        return run
    return []


def _run_of_fragments(fragments: Sequence[Fragment], count: int) -> list[Pointer | Fragment]:
    return list(fragments[:count]) if len(fragments) > count else []
