"""Batches: the updates of an interval of times, as a state knows them.

Shape: ``[lower, upper)``. Times are advanced to ``since``, or to the last one below ``upper`` if
    that comes first: they lie in the interval as ever. Parts stand in runs, each of which is in the
    order of its rows, with no two parts of overlapping keys. Descriptors of parts stay packed until
    somebody reads them, so that a state of many batches is opened quickly.
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

    Shape: ``runs`` has how many parts each run has. ``sum_v`` is V over all parts.
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
        """The parts, run after run.

        Raises:
            CorruptionError: they cannot be read.
        """
        return _unpack(self.packed)

    @property
    def v(self) -> RowSum:
        return RowSum.from_bytes(self.sum_v)

    @property
    def digest(self) -> int:
        """Tell this batch from every other one of the same times, those of the same rows too."""
        return xxhash.xxh3_64_intdigest(self.packed, seed=self.since)


def make_batch(
    parts: Sequence[Part],
    *,
    lower: int,
    upper: int | None,
    since: int = 0,
    runs: Sequence[int] | None = None,
) -> Batch:
    """Return the batch of parts that each are a run, unless ``runs`` says otherwise."""
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
