"""A demonstration of tidelog on a cluster: ``make cluster-demo``, or ``python -m cluster``."""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from pathlib import Path

from cluster import checks
from cluster.demo import run_demo
from kit.s3_servers import KEYS, SeaweedServer
from kit.spark_cluster import StandaloneCluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=100, help="how much the second part ingests")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.environ.update(KEYS)
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-cluster-") as name,
        SeaweedServer(Path(name, "seaweed")) as server,
        StandaloneCluster(Path(name, "cluster")) as cluster,
    ):
        print(f"SeaweedFS, and Spark's master and two workers, run below {name}.")
        urls = {"files_url": server.source_url("flights"), "bucket_url": server.url("demo")}
        run_demo(Path(name, "demo"), cluster, **urls)
        print("\nNow more bytes, and an executor or a worker killed in each stage.")
        work = checks.ingest_while_executors_die(
            cluster, server, Path(name), size_bytes=given.mb * 10**6, seed=given.seed
        )
        print(asyncio.run(work))


if __name__ == "__main__":
    main()
