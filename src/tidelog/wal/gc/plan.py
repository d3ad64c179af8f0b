"""The decisions of a collection: what a plan deletes, and the manifest after it. Pure.

A plan names the fragments that are entirely below a cutoff, the snapshots that name only such
fragments, and the snapshots that name some of them; these are written again without them. One plan
suffices for a tree of any depth. The effect of a plan is computed twice, when it is made and when
it is applied, and both must yield the same setsum. In a slot log the plan carries the streams open
at the first kept position. So these streams survive the records that opened them, whichever process
carries the plan out.

Invariants: fragments are deleted from the first one on, without a gap; records at or after the
cutoff stay; ``setsum == collected + sum`` holds before and after; the next position and number
stay.
Source: wal3, "Garbage Collection"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelog.core.arguments import check_above_zero, check_whole
from tidelog.errors import (
    CorruptionError,
    ManifestMoved,
    UsageError,
    VerificationError,
    require,
)
from tidelog.store.keys import BESIDE
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.fragment_sets import may_hold
from tidelog.wal.format.gc_plan import ERASED_MAX, Garbage
from tidelog.wal.format.manifest import Manifest, path_of, problems_of_manifest
from tidelog.wal.format.snapshot import Pointer, Snapshot, is_named_by_its_sum, sum_of
from tidelog.wal.format.streams import CONTROL, Controls, Streams, apply_controls
from tidelog.wal.gc.cut import TreeCut


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Records that stay even if the cursors allow their deletion.

    Units:
        start: a position, which stays with all later ones.
        records: number of the newest records, which stay.
        share_max: greatest share of a log's bytes, and of its fragments, that one collection
        deletes unless it is forced.
    """

    start: int | None = None
    records: int = 0
    share_max: float = 0.9

    def __post_init__(self) -> None:
        if self.start is not None:
            check_whole(self.start, "the first position to keep")
        check_whole(self.records, "the number of records to keep")
        check_above_zero(self.share_max, "share_max")
        if self.share_max > 1:
            raise UsageError(
                "share_max must be above 0 and at most 1, such as 0.5", share_max=self.share_max
            )


def cutoff_of(manifest: Manifest, positions: Iterable[int], keep: Keep) -> int | None:
    """Return the position below which records are not needed, or None if there is no cursor."""
    least = min(positions, default=None)
    if least is None:
        return None
    wanted = [least, manifest.next - keep.records]
    if manifest.chain is not None and manifest.fragments:
        # Keep the newest fragment. A rebuild takes the next position from its link.
        wanted.append(manifest.fragments[-1].start)
    if keep.start is not None:
        wanted.append(keep.start)
    return min(wanted)


def missing_for_plan(
    manifest: Manifest, known: Mapping[str, Snapshot], *, cutoff: int
) -> list[Pointer]:
    """Return the snapshots to read next before a plan can be made, or an empty list."""

    def missing(children: Sequence[Pointer | Fragment]) -> Iterator[Pointer]:
        for child in children:
            if isinstance(child, Pointer) and child.start < cutoff:
                if child.path in known:
                    yield from missing(known[child.path].children)
                else:
                    yield child

    return list(missing(manifest.children))


def fragments_of_control(
    manifest: Manifest, snapshots: Mapping[str, Snapshot], *, cutoff: int
) -> list[Fragment]:
    """Return the fragments below ``cutoff`` that may hold controls; see `plan_collection`."""
    if manifest.chain is None:
        return []
    cut = TreeCut(cutoff, snapshots, names_depth=True)
    cut.split(manifest.children)
    return [fragment for fragment in cut.erased if may_hold(fragment.streams, CONTROL)]


def plan_collection(
    manifest: Manifest,
    snapshots: Mapping[str, Snapshot],
    *,
    cutoff: int,
    controls: Controls = (),
) -> Garbage:
    """Plan to delete all fragments below ``cutoff``; without such fragments, return the empty plan.

    ``snapshots`` are those of `missing_for_plan`, by path. ``controls`` are the control records of
    `fragments_of_control`.

    Raises:
        CorruptionError: the log's fragments are not contiguous, its setsums do not add up, or its
        control records contradict each other.
        VerificationError: the plan would delete more fragments than one plan may.
    """
    cut = TreeCut(cutoff, snapshots, names_depth=manifest.chain is not None)
    kept = cut.split(manifest.children)
    if not cut.erased:
        return Garbage()
    if len(cut.erased) > ERASED_MAX:
        raise VerificationError(
            f"one run of collect deletes at most {ERASED_MAX} fragments: collect in several runs, "
            "and keep more records in the first runs",
            found=len(cut.erased),
        )
    pointers = [child for child in kept if isinstance(child, Pointer)]
    plan = Garbage(
        snapshots_to_drop=tuple(cut.dropped),
        snapshots_to_make=tuple(cut.made),
        # The first kept snapshot, rewritten or not: Chroma's collector and writer expect it there.
        root=pointers[0] if pointers else None,
        fragments_start=cut.erased[0].seq_no,
        fragments_limit=cut.erased[-1].seq_no + 1,
        discarded=sum_of(cut.erased),
        first_to_keep=cut.erased[-1].limit,
        streams_at_start=_streams_after(manifest, controls),
        streams_before=None if manifest.chain is None else manifest.chain.streams_at_start,
    )
    try:
        apply_garbage(manifest, plan)
    except ManifestMoved as error:
        raise CorruptionError(
            f"the log's setsums do not add up, so nothing was collected: scrub the log ({error})"
        ) from error
    return plan


def _streams_after(manifest: Manifest, controls: Controls) -> Streams | None:
    if manifest.chain is None:
        return None
    try:
        return apply_controls(manifest.chain.streams_at_start, controls)
    except UsageError as error:
        raise CorruptionError(
            "the log's control records contradict each other, so nothing was collected: scrub "
            f"the log ({error.sentence})"
        ) from error


def _chain_after(manifest: Manifest, plan: Garbage) -> Chain | None:
    if manifest.chain is None or plan.streams_at_start is None:
        return manifest.chain
    return replace(manifest.chain, streams_at_start=plan.streams_at_start)


def apply_garbage(manifest: Manifest, plan: Garbage) -> Manifest:
    """Return the manifest without the children that a plan deletes.

    Raises:
        ManifestMoved: the plan was made from a manifest with another beginning.
    """
    require(not plan.is_empty, "an empty plan must not be applied")
    dropped = set(plan.snapshots_to_drop)
    snapshots = [child for child in manifest.snapshots if child not in dropped]
    if plan.root is not None and plan.root not in snapshots:
        snapshots.insert(0, plan.root)
    numbers = range(plan.fragments_start, plan.fragments_limit)
    fragments = [child for child in manifest.fragments if child.seq_no not in numbers]
    after = replace(
        manifest,
        collected=manifest.collected + plan.discarded,
        snapshots=tuple(snapshots),
        fragments=tuple(fragments),
        initial_offset=plan.first_to_keep,
        initial_seq_no=plan.fragments_limit,
        chain=_chain_after(manifest, plan),
    )
    if (
        problems_of_manifest(after)
        # Without these streams, open streams would be lost with the records that opened them.
        or (manifest.chain is None) != (plan.streams_at_start is None)
        or (after.next, after.next_seq_no) != (manifest.next, manifest.next_seq_no)
        or not manifest.oldest < plan.first_to_keep == after.oldest
        or not (manifest.initial_seq_no or 0) <= plan.fragments_start < plan.fragments_limit
        # The manifest's own sums balance by construction, so also check the removed children.
        or sum_of(manifest.children) - sum_of(after.children) != plan.discarded
    ):
        raise ManifestMoved(
            "the log's manifest has changed since the collection was planned: plan again",
            first_to_keep=plan.first_to_keep,
            oldest=manifest.oldest,
        )
    return after


def is_collected(manifest: Manifest, plan: Garbage) -> bool:
    """Return True if the manifest begins at or after the plan's first kept position.

    Then it proves that the objects of the plan are dead, because a manifest's ``initial_offset``
    and ``initial_seq_no`` never fall.
    """
    return (
        manifest.oldest >= plan.first_to_keep
        and (manifest.initial_seq_no or 0) >= plan.fragments_limit
    )


def check_share(before: Manifest, plan: Garbage, keep: Keep) -> None:
    """Refuse a plan that deletes too large a share of the log at once.

    Raises:
        VerificationError: the share is above ``keep.share_max``.
    """
    after = apply_garbage(before, plan)
    size, left = (sum(child.num_bytes for child in m.children) for m in (before, after))
    count = before.next_seq_no - plan.fragments_start
    gone = plan.fragments_limit - plan.fragments_start
    share = max((size - left) / size if size else 0, gone / count)
    if share > keep.share_max:
        raise VerificationError(
            f"this run of collect would delete {share:.0%} of the log at once, but at most "
            f"{keep.share_max:.0%} is allowed: check the cursors of the log; then raise "
            "share_max=, or pass force=True",
            first_to_keep=plan.first_to_keep,
            oldest=before.oldest,
            next=before.next,
        )


def paths_to_delete(plan: Garbage, chain: Chain | None = None) -> list[str]:
    """Return the paths of the snapshots and fragments that a plan deletes.

    In a slot log ``chain`` must list the epochs of the deleted slots. Then the paths also include
    void objects past the fences in the deleted range. The fences themselves are never deleted.

    A snapshot is left out if its name is not its setsum, or if it begins at a kept record. A valid
    plan does not delete such a snapshot.
    """
    snapshots = [
        pointer.path
        for pointer in plan.snapshots_to_drop
        if is_named_by_its_sum(pointer) and pointer.start < plan.first_to_keep
    ]
    numbers = range(plan.fragments_start, plan.fragments_limit)
    fragments = [path_of(number, chain) for number in numbers]
    # Shared fragments belong to the origin log, where the fork's pin releases them.
    own = [path for path in fragments if not path.startswith(BESIDE)]
    if chain is None:
        return [*dict.fromkeys(snapshots), *own]
    void = [
        path
        for epoch, fence in chain.ends()
        if not epoch.log and plan.fragments_start <= fence <= plan.fragments_limit
        for path in epoch.void_paths(fence, chain.reach_after(epoch))
    ]
    return [*dict.fromkeys(snapshots), *own, *void]
