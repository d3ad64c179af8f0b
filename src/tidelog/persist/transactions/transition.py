"""Transitions of a transaction shard: pure functions from its state and a command to a decision.

What is committed here must be applicable to each shard, for ever: nothing can be refused any more.
So all that could refuse it is decided here. Each shard is registered, and for the same time as when
its parts were written, whereby its schema is the same; and its parts are of a write epoch that the
shard still takes. That epoch is raised here first, and in the shard only once all that was
committed before is applied: what is committed after knows the new one (`decide_fence`).
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from tidelog.errors import NotRegistered, OutcomeUnknown, UsageError
from tidelog.frontier import Frontier
from tidelog.ids import Named, name_of
from tidelog.machine.language import Decision
from tidelog.persist.format.part import Part
from tidelog.persist.states.registered import Joined
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import (
    Appended,
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
    Table,
    TransactionDiff,
    TransactionState,
    Write,
    unapplied,
)

Decided = Decision[TransactionDiff, Appended]


@dataclass(frozen=True, slots=True)
class TableParts:
    """Parts for one shard, written while it was registered for the ``number``-th time."""

    number: int
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTransaction:
    """Parts for the times ``[expected_upper, upper)``, by shard.

    ``fresh`` says that the token was made for this very call; ``applied`` are uppers that shards
    were seen to have, by which what they have can be dropped. With ``keeps_digest``, a later call
    may have the same token, and its updates are compared with these.
    """

    writes: Mapping[str, TableParts]
    expected_upper: int
    upper: int
    token: Token
    fresh: bool
    applied: Mapping[str, int]
    keeps_digest: bool = False


def decide_commit(state: TransactionState, command: CommitTransaction) -> Decided:
    """Decide a transaction, as `tidelog.persist.states.transition.decide_append` does for one.

    Raises:
        OutcomeUnknown: a retry so old that its token may have been forgotten.
        NotRegistered: a shard is not one of those that are written here.
        PartsSwept: parts are too old to be told from what nobody will ever name.
        UsageError: the interval does not hold the parts.
    """
    lower, upper = command.expected_upper, command.upper
    check_span(lower, upper, rows=sum(len(w.parts) for w in command.writes.values()))
    told = None if command.fresh else decide_retry(state, command.token, lower, upper)
    if told is not None:
        return Decision(told)
    if lower != state.upper:
        return Decision(Appended(Verdict.MISMATCH, state.upper_frontier))
    for shard, write in command.writes.items():
        _check_write(state, shard, write, lower, upper)
    if lower == upper:
        return Decision(Appended(Verdict.COMMITTED, state.upper_frontier))
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
    return Decision(Appended(Verdict.COMMITTED, Frontier.at(upper)), diff)


def digest_of(sums: Mapping[str, bytes]) -> bytes:
    """Return a digest of the updates of a transaction: of T, by each shard that has updates."""
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode(dict(sorted(sums.items()))))


def check_span(lower: int, upper: int, *, rows: int) -> None:
    """Check what can be checked without a state.

    Raises:
        UsageError: lower is past upper, or an empty interval has updates.
    """
    if lower > upper:
        raise UsageError("expected_upper is past upper", expected_upper=lower, upper=upper)
    if rows and lower == upper:
        raise UsageError("an empty interval cannot hold updates", lower=lower, upper=upper)


def _check_write(
    state: TransactionState, shard: str, write: TableParts, lower: int, upper: int
) -> None:
    table = table_of(state, shard)
    if table.number != write.number:
        raise NotRegistered(
            f"the shard {called(shard)!r} was registered anew since its rows were written: write "
            "them again"
        )
    check_times(write.parts, Frontier.at(lower), Frontier.at(upper))
    check_epochs(table.write_epoch, write.parts)


def called(shard: str) -> str:
    """Return what a shard is called by whoever made it."""
    return name_of(Named.SHARD, shard) or shard


def table_of(state: TransactionState, shard: str) -> Table:
    """Return what is known of a registered shard.

    Raises:
        NotRegistered: it is none.
    """
    found = state.tables.get(shard)
    if found is None:
        forgotten = " any more" if shard in state.forgotten else ""
        raise NotRegistered(
            f"the shard {called(shard)!r} is not registered{forgotten}: register it first"
        )
    return found


def decide_retry(
    state: TransactionState, token: Token, expected_upper: int, upper: int
) -> Appended | None:
    """Return the answer to a token that was committed before; None if it was not.

    The caller compares the updates (`check_same_updates`): that needs the states of the shards.

    It is asked for before anything else is: a shard may be forgotten by now, or have other columns.
    See `tidelog.persist.states.transition`: a commit from ``expected_upper`` can have been made
    only while that was upper.

    Raises:
        UsageError: the token was used for another interval.
        OutcomeUnknown: it is so old that it may have been forgotten.
    """
    for commit in reversed(state.commits):
        if (commit.writer, commit.number) == token:
            stored = Frontier.at(commit.lower), Frontier.at(commit.upper)
            given = Frontier.at(expected_upper), Frontier.at(upper)
            check_same_interval(token, stored=stored, given=given)
            return Appended(Verdict.ALREADY, Frontier.at(commit.upper))
    if state.commits_forgotten and expected_upper < state.commits[0].lower:
        raise OutcomeUnknown(
            "this transaction is too old to be told from others: read the shards instead",
            writer=token[0],
            expected_upper=expected_upper,
        )
    return None


def has_digest(state: TransactionState, token: Token) -> bool:
    """Return True if the state has a digest of the updates of a token's transaction."""
    return any(commit.digest for commit in _commits_of(state, token))


def check_same_updates(state: TransactionState, token: Token, sums: Mapping[str, bytes]) -> None:
    """Check the updates of a token's retry, by T of each shard in the columns stored then.

    Raises:
        DataDiffers: the token was used for other updates.
    """
    for commit in _commits_of(state, token):
        if commit.digest not in (b"", digest_of(sums)):
            raise reused(token, Frontier.at(commit.lower), Frontier.at(commit.upper))


def _commits_of(state: TransactionState, token: Token) -> Iterator[Committed]:
    return (commit for commit in state.commits if (commit.writer, commit.number) == token)


def decide_register(
    state: TransactionState, shard: str, joined: Joined
) -> Decision[TransactionDiff, Table | None]:
    """Decide to have a shard written here, which says so itself already; gives its table.

    None: it was forgotten again meanwhile. From then on it is complete as far as all others.
    """
    number = joined.registered.number
    gone = state.forgotten.get(shard)
    if gone is not None and gone.number >= number:
        return Decision(None)
    found = state.tables.get(shard)
    if found is not None:
        return Decision(found)
    upper = max(state.upper, joined.upper)
    table = Table(number, upper, joined.write_epoch)
    return Decision(table, TransactionDiff(upper=upper, tables={shard: table}))


def decide_forget(
    state: TransactionState, shard: str, number: int
) -> Decision[TransactionDiff, Forgotten]:
    """Decide that a shard, registered for the ``number``-th time, is not written here from now on.

    It may be one whose registration was broken off, and that was never written here.
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
    """Decide that no parts of an older epoch than the one before ``epoch`` are committed any more.

    Gives whether that is so.
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
    """Decide to drop what shards of some uppers have; gives how many transactions are over."""
    known = useful(state, applied)
    if not known:
        return Decision(0)
    left = unapplied(state.pending, known)
    return Decision(len(state.pending) - len(left), TransactionDiff(applied=known))


def useful(state: TransactionState, applied: Mapping[str, int]) -> dict[str, int]:
    """Return of some shards' uppers those by which anything can be dropped."""
    return {
        shard: upper
        for shard, upper in applied.items()
        if any(shard in one.writes and one.upper <= upper for one in state.pending)
    }
