"""Handovers on Spark: frames, changes, queries and streams change over at the exact time."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidelog
from kit.sources import ingest, write_numbers
from tidelog import RenditionSpec, SourceSpec
from tidelog.collection.collection import Collection
from tidelog.collection.formats.times import When
from tidelog.errors import HandoverRefused
from tidelog.location import open_location
from tidelog.persist.format.schema import decode_schema
from tidelog.persist.read.snapshot import ShardSnapshot
from tidelog.spark import SparkEngine, register
from tidelog.spark.collection_stream import ChangesStreamReader
from tidelog.spark.options import ReadSettings, SourceError
from tidelog.spark.scan_plan import choose_pin, plan_scans

Rows = Counter[tuple[Any, ...]]
START = 1_700_000_000_000


def make(root: Path, *, schema: str | None = None) -> tuple[str, int, int]:
    """Hand a collection over between its times; return its place, the time, and the newest time.

    Its rows are numbers, with times from the data. The second rendition has another key.
    """
    (root / "in").mkdir()
    url = str(root / "lake")
    with tidelog.connect(url, create=True) as lake:
        lake.sources.create(
            SourceSpec(
                name="c",
                files=str(root / "in"),
                schema="n bigint, at bigint",
                time_column="at",
                shards=2,
            )
        )
        add(root, 1, 2, 3, at=1)
        add(root, 1, 2, at=2)
        lake.sources.ingest("c")
        spec = RenditionSpec(name="c2", schema=schema, envelope="upsert", key=("n",))
        lake.renditions.create(spec, of="c")
        lake.sources.ingest("c2")
        time = lake.renditions.handover("c", to="c2")
        add(root, 2, 4, at=5)
        lake.sources.ingest("c")
        return url, time, newest(lake)


def newest(lake: tidelog.Location) -> int:
    return (lake.collection("c").describe().upper or 0) - 1


def add(root: Path, *numbers: int, at: int) -> None:
    write_numbers(root / "in" / f"{at}.jsonl", *numbers, at=START + at)


def counted(frame: DataFrame) -> Rows:
    return Counter(tuple(row) for row in frame.collect())


def truth(url: str, time: int) -> Rows:
    with tidelog.connect(url) as lake:
        table = lake.collection("c").snapshot(time).to_arrow()
    return Counter(tuple(row.values()) for row in table.to_pylist())


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    given = {name: str(value) for name, value in options.items()}
    return spark.read.format("tidelog").options(location=url, **given).load("c")


def test_a_frame_has_the_rendition_of_its_time(spark: SparkSession, tmp_path: Path) -> None:
    """A frame that was loaded before a later handover still has its own rows."""
    url, time, last = make(tmp_path)

    for moment in (time - 1, time, last):
        assert counted(read(spark, url, asOf=moment)) == truth(url, moment)
        with tidelog.connect(url) as lake:
            frame = lake.collection("c").snapshot(moment).to_spark(spark)
        assert counted(frame) == truth(url, moment)
        views = register(spark, url, as_of=moment)
        assert views == moment
        assert counted(spark.sql("select * from c")) == truth(url, moment)
    before = read(spark, url, asOf=last)
    with tidelog.connect(url) as lake:
        lake.renditions.create(RenditionSpec(name="c3", shards=3), of="c")
        lake.sources.ingest("c3")
        lake.renditions.handover("c", to="c3")
    assert counted(before) == truth(url, last)


async def test_a_handover_while_a_frame_is_planned_leaves_its_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states that the plan reads last have a mark, and the successor has another key."""
    url, _, last = await asyncio.to_thread(make, tmp_path)
    lake = await open_location(url)
    spec = RenditionSpec(name="c3", envelope="upsert", key=("n", "at"))
    await lake.renditions.create(spec, of="c")
    await ingest(lake, "c3")
    pin = await choose_pin(ReadSettings(location_url=url, name="c", as_of=last))
    whole = Collection.snapshots

    async def later(self: Collection, as_of: When | None = None) -> list[ShardSnapshot]:
        await lake.renditions.handover("c", to="c3")
        return await whole(self, as_of)

    monkeypatch.setattr(Collection, "snapshots", later)

    scans = await plan_scans(pin)

    assert [decode_schema(scan.schema).key for scan in scans] == [["n"]] * len(scans)
    assert scans


def test_the_changes_of_a_frame_cross_the_handover(spark: SparkSession, tmp_path: Path) -> None:
    """With the contents before them, they are the contents after them. They are consolidated."""
    url, time, last = make(tmp_path)

    for since, until in ((START, last), (time - 1, time), (time - 1, last), (time, last)):
        frame = read(spark, url, since=since, until=until, kind="changes")
        found = truth(url, since) if since >= START + 1 else Counter()
        rows = frame.collect()
        for row in rows:
            found[row["n"], row["at"]] += row["_diff"]
            assert since < row["_time"] <= until
        assert +found == truth(url, until)
        assert len({(row["n"], row["at"], row["_time"]) for row in rows}) == len(rows)


def test_a_stream_crosses_the_handover(tmp_path: Path) -> None:
    """It began before, and a restarted query continues with the offsets of the former rendition."""
    root = tmp_path
    (root / "in").mkdir()
    url = str(root / "lake")
    with tidelog.connect(url, create=True) as lake:
        lake.sources.create(
            SourceSpec(
                name="c", files=str(root / "in"), schema="n bigint, at bigint", time_column="at"
            )
        )
        add(root, 1, 2, 3, at=1)
        lake.sources.ingest("c")
        lake.renditions.create(
            RenditionSpec(name="c2", envelope="upsert", key=("n",), shards=3), of="c"
        )
        reader = reader_of(url)
        start = reader.initialOffset()
        first = reader.latestOffset(start, reader.getDefaultReadLimit())
        found = rows_between(reader, start, first)
        add(root, 1, 2, at=2)
        lake.sources.ingest("c")
        lake.sources.ingest("c2")
        time = lake.renditions.handover("c", to="c2")
        assert len(held(lake, first)) == 1
        add(root, 2, 4, at=5)
        lake.sources.ingest("c")
        for again in (reader, reader_of(url)):
            last = again.latestOffset(first, again.getDefaultReadLimit())
            assert last["rendition"] != first["rendition"]
            assert last["time"] == newest(lake) >= time
            crossed = Counter(found)
            crossed.update(rows_between(again, first, last))
            assert +crossed == truth(url, last["time"])
        with pytest.raises(HandoverRefused, match="holds=stream-"):
            lake.renditions.drop("c")
        again.commit(last)
        assert held(lake, last) == ["c2"]
        lake.renditions.drop("c")
        with pytest.raises(SourceError, match="the collection lost times"):
            reader_of(url).partitions(first, last)


def held(lake: tidelog.Location, offset: dict[str, Any]) -> list[str]:
    """Return the renditions whose shards have the hold of an offset."""
    handle = lake.collection("c")._inner
    asyncio.run(handle.refresh())
    return [
        one.rendition.called for one in handle.eras if offset["hold"] in one.first_shard.state.holds
    ]


def reader_of(url: str) -> ChangesStreamReader:
    columns = ("n", "at")
    return ChangesStreamReader(
        ReadSettings(location_url=url, name="c", columns=columns, is_changes=True)
    )


def rows_between(reader: ChangesStreamReader, start: Any, end: Any) -> Rows:
    found: Rows = Counter()
    for partition in reader.partitions(start, end):
        for batch in reader.read(partition):
            for row in batch.to_pylist():
                found[row["n"], row["at"]] += row["_diff"]
    return found


def test_columns_that_one_rendition_lacks_are_refused_at_planning(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The frame's schema is fixed, so the message says what to do."""
    url, time, last = make(tmp_path, schema="n bigint, at bigint, more bigint")

    with pytest.raises(Exception, match=r"the column 'more' as int64, and another rendition"):
        read(spark, url, since=time - 1, until=last, kind="changes").collect()
    narrow = read(spark, url, since=time - 1, until=last, kind="changes", columns="n,at")
    assert narrow.count() > 0


def test_a_rendition_is_copied_with_an_engine_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """This process copies the rows, and Spark reads the later ones from the source."""
    (tmp_path / "in").mkdir()
    url = str(tmp_path / "lake")
    with tidelog.connect(url, create=True) as lake:
        spec = SourceSpec(name="c", files=str(tmp_path / "in"), schema="n bigint, at bigint")
        lake.sources.create(spec)
        add(tmp_path, 1, 2, at=1)
        lake.sources.ingest("c")
        (tmp_path / "in" / "1.jsonl").unlink()
        lake.renditions.create(RenditionSpec(name="c2", shards=3, copy=True), of="c")
        add(tmp_path, 3, at=2)
        engine = SparkEngine(spark, location_url=url)

        done = lake.sources.ingest("c2", engine=engine)

        assert done.rows == 3
        lake.sources.ingest("c")
        assert lake.renditions.diff("c", "c2").num_rows == 0
