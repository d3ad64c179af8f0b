"""Decisions about a keyed log: each command as a function of its state. Pure.

A run is written first, and a decision names it afterwards. If another process has named the same
window in between, our run is not named, and a sweep deletes it. Sweeps do not depend on clocks for
correctness: they raise the write epoch, and a run begun two epochs ago is refused. A clock only
limits how often sweeps raise it, so that compactors have time to finish.
Source: design page 5; persist, "Garbage Collection".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tidelog.errors import (
    InvariantError,
    NameTaken,
    NoSuchCheckpoint,
    NoSuchLog,
    SequenceRetired,
    UsageError,
)
from tidelog.keyed.format.records import SinkMark
from tidelog.keyed.states.describing import segments_of
from tidelog.keyed.states.run import Run, paths_of
from tidelog.keyed.states.state import (
    KeyedCheckpoint,
    KeyedDiff,
    KeyedState,
    MergedRuns,
    SegmentSeal,
    apply_diff,
)
from tidelog.keyed.values import Retention, Sealing, Segment, check_retention
from tidelog.machine.language import Decision

Decided = Decision[KeyedDiff, bool]
DROPPED = "the keyed log was dropped: list the keyed logs"
EPOCHS_LATE: int = 1  # A run under construction survives this many sweeps.


def decide_create(
    state: KeyedState, *, sealing: Sealing | None, retention: Retention | None
) -> Decided:
    """Decide to create a log; False if it exists.

    Raises:
        UsageError: the retention can never act; see `check_retention`.
    """
    if state.is_made:
        return Decision(False)
    check_retention(sealing or Sealing(), retention or Retention())
    return Decision(True, KeyedDiff(made=True, sealing=sealing, retention=retention))


def decide_compact(
    state: KeyedState, runs: Sequence[Run], sinks: Mapping[str, SinkMark] | None = None
) -> Decided:
    """Decide to add adjacent runs after the existing ones.

    ``sinks`` are the marks of the compacted batches, because the wal will no longer have them. The
    result is False if another process has compacted the same window, or the compaction took longer
    than two sweeps.

    Raises:
        InvariantError: the runs are not adjacent.
    """
    check_living(state)
    if runs[0].lower != state.compacted or _is_late(state, runs):
        return Decision(False)
    for before, run in pairwise(runs):
        if run.lower != before.upper:
            raise InvariantError("the compacted runs are not contiguous")
    for run in runs:
        if any(run.lower < seal.limit < run.upper for seal in state.seals):
            return Decision(False)  # The segment was sealed inside the run concurrently.
    diff = KeyedDiff(compacted=runs[-1].upper, added=tuple(runs), sinks=dict(sinks or {}))
    return Decision(True, diff)


def decide_merge_runs(state: KeyedState, ids: Sequence[str], run: Run) -> Decided:
    """Decide to replace adjacent runs by one; False if they no longer exist.

    Raises:
        InvariantError: the runs are not adjacent, or the merged run has another window.
    """
    check_living(state)
    places = [n for n, old in enumerate(state.runs) if old.id in ids]
    runs = [state.runs[n] for n in places]
    if len(runs) != len(ids) or _is_late(state, [run]):
        return Decision(False)
    if (runs[0].lower, runs[-1].upper) != (run.lower, run.upper):
        raise InvariantError("a merged run covers other sequences than the runs that it replaces")
    if places != list(range(places[0], places[0] + len(places))):
        raise InvariantError("the merged runs are not contiguous")
    diff = KeyedDiff(merged=MergedRuns(ids=tuple(ids), run=run))
    return Decision(True, with_vanished(state, diff))


def decide_seal(state: KeyedState, limit: int, at_us: int) -> Decision[KeyedDiff, Segment | None]:
    """Decide to seal the active segment before a sequence; None if it has no records.

    The result is the segment directly after the seal, because another process may retire it at
    once.
    """
    check_living(state)
    if limit <= state.active_start or limit < state.compacted:
        # Runs now go beyond the limit, and one may cross it: the caller seals further on.
        return Decision(None)
    diff = KeyedDiff(seals=(SegmentSeal(limit=limit, at_us=at_us),))
    return Decision(segments_of(apply_diff(state, diff))[-2], diff)


def decide_retire(state: KeyedState, retired: int) -> Decision[KeyedDiff, int]:
    """Decide to retire the segments that end at or before a sequence; return their number."""
    check_living(state)
    limits = [seal.limit for seal in state.seals if seal.limit <= retired]
    if not limits or limits[-1] <= state.retired:
        return Decision(0)
    if limits[-1] > state.compacted:
        raise InvariantError("a segment must be compacted before it is retired")
    diff = KeyedDiff(retired=limits[-1], first_segment=state.first_segment + len(limits))
    return Decision(len(limits), with_vanished(state, diff))


def decide_configure(
    state: KeyedState, *, sealing: Sealing | None, retention: Retention | None
) -> Decided:
    """Decide to set the sealing and the retention.

    Raises:
        UsageError: the retention can never act; see `check_retention`.
    """
    check_living(state)
    check_retention(sealing or state.sealing, retention or state.retention)
    return Decision(True, KeyedDiff(sealing=sealing, retention=retention))


def decide_checkpoint(
    state: KeyedState, name: str, *, next_sequence: int, at_us: int, fork: str = ""
) -> Decision[KeyedDiff, KeyedCheckpoint | None]:
    """Decide to keep all readable records under a name.

    The result is None if records before ``next_sequence`` are not compacted: compact, and decide
    again. A checkpoint for a fork does not need that, because the fork's wal has these records.

    Raises:
        NameTaken: the checkpoint exists.
    """
    check_living(state)
    if name in state.checkpoints:
        raise NameTaken(
            f"a checkpoint named {name!r} already exists: drop it, or choose another name"
        )
    if not fork and state.compacted < next_sequence:
        return Decision(None)
    made = KeyedCheckpoint(
        made_us=at_us,
        retired=state.retired,
        compacted=state.compacted,
        next=max(next_sequence, state.compacted) if fork else state.compacted,
        runs=state.runs,
        seals=state.seals,
        first_segment=state.first_segment,
        fork=fork,
    )
    # The record stays small: each process has the runs and seals in the state that it changes.
    diff = KeyedDiff(checkpoints={name: replace(made, runs=(), seals=())})
    return Decision(made, with_vanished(state, diff))


def decide_drop_checkpoint(state: KeyedState, name: str) -> Decided:
    """Decide to drop a checkpoint.

    Raises:
        NoSuchCheckpoint: no such checkpoint. UsageError: a fork begins with it.
    """
    check_living(state)
    if name not in state.checkpoints:
        raise no_checkpoint(name)
    if fork := state.checkpoints[name].fork:
        raise UsageError(
            f"the fork {fork!r} reads the records of the checkpoint {name!r}: drop the fork "
            f"('tidelog keyed drop {fork}'), or compact and collect it until it no longer reads "
            "the source; if the fork does not exist, a later run of collect drops the checkpoint"
        )
    return Decision(True, with_vanished(state, KeyedDiff(dropped_checkpoints=(name,))))


def decide_epoch(state: KeyedState, known: int, *, at_us: int, after_us: int) -> Decided:
    """Decide to raise the write epoch, unless it was raised since ``known`` was read.

    It also stays if it was raised within the last ``after_us``. A compactor thus has that long to
    have its run named, however many processes collect. If clocks differ by more, it may have less
    time; a late run is written again.
    """
    if state.write_epoch != known or state.is_dropped:
        return Decision(False)
    # A negative difference means that a collector's clock ran ahead: it must not stop all others.
    if 0 <= at_us - state.write_epoch_us < after_us:
        return Decision(False)
    return Decision(True, KeyedDiff(write_epoch=known + 1, write_epoch_us=at_us))


def decide_drop(state: KeyedState) -> Decided:
    """Decide to drop the log; False if it is dropped already.

    Raises:
        UsageError: forks read its stored objects.
    """
    if state.is_dropped:
        return Decision(False)
    forks = sorted(checkpoint.fork for checkpoint in state.checkpoints.values() if checkpoint.fork)
    if forks:
        raise UsageError(
            "forks read the log's objects: drop them first, or compact and collect them until "
            "they no longer do",
            forks=", ".join(forks),
        )
    return Decision(True, with_vanished(state, KeyedDiff(dropped=True)))


def check_living(state: KeyedState) -> None:
    """Refuse a log that does not exist.

    Raises:
        NoSuchLog: it was never created, or was dropped.
    """
    if state.is_dropped:
        raise NoSuchLog(DROPPED)
    if not state.is_made:
        raise NoSuchLog("the keyed log does not exist: list the keyed logs")


def no_checkpoint(name: str) -> NoSuchCheckpoint:
    """Return the error for a checkpoint that does not exist, with the remedy."""
    return NoSuchCheckpoint(
        f"no checkpoint named {name!r}: 'tidelog keyed checkpoint list' lists them, and in Python "
        "log.checkpoints()"
    )


def check_readable(state: KeyedState, start: int) -> None:
    """Refuse a start whose records were retired.

    Raises:
        SequenceRetired: they were retired. NoSuchLog: the log does not exist.
    """
    check_living(state)
    if 0 < start < state.retired:
        raise SequenceRetired(
            "the first of these records were retired: start at the oldest sequence, or at 0",
            start=start,
            oldest=state.retired,
        )


def _is_late(state: KeyedState, runs: Sequence[Run]) -> bool:
    return any(run.epoch + EPOCHS_LATE < state.write_epoch for run in runs)


def with_vanished(state: KeyedState, diff: KeyedDiff) -> KeyedDiff:
    """Return a change together with the objects that no state names after it."""
    after = apply_diff(state, diff)
    gone = named_by(state) - named_by(after)
    return KeyedDiff(
        **{
            name: getattr(diff, name)
            for name in KeyedDiff.__dataclass_fields__
            if name != "vanished"
        },
        vanished=tuple(sorted(gone)),
    )


def named_by(state: KeyedState) -> set[str]:
    """Return all objects of runs that a state names, directly or for a checkpoint."""
    kept = (checkpoint.runs for checkpoint in state.checkpoints.values())
    return paths_of(state.runs).union(*(paths_of(runs) for runs in kept))
