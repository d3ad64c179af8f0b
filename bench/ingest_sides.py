"""The other sides of `bench/ingest.py`: Spark's readers with plain Parquet and with Delta."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession

from figures import seconds_of

FILES: Final = 8
SCHEMA: Final = (
    "id bigint, user varchar, at bigint, kind varchar, amount double, ok boolean, day date, "
    "note varchar"
)
SPARK_SCHEMA: Final = SCHEMA.replace("varchar", "string")
FORMATS: Final = {
    "json": "FORMAT json",
    "csv": "FORMAT csv, HEADER",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}
NO_DELTA: Final = (
    "--delta wants a folder of Delta's jars, and the PySpark that they fit:\n"
    "  pip install 'tidelog[spark]' pyspark==4.2.0; and, with io.delta:delta-spark_4.2_2.13:4.4.0\n"
    "  as the dependency in a pom.xml: mvn dependency:copy-dependencies -DoutputDirectory=FOLDER"
)


def write_rows(folder: Path, rows: int, *, format: str) -> int:
    """Write rows of 8 fields, about 140 bytes each, in time order, ten per user; return bytes."""
    folder.mkdir()
    for number in range(FILES):
        start, limit = rows * number // FILES, rows * (number + 1) // FILES
        duckdb.sql(f"""
            COPY (
                SELECT i AS id, 'user-' || hash(i) % {max(1, rows // 10)} AS user,
                       1700000000000 + i AS at, 'k' || hash(i + 1) % 5 AS kind,
                       (hash(i + 2) % 100000) / 100 AS amount, hash(i + 3) % 2 = 0 AS ok,
                       DATE '2024-01-01' + (i % 28)::INT AS day, repeat('x', 20) AS note
                FROM range({start}, {limit}) r(i) ORDER BY i
            ) TO '{folder}/{number:04d}.{format}' ({FORMATS[format]})""")
    return sum(path.stat().st_size for path in folder.iterdir())


def delta_settings(jars: Path) -> dict[str, str]:
    """Return the settings with which a session can write Delta tables.

    Raises:
        SystemExit: the folder lacks the jars; the message explains how to get them.
    """
    found = sorted(str(path) for path in jars.glob("*.jar"))
    needed = [path for path in found if Path(path).name.startswith(("delta-", "unitycatalog-"))]
    spark_version = ".".join(pyspark.__version__.split(".")[:2])
    if not any(f"delta-spark_{spark_version}_" in path for path in needed):
        raise SystemExit(NO_DELTA)  # Another PySpark fails at the first write, without a reason.
    return {
        "spark.jars": ",".join(needed),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }


def spark_write(spark: SparkSession, files: Path, out: Path, *, format: str, to: str) -> float:
    """Read with Spark's reader, and write plain Parquet or a Delta table; return seconds."""
    options = {"header": "true"} if format == "csv" else {}

    def work() -> None:
        read = spark.read.format(format).schema(SPARK_SCHEMA).options(**options)
        read.load(f"{files}/*.{format}").write.format(to).save(out.as_uri())

    seconds = seconds_of(work)
    shutil.rmtree(out)
    return seconds


def arrow_parquet(files: Path, out: Path, *, format: str) -> float:
    """Read with Arrow's reader on one core, and write Parquet with zstd and page checksums."""

    def read(path: Path) -> pa.Table:
        if format == "json":
            return pj.read_json(path, read_options=pj.ReadOptions(use_threads=False))
        if format == "csv":
            return pc.read_csv(path, read_options=pc.ReadOptions(use_threads=False))
        return pq.read_table(path, use_threads=False)

    def convert_all() -> None:
        for path in sorted(files.iterdir()):
            pq.write_table(read(path), out, compression="zstd", write_page_checksum=True)

    seconds = seconds_of(convert_all)
    out.unlink()
    return seconds
