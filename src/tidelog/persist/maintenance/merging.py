"""Merging: the plan of merges, and the decision whether a result replaces its inputs. Pure.

A merge does not change the contents. Times at or below ``since`` are no longer distinct, so they
are advanced to it, and updates that then cancel are dropped. V is the same before and after. Large
parts whose rows meet no other rows remain as they are; see `merge_shares`.

Batches are merged by size. Few batches of a size then remain (less than ``2 * FANOUT``). A row is
rewritten about once for each time that its batch grows by a factor of ``FANOUT``. Batches before
since are also merged, whatever their size, if many of their updates were taken back. A batch never
covers more than a share of the times after since, so that since soon passes it.
Source: persist, "Compaction"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog.core.frontier import TIME_MAX, Frontier
from tidelog.errors import CorruptionError, require
from tidelog.machine.language import Decision
from tidelog.persist.format.bounds import groups_by_key
from tidelog.persist.format.part import Part
from tidelog.persist.format.schema import ShardSchema
from tidelog.persist.format.updates import is_sortable
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.claim import CLAIM_US, Claim, live_claims, stretches
from tidelog.persist.states.state import BatchMerge, Diff, State
from tidelog.persist.states.transition import check_epochs
from tidelog.rowhash import RowSum

FANOUT: Final = 16
# Updates that were taken back are merged once they are this share of all rows. Such a merge
# rewrites all rows before since: at most 1 / WASTE = 12.5 rows for each update that was taken back.
WASTE: Final = 0.08
SPAN: Final = 16  # The least number of batches for the times after since.
SMALL_ROWS: Final = 4_096  # A batch of fewer rows does not justify an object of its own.
TOGETHER_MAX: Final = 1_024
KEPT_BYTES: Final = 8 * 1024 * 1024  # A part of fewer stored bytes is better joined with others.


# Takes updates and since; returns a mask of the updates that no reader needs any longer.
IsExpired = Callable[[pa.Table, int], "np.ndarray[Any, np.dtype[np.bool_]]"]


@dataclass(frozen=True, slots=True)
class Expiry:
    """The updates that a full merge drops although no other update cancels them.

    If ``is_expired`` names an update in one state, it must name it in each later state, too. With
    ``by_time``, other merges keep the times of updates. Otherwise, an update of an idle shard would
    move to since, and expire only when since moves again. No update of such a shard may take back
    another, because only updates at the same time cancel.
    """

    is_expired: IsExpired
    by_time: bool = False


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """Adjacent batches to merge, and the since to which their times are advanced."""

    batches: tuple[Batch, ...]
    since: int
    is_expired: IsExpired | None = None

    @property
    def lower(self) -> int:
        return self.batches[0].lower

    @property
    def upper(self) -> int | None:
        return self.batches[-1].upper

    @property
    def parts(self) -> list[Part]:
        return [part for batch in self.batches for part in batch.parts]

    def written(self, merged: Batch | None) -> list[Part]:
        """Return the parts of a result that its merge wrote; the others are inputs that remain."""
        inputs = {part.path for part in self.parts}
        return [] if merged is None else [p for p in merged.parts if p.path not in inputs]

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)

    @property
    def advanced_to(self) -> int:
        """The time to which earlier updates are advanced: since, or the batches' last time."""
        last = TIME_MAX if self.upper is None else self.upper - 1
        return min(self.since, last)


@dataclass(frozen=True, slots=True)
class MergeShare:
    """Parts of a merge whose rows meet no other rows; with ``is_kept``, one part that remains."""

    parts: tuple[Part, ...]
    is_kept: bool = False


def merge_shares(request: MergeRequest, schema: ShardSchema) -> list[MergeShare]:
    """Divide the parts of a merge into shares, in key order; large parts that meet no other remain.

    The merge neither reads nor writes a part that remains, and its updates keep their times. Its
    descriptor proves the result: each diff is 1, so no update of the part cancels another, and its
    bounds exclude the keys of all other parts. Its V enters the sum that `decide_merge` compares.
    """
    parts = request.parts
    # A merge must read the updates that it may drop.
    groups = groups_by_key(parts, schema) if request.is_expired is None else None
    if groups is None:
        return [MergeShare(tuple(parts))]
    shares: list[MergeShare] = []
    for group in groups:
        if len(group) == 1 and _may_remain(group[0], schema):
            shares.append(MergeShare((group[0],), is_kept=True))
        elif shares and not shares[-1].is_kept:
            shares[-1] = MergeShare((*shares[-1].parts, *group))
        else:
            shares.append(MergeShare(tuple(group)))
    return shares


def _may_remain(part: Part, schema: ShardSchema) -> bool:
    is_whole = part.path is not None and part.size_bytes >= KEPT_BYTES
    is_current = schema.of_part(part.schema_id).data.equals(schema.data)
    return is_whole and is_current and part.plain and part.is_sorted == is_sortable(schema)


class MergeVerdict(enum.Enum):
    """The verdict on the result of a merge."""

    APPLIED = "applied"
    ALREADY = "already"
    OVERTAKEN = "overtaken"


def plan_merge(state: State, *, now_us: int = 0) -> MergeRequest | None:
    """Return the most urgent merge; None if no merge is due.

    Batches with a claim that lasts past ``now_us`` (wall time) are skipped.
    """
    if state.since is None:
        return None
    claims = live_claims(state.claims, now_us=now_us, size_bytes=state.totals.size_bytes)
    for batches in stretches(tuple(state.batches), claims):
        found = _wasted(batches, state) or next(_by_size(batches, state), None)
        if found is not None:
            return MergeRequest(found[:TOGETHER_MAX], state.since)
    return None


def plan_full_merge(state: State, expiry: Expiry | None = None) -> MergeRequest | None:
    """Return the merge that leaves one batch; None if it would change nothing.

    It ignores the claims of other processes.
    """
    if state.since is None or not len(state.batches):
        return None
    batches = tuple(state.batches)
    # Since may already be past the times of a batch, and still advance.
    may_expire = expiry is not None and batches[0].since < state.since
    if len(batches) == 1 and is_advanced(batches[0], state.since) and not may_expire:
        return None
    return MergeRequest(batches, state.since, None if expiry is None else expiry.is_expired)


def plan_next(
    state: State, *, full: bool, expiry: Expiry | None, now_us: int
) -> MergeRequest | None:
    """Return the next merge of a shard whose updates may expire; see `plan_merge`."""
    if full:
        return plan_full_merge(state, expiry)
    found = plan_merge(state, now_us=now_us)
    keeps_times = found is not None and expiry is not None and expiry.by_time
    return replace(found, since=0) if found is not None and keeps_times else found


def is_advanced(batch: Batch, since: int) -> bool:
    """Return True if a merge of this batch alone would change nothing."""
    last = TIME_MAX if batch.upper is None else batch.upper - 1
    return batch.since >= min(since, last) or since <= batch.lower


def level_of(batch: Batch) -> int:
    """Return the size level of a batch: log base `FANOUT` of its rows, rounded down."""
    return (max(1, batch.rows).bit_length() - 1) // (FANOUT.bit_length() - 1)


def _wasted(batches: Sequence[Batch], state: State) -> tuple[Batch, ...] | None:
    """Return the batches at or before since, if many of their updates were taken back."""
    since = state.since or 0
    old = [b for b in batches if b.upper is not None and b.upper <= since + 1]
    if not old or (len(old) == 1 and is_advanced(old[0], since)):
        return None
    # A batch that was merged to since has no row twice. The batches after it may take back as many
    # rows as their negative diffs show.
    fresh = [b for b in old if not is_advanced(b, since) or b is not old[0]]
    taken_back = sum(max(0, b.rows - b.diffs) for b in fresh)
    return tuple(old) if taken_back > WASTE * state.totals.rows else None


def _by_size(batches: Sequence[Batch], state: State) -> Iterator[tuple[Batch, ...]]:
    """Yield groups that are due by size, smallest first."""
    levels = [level_of(b) for b in batches]
    for level in sorted(set(levels)):
        for first, last in _groups(levels, level):
            is_followed = last < len(batches)
            groups = _cut(batches[first:last], state)
            for number, group in enumerate(groups):
                count = sum(level_of(b) == level for b in group)
                is_cut = number + 1 < len(groups)
                # Batches are appended only at the end. So a group grows no further if a larger
                # batch comes after it, or a cut. It is merged now; before a cut, only if its
                # batches are small. The last group waits for `FANOUT` batches of its level.
                if (
                    (is_followed and len(group) > 1)
                    or count >= FANOUT
                    or (is_cut and _is_cut_small(group))
                ):
                    yield tuple(group)


def _cut(batches: Sequence[Batch], state: State) -> list[list[Batch]]:
    """Cut batches into groups, each covering only a limited share of the times after since."""
    since = state.since or 0
    if not since or state.upper is None:
        return [list(batches)]
    span = max(1, state.upper - since) // SPAN
    groups: list[list[Batch]] = [[]]
    rows = 0
    for batch in batches:
        upper = state.upper if batch.upper is None else batch.upper
        # Since has passed an old batch already, and a small one is not worth an object of its own.
        # Both are merged whatever times the group then covers.
        is_old = upper <= since + 1
        is_small = rows + batch.rows <= SMALL_ROWS
        if groups[-1] and not (is_old or is_small) and _reaches(groups[-1], upper, since) > span:
            groups.append([])
            rows = 0
        groups[-1].append(batch)
        rows += batch.rows
    return groups


def _reaches(group: Sequence[Batch], upper: int, since: int) -> int:
    return upper - max(group[0].lower, since)


def _is_cut_small(group: Sequence[Batch]) -> bool:
    """Return True if each batch of a finished group covers at most half of the group's times."""
    lower, upper = group[0].lower, group[-1].upper
    if len(group) < 2 or upper is None:
        return False
    most = max((upper if b.upper is None else b.upper) - b.lower for b in group)
    return 2 * most <= upper - lower


def _groups(levels: Sequence[int], level: int) -> Iterator[tuple[int, int]]:
    """Yield the longest ranges of batches that do not exceed a level, as slices."""
    first = 0
    for at, found in enumerate([*levels, level + 1]):
        if found > level:
            if at > first:
                yield first, at
            first = at + 1


def decide_claim(
    state: State, request: MergeRequest, *, who: str, now_us: int
) -> Decision[Diff, bool]:
    """Decide to claim a merge; the result is True if ``who`` now has the claim.

    It is False if another process has claimed part of it, or if its batches no longer exist.
    """
    size_bytes = state.totals.size_bytes
    others = live_claims(state.claims, now_us=now_us, size_bytes=size_bytes, but=who)
    there = state.batches.within(request.lower, request.upper)
    if [b.digest for b in there] != [b.digest for b in request.batches] or any(
        one.covers(request.lower, request.upper) for one in others
    ):
        return Decision(False)
    until_us = now_us + CLAIM_US + request.size_bytes
    mine = Claim(request.lower, request.upper, who, until_us)
    return Decision(True, Diff(claims=(*others, mine)))


def decide_merge(
    state: State,
    request: MergeRequest,
    merged: Batch | None,
    restated: RowSum | None = None,
    expired: int = 0,
) -> Decision[Diff, MergeVerdict]:
    """Decide whether the result of a merge replaces its inputs.

    The result may be late or repeated. The inputs are then gone, or the result is already in the
    state. ``restated`` is the change of V in the columns of the output, for inputs of an earlier
    schema. ``expired`` is the sum of the diffs that were dropped; see `RowMerger`.

    Raises:
        CorruptionError: the rows are not those of the inputs. PartsSwept: the merge took too long.
    """
    _check_merged(state, request, merged, restated, expired)
    # The state names the parts that remain, so no sweep deletes them, whatever their epoch.
    check_epochs(state.write_epoch, request.written(merged))
    there = state.batches.within(request.lower, request.upper)
    wanted = tuple(batch.digest for batch in request.batches)
    if tuple(batch.digest for batch in there) != wanted:
        same = merged is not None and [b.digest for b in there] == [merged.digest]
        return Decision(MergeVerdict.ALREADY if same else MergeVerdict.OVERTAKEN)
    kept = {part.path for part in (() if merged is None else merged.parts)}
    paths = (part.path for part in request.parts)
    found = BatchMerge(
        lower=request.lower,
        upper=request.upper,
        inputs=wanted,
        batch=merged,
        vanished=tuple(path for path in paths if path is not None and path not in kept),
    )
    return Decision(MergeVerdict.APPLIED, Diff(merged=found))


def _check_merged(
    state: State,
    request: MergeRequest,
    merged: Batch | None,
    restated: RowSum | None,
    expired: int,
) -> None:
    require(Frontier.at(request.since) <= state.since_frontier, "a merge must not be past since")
    before = _total(request.batches)
    before = before if restated is None else before + restated
    after = RowSum.zero() if merged is None else merged.v
    diffs = sum(batch.diffs for batch in request.batches) - expired
    if before != after or diffs != (0 if merged is None else merged.diffs):
        raise CorruptionError(
            "the rows of a merge's result differ from its inputs, and nothing was changed: check "
            "the parts (tidelog scrub), and report this",
            lower=request.lower,
            upper=request.upper,
        )


def _total(batches: Sequence[Batch]) -> RowSum:
    total = RowSum.zero()
    for batch in batches:
        total = total + batch.v
    return total
