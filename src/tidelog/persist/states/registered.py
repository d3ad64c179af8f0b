"""Shards that are registered in a transaction shard: who may write them, and what. Pure.

The shard's own state says where it is registered, so that whoever else would write it is refused,
whatever they know. It also counts how often it was registered: what was decided for one time is
told from what is decided for another.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidelog.errors import CorruptionError, UsageError
from tidelog.frontier import TIME_MAX, Frontier
from tidelog.machine.language import Decision
from tidelog.persist.format.part import Part
from tidelog.persist.states.holding import moved_by_append
from tidelog.persist.states.state import Diff, Registered, State, Token
from tidelog.persist.states.transition import (
    CompareAndAppend,
    Verdict,
    check_unregistered,
    decide_append,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What a shard was when it was registered: nobody but the transaction shard changes it."""

    registered: Registered
    upper: int
    write_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one transaction has for one shard: it follows whatever had brought it to ``after``."""

    registered: Registered
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
) -> Decision[Diff, Joined]:
    """Decide that a shard belongs to the transaction shard of a name, or find that it does.

    One that nobody has written gets its ``first_holds``, as nobody else is to write it.

    Raises:
        ShardRegistered: it belongs to another. UsageError: it is finished.
    """
    if state.upper is None:
        raise UsageError("the shard is finished: no transaction could write it")
    found = state.registered
    if found.name == name:
        return Decision(_joined(state, found))
    check_unregistered(state)
    registered = Registered(name, found.number + 1)
    founding = None if state.schema else schema
    is_new = state.upper == 0 and not state.commits
    holds, _ = moved_by_append(state, (is_new and first_holds) or {}, state.upper_frontier)
    diff = Diff(schema=founding, registered=registered, holds=holds)
    return Decision(_joined(state, registered), diff)


def _joined(state: State, registered: Registered) -> Joined:
    upper = TIME_MAX if state.upper is None else state.upper
    return Joined(registered=registered, upper=upper, write_epoch=state.write_epoch)


def decide_apply(state: State, step: Step) -> Decision[Diff, bool]:
    """Decide to give a shard what a transaction has for it, unless it has it; gives whether it has.

    It has not, where what comes before was not given to it.

    Raises:
        CorruptionError: the shard is not what the transaction shard knows it to be.
    """
    upper = TIME_MAX if state.upper is None else state.upper
    if step.upper <= upper:
        return Decision(True)
    if state.registered != step.registered:
        raise CorruptionError(
            "a shard is not registered where its transactions are, though not all were applied: an "
            "older state of it may have been put back",
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


def decide_leave(state: State, step: Step) -> Decision[Diff, bool]:
    """Decide that a shard is its own again, complete up to ``step.upper``.

    Gives whether it is: what comes before ``step.after`` may not have been given to it.
    """
    if state.registered != step.registered:
        return Decision(True)
    upper = TIME_MAX if state.upper is None else state.upper
    if upper < step.after:
        return Decision(False)
    own = Registered("", step.registered.number)
    if step.upper <= upper:
        return Decision(True, Diff(registered=own))
    return Decision(True, Diff(registered=own, upper=(step.upper,), token=step.token))


def decide_epoch_for(state: State, registered: Registered, known: int) -> Decision[Diff, int]:
    """Decide to raise the write epoch of a registered shard; gives the newest.

    Whoever asks has seen to it that all that was committed before is applied.
    """
    if state.write_epoch != known or state.registered != registered:
        return Decision(state.write_epoch)
    return Decision(known + 1, Diff(write_epoch=known + 1))
