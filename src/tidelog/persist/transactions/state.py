"""The state of a transaction shard, and its changes, as immutable values.

Invariants: ``upper`` never goes back. The pending transactions are in time order and never overlap.
    A transaction is dropped only once each shard that it wrote has applied it.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from tidelog.core.frontier import Frontier
from tidelog.persist.states.state import Token

COMMITS_KEPT: Final = 1_024


class RegisteredShard(msgspec.Struct, frozen=True, array_like=True):
    """A registered shard: the number of its registration, and its upper at that time.

    Shape: ``write_epoch`` is the shard's own, or the one to which it is about to be raised. Parts
        must not be older than it allows.
    """

    number: int
    since: int
    write_epoch: int
    extra: dict[str, Any] = {}


class Forgotten(msgspec.Struct, frozen=True, array_like=True):
    """A shard that is no longer registered: transactions wrote it up to ``upper``."""

    number: int
    upper: int
    extra: dict[str, Any] = {}


class Committed(msgspec.Struct, frozen=True, array_like=True):
    """A recent move of upper: its writer and its interval."""

    writer: str
    number: int
    lower: int
    upper: int
    extra: dict[str, Any] = {}

    @property
    def digest(self) -> bytes:
        """The digest of the updates; empty if no retry can use the token."""
        found: bytes = self.extra.get("digest", b"")
        return found


class LastCommit(msgspec.Struct, frozen=True, array_like=True):
    """The newest commit of a named writer: its number, its interval, and a digest of its rows."""

    number: int
    lower: int
    upper: int
    digest: bytes
    extra: dict[str, Any] = {}


class Write(msgspec.Struct, frozen=True, array_like=True):
    """The parts, encoded, that a transaction writes to one shard in its registration ``number``."""

    number: int
    packed: bytes
    extra: dict[str, Any] = {}


class Pending(msgspec.Struct, frozen=True, array_like=True):
    """A transaction that is not known to be fully applied, with its remaining writes by shard."""

    lower: int
    upper: int
    writes: dict[str, Write]
    extra: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """The state of a transaction shard. Times below ``upper`` are complete in all its shards.

    Shape: ``moved`` has the upper of each registered shard's newest write, or of its registration.
        ``writers`` are the newest commits of named writers.
    """

    upper: int = 0
    tables: dict[str, RegisteredShard] = field(default_factory=dict)
    forgotten: dict[str, Forgotten] = field(default_factory=dict)
    pending: tuple[Pending, ...] = ()
    commits: tuple[Committed, ...] = ()
    commits_forgotten: bool = False
    moved: dict[str, int] = field(default_factory=dict)
    writers: dict[str, LastCommit] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def upper_frontier(self) -> Frontier:
        return Frontier.at(self.upper)


class TransactionDiff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a state, as small as the change itself. Absent fields change nothing.

    Shape: ``applied`` are uppers that shards have reached. ``digest`` is that of the updates, for a
        retry of the token; see `Committed`. ``named`` states that the token is of a named writer.
    """

    upper: int | None = None
    token: Token | None = None
    named: bool = False
    dropped_writers: tuple[str, ...] = ()
    digest: bytes = b""
    writes: dict[str, Write] = {}
    tables: dict[str, RegisteredShard] = {}
    forgotten: dict[str, Forgotten] = {}
    applied: dict[str, int] = {}
    extra: dict[str, Any] = {}


def apply_diff(state: TransactionState, diff: TransactionDiff) -> TransactionState:
    """Return the state after a change. It cannot fail: the diff was decided on that state."""
    changed: dict[str, Any] = {}
    pending = unapplied(state.pending, diff.applied)
    if diff.upper is not None:
        changed["upper"] = diff.upper
        if diff.writes:
            pending = (*pending, Pending(state.upper, diff.upper, diff.writes))
            changed["moved"] = {**state.moved, **dict.fromkeys(diff.writes, diff.upper)}
        if diff.token is not None:
            changed |= _remembered(state, diff, diff.token, diff.upper)
    if diff.dropped_writers:
        left = {n: one for n, one in state.writers.items() if n not in diff.dropped_writers}
        changed["writers"] = left
    if diff.tables or diff.forgotten:
        changed |= _with_tables(state, diff)
    return replace(state, pending=pending, **changed)


def _remembered(
    state: TransactionState, diff: TransactionDiff, token: Token, upper: int
) -> dict[str, Any]:
    """Return the commits and the writers after a commit."""
    writer, number = token
    if diff.named:
        last = LastCommit(number, state.upper, upper, diff.digest)
        return {"writers": {**state.writers, writer: last}}
    more = {"digest": diff.digest} if diff.digest else {}
    commits = (*state.commits, Committed(writer, number, state.upper, upper, more))
    return {
        "commits": commits[-COMMITS_KEPT:],
        "commits_forgotten": state.commits_forgotten or len(commits) > COMMITS_KEPT,
    }


def _with_tables(state: TransactionState, diff: TransactionDiff) -> dict[str, Any]:
    """Return the registered shards after some were registered, fenced or forgotten."""
    upper = state.upper if diff.upper is None else diff.upper
    new = {n: upper for n, table in diff.tables.items() if _is_new(state, n, table)}
    tables = {**state.tables, **diff.tables}
    moved = {**state.moved, **new}
    return {
        "tables": {n: table for n, table in tables.items() if n not in diff.forgotten},
        "moved": {n: time for n, time in moved.items() if n not in diff.forgotten},
        "forgotten": {**state.forgotten, **diff.forgotten},
    }


def _is_new(state: TransactionState, name: str, table: RegisteredShard) -> bool:
    known = state.tables.get(name)
    return known is None or known.number != table.number


def unapplied(pending: tuple[Pending, ...], applied: Mapping[str, int]) -> tuple[Pending, ...]:
    """Return the pending transactions without the writes that shards at these uppers have."""
    if not applied:
        return pending
    kept = []
    for one in pending:
        left = {n: w for n, w in one.writes.items() if applied.get(n, -1) < one.upper}
        if len(left) == len(one.writes):
            kept.append(one)
        elif left:
            kept.append(msgspec.structs.replace(one, writes=left))
    return tuple(kept)
