"""What may become of a fork: of a log that is to begin as another was. Pure.

Each try to make a fork has a checkpoint of the source and a wal of its own; the fork's state says
with which of them it began, if with any. A try that others gave up on is *voided* in the fork's
state, and never becomes the fork: so what was held for it can be let go of, and nobody has to know
whether its maker lives.
Invariants: of the tries to make a log one at the most becomes that log. What a try holds is let go
    of only once it surely is not the fork, or the fork needs it no more.
Source: docs/decisions/0025.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.errors import ContentionError
from tidelog.keyed.format.mark import SinkMark
from tidelog.keyed.states.state import ForkOrigin, KeyedCheckpoint, KeyedDiff, KeyedState
from tidelog.keyed.states.transition import Decided, with_vanished
from tidelog.keyed.values import Retention, Sealing
from tidelog.machine.language import Decision


def checkpoint_of_try(fork: str, unique: str) -> str:
    """Return the name of the checkpoint of a try."""
    return f"fork.{fork}.{unique}"


def wal_of_try(checkpoint: str) -> str:
    """Return where the wal of a try lies, as its checkpoint tells; no log may be called so."""
    return f"fork_{checkpoint.rpartition('.')[2]}"


def decide_forked(
    state: KeyedState,
    point: KeyedCheckpoint,
    origin: ForkOrigin,
    *,
    sealing: Sealing,
    retention: Retention,
    sinks: Mapping[str, SinkMark],
) -> Decided:
    """Decide that a log begins as another was at a point; False if it has begun otherwise.

    ``sinks`` are the marks of what was compacted then: batches that are there are not taken again.

    Raises:
        ContentionError: others gave this try up.
    """
    if state.is_made:
        return Decision(is_begun_with(state, origin))
    if origin.checkpoint in state.voided:
        raise ContentionError("the fork took so long that others gave it up: fork again")
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


def decide_voided(state: KeyedState, checkpoint: str) -> Decided:
    """Decide that a log never begins with a checkpoint; False if it has begun, with whatever."""
    if state.is_made:
        return Decision(False)
    if checkpoint in state.voided:
        return Decision(True)
    return Decision(True, KeyedDiff(voided=(checkpoint,)))


def is_begun_with(state: KeyedState, origin: ForkOrigin) -> bool:
    """Say whether a log is there, and began with a checkpoint; it may need it no more."""
    is_own = state.wal == wal_of_try(origin.checkpoint)
    return state.is_made and not state.is_dropped and is_own


def may_begin_with(state: KeyedState, checkpoint: str) -> bool:
    """Say whether a log may yet begin with a checkpoint."""
    return not state.is_made and checkpoint not in state.voided


def decide_let_go(state: KeyedState, checkpoint: str) -> Decided:
    """Decide that what was held for a fork is held no more; False if it is not."""
    if state.is_dropped or checkpoint not in state.checkpoints:
        return Decision(False)
    return Decision(True, with_vanished(state, KeyedDiff(dropped_checkpoints=(checkpoint,))))


def decide_origin_left(state: KeyedState) -> Decided:
    """Decide that the log from which this was forked is needed no more."""
    if state.origin is None:
        return Decision(False)
    return Decision(True, KeyedDiff(origin=(None,)))
