"""The state of a shard, as a value, and its bytes.

Invariants: batches stand in the order of their uppers and never overlap; an interval without
    updates leaves no batch, only a higher upper; since never goes back. A map's unknown fields
    survive a round trip, so that an older tidelog beside a newer one drops nothing.
Source: persist, "State" and "Incremental State".
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from tidelog.errors import CorruptionError, UsageError, require
from tidelog.frontier import Frontier
from tidelog.persist.part import Part
from tidelog.rowhash import RowSum

FORMAT: Final = 1
COMMITS_KEPT: Final = 64

Token = tuple[str, int]  # who writes, and a number that rises with each of its writes


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """The updates of the times ``[lower, upper)``; an upper of None is the empty frontier."""

    lower: int
    upper: int | None
    parts: tuple[Part, ...]
    extra: dict[str, Any] = {}


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One of the newest moves of upper: whose, from where to where, and T of all up to there."""

    writer: str
    number: int
    lower: int
    upper: int | None
    sum_t: bytes
    extra: dict[str, Any] = {}


class State(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a shard. ``schema`` is empty until the shard is first written."""

    format: int = FORMAT
    schema: bytes = b""
    since: int | None = 0
    upper: int | None = 0
    batches: tuple[Batch, ...] = ()
    holds: dict[str, int | None] = {}
    writers: dict[str, tuple[int, int | None]] = {}
    commits: tuple[Commit, ...] = ()
    commits_forgotten: bool = False
    sum_t: bytes = bytes(16)
    sum_v: bytes = bytes(16)
    rows: int = 0
    diffs: int = 0
    size_bytes: int = 0
    inline_bytes: int = 0
    write_epoch: int = 0
    extra: dict[str, Any] = {}

    @property
    def since_frontier(self) -> Frontier:
        return Frontier.of(self.since)

    @property
    def upper_frontier(self) -> Frontier:
        return Frontier.of(self.upper)

    def sum_at(self, frontier: Frontier) -> RowSum | None:
        """Return T of all updates before an upper this shard had, if it is still remembered."""
        for commit in reversed(self.commits):
            if Frontier.of(commit.upper) == frontier:
                return RowSum.from_bytes(commit.sum_t)
        untouched = not self.commits_forgotten and frontier == Frontier.at(0)
        return RowSum.zero() if untouched else None


class Diff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a state, as large as the change. Absent fields change nothing."""

    schema: bytes | None = None
    upper: tuple[int | None] | None = None
    since: tuple[int | None] | None = None
    holds: dict[str, int | None] = {}
    released: tuple[str, ...] = ()
    batch: Batch | None = None
    token: Token | None = None
    named: bool = False
    extra: dict[str, Any] = {}


class ShardLanguage:
    """How shards' states begin, change, and become bytes: a machine's `Language`."""

    def initial(self) -> State:
        return State()

    def apply(self, state: State, diff: Diff) -> State:
        return apply_diff(state, diff)

    def encode_diff(self, diff: Diff) -> bytes:
        return msgspec.msgpack.encode(_open(diff))

    def decode_diff(self, data: bytes) -> Diff:
        return _closed(Diff, _decode(data))

    def encode_state(self, state: State) -> bytes:
        return msgspec.msgpack.encode(_open(state))

    def decode_state(self, data: bytes) -> State:
        found = _decode(data)
        form = found.get("format")
        if isinstance(form, int) and form > FORMAT:
            raise UsageError(
                "a newer tidelog wrote this shard: upgrade tidelog to use it", format=form
            )
        return _closed(State, found)


def apply_diff(state: State, diff: Diff) -> State:
    """Return the state after a change. Total: a diff was decided over that state."""
    after = state
    if diff.schema is not None:
        after = msgspec.structs.replace(after, schema=diff.schema)
    if diff.holds or diff.released:
        holds = {n: t for n, t in (after.holds | diff.holds).items() if n not in diff.released}
        after = msgspec.structs.replace(after, holds=holds)
    if diff.since is not None:
        after = msgspec.structs.replace(after, since=diff.since[0])
    if diff.upper is not None:
        after = _advance(after, diff, diff.upper[0])
    return after


def _advance(state: State, diff: Diff, upper: int | None) -> State:
    require(state.upper is not None, "a finished shard cannot advance")
    require(diff.token is not None, "an advance names its writer")
    lower, token = state.upper or 0, diff.token or ("", 0)
    parts = diff.batch.parts if diff.batch is not None else ()
    sum_t, sum_v = RowSum.from_bytes(state.sum_t), RowSum.from_bytes(state.sum_v)
    for part in parts:
        sum_t, sum_v = sum_t + part.t, sum_v + part.v
    commit = Commit(
        writer=token[0], number=token[1], lower=lower, upper=upper, sum_t=sum_t.to_bytes()
    )
    commits = (*state.commits, commit)
    writers = state.writers | {token[0]: (token[1], upper)} if diff.named else state.writers
    return msgspec.structs.replace(
        state,
        upper=upper,
        batches=(*state.batches, diff.batch) if diff.batch is not None else state.batches,
        writers=writers,
        commits=commits[-COMMITS_KEPT:],
        commits_forgotten=state.commits_forgotten or len(commits) > COMMITS_KEPT,
        sum_t=sum_t.to_bytes(),
        sum_v=sum_v.to_bytes(),
        rows=state.rows + sum(p.rows for p in parts),
        diffs=state.diffs + sum(p.diffs for p in parts),
        size_bytes=state.size_bytes + sum(p.size_bytes for p in parts),
        inline_bytes=state.inline_bytes + sum(p.size_bytes for p in parts if p.inline is not None),
    )


_T = TypeVar("_T", bound=msgspec.Struct)
_NESTED: Final[dict[str, type[msgspec.Struct]]] = {
    "batch": Batch,
    "batches": Batch,
    "parts": Part,
    "commits": Commit,
}


def _open(value: Any) -> Any:
    """Pipeline structs into maps, with the unknown fields that came with them."""
    if isinstance(value, msgspec.Struct):
        fields = {
            name: _open(getattr(value, name)) for name in value.__struct_fields__ if name != "extra"
        }
        extra: dict[str, Any] = getattr(value, "extra", {})
        if isinstance(value, Diff):
            fields = {n: v for n, v in fields.items() if v not in (None, {}, (), False)}
        return {**extra, **fields}
    if isinstance(value, tuple):
        return tuple(_open(item) for item in value)
    return value


def _closed(kind: type[_T], found: dict[str, Any]) -> _T:
    """Make a struct of a map; fields that this version does not know go to ``extra``."""
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    names = set(kind.__struct_fields__) - {"extra"}
    for name, value in found.items():
        if name not in names:
            extra[name] = value
        elif name in _NESTED and isinstance(value, list):
            known[name] = [_closed(_NESTED[name], item) for item in value]
        elif name in _NESTED and isinstance(value, dict):
            known[name] = _closed(_NESTED[name], value)
        else:
            known[name] = value
    try:
        return msgspec.convert({**known, "extra": extra}, kind)
    except msgspec.ValidationError as error:
        raise CorruptionError("a shard's state cannot be read", why=error) from error


def _decode(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.msgpack.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError("a shard's state cannot be read") from error
