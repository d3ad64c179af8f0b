"""The Spark session that these tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kit.s3_servers import KEYS
from tidelog.spark.datasource import register_source
from tidelog.spark.session import session, stop

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of this test run, quick to start; workers can import the tests' modules."""
    found = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(found))
        for name, value in KEYS.items():
            patch.setenv(name, value)
        started = session(quick=True)
    # Spark looks up sources once; if that fails on a busy machine, it never looks again.
    register_source(started)
    yield started
    stop(started)
