"""Logs without records, for tests: a manifest, and all snapshots ever written."""

from __future__ import annotations

from collections.abc import Sequence

from kit.goldens import objects
from tidelog.core.setsum import Setsum
from tidelog.wal.format.fragment import Fragment, fragment_path
from tidelog.wal.format.gc_plan import Garbage
from tidelog.wal.format.manifest import MANIFEST, Manifest, decode_manifest
from tidelog.wal.format.manifest_update import Rollover, add_fragment, roll_over
from tidelog.wal.format.snapshot import Pointer, Snapshot, decode_snapshot, problems_of_snapshot
from tidelog.wal.gc.plan import apply_garbage, missing_for_plan, paths_to_delete, plan_collection


class Tree:
    """A log without records: a manifest, and all snapshots ever written."""

    def __init__(self, *, fragments: int = 3, snapshots: int = 2) -> None:
        self.rollover = Rollover(fragments=fragments, snapshots=snapshots)
        self.manifest = Manifest(writer="w")
        self.stored: dict[str, Snapshot] = {}

    def append(self, sizes: Sequence[int]) -> Tree:
        for size in sizes:
            number, start = self.manifest.next_seq_no, self.manifest.next
            fragment = Fragment(
                path=fragment_path(number),
                seq_no=number,
                start=start,
                limit=start + size,
                num_bytes=100 + size,
                setsum=Setsum.of(b"%d" % number),
            )
            added = add_fragment(self.manifest, fragment, writer="w")
            self.manifest, snapshot = roll_over(added, self.rollover, writer="w")
            if snapshot is not None:
                self.stored.setdefault(snapshot.path, snapshot)
        return self

    def plan(self, cutoff: int) -> Garbage:
        known: dict[str, Snapshot] = {}
        while missing := missing_for_plan(self.manifest, known, cutoff=cutoff):
            known |= {pointer.path: self.stored[pointer.path] for pointer in missing}
        return plan_collection(self.manifest, known, cutoff=cutoff)

    def carry_out(self, plan: Garbage) -> None:
        for snapshot in plan.snapshots_to_make:
            assert self.stored.setdefault(snapshot.path, snapshot).setsum == snapshot.setsum
        self.manifest = apply_garbage(self.manifest, plan)
        for path in paths_to_delete(plan):
            self.stored.pop(path, None)

    def fragments(self) -> list[Fragment]:
        """Return all fragments in order; check each snapshot against its pointer."""

        def below(child: Pointer | Fragment) -> list[Fragment]:
            if isinstance(child, Fragment):
                return [child]
            snapshot = self.stored[child.path]
            assert problems_of_snapshot(snapshot, child) == []
            return [leaf for each in snapshot.children for leaf in below(each)]

        return [leaf for child in self.manifest.children for leaf in below(child)]

    def snapshots_named(self) -> set[str]:
        named, level = set[str](), list(self.manifest.snapshots)
        while level:
            named |= {pointer.path for pointer in level}
            level = [below for p in level for below in self.stored[p.path].snapshots]
        return named


def golden_tree(name: str) -> Tree:
    """Return the tree of a log that Chroma wrote."""
    log, tree = objects(name), Tree()
    tree.manifest = decode_manifest(log[MANIFEST])
    tree.stored = {
        key: decode_snapshot(data, where=key)
        for key, data in log.items()
        if key.startswith("snapshot/")
    }
    return tree
