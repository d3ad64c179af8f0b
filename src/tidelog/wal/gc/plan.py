"""Collecting a log: what a plan erases, and what the manifest becomes by it. Pure.

A plan names all fragments that lie wholly below a cutoff, the snapshots that name nothing else, and
those that name some of them: these are made anew without. However deep the tree is, one plan does
it. What a plan does is worked out twice, in planning and in applying, and both must come to the
same setsum. In slot logs a plan carries the streams that are open where what is kept begins, so
that they outlast the records that opened them, whoever carries it out.

Invariants: fragments are erased from the first on, without a gap; what is at or after the cutoff
stays; ``setsum == collected + sum`` holds before and after; the next position and number stay.
Source: wal3, "Garbage Collection"; docs/internals/wal3.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tidelog.arguments import check_above_zero, check_whole
from tidelog.errors import (
    CorruptionError,
    ManifestMoved,
    UsageError,
    VerificationError,
    require,
)
from tidelog.store.within import BESIDE
from tidelog.wal.format.epoch_chain import Chain
from tidelog.wal.format.fragment import Fragment
from tidelog.wal.format.gc_plan import ERASED_MAX, Garbage
from tidelog.wal.format.manifest import Manifest, path_of, problems_of_manifest
from tidelog.wal.format.snapshot import Pointer, Snapshot, is_named_by_its_sum, sum_of
from tidelog.wal.format.stream_set import may_hold
from tidelog.wal.format.streams import CONTROL, Controls, Streams, apply_controls
from tidelog.wal.gc.cut import TreeCut


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What stays, whatever the cursors allow.

    Units: ``start`` is a position, which stays with all after it; ``records`` counts the newest
        records, which stay; ``share_max`` is the greatest part of a log's bytes, and of its
        fragments, that one collection erases unless it is forced.
    """

    start: int | None = None
    records: int = 0
    share_max: float = 0.9

    def __post_init__(self) -> None:
        if self.start is not None:
            check_whole(self.start, "the position that is kept")
        check_whole(self.records, "the number of records that are kept")
        check_above_zero(self.share_max, "share_max")
        if self.share_max > 1:
            raise UsageError(
                "a collection erases a share above 0, up to 1", share_max=self.share_max
            )


def cutoff_of(manifest: Manifest, positions: Iterable[int], keep: Keep) -> int | None:
    """Return the position below which nothing is needed; None if no cursor says so."""
    least = min(positions, default=None)
    if least is None:
        return None
    wanted = [least, manifest.next - keep.records]
    if manifest.chain is not None and manifest.fragments:
        # A lost manifest is made again from links, and the newest says where the log goes on.
        wanted.append(manifest.fragments[-1].start)
    if keep.start is not None:
        wanted.append(keep.start)
    return min(wanted)


def missing_for_plan(
    manifest: Manifest, known: Mapping[str, Snapshot], *, cutoff: int
) -> list[Pointer]:
    """Yield the snapshots that have to be read next, before a plan can be made; none if it can."""

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
    """Plan to erase all fragments that lie below ``cutoff``; the empty plan if there are none.

    ``snapshots`` are those of `missing_for_plan`, by path; ``controls`` what the control records
    say of `fragments_of_control`.

    Raises:
        CorruptionError: the log's fragments do not follow each other, its sums do not add up, or
        its control records do not fit each other. VerificationError: they are more than one plan
        may erase.
    """
    cut = TreeCut(cutoff, snapshots, names_depth=manifest.chain is not None)
    kept = cut.split(manifest.children)
    if not cut.erased:
        return Garbage()
    if len(cut.erased) > ERASED_MAX:
        raise VerificationError(
            f"one collection erases at most {ERASED_MAX} fragments: keep more, and collect again",
            found=len(cut.erased),
        )
    pointers = [child for child in kept if isinstance(child, Pointer)]
    plan = Garbage(
        snapshots_to_drop=tuple(cut.dropped),
        snapshots_to_make=tuple(cut.made),
        # The first that stays, new or not: Chroma's collector and its writer expect it there.
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
            f"the log does not add up, so nothing of it is collected: scrub it ({error})"
        ) from error
    return plan


def _streams_after(manifest: Manifest, controls: Controls) -> Streams | None:
    if manifest.chain is None:
        return None
    try:
        return apply_controls(manifest.chain.streams_at_start, controls)
    except UsageError as error:
        raise CorruptionError(
            f"the log's control records do not fit each other, so nothing of it is collected: "
            f"scrub it ({error.sentence})"
        ) from error


def _chain_after(manifest: Manifest, plan: Garbage) -> Chain | None:
    if manifest.chain is None or plan.streams_at_start is None:
        return manifest.chain
    return replace(manifest.chain, streams_at_start=plan.streams_at_start)


def apply_garbage(manifest: Manifest, plan: Garbage) -> Manifest:
    """Return the manifest without what a plan erases.

    Raises:
        ManifestMoved: the plan was not made from this manifest, or one with the same beginning.
    """
    require(not plan.is_empty, "an empty plan is not applied")
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
        # Without the streams, those that are kept would be lost with the records that opened them.
        or (manifest.chain is None) != (plan.streams_at_start is None)
        or (after.next, after.next_seq_no) != (manifest.next, manifest.next_seq_no)
        or not manifest.oldest < plan.first_to_keep == after.oldest
        or not (manifest.initial_seq_no or 0) <= plan.fragments_start < plan.fragments_limit
        # Its own sums agree with the plan's; so must those of what it took away.
        or sum_of(manifest.children) - sum_of(after.children) != plan.discarded
    ):
        raise ManifestMoved(
            "the log's manifest is not the one that the collection was planned from: plan again",
            first_to_keep=plan.first_to_keep,
            oldest=manifest.oldest,
        )
    return after


def is_collected(manifest: Manifest, plan: Garbage) -> bool:
    """Say whether a manifest proves dead what a plan erases: it begins where that ends, or after.

    A manifest's ``initial_offset`` and ``initial_seq_no`` only ever rise.
    """
    return (
        manifest.oldest >= plan.first_to_keep
        and (manifest.initial_seq_no or 0) >= plan.fragments_limit
    )


def check_share(before: Manifest, plan: Garbage, keep: Keep) -> None:
    """Refuse to erase more of a log at once than it may.

    Raises:
        VerificationError: that would be more.
    """
    after = apply_garbage(before, plan)
    size, left = (sum(child.num_bytes for child in m.children) for m in (before, after))
    count = before.next_seq_no - plan.fragments_start
    gone = plan.fragments_limit - plan.fragments_start
    share = max((size - left) / size if size else 0, gone / count)
    if share > keep.share_max:
        raise VerificationError(
            f"this would erase {share:.0%} of the log at once, and {keep.share_max:.0%} are "
            "allowed: look at the cursors, then force it (--force, or force=True), or allow a "
            "greater share (--share-max, or share_max=)",
            first_to_keep=plan.first_to_keep,
            oldest=before.oldest,
            next=before.next,
        )


def paths_to_delete(plan: Garbage, chain: Chain | None = None) -> list[str]:
    """Return where the objects lie that a plan erases: snapshots, and fragments by their numbers.

    In slot logs, whose ``chain`` has the epochs of all that goes, void objects as well: those past
    the fences that stand among what is erased. A fence itself stays for ever.

    A snapshot whose name is not its setsum is left out, and so is one that begins where records are
    kept: neither is what a plan may erase.
    """
    snapshots = [
        pointer.path
        for pointer in plan.snapshots_to_drop
        if is_named_by_its_sum(pointer) and pointer.start < plan.first_to_keep
    ]
    numbers = range(plan.fragments_start, plan.fragments_limit)
    fragments = [path_of(number, chain) for number in numbers]
    # What a fork shares is another log's, and is let go of by its pin there.
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
