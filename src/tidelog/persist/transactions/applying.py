"""Applying: the steps that write committed transactions to a shard. Pure.

Any process may apply transactions. All processes derive the same steps in the same order. A step
names the upper from which it applies and the upper that it reaches, so each step takes effect once.
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
    """Return the steps that a shard still needs, oldest first, for times below ``until``.

    Raises:
        CorruptionError: the parts of a transaction cannot be read.
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
    """Return the shards of the transactions that are not known to be applied."""
    return sorted({shard for one in state.pending for shard in one.writes})


def last_step(state: TransactionState, name: str, shard: str, number: int, upper: int) -> Step:
    """Return the step that brings a shard to ``upper``, after all its transactions below."""
    given = [one.upper for one in state.pending if shard in one.writes and one.lower < upper]
    after = given[-1] if given else 0
    registered = Registered(name, number)
    return Step(registered=registered, after=after, lower=after, upper=upper)


def upper_of(state: TransactionState, shard: str) -> int | None:
    """Return the upper to which transactions have written a shard; None if they never wrote it."""
    if shard in state.tables:
        return state.upper
    found: Forgotten | None = state.forgotten.get(shard)
    return None if found is None else found.upper


def _unpacked(packed: bytes) -> tuple[Part, ...]:
    try:
        return _PARTS.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError("a transaction's parts cannot be read") from error
