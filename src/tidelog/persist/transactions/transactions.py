"""Transactions: the handle that writes several shards atomically, and reads them as of one time.

A commit is one change of the transaction shard's state. It names the parts that were uploaded for
each shard, and takes effect as a whole. The transaction is then *applied*: its parts are written to
each shard. Any process may do so at any time: the committer, a reader, or the next committer. Doing
it twice, or only in part, does no harm. A shard without writes costs nothing.

The decisions are in `transition` and `applying`, and for the shards' own states in
`tidelog.persist.states.registered`. This module runs them on machines.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from tidelog.consensus.port import Consensus
from tidelog.core.arguments import check_kind
from tidelog.core.clock import Clock, run_all
from tidelog.core.frontier import TIME_MAX, Frontier, check_time
from tidelog.core.ids import Named, ShardId, check_name, name_of, named_id
from tidelog.errors import (
    ContentionError,
    LocationError,
    NotRegistered,
    PartsSwept,
    UsageError,
    require,
)
from tidelog.machine.machine import Machine
from tidelog.persist.format.schema import encode_schema
from tidelog.persist.handle.argument_checks import (
    check_flag,
    check_tables,
    check_timeout,
    check_write_token,
)
from tidelog.persist.handle.listening import Patience, check_start
from tidelog.persist.handle.port import Progress, ShardHandle
from tidelog.persist.handle.shard import Shard
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.persist.states.registered import (
    Step,
    decide_apply,
    decide_epoch_for,
    decide_join,
    decide_leave,
)
from tidelog.persist.states.state import State, Token
from tidelog.persist.states.transition import Appended, Verdict
from tidelog.persist.transactions import committing, reading
from tidelog.persist.transactions.applying import last_step, shards_of, steps_of
from tidelog.persist.transactions.begun import Transaction
from tidelog.persist.transactions.language import TransactionLanguage
from tidelog.persist.transactions.state import TransactionDiff, TransactionState
from tidelog.persist.transactions.transition import (
    called,
    check_span,
    decide_fence,
    decide_forget,
    decide_register,
    decide_retry,
    decide_tidy,
)
from tidelog.store.port import Store

PENDING_MAX = 64  # A commit first applies the pending transactions if the state has this many.
TRIES_MAX = 20


@dataclass(slots=True, kw_only=True)
class Transactions:
    """A transaction shard. Opening it does no I/O; its first change creates it.

    With a ``kind``, callers name shards by their names of that kind, otherwise by their ids.
    ``shards`` are this handle's own handles of shards, by id, created when they are needed.
    """

    name: str
    kind: Named | None = None
    store: Store
    consensus: Consensus
    clock: Clock
    machine: Machine[TransactionState, TransactionDiff] = field(init=False)
    shards: dict[str, Shard] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.machine = Machine(
            key=named_id(Named.TRANSACTIONS, self.name),
            prefix=f"transactions/{self.name}",
            language=TransactionLanguage(),
            store=self.store,
            consensus=self.consensus,
            clock=self.clock,
        )

    def __repr__(self) -> str:
        return f"<tidelog transactions {self.name!r}>"

    @property
    def state(self) -> TransactionState:
        """The state as this handle last read it; other processes may have changed it since."""
        return self.machine.state

    async def refresh(self) -> TransactionState:
        """Read the newest state."""
        return await self.machine.refresh()

    async def upper(self) -> Frontier:
        """Return the upper that all registered shards share."""
        return (await self.refresh()).upper_frontier

    async def tables(self) -> list[str]:
        """Return the names of the registered shards."""
        tables = (await self.refresh()).tables
        return sorted(name_of(self.kind, one) or one if self.kind else one for one in tables)

    def _id(self, name: str) -> ShardId:
        if self.kind is None:
            return ShardId(check_name(name, of="name of a shard"))
        return named_id(self.kind, name)

    def shard(self, name: str) -> Shard:
        """Return this handle's own handle of a shard."""
        found = self.shards.get(name)
        if found is None:
            found = Shard(
                id=ShardId(name),
                store=self.store,
                consensus=self.consensus,
                clock=self.clock,
            )
            self.shards[name] = found
        return found

    async def register(self, shard: Shard) -> Frontier:
        """Register a shard, so that only these transactions write it; return the upper.

        The shard may not exist yet; its handle then needs a schema. From now on all other writes to
        the shard are refused. The call is idempotent.

        Raises:
            ShardRegistered: the shard is registered in other transactions.
            UsageError: the shard is finished, is not a shard, or does not exist and has no schema.
        """
        check_kind(shard, Shard, "shard must be a Shard, such as lake.shard(name)")
        await shard.refresh()
        schema = shard.state.schema or encode_schema(shard.written_schema())
        own = self.shard(shard.id)
        # First the shard, then the transactions: as soon as a transaction can write the shard, no
        # other writer can.
        for _ in range(TRIES_MAX):
            joined = await own.machine.commit(
                lambda state: decide_join(state, self.name, schema, first_holds=shard.first_holds)
            )
            decide = partial(decide_register, shard=shard.id, joined=joined)
            if await self.machine.commit(decide) is not None:
                return self.state.upper_frontier
            # Another process has begun to forget the shard, and may have died.
            await self.forget_id(shard.id)
        raise ContentionError(
            f"gave up after {TRIES_MAX} tries: other processes kept forgetting the shard; "
            "register it again",
            shard=shard.id,
        )

    async def forget(self, name: str) -> Frontier:
        """End the registration of a shard; return the upper to which transactions have written it.

        This commits the end of the registration, and then applies the shard's transactions. A
        repeated call completes a call that was interrupted.

        Raises:
            NotRegistered: the shard was never registered here.
        """
        return await self.forget_id(self._id(name))

    async def forget_id(self, name: str) -> Frontier:
        """End the registration of a shard, by its id; see `forget`."""
        shard = self.shard(name)
        found = (await shard.refresh()).registered
        state = await self.refresh()
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
        last = last_step(self.state, self.name, name, number, done.upper)
        left = await shard.machine.commit(lambda state: decide_leave(state, last))
        require(left, "a shard must have all its transactions before it is forgotten", shard=name)
        return Frontier.at(done.upper)

    async def begin(self) -> Transaction:
        """Begin a transaction that reads as of the newest complete time and writes at the next."""
        return Transaction(transactions=self, at=(await self.refresh()).upper)

    async def compare_and_append(
        self,
        updates: Mapping[str, pa.Table],
        expected_upper: Frontier | int,
        upper: Frontier | int,
        *,
        token: Token | None = None,
    ) -> Appended:
        """Append updates to several shards, all or none, if upper is the expected one.

        Shape: ``updates`` by the names of shards, each as in `ShardSchema.updates`, at times in
            ``[expected_upper, upper)``. Without updates, only the upper of all shards moves.

        With the ``token`` of an earlier call, a transaction that was committed then returns
        ALREADY. After a commit, this call also applies the transaction, unless the store fails.

        Raises:
            UpperMismatch: upper is another; the error names it. NOT_APPLIED.
            DataDiffers: the token was used for other updates. NOT_APPLIED.
            NotRegistered: a shard is not registered. UsageError: updates do not fit. NOT_APPLIED.
            OutcomeUnknown: the retry is too old to be recognized. LocationError: the store failed.
        """
        done = await self.try_compare_and_append(updates, expected_upper, upper, token=token)
        return done.landed(expected=Frontier.of(expected_upper))

    async def try_compare_and_append(
        self,
        updates: Mapping[str, pa.Table],
        expected_upper: Frontier | int,
        upper: Frontier | int,
        *,
        token: Token | None = None,
    ) -> Appended:
        """Append as `compare_and_append` does, but return a MISMATCH instead of raising.

        Raises:
            The errors of `compare_and_append`, except UpperMismatch.
        """
        check_write_token(token)
        return await self.commit(updates, expected_upper, upper, token=token)

    async def commit(
        self,
        updates: Mapping[str, pa.Table],
        expected_upper: Frontier | int,
        upper: Frontier | int,
        *,
        token: Token | None,
        is_begun: bool = False,
    ) -> Appended:
        """Append as `try_compare_and_append` does; if ``is_begun``, the token is used only here."""
        tables: dict[str, pa.Table] = {
            self._id(name): table for name, table in check_tables(updates).items()
        }
        lower, until = Frontier.of(expected_upper), Frontier.of(upper)
        if lower.is_empty or until.is_empty:
            raise UsageError("transactions cannot be finished: forget a shard, then finish it")
        check_span(lower.time, until.time, rows=sum(t.num_rows for t in tables.values()))
        if len(self.state.pending) >= PENDING_MAX:
            await self.apply()
        try:
            done = await committing.commit(
                self, tables, lower, until, token, keeps_digest=not (token is None or is_begun)
            )
        except (UsageError, PartsSwept):
            # The token may have been committed before, and its shard forgotten or its columns
            # changed since.
            told = token and decide_retry(await self.refresh(), token, lower.time, until.time)
            if not told:
                raise
            done = told
        if token is not None and done.verdict is Verdict.ALREADY:
            await committing.check_retry(self, tables, lower, until, token)
        if done.verdict is Verdict.COMMITTED:
            # The commit is stored, so a failure here is no error: the next process applies the
            # rest.
            with suppress(LocationError, ContentionError):
                await self._apply_known()
        return done

    def seen(self) -> dict[str, int]:
        """Return the uppers of shards that this handle has seen."""
        known = ((name, shard.state.upper) for name, shard in self.shards.items())
        return {name: TIME_MAX if upper is None else upper for name, upper in known}

    async def apply(self) -> int:
        """Apply the committed transactions to all shards; return how many shards needed it.

        Raises:
            LocationError: the store failed; a later call applies the rest.
        """
        await self.refresh()
        return await self._apply_known()

    async def _apply_known(self) -> int:
        names = shards_of(self.state)
        await run_all([partial(self.applied, name) for name in names], at_once=8)
        return len(names)

    async def applied(self, name: str, *, until: int | None = None) -> State:
        """Apply a shard's committed transactions of times below ``until``; return its state."""
        shard = self.shard(name)
        steps = steps_of(self.state, self.name, name, until=until)
        known = shard.state.upper
        if steps and known is not None and known < steps[-1].upper:
            await self._take(shard, steps)
        return shard.state

    async def _take(self, shard: ShardHandle, steps: list[Step]) -> None:
        left = steps
        # Commit all steps concurrently, because one record takes all waiting commands. Their order
        # is not defined, so a step may find an earlier one missing and is tried again.
        while left:
            decisions = [shard.machine.commit(partial(decide_apply, step=step)) for step in left]
            found = await asyncio.gather(*decisions, return_exceptions=True)
            for one in found:
                if isinstance(one, BaseException):
                    raise one
            require(found[0], "transactions must be applied in order", shard=shard.id)
            left = [step for step, done in zip(left, found, strict=True) if not done]

    async def tidy(self) -> int:
        """Apply the rest, and drop from the state what all shards have; return the number."""
        await self.apply()
        applied = self.seen()
        return await self.machine.commit(lambda state: decide_tidy(state, applied))

    async def snapshot(
        self, name: str, as_of: int, *, wait: bool = False, timeout_us: int | None = None
    ) -> ShardSnapshot:
        """Return the contents of a shard at ``as_of``, a time that is complete for all shards.

        ``wait`` and ``timeout_us`` are those of `Shard.snapshot`.

        Raises:
            NotRegistered: the shard is not registered. AsOfBeforeSince: the time is no longer kept.
            AsOfNotComplete, DeadlineExceeded: see `Shard.snapshot`.
        """
        check_time(as_of)
        check_flag(wait, "wait")
        check_timeout(timeout_us)
        patience = Patience(wait=wait, timeout_us=timeout_us)
        return await reading.snapshot(self, self._id(name), as_of, patience)

    async def listen(self, name: str, as_of: int, *, wait: bool = False) -> AsyncIterator[Progress]:
        """Yield all updates of a shard at times after ``as_of``, as they become complete.

        Raises:
            NotRegistered, AsOfBeforeSince, AsOfNotComplete: see `snapshot`.
            UsageError: no time follows ``as_of``.
        """
        check_flag(wait, "wait")
        start = check_start(as_of)
        async with aclosing(reading.listen(self, self._id(name), start, wait=wait)) as found:
            async for progress in found:
                yield progress

    async def catch_up(self, shard: ShardHandle, time: int) -> None:
        """Advance a shard's own upper past a time, if transactions are complete past it.

        This is for readers that open the shard itself. Without writes it costs one request.
        """
        registered = shard.state.registered
        state = await self.refresh()
        gone = state.forgotten.get(shard.id)
        if gone is not None and gone.number >= registered.number:
            await self.forget_id(shard.id)  # Another process has begun to forget the shard.
            return
        upper = state.upper if shard.id in state.tables else 0
        await self.applied(shard.id)
        if upper > time:
            last = last_step(state, self.name, shard.id, registered.number, upper)
            await self.shard(shard.id).machine.commit(partial(decide_apply, step=last))

    async def raise_epoch(self, shard: Shard) -> int:
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


def transactions_of(shard: ShardHandle) -> Transactions:
    """Return a handle of the transactions in which a shard is registered."""
    return Transactions(
        name=shard.state.registered.name,
        store=shard.store,
        consensus=shard.consensus,
        clock=shard.clock,
    )
