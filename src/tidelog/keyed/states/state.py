"""The durable state of a keyed log, apart from its wal and its runs' objects. Pure.

Invariants: ``retired <= compacted``. Runs cover ``[runs[0].lower, compacted)`` without gaps, and
    begin at or before ``retired``. Seals rise, and none is inside a run. The objects that a
    checkpoint names are stored as long as the checkpoint exists.
Source: design page 5, "Shape".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidelog.keyed.format.records import SinkMark, newest_of
from tidelog.keyed.states.run import Run
from tidelog.keyed.values import Retention, Sealing


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSeal:
    """The end of a segment: the first sequence after it, and the time at which it was sealed."""

    limit: int
    at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCheckpoint:
    """The records ``[retired, next)`` readable at a time; runs hold those before ``compacted``.

    ``seals`` are the seals of that time; the first belongs to the segment ``first_segment``.
    ``fork`` is the name of the log that is to begin with it; that log's own wal has the other
    records.
    """

    made_us: int
    retired: int
    compacted: int
    next: int
    runs: tuple[Run, ...]
    seals: tuple[SegmentSeal, ...] = ()
    first_segment: int = 0
    fork: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrigin:
    """The log from which this one was forked, and the checkpoint that holds the shared runs."""

    log: str
    checkpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedState:
    """A keyed log's state.

    ``seals`` are those of the segments that are not retired; the first has the id
    ``first_segment``. ``write_epoch`` rises with sweeps, last at ``write_epoch_us``; see
    `decide_epoch`. ``sinks`` are the newest compacted batches of exactly-once writers; see `mark`.
    ``wal`` is the name of its wal, if that differs from its own. ``voided`` are checkpoints of
    other logs with which this one must never begin, because the fork took too long.
    """

    is_made: bool = False
    is_dropped: bool = False
    sealing: Sealing = field(default_factory=Sealing)
    retention: Retention = field(default_factory=Retention)
    retired: int = 1
    compacted: int = 1
    runs: tuple[Run, ...] = ()
    seals: tuple[SegmentSeal, ...] = ()
    first_segment: int = 0
    checkpoints: dict[str, KeyedCheckpoint] = field(default_factory=dict)
    origin: ForkOrigin | None = None
    write_epoch: int = 0
    write_epoch_us: int = 0
    sinks: dict[str, SinkMark] = field(default_factory=dict)
    wal: str = ""
    voided: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def active_start(self) -> int:
        """The first sequence of the segment that is not sealed."""
        return self.seals[-1].limit if self.seals else self.retired


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRuns:
    """Adjacent runs, by id, and the run that replaces them."""

    ids: tuple[str, ...]
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedDiff:
    """A change. ``vanished`` are the objects that the state named before it but not after.

    Its checkpoints have no runs and seals: they are those of the state that it changes.
    """

    made: bool = False
    dropped: bool = False
    sealing: Sealing | None = None
    retention: Retention | None = None
    retired: int | None = None
    first_segment: int | None = None
    compacted: int | None = None
    added: tuple[Run, ...] = ()
    merged: MergedRuns | None = None
    seals: tuple[SegmentSeal, ...] = ()
    checkpoints: dict[str, KeyedCheckpoint] = field(default_factory=dict)
    dropped_checkpoints: tuple[str, ...] = ()
    origin: tuple[ForkOrigin | None] | None = None
    write_epoch: int | None = None
    write_epoch_us: int | None = None
    sinks: dict[str, SinkMark] = field(default_factory=dict)
    wal: str | None = None
    voided: tuple[str, ...] = ()
    vanished: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


def apply_diff(state: KeyedState, diff: KeyedDiff) -> KeyedState:
    """Return the state after a change."""
    if diff.dropped:
        # A later step, or a later process, releases the hold on the source.
        return KeyedState(
            is_made=True,
            is_dropped=True,
            origin=state.origin,
            wal=state.wal,
            extra=state.extra,
        )
    retired = state.retired if diff.retired is None else diff.retired
    runs = (*state.runs, *diff.added)
    if diff.merged is not None:
        runs = _with_merged(runs, diff.merged)
    checkpoints = {
        name: checkpoint
        for name, checkpoint in state.checkpoints.items()
        if name not in diff.dropped_checkpoints
    }
    made = {name: _of_state(checkpoint, state) for name, checkpoint in diff.checkpoints.items()}
    return replace(
        state,
        is_made=state.is_made or diff.made,
        sealing=diff.sealing or state.sealing,
        retention=diff.retention or state.retention,
        retired=retired,
        first_segment=_or(diff.first_segment, state.first_segment),
        compacted=_or(diff.compacted, state.compacted),
        runs=tuple(run for run in runs if run.upper > retired),
        seals=tuple(seal for seal in (*state.seals, *diff.seals) if seal.limit > retired),
        checkpoints={**checkpoints, **made},
        origin=state.origin if diff.origin is None else diff.origin[0],
        write_epoch=_or(diff.write_epoch, state.write_epoch),
        write_epoch_us=_or(diff.write_epoch_us, state.write_epoch_us),
        sinks=newest_of(state.sinks, diff.sinks) if diff.sinks else state.sinks,
        wal=state.wal if diff.wal is None else diff.wal,
        # A log that exists never begins again.
        voided=() if diff.made else (*state.voided, *diff.voided),
        extra={**state.extra, **diff.extra},
    )


def _of_state(checkpoint: KeyedCheckpoint, state: KeyedState) -> KeyedCheckpoint:
    if checkpoint.runs:
        return checkpoint
    return replace(checkpoint, runs=state.runs, seals=state.seals)


def _with_merged(runs: Sequence[Run], merged: MergedRuns) -> tuple[Run, ...]:
    kept: list[Run] = []
    for run in runs:
        if run.id not in merged.ids:
            kept.append(run)
        elif run.id == merged.ids[0]:
            kept.append(merged.run)
    return tuple(kept)


def _or(given: int | None, known: int) -> int:
    return known if given is None else given
