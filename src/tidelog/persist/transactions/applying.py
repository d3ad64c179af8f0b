"""Applying: what a shard is still to be given of the transactions that wrote it. Pure.

Whoever applies goes through the same steps in the same order, and each is taken once, whoever takes
it: a step says from which upper on it may be taken, and to which it leads.
"""

from __future__ import annotations

import msgspec

from tidelog.errors import CorruptionError
from tidelog.persist.format.part import Part
from tidelog.persist.states.registered import Step
from tidelog.persist.states.state import Registered
from tidelog.persist.transactions.state import Forgotten, TransactionState

_PARTS = msgspec.msgpack.Decoder(tuple[Part, ...])


def steps_of(
    state: TransactionState, name: str, shard: str, *, until: int | None = None
) -> list[Step]:
    """Return what a shard is to be given, oldest first, of transactions at times below ``until``.

    Raises:
        CorruptionError: its parts cannot be read.
    """
    steps: list[Step] = []
    after = 0
    for one in state.pending:
        write = one.writes.get(shard)
        if write is None:
            continue
        if until is not None and one.lower >= until:
            break
        registered = Registered(name, write.number)
        steps.append(
            Step(
                registered=registered,
                after=after,
                lower=one.lower,
                upper=one.upper,
                parts=_unpacked(write.packed),
            )
        )
        after = one.upper
    return steps


def shards_of(state: TransactionState) -> list[str]:
    """Return the shards that transactions wrote which are not known to be applied."""
    return sorted({shard for one in state.pending for shard in one.writes})


def last_step(state: TransactionState, name: str, shard: str, number: int, upper: int) -> Step:
    """Return the step that brings a shard to ``upper``, after all that it was to be given."""
    given = [one.upper for one in state.pending if shard in one.writes and one.lower < upper]
    after = given[-1] if given else 0
    registered = Registered(name, number)
    return Step(registered=registered, after=after, lower=after, upper=upper)


def upper_of(state: TransactionState, shard: str) -> int | None:
    """Return up to when a shard is complete by transactions; None if they never wrote it."""
    if shard in state.tables:
        return state.upper
    found: Forgotten | None = state.forgotten.get(shard)
    return None if found is None else found.upper


def _unpacked(packed: bytes) -> tuple[Part, ...]:
    try:
        return _PARTS.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError("a transaction's parts cannot be read") from error
