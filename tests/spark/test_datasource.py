"""``format("tidelog")``: a collection's content at one time, in spite of concurrent commits."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tidelog
from kit.sources import (
    FIRST,
    changes,
    changes_spec,
    ingest,
    make_source,
    rows_of,
    write_files,
)
from tidelog.collection.formats.times import format_time
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import AsOfNotComplete, UsageError
from tidelog.location import Location, open_location
from tidelog.persist.format.schema import DIFF
from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.java import find_launcher
from tidelog.spark.options import SourceError, read_settings
from tidelog.spark.scan_plan import choose_pin
from tidelog.spark.types import arrow_schema, spark_schema

LAST = FIRST + 239 // 5


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A location with two collections of the same changes: ``keyed``, and ``appended``."""
    root = tmp_path_factory.mktemp("lake")
    files = write_files(root / "in", "json", changes(240))

    async def make() -> None:
        location = await open_location(str(root / "lake"), create=True)
        for name, shards in (("keyed", 3), ("appended", 1)):
            await location.sources.create(keyed_spec(files, name, shards=shards))
            await ingest(location, name)

    asyncio.run(make())
    return str(root / "lake")


def keyed_spec(files: str, name: str, **told: Any) -> SourceSpec:
    return changes_spec(files, is_keyed=name == "keyed", name=name, **told)


def load(spark: SparkSession, location: str, name: str, **options: str) -> DataFrame:
    return spark.read.format("tidelog").options(location=location, **options).load(name)


def snapshot(location: str, name: str, as_of: int | None = None) -> pa.Table:
    """Return the library's snapshot in Spark's types, each row repeated by its count."""

    async def read() -> pa.Table:
        collection = await (await open_location(location)).collection(name)
        return await collection.consolidated(as_of)

    table = asyncio.run(read())
    often = np.repeat(np.arange(table.num_rows), table.column(DIFF).to_numpy())
    data = table.drop_columns([DIFF]).take(often)
    return data.cast(arrow_schema(spark_schema(data.schema)))


def said(spark: SparkSession, location: str, name: str, **options: str) -> str:
    """Return the message of a read that must fail."""
    with pytest.raises(PySparkException) as raised:
        load(spark, location, name, **options).collect()
    return str(raised.value)


@pytest.mark.parametrize("name", ["keyed", "appended", "keyed_errors", "appended_errors"])
def test_a_read_gives_what_the_library_gives(spark: SparkSession, lake: str, name: str) -> None:
    """Spark reads the same content at each time as the library."""
    for time in (None, FIRST + 3, FIRST + 20, LAST):
        options = {} if time is None else {"asOf": str(time)}
        found = load(spark, lake, name, **options).toArrow()

        assert rows_of(found) == rows_of(snapshot(lake, name, time))


def test_a_time_may_be_written_as_iso(spark: SparkSession, lake: str) -> None:
    """Option asOf accepts an ISO timestamp, which a user can remember."""
    time = FIRST + 20
    found = load(spark, lake, "keyed", asOf=format_time(time)).toArrow()

    assert rows_of(found) == rows_of(snapshot(lake, "keyed", time))


def test_relative_times_read_as_on_the_command_line(lake: str) -> None:
    """``now`` is the newest complete time of a collection without a running ingester."""
    here = {"location": lake, "path": "keyed"}
    newest = asyncio.run(choose_pin(read_settings(here, {}))).as_of

    assert asyncio.run(choose_pin(read_settings({**here, "asof": "now"}, {}))).as_of == newest
    changes = {**here, "kind": "changes", "since": str(FIRST), "until": "now"}
    found = asyncio.run(choose_pin(read_settings(changes, {})))
    assert (found.after, found.as_of) == (FIRST, newest)
    with pytest.raises(AsOfNotComplete, match="is complete up to 1970"):
        asyncio.run(choose_pin(read_settings({**here, "asof": "-1h"}, {})))
    with pytest.raises(UsageError, match="until= is before since="):
        asyncio.run(choose_pin(read_settings({**changes, "since": "-1h"}, {})))


def test_columns_are_read_as_asked_for(spark: SparkSession, lake: str) -> None:
    """Only the selected columns are shown, but rows that differ elsewhere count separately."""
    found = load(spark, lake, "keyed", columns="text, k").toArrow()

    assert found.column_names == ["text", "k"]
    assert rows_of(found) == rows_of(snapshot(lake, "keyed").select(["text", "k"]))


def test_sql_reads_it_too(spark: SparkSession, lake: str) -> None:
    """SQL reads a collection with options through a temporary view."""
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW seen USING tidelog "
        f"OPTIONS (path 'keyed', location '{lake}', asOf '{LAST}')"
    )
    found = spark.sql("SELECT count(*) AS n, sum(k) AS k FROM seen").collect()[0]

    expected = snapshot(lake, "keyed", LAST)
    assert found["n"] == expected.num_rows
    assert found["k"] == expected.column("k").to_numpy().sum()


def test_a_dataframe_stays_at_its_time_while_others_commit(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both sides of a self-join read the time of the load, although each is planned separately."""
    rows = changes(120)
    files = write_files(tmp_path / "in", "json", rows[:60], files=1)

    async def feed() -> None:
        location = await open_location(str(tmp_path / "lake"))
        await ingest(location, "keyed")

    async def make() -> Location:
        return await make_source(tmp_path / "lake", keyed_spec(files, "keyed"))

    asyncio.run(make())
    asyncio.run(feed())
    place = str(tmp_path / "lake")
    loaded = load(spark, place, "keyed")
    before = rows_of(snapshot(place, "keyed"))
    with (tmp_path / "in" / "0.json").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows[60:])
    # Both sides are planned only after the commit.
    asyncio.run(feed())
    joined = (
        loaded.alias("a")
        .join(loaded.alias("b"), "k", "full")
        .selectExpr("a.at AS one", "b.at AS other")
    )

    assert rows_of(snapshot(place, "keyed")) != before
    assert rows_of(loaded.toArrow()) == before
    sides = joined.collect()
    assert len(sides) == len(before)
    assert all(row["one"] == row["other"] for row in sides)
    assert rows_of(load(spark, place, "keyed").toArrow()) != before


MOMENT = datetime.datetime(2013, 1, 15, 14, 0, 0, 123456, datetime.UTC)
NAIVE = MOMENT.replace(tzinfo=None)
LEAST = {
    "k": 1,
    "b": True,
    "i8": -(2**7),
    "i16": -(2**15),
    "i32": -(2**31),
    "i64": -(2**63),
    "u8": 0,
    "u16": 0,
    "u32": 0,
    "u64": 0,
    "f32": -1.5,
    "f64": float("-inf"),
    "s": "",
    "bin": b"\x00\xff",
    "d": datetime.date(1, 1, 1),
    "t": datetime.time(0),
    "ts": NAIVE,
    "tz": MOMENT,
    "dec": Decimal("-1.0000000001"),
    "l": [2**64 - 1, None],
    "st": {"x": 2**32 - 1, "y": [{"z": NAIVE}]},
}
MOST = {
    **LEAST,
    "k": 2,
    "i64": 2**63 - 1,
    "u8": 2**8 - 1,
    "u16": 2**16 - 1,
    "u32": 2**32 - 1,
    "u64": 2**64 - 1,
    "d": datetime.date(9999, 12, 31),
    "t": datetime.time(23, 59, 59, 999999),
    "l": [],
    "st": {"x": None, "y": None},
}
NOTHING = dict.fromkeys(LEAST) | {"k": 3}
TYPES = pa.schema(
    {
        "k": pa.int64(),
        "b": pa.bool_(),
        **{f"i{n}": getattr(pa, f"int{n}")() for n in (8, 16, 32, 64)},
        **{f"u{n}": getattr(pa, f"uint{n}")() for n in (8, 16, 32, 64)},
        "f32": pa.float32(),
        "f64": pa.float64(),
        "s": pa.string(),
        "bin": pa.binary(),
        "d": pa.date32(),
        "t": pa.time64("us"),
        "ts": pa.timestamp("us"),
        "tz": pa.timestamp("us", tz="UTC"),
        "dec": pa.decimal128(38, 10),
        "l": pa.list_(pa.uint64()),
        "st": pa.struct(
            [("x", pa.uint32()), ("y", pa.list_(pa.struct([("z", pa.timestamp("us"))])))]
        ),
    }
)


def test_every_type_of_column_comes_through(spark: SparkSession, tmp_path: Path) -> None:
    """Values of every column type arrive intact, including unsigned integers, which Spark lacks."""
    (tmp_path / "in").mkdir()
    table = pa.Table.from_pylist([LEAST, MOST, NOTHING], schema=TYPES)
    pq.write_table(table, tmp_path / "in" / "0.parquet")
    spec = SourceSpec(
        name="c", files=str(tmp_path / "in"), format="parquet", envelope="upsert", key=("k",)
    )

    async def make() -> None:
        location = await make_source(tmp_path / "lake", spec)
        assert [tick.bad for tick in await ingest(location, "c")] == [0]

    asyncio.run(make())
    frame = load(spark, str(tmp_path / "lake"), "c")
    found = frame.orderBy("k").toArrow()

    assert frame.count() == 3
    assert found.schema.field("u64").type == pa.decimal128(20, 0)
    assert found.schema.field("ts").type == pa.timestamp("us")
    assert rows_of(found) == rows_of(table.cast(arrow_schema(spark_schema(TYPES))))


def test_errors_are_a_sentence_each(spark: SparkSession, lake: str, tmp_path: Path) -> None:
    """Each error states its fault in the first line, without a traceback."""
    told = {
        said(spark, lake, "keyed", asof="soon"): "[TIDELOG_USAGE_ERROR] asOf 'soon' is not a time",
        said(spark, lake, "keyed", versionAsOf="3"): (
            "[TIDELOG_UNKNOWN_OPTION] unknown option 'versionAsOf': the options are "
            "location, asOf, columns"
        ),
        said(spark, lake, "keyed", columns="k,nothing"): (
            "[TIDELOG_USAGE_ERROR] no column 'nothing' exists: the columns are k, at, gone"
        ),
        said(spark, lake, "other"): (
            "[TIDELOG_NO_SUCH_COLLECTION] no collection named 'other'; "
            "existing collections: appended, keyed"
        ),
        said(spark, lake, ""): "[TIDELOG_OPTION_MISSING] the name of the collection is missing",
        said(spark, str(tmp_path), "keyed"): "[TIDELOG_NO_SUCH_LOCATION] no location exists at",
        said(spark, lake, "keyed", asOf="2013-01-15"): (
            "[TIDELOG_AS_OF_NOT_COMPLETE] 'keyed' is complete up to 1970-01-01T00:16:40"
        ),
    }

    for message, expected in told.items():
        assert expected in message
        assert "Traceback" not in message


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("log", "append on the driver, in foreachBatch"),
        ("changes", "write rows into a table"),
        ("collection", "create a table with 'tidelog table create'"),
    ],
)
def test_what_spark_cannot_write_is_refused_with_the_way_that_there_is(
    spark: SparkSession, lake: str, kind: str, advice: str
) -> None:
    """Without this message, PySpark prints a traceback with NOT_IMPLEMENTED."""
    frame = spark.range(1)
    options = {"kind": kind, "location": lake}
    with pytest.raises(PySparkException) as raised:
        frame.write.format("tidelog").options(**options).mode("append").save("keyed")
    source = TidelogDataSource({**options, "path": "keyed"})
    with pytest.raises(SourceError, match="Spark cannot write "):
        source.streamWriter(frame.schema, overwrite=False)

    assert "[TIDELOG_USAGE_ERROR] Spark cannot write " in str(raised.value)
    assert advice in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_a_missing_location_is_told(spark: SparkSession) -> None:
    """The error for a missing location also names the environment variable."""
    with pytest.raises(PySparkException, match=r"\[TIDELOG_OPTION_MISSING\] .*TIDELOG_LOCATION"):
        spark.read.format("tidelog").load("keyed")


def test_a_schema_of_the_users_is_refused(spark: SparkSession, lake: str) -> None:
    """A user's schema is refused, since it could cast or drop values silently."""
    reader = spark.read.format("tidelog").option("location", lake).schema("k int")

    with pytest.raises(PySparkException, match="a collection has a fixed schema"):
        reader.load("keyed").collect()


def test_a_frame_does_not_read_a_new_collection_of_the_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A DataFrame of a dropped collection must not read a new one of the same name."""
    files = write_files(tmp_path / "in", "json", changes(30), files=1)
    place = str(tmp_path / "lake")

    async def make() -> None:
        location = await open_location(place, create=True)
        await location.sources.create(keyed_spec(files, "keyed"))
        await ingest(location, "keyed")

    async def drop() -> None:
        await (await open_location(place)).sources.drop("keyed")

    asyncio.run(make())
    loaded = load(spark, place, "keyed")
    asyncio.run(drop())
    asyncio.run(make())

    with pytest.raises(PySparkException, match="another collection has replaced"):
        loaded.collect()


def test_a_plain_session_reads_it(lake: str) -> None:
    """A session without tidelog's helper, settings or registration reads a collection."""
    script = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print('rows', spark.read.format('tidelog').load('keyed').count())\n"
    )
    plain = {
        **os.environ,
        "JAVA_HOME": str(find_launcher(os.environ).home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # Saves seconds.
        "TIDELOG_LOCATION": lake,
    }
    answer = subprocess.run(
        [sys.executable, "-c", script], env=plain, capture_output=True, text=True, check=False
    )

    assert answer.returncode == 0, answer.stderr
    assert f"rows {snapshot(lake, 'keyed').num_rows}" in answer.stdout


OWN_SESSION = """
import sys
import tidelog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tidelog.spark import register

spark = SparkSession.builder.master("local[1]").getOrCreate()
register(spark)
reader = spark.read.format("tidelog")
print("rows", reader.load("keyed").count())
try:
    reader.option("snapshot-id", "7").load("keyed")
except PySparkException as error:
    print("message", repr(str(error)))
with tidelog.connect(sys.argv[1]) as lake:
    frame = lake.shard("plain").snapshot(0, where="k > 1").to_spark(spark)
    print("frame", frame.count())
"""


def test_a_session_of_an_environment_that_is_not_activated_reads_it(
    lake: str, tmp_path: Path
) -> None:
    """A session whose default python3 lacks tidelog reads a collection after one call.

    The session has none of tidelog's settings, so PySpark shows tracebacks; an error must still
    begin with the message.
    """
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    schema = pa.schema([("k", pa.int64())])
    with tidelog.connect(lake) as opened:
        shard = opened.shard("plain", schema=schema, key=["k"])
        rows = {"k": [1, 2, 3], "_time": [0] * 3, "_diff": [1] * 3}
        shard.compare_and_append(pa.table(rows), expected_upper=0, upper=1)
    environment = {name: v for name, v in os.environ.items() if name != "PYSPARK_PYTHON"}
    answer = subprocess.run(
        [sys.executable, "-c", OWN_SESSION, lake],
        env={
            **environment,
            "PATH": f"{other.parent}:{os.environ['PATH']}",
            "JAVA_HOME": str(find_launcher(os.environ).home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "TIDELOG_LOCATION": lake,
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert answer.returncode == 0, answer.stderr
    assert f"rows {snapshot(lake, 'keyed').num_rows}" in answer.stdout
    assert "frame 2" in answer.stdout
    (told,) = [line for line in answer.stdout.splitlines() if line.startswith("message ")]
    assert told.count("\\n") <= 7
    first = told.partition("\\n")[0]
    assert "unknown option 'snapshot-id'" in first
    assert "use option('asOf', TIME)" in first.replace("\\", "")
