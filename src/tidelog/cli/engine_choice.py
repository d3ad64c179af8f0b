"""The choice of the engine that computes an ingester's ticks, if the user does not choose.

Both engines give the same contents, so the choice affects only the duration. Spark takes seconds to
start; in that time one process ingests some hundred megabytes.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidelog.errors import UsageError

if TYPE_CHECKING:
    from tidelog.collection.ingest.ingest import Ingester
    from tidelog.collection.ingest.run import FirstHead

Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="The Spark cluster: spark://HOST:7077, yarn, k8s://... Default: this machine.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="A Spark setting, such as spark.executor.memory=4g; may be repeated. Default: Spark's "
        "own settings.",
    ),
]

ENGINES: Final = ("auto", "spark", "local")
SPARK_BYTES_MIN: Final = 1 << 30  # Below this much input left, a start of Spark costs more time.
_MASTER: Final = re.compile(
    r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|yarn|spark://\S+:[0-9]+|k8s://\S+"
)


def check_engine(engine: str, *, master: str | None, conf: Sequence[str]) -> str:
    """Return the engine that the options choose: auto, local or spark.

    ``--master``, ``--conf`` and spark-submit each choose Spark.

    Raises:
        UsageError: the engine is unknown or not installed, or the options contradict each other.
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine must be one of {', '.join(ENGINES)}, not {engine!r}")
    submitted = is_submitted(os.environ)
    option = "--master" if master is not None else "--conf" if conf else None
    if option is not None and engine == "local":
        raise UsageError(f"{option} is for Spark: leave out --engine local, or {option}")
    if option is not None and submitted:
        raise UsageError(f"spark-submit runs this process: pass {option} to spark-submit instead")
    if master is not None and _MASTER.fullmatch(master) is None:
        raise UsageError(
            f"--master {master!r} is not a Spark master: write spark://HOST:7077, yarn, "
            "k8s://https://HOST:PORT, or local[4]"
        )
    if engine == "auto" and (option is not None or submitted):
        engine = "spark"
    if engine == "spark":
        from tidelog.cli.late_spark import check_installed

        check_installed()
    return engine


def is_submitted(env: Mapping[str, str]) -> bool:
    """Return True if spark-submit runs this process; it then sets the session's options."""
    return "PYSPARK_GATEWAY_PORT" in env


def parse_conf(given: Sequence[str]) -> dict[str, str]:
    """Return Spark settings from texts of the form NAME=VALUE.

    Raises:
        UsageError: a text does not have this form.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.strip().startswith("spark.")):
            raise UsageError(
                f"--conf {text!r} is not a Spark setting: write NAME=VALUE, such as "
                "spark.executor.memory=4g"
            )
        found[name.strip()] = value
    return found


async def choose_engine(ingester: Ingester) -> tuple[str, FirstHead | None]:
    """Return ``spark`` if Spark can run and the source has much input left, else ``local``.

    Return also the head of the source that was read for this, so that the run need not read it
    again.

    Raises:
        LocationError: the location's store or the source's store failed.
    """
    from tidelog.collection.ingest.run import look_ahead

    if importlib.util.find_spec("pyspark") is None:
        return "local", None
    first, left = await look_ahead(ingester)
    if left < SPARK_BYTES_MIN or not await ingester.clock.offload(_has_java):
        return "local", first
    return "spark", first


def _has_java() -> bool:
    from tidelog.spark.java import find_launcher

    try:
        find_launcher(os.environ)
    except UsageError:
        return False
    return True
