"""A simulated source: its catalog entry, its ingesters, and its expected output."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from sim.checkers.demands import demand
from sim.checkers.invariants import ObservedShard
from sim.kernel.world import Client
from sim.workloads.files import COLUMNS, KEY, Input, Line
from tidelog.collection.catalog.catalog import CollectionInfo, RenditionInfo, SourceInfo
from tidelog.collection.catalog.controller import Controller
from tidelog.collection.collection import Collection
from tidelog.collection.create import source_schema
from tidelog.collection.formats.types import parse_schema
from tidelog.collection.ingest.engine import LocalEngine
from tidelog.collection.ingest.ingest import Ingester
from tidelog.collection.source.binding import FileRange
from tidelog.collection.source.files import FilesSource
from tidelog.collection.spec_types import SourceSpec
from tidelog.persist.format.schema import ShardSchema
from tidelog.rowhash import bucket_of, hash_rows
from tidelog.testing.models import (
    Message,
    Update,
    consolidate,
    replay_none,
    replay_upsert,
)

NAME = "s"
GROUP = "g" + "0" * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSource:
    """A source over generated files, with two output shards.

    If it ``is_grouped``, its shards share an object of consensus, as those of new sources do.
    """

    envelope: str = "upsert"
    timed: bool = True
    delete_when: str | None = "gone"
    shards: tuple[str, ...] = ("out-0", "out-1")
    bytes_max: int = 500
    is_versioned: bool = False
    retain_ms: int | None = None
    is_grouped: bool = False
    ingester_class: Callable[..., Ingester] = field(default=Ingester)

    @property
    def spec(self) -> SourceSpec:
        upsert = self.envelope == "upsert"
        return SourceSpec(
            name=NAME,
            files="src",
            envelope=self.envelope,
            key=KEY if upsert else (),
            time_column="at" if self.timed else None,
            delete_when=self.delete_when if upsert else None,
            schema=COLUMNS,
            shards=len(self.shards),
        )

    @property
    def required(self) -> tuple[str, ...]:
        """Return the columns that must not be null."""
        key = KEY if self.envelope == "upsert" else ()
        return (*key, "at") if self.timed else key

    @property
    def schema(self) -> ShardSchema:
        return _schema_of(self)

    @property
    def rendition(self) -> RenditionInfo:
        gone = [f"gone-{n}" for n in range(len(self.shards))] if self.spec.keeps_deletions else []
        names = [*self.shards, "errors", "remap", *gone]
        ids = {
            name: f"{GROUP}-{n:012x}" if self.is_grouped else name for n, name in enumerate(names)
        }
        return RenditionInfo(
            id="r1",
            collection=NAME,
            schema=self.schema.encoded,
            shards=tuple(ids[name] for name in self.shards),
            errors=ids["errors"],
            remap=ids["remap"],
            deletions=tuple(ids[name] for name in gone),
        )

    @property
    def info(self) -> SourceInfo:
        spec = self.spec
        return SourceInfo(
            id="o1",
            name=NAME,
            rendition="r1",
            url="memory://",
            patterns=("src/**",),
            format="json",
            envelope=spec.envelope,
            key=tuple(spec.key),
            time_column=spec.time_column,
            delete_when=spec.delete_when,
            retain_ms=self.retain_ms,
        )

    async def create(self, client: Client) -> None:
        collection = CollectionInfo(name=NAME, active="r1", renditions=("r1",), created_us=0)
        await self.controller(client).create_source(collection, self.rendition, self.info)

    def controller(self, client: Client) -> Controller:
        return Controller(store=client.store, consensus=client.consensus, clock=client.clock)

    def files(self, client: Client) -> FilesSource:
        # Blocks of at most a line, and pieces of a few lines, so that cuts fall everywhere.
        return FilesSource(
            store=client.store,
            clock=client.clock,
            info=self.info,
            schema=self.schema,
            is_versioned=self.is_versioned,
            block_bytes=self.bytes_max // 8,
            piece_bytes=self.bytes_max // 2,
        )

    def ingester(self, client: Client) -> Ingester:
        return self.ingester_class(
            info=self.info,
            rendition=self.rendition,
            source=self.files(client),
            engine=LocalEngine(store=client.store, clock=client.clock),
            store=client.store,
            consensus=client.consensus,
            clock=client.clock,
            controller=self.controller(client),
            bytes_max=self.bytes_max,
        )

    def collection(self, client: Client) -> Collection:
        return Collection(
            name=NAME,
            rendition=self.rendition,
            store=client.store,
            consensus=client.consensus,
            clock=client.clock,
        )


@lru_cache(maxsize=16)
def _schema_of(source: SimSource) -> ShardSchema:
    return source_schema(source.spec, parse_schema(source.spec.schema or ""))


@dataclass(frozen=True, slots=True)
class Bound:
    """A recorded binding: the times ``[lower, upper)``, and the file ranges in it."""

    lower: int
    upper: int
    ranges: tuple[FileRange, ...]


def bindings_of(remap: ObservedShard) -> list[Bound]:
    """Return all bindings ever recorded, from the updates of the remap shard.

    The time of its rows identifies a binding; an interval without rows is part of the next.
    """
    by_time: dict[int, list[FileRange]] = {}
    for (row, time), diff in consolidate(remap.updates).items():
        if diff > 0:
            path, start, limit, *_ = row
            by_time.setdefault(time, []).append(
                FileRange(path=path, start=start, limit=limit)  # type: ignore[arg-type]
            )
    found: list[Bound] = []
    lower = 0
    for time in sorted(by_time):
        ranges = sorted(by_time[time], key=lambda r: r.path)
        found.append(Bound(lower, time + 1, tuple(ranges)))
        lower = time + 1
    return found


def check_bindings(bindings: list[Bound], given: Input) -> None:
    """Check that each file is bound completely, range after range, without overlap."""
    reached = dict.fromkeys(given.files, 0)
    for bound in bindings:
        for taken in bound.ranges:
            demand(taken.start == reached[taken.path], "ranges have a gap", taken=taken)
            demand(taken.start < taken.limit, "a range is empty", taken=taken)
            reached[taken.path] = taken.limit
    whole = {path: len(given.bytes_of(path)) for path in given.files}
    demand(reached == whole, "files were not taken whole", reached=reached, whole=whole)


def replay(source: SimSource, bindings: Iterable[Bound], given: Input) -> list[Update]:
    """Return the result of the bindings, computed in plain Python."""
    messages: list[tuple[int, int, int, int, Line]] = []
    for bound in bindings:
        for rank, taken in enumerate(bound.ranges):
            for offset, line in given.lines_between(taken.path, taken.start, taken.limit):
                if line.row is None:
                    continue
                time = bound.upper - 1
                if source.timed:
                    time = min(max(line.at, bound.lower), bound.upper - 1)
                own = line.at if source.timed else 0
                messages.append((time, own, rank, offset, line))
    # Bindings are disjoint in time, so sorting by time never mixes the ranks of two.
    ordered = sorted(messages, key=lambda m: m[:4])
    return _replayed(source, [(time, line) for time, _, _, _, line in ordered])


def replay_alone(source: SimSource, given: Input) -> list[Update]:
    """Return the result of the rows' own times, whatever the bindings were."""
    ordered = sorted((line for line in given.lines() if line.row is not None), key=lambda x: x.at)
    return _replayed(source, [(line.at, line) for line in ordered])


def newest_alone(source: SimSource, given: Input) -> dict[str, object]:
    """Return each key's newest row by its time, or None if that row deletes the key.

    Keys with equal newest times in two files are left out: arrival order decides there.
    """
    found: dict[str, tuple[int, set[str], object]] = {}
    for path in sorted(given.files):
        for line in given.files[path]:
            if line.row is None:
                continue
            key, _, at, gone = line.row
            known = found.get(key)
            if known is None or at >= known[0]:
                paths = known[1] if known is not None and known[0] == at else set()
                deletes = source.delete_when is not None and gone
                found[key] = at, paths | {path}, None if deletes else line.row
    return {key: row for key, (_, paths, row) in found.items() if len(paths) == 1}


def _replayed(source: SimSource, stamped: list[tuple[int, Line]]) -> list[Update]:
    messages = []
    for time, line in stamped:
        assert line.row is not None
        key, _, _, gone = line.row
        deletes = source.envelope == "upsert" and source.delete_when is not None and gone
        own = line.at if source.timed else 0
        messages.append(Message(time, (key,), None if deletes else line.row, own))
    return list((replay_upsert if source.envelope == "upsert" else replay_none)(messages))


def errors_expected(bindings: Iterable[Bound], given: Input) -> list[tuple[str, int, int, str]]:
    """Return file, offset, time and the beginning of the reason of each bad line."""
    return [
        (taken.path, offset, bound.upper - 1, line.reason)
        for bound in bindings
        for taken in bound.ranges
        for offset, line in given.lines_between(taken.path, taken.start, taken.limit)
        if line.row is None
    ]


def check_errors(errors: ObservedShard, expected: list[tuple[str, int, int, str]]) -> None:
    """Check that the errors shard has each bad line once, and nothing else."""
    found = sorted(
        (str(file), int(str(offset)), u.time, str(reason))
        for u in errors.updates
        for file, offset, reason, _ in [u.row]
    )
    wanted = sorted(expected)
    demand(all(u.diff == 1 for u in errors.updates), "an error was taken back")
    demand(
        [f[:3] for f in found] == [w[:3] for w in wanted],
        "other lines than the bad ones are errors",
        found=found,
        wanted=wanted,
    )
    for (_, _, _, said), (_, _, _, reason) in zip(found, wanted, strict=True):
        demand(said.startswith(reason), "a bad line has another reason", said=said, reason=reason)


def check_placed(source: SimSource, outputs: list[ObservedShard]) -> None:
    """Check that each row is in the shard that its key hashes to."""
    for index, shard in enumerate(outputs):
        rows = sorted({u.row for u in shard.updates}, key=repr)
        if not rows:
            continue
        data = source.schema.data
        names = source.schema.key or source.schema.names
        position = {n: i for i, n in enumerate(data.names)}
        columns = [
            pa.chunked_array([pa.array([r[position[n]] for r in rows], data.field(n).type)])
            for n in names
        ]
        buckets = bucket_of(hash_rows(columns, rows=len(rows)), len(outputs))
        demand(set(buckets.tolist()) <= {index}, "a row lies in another shard", shard=shard.id)
