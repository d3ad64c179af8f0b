"""Consensus of a group, at a small scope: one object holds the records of several keys.

A process has some calls, each with a record for one or more keys. It reads the object, and sends
all calls whose records are the next ones of their keys, with one put on condition that the object
is unchanged. An answer may be lost; that put then arrives later or never. The process reads the
object back. A call whose keys still have no such record is sent again. Another one is settled by
the ids of the newest writes, if the object can still have its id.

Checks at every step: the records of a write are there as a whole or not at all, an acknowledged
write is there, and a write that was reported lost never is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from sim.models.explore import STATES_MAX, Exploration, explore

BROKEN: Final = {
    "careless": "the object is replaced without the condition",
    "rash": "a call without an answer whose keys have moved reports a loss",
    "trustful": "a call without an answer whose keys have moved reports a success",
    "forgetful": "a call whose id may be forgotten reports a loss",
    "partial": "a call is sent if only its first key can take its record",
    "hasty": "a call that conflicts with another call of its put reports a loss at once",
}
# The keys of the calls of each process.
CALLS: Final = (((0, 1), (1,)), ((0,), (0, 1)), ((1,), (0,)))
KEYS: Final = 2
KEPT: Final = 1  # The ids of writes that an object keeps.


class GroupState(NamedTuple):
    """An object: the number of writes, the owners of each key's records, and the newest ids."""

    number: int = 0
    owners: tuple[tuple[str, ...], ...] = ((),) * KEYS
    writes: tuple[str, ...] = ()

    def takes(self, call: Call) -> bool:
        """Return True if each record of a call is the next one of its key."""
        return all(len(self.owners[key]) == seqno - 1 for key, seqno in call.records)


class Call(NamedTuple):
    """A call: its id, the seqno for each of its keys, and its answer (None: it is unknown).

    ``sent`` is the number of writes at its newest put, and -1 before the first one.
    """

    id: str
    records: tuple[tuple[int, int], ...]
    sent: int = -1
    is_done: bool = False
    answer: bool | None = None


class Put(NamedTuple):
    """A put under way; it needs the object to be the one that has this count and these ids."""

    expected: GroupState
    object: GroupState


class Process(NamedTuple):
    """A process: the object that it knows, and its calls."""

    stage: str = "resting"
    held: GroupState = GroupState()
    tries: int = 0
    calls: tuple[Call, ...] = ()


class State(NamedTuple):
    """A state of the model."""

    object: GroupState
    puts: frozenset[Put]
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The numbers of processes, of calls of each, and of puts. ``broken``: the dropped rule."""

    processes: int = 2
    calls: int = 2
    tries: int = 2
    broken: str | None = None

    def initial(self) -> State:
        made = tuple(
            Process(
                calls=tuple(
                    Call(f"{me}.{n}", tuple((key, 0) for key in keys))
                    for n, keys in enumerate(calls[: self.calls])
                )
            )
            for me, calls in enumerate(CALLS[: self.processes])
        )
        return State(GroupState(), frozenset(), made)


def model(scope: Scope, *, states_max: int = STATES_MAX) -> Exploration[State]:
    """Visit every run of a scope."""
    return explore(scope.initial(), partial(steps, scope), check=check, states_max=states_max)


def check(state: State) -> str | None:
    """Return a sentence for a violated check, or None."""
    for process in state.processes:
        for call in process.calls:
            has = [_has(state.object, call, key, seqno) for key, seqno in call.records]
            if any(has) and not all(has):
                return "a write is there in part"
            if call.is_done and call.answer and not all(has):
                return "a write that was acknowledged is not there"
            if call.is_done and call.answer is False and any(has):
                return "a write that was said to have lost is there"
            if call.is_done and call.answer is False and state.object.takes(call):
                return "a write was said to have lost, though no other one has its place"
    return None


def _has(found: GroupState, call: Call, key: int, seqno: int) -> bool:
    owners = found.owners[key]
    return 0 < seqno <= len(owners) and owners[seqno - 1] == call.id


def steps(scope: Scope, state: State) -> Iterator[tuple[str, State]]:
    for put in sorted(state.puts):
        left = state._replace(puts=state.puts - {put})
        yield "a put arrives late", _replaced(scope, left, put)[0]
    for me, process in enumerate(state.processes):
        for label, now, after in _act(scope, state, process):
            those = (*state.processes[:me], now, *state.processes[me + 1 :])
            yield f"process {me} {label}", after._replace(processes=those)


def _replaced(scope: Scope, state: State, put: Put) -> tuple[State, bool]:
    """Return the state after a put arrives, and whether it replaced the object."""
    if put.expected != state.object and scope.broken != "careless":
        return state, False
    return state._replace(object=put.object), True


def _act(scope: Scope, state: State, process: Process) -> Iterator[tuple[str, Process, State]]:
    if process.stage == "resting" and not all(call.is_done for call in process.calls):
        # Each call follows the records that its process has read.
        begun = tuple(
            call
            if call.is_done
            else call._replace(
                records=tuple((key, len(state.object.owners[key]) + 1) for key, _ in call.records),
                sent=-1,
            )
            for call in process.calls
        )
        yield "reads", process._replace(stage="ready", held=state.object, calls=begun), state
    elif process.stage == "ready":
        yield from _send(scope, state, process)
    elif process.stage == "unsure":
        settled = tuple(_settled(scope, call, state.object) for call in process.calls)
        now = process._replace(held=state.object, calls=settled, tries=process.tries + 1)
        if all(call.is_done for call in settled) or now.tries >= scope.tries:
            done = tuple(call._replace(is_done=True) for call in settled)
            yield "ends", Process("ended", GroupState(), 0, done), state
        else:
            yield "reads back", now._replace(stage="ready"), state


def _send(scope: Scope, state: State, process: Process) -> Iterator[tuple[str, Process, State]]:
    """Send a put with all calls that can land, or settle the calls that cannot."""
    held, grown, calls, sent = process.held, process.held, [], []
    for call in process.calls:
        fits = held.takes(call)
        if scope.broken == "partial":
            fits = held.takes(call._replace(records=call.records[:1]))
        now = call
        if not call.is_done and not fits:
            now = _settled(scope, call, held)
        elif not call.is_done and (grown.takes(call) or scope.broken == "partial"):
            now = call._replace(sent=held.number)
            grown = _with(grown, call)
            sent.append(call.id)
        elif not call.is_done and scope.broken == "hasty":
            now = call._replace(is_done=True, answer=False)
        calls.append(now)
    waiting = process._replace(calls=tuple(calls))
    if not sent:
        left = "resting" if not all(call.is_done for call in calls) else "ended"
        yield "sends nothing", waiting._replace(stage=left, held=GroupState()), state
        return
    put = Put(held, grown)
    unsure = waiting._replace(stage="unsure")
    yield "sends a put whose answer is lost", unsure, state._replace(puts=state.puts | {put})
    after, landed = _replaced(scope, state, put)
    if landed:
        answered = tuple(
            call._replace(is_done=True, answer=True) if call.id in sent else call for call in calls
        )
        unsure = Process("ready", grown, 0, answered)
    yield f"sends a put, {landed=}", unsure, after


def _with(found: GroupState, call: Call) -> GroupState:
    owners = list(found.owners)
    for key, seqno in call.records:
        if len(owners[key]) == seqno - 1:
            owners[key] = (*owners[key], call.id)
    return GroupState(found.number + 1, tuple(owners), (*found.writes, call.id)[-KEPT:])


def _settled(scope: Scope, call: Call, found: GroupState) -> Call:
    """Answer a call that can no longer land; another one stays as it is."""
    if call.is_done or found.takes(call):
        return call
    if call.sent < 0:
        return call._replace(is_done=True, answer=False)
    answer: bool | None = True if call.id in found.writes else None
    if answer is None and (found.number - call.sent <= KEPT or scope.broken == "forgetful"):
        answer = False
    if scope.broken in ("rash", "trustful"):
        answer = scope.broken == "trustful"
    return call._replace(is_done=True, answer=answer)
