"""The raw source of a source kind: it implements `RawSource` by the methods of a `SourceKind`.

With times from the clock, ranges are bound by their addresses alone, and nothing is read. With
times from the data, the engine surveys the ranges, and they are cut by the same rules as files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.formats.records import OFFSET
from tidelog.collection.formats.times import times_of
from tidelog.collection.source.binding import AddressRange, Taken
from tidelog.collection.source.decode import ReadData, required_columns
from tidelog.collection.source.decode_messages import OWN, decode_messages
from tidelog.collection.source.given_up import GivenUp, skip_key, with_gaps
from tidelog.collection.source.kind import (
    ADDRESS,
    BODY,
    ROWS,
    Frontier,
    RowRange,
    SourceKind,
    told,
)
from tidelog.collection.source.port import Plan, SourceHead, Survey
from tidelog.collection.source.survey_facts import (
    AnyPiece,
    Cut,
    CutPlace,
    RangePiece,
    SurveyFacts,
    choose_cut,
    choose_rough_cut,
    ranges_until,
    upper_after,
)
from tidelog.collection.source.survey_result import SurveyJob, greatest_time
from tidelog.collection.source.times_of_blocks import text_blocks
from tidelog.core.clock import Clock
from tidelog.errors import InvariantError, PositionCollected, SourceRewritten
from tidelog.persist.format.schema import ShardSchema
from tidelog.store.wrappers.metered import MeteringStore, Usage

ROUNDS_MAX: Final = 3
BLOCK_ROWS: Final = 8_192
PIECE_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class AddressedHead:
    """The end of each path, and the approximate size of a message in bytes."""

    reached: Frontier
    row_bytes: int
    given_up: GivenUp = field(default_factory=GivenUp)

    def left_bytes(self, taken: Taken) -> int:
        return sum(self._left(path, self._start(path, taken)) for path in self.reached)

    def left_addresses(self, taken: Taken) -> Mapping[str, int]:
        """Return the number of addresses of each path after ``taken`` and up to this head."""
        left = ((path, end - self._start(path, taken)) for path, end in self.reached.items())
        return {path: max(0, count) for path, count in sorted(left)}

    def left_after(self, left_bytes: int, taken: Taken, ranges: Iterable[AddressRange]) -> int:
        done = ((r, self._start(r.path, taken)) for r in ranges)
        return left_bytes - sum(
            self._left(r.path, start) - self._left(r.path, r.limit) for r, start in done
        )

    def _left(self, path: str, start: int) -> int:
        return max(0, self.reached.get(path, 0) - start) * self.row_bytes

    def _start(self, path: str, taken: Taken) -> int:
        gap = self.given_up.after(path, taken.get(path))
        if gap is not None:
            return gap[1]
        return taken[path].limit if path in taken else 0


@dataclass(frozen=True, slots=True)
class RangeSurvey:
    """A range, the result of its survey, and the newest bound range of its path."""

    asked: RowRange
    found: SurveyFacts
    before: AddressRange | None

    def range_until(
        self, place: CutPlace | None, *, late: int, time_max: int, reached: int
    ) -> RowRange:
        """Return the range up to a place; None means the whole range."""
        asked = self.asked
        limit = asked.limit if place is None else place.offset
        size = asked.size_bytes * (limit - asked.start) // (asked.limit - asked.start)
        late += self.before.late if self.before is not None else 0
        return msgspec.structs.replace(
            asked, limit=limit, size_bytes=size, late=late, time_max=time_max, reached=reached
        )


@dataclass(slots=True, kw_only=True)
class AddressedSource:
    """The raw source of a `SourceKind`.

    ``opened`` are the stores that it opened, by URL. ``brought`` is its class if the kind is
    registered only in this process, so that an executor could not find it by name.
    """

    kind: SourceKind
    info: SourceInfo
    schema: ShardSchema
    clock: Clock
    final: bool = False
    opened: Mapping[str, MeteringStore] = field(default_factory=dict)
    brought: type[SourceKind] | None = None
    _recognised: set[str] = field(default_factory=set)
    _given_up: GivenUp = field(default_factory=GivenUp)

    def __post_init__(self) -> None:
        self.kind.wanted = self._wanted()

    def _wanted(self) -> frozenset[str] | None:
        """Return the columns that are decoded; None if values of the others are counted."""
        if self.info.format != ROWS:
            return frozenset([self.kind.body, *self.info.includes.values()])
        return frozenset(self.schema.names) if self.info.kind in OWN else None

    @property
    def range_type(self) -> type[AddressRange]:
        return RowRange

    def adopt(self, schema: ShardSchema) -> None:
        self.schema = schema
        self.kind.wanted = self._wanted()

    def pass_over(self, paths: frozenset[str]) -> None:
        """See `RawSource`; the paths are keys of ranges, see `GivenUp`."""
        if paths != self._given_up.keys:
            self._given_up = GivenUp(paths)

    async def head(self) -> AddressedHead:
        with told(self.kind):
            reached = await self.kind.head()
        return AddressedHead(reached, self.kind.row_bytes, self._given_up)

    async def plan(
        self, taken: Taken, head: SourceHead, *, lower: int, bytes_max: int, survey: Survey
    ) -> Plan | None:
        if not isinstance(head, AddressedHead):
            raise InvariantError("a source was given another source's head")
        await self._recognise(taken)
        job = self._job(lower)
        gaps = self._given_up.gaps(taken)
        start = {path: found.limit for path, found in taken.items()}
        start |= {path: limit for path, (_, limit) in gaps.items()}
        surveys: list[RangeSurvey] = []
        for round_ in range(64):
            with told(self.kind):
                more = await self.kind.plan(start, head.reached, bytes_max=bytes_max << round_)
            if not job.is_timed:
                proven = await self._proven(_carried(more, taken))
                ranges = with_gaps(proven, gaps, taken, alone=True)
                return Plan(tuple(ranges), None) if ranges else None
            found = await self._surveyed(more, taken, job, survey)
            surveys = sorted([*surveys, *found], key=lambda one: (one.asked.path, one.asked.start))
            start |= {one.path: one.limit for one in more}
            complete = all(start.get(path, 0) >= end for path, end in head.reached.items())
            cut = _cut(surveys, complete=complete, rough=round_ >= ROUNDS_MAX)
            if cut is not None:
                ranges, upper = await self._take(cut, surveys, taken, job)
                # Without other messages, no time of the data says when these are complete.
                return Plan(tuple(with_gaps(ranges, gaps, taken, alone=False)), upper)
            if complete:
                return None
        return None

    async def _take(
        self, cut: Cut, surveys: Sequence[RangeSurvey], taken: Taken, job: SurveyJob
    ) -> tuple[Sequence[RowRange], int]:
        held_ms = 0 if self.final else self.info.lateness_ms
        ranges = ranges_until(cut, surveys, time_max=job.time_max, is_held=held_ms > 0)
        upper = upper_after(cut, job.lower, held_ms=held_ms)
        return await self._proven(joined(ranges, taken)), upper

    async def survey(self, piece: AnyPiece, job: SurveyJob) -> SurveyFacts:
        if not isinstance(piece, RangePiece) or not isinstance(piece.found, RowRange):
            raise InvariantError("a source was given another source's piece")
        rows = await self._rows(piece.found)
        return await self.clock.offload(lambda: look_at_rows(rows, piece.found, job))

    def waiting(self) -> Mapping[str, str]:
        return {}

    def notes(self) -> Mapping[str, str]:
        return {}

    def usage(self) -> Usage:
        return sum((store.usage() for store in self.opened.values()), Usage())

    async def hold(self, taken: Taken, *, make: bool) -> None:
        with told(self.kind):
            await self.kind.hold({path: found.limit for path, found in taken.items()}, make=make)

    async def read(
        self,
        found: AddressRange,
        low: int | None = None,
        high: int | None = None,
        *,
        anew: bool = False,
    ) -> tuple[AddressRange, ReadData]:
        if not isinstance(found, RowRange):
            raise InvariantError("a source was given another source's range")
        there = found.present
        await self._check(there)
        start = there.start if low is None else max(low, there.start)
        limit = there.limit if high is None else max(high, start)
        share = msgspec.structs.replace(there, start=start, limit=limit)
        return share, await self._rows(share)

    async def gone(self, taken: Taken) -> Sequence[AddressRange]:
        with told(self.kind):
            return await self.kind.gone({path: found.limit for path, found in taken.items()})

    async def _rows(self, found: AddressRange) -> pa.Table:
        if not isinstance(found, RowRange):
            raise InvariantError("a source was given another source's range")
        with told(self.kind):
            if found.start >= found.limit:  # The whole range is given up.
                columns = await self.kind.columns()
                rows = columns.append(pa.field(ADDRESS, pa.int64())).empty_table()
            else:
                rows = pa.concat_tables([batch async for batch in self.kind.read(found)])
        if self.info.format == ROWS or self.kind.body == BODY:
            return rows
        names = [BODY if name == self.kind.body else name for name in rows.column_names]
        return rows.rename_columns(names)

    async def _surveyed(
        self, asked: Sequence[RowRange], taken: Taken, job: SurveyJob, survey: Survey
    ) -> list[RangeSurvey]:
        if not asked:
            return []
        split = [split_range(one) for one in asked]
        pieces = tuple(RangePiece(found=piece) for of_it in split for piece in of_it)
        found = iter((await survey(msgspec.structs.replace(job, pieces=pieces))).found)
        surveys = []
        for one, of_it in zip(asked, split, strict=True):
            blocks = [block for _ in of_it for block in next(found).blocks]
            seen = SurveyFacts(limit=one.limit, ink=one.start, blocks=tuple(blocks))
            surveys.append(RangeSurvey(one, seen, taken.get(one.path)))
        return surveys

    async def _proven(self, ranges: Sequence[RowRange]) -> tuple[RowRange, ...]:
        """Return ranges with the proofs by which readers detect changes."""
        proofs = [await self._proof(one) for one in ranges]
        pairs = zip(ranges, proofs, strict=True)
        return tuple(msgspec.structs.replace(one, proof=proof) for one, proof in pairs)

    async def _proof(self, found: RowRange) -> str:
        with told(self.kind):
            return await self.kind.proof(found)

    async def _recognise(self, taken: Taken) -> None:
        """Check, once in a process, that the newest bound range of each path has not changed."""
        for path, found in taken.items():
            if path not in self._recognised and skip_key(found) not in self._given_up.keys:
                with suppress(PositionCollected):  # Committed messages may be collected.
                    await self._check(found)
                self._recognised.add(path)

    async def _check(self, found: AddressRange) -> None:
        """Check that a bound range still has the bound messages.

        Raises:
            SourceRewritten: the messages have changed.
        """
        if not isinstance(found, RowRange) or found.first >= found.limit:
            return
        there = found.present
        if await self._proof(there) != there.proof:
            raise SourceRewritten(
                f"{found.path!r} has changed in the range {there.start} to {found.limit - 1} "
                "after ingestion gave its rows a time: restore it, or drop the source and create "
                "it again"
            )

    def _job(self, lower: int) -> SurveyJob:
        return SurveyJob(
            source=self.info,
            schema=self.schema.encoded,
            schema_id=max(0, len(self.schema.known) - 1),
            lower=lower,
            time_max=greatest_time(self.info, now_us=self.clock.now_us(), lower=lower),
            final=True,
            is_versioned=True,
            pieces=(),
            kind=self.brought,
        )


def look_at_rows(rows: pa.Table, found: AddressRange, job: SurveyJob) -> SurveyFacts:
    """Return the survey of a range: the times of its good rows, by blocks of addresses."""
    source, schema = job.source, job.data_schema
    name = source.time_column or ""
    required = required_columns(source, schema)
    decoded = decode_messages(
        rows, found, schema.data, source=source, required=required, counted=False
    )
    times, there = times_of(decoded.rows.column(name), source.time_unit)
    there &= times <= job.time_max
    blocks = text_blocks(
        decoded.rows.column(OFFSET).to_numpy()[there],
        times[there],
        lower=job.lower,
        block_bytes=BLOCK_ROWS,
        rest_until=lambda _: b"",
    )
    return SurveyFacts(limit=found.limit, ink=found.start, blocks=tuple(blocks))


def split_range(found: RowRange) -> list[RowRange]:
    """Split a range into pieces that several tasks can survey."""
    count = max(1, -(-found.size_bytes // PIECE_BYTES))
    cuts = np.linspace(found.start, found.limit, count + 1).astype(np.int64)
    bounds = sorted({found.start, *cuts.tolist(), found.limit})
    size = found.size_bytes // (len(bounds) - 1)
    return [
        msgspec.structs.replace(found, start=low, limit=high, size_bytes=size)
        for low, high in pairwise(bounds)
    ]


def joined(ranges: Sequence[RowRange], taken: Taken) -> list[RowRange]:
    """Return ranges with the adjacent ranges of each path joined into one."""
    found: list[RowRange] = []
    for one in ranges:
        if not found or found[-1].path != one.path:
            found.append(one)
            continue
        last = found[-1]
        # Each count includes the late messages of earlier bindings.
        late = one.late - (taken[one.path].late if one.path in taken else 0)
        found[-1] = msgspec.structs.replace(
            last,
            limit=one.limit,
            size_bytes=last.size_bytes + one.size_bytes,
            late=last.late + late,
            reached=max(last.reached, one.reached),
        )
    return found


def _carried(ranges: Sequence[RowRange], taken: Taken) -> list[RowRange]:
    """Return ranges with the late counts of their paths; with times from the clock, none is new."""
    return [
        msgspec.structs.replace(r, late=taken[r.path].late) if r.path in taken else r
        for r in ranges
    ]


def _cut(surveys: Sequence[RangeSurvey], *, complete: bool, rough: bool) -> Cut | None:
    if not surveys:
        return None
    cut = choose_cut(surveys, complete=complete)
    return choose_rough_cut(surveys) if cut is None and rough else cut
