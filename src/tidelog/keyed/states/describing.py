"""Descriptions of a state for people: segments and checkpoints. Pure."""

from __future__ import annotations

from tidelog.keyed.states.state import KeyedCheckpoint, KeyedState
from tidelog.keyed.values import CheckpointInfo, Segment


def segments_of(state: KeyedState) -> list[Segment]:
    """Return the segments that are not retired, in order; the last one is active."""
    segments: list[Segment] = []
    start, at = state.retired, 0
    while at < len(state.runs) and state.runs[at].lower < start:
        at += 1
    for seal in (*state.seals, None):
        limit = None if seal is None else seal.limit
        begin = at
        while at < len(state.runs) and (limit is None or state.runs[at].upper <= limit):
            at += 1
        runs = state.runs[begin:at]
        segments.append(
            Segment(
                id=state.first_segment + len(segments),
                start=start,
                limit=limit,
                sealed_us=None if seal is None else seal.at_us,
                first_us=min(
                    (run.first_us for run in runs if run.first_us is not None), default=None
                ),
                last_us=max((run.last_us for run in runs if run.last_us is not None), default=None),
                records=sum(run.records for run in runs),
                bytes=sum(run.bytes for run in runs),
                runs=len(runs),
                is_compacted=limit is not None and limit <= state.compacted,
            )
        )
        if limit is not None:
            start = limit
    return segments


def checkpoint_infos(state: KeyedState) -> list[CheckpointInfo]:
    """Return the checkpoints, by name."""
    return [
        checkpoint_info(name, checkpoint) for name, checkpoint in sorted(state.checkpoints.items())
    ]


def checkpoint_info(name: str, one: KeyedCheckpoint) -> CheckpointInfo:
    """Return the description of a checkpoint."""
    return CheckpointInfo(
        name=name,
        oldest=one.retired,
        next_sequence=one.next,
        made_us=one.made_us,
        fork=one.fork,
    )
