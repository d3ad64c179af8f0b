"""Batches: the updates of an interval of times, as described in a state.

Shape: the interval is ``[lower, upper)``. A merge advances times to ``since``, or to the last time
    below ``upper`` if that is earlier, so times never leave the interval. Parts are grouped into
    runs. The parts of a run are in row order and their keys do not overlap. The descriptors of
    parts stay encoded until they are read, so a state of many batches opens quickly.
Source: persist, "Batches"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import xxhash

from tidelog.errors import CorruptionError
from tidelog.persist.format.part import Part
from tidelog.rowhash import RowSum

UNPACKED_KEPT: Final = 20_000
_PARTS: Final = msgspec.msgpack.Decoder(tuple[Part, ...])


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """The updates of the times ``[lower, upper)``; an upper of None is the empty frontier.

    Shape: ``runs`` holds the number of parts of each run. ``sum_v`` is V over all parts.
    """

    lower: int
    upper: int | None
    since: int
    runs: tuple[int, ...]
    rows: int
    diffs: int
    size_bytes: int
    inline_bytes: int
    sum_v: bytes
    packed: bytes
    extra: dict[str, Any] = {}

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in the order of the runs.

        Raises:
            CorruptionError: the descriptors cannot be read.
        """
        return _unpack(self.packed)

    @property
    def v(self) -> RowSum:
        return RowSum.from_bytes(self.sum_v)

    @property
    def digest(self) -> int:
        """A hash that differs between any two batches of the same times, even of the same rows."""
        return xxhash.xxh3_64_intdigest(self.packed, seed=self.since)


def make_batch(
    parts: Sequence[Part],
    *,
    lower: int,
    upper: int | None,
    since: int = 0,
    runs: Sequence[int] | None = None,
) -> Batch:
    """Return a batch of ``parts``; each part is a run of its own unless ``runs`` is given."""
    total = RowSum.zero()
    for part in parts:
        total = total + part.v
    return Batch(
        lower=lower,
        upper=upper,
        since=since,
        runs=tuple(runs) if runs is not None else (1,) * len(parts),
        rows=sum(p.rows for p in parts),
        diffs=sum(p.diffs for p in parts),
        size_bytes=sum(p.size_bytes for p in parts),
        inline_bytes=sum(p.size_bytes for p in parts if p.inline is not None),
        sum_v=total.to_bytes(),
        packed=msgspec.msgpack.encode(tuple(parts)),
    )


@lru_cache(maxsize=UNPACKED_KEPT)
def _unpack(packed: bytes) -> tuple[Part, ...]:
    try:
        return _PARTS.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError("a shard's parts cannot be read") from error
