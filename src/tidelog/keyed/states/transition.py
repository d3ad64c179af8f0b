"""What may become of a keyed log: each command as a decision over its state. Pure.

A run is written first, and named by a decision after; between the two others may have named the
same window, and then ours is not named, and is swept. Sweeps trust no clock: they raise the write
epoch, and a run that was begun two epochs ago is not taken any more. A clock only keeps them from
raising it more often than who writes a run can bear.
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
from tidelog.keyed.format.mark import SinkMark
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
DROPPED = "the keyed log was dropped: list those that there are"
EPOCHS_LATE: int = 1  # In so many sweeps, a run that is being written is not swept.


def decide_made(
    state: KeyedState, *, sealing: Sealing | None, retention: Retention | None
) -> Decided:
    """Decide that a log begins; False if it has.

    Raises:
        UsageError: the retention can never act; see `check_retention`.
    """
    if state.is_made:
        return Decision(False)
    check_retention(sealing or Sealing(), retention or Retention())
    return Decision(True, KeyedDiff(made=True, sealing=sealing, retention=retention))


def decide_compacted(
    state: KeyedState, runs: Sequence[Run], sinks: Mapping[str, SinkMark] | None = None
) -> Decided:
    """Decide that runs, which follow each other, come after those that there are.

    ``sinks`` are the marks of what is compacted, which the wal will not have any more.

    False, if others have compacted the same, or it took longer than two sweeps.

    Raises:
        InvariantError: a run reaches over the end of a segment.
    """
    check_living(state)
    if runs[0].lower != state.compacted or _is_late(state, runs):
        return Decision(False)
    for before, run in pairwise(runs):
        if run.lower != before.upper:
            raise InvariantError("runs that were compacted do not follow each other")
    for run in runs:
        if any(run.lower < seal.limit < run.upper for seal in state.seals):
            return Decision(False)  # It was sealed meanwhile, within the run.
    diff = KeyedDiff(compacted=runs[-1].upper, added=tuple(runs), sinks=dict(sinks or {}))
    return Decision(True, diff)


def decide_merged(state: KeyedState, ids: Sequence[str], run: Run) -> Decided:
    """Decide that runs which follow each other become one; False if they are not there any more."""
    check_living(state)
    places = [n for n, one in enumerate(state.runs) if one.id in ids]
    found = [state.runs[n] for n in places]
    if len(found) != len(ids) or _is_late(state, [run]):
        return Decision(False)
    if (found[0].lower, found[-1].upper) != (run.lower, run.upper):
        raise InvariantError("a merged run has another window than those that it stands for")
    if places != list(range(places[0], places[0] + len(places))):
        raise InvariantError("runs that were merged do not follow each other")
    diff = KeyedDiff(merged=MergedRuns(ids=tuple(ids), run=run))
    return Decision(True, with_vanished(state, diff))


def decide_sealed(state: KeyedState, limit: int, at_us: int) -> Decision[KeyedDiff, Segment | None]:
    """Decide that the active segment ends before a sequence; None if it has no records.

    The segment is told as it is right after: others may let go of it at once.
    """
    check_living(state)
    if limit <= state.active_start or limit < state.compacted:
        # Where runs were made past it meanwhile, one may reach over it: seal further on.
        return Decision(None)
    diff = KeyedDiff(seals=(SegmentSeal(limit=limit, at_us=at_us),))
    return Decision(segments_of(apply_diff(state, diff))[-2], diff)


def decide_retired(state: KeyedState, retired: int) -> Decision[KeyedDiff, int]:
    """Decide that what is before the end of a segment is gone; return how many segments go."""
    check_living(state)
    limits = [seal.limit for seal in state.seals if seal.limit <= retired]
    if not limits or limits[-1] <= state.retired:
        return Decision(0)
    if limits[-1] > state.compacted:
        raise InvariantError("a segment that is not compacted cannot be retired")
    diff = KeyedDiff(retired=limits[-1], first_segment=state.first_segment + len(limits))
    return Decision(len(limits), with_vanished(state, diff))


def decide_configured(
    state: KeyedState, *, sealing: Sealing | None, retention: Retention | None
) -> Decided:
    """Decide how segments are sealed, and how long they are kept.

    Raises:
        UsageError: the retention can never act; see `check_retention`.
    """
    check_living(state)
    check_retention(sealing or state.sealing, retention or state.retention)
    return Decision(True, KeyedDiff(sealing=sealing, retention=retention))


def decide_checkpoint(
    state: KeyedState, name: str, *, next_sequence: int, at_us: int, fork: str = ""
) -> Decision[KeyedDiff, KeyedCheckpoint | None]:
    """Decide that what is readable now stays so under a name.

    None, if not all is compacted that comes before ``next_sequence``: compact, and decide again.
    One for a fork needs no such thing: the fork's wal has the rest.

    Raises:
        NameTaken: there is such a checkpoint.
    """
    check_living(state)
    if name in state.checkpoints:
        raise NameTaken(f"there is a checkpoint {name!r} already: drop it, or choose another name")
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
    diff = KeyedDiff(checkpoints={name: replace(made, runs=(), seals=())})
    return Decision(made, with_vanished(state, diff))


def decide_checkpoint_dropped(state: KeyedState, name: str) -> Decided:
    """Decide that a checkpoint keeps nothing any more.

    Raises:
        NoSuchCheckpoint: there is none. UsageError: a fork begins with it.
    """
    check_living(state)
    if name not in state.checkpoints:
        raise no_checkpoint(name)
    if fork := state.checkpoints[name].fork:
        raise UsageError(
            f"the checkpoint {name!r} holds what the fork {fork!r} begins with: it goes once the "
            f"fork stands alone or is dropped ('tidelog keyed drop {fork}'), and if there is no "
            "such fork, with one of the next collections"
        )
    return Decision(True, with_vanished(state, KeyedDiff(dropped_checkpoints=(name,))))


def decide_epoch(state: KeyedState, known: int, *, at_us: int, after_us: int) -> Decided:
    """Decide that the write epoch rises, unless it has since ``known`` was read.

    Nor does it within ``after_us`` of the last time: whoever writes a run has so long to have it
    named, however many collect meanwhile. Where clocks differ by more, it may be less: what is late
    is written again.
    """
    if state.write_epoch != known or state.is_dropped:
        return Decision(False)
    if 0 <= at_us - state.write_epoch_us < after_us:
        return Decision(False)
    return Decision(True, KeyedDiff(write_epoch=known + 1, write_epoch_us=at_us))


def decide_dropped(state: KeyedState) -> Decided:
    """Decide that the log is gone; False if it is already.

    Raises:
        UsageError: there are forks, which read what it has stored.
    """
    if state.is_dropped:
        return Decision(False)
    forks = sorted(one.fork for one in state.checkpoints.values() if one.fork)
    if forks:
        raise UsageError(
            "forks of the log read what it has stored: drop them first, or compact and collect "
            "them until they stand alone",
            forks=", ".join(forks),
        )
    return Decision(True, with_vanished(state, KeyedDiff(dropped=True)))


def check_living(state: KeyedState) -> None:
    """Refuse a log that is not there.

    Raises:
        NoSuchLog: it was never made, or was dropped.
    """
    if state.is_dropped:
        raise NoSuchLog(DROPPED)
    if not state.is_made:
        raise NoSuchLog("the keyed log is not there: list those that there are")


def no_checkpoint(name: str) -> NoSuchCheckpoint:
    """Return the error of a checkpoint that is not there, and what to do."""
    return NoSuchCheckpoint(
        f"there is no checkpoint {name!r}: 'tidelog keyed checkpoint list' shows those that "
        "there are, and in Python log.checkpoints()"
    )


def check_readable(state: KeyedState, start: int) -> None:
    """Refuse a start whose records were let go of.

    Raises:
        SequenceRetired: so it is. NoSuchLog: the log is gone.
    """
    check_living(state)
    if 0 < start < state.retired:
        raise SequenceRetired(
            "the first of these records were let go of: start at the oldest left, or at 0",
            start=start,
            oldest=state.retired,
        )


def _is_late(state: KeyedState, runs: Sequence[Run]) -> bool:
    return any(run.epoch + EPOCHS_LATE < state.write_epoch for run in runs)


def with_vanished(state: KeyedState, diff: KeyedDiff) -> KeyedDiff:
    """Return a change that says which objects nothing names after it."""
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
    """Return all objects of runs that a state names, be it for a checkpoint."""
    kept = (checkpoint.runs for checkpoint in state.checkpoints.values())
    return paths_of(state.runs).union(*(paths_of(runs) for runs in kept))
