"""Commits at the next time: the state chooses the time when it decides. Pure.

A commit without reads never conflicts. A commit with reads conflicts only if a shard that it read
or wrote has another write since then. The parts are written before the time is known, so the
decision moves them to it (`tidelog.persist.format.part.part_at`).
Source: design page 6, "Times"; decision 28.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from tidelog.core.frontier import Frontier
from tidelog.errors import NotRegistered, OutcomeUnknown
from tidelog.machine.language import Decision
from tidelog.persist.format.part import Part, part_at, part_by
from tidelog.persist.states.state import Token
from tidelog.persist.states.transition import AppendResult, Verdict, reused
from tidelog.persist.transactions.state import (
    TransactionDiff,
    TransactionState,
    Write,
)
from tidelog.persist.transactions.transition import (
    Decided,
    TableParts,
    check_write,
    table_of,
    useful,
)
from tidelog.rowhash import RowSum


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The shards that a transaction read, when the upper of the transactions was ``upper``."""

    upper: int
    shards: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitNext:
    """Parts for the next time that is not before ``earliest``, by shard.

    ``known_upper`` is an upper from before the first try. ``fresh`` states that this is the first
    try of an unnamed token. ``reads`` is None if the commit never conflicts. ``applied``: see
    `CommitTransaction`. ``by`` is the writer, for the history of the shards.
    """

    writes: Mapping[str, TableParts]
    earliest: int
    token: Token
    known_upper: int
    named: bool = False
    fresh: bool = False
    reads: Reads | None = None
    applied: Mapping[str, int]
    by: str = ""


def decide_next(state: TransactionState, command: CommitNext) -> Decided:
    """Decide a commit at the next time: the greater of ``earliest`` and the state's upper.

    Raises:
        OutcomeUnknown, DataDiffers: see `decide_next_retry`.
        NotRegistered: a shard is not registered here. PartsSwept: parts are so old that a sweep
            may have deleted them. UsageError: a part has several times, or a later one.
    """
    known = decide_next_retry(state, command)
    if known is not None:
        return Decision(known)
    if moved_since(state, command.reads, command.writes):
        return Decision(AppendResult(Verdict.MISMATCH, state.upper_frontier))
    time = max(command.earliest, state.upper)
    writes = {}
    for shard, write in command.writes.items():
        if not write.parts:
            continue
        parts = tuple(part_by(part_at(part, time), command.by) for part in write.parts)
        check_write(state, shard, TableParts(write.number, parts), time, time + 1)
        writes[shard] = Write(write.number, msgspec.msgpack.encode(parts))
    diff = TransactionDiff(
        upper=time + 1,
        token=command.token,
        named=command.named,
        digest=rows_digest(command.writes) if command.named else b"",
        writes=writes,
        applied=useful(state, command.applied),
    )
    return Decision(AppendResult(Verdict.COMMITTED, Frontier.at(time + 1)), diff)


def moved_since(state: TransactionState, reads: Reads | None, writes: Collection[str]) -> list[str]:
    """Return the shards, read or written, that have a write since the transaction's reads.

    Raises:
        NotRegistered: such a shard is not registered here.
    """
    if reads is None:
        return []
    names = sorted({*reads.shards, *writes})
    for name in names:
        table_of(state, name)
    return [name for name in names if state.moved.get(name, state.upper) > reads.upper]


def decide_next_retry(state: TransactionState, command: CommitNext) -> AppendResult | None:
    """Return the result of a token that was committed before; None if it was not committed.

    The state keeps the newest number of a named writer, and the newest unnamed tokens. A commit of
    this token has a time that is not before ``known_upper``.

    Raises:
        OutcomeUnknown: the named writer has a newer commit, or the unnamed token may have been
            forgotten. DataDiffers: the named writer used the number for other rows.
    """
    writer, number = command.token
    if command.named:
        return _named_retry(state, command)
    if command.fresh:
        return None
    known = known_result(state, command.token, named=False)
    if known is not None:
        return known
    if state.commits_forgotten and command.known_upper < state.commits[0].lower:
        raise OutcomeUnknown(
            "the transaction is so old that it may have been forgotten: read the shards instead",
            writer=writer,
            number=number,
        )
    return None


def named_result(state: TransactionState, token: Token) -> AppendResult | None:
    """Return the result of a named writer's newest number; None if the number is a newer one.

    The rows are not compared.

    Raises:
        OutcomeUnknown: the writer has a newer commit.
    """
    writer, number = token
    last = state.writers.get(writer)
    if last is None or number > last.number:
        return None
    if number < last.number:
        raise OutcomeUnknown(
            "the writer has committed a greater number, so it is unknown whether this write took "
            "effect: read the rows to find out, and give new writes greater numbers",
            writer=writer,
            number=number,
            newest=last.number,
        )
    return AppendResult(Verdict.ALREADY, Frontier.at(last.upper))


def known_result(state: TransactionState, token: Token, *, named: bool) -> AppendResult | None:
    """Return the result of a token whose rows can no longer be compared; None if it is unknown."""
    writer, number = token
    last = state.writers.get(writer)
    if named:
        if last is None or last.number != number:
            return None
        return AppendResult(Verdict.ALREADY, Frontier.at(last.upper))
    for commit in reversed(state.commits):
        if (commit.writer, commit.number) == token:
            return AppendResult(Verdict.ALREADY, Frontier.at(commit.upper))
    return None


def _named_retry(state: TransactionState, command: CommitNext) -> AppendResult | None:
    known = named_result(state, command.token)
    if known is not None:
        last = state.writers[command.token[0]]
        # A shard that was registered again may have other columns, which change the digest.
        again = any(
            shard in state.tables and state.tables[shard].since >= last.upper
            for shard in command.writes
        )
        if last.digest and last.digest != rows_digest(command.writes) and not again:
            raise reused(command.token, Frontier.at(last.lower), Frontier.at(last.upper))
    return known


def rows_digest(writes: Mapping[str, TableParts]) -> bytes:
    """Return a digest of a commit's rows, whatever their time: it is made of V of each shard."""
    sums = {shard: _v_of(write.parts) for shard, write in writes.items() if write.parts}
    return xxhash.xxh3_128_digest(msgspec.msgpack.encode(dict(sorted(sums.items()))))


def _v_of(parts: Sequence[Part]) -> bytes:
    total = RowSum.zero()
    for part in parts:
        total = total + part.v
    return total.to_bytes()


def joined(name: str, written: Sequence[TableParts]) -> TableParts:
    """Return parts of one shard, which several processes wrote, as one value.

    Raises:
        NotRegistered: the shard was registered again between their writes.
    """
    numbers = {one.number for one in written}
    if len(numbers) > 1:
        raise NotRegistered(
            f"the shard {name!r} was registered again after its rows were written: write them again"
        )
    return TableParts(numbers.pop(), tuple(part for one in written for part in one.parts))


def joined_all(written: Mapping[str, Sequence[TableParts]]) -> dict[str, TableParts]:
    """Return the parts of each shard as one value; see `joined`."""
    return {name: joined(name, some) for name, some in written.items()}


def decide_drop_writer(state: TransactionState, name: str) -> Decision[TransactionDiff, bool]:
    """Decide to forget a named writer; the result is whether the state has it."""
    if name not in state.writers:
        return Decision(False)
    return Decision(True, TransactionDiff(dropped_writers=(name,)))
