"""Which engine does an ingester's work, where the user leaves that open.

Both engines give the same contents, so that this decides nothing but how long it takes. Spark takes
seconds to start, in which one process ingests some hundred megabytes.
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
SPARK_BYTES_MIN: Final = 1 << 30  # That a source has left, for a start of Spark to be worth it.
_MASTER: Final = re.compile(
    r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|yarn|spark://\S+:[0-9]+|k8s://\S+"
)


def check_engine(engine: str, *, master: str | None, conf: Sequence[str]) -> str:
    """Return the engine to take, as far as it was asked for; who names a master asks for Spark.

    Raises:
        UsageError: it is not known, or not installed; or what was asked for contradicts itself.
    """
    if engine not in ENGINES:
        raise UsageError(f"--engine {engine!r} is not known: it is one of {', '.join(ENGINES)}")
    submitted = is_submitted(os.environ)
    option = "--master" if master is not None else "--conf" if conf else None
    if option is not None and engine == "local":
        raise UsageError(f"{option} is for Spark: leave out --engine local, or {option}")
    if option is not None and submitted:
        raise UsageError(f"spark-submit runs this: give {option} to spark-submit instead")
    if master is not None and _MASTER.fullmatch(master) is None:
        raise UsageError(
            f"--master {master!r} is not a master of Spark: write spark://HOST:7077, yarn, "
            "k8s://https://HOST:PORT, or local[4]"
        )
    if engine == "auto" and (option is not None or submitted):
        engine = "spark"
    if engine == "spark":
        from tidelog.cli.late_spark import check_installed

        check_installed()
    return engine


def is_submitted(env: Mapping[str, str]) -> bool:
    """Say whether spark-submit runs this process, and has chosen the settings of its session."""
    return "PYSPARK_GATEWAY_PORT" in env


def parse_conf(given: Sequence[str]) -> dict[str, str]:
    """Return settings of Spark's, each given as NAME=VALUE.

    Raises:
        UsageError: one is not.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (equals and name.strip().startswith("spark.")):
            raise UsageError(
                f"--conf {text!r} is not a setting of Spark: write spark.executor.memory=4g"
            )
        found[name.strip()] = value
    return found


async def choose_engine(ingester: Ingester) -> tuple[str, FirstHead | None]:
    """Return ``spark`` where it can run and the source has enough left for it, else ``local``.

    What was looked at for that is returned, too: the run begins with it.

    Raises:
        LocationError: the store failed, or the source's.
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
