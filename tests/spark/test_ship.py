"""The archive of tidelog's modules for executors."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from tidelog.spark import ship
from tidelog.spark.keyed.frame import _reader
from tidelog.spark.worker import guarded

LOOK = """
import sys
sys.path.insert(0, sys.argv[1])
import tidelog, pyspark_tidelog
import tidelog.spark.task
from tidelog.spark.ship import fingerprint
print(tidelog.__file__, pyspark_tidelog.__file__, tidelog.spark.task.__cached__, fingerprint())
"""


def test_the_archive_is_this_tidelog_wherever_it_is_imported(tmp_path: Path) -> None:
    """The fingerprint proves that an executor runs the driver's modules, compiled by it."""
    archive, _ = ship.write_for_submit(tmp_path)

    told = subprocess.run(
        [sys.executable, "-c", LOOK, str(archive)], capture_output=True, text=True, check=True
    ).stdout.split()

    assert [path.startswith(f"{archive}/") for path in told[:3]] == [True] * 3
    assert told[2].endswith("task.pyc")
    assert told[3] == ship.fingerprint()


def test_another_tidelog_has_another_fingerprint(tmp_path: Path) -> None:
    """A changed tidelog has another fingerprint, even with the same version number."""
    archive, _ = ship.write_for_submit(tmp_path)
    with zipfile.ZipFile(archive, "a") as packed:
        packed.writestr("tidelog/more.py", "")

    told = subprocess.run(
        [sys.executable, "-c", LOOK, str(archive)], capture_output=True, text=True, check=True
    ).stdout.split()

    assert told[3] != ship.fingerprint()


def test_the_archive_is_the_same_each_time(tmp_path: Path) -> None:
    """Equal archives can be cached and compared."""
    archives = [ship.write_for_submit(tmp_path / name)[0].read_bytes() for name in ("one", "two")]

    assert archives[0] == archives[1]


def test_the_file_for_spark_submit_is_the_command(tmp_path: Path) -> None:
    """spark-submit runs files whose names end with .py, and the script ``tidelog`` has none."""
    _, program = ship.write_for_submit(tmp_path)

    told = subprocess.run(
        [sys.executable, str(program), "ingest", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert "--master" in told


def test_shipping_for_spark_submit_warns_of_nothing(tmp_path: Path) -> None:
    """Python would warn if the module were loaded before it runs as the program."""
    command = [sys.executable, "-m", "tidelog.spark.ship", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)

    assert answer.stdout.split() == [str(tmp_path / name) for name in (ship.ARCHIVE, ship.PROGRAM)]
    assert answer.stderr == ""


def test_a_worker_that_lacks_a_package_names_it(tmp_path: Path) -> None:
    """Without the guard, the worker fails four times with the bare name of a module."""
    payload = tmp_path / "work"
    work = guarded(_reader([]))
    payload.write_bytes(cloudpickle.dumps(work))  # type: ignore[no-untyped-call]
    script = (
        "import pickle, sys\n"
        "sys.modules['msgspec'] = None\n"
        "work = pickle.loads(open(sys.argv[1], 'rb').read())\n"
        "next(work(iter([])), None)\n"
    )
    command = [sys.executable, "-c", script, str(payload)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)

    assert answer.returncode == 1
    last = answer.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: Spark's executors at {sys.executable} lack")
    assert "needs: msgspec. Set PYSPARK_PYTHON" in last


@pytest.mark.parametrize(
    ("master", "elsewhere"),
    [
        ("local", False),
        ("local[*]", False),
        ("local[2,3]", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://host:7077", True),
        ("yarn", True),
        ("k8s://https://host:443", True),
    ],
)
def test_executors_are_elsewhere_unless_the_driver_is_one(master: str, elsewhere: bool) -> None:
    """Executors run in other processes unless the master is local."""
    assert ship.is_elsewhere(master) is elsewhere


def test_nothing_is_shipped_where_the_driver_computes(spark: SparkSession) -> None:
    """A local session ships nothing, since shipping costs a second at each start."""
    ship.ship(spark)

    assert not [name for name in spark.sparkContext._python_includes or () if "tidelog" in name]
