"""Plans of collections: the objects that a plan erases, computed and applied without a store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.goldens import objects
from kit.wal3_trees import Tree, golden_tree
from tidelog.core.setsum import Setsum
from tidelog.errors import CorruptionError, ManifestMoved, VerificationError
from tidelog.wal.format.fragment import fragment_path
from tidelog.wal.format.gc_plan import GARBAGE, Garbage, decode_garbage, encode_garbage
from tidelog.wal.format.manifest import (
    MANIFEST,
    decode_manifest,
    encode_manifest,
    problems_of_manifest,
)
from tidelog.wal.format.manifest_update import check_manifest
from tidelog.wal.format.snapshot import sum_of
from tidelog.wal.gc.plan import (
    Keep,
    apply_garbage,
    check_share,
    cutoff_of,
    is_collected,
    paths_to_delete,
)

SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=60)


@given(
    sizes=SIZES,
    fragments=st.integers(2, 4),
    snapshots=st.integers(2, 4),
    cutoffs=st.lists(st.integers(0, 320), min_size=1, max_size=4),
    more=st.lists(st.integers(1, 5), max_size=12),
)
def test_any_tree_is_cut_at_any_place(
    sizes: list[int], fragments: int, snapshots: int, cutoffs: list[int], more: list[int]
) -> None:
    """One pass erases exactly the fragments below the cutoff. All sums hold, and appends go on."""
    tree = Tree(fragments=fragments, snapshots=snapshots).append(sizes)
    for cutoff in cutoffs:
        before, manifest = tree.fragments(), tree.manifest
        plan = tree.plan(min(cutoff, manifest.next))
        gone = [f for f in before if f.limit <= cutoff]
        if not gone:
            assert plan.is_empty
            continue
        numbers = range(plan.fragments_start, plan.fragments_limit)
        assert list(numbers) == [fragment.seq_no for fragment in gone]
        assert plan.discarded == sum_of(gone)
        assert decode_garbage(encode_garbage(plan)) == plan
        tree.carry_out(plan)
        after = tree.manifest

        assert tree.fragments() == before[len(gone) :]
        assert problems_of_manifest(after) == []
        assert (after.setsum, after.acc_bytes) == (manifest.setsum, manifest.acc_bytes)
        assert after.collected == manifest.collected + plan.discarded
        assert (after.next, after.next_seq_no) == (manifest.next, manifest.next_seq_no)
        assert (after.oldest, after.initial_seq_no) == (gone[-1].limit, gone[-1].seq_no + 1)
        assert not is_collected(manifest, plan)
        assert is_collected(after, plan)
        assert tree.snapshots_named() == set(tree.stored), "one was left, or is missing"
        tree.append(more)
        check_manifest(tree.manifest)
        assert tree.plan(min(cutoff, after.next)).is_empty, "one pass is enough"


def test_a_collection_is_chromas_to_the_byte() -> None:
    """The plan, and the manifest after it, equal the bytes that Chroma's own collector wrote."""
    tree = golden_tree("c0_before_gc")
    for cutoff in (37, 38, 40):
        plan = tree.plan(cutoff)

        assert encode_garbage(plan) == objects("c1_gc_phase1")[GARBAGE]
        after = apply_garbage(tree.manifest, plan)
        assert encode_manifest(after) == objects("c2_gc_phase2")[MANIFEST]
        assert encode_garbage(Garbage()) == objects("c_gc")[GARBAGE]


def test_one_pass_goes_where_chromas_needs_two() -> None:
    """One pass reaches the cutoff for which Chroma's collector needs two (cursors 55, 81)."""
    tree = golden_tree("c0_before_gc")
    tree.carry_out(tree.plan(55))

    assert tree.manifest.oldest == 53
    assert tree.manifest.snapshots[0].depth == 2
    assert [fragment.seq_no for fragment in tree.fragments()] == list(range(14, 26))


def test_a_log_that_is_collected_whole_looks_as_chromas_does() -> None:
    """The manifest of a fully collected log names no object, keeps `next`, equals Chroma's."""
    theirs = decode_manifest(objects("h_all_collected")[MANIFEST])
    tree = Tree(fragments=20).append([2] * 9)
    sizes = [1, *[1_000] * 7, theirs.acc_bytes - 7_001]
    fragments = [
        replace(fragment, num_bytes=size)
        for fragment, size in zip(tree.manifest.fragments, sizes, strict=True)
    ]
    fragments[0] = replace(fragments[0], setsum=theirs.setsum - sum_of(fragments[1:]))
    tree.manifest = replace(
        tree.manifest,
        setsum=theirs.setsum,
        acc_bytes=theirs.acc_bytes,
        writer=theirs.writer,
        fragments=tuple(fragments),
    )
    tree.carry_out(tree.plan(19))

    assert encode_manifest(tree.manifest) == objects("h_all_collected")[MANIFEST]


def test_a_snapshot_that_keeps_one_child_becomes_that_child() -> None:
    """A snapshot with one child is replaced by it: a new one would have its name, other bytes."""
    tree = Tree(fragments=2, snapshots=2).append([1] * 8)
    root = tree.manifest.snapshots[0]
    assert root.depth > 1
    child = tree.stored[root.path].snapshots[-1]

    plan = tree.plan(child.start)

    assert plan.root == child
    assert plan.snapshots_to_make == ()
    assert root in plan.snapshots_to_drop


def test_a_pointer_may_say_more_depth_than_its_snapshot_has() -> None:
    """Chroma's collector leaves pointers that state a greater depth than their snapshot has."""
    tree = Tree(fragments=2, snapshots=2).append([1] * 8)
    tree.carry_out(tree.plan(tree.stored[tree.manifest.snapshots[0].path].snapshots[-1].start))
    first, *others = tree.manifest.snapshots
    deep = replace(first, depth=first.depth + 1)
    tree.manifest = replace(tree.manifest, snapshots=(deep, *others))
    before = tree.fragments()
    cutoff = before[1].start

    tree.carry_out(tree.plan(cutoff))

    assert tree.fragments() == before[1:]
    assert tree.snapshots_named() == set(tree.stored)


def moved(plan: Garbage) -> list[Garbage]:
    """Return plans that are each wrong in one field."""
    return [
        replace(plan, discarded=plan.discarded + Setsum.of(b"x")),
        replace(plan, discarded=Setsum.zero()),
        replace(plan, first_to_keep=plan.first_to_keep + 1),
        replace(plan, first_to_keep=1),
        replace(plan, fragments_limit=plan.fragments_start),
        replace(plan, fragments_limit=plan.fragments_limit + 100),
        replace(plan, snapshots_to_drop=plan.snapshots_to_drop[:-1]),
        replace(plan, root=None),
    ]


def test_a_plan_of_another_manifest_is_not_applied() -> None:
    """A wrong field, a second application or a later rollover raises ManifestMoved."""
    tree = Tree().append([2] * 20)
    plan = tree.plan(21)
    assert apply_garbage(tree.manifest, plan).oldest == plan.first_to_keep == 21

    for wrong in moved(plan):
        with pytest.raises(ManifestMoved):
            apply_garbage(tree.manifest, wrong)
    with pytest.raises(ManifestMoved):
        apply_garbage(apply_garbage(tree.manifest, plan), plan)
    while tree.manifest.snapshots[0].start == 1 and tree.manifest.snapshots[0] in (
        plan.snapshots_to_drop
    ):
        tree.append([1])
    with pytest.raises(ManifestMoved):
        apply_garbage(tree.manifest, plan)


def test_a_plan_fits_a_log_that_was_appended_to() -> None:
    """A plan stays valid after an append. Otherwise a busy log would never be collected."""
    tree = Tree(fragments=4, snapshots=4).append([2] * 9)
    plan = tree.plan(9)
    tree.append([2])
    after = apply_garbage(tree.manifest, plan)

    assert (after.oldest, after.next) == (9, 21)


def test_a_log_that_does_not_add_up_is_not_collected() -> None:
    """A manifest with inconsistent sums or numbers is not collected. The loss would be unknown."""
    tree = Tree(fragments=20).append([2] * 6)
    first, second, *others = tree.manifest.fragments
    holed = replace(second, seq_no=9, path=fragment_path(9))
    for broken in (
        replace(tree.manifest, fragments=(first, holed, *others)),
        replace(tree.manifest, setsum=Setsum.of(b"x")),
        replace(tree.manifest, initial_seq_no=4),
    ):
        tree.manifest = broken
        with pytest.raises(CorruptionError, match="scrub the log"):
            tree.plan(9)


@pytest.mark.parametrize(
    ("positions", "keep", "cutoff"),
    [
        ([], Keep(), None),
        ([], Keep(start=4), None),
        ([7, 5, 9], Keep(), 5),
        ([7, 5, 9], Keep(start=3), 3),
        ([7, 5, 9], Keep(start=6), 5),
        ([99], Keep(), 13),
        ([99], Keep(records=4), 9),
        ([5], Keep(records=4), 5),
        ([5], Keep(records=99), -86),
    ],
)
def test_the_cutoff_is_the_lowest_position_that_all_limits_allow(
    positions: list[int], keep: Keep, cutoff: int | None
) -> None:
    """The cutoff is the minimum of cursors, start, newest records to keep, and the log's end."""
    tree = Tree().append([2] * 6)

    assert cutoff_of(tree.manifest, positions, keep) == cutoff


def test_more_than_a_share_is_erased_only_by_force() -> None:
    """A plan over the allowed share of bytes or fragments raises VerificationError."""
    tree = Tree(fragments=30).append([1] * 10)
    check_share(tree.manifest, tree.plan(10), Keep(share_max=0.9))
    with pytest.raises(VerificationError, match="100%"):
        check_share(tree.manifest, tree.plan(11), Keep(share_max=0.9))
    check_share(tree.manifest, tree.plan(11), Keep(share_max=1))

    lopsided = Tree(fragments=30).append([1_000, *[1] * 9])
    with pytest.raises(VerificationError):
        check_share(lopsided.manifest, lopsided.plan(1_001), Keep(share_max=0.4))
    check_share(lopsided.manifest, lopsided.plan(1_001), Keep(share_max=0.6))


def test_a_plan_erases_nothing_that_its_names_do_not_prove() -> None:
    """Only a snapshot whose own name and range prove it dead is deleted, whatever a plan says."""
    tree = Tree().append([2] * 20)
    plan = tree.plan(21)
    kept = plan.root or tree.manifest.snapshots[-1]
    strange = replace(plan.snapshots_to_drop[0], path=MANIFEST)
    twice = replace(plan, snapshots_to_drop=(*plan.snapshots_to_drop, strange, kept))

    assert paths_to_delete(twice) == paths_to_delete(plan)
    assert len(set(paths_to_delete(plan))) == len(paths_to_delete(plan))
