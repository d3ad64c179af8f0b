"""A model of Chroma's collection plans: several of its passes reach the result of one of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from kit.goldens import objects
from kit.wal3_trees import Tree, golden_tree
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.gc_plan import GARBAGE, Garbage, encode_garbage
from tidelog.wal.format.manifest import Manifest
from tidelog.wal.format.manifest_update import pointer_to, snapshot_over
from tidelog.wal.format.snapshot import Pointer, Snapshot, sum_of
from tidelog.wal.gc.cut import COLLECTOR
from tidelog.wal.gc.plan import apply_garbage


@dataclass
class Pass:
    """One pass of Chroma's collector: a dropped child moves the cutoff back to its end."""

    stored: dict[str, Snapshot]
    cutoff: int
    erased: list[Fragment] = field(default_factory=list)
    dropped: list[Pointer] = field(default_factory=list)
    made: list[Snapshot] = field(default_factory=list)

    def plan(self, manifest: Manifest) -> Garbage | None:
        below, astride = self.sorted(manifest.snapshots)[:2]
        fragments = [f for f in manifest.fragments if f.limit <= self.cutoff]
        self.drop([*below, *fragments])
        root = self.cut(astride[0]) if astride else None
        if not self.erased:
            return None
        return Garbage(
            snapshots_to_drop=tuple(self.dropped),
            snapshots_to_make=tuple(self.made),
            root=root,
            fragments_start=self.erased[0].seq_no,
            fragments_limit=self.erased[-1].seq_no + 1,
            discarded=sum_of(self.erased),
            first_to_keep=self.cutoff,
        )

    def sorted(self, pointers: Sequence[Pointer]) -> tuple[list[Pointer], ...]:
        """Return the pointers below the cutoff, across it, and above it."""
        k = self.cutoff
        below = [p for p in pointers if p.limit <= k]
        return (
            below,
            [p for p in pointers if p.start <= k < p.limit],
            [p for p in pointers if k < p.start],
        )

    def drop(self, children: Sequence[Pointer | Fragment]) -> None:
        for child in children:
            if isinstance(child, Fragment):
                self.erased.append(child)
                self.cutoff = child.limit
            else:
                self.drop(self.stored[child.path].children)
                self.dropped.append(child)

    def cut(self, pointer: Pointer) -> Pointer:
        snapshot = self.stored[pointer.path]
        below, astride, above = self.sorted(snapshot.snapshots)
        gone = [f for f in snapshot.fragments if f.limit <= self.cutoff]
        stay = [f for f in snapshot.fragments if f.limit > self.cutoff]
        self.drop(below)
        halved = [self.cut(child) for child in astride]
        made = snapshot_over([*halved, *above, *stay], writer=COLLECTOR)
        result = pointer_to(made)
        if result != pointer:
            self.dropped.append(pointer)
            self.made.append(made)
        self.drop(gone)
        return result


def passes(tree: Tree, cutoff: int) -> int:
    """Collect as Chroma would until nothing is left to collect. Return the number of passes."""
    count = 0
    while plan := Pass(tree.stored, cutoff).plan(tree.manifest):
        for snapshot in plan.snapshots_to_make:
            tree.stored.setdefault(snapshot.path, snapshot)  # An existing one stays.
        tree.manifest = apply_garbage(tree.manifest, plan)
        count += 1
    return count


def test_the_model_plans_as_chroma_did() -> None:
    """The model's first pass over the golden log plans the bytes that Chroma planned."""
    tree = golden_tree("c0_before_gc")
    plan = Pass(tree.stored, 55).plan(tree.manifest)

    assert plan is not None
    assert encode_garbage(plan) == objects("c1_gc_phase1")[GARBAGE]


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=50),
    fragments=st.integers(2, 4),
    snapshots=st.integers(2, 4),
    cutoff=st.integers(1, 200),
)
def test_one_pass_leads_where_chromas_lead(
    sizes: list[int], fragments: int, snapshots: int, cutoff: int
) -> None:
    """One pass leaves Chroma's manifest, except the stated depth of a snapshot with one child."""
    ours = Tree(fragments=fragments, snapshots=snapshots).append(sizes)
    theirs = Tree(fragments=fragments, snapshots=snapshots).append(sizes)
    cutoff = min(cutoff, ours.manifest.next)
    plan = ours.plan(cutoff)
    if not plan.is_empty:
        ours.carry_out(plan)
    passes(theirs, cutoff)

    assert _flat(ours.manifest) == _flat(theirs.manifest)
    assert ours.fragments() == theirs.fragments()
    assert Pass(ours.stored, cutoff).plan(ours.manifest) is None, "Chroma finds nothing more to do"


def test_chroma_needs_a_pass_for_each_level() -> None:
    """Chroma's collector needs a pass for each level of the tree."""
    tree = Tree(fragments=2, snapshots=2).append([1] * 40)

    assert passes(tree, 28) > 2


def _flat(manifest: Manifest) -> Manifest:
    return replace(
        manifest, snapshots=tuple(replace(pointer, depth=0) for pointer in manifest.snapshots)
    )
