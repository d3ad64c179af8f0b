"""Merges on Spark: the driver plans and applies, executors read, merge and write.

The shard's state decides which batches a merge claims, and whether its result replaces its inputs.
As with any merge, the result may come late, twice or never. If a driver dies, a sweep deletes its
parts, which no state names, and its claim expires.
Source: persist, "Compaction"; design page 4, "Compaction and collection".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.core.clock import run_all
from tidelog.errors import ObjectNotFound, TidelogError
from tidelog.persist.format.bounds import ordered
from tidelog.persist.format.part import Part, check_bytes, int64_array, missing_part
from tidelog.persist.format.schema import decode_schema, encode_with_known
from tidelog.persist.maintenance.merge_rows import is_plain
from tidelog.persist.maintenance.merger import MergedParts, MergerHere, merged_parts
from tidelog.persist.states.evolution import newest_schema
from tidelog.rowhash import RowSum
from tidelog.spark.job import run_job
from tidelog.spark.merge_plan import MergeJob, can_cut, places_count, shares_of
from tidelog.spark.merge_task import PlaceOutcome, cut_parts, join_parts, merge_places
from tidelog.spark.place import url_for_executors
from tidelog.spark.reach import check_once, see_parts
from tidelog.spark.scan import cut_evenly
from tidelog.spark.tasks import SparkTasks, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.persist.handle.port import ShardHandle
    from tidelog.persist.maintenance.merging import MergeRequest

LEAST_BYTES: Final = 64 * 1024 * 1024  # For less, one process is faster than tasks.
SAMPLED_PARTS: Final = 16
SAMPLED_VALUES: Final = 1_024
READS_MAX: Final = 4
MEMORY_BYTES: Final = 256 * 1024 * 1024


@dataclass(slots=True)
class SparkMerger:
    """A merger on the executors of a Spark session, which must reach the location.

    This process itself does merges of less than ``least_bytes`` of parts, and merges that drop
    expired updates.
    Units: a task sorts at most ``memory_bytes`` of rows in memory, and spills the rest to files.
    """

    spark: SparkSession
    _: KW_ONLY
    location_url: str = ""  # The default is the location of the shard.
    least_bytes: int = LEAST_BYTES
    memory_bytes: int = MEMORY_BYTES
    _here: MergerHere = field(default_factory=MergerHere)
    _checked: set[str] = field(default_factory=set)

    async def write(self, shard: ShardHandle, request: MergeRequest) -> MergedParts:
        """Write the result of a merge; see `tidelog.persist.maintenance.merger.Merger`.

        Raises:
            UsageError: executors do not reach the location.
            LocationError: Spark failed.
        """
        if request.size_bytes < self.least_bytes or request.is_expired is not None:
            return await self._here.write(shard, request)
        url = url_for_executors(
            self.location_url or shard.location_url or shard.store.url, shard.store
        )
        tasks = tasks_of(self.spark)
        await check_once(self.spark, tasks, url, self._checked, clock=shard.clock)
        cores = await shard.clock.offload(tasks.cores_count)
        job = await plan_job(shard, request, url=url, cores=cores, memory_bytes=self.memory_bytes)
        shares = shares_of(request.parts)
        outcomes = await run_job(
            tasks.tags, lambda: _run(tasks, job, shares), clock=shard.clock, what="the merge"
        )
        merged = _gathered(outcomes, job)
        await see_parts(merged.parts, tasks, url, clock=shard.clock)
        return merged


async def plan_job(
    shard: ShardHandle, request: MergeRequest, *, url: str, cores: int, memory_bytes: int
) -> MergeJob:
    """Plan the division of a merge among tasks; this reads samples of some parts.

    Raises:
        PartMissing, CorruptionError, LocationError: see `Merger`.
    """
    schema = newest_schema(shard.state)
    writer = shard.writer(schema)
    places = places_count(request.size_bytes, cores)
    plain = is_plain(schema, request.parts)
    cuts = [] if plain else await _choose_cuts(shard, request, places)
    return MergeJob(
        location_url=url,
        shard=shard.id,
        schema=encode_with_known(schema),
        write_epoch=writer.write_epoch,
        part_bytes=writer.part_bytes,
        advanced_to=request.advanced_to,
        memory_bytes=memory_bytes,
        places=len(cuts) + 1 if cuts else places,
        cuts=tuple(cuts),
        is_plain=plain,
    )


def _run(
    tasks: SparkTasks, job: MergeJob, shares: Sequence[tuple[Part, ...]]
) -> Sequence[PlaceOutcome]:
    if job.is_plain:
        return tasks.run(partial(join_parts, job=job), list(enumerate(shares)))
    first, second = partial(cut_parts, job=job), partial(merge_places, job=job)
    return tasks.meet(first, shares, second, job.places)


def _gathered(outcomes: Sequence[PlaceOutcome], job: MergeJob) -> MergedParts:
    """Combine the parts that tasks wrote.

    Raises:
        TidelogError: the first error among the results.
    """
    restated = RowSum.zero()
    places: dict[int, list[Part]] = {}
    for outcome in outcomes:
        if isinstance(outcome, TidelogError):
            raise outcome
        places.setdefault(outcome.place, []).extend(outcome.parts)
        restated = restated + RowSum.from_bytes(outcome.restated)
    written = [places[place] for place in sorted(places)]
    if job.is_ordered:
        written = [[part for run in written for part in run]]
    return merged_parts(written, decode_schema(job.schema), restated)


async def _choose_cuts(shard: ShardHandle, request: MergeRequest, places: int) -> list[Any]:
    """Return values of the first column that cut the rows into about ``places`` equal ranges.

    Return none if the column has no plain order, or one value in too many rows.
    """
    if places == 1 or not can_cut(newest_schema(shard.state)):
        return []
    stored = [part for b in request.batches for part in b.parts if part.path is not None]
    count = min(SAMPLED_PARTS, len(stored))
    chosen = [stored[(2 * n + 1) * len(stored) // (2 * count)] for n in range(count)]
    samples = await run_all([partial(_sample, shard, part) for part in chosen], at_once=READS_MAX)
    cuts = cut_evenly([group for groups in samples for group in groups], places)
    return cuts if 2 * (len(cuts) + 1) > places else []


async def _sample(shard: ShardHandle, part: Part) -> list[tuple[Any, int]]:
    """Return values sampled from a part's first column, with the number of rows each represents."""
    path = part.path or ""
    schema = newest_schema(shard.state)
    field = schema.data.field(0)
    if field not in list(schema.of_part(part.schema_id).data):
        return []
    try:
        data = (await shard.store.get(path)).data
    except ObjectNotFound as error:
        raise missing_part(path) from error
    return await shard.clock.offload(partial(_values, part, data, field))


def _values(part: Part, data: bytes, field: pa.Field[Any]) -> list[tuple[Any, int]]:
    check_bytes(part, data)
    file = pq.ParquetFile(pa.BufferReader(data))
    column = file.read(columns=[field.name]).column(field.name).cast(field.type).drop_null()
    step = max(1, len(column) // SAMPLED_VALUES)
    places = int64_array(np.arange(step // 2, len(column), step))
    return [(value, step) for value in ordered(column.take(places)).to_pylist()]
