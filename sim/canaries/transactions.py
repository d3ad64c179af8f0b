"""Canaries of transactions: builds that split them, lose them, or let other writes in between.

Each is a context manager: inside the block, the code has the fault of its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Final
from unittest.mock import patch

import pyarrow as pa

from tidelog.core.frontier import Frontier
from tidelog.machine.language import Decision
from tidelog.persist.format import part
from tidelog.persist.format.part import Part
from tidelog.persist.handle.port import ShardHandle
from tidelog.persist.maintenance import sweeper
from tidelog.persist.read import opened
from tidelog.persist.states import registration, transition
from tidelog.persist.states.registration import JoinResult, Step, decide_epoch_for
from tidelog.persist.states.state import Diff, State, apply_diff
from tidelog.persist.states.transition import AppendResult, Verdict
from tidelog.persist.transactions import applier, committing, next_time, reading, transactions
from tidelog.persist.transactions import transition as decisions
from tidelog.persist.transactions.applying import steps_of
from tidelog.persist.transactions.state import TransactionState
from tidelog.persist.transactions.transactions import Transactions
from tidelog.persist.transactions.transition import CommitTransaction, Decided


@contextmanager
def sweep_raises_the_epoch_alone() -> Iterator[None]:
    """A sweep raises the epoch of a registered shard like that of any shard."""

    async def alone(shard: ShardHandle) -> None:
        here, known = shard.state.registered, shard.state.write_epoch
        await shard.machine.commit(lambda state: decide_epoch_for(state, here, known))

    with patch.object(sweeper, "raise_epoch", alone):
        yield


@contextmanager
def fence_is_not_kept() -> Iterator[None]:
    """Parts are committed whatever their epoch is."""

    def lax(*_: object) -> None:
        return None

    with patch.object(decisions, "check_write", lax), patch.object(next_time, "check_write", lax):
        yield


@contextmanager
def tidy_believes_all_is_applied() -> Iterator[None]:
    """Committed writes are dropped before their shards have applied them."""

    def everything(found: Transactions) -> dict[str, int]:
        return dict.fromkeys(found.state.tables, found.state.upper)

    with patch.object(Transactions, "seen", everything):
        yield


@contextmanager
def reader_applies_nothing() -> Iterator[None]:
    """A reader does not add the unapplied transactions to those of the shard."""

    async def as_it_is(found: Transactions, name: str, *, until: int) -> State:
        del until
        return await found.shard(name).refresh()

    with patch.object(reading, "read_committed", as_it_is):
        yield


@contextmanager
def shard_is_not_told_that_it_is_registered() -> Iterator[None]:
    """A writer that ignores transactions can write to a registered shard."""

    def let_in(_: State) -> None:
        return None

    with (
        patch.object(transition, "check_unregistered", let_in),
        patch.object(registration, "check_unregistered", let_in),
    ):
        yield


@contextmanager
def shard_leaves_before_it_has_all() -> Iterator[None]:
    """A shard leaves while some of its committed writes are not applied."""
    leave = registration.decide_leave

    def early(state: State, step: Step) -> Decision[Diff, bool]:
        own = leave(state, step)
        if own.diff is None or own.diff.registered is None:
            return own
        return Decision(True, Diff(registered=own.diff.registered))

    with patch.object(applier, "decide_leave", early):
        yield


@contextmanager
def commit_forgets_transactions_tokens() -> Iterator[None]:
    """A retry becomes a new transaction."""

    def nothing(*_: object) -> None:
        return None

    with patch.object(decisions, "decide_retry", nothing):
        yield


@contextmanager
def retries_ask_only_for_shards() -> Iterator[None]:
    """A retry of a committed transaction is refused if one of its shards was forgotten since."""

    def nothing(*_: object) -> None:
        return None

    with patch.object(transactions, "decide_retry", nothing):
        yield


@contextmanager
def registration_forgets_where_the_shard_was() -> Iterator[None]:
    """A shard is registered at the transactions' upper, though its own is past it."""
    decide = decisions.decide_register

    def at_ours(state: TransactionState, shard: str, joined: JoinResult) -> object:
        here = JoinResult(registered=joined.registered, upper=0, write_epoch=joined.write_epoch)
        return decide(state, shard, here)

    with patch.object(transactions, "decide_register", at_ours):
        yield


@contextmanager
def commit_leaves_out_a_shard() -> Iterator[None]:
    """A decision names the parts of one shard only."""
    decide = decisions.decide_commit

    def torn(state: TransactionState, command: CommitTransaction) -> Decided:
        some = dict(list(command.writes.items())[:1])
        return decide(state, replace(command, writes=some))

    with patch.object(committing, "decide_commit", torn):
        yield


@contextmanager
def who_lost_is_told_that_they_won() -> Iterator[None]:
    """A lost race is reported as a commit."""
    decide = decisions.decide_commit

    def flattering(state: TransactionState, command: CommitTransaction) -> Decided:
        own = decide(state, command)
        if own.result.verdict is not Verdict.MISMATCH:
            return own
        return Decision(AppendResult(Verdict.COMMITTED, own.result.upper))

    with patch.object(committing, "decide_commit", flattering):
        yield


@contextmanager
def reader_believes_what_it_knows() -> Iterator[None]:
    """The upper is cached once it is not 0."""
    upper = Transactions.upper
    newest: dict[str, Frontier] = {}

    async def known(found: Transactions) -> Frontier:
        if found.name not in newest or newest[found.name] == Frontier.at(0):
            newest[found.name] = await upper(found)
        return newest[found.name]

    with patch.object(Transactions, "upper", known):
        yield


Canary = Callable[[], AbstractContextManager[None]]
FOR_TRANSACTIONS: Final[tuple[Canary, ...]] = (
    fence_is_not_kept,
    tidy_believes_all_is_applied,
    reader_applies_nothing,
    shard_is_not_told_that_it_is_registered,
    shard_leaves_before_it_has_all,
    commit_forgets_transactions_tokens,
    registration_forgets_where_the_shard_was,
)
# A checker that knows calls and answers only can catch these.
FROM_OUTSIDE: Final[tuple[Canary, ...]] = (
    reader_applies_nothing,
    commit_forgets_transactions_tokens,
    commit_leaves_out_a_shard,
    who_lost_is_told_that_they_won,
    reader_believes_what_it_knows,
)


@contextmanager
def commit_that_read_never_conflicts() -> Iterator[None]:
    """A transaction that read first is committed, whatever was written since."""

    def never(*_: object) -> list[str]:
        return []

    with patch.object(next_time, "moved_since", never):
        yield


@contextmanager
def retry_at_the_next_time_is_a_new_commit() -> Iterator[None]:
    """A retry of a commit at the next time becomes a new commit."""

    def nothing(*_: object) -> None:
        return None

    with patch.object(next_time, "decide_next_retry", nothing):
        yield


@contextmanager
def moved_parts_keep_their_stored_times() -> Iterator[None]:
    """A reader takes the times of the stored bytes, though the commit moved them."""

    def as_stored(_: Part, updates: pa.Table) -> pa.Table:
        return updates

    with patch.object(part, "at_commit", as_stored), patch.object(opened, "at_commit", as_stored):
        yield


@contextmanager
def reader_reads_the_shard_first() -> Iterator[None]:
    """A reader reads the shard before the transactions, which may drop a commit in between."""

    async def too_early(found: Transactions, name: str, *, until: int) -> State:
        state = await found.shard(name).refresh()
        await found.clock.sleep(100_000)
        await found.refresh()
        for step in steps_of(found.state, found.name, name, until=until):
            done = registration.decide_apply(state, step)
            state = state if done.diff is None else apply_diff(state, done.diff)
        return state

    with patch.object(reading, "read_committed", too_early):
        yield


FOR_INSERTS: Final[tuple[Canary, ...]] = (
    commit_that_read_never_conflicts,
    retry_at_the_next_time_is_a_new_commit,
    moved_parts_keep_their_stored_times,
    reader_reads_the_shard_first,
    reader_applies_nothing,
    tidy_believes_all_is_applied,
    sweep_raises_the_epoch_alone,
    fence_is_not_kept,
)
