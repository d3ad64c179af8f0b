"""The state of a shard, and its changes, as immutable values.

Invariants: batches are in time order and never overlap. An interval without updates adds no batch
    and only raises upper. Since never goes back. Only appends and a drop change V over all
    batches.
Source: persist, "State" and "Incremental State".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from tidelog.core.frontier import Frontier
from tidelog.errors import require
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.claim import Claim, without_claims
from tidelog.persist.states.hold import Hold
from tidelog.persist.states.spine import Spine
from tidelog.rowhash import RowSum

# The newest 64, plus the commit before them, whose sum is the base of the oldest.
COMMITS_KEPT: Final = 65

Token = tuple[str, int]  # The writer, and a number that rises with each of its writes.


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """A recent move of upper: its writer and interval, and T of all updates below ``upper``."""

    writer: str
    number: int
    lower: int
    upper: int | None
    sum_t: bytes
    extra: dict[str, Any] = {}


class Retired(msgspec.Struct, frozen=True, array_like=True):
    """A former schema of the shard; it was the newest until the shard's upper was ``upper``."""

    schema: bytes
    upper: int
    extra: dict[str, Any] = {}


class Sighting(msgspec.Struct, frozen=True, array_like=True):
    """The beat of a lease that a collector saw, and the time at which it first saw it.

    Units: ``at_us`` is the collector's wall time, ``monotonic_us`` its time since ``boot``.
    Shape: ``boot`` and ``monotonic_us`` are in ``extra``, which an older version preserves.
    """

    beat: int
    at_us: int
    extra: dict[str, Any] = {}

    @property
    def boot(self) -> str:
        return str(self.extra.get("boot", ""))

    @property
    def monotonic_us(self) -> int:
        return int(self.extra.get("monotonic_us", 0))


class Registered(msgspec.Struct, frozen=True, array_like=True):
    """The transaction shard in which a shard is registered ("": none).

    ``number`` counts the registrations.
    """

    name: str = ""
    number: int = 0
    extra: dict[str, Any] = {}


class LastWrite(msgspec.Struct, frozen=True, array_like=True):
    """The newest commit of a named writer: its number, its upper, and T of its updates."""

    number: int
    upper: int | None
    sum_t: bytes
    extra: dict[str, Any] = {}


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """The totals over all batches; ``sum_t`` is T of all updates as appended, before any merge."""

    rows: int = 0
    diffs: int = 0
    size_bytes: int = 0
    inline_bytes: int = 0
    sum_v: bytes = bytes(16)
    sum_t: bytes = bytes(16)


_NONE: Final = Spine()
_NOTHING: Final = Totals()
_UNREGISTERED: Final = Registered()


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a shard.

    Shape: ``schema`` is the newest schema, empty until the shard is created; ``retired`` are the
        schemas before it. The id of a schema is its index among all of them, from 0. ``sightings``
        are of leases, by the name of the hold.
    """

    schema: bytes = b""
    retired: tuple[Retired, ...] = ()
    since: int | None = 0
    upper: int | None = 0
    batches: Spine = _NONE
    holds: dict[str, Hold] = field(default_factory=dict)
    sightings: dict[str, Sighting] = field(default_factory=dict)
    writers: dict[str, LastWrite] = field(default_factory=dict)
    commits: tuple[Commit, ...] = ()
    commits_forgotten: bool = False
    totals: Totals = _NOTHING
    write_epoch: int = 0
    claims: tuple[Claim, ...] = ()
    registered: Registered = _UNREGISTERED
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def since_frontier(self) -> Frontier:
        return Frontier.of(self.since)

    @property
    def upper_frontier(self) -> Frontier:
        return Frontier.of(self.upper)

    @property
    def is_buried(self) -> bool:
        """Return True if since and upper are empty: the shard takes no writes and no reads.

        A drop does that, and so does a hold that moves to the end of a finished shard.
        """
        return self.since is None and self.upper is None

    @property
    def schema_id(self) -> int:
        return len(self.retired)

    def sum_at(self, frontier: Frontier) -> RowSum | None:
        """Return T of all updates before a former upper; None if that upper is forgotten."""
        for commit in reversed(self.commits):
            if Frontier.of(commit.upper) == frontier:
                return RowSum.from_bytes(commit.sum_t)
        untouched = not self.commits_forgotten and frontier == Frontier.at(0)
        return RowSum.zero() if untouched else None


class Merged(msgspec.Struct, frozen=True, array_like=True):
    """Adjacent batches, by their digests, and the batch that replaces them.

    Shape: ``batch`` is None if no update is left. ``vanished`` are the paths of parts that are no
        longer named.
    """

    lower: int
    upper: int | None
    inputs: tuple[int, ...]
    batch: Batch | None
    vanished: tuple[str, ...]
    extra: dict[str, Any] = {}


class Diff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a state, as small as the change itself. Absent fields change nothing."""

    schema: bytes | None = None
    upper: tuple[int | None] | None = None
    since: tuple[int | None] | None = None
    holds: dict[str, Hold] = {}
    released: tuple[str, ...] = ()
    sightings: dict[str, Sighting] = {}
    batch: Batch | None = None
    sum_t: bytes = bytes(16)
    token: Token | None = None
    named: bool = False
    dropped_writers: tuple[str, ...] = ()
    merged: Merged | None = None
    write_epoch: int | None = None
    claims: tuple[Claim, ...] | None = None
    registered: Registered | None = None
    extra: dict[str, Any] = {}


def apply_diff(state: State, diff: Diff) -> State:
    """Return the state after a change. It cannot fail: the diff was decided on that state."""
    changed: dict[str, Any] = {}
    if diff.schema is not None:
        changed["schema"] = diff.schema
        if state.schema:
            changed["retired"] = (*state.retired, Retired(state.schema, state.upper or 0))
    if diff.holds or diff.released:
        held = {**state.holds, **diff.holds}
        changed["holds"] = {name: at for name, at in held.items() if name not in diff.released}
    if diff.sightings or (diff.released and state.sightings):
        held = changed.get("holds", state.holds)
        seen = {**state.sightings, **diff.sightings}
        changed["sightings"] = {name: one for name, one in seen.items() if name in held}
    if diff.since is not None:
        changed["since"] = diff.since[0]
    if diff.upper is not None:
        changed |= _advance(state, diff, diff.upper[0])
    if diff.dropped_writers:
        left = {n: told for n, told in state.writers.items() if n not in diff.dropped_writers}
        changed["writers"] = left
    if diff.merged is not None:
        changed |= _merge(state, diff.merged)
    if diff.write_epoch is not None:
        changed["write_epoch"] = diff.write_epoch
    if diff.claims is not None:
        changed["claims"] = diff.claims
    if diff.registered is not None:
        changed["registered"] = diff.registered
    return _replace(state, changed)


def _advance(state: State, diff: Diff, upper: int | None) -> dict[str, Any]:
    require(state.upper is not None, "a finished shard cannot advance")
    require(diff.token is not None, "an advance names its writer")
    writer, number = diff.token or ("", 0)
    was = state.totals
    sum_t = (RowSum.from_bytes(was.sum_t) + RowSum.from_bytes(diff.sum_t)).to_bytes()
    commit = Commit(writer, number, state.upper or 0, upper, sum_t)
    commits = (*state.commits, commit)
    changed: dict[str, Any] = {
        "upper": upper,
        "commits": commits[-COMMITS_KEPT:],
        "commits_forgotten": state.commits_forgotten or len(commits) > COMMITS_KEPT,
    }
    if diff.named:
        changed["writers"] = {**state.writers, writer: LastWrite(number, upper, diff.sum_t)}
    if diff.batch is not None:
        changed["batches"] = state.batches.append(diff.batch)
        changed["totals"] = _counted(was, (), (diff.batch,), sum_t=sum_t)
    return changed


def _merge(state: State, merged: Merged) -> dict[str, Any]:
    old = state.batches.within(merged.lower, merged.upper)
    new = () if merged.batch is None else (merged.batch,)
    return {
        "batches": state.batches.replace(old, merged.batch),
        "claims": without_claims(state.claims, merged.lower, merged.upper),
        "totals": _counted(state.totals, tuple(old), new, sum_t=state.totals.sum_t),
    }


def _counted(
    was: Totals, old: tuple[Batch, ...], new: tuple[Batch, ...], *, sum_t: bytes
) -> Totals:
    """Return the totals after removing the batches ``old`` and adding ``new``."""

    def moved(name: str) -> int:
        after: int = getattr(was, name)
        after += sum(getattr(b, name) for b in new)
        after -= sum(getattr(b, name) for b in old)
        return after

    sum_v = RowSum.from_bytes(was.sum_v)
    for batch in new:
        sum_v = sum_v + batch.v
    for batch in old:
        sum_v = sum_v - batch.v
    return Totals(
        rows=moved("rows"),
        diffs=moved("diffs"),
        size_bytes=moved("size_bytes"),
        inline_bytes=moved("inline_bytes"),
        sum_v=sum_v.to_bytes(),
        sum_t=sum_t,
    )


def _replace(state: State, changed: dict[str, Any]) -> State:
    return State(
        **{
            name: changed[name] if name in changed else getattr(state, name)
            for name in State.__dataclass_fields__
        }
    )
