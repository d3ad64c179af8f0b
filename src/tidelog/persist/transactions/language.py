"""The encoding of transaction shards' states and changes: the `Language` of their machines.

Shape: msgpack maps, as for shards (`tidelog.persist.states.state`); fields that this version
    does not know survive a round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tidelog.errors import UsageError
from tidelog.machine.language import decoders_of, fields_of, made_of
from tidelog.persist.states.state import Token
from tidelog.persist.transactions.state import (
    Committed,
    Forgotten,
    LastCommit,
    Pending,
    RegisteredShard,
    TransactionDiff,
    TransactionState,
    Write,
    apply_diff,
)

FORMAT: Final = 2  # 1 has no ``moved`` and no ``writers``.
_STATE: Final[dict[str, Any]] = {
    "format": int,
    "upper": int,
    "tables": dict[str, RegisteredShard],
    "forgotten": dict[str, Forgotten],
    "pending": tuple[Pending, ...],
    "commits": tuple[Committed, ...],
    "commits_forgotten": bool,
    "moved": dict[str, int],
    "writers": dict[str, LastCommit],
}
_DIFF: Final[dict[str, Any]] = {
    "upper": int | None,
    "token": Token | None,
    "named": bool,
    "dropped_writers": tuple[str, ...],
    "digest": bytes,
    "writes": dict[str, Write],
    "tables": dict[str, RegisteredShard],
    "forgotten": dict[str, Forgotten],
    "applied": dict[str, int],
}
_STATE_FIELDS: Final = decoders_of(_STATE)
_DIFF_FIELDS: Final = decoders_of(_DIFF)
_ABSENT: Final[dict[str, Any]] = {name: getattr(TransactionDiff(), name) for name in _DIFF}


@dataclass(frozen=True, slots=True)
class TransactionLanguage:
    """The rules and the encoding of transaction shards' states."""

    def initial(self) -> TransactionState:
        return TransactionState()

    def apply(self, state: TransactionState, diff: TransactionDiff) -> TransactionState:
        return apply_diff(state, diff)

    def encode_diff(self, diff: TransactionDiff) -> bytes:
        fields = {n: getattr(diff, n) for n in _DIFF if getattr(diff, n) != _ABSENT[n]}
        return msgspec.msgpack.encode({**diff.extra, **fields})

    def decode_diff(self, data: bytes) -> TransactionDiff:
        found, extra = fields_of(data, _DIFF_FIELDS)
        return made_of(TransactionDiff, {**found, "extra": extra})

    def encode_state(self, state: TransactionState) -> bytes:
        fields = {name: getattr(state, name) for name in _STATE if name != "format"}
        return msgspec.msgpack.encode({**state.extra, "format": FORMAT, **fields})

    def decode_state(self, data: bytes) -> TransactionState:
        """Return a state of this format or an earlier one.

        Raises:
            UsageError: a newer version wrote the state. CorruptionError: it cannot be decoded.
        """
        found, extra = fields_of(data, _STATE_FIELDS)
        form = found.pop("format", 0)
        if form > FORMAT:
            raise UsageError(
                "a newer tidelog wrote these transactions: upgrade tidelog to use them", format=form
            )
        state = made_of(TransactionState, {**found, "extra": extra})
        # Format 1 does not record which shard a commit wrote last: any of them, then.
        return state if form > 1 else replace(state, moved=dict.fromkeys(state.tables, state.upper))

    def vanished(self, diff: TransactionDiff) -> Sequence[str]:
        return ()

    def seqno_since(self, state: TransactionState) -> int | None:
        return None
