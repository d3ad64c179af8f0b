"""Batches: the updates of an interval of times, as described in a state; and their spine.

Shape: the interval is ``[lower, upper)``. A merge advances times to ``since``, or to the last time
    below ``upper`` if that is earlier, so times never leave the interval. A part that a merge
    neither reads nor writes keeps its earlier times. Parts are grouped into runs. The parts of a
    run are in row order and their keys do not overlap. The descriptors of parts stay encoded until
    they are read, so a state of many batches opens quickly.
    The spine is an immutable value in blocks of at most 64 batches: with 10,000 batches, a commit
    copies one block and the list of blocks.
Source: persist, "Batches"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
import xxhash

from tidelog.core.frontier import TIME_MAX
from tidelog.errors import CorruptionError, require
from tidelog.persist.format.part import Part
from tidelog.rowhash import RowSum

# Batches whose parts stay decoded. A state keeps its parts packed, so a process that opens a shard
# decodes only the batches that it reads.
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
        raise CorruptionError(
            "the list of a shard's parts cannot be decoded: restore the shard's state from a "
            "backup, or from an older version of its object"
        ) from error


BLOCK: Final = 64
Blocks = tuple[tuple[Batch, ...], ...]


@dataclass(frozen=True, slots=True)
class Spine:
    """Batches that do not overlap, oldest first.

    Shape: no block is empty; ``count`` is the number of batches.
    """

    blocks: Blocks = ()
    count: int = 0

    @staticmethod
    def of(batches: Iterable[Batch]) -> Spine:
        """Return a spine of batches that are in order."""
        flat = tuple(batches)
        blocks = tuple(flat[start : start + BLOCK] for start in range(0, len(flat), BLOCK))
        return Spine(blocks, len(flat))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        for block in self.blocks:
            yield from block

    def __eq__(self, other: object) -> bool:
        """Return True if the batches are equal, however they are divided into blocks."""
        if not isinstance(other, Spine):
            return NotImplemented
        return self.count == other.count and all(a == b for a, b in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple((one.lower, one.upper) for one in self))

    def append(self, batch: Batch) -> Spine:
        """Return the spine with one more batch at its end."""
        if self.blocks and len(self.blocks[-1]) < BLOCK:
            blocks = (*self.blocks[:-1], (*self.blocks[-1], batch))
        else:
            blocks = (*self.blocks, (batch,))
        return Spine(blocks, self.count + 1)

    def within(self, lower: int, upper: int | None) -> list[Batch]:
        """Return the batches that lie entirely within ``[lower, upper)``."""
        end = _end(upper)
        return [b for b in self._from(lower) if b.lower >= lower and _end(b.upper) <= end]

    def until(self, time: int) -> Iterator[Batch]:
        """Yield the batches that may hold updates at times up to ``time``."""
        for batch in self:
            if batch.lower > time:
                return
            yield batch

    def after(self, time: int) -> Iterator[Batch]:
        """Yield the batches that may hold updates at times past ``time``."""
        # Merges advance times only within a batch, so upper still bounds them.
        return self._from(time + 1)

    def replace(self, old: list[Batch], new: Batch | None) -> Spine:
        """Return the spine with ``new`` (None: no batch) in place of some adjacent batches."""
        require(bool(old), "a merge must replace at least one batch")
        first = self._block_of(old[0].lower)
        last = self._block_of(old[-1].lower)
        flat = [b for block in self.blocks[first : last + 1] for b in block]
        at = flat.index(old[0])
        require(flat[at : at + len(old)] == old, "the replaced batches are not adjacent")
        flat[at : at + len(old)] = [] if new is None else [new]
        middle = tuple(tuple(flat[i : i + BLOCK]) for i in range(0, len(flat), BLOCK))
        blocks = (*self.blocks[:first], *middle, *self.blocks[last + 1 :])
        count = self.count - len(old) + (new is not None)
        # Merges leave small blocks. Repack once there are twice as many blocks as needed, so a
        # change stays cheap on average.
        if len(blocks) > 2 * (count // BLOCK + 1):
            return Spine.of(b for block in blocks for b in block)
        return Spine(blocks, count)

    def _block_of(self, lower: int) -> int:
        return max(0, bisect_right(self.blocks, lower, key=lambda block: block[0].lower) - 1)

    def _from(self, time: int) -> Iterator[Batch]:
        """Yield the batches whose upper is past ``time``."""
        start = bisect_left(self.blocks, time + 1, key=lambda block: _end(block[-1].upper))
        for block in self.blocks[start:]:
            for batch in block:
                if _end(batch.upper) > time:
                    yield batch


def _end(upper: int | None) -> int:
    return TIME_MAX + 1 if upper is None else upper
