"""Plans for a keyed log: due seals, runs to write, merges and retirement. Pure.

Loose fragments cost a request each for every key that is read, so a few of them become a run. The
runs of the active segment are merged by eight as they grow, so a record is rewritten once for each
eightfold growth of its segment. A sealed segment becomes one run.
Source: design page 5, "Shape"; anchors (1.8, 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tidelog.keyed.states.describing import segments_of
from tidelog.keyed.states.run import Run
from tidelog.keyed.states.state import KeyedState
from tidelog.keyed.values import Retention, Segment

LOOSE_MAX: Final = 16  # The number of loose fragments that become a run.
LOOSE_BYTES_MAX: Final = 64 * 1024 * 1024
FAN_IN: Final = 8
RUN_BYTES_MAX: Final = 128 * 1024 * 1024  # The size of loose records that are sorted at once.


@dataclass(frozen=True, slots=True)
class LooseWindow:
    """A window of positions that is not compacted: a fragment, or the rest of one."""

    start: int
    limit: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RunMergeJob:
    """Adjacent runs to merge into one."""

    runs: tuple[Run, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(run.id for run in self.runs)

    @property
    def records(self) -> int:
        return sum(run.records for run in self.runs)


def windows_to_compact(
    state: KeyedState, loose: Sequence[LooseWindow], *, full: bool = False
) -> list[tuple[int, int]]:
    """Return the windows to write as runs, oldest first; none crosses a seal.

    A window is as large as can be sorted at once, or a single fragment, or ends with a segment.
    """
    total = sum(window.bytes for window in loose)
    is_sealed = any(seal.limit > state.compacted for seal in state.seals)
    is_due = full or len(loose) >= LOOSE_MAX or total >= LOOSE_BYTES_MAX or is_sealed
    if not loose or not is_due:
        return []
    end = loose[-1].limit
    cuts = {seal.limit for seal in state.seals if state.compacted < seal.limit <= end}
    size = 0
    for window in loose:
        size += window.bytes
        if size >= RUN_BYTES_MAX:
            cuts.add(window.limit)
            size = 0
    return [*pairwise([state.compacted, *sorted(cuts | {end})])]


def seal_due(
    state: KeyedState,
    loose: Sequence[LooseWindow],
    *,
    bytes_compacted: int,
    first_us: int,
    now_us: int,
) -> bool:
    """Return True if the active segment must be sealed, by its size or its age."""
    sealing = state.sealing
    size = bytes_compacted + sum(
        window.bytes for window in loose if window.limit > state.active_start
    )
    if sealing.bytes is not None and size >= sealing.bytes:
        return True
    return sealing.age_us is not None and 0 < first_us <= now_us - sealing.age_us


def merges_due(state: KeyedState, *, full: bool = False) -> list[RunMergeJob]:
    """Return the merges that are due, oldest first; they share no runs."""
    jobs: list[RunMergeJob] = []
    for runs, is_sealed in _by_segment(state):
        if is_sealed or full:
            if len(runs) > 1:
                jobs.append(RunMergeJob(tuple(runs)))
        elif (job := _growing(runs)) is not None:
            jobs.append(job)
    return jobs


def retired_by(state: KeyedState, retention: Retention, *, now_us: int) -> int:
    """Return the sequence before which a retention keeps nothing: the end of a sealed segment.

    Records that are not compacted are kept, because they must be compacted first.
    """
    limits = [seal.limit for seal in state.seals if seal.limit <= state.compacted]
    retired = state.retired
    if retention.segments is not None:
        # The active segment counts among the kept segments.
        surplus = len(state.seals) + 1 - retention.segments
        if surplus > 0 and limits:
            retired = max(retired, limits[min(surplus, len(limits)) - 1])
    kept = 0
    for segment in reversed(segments_of(state)):
        if segment.limit is not None and segment.is_compacted:
            if (
                retention.age_us is not None
                and _sealed_us(segment, now_us) <= now_us - retention.age_us
            ):
                retired = max(retired, segment.limit)
            if retention.bytes is not None and kept >= retention.bytes:
                retired = max(retired, segment.limit)
        kept += segment.bytes
    return retired


def _sealed_us(segment: Segment, now_us: int) -> int:
    """Return the earliest possible time of a segment's seal, even if the sealer's clock was behind.

    Callers may give any time to a record, so times in the future are ignored.
    """
    last_us = segment.last_us or 0
    return max(segment.sealed_us or 0, last_us if last_us <= now_us else 0)


def _by_segment(state: KeyedState) -> list[tuple[list[Run], bool]]:
    """Return the runs of each segment, and whether the segment is sealed and compacted."""
    groups: list[tuple[list[Run], bool]] = []
    limits = [*(seal.limit for seal in state.seals), None]
    at = 0
    for limit in limits:
        runs: list[Run] = []
        while at < len(state.runs) and (limit is None or state.runs[at].upper <= limit):
            runs.append(state.runs[at])
            at += 1
        is_whole = limit is not None and limit <= state.compacted
        if runs:
            groups.append((runs, is_whole))
    return groups


def _growing(runs: Sequence[Run]) -> RunMergeJob | None:
    """Return eight adjacent runs of at most one size level, smallest level first; else None."""
    levels = [_level(run) for run in runs]
    for level in sorted(set(levels)):
        same = [n for n, run_level in enumerate(levels) if run_level <= level]
        stretch: list[int] = []
        for n in same:
            if stretch and n != stretch[-1] + 1:
                stretch = []
            stretch.append(n)
            if len(stretch) >= FAN_IN:
                return RunMergeJob(tuple(runs[k] for k in stretch))
    return None


def _level(run: Run) -> int:
    """Return the size level of a run: log base eight of its records, rounded down."""
    return (max(1, run.records).bit_length() - 1) // 3
