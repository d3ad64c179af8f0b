"""Applying: the steps that write committed transactions to a shard. Pure.

Any process may apply transactions. All processes derive the same steps in the same order. A step
names the upper from which it applies and the upper that it reaches, so each step takes effect once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tidelog.errors import CorruptionError
from tidelog.persist.format.part import Part
from tidelog.persist.states.registration import Step
from tidelog.persist.states.state import Registration
from tidelog.persist.transactions.state import Forgotten, TransactionState, unapplied

# A write of a shard then takes many transactions, and a state stays small.
APPLY_COUNT: Final = 64
APPLY_BYTES: Final = 256 * 1024
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
        registered = Registration(name, write.number)
        steps.append(
            Step(
                registered=registered,
                after=after,
                lower=one.lower,
                upper=one.upper,
                parts=unpacked(write.packed),
            )
        )
        after = one.upper
    return steps


def all_steps(state: TransactionState, name: str, shard: str) -> list[Step]:
    """Return the steps that bring a shard to the upper of its transactions, oldest first.

    The shard may be registered, forgotten, or unknown to these transactions.

    Raises:
        CorruptionError: see `steps_of`.
    """
    steps = steps_of(state, name, shard)
    found = state.tables.get(shard) or state.forgotten.get(shard)
    upper = upper_of(state, shard)
    if found is not None and upper is not None:
        steps.append(last_step(state, name, shard, found.number, upper))
    return steps


def shards_of(state: TransactionState) -> list[str]:
    """Return the shards of the transactions that are not known to be applied."""
    return sorted({shard for one in state.pending for shard in one.writes})


def waiting_bytes(state: TransactionState, shard: str, *, after: int) -> int:
    """Return the size of the descriptors that a shard with the upper ``after`` still needs."""
    needed = (one.writes.get(shard) for one in state.pending if one.upper > after)
    return sum(len(write.packed) for write in needed if write is not None)


def is_due(state: TransactionState, applied: Mapping[str, int]) -> bool:
    """Return True if so much waits that the next commit must apply it; see `APPLY_COUNT`."""
    left = unapplied(state.pending, applied)
    if len(left) >= APPLY_COUNT:
        return True
    return sum(len(w.packed) for one in left for w in one.writes.values()) >= APPLY_BYTES


def last_step(state: TransactionState, name: str, shard: str, number: int, upper: int) -> Step:
    """Return the step that brings a shard to ``upper``, after all its transactions below."""
    given = [one.upper for one in state.pending if shard in one.writes and one.lower < upper]
    after = given[-1] if given else 0
    registered = Registration(name, number)
    return Step(registered=registered, after=after, lower=after, upper=upper)


def upper_of(state: TransactionState, shard: str) -> int | None:
    """Return the upper to which transactions have written a shard; None if they never wrote it."""
    if shard in state.tables:
        return state.upper
    found: Forgotten | None = state.forgotten.get(shard)
    return None if found is None else found.upper


def unpacked(packed: bytes) -> tuple[Part, ...]:
    try:
        return _PARTS.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(
            "the list of a transaction's parts cannot be decoded: restore the state of the "
            "transactions from a backup, or from an older version of its object"
        ) from error
