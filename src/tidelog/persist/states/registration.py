"""Shards that are registered in a transaction shard: their allowed writers and writes. Pure.

The shard's own state names its transaction shard, so every other writer is refused, even one that
does not know of the registration. The state also counts its registrations, so a decision for an
earlier registration cannot be applied in a later one.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog.core.frontier import TIME_MAX, Frontier
from tidelog.errors import CorruptionError, UsageError, require
from tidelog.machine.language import Decision
from tidelog.persist.format.part import Part
from tidelog.persist.states.holding import moved_by_append
from tidelog.persist.states.state import Diff, Registration, State, Token, apply_diff
from tidelog.persist.states.transition import (
    CompareAndAppend,
    Verdict,
    check_unregistered,
    decide_append,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """Facts about a shard at its registration; only the transaction shard changes them later."""

    registered: Registration
    upper: int
    write_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The part of one transaction for one shard; it applies once the shard's upper is ``after``."""

    registered: Registration
    after: int
    lower: int
    upper: int
    parts: Sequence[Part] = ()

    @property
    def token(self) -> Token:
        return f"transactions {self.registered.name}", self.upper


def decide_join(
    state: State,
    name: str,
    schema: bytes,
    *,
    first_holds: Mapping[str, Frontier] | None = None,
) -> Decision[Diff, JoinResult]:
    """Decide to register a shard in the transaction shard of this name, or find it registered.

    A shard that was never written gets its ``first_holds``, because no other writer can create
    them.

    Raises:
        ShardRegistered: another transaction shard has it. UsageError: the shard is finished.
    """
    if state.upper is None:
        raise UsageError(
            "the shard is finished, so no transaction can write to it: use another shard"
        )
    found = state.registered
    if found.name == name:
        return Decision(_joined(state, found))
    check_unregistered(state)
    registered = Registration(name, found.number + 1)
    founding = None if state.schema else schema
    is_new = state.upper == 0 and not state.commits
    holds, _ = moved_by_append(state, (is_new and first_holds) or {}, state.upper_frontier)
    diff = Diff(schema=founding, registered=registered, holds=holds)
    return Decision(_joined(state, registered), diff)


def _joined(state: State, registered: Registration) -> JoinResult:
    upper = TIME_MAX if state.upper is None else state.upper
    return JoinResult(registered=registered, upper=upper, write_epoch=state.write_epoch)


def decide_apply(state: State, step: Step) -> Decision[Diff, bool]:
    """Decide to write a transaction's part to its shard; the result is whether the shard has it.

    The shard does not have it if an earlier part is still missing.

    Raises:
        CorruptionError: the shard's registration differs from the one that the transaction shard
            has.
    """
    upper = TIME_MAX if state.upper is None else state.upper
    # First, because the shard may have been forgotten, and registered elsewhere, after this step
    # was applied.
    if step.upper <= upper:
        return Decision(True)
    if state.registered != step.registered:
        raise CorruptionError(
            "the shard's registration differs from that of its unapplied transactions: if its "
            "state was restored from an older copy, restore the newest one",
            registered=state.registered.name,
            transactions=step.registered.name,
        )
    if upper < step.after:
        return Decision(False)
    command = CompareAndAppend(
        schema=state.schema,
        parts=step.parts,
        expected_upper=Frontier.at(upper),
        upper=Frontier.at(step.upper),
        token=step.token,
        fresh=True,
    )
    done = decide_append(state, command, by=step.registered)
    return Decision(done.result.verdict is not Verdict.MISMATCH, done.diff)


def with_steps(state: State, steps: Sequence[Step]) -> State:
    """Return the state that a shard has after these steps: the view of a reader. Writes nothing.

    The shard's state must be newer than that of the transactions. In the other order, a transaction
    that was applied and dropped in between is missing from both.

    Raises:
        CorruptionError: see `decide_apply`.
    """
    for step in steps:
        done = decide_apply(state, step)
        require(done.result, "a shard must have the transactions that are no longer pending")
        if done.diff is not None:
            state = apply_diff(state, done.diff)
    return state


def decide_leave(state: State, step: Step) -> Decision[Diff, bool]:
    """Decide to end a shard's registration, complete up to ``step.upper``.

    The result is False if the shard is still behind ``step.after``.
    """
    if state.registered != step.registered:
        # Another process ended this registration. The shard may be registered again since, with a
        # greater number, so this decision must not end that registration.
        return Decision(True)
    upper = TIME_MAX if state.upper is None else state.upper
    if upper < step.after:
        return Decision(False)
    # The number stays, so the next registration gets another one, also in the same transaction
    # shard. Steps of this registration never match it.
    own = Registration("", step.registered.number)
    if step.upper <= upper:
        return Decision(True, Diff(registered=own))
    return Decision(True, Diff(registered=own, upper=(step.upper,), token=step.token))


def decide_epoch_for(state: State, registered: Registration, known: int) -> Decision[Diff, int]:
    """Decide to raise the write epoch of a registered shard; the result is the newest epoch.

    The caller must first apply all committed transactions.
    """
    if state.write_epoch != known or state.registered != registered:
        return Decision(state.write_epoch)
    return Decision(known + 1, Diff(write_epoch=known + 1))
