"""Decisions about forks: logs that begin with the contents of another log. Pure.

Each attempt to make a fork has a checkpoint of the source and a wal of its own. The fork's state
records the attempt with which it began. Another process may give up an attempt: it *voids* the
attempt in the fork's state, so that the attempt can never become the fork. The objects held for it
can then be released, whether or not its maker is alive.
Invariants: at most one attempt becomes the log. The hold of an attempt is released only once it
    certainly is not the fork, or the fork no longer needs it.
Source: docs/decisions/0025.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.errors import ContentionError
from tidelog.keyed.format.records import SinkMark
from tidelog.keyed.states.state import ForkOrigin, KeyedCheckpoint, KeyedDiff, KeyedState
from tidelog.keyed.states.transition import Decided, with_vanished
from tidelog.keyed.values import Retention, Sealing
from tidelog.machine.language import Decision


def checkpoint_of_try(fork: str, unique: str) -> str:
    """Return the name of the checkpoint of an attempt."""
    return f"fork.{fork}.{unique}"


def wal_of_try(checkpoint: str) -> str:
    """Return the name of the wal of an attempt; users cannot choose such a name."""
    return f"fork_{checkpoint.rpartition('.')[2]}"


def decide_fork(
    state: KeyedState,
    point: KeyedCheckpoint,
    origin: ForkOrigin,
    *,
    sealing: Sealing,
    retention: Retention,
    sinks: Mapping[str, SinkMark],
) -> Decided:
    """Decide that a log begins with the contents of another; False if it has begun otherwise.

    ``sinks`` are the marks of batches compacted in the source, so that a retry of such a batch is
    recognized.

    Raises:
        ContentionError: another process gave up this attempt.
    """
    if state.is_made:
        return Decision(is_begun_with(state, origin))
    if origin.checkpoint in state.voided:
        raise ContentionError(
            "the fork took too long, and another process abandoned it: fork again"
        )
    diff = KeyedDiff(
        made=True,
        sealing=sealing,
        retention=retention,
        retired=point.retired,
        compacted=point.compacted,
        added=point.runs,
        seals=point.seals,
        first_segment=point.first_segment,
        origin=(origin,),
        wal=wal_of_try(origin.checkpoint),
        sinks=dict(sinks),
    )
    return Decision(True, diff)


def decide_void_checkpoint(state: KeyedState, checkpoint: str) -> Decided:
    """Decide that a log never begins with this checkpoint; False if the log exists."""
    # The fork's own state decides, as it does for the beginning of the fork. So only one of the two
    # wins, and no fork begins after its source has released the objects.
    if state.is_made:
        return Decision(False)
    if checkpoint in state.voided:
        return Decision(True)
    return Decision(True, KeyedDiff(voided=(checkpoint,)))


def is_begun_with(state: KeyedState, origin: ForkOrigin) -> bool:
    """Return True if a log exists that began with this origin, even if it no longer needs it."""
    is_own = state.wal == wal_of_try(origin.checkpoint)
    return state.is_made and not state.is_dropped and is_own


def may_begin_with(state: KeyedState, checkpoint: str) -> bool:
    """Return True if a log can still begin with a checkpoint."""
    return not state.is_made and checkpoint not in state.voided


def decide_release_checkpoint(state: KeyedState, checkpoint: str) -> Decided:
    """Decide to release the checkpoint of a fork; False if it is already released."""
    if state.is_dropped or checkpoint not in state.checkpoints:
        return Decision(False)
    return Decision(True, with_vanished(state, KeyedDiff(dropped_checkpoints=(checkpoint,))))


def decide_leave_origin(state: KeyedState) -> Decided:
    """Decide that this fork no longer needs its source."""
    if state.origin is None:
        return Decision(False)
    return Decision(True, KeyedDiff(origin=(None,)))
