"""The state of a transaction shard, as a value, and the changes it is put through.

Invariants: ``upper`` never goes back; commits that are kept stand in the order of their times and
    never overlap; one is dropped only once each shard that it wrote has it.
Source: design page 4, "Several shards at one time".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from tidelog.frontier import Frontier
from tidelog.persist.states.state import Token

COMMITS_KEPT: Final = 64


class Table(msgspec.Struct, frozen=True, array_like=True):
    """A registered shard: which time it is, since when, and what its parts must be.

    Shape: ``write_epoch`` is the shard's own, or the one to which it is about to be raised.
    """

    number: int
    since: int
    write_epoch: int
    extra: dict[str, Any] = {}


class Forgotten(msgspec.Struct, frozen=True, array_like=True):
    """A shard that was registered: transactions wrote it up to ``upper``, and no further."""

    number: int
    upper: int
    extra: dict[str, Any] = {}


class Committed(msgspec.Struct, frozen=True, array_like=True):
    """One of the newest moves of upper: whose, and from where to where."""

    writer: str
    number: int
    lower: int
    upper: int
    extra: dict[str, Any] = {}

    @property
    def digest(self) -> bytes:
        """The digest of the updates; empty if no retry can have their token."""
        found: bytes = self.extra.get("digest", b"")
        return found


class Write(msgspec.Struct, frozen=True, array_like=True):
    """What a transaction has for one shard: its parts, packed, for its registration ``number``."""

    number: int
    packed: bytes
    extra: dict[str, Any] = {}


class Pending(msgspec.Struct, frozen=True, array_like=True):
    """A transaction, as far as it is not known to be applied: by shard, what it writes."""

    lower: int
    upper: int
    writes: dict[str, Write]
    extra: dict[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionState:
    """All that is known of a transaction shard. Times below ``upper`` are complete in all of it."""

    upper: int = 0
    tables: dict[str, Table] = field(default_factory=dict)
    forgotten: dict[str, Forgotten] = field(default_factory=dict)
    pending: tuple[Pending, ...] = ()
    commits: tuple[Committed, ...] = ()
    commits_forgotten: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def upper_frontier(self) -> Frontier:
        return Frontier.at(self.upper)


class TransactionDiff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a state, as large as the change. Absent fields change nothing.

    Shape: ``applied`` has uppers that shards were seen to have. ``digest`` is of the updates,
        for the retry of a token; see `Committed`.
    """

    upper: int | None = None
    token: Token | None = None
    digest: bytes = b""
    writes: dict[str, Write] = {}
    tables: dict[str, Table] = {}
    forgotten: dict[str, Forgotten] = {}
    applied: dict[str, int] = {}
    extra: dict[str, Any] = {}


def apply_diff(state: TransactionState, diff: TransactionDiff) -> TransactionState:
    """Return the state after a change. Total: a diff was decided over that state."""
    changed: dict[str, Any] = {}
    pending = unapplied(state.pending, diff.applied)
    if diff.upper is not None:
        changed["upper"] = diff.upper
        if diff.writes:
            pending = (*pending, Pending(state.upper, diff.upper, diff.writes))
        if diff.token is not None:
            more = {"digest": diff.digest} if diff.digest else {}
            changed |= _told(state, Committed(*diff.token, state.upper, diff.upper, more))
    if diff.tables or diff.forgotten:
        tables = {**state.tables, **diff.tables}
        changed["tables"] = {n: t for n, t in tables.items() if n not in diff.forgotten}
        changed["forgotten"] = {**state.forgotten, **diff.forgotten}
    return replace(state, pending=pending, **changed)


def _told(state: TransactionState, commit: Committed) -> dict[str, Any]:
    commits = (*state.commits, commit)
    return {
        "commits": commits[-COMMITS_KEPT:],
        "commits_forgotten": state.commits_forgotten or len(commits) > COMMITS_KEPT,
    }


def unapplied(pending: tuple[Pending, ...], applied: Mapping[str, int]) -> tuple[Pending, ...]:
    """Return transactions without what shards of the uppers ``applied`` have."""
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
