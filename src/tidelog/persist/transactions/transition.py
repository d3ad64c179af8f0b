"""Transitions of a transaction shard: pure functions from its state and a command to a decision.

Each commit must be applicable to each of its shards later, when it can no longer be refused. Every
reason for a refusal is therefore checked here. Each shard is registered, and its parts were written
in the same registration, so they have the same schema. The parts belong to a write epoch that the
shard still accepts. That epoch is raised here first (`decide_fence`), and in the shard only after
all earlier commits are applied. Later commits are checked against the new epoch.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from tidelog.core.frontier import Frontier
from tidelog.core.ids import NamedKind, name_of
from tidelog.errors import NotRegistered, OutcomeUnknown, UsageError
from tidelog.machine.language import Decision
from tidelog.persist.format.part import Part
from tidelog.persist.states.registration import JoinResult
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import (
    AppendResult,
    Verdict,
    check_epochs,
    check_same_interval,
    check_times,
    reused,
    sum_t_of,
)
from tidelog.persist.transactions.state import (
    Committed,
    Forgotten,
    RegisteredShard,
    TransactionDiff,
    TransactionState,
    Write,
    unapplied,
)

Decided = Decision[TransactionDiff, AppendResult]


@dataclass(frozen=True, slots=True)
class TableParts:
    """Parts for one shard, written in its registration ``number``."""

    number: int
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTransaction:
    """Parts for the times ``[expected_upper, upper)``, by shard.

    ``fresh`` states that the token was made for this call. ``applied`` are uppers that shards have
    reached; the state drops the writes below them. With ``keeps_digest``, a later call may repeat
    the token, and its updates are compared with these.
    """

    writes: Mapping[str, TableParts]
    expected_upper: int
    upper: int
    token: Token
    fresh: bool
    applied: Mapping[str, int]
    keeps_digest: bool = False


def decide_commit(state: TransactionState, command: CommitTransaction) -> Decided:
    """Decide a transaction, as `persist.states.transition.decide_append` does for one shard.

    Raises:
        OutcomeUnknown: a retry so old that its token may have been forgotten.
        NotRegistered: a shard is not registered here.
        PartsSwept: parts are so old that a sweep may have deleted them.
        UsageError: a part's times are outside the interval.
    """
    lower, upper = command.expected_upper, command.upper
    check_span(lower, upper, rows=sum(len(w.parts) for w in command.writes.values()))
    told = None if command.fresh else decide_retry(state, command.token, lower, upper)
    if told is not None:
        return Decision(told)
    if lower != state.upper:
        return Decision(AppendResult(Verdict.MISMATCH, state.upper_frontier))
    for shard, write in command.writes.items():
        check_write(state, shard, write, lower, upper)
    if lower == upper:
        return Decision(AppendResult(Verdict.COMMITTED, state.upper_frontier))
    writes = {
        shard: Write(write.number, msgspec.msgpack.encode(tuple(write.parts)))
        for shard, write in command.writes.items()
        if write.parts
    }
    sums = {shard: sum_t_of(write.parts) for shard, write in command.writes.items() if write.parts}
    applied = useful(state, command.applied)
    diff = TransactionDiff(
        upper=upper,
        token=command.token,
        digest=digest_of(sums) if command.keeps_digest else b"",
        writes=writes,
        applied=applied,
    )
    return Decision(AppendResult(Verdict.COMMITTED, Frontier.at(upper)), diff)


def digest_of(sums: Mapping[str, bytes]) -> bytes:
    """Return a digest of a transaction's updates, made of T of each shard that has updates."""
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode(dict(sorted(sums.items()))))


def check_span(lower: int, upper: int, *, rows: int) -> None:
    """Check the interval, as far as possible without a state.

    Raises:
        UsageError: lower is past upper, or an empty interval has updates.
    """
    if lower > upper:
        raise UsageError(
            "expected_upper must not be past upper: pass a greater upper",
            expected_upper=lower,
            upper=upper,
        )
    if rows and lower == upper:
        raise UsageError(
            "an empty interval cannot have updates: pass a greater upper", lower=lower, upper=upper
        )


def check_write(
    state: TransactionState, shard: str, write: TableParts, lower: int, upper: int
) -> None:
    table = table_of(state, shard)
    if table.number != write.number:
        raise NotRegistered(
            f"the shard {called(shard)!r} was registered again after its rows were written: write "
            "them again"
        )
    check_times(write.parts, Frontier.at(lower), Frontier.at(upper))
    check_epochs(table.write_epoch, write.parts)


def called(shard: str) -> str:
    """Return the name of a shard as its creator gave it, or its id."""
    return name_of(NamedKind.SHARD, shard) or shard


def table_of(state: TransactionState, shard: str) -> RegisteredShard:
    """Return the entry of a registered shard.

    Raises:
        NotRegistered: the shard is not registered.
    """
    found = state.tables.get(shard)
    if found is None:
        forgotten = "no longer" if shard in state.forgotten else "not"
        raise NotRegistered(
            f"the shard {called(shard)!r} is {forgotten} registered: register it first"
        )
    return found


def decide_retry(
    state: TransactionState, token: Token, expected_upper: int, upper: int
) -> AppendResult | None:
    """Return the result of a token that was committed before; None if it was not committed.

    This is decided first, because a shard may be forgotten since, or have other columns. The caller
    compares the updates (`check_same_updates`), which needs the states of the shards.

    As in `tidelog.persist.states.transition`, a commit from ``expected_upper`` was possible only
    while that was the upper.

    Raises:
        UsageError: the token was used for another interval.
        OutcomeUnknown: the write is so old that its commit may have been forgotten.
    """
    for commit in reversed(state.commits):
        if (commit.writer, commit.number) == token:
            stored = Frontier.at(commit.lower), Frontier.at(commit.upper)
            given = Frontier.at(expected_upper), Frontier.at(upper)
            check_same_interval(token, stored=stored, given=given)
            return AppendResult(Verdict.ALREADY, Frontier.at(commit.upper))
    if state.commits_forgotten and expected_upper < state.commits[0].lower:
        raise OutcomeUnknown(
            "the transaction is so old that it may no longer be recorded: read the shards to find "
            "out whether they have its rows",
            writer=token[0],
            expected_upper=expected_upper,
        )
    return None


def has_digest(state: TransactionState, token: Token) -> bool:
    """Return True if the state has a digest of the updates of a token's transaction."""
    return any(commit.digest for commit in _commits_of(state, token))


def check_same_updates(state: TransactionState, token: Token, sums: Mapping[str, bytes]) -> None:
    """Check the updates of a retry by ``sums``: T of each shard, in the columns stored then.

    Raises:
        DataDiffers: the token was used for other updates.
    """
    for commit in _commits_of(state, token):
        if commit.digest not in (b"", digest_of(sums)):
            raise reused(token, Frontier.at(commit.lower), Frontier.at(commit.upper))


def _commits_of(state: TransactionState, token: Token) -> Iterator[Committed]:
    return (commit for commit in state.commits if (commit.writer, commit.number) == token)


def decide_register(
    state: TransactionState, shard: str, joined: JoinResult
) -> Decision[TransactionDiff, RegisteredShard | None]:
    """Decide to register a shard whose own state already names these transactions.

    The result is the shard's entry; None if the shard was forgotten concurrently. The upper of all
    shards becomes at least that of the new shard.
    """
    number = joined.registered.number
    gone = state.forgotten.get(shard)
    if gone is not None and gone.number >= number:
        return Decision(None)
    found = state.tables.get(shard)
    if found is not None:
        return Decision(found)
    upper = max(state.upper, joined.upper)
    table = RegisteredShard(number, upper, joined.write_epoch)
    return Decision(table, TransactionDiff(upper=upper, tables={shard: table}))


def decide_forget(
    state: TransactionState, shard: str, number: int
) -> Decision[TransactionDiff, Forgotten]:
    """Decide that a shard, in its registration ``number``, is no longer written here.

    The registration may be one that was interrupted, so the shard was never written here.
    """
    gone = state.forgotten.get(shard)
    if gone is not None and gone.number >= number:
        return Decision(gone)
    upper = state.upper if shard in state.tables else 0
    found = Forgotten(number, upper)
    return Decision(found, TransactionDiff(forgotten={shard: found}))


def decide_fence(
    state: TransactionState, shard: str, number: int, epoch: int
) -> Decision[TransactionDiff, bool]:
    """Decide to refuse parts of epochs before the one that precedes ``epoch``.

    The result is whether the shard still has this registration.
    """
    table = state.tables.get(shard)
    if table is None or table.number != number:
        return Decision(False)
    if table.write_epoch >= epoch:
        return Decision(True)
    raised = msgspec.structs.replace(table, write_epoch=epoch)
    return Decision(True, TransactionDiff(tables={shard: raised}))


def decide_tidy(
    state: TransactionState, applied: Mapping[str, int]
) -> Decision[TransactionDiff, int]:
    """Decide to drop the writes that shards have; the result is the number of transactions done."""
    known = useful(state, applied)
    if not known:
        return Decision(0)
    left = unapplied(state.pending, known)
    return Decision(len(state.pending) - len(left), TransactionDiff(applied=known))


def useful(state: TransactionState, applied: Mapping[str, int]) -> dict[str, int]:
    """Return the uppers that allow a pending write to be dropped."""
    return {
        shard: upper
        for shard, upper in applied.items()
        if any(shard in one.writes and one.upper <= upper for one in state.pending)
    }
