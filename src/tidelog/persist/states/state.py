"""The state of a shard, and its changes, as immutable values; and their encoding.

Shape: the encoding is a msgpack map of the fields. Unknown fields survive a round trip, so an older
    tidelog can work next to a newer one. The unknown fields of maps are kept in ``extra``. Arrays
    (batches, parts, commits) have a map of that name as their last element.
Invariants: batches are in time order and never overlap. An interval without updates adds no batch
    and only raises upper. Since never goes back. Only appends and a drop change V over all
    batches.
Source: persist, "State" and "Incremental State".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import msgspec

from tidelog.core.frontier import Frontier, meet
from tidelog.errors import AsOfBeforeSince, UsageError, require
from tidelog.machine.language import decoders_of, fields_of, made_of
from tidelog.machine.lost import state_of_another
from tidelog.persist.states.batch import Batch, Spine
from tidelog.persist.states.claim import Claim, without_claims
from tidelog.rowhash import RowSum

# The newest 64, plus the commit before them, whose sum is the base of the oldest.
COMMITS_KEPT: Final = 65

Token = tuple[str, int]  # The writer, and a number that rises with each of its writes.


Holds = Mapping[str, "Hold"]


class HoldKind(enum.Enum):
    """The event that ends a hold without its owner."""

    CRITICAL = "critical"  # None: only its owner ends it.
    LEASED = "leased"  # A whole lease without a renewal.
    FIXED = "fixed"  # The end of its term.


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """One hold: it keeps the times since ``since`` distinct, and states since ``seqno`` readable.

    Units: ``lease_us`` in microseconds, 0 for a critical hold; ``at_us`` is the wall time of the
        last beat, by the owner's clock.
    Shape: ``seqno`` is None if the hold keeps no objects except those of the newest state.
    """

    since: int | None
    token: int = 0
    lease_us: int = 0
    is_fixed: bool = False
    beat: int = 0
    at_us: int = 0
    seqno: int | None = None
    purpose: str = ""
    extra: dict[str, Any] = {}

    @property
    def kind(self) -> HoldKind:
        if not self.lease_us:
            return HoldKind.CRITICAL
        return HoldKind.FIXED if self.is_fixed else HoldKind.LEASED

    @property
    def frontier(self) -> Frontier:
        return Frontier.of(self.since)

    @property
    def until_us(self) -> int | None:
        """The wall time, by the owner's clock, at which the hold ends without a renewal."""
        return self.at_us + self.lease_us if self.lease_us else None


def least_since(holds: Holds) -> Frontier:
    """Return the earliest time that a hold needs; the empty frontier if there are no holds."""
    return meet(hold.frontier for hold in holds.values())


def least_seqno(holds: Holds) -> int | None:
    """Return the earliest seqno that a hold needs; None if no hold needs one."""
    return min((h.seqno for h in holds.values() if h.seqno is not None), default=None)


class Commit(msgspec.Struct, frozen=True, array_like=True):
    """A recent move of upper: its writer and interval, and T of all updates below ``upper``.

    Shape: ``is_moved`` is in ``extra``, which an older version preserves.
    """

    writer: str
    number: int
    lower: int
    upper: int | None
    sum_t: bytes
    extra: dict[str, Any] = {}

    @property
    def is_moved(self) -> bool:
        """True if the times of some updates differ from those in T; see `format.part.part_at`."""
        return bool(self.extra.get("is_moved", False))


class FormerSchema(msgspec.Struct, frozen=True, array_like=True):
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


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """The transaction shard in which a shard is registered ("": none).

    ``number`` counts the registrations.
    """

    name: str = ""
    number: int = 0
    extra: dict[str, Any] = {}


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """The end of a shard's use by readers: from the time ``at`` on, they read ``successor``.

    Shape: ``successor`` is the id of a rendition. This state's rendition is read before ``at``.
    Source: storage, "Rendition metadata"; design page 6, "Record of a handover".
    """

    at: int
    successor: str
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
_UNREGISTERED: Final = Registration()


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a shard.

    Shape: ``schema`` is the newest schema, empty until the shard is created; ``retired`` are the
        schemas before it. The id of a schema is its index among all of them, from 0. ``sightings``
        are of leases, by the name of the hold. ``barred`` are the ids of renditions that no mark
        may name.
    """

    schema: bytes = b""
    retired: tuple[FormerSchema, ...] = ()
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
    registered: Registration = _UNREGISTERED
    mark: Mark | None = None
    barred: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def since_frontier(self) -> Frontier:
        return Frontier.of(self.since)

    @cached_property
    def upper_frontier(self) -> Frontier:
        return Frontier.of(self.upper)

    @property
    def is_dropped(self) -> bool:
        """Return True if since and upper are empty: the shard takes no writes and no reads.

        A drop does that, and so does a hold that moves to the end of a finished shard.
        """
        return self.since is None and self.upper is None

    def check_readable(self, as_of: int) -> None:
        """Refuse a time that is below since.

        Raises:
            AsOfBeforeSince: the time is below since; the message has the earliest readable time.
        """
        if self.is_dropped:
            raise AsOfBeforeSince(
                "the shard was dropped, so no time is readable: read another shard"
            )
        if self.since is None:
            raise AsOfBeforeSince(
                "the shard has no readable time, because it is finished and holds keep none of its "
                "times: read another shard"
            )
        if as_of < self.since:
            raise AsOfBeforeSince(
                f"the time is no longer readable: the earliest readable time is {self.since}",
                asked=as_of,
            )

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


class BatchMerge(msgspec.Struct, frozen=True, array_like=True):
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
    is_moved: bool = False
    token: Token | None = None
    named: bool = False
    dropped_writers: tuple[str, ...] = ()
    merged: BatchMerge | None = None
    write_epoch: int | None = None
    claims: tuple[Claim, ...] | None = None
    registered: Registration | None = None
    mark: Mark | None = None
    barred: str | None = None
    extra: dict[str, Any] = {}


def apply_diff(state: State, diff: Diff) -> State:
    """Return the state after a change. It cannot fail: the diff was decided on that state."""
    changed: dict[str, Any] = {}
    if diff.schema is not None:
        changed["schema"] = diff.schema
        if state.schema:
            changed["retired"] = (*state.retired, FormerSchema(state.schema, state.upper or 0))
    if diff.holds or diff.released:
        held = {**state.holds, **diff.holds}
        changed["holds"] = {name: at for name, at in held.items() if name not in diff.released}
    # The sightings of ended leases go too. Otherwise each reader would leave one in the state.
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
    for name in ("write_epoch", "claims", "registered", "mark"):
        if (value := getattr(diff, name)) is not None:
            changed[name] = value
    if diff.barred is not None:
        changed["barred"] = (*state.barred, diff.barred)
    return replace(state, **changed)


def _advance(state: State, diff: Diff, upper: int | None) -> dict[str, Any]:
    require(state.upper is not None, "a finished shard cannot advance")
    require(diff.token is not None, "an advance names its writer")
    writer, number = diff.token or ("", 0)
    was = state.totals
    sum_t = (RowSum.from_bytes(was.sum_t) + RowSum.from_bytes(diff.sum_t)).to_bytes()
    more = {"is_moved": True} if diff.is_moved else {}
    commit = Commit(writer, number, state.upper or 0, upper, sum_t, more)
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


def _merge(state: State, merged: BatchMerge) -> dict[str, Any]:
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


# Versions up to format 3 would read a shard past its mark. Versions up to format 2 would also read
# the times in the bytes of a registered shard's parts, which its state can move
# (`format.part.part_at`). They must refuse such states.
FORMAT: Final = 4
_FORMAT_OF_MOVED_TIMES: Final = 3
_FORMAT_OF_STORED_TIMES: Final = 2
_STATE: Final[dict[str, Any]] = {
    "format": int,
    "schema": bytes,
    "retired": tuple[FormerSchema, ...],
    "since": int | None,
    "upper": int | None,
    "batches": tuple[Batch, ...],
    "holds": dict[str, Hold],
    "sightings": dict[str, Sighting],
    "writers": dict[str, LastWrite],
    "commits": tuple[Commit, ...],
    "commits_forgotten": bool,
    "totals": Totals,
    "write_epoch": int,
    "claims": tuple[Claim, ...],
    "registered": Registration,
    "mark": Mark | None,
    "barred": tuple[str, ...],
}
_DIFF: Final[dict[str, Any]] = {
    "schema": bytes | None,
    "upper": tuple[int | None] | None,
    "since": tuple[int | None] | None,
    "holds": dict[str, Hold],
    "released": tuple[str, ...],
    "sightings": dict[str, Sighting],
    "batch": Batch | None,
    "sum_t": bytes,
    "is_moved": bool,
    "token": Token | None,
    "named": bool,
    "dropped_writers": tuple[str, ...],
    "merged": BatchMerge | None,
    "write_epoch": int | None,
    "claims": tuple[Claim, ...] | None,
    "registered": Registration | None,
    "mark": Mark | None,
    "barred": str | None,
}
_STATE_FIELDS: Final = decoders_of(_STATE)
_DIFF_FIELDS: Final = decoders_of(_DIFF)


@dataclass(frozen=True, slots=True)
class ShardLanguage:
    """The rules of shards' states; with ``shard``, a change must not name another shard's parts."""

    shard: str = ""

    def initial(self) -> State:
        return State()

    def apply(self, state: State, diff: Diff) -> State:
        return apply_diff(state, diff)

    def encode_diff(self, diff: Diff) -> bytes:
        fields = {
            name: getattr(diff, name) for name in _DIFF if getattr(diff, name) != _ABSENT.get(name)
        }
        return msgspec.msgpack.encode({**diff.extra, **fields})

    def decode_diff(self, data: bytes) -> Diff:
        found, extra = fields_of(data, _DIFF_FIELDS)
        diff = made_of(Diff, {**found, "extra": extra})
        if self.shard and diff.batch is not None:
            for part in diff.batch.parts:
                if part.path is not None and not part.path.startswith(f"shard/{self.shard}/"):
                    raise state_of_another(self.shard)
        return diff

    def encode_state(self, state: State) -> bytes:
        """Return the bytes of a state; its format is the oldest whose versions read it right."""
        fields = {name: getattr(state, name) for name in _STATE if name != "format"}
        fields["batches"] = tuple(state.batches)
        # Without these fields, the bytes are those of a version that does not know them.
        for name in ("sightings", "mark", "barred"):
            if not fields[name]:
                del fields[name]
        is_moved = state.registered.number or any(one.is_moved for one in state.commits)
        form = _FORMAT_OF_MOVED_TIMES if is_moved else _FORMAT_OF_STORED_TIMES
        form = form if state.mark is None else FORMAT
        return msgspec.msgpack.encode({**state.extra, "format": form, **fields})

    def decode_state(self, data: bytes) -> State:
        found, extra = fields_of(data, _STATE_FIELDS)
        form = found.pop("format", 0)
        if form > FORMAT:
            raise UsageError(
                "a newer tidelog wrote this shard: upgrade tidelog to use it", format=form
            )
        found["batches"] = Spine.of(found.get("batches", ()))
        return made_of(State, {**found, "extra": extra})

    def vanished(self, diff: Diff) -> Sequence[str]:
        return () if diff.merged is None else diff.merged.vanished

    def seqno_since(self, state: State) -> int | None:
        return least_seqno(state.holds)


_ABSENT: Final[dict[str, Any]] = {name: getattr(Diff(), name) for name in _DIFF}
