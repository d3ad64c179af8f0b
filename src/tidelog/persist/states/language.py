"""The encoding of shards' states and changes: the `Language` of their machines.

Shape: msgpack maps of the fields of `State` and `Diff`. Fields that this version does not know
    survive a round trip, so an older tidelog can work next to a newer one. The unknown fields of
    maps are kept in ``extra``. Arrays (batches, parts, commits) have a map of that name as their
    last element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidelog.errors import UsageError
from tidelog.machine.fields import decoders_of, fields_of, made_of
from tidelog.machine.lost import state_of_another
from tidelog.persist.states.batch import Batch
from tidelog.persist.states.claim import Claim
from tidelog.persist.states.hold import Hold, least_seqno
from tidelog.persist.states.spine import Spine
from tidelog.persist.states.state import (
    Commit,
    Diff,
    LastWrite,
    Merged,
    Registered,
    Retired,
    Sighting,
    State,
    Token,
    Totals,
    apply_diff,
)

FORMAT: Final = 2
_STATE: Final[dict[str, Any]] = {
    "format": int,
    "schema": bytes,
    "retired": tuple[Retired, ...],
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
    "registered": Registered,
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
    "token": Token | None,
    "named": bool,
    "dropped_writers": tuple[str, ...],
    "merged": Merged | None,
    "write_epoch": int | None,
    "claims": tuple[Claim, ...] | None,
    "registered": Registered | None,
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
        fields = {name: getattr(state, name) for name in _STATE if name != "format"}
        fields["batches"] = tuple(state.batches)
        if not state.sightings:
            del fields["sightings"]  # The bytes are then those of a version without this field.
        return msgspec.msgpack.encode({**state.extra, "format": FORMAT, **fields})

    def decode_state(self, data: bytes) -> State:
        found, extra = fields_of(data, _STATE_FIELDS)
        form = found.pop("format", 0)
        if form > FORMAT:
            raise UsageError(
                "a newer tidelog wrote this shard: update tidelog to use it", format=form
            )
        found["batches"] = Spine.of(found.get("batches", ()))
        return made_of(State, {**found, "extra": extra})

    def vanished(self, diff: Diff) -> Sequence[str]:
        return () if diff.merged is None else diff.merged.vanished

    def seqno_since(self, state: State) -> int | None:
        return least_seqno(state.holds)


_ABSENT: Final[dict[str, Any]] = {name: getattr(Diff(), name) for name in _DIFF}
