"""The applier: it writes committed transactions to their shards, and ends registrations.

Any process may apply transactions: a committer, a merger, a sweep, or a reader of one shard. The
applier uses the machines of the states and not the handle of a shard, so that the handle can use
the applier.

The decisions are in `applying`, and for the shards' own states in
`tidelog.persist.states.registration`.
Source: design page 4, "Several shards at one time"; decision 28.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from tidelog.consensus.port import Consensus
from tidelog.core.clock import Clock
from tidelog.core.frontier import Frontier
from tidelog.core.ids import transactions_id
from tidelog.errors import NotRegistered, require
from tidelog.machine.machine import Machine
from tidelog.persist.handle.port import ShardHandle
from tidelog.persist.states.registration import (
    Step,
    decide_apply,
    decide_epoch_for,
    decide_leave,
    with_steps,
)
from tidelog.persist.states.state import Diff, State
from tidelog.persist.transactions.applying import all_steps, last_step, steps_of, upper_of
from tidelog.persist.transactions.language import TransactionLanguage
from tidelog.persist.transactions.state import TransactionDiff, TransactionState
from tidelog.persist.transactions.transition import called, decide_fence, decide_forget
from tidelog.store.port import Store

ShardMachine = Machine[State, Diff]
TransactionMachine = Machine[TransactionState, TransactionDiff]


def transaction_machine(
    name: str, store: Store, consensus: Consensus, clock: Clock
) -> TransactionMachine:
    """Return the machine of a transaction shard; this does no I/O."""
    return Machine(
        key=transactions_id(name),
        prefix=f"transactions/{name}",
        language=TransactionLanguage(),
        store=store,
        consensus=consensus,
        clock=clock,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Applier:
    """Applies the transactions of the transaction shard ``name``.

    ``shard`` returns the machine of a shard by its id.
    """

    name: str
    machine: TransactionMachine
    shard: Callable[[str], ShardMachine]

    async def upper_of(self, name: str) -> Frontier:
        """Return the upper to which transactions have written a shard."""
        return Frontier.at(upper_of(await self.machine.refresh(), name) or 0)

    async def applied(self, name: str, *, until: int | None = None) -> State:
        """Apply a shard's committed transactions of times below ``until``; return its state."""
        shard = self.shard(name)
        steps = steps_of(self.machine.state, self.name, name, until=until)
        known = shard.state.upper
        if steps and known is not None and known < steps[-1].upper:
            await _take(shard, steps)
        return shard.state

    async def catch_up(self, shard: ShardHandle, time: int | None) -> None:
        """Apply a shard's transactions, and advance its own upper past a time, if that is complete.

        This is for calls on the shard itself. Without writes and a time it costs one request.
        """
        registered = shard.state.registered
        state = await self.machine.refresh()
        gone = state.forgotten.get(shard.id)
        if gone is not None and gone.number >= registered.number:
            await self.forget(shard.id)  # Another process has begun to forget the shard.
            return
        upper = state.upper if shard.id in state.tables else 0
        await self.applied(shard.id)
        if time is not None and upper > time:
            last = last_step(state, self.name, shard.id, registered.number, upper)
            await self.shard(shard.id).commit(partial(decide_apply, step=last))

    async def is_registered(self, name: str) -> bool:
        """Return True if a commit may write a shard."""
        return name in (await self.machine.refresh()).tables

    async def forget(self, name: str) -> Frontier:
        """End the registration of a shard; return the upper to which transactions have written it.

        Raises:
            NotRegistered: the shard was never registered here.
        """
        shard = self.shard(name)
        found = (await shard.refresh()).registered
        state = await self.machine.refresh()
        gone = state.forgotten.get(name)
        if found.name != self.name:
            if gone is None:
                raise NotRegistered(
                    f"the shard {called(name)!r} is not registered in these transactions: "
                    "register it first"
                )
            return Frontier.at(gone.upper)
        number = found.number
        done = await self.machine.commit(lambda state: decide_forget(state, name, number))
        await self.applied(name)
        last = last_step(self.machine.state, self.name, name, number, done.upper)
        left = await shard.commit(lambda state: decide_leave(state, last))
        require(left, "a shard must have all its transactions before it is forgotten", shard=name)
        return Frontier.at(done.upper)

    async def raise_epoch(self, shard: ShardHandle) -> int:
        """Raise a shard's write epoch, so that unnamed parts become deletable; return it.

        Only the transaction shard names the parts that are committed but not applied. These are
        applied before the shard's epoch rises. Later commits have parts that the new epoch accepts.
        """
        registered, known = shard.state.registered, shard.state.write_epoch
        decide = partial(decide_fence, shard=shard.id, number=registered.number, epoch=known + 1)
        if not await self.machine.commit(decide):
            return known
        await self.applied(shard.id)
        return await shard.machine.commit(lambda state: decide_epoch_for(state, registered, known))


def applier_of(shard: ShardHandle) -> Applier:
    """Return an applier for one shard, of the transactions in which the shard is registered."""
    # A machine of its own, so that the state that the caller read does not change.
    own = replace(shard.machine)
    return Applier(
        name=shard.state.registered.name,
        machine=transaction_machine(
            shard.state.registered.name, shard.store, shard.consensus, shard.clock
        ),
        shard=lambda _: own,
    )


async def complete_state(shard: ShardHandle) -> State:
    """Return a shard's newest state; writes nothing.

    The state of a registered shard has the commits that the shard does not have yet.

    Raises:
        CorruptionError: a state is damaged. LocationError: the store failed.
    """
    state = await shard.refresh()
    if not state.registered.name:
        return state
    applier = applier_of(shard)
    steps = all_steps(await applier.machine.refresh(), applier.name, shard.id)
    # The shard is read after the transactions, which drop only what the shard already has.
    return with_steps(await shard.refresh(), steps)


async def _take(shard: ShardMachine, steps: list[Step]) -> None:
    left = steps
    # Commit all steps concurrently, because one record takes all waiting commands. Their order is
    # not defined, so a step may find an earlier one missing and is tried again.
    while left:
        decisions = [shard.commit(partial(decide_apply, step=step)) for step in left]
        found = await asyncio.gather(*decisions, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        require(found[0], "transactions must be applied in order", shard=shard.key)
        left = [step for step, done in zip(left, found, strict=True) if not done]
