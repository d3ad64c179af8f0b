"""A Spark session that starts fast and logs little; by default on this machine.

Programs with a session of their own do not need it: data sources and jobs work on any session.

Invariants: `session` returns an active session unchanged. It restores the process's environment.
Nothing listens beyond loopback, unless the master is on another machine.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidelog.errors import UsageError
from tidelog.spark.archive import reading_options
from tidelog.spark.failure import describe_failure
from tidelog.spark.java import Launcher, find_launcher

MEMORY_MIB_MIN = 1024  # Spark's default; it does not start with less.
MEMORY_MIB_MAX = 4096
STOP_SECONDS_MAX = 30

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_PYTHON = "spark.pyspark.python"
_LOOPBACK = re.compile(r"spark://(?:localhost|127\.[0-9.]+):[0-9]+$")
_LOCAL_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)


def session(
    *,
    app_name: str = "tidelog",
    master: str | None = None,
    extra: Mapping[str, str] | None = None,
    quick: bool = False,
) -> SparkSession:
    """Return the active session, or start one.

    ``master`` is this machine with all its cores by default. The executors of a cluster get this
    tidelog. ``extra`` overrides the default settings; its Java options are appended to the default
    ones. ``quick`` starts a second faster, but computes at half the speed once warm: for tests,
    demos and small jobs. After a run of `tidelog.spark.warm`, a start takes half the time.

    Raises:
        UsageError: no Java that runs Spark was found, or Spark did not start. NOT_APPLIED.
    """
    _silence_pandas_warning()
    if (active := _active()) is not None:
        return active
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit runs this process, with all settings.
        return _shipped(_build(app_name, dict(extra or {})))
    launcher = find_launcher(os.environ)
    chosen = settings(
        master=master or f"local[{cores_count()}]",
        cores=cores_count(),
        memory_mib=memory_mib(physical_bytes()),
        scratch=_scratch(),
        java_options=java_options(launcher, quick=quick),
        quick=quick,
        extra=extra or {},
    )
    with _environment(launcher.home, chosen):
        return _shipped(_build(app_name, chosen))


@contextlib.contextmanager
def passing_session() -> Iterator[SparkSession]:
    """Yield the active session, or one that ends with the block; see `session`."""
    active = _active()
    spark = active or session()
    try:
        yield spark
    finally:
        if active is None:
            stop(spark)


def stop(spark: SparkSession, *, wait_seconds: float = STOP_SECONDS_MAX) -> None:
    """Stop the session and its JVM, and wait for the JVM's exit; kill it after ``wait_seconds``.

    ``spark.stop()`` alone keeps the JVM for a next session until the process ends.
    """
    gateway = SparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    if process is not None and process.stdin is not None:
        process.stdin.close()  # The JVM exits when its input ends.
        try:
            process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def settings(
    *,
    master: str,
    cores: int,
    memory_mib: int,
    scratch: Path,
    java_options: str,
    quick: bool,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """Return all settings of a new session; files may remain in the directory ``scratch``."""
    chosen = {
        "spark.master": master,
        "spark.driver.memory": f"{memory_mib}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Without it, Spark plans no aggregate over a column of the type TIME, not even a count.
        "spark.sql.timeType.enabled": "true",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        # A task over TCP costs 28 ms; over a Unix socket, 14 ms.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        # An error of tidelog is one sentence, which the traceback of Spark's workers would hide.
        "spark.sql.execution.pyspark.udf.hideTraceback.enabled": "true",
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # With more than 32 paths, Spark starts a job to list them: five times slower than listing
        # 1000 paths here.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    }
    if is_on_loopback(master):
        chosen["spark.driver.host"] = chosen["spark.driver.bindAddress"] = "127.0.0.1"
    if master.startswith("local"):
        chosen["spark.sql.shuffle.partitions"] = str(cores)
        chosen["spark.python.daemon.module"] = "pyspark_tidelog.daemon"
        # The default manager runs chmod for each file: 50 ms per micro-batch instead of 12.
        chosen["spark.sql.streaming.checkpointFileManagerClass"] = _LOCAL_CHECKPOINTS
    if quick:
        # The default with this memory is 64 MiB, and zeroing the first pages takes 0.6 seconds.
        chosen["spark.buffer.pageSize"] = "8m"
    chosen |= extra
    chosen[_JAVA_OPTIONS] = f"{java_options} {extra.get(_JAVA_OPTIONS, '')}".strip()
    return chosen


def java_options(launcher: Launcher, *, quick: bool) -> str:
    """Return the JVM's options, with those for the class archive if it exists."""
    log4j2 = Path(__file__).with_name("log4j2.properties").as_uri()
    # Otherwise the JVM prints warnings on stdout, which belongs to the caller.
    options = ["-Xlog:disable", f"-Dlog4j2.configurationFile={log4j2}"]
    if quick:
        options += ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    else:
        options += ["-XX:+UseParallelGC"]  # G1 takes a third longer on two cores.
    return " ".join([*options, *reading_options(launcher)])


def is_on_loopback(master: str) -> bool:
    """Return True if the master's URL shows that all its processes are on this machine."""
    return master.startswith("local") or _LOOPBACK.match(master) is not None


def cores_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_bytes() -> int:
    """Return the machine's memory, or the container's limit if that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # Not Linux, or no limit: then the file contains "max".
        return machine


def environment_for(chosen: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that a session with the chosen settings needs."""
    master = chosen["spark.master"]
    ours = {"SPARK_LOCAL_IP": "127.0.0.1"} if is_on_loopback(master) else {}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        # Local workers of another Python would lack tidelog. On a cluster the user's choice wins.
        if master.startswith("local") or name not in env:
            ours[name] = sys.executable
    if _PYTHON in chosen:
        # PySpark reads this setting only if spark-submit runs the driver.
        ours["PYSPARK_PYTHON"] = chosen[_PYTHON]
    return ours


def memory_mib(physical_bytes: int) -> int:
    """Return a quarter of the memory for the JVM; Python's workers need memory too."""
    return max(MEMORY_MIB_MIN, min(MEMORY_MIB_MAX, physical_bytes // 4 // 2**20))


def _active() -> SparkSession | None:
    if SparkContext._active_spark_context is None:
        return None
    # PySpark remembers the active session per thread; the default one may be another thread's.
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def _build(app_name: str, chosen: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.appName(app_name)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise explain_start(str(error), chosen.get("spark.master", "")) from error


def explain_start(text: str, master: str) -> UsageError:
    """Return the error of a failed start, with a remedy if the cause is known. Pure."""
    if "stopped SparkContext" in text:
        # Spark stops the context in another thread, which reports no reason.
        return UsageError(
            f"no Spark master accepted this session at {master}: check that it runs, that its "
            "page shows exactly this URL, and that it reaches this machine "
            "(the setting spark.driver.host)"
        )
    if "JAVA_GATEWAY_EXITED" in text:
        return UsageError(
            "Spark did not start, because its Java exited at once: check its settings, "
            "and the memory of this machine"
        )
    return UsageError(f"Spark did not start: {describe_failure(text)}")


def _shipped(spark: SparkSession) -> SparkSession:
    # A local import: ``python -m tidelog.spark.ship`` warns if its module is loaded already.
    from tidelog.spark.ship import ship

    ship(spark)
    return spark


@contextlib.contextmanager
def _environment(home: Path, chosen: Mapping[str, str]) -> Iterator[None]:
    """Set the variables that the JVM and its scripts read, until the JVM has started."""
    ours = environment_for(chosen, os.environ)
    ours["JAVA_HOME"] = str(home)
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _scratch() -> Path:
    directory = tempfile.mkdtemp(prefix="tidelog-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


def _silence_pandas_warning() -> None:
    # Every process on pandas 3 warns; tidelog's tests cover its use of pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
