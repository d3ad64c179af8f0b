"""A standalone cluster whose executors share nothing with the driver but a bucket."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import checks, runs
from kit.s3_servers import SeaweedServer
from kit.spark_cluster import StandaloneCluster

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are found by /proc"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A master and two workers, whose Python has no tidelog."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.mark.slow
def test_what_executors_do_not_see_is_refused_before_anything_is_bound(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    """In a session of a user's own, too; the short form of this is beside Spark's other tests."""
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


@pytest.mark.slow
async def test_every_row_is_there_once_though_executors_die_in_each_stage(
    cluster: StandaloneCluster, seaweed: SeaweedServer, tmp_path: Path
) -> None:
    """What a task wrote that nobody heard of is garbage, and what was lost is computed again."""
    report = await checks.ingest_while_executors_die(
        cluster, seaweed, tmp_path, size_bytes=39_000_000, seed=1
    )

    assert list(report.killed_in) == checks.STAGES
    assert report.ticks >= 3
    assert report.driver_read_bytes < report.input_bytes / 100
