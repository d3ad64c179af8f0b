"""Consensus on an object that is replaced conditionally, at a small scope.

A proposer reads the object, and puts an object with one record more, on condition that the object
is unchanged. Older records first move to an object of their own, a spill. An answer may be lost;
that put then arrives later or never. A proposer without an answer, or one that lost the race, reads
the object. While the head is unchanged, it sends the same body again. Otherwise the object or a
spill names the record's owner. A truncation replaces the object without old records, **then**
deletes their spills.

Checks at every step: an acknowledged record is there, a record reported lost never is, and each
spill that the object names exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from sim.models.explore import STATES_MAX, Exploration, explore

BROKEN: Final = {
    "careless": "the object is replaced without the condition",
    "rash": "a proposer without an answer that finds a moved head reports a loss",
    "trustful": "a proposer without an answer that finds a moved head reports a success",
    "renamed": "a body that is sent again has another write id",
    "shallow": "a proposer does not look for its record in the spills",
    "guesses": "a proposer whose record was truncated reports another owner",
    "swift": "a truncation deletes the spills before it replaces the object",
    "late": "a spill is written after the object that names it",
}

Entry = tuple[int, str]  # A seqno, and the id of the write that won it.
KEPT: Final = 1  # Records that an object keeps when it spills, and writes that it remembers.


class StoredObject(NamedTuple):
    """An object; ``stamp`` makes it unique; a spill is named by its last seqno."""

    stamp: str = ""
    records: tuple[Entry, ...] = ()
    spills: tuple[int, ...] = ()
    writes: tuple[Entry, ...] = ()

    @property
    def head(self) -> int:
        return self.writes[-1][0] if self.writes else 0


class Put(NamedTuple):
    """A put under way; it needs the object to have the stamp ``expected``."""

    expected: str
    object: StoredObject


class Client(NamedTuple):
    """A proposer: the object that it read, and the answers it got for its records."""

    stage: str = "resting"
    held: StoredObject = StoredObject()
    number: int = 0
    tries: int = 0
    seqno: int = 0
    told: tuple[tuple[int, str, bool], ...] = ()


class Cutter(NamedTuple):
    """A client that truncates down to the newest record."""

    stage: str = "resting"
    held: StoredObject = StoredObject()
    cuts: int = 0


class State(NamedTuple):
    """A state; ``won`` is the true owner of each record, in order, even of those in no object."""

    object: StoredObject
    won: tuple[str, ...]
    spilled: frozenset[tuple[int, tuple[Entry, ...]]]
    puts: frozenset[Put]
    clients: tuple[Client, ...]
    cutter: Cutter


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The numbers of clients, records and steps. ``broken``: the rule that is dropped."""

    clients: int = 2
    records: int = 1
    tries: int = 2
    cuts: int = 0
    broken: str | None = None

    def initial(self) -> State:
        nothing = frozenset[Put]()
        clients = (Client(),) * self.clients
        return State(StoredObject(), (), frozenset(), nothing, clients, Cutter())


def model(scope: Scope, *, states_max: int = STATES_MAX) -> Exploration[State]:
    """Visit every run of a scope."""
    return explore(
        scope.initial(),
        partial(steps, scope),
        check=check,
        states_max=states_max,
    )


def check(state: State) -> str | None:
    """Return a sentence for a violated check, or None."""
    there = {last for last, _ in state.spilled}
    if not there >= set(state.object.spills):
        return "a spill that the object names is not there"
    for client in state.clients:
        for seqno, write_id, landed in client.told:
            # Compare by call, since a call has several ids if that rule is broken.
            call = write_id.rpartition(".")[0]
            has = len(state.won) >= seqno and state.won[seqno - 1].rpartition(".")[0] == call
            if landed and not has:
                return "a write that was acknowledged is not there"
            if has and not landed:
                return "a write that was said to have lost is there"
    return None


def steps(scope: Scope, state: State) -> Iterator[tuple[str, State]]:
    for put in sorted(state.puts):
        left = state._replace(puts=state.puts - {put})
        yield "a put arrives late", _replaced(scope, left, put)[0]
    for me, client in enumerate(state.clients):
        for label, now, after in _propose(scope, state, me, client):
            those = (*state.clients[:me], now, *state.clients[me + 1 :])
            yield f"client {me} {label}", after._replace(clients=those)
    for label, cutter, after in _cut(scope, state):
        yield f"cutter {label}", after._replace(cutter=cutter)


def _replaced(scope: Scope, state: State, put: Put) -> tuple[State, bool]:
    """Return the state after a put arrives, and whether it replaced the object."""
    if put.expected != state.object.stamp and scope.broken != "careless":
        return state, False
    won = state.won
    if put.object.head:
        seqno, write_id = put.object.writes[-1]
        won = (*won[: seqno - 1], write_id, *won[seqno:])
    return state._replace(object=put.object, won=won), True


def _write_id(scope: Scope, me: int, client: Client) -> str:
    again = client.tries if scope.broken == "renamed" else 0
    return f"{me}.{client.number}.{again}"


def _propose(
    scope: Scope, state: State, me: int, client: Client
) -> Iterator[tuple[str, Client, State]]:
    stage = client.stage
    if stage == "resting" and client.number < scope.records:
        seqno = state.object.head + 1
        yield (
            "reads the object",
            client._replace(stage="ready", held=state.object, seqno=seqno),
            state,
        )
    elif stage == "ready":
        yield from _send(scope, state, me, client)
    elif stage == "unsure" and state.object.head >= client.seqno:
        yield from _settle(scope, state, me, client)
    elif stage == "unsure":
        now = client._replace(stage="ready", held=state.object, tries=client.tries + 1)
        gave_up = client.tries + 1 >= scope.tries
        yield "reads back", _next(client) if gave_up else now, state


def _send(
    scope: Scope, state: State, me: int, client: Client
) -> Iterator[tuple[str, Client, State]]:
    write_id = _write_id(scope, me, client)
    entry = (client.seqno, write_id)
    held = client.held
    body = StoredObject(
        write_id, (*held.records, entry), held.spills, (*held.writes, entry)[-KEPT:]
    )
    old = body.records[:-KEPT]
    if len(body.records) > KEPT + 1:
        body = body._replace(records=body.records[-KEPT:], spills=(*body.spills, old[-1][0]))
        if scope.broken != "late":
            state = state._replace(spilled=state.spilled | {(old[-1][0], old)})
    put = Put(held.stamp, body)
    unsure = client._replace(stage="unsure")
    yield "sends an object whose answer is lost", unsure, state._replace(puts=state.puts | {put})
    after, landed = _replaced(scope, state, put)
    told = (client.seqno, write_id, True)
    now = _next(client._replace(told=(*client.told, told))) if landed else unsure
    yield f"sends an object, {landed=}", now, after


def _settle(
    scope: Scope, state: State, me: int, client: Client
) -> Iterator[tuple[str, Client, State]]:
    """Determine the owner of an existing record: this client, another, or unknown."""
    write_id = _write_id(scope, me, client)
    known = dict((*state.object.records, *state.object.writes))
    if scope.broken != "shallow":
        for last, entries in state.spilled:
            known |= dict(entries) if last in state.object.spills else {}
    owner = known.get(client.seqno)
    is_ours: bool | None = None if owner is None else owner == write_id
    if scope.broken in ("rash", "trustful"):
        is_ours = scope.broken == "trustful"
    elif is_ours is None and scope.broken in ("guesses", "shallow"):
        is_ours = False
    told = client.told if is_ours is None else (*client.told, (client.seqno, write_id, is_ours))
    yield f"looks whose it is, {is_ours=}", _next(client._replace(told=told)), state


def _next(client: Client) -> Client:
    return Client("resting", StoredObject(), client.number + 1, 0, 0, client.told)


def _cut(scope: Scope, state: State) -> Iterator[tuple[str, Cutter, State]]:
    stage, held, cuts = state.cutter
    if stage == "resting" and cuts < scope.cuts and state.object.head > 1:
        yield "reads the object", Cutter("ready", state.object, cuts), state
    elif stage == "ready":
        body = held._replace(stamp=f"cut {cuts}", records=held.records[-1:], spills=())
        put, after = Put(held.stamp, body), state
        if scope.broken == "swift":
            after = _without(state, held)
        lost = Cutter("resting", StoredObject(), cuts + 1)
        yield "sends an object whose answer is lost", lost, after._replace(puts=after.puts | {put})
        landed_state, landed = _replaced(scope, after, put)
        now = Cutter("deleting", held, cuts) if landed else lost
        yield f"sends an object, {landed=}", now, landed_state
    elif stage == "deleting":
        yield (
            "deletes the spills",
            Cutter("resting", StoredObject(), cuts + 1),
            _without(state, held),
        )


def _without(state: State, held: StoredObject) -> State:
    gone = frozenset(one for one in state.spilled if one[0] in held.spills)
    return state._replace(spilled=state.spilled - gone)
