"""The encoding of keyed logs' states and changes: the `Language` of their machines.

Shape: msgpack maps of the fields of `KeyedState` and `KeyedDiff`; fields that this version does not
    know survive a round trip. In a state, checkpoints are stored without their runs: ``kept_ids``
    lists the run ids of each checkpoint, and ``kept`` has the runs that are not among the state's
    own, each once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tidelog.errors import CorruptionError, UsageError
from tidelog.keyed.format.records import SinkMark
from tidelog.keyed.states.run import Run
from tidelog.keyed.states.state import (
    ForkOrigin,
    KeyedCheckpoint,
    KeyedDiff,
    KeyedState,
    MergedRuns,
    SegmentSeal,
    apply_diff,
)
from tidelog.keyed.values import Retention, Sealing
from tidelog.machine.language import decoders_of, fields_of, made_of

FORMAT: Final = 1
_OF: Final = "a keyed log"
_STATE: Final[dict[str, Any]] = {
    "format": int,
    "kept": dict[str, Run],
    "kept_ids": dict[str, tuple[str, ...]],
    "is_made": bool,
    "is_dropped": bool,
    "sealing": Sealing,
    "retention": Retention,
    "retired": int,
    "compacted": int,
    "runs": tuple[Run, ...],
    "seals": tuple[SegmentSeal, ...],
    "first_segment": int,
    "checkpoints": dict[str, KeyedCheckpoint],
    "origin": ForkOrigin | None,
    "write_epoch": int,
    "write_epoch_us": int,
    "sinks": dict[str, SinkMark],
    "wal": str,
    "voided": tuple[str, ...],
}
_DIFF: Final[dict[str, Any]] = {
    "made": bool,
    "dropped": bool,
    "sealing": Sealing | None,
    "retention": Retention | None,
    "retired": int | None,
    "first_segment": int | None,
    "compacted": int | None,
    "added": tuple[Run, ...],
    "merged": MergedRuns | None,
    "seals": tuple[SegmentSeal, ...],
    "checkpoints": dict[str, KeyedCheckpoint],
    "dropped_checkpoints": tuple[str, ...],
    "origin": tuple[ForkOrigin | None] | None,
    "write_epoch": int | None,
    "write_epoch_us": int | None,
    "sinks": dict[str, SinkMark],
    "wal": str | None,
    "voided": tuple[str, ...],
    "vanished": tuple[str, ...],
}
_NOT_OF_STATE: Final = ("format", "kept", "kept_ids")
_STATE_FIELDS: Final = decoders_of(_STATE)
_DIFF_FIELDS: Final = decoders_of(_DIFF)
_ABSENT: Final[dict[str, Any]] = {name: getattr(KeyedDiff(), name) for name in _DIFF}


def prefix_of(name: str) -> str:
    """Return the folder of a keyed log's runs and of its machine's rollups."""
    return f"keyed/{name}"


@dataclass(frozen=True, slots=True)
class KeyedLanguage:
    """The rules and the encoding of the state of keyed log ``name``."""

    name: str

    def initial(self) -> KeyedState:
        return KeyedState()

    def apply(self, state: KeyedState, diff: KeyedDiff) -> KeyedState:
        return apply_diff(state, diff)

    def encode_diff(self, diff: KeyedDiff) -> bytes:
        fields = {n: getattr(diff, n) for n in _DIFF if getattr(diff, n) != _ABSENT[n]}
        return msgspec.msgpack.encode({**diff.extra, **fields})

    def decode_diff(self, data: bytes) -> KeyedDiff:
        fields, extra = fields_of(data, _DIFF_FIELDS, of=_OF)
        return made_of(KeyedDiff, {**fields, "extra": extra}, of=_OF)

    def encode_state(self, state: KeyedState) -> bytes:
        fields = {name: getattr(state, name) for name in _STATE if name not in _NOT_OF_STATE}
        return msgspec.msgpack.encode(
            {**state.extra, "format": FORMAT, **fields, **_checkpoints_apart(state)}
        )

    def decode_state(self, data: bytes) -> KeyedState:
        fields, extra = fields_of(data, _STATE_FIELDS, of=_OF)
        form = fields.pop("format", 0)
        if form > FORMAT:
            raise UsageError(
                "a newer tidelog wrote this keyed log: upgrade tidelog to use it", format=form
            )
        _join_checkpoints(fields)
        return made_of(KeyedState, {**fields, "extra": extra}, of=_OF)

    def vanished(self, diff: KeyedDiff) -> Sequence[str]:
        # A fork also names runs of its source, which it must not delete.
        return [path for path in diff.vanished if path.startswith(f"{prefix_of(self.name)}/")]

    def seqno_since(self, state: KeyedState) -> int | None:
        return None


def _checkpoints_apart(state: KeyedState) -> dict[str, Any]:
    """Return the checkpoints of a state without runs, and their runs, each once.

    A nightly checkpoint of a large log has nearly the same runs as the one before.
    """
    own = {run.id for run in state.runs}
    made = state.checkpoints
    return {
        "checkpoints": {name: replace(checkpoint, runs=()) for name, checkpoint in made.items()},
        "kept": {
            r.id: r for checkpoint in made.values() for r in checkpoint.runs if r.id not in own
        },
        "kept_ids": {
            name: tuple(run.id for run in checkpoint.runs) for name, checkpoint in made.items()
        },
    }


def _join_checkpoints(fields: dict[str, Any]) -> None:
    """Restore the runs of the checkpoints of a decoded state.

    Raises:
        CorruptionError: a run of a checkpoint is missing.
    """
    ids, kept = fields.pop("kept_ids", {}), fields.pop("kept", {})
    known = {**kept, **{run.id: run for run in fields.get("runs", ())}}
    try:
        for name, its in ids.items():
            runs = tuple(known[run_id] for run_id in its)
            fields["checkpoints"][name] = replace(fields["checkpoints"][name], runs=runs)
    except KeyError as error:
        raise CorruptionError(
            f"the state of {_OF} lacks a run of a checkpoint: restore it from a backup, or from "
            "an older version of its object",
            missing=error,
        ) from error
