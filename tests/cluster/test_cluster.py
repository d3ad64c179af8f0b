"""A standalone cluster whose executors share nothing with the driver but a bucket."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tidelog
from cluster import checks, runs
from cluster.scene import NAME, spec_of, write_few
from kit.s3_servers import KEYS, SeaweedServer
from kit.spark_cluster import StandaloneCluster
from tidelog.core.clock import SystemClock
from tidelog.location import open_location
from tidelog.store.urls import open_store

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers, whose Python has no tidelog."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():  # For the driver, and for workers when they start.
            patch.setenv(name, value)
        with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as started:
            yield started


@pytest.mark.slow
def test_what_executors_do_not_see_is_refused_before_anything_is_bound(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """A user's own session is refused too; tests/spark/test_reach.py has the short form of this."""
    folders = [tmp_path / "driver", tmp_path / "shared"]
    for folder in folders:
        folder.mkdir()
    settings = [f"{name}={value}" for name, value in runs.settings_of(cluster).items()]
    arguments = ["cluster.own_session", cluster.master, str(folders[1]), *settings]

    found = {told.pop("case"): told for told in runs.finish(runs.start(arguments, folders[0]))}

    for case, what in (("location apart", "do not see the location"), ("source apart", "files at")):
        assert found[case]["kind"] == "usage"
        assert what in found[case]["error"]
        assert (found[case]["bound"], found[case]["left"]) == (0, [])
    assert found["shared"]["rows"] == 20
    assert (found["shared"]["bound"] > 0, found["shared"]["left"]) == (True, [])
    assert found["read"]["rows"] == 20


async def test_every_row_is_there_once_though_executors_die_in_each_stage(
    cluster: StandaloneCluster, seaweed: SeaweedServer, tmp_path: Path
) -> None:
    """Unacknowledged output of a task is garbage, and lost work is computed again."""
    report = await checks.ingest_while_executors_die(
        cluster,
        seaweed,
        tmp_path,
        seed=1,
        size_bytes=8_000_000,
        tick_bytes=3_000_000,
        task_bytes=500_000,
    )
    print(report)

    assert list(report.killed_in) == checks.STAGES
    assert report.ticks >= 3
    assert report.driver_read_bytes < report.input_bytes / 100


async def test_a_merge_is_applied_once_after_deaths_of_driver_and_tasks(
    cluster: StandaloneCluster, seaweed: SeaweedServer, tmp_path: Path
) -> None:
    """A driver dies before its result is applied; later, tasks of both stages die after work."""
    url = seaweed.url("merged/lake")
    location = await open_location(url, create=True)
    schema = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.int64())])
    shard = location.shard("s", schema=schema, key=["k"])
    keys = np.arange(5_000)
    ones = np.ones(len(keys), np.int64)
    # Each key gets a value, which is retracted and replaced twice.
    for time, (value, diff) in enumerate([(0, 1), (0, -1), (1, 1), (1, -1), (2, 1)]):
        columns = [keys, value * ones, time * ones, diff * ones]
        table = pa.table(columns, ["k", "v", "_time", "_diff"])
        await shard.compare_and_append(table, time, time + 1)
    await shard.move_hold("history", 4)
    expected = {"k": list(range(5_000)), "v": [2] * 5_000, "_diff": [1] * 5_000}
    batches = len(shard.state.batches)
    conf = [f"{name}={value}" for name, value in runs.settings_of(cluster).items()]

    process = runs.start(["cluster.merging", cluster.master, url, "s", "driver", *conf], tmp_path)
    out, err = process.communicate(timeout=runs.SECONDS_MAX)
    assert process.returncode == -signal.SIGKILL, err[-3_000:]
    written = json.loads(out)["written"]
    assert len((await shard.refresh()).batches) == batches
    assert (await (await shard.snapshot(4)).to_arrow()).sort_by("k").to_pydict() == expected

    (told,) = runs.finish(
        runs.start(["cluster.merging", cluster.master, url, "s", "tasks", *conf], tmp_path)
    )
    await shard.refresh()
    assert told["merges"] == len(shard.state.batches) == 1
    assert told["parts"] > 1
    assert (await (await shard.snapshot(4)).to_arrow()).sort_by("k").to_pydict() == expected

    # The third sweep deletes the garbage of the driver and of repeated tasks.
    swept = [(await shard.sweep()).deleted for _ in range(3)]
    assert swept[:2] == [0, 0]
    assert swept[2] > written
    await shard.collect(after_us=0)
    there = {entry.key async for entry in location.store.list(f"shard/{shard.id}/part/")}
    assert there == {part.path for batch in shard.state.batches for part in batch.parts}
    assert (await (await shard.snapshot(4)).to_arrow()).sort_by("k").to_pydict() == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("/no/such/python", "have no Python at /no/such/python"),
        (runs.PLAIN_PYTHON, "lack packages that tidelog needs: duckdb"),
    ],
)
def test_executors_of_another_python_are_refused_before_anything_is_bound(
    cluster: StandaloneCluster, tmp_path: Path, program: str, words: str
) -> None:
    """The error comes before the tick is bound, and is no traceback of Spark's."""
    rows, url = write_few(tmp_path / "in", 5), str(tmp_path / "lake")
    with tidelog.connect(url, create=True) as lake:
        lake.sources.create(spec_of(str(tmp_path / "in")))
    arguments = runs.ingest_arguments(url, cluster, tick_bytes=10**6)
    arguments.append(f"--conf=spark.pyspark.python={program}")
    process = runs.start(["tidelog", *arguments], tmp_path)
    _, err = process.communicate(timeout=runs.SECONDS_MAX)

    told = [line for line in err.splitlines() if line.startswith("tidelog: ")]
    assert (process.returncode, len(told)) == (2, 1)
    assert words in told[0]
    # A later ingest by a working cluster finds no binding that it would have to follow.
    with tidelog.connect(url) as lake:
        assert lake.sources.ingest(NAME).rows == len(rows)


@pytest.mark.slow
def test_the_documented_lines_ingest_under_spark_submit(
    cluster: StandaloneCluster, seaweed: SeaweedServer, tmp_path: Path
) -> None:
    """The documented lines run, with another host, location and source."""
    rows = write_few(tmp_path / "in", 50)
    url = seaweed.url("submitted/lake")
    store = open_store(seaweed.source_url("submitted/in"), clock=SystemClock())
    asyncio.run(store.put("0.jsonl", (tmp_path / "in" / "0.jsonl").read_bytes()))
    with tidelog.connect(url, create=True) as lake:
        lake.sources.create(spec_of(seaweed.source_url("submitted/in")))

    out = runs.run_submit_lines(cluster, url, tmp_path)
    with tidelog.connect(url) as lake:
        found = lake.collection(NAME).snapshot().to_arrow()

    assert '"rows":50' in out
    assert found.num_rows == len(rows)
