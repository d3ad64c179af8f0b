"""Ingest a scene while executors die in each stage; compare with its replay and a local run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from cluster import runs
from cluster.scene import NAME, Scene, spec_of, write_scene
from kit.s3_servers import SeaweedServer
from kit.sources import rows_of
from kit.spark_cluster import StandaloneCluster
from tidelog.location import Location, open_location

# More than one task's share: each stage has tasks for all executors.
TICK_BYTES: Final = 18_500_000
STAGES: Final = ["survey", "decode", "write", "commit"]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run.

    Units: bytes of the input, and bytes that the driver read from any store.
    """

    rows: int
    ticks: int
    killed_in: tuple[str, ...]
    input_bytes: int
    driver_read_bytes: int

    def __str__(self) -> str:
        share = 100 * self.driver_read_bytes / self.input_bytes
        return (
            f"{self.rows:,} rows in {self.ticks} ticks, each there once, and as the engine 'local' "
            f"has them; killed in: {', '.join(self.killed_in)}; of {self.input_bytes:,} bytes the "
            f"driver read {self.driver_read_bytes:,} ({share:.2f} %)"
        )


async def ingest_while_executors_die(
    cluster: StandaloneCluster,
    server: SeaweedServer,
    folder: Path,
    *,
    seed: int,
    size_bytes: int,
    tick_bytes: int = TICK_BYTES,
    task_bytes: int = 0,
) -> Report:
    """Ingest, killing an executor in each stage and a worker at a commit; compare everything.

    Units: ``task_bytes`` is the size of tasks; 0 keeps the default.
    """
    source = server.source_url(f"cluster-{seed}/in")
    scene = await write_scene(source, size_bytes=size_bytes, files=8, seed=seed)
    report = folder / "report"
    by_spark, by_hand = [
        await open_location(server.url(f"cluster-{seed}/{name}"), create=True)
        for name in ("lake", "clean")
    ]
    for location in (by_spark, by_hand):
        await location.sources.create(spec_of(source))
    arguments = runs.ingest_arguments(by_spark.url, cluster, tick_bytes=tick_bytes)
    told_first = [str(report), str(cluster.worker_pid), str(task_bytes)]
    driver = ["cluster.driver", *told_first, *arguments]
    (told,) = runs.finish(runs.start(driver, folder))
    await _ingest_here(by_hand, tick_bytes)

    assert (told["rows"], told["bad"], told["late"]) == (scene.rows, scene.bad_lines, 0)
    assert told["bytes"] == scene.size_bytes
    _check_contents(await contents(by_spark), scene)
    for name in (NAME, f"{NAME}_errors"):
        assert rows_of(await contents(by_spark, name)) == rows_of(await contents(by_hand, name))
    *killed_in, read_bytes = report.read_text().splitlines()
    return Report(
        rows=told["rows"],
        ticks=told["ticks"],
        killed_in=tuple(killed_in),
        input_bytes=scene.size_bytes,
        driver_read_bytes=int(read_bytes),
    )


async def contents(location: Location, name: str = NAME) -> pa.Table:
    """Return the present contents of a collection."""
    return await (await location.collection(name)).consolidated()


async def _ingest_here(location: Location, tick_bytes: int) -> None:
    ingester = await location.sources.ingester(NAME, bytes_max=tick_bytes)
    head = await ingester.source.head()
    while (tick := await ingester.tick(head)) is not None and tick.left_bytes:
        pass


def _check_contents(table: pa.Table, scene: Scene) -> None:
    """Compare with the replay: each row is there once."""
    found = table.drop_columns(["_diff"]).to_pylist()
    assert len(found) == len(scene.contents)
    assert {row["key"]: row for row in found} == scene.contents
