"""Errors below Spark, as PySpark's worker writes them: a sentence, and no traceback of tidelog."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.util import handle_worker_exception

from kit.lake_logs import append, batches_of, folder_of, make
from kit.sources import changes, changes_spec, ingest, write_files
from tidelog.location import open_location
from tidelog.persist.format import part
from tidelog.spark import shard_frame
from tidelog.spark.datasource import TidelogDataSource
from tidelog.spark.log_source import LOG_SCHEMA
from tidelog.spark.options import HIDE
from tidelog.spark.scan import Scan
from tidelog.spark.worker import guarded

CORRUPT = "[TIDELOG_CORRUPTION_ERROR] "


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session without tidelog's settings, in which PySpark shows tracebacks."""
    monkeypatch.delenv(HIDE, raising=False)


def text_of(work: Callable[[], object]) -> str:
    """Return the text that PySpark's worker writes for the error of some work."""
    out = io.BytesIO()
    try:
        work()
    except Exception as error:  # noqa: BLE001  PySpark catches all errors.
        handle_worker_exception(error, out)
    return out.getvalue()[8:].decode()


def check(work: Callable[[], object], expected: str) -> None:
    text = text_of(work)
    assert text.startswith(f"tidelog.spark.options.SourceError: {expected}")
    assert text.count("\n") == 1
    assert HIDE not in os.environ


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A location with the collection ``c``, whose parts are objects, and a log."""
    files = write_files(tmp_path / "in", "json", changes(60))

    async def made() -> None:
        location = await open_location(str(tmp_path / "lake"), create=True)
        await location.sources.create(changes_spec(files))
        with patch.object(part, "INLINE_BYTES", 0):
            await ingest(location, "c")

    asyncio.run(made())
    make(tmp_path / "lake", "log", "slot")
    append(tmp_path / "lake", "log", batches_of(1))
    return tmp_path / "lake"


def damage(folder: Path) -> None:
    """Change a byte of each part."""
    paths = [path for path in folder.rglob("*.parquet") if "part" in path.parts]
    assert paths
    for path in paths:
        path.write_bytes(path.read_bytes()[:-1] + b"?")


def source_of(lake: Path, name: str = "c", **options: str) -> TidelogDataSource:
    return TidelogDataSource({"location": str(lake), "path": name, **options})


def reader_of(lake: Path, name: str = "c", **options: str) -> DataSourceReader:
    source = source_of(lake, name, **options)
    return source.reader(source.schema())


def read_all(reader: DataSourceReader, partitions: list[InputPartition]) -> None:
    for partition in partitions:
        for _ in reader.read(partition):
            pass


@pytest.mark.parametrize("options", [{}, {"kind": "changes", "since": "1000000"}])
def test_a_task_reports_a_damaged_part(lake: Path, options: dict[str, str]) -> None:
    """The message names the object to restore."""
    reader = reader_of(lake, **options)
    partitions = list(reader.partitions())
    damage(lake)

    check(lambda: read_all(reader, partitions), CORRUPT)


def test_a_task_of_a_shards_frame_reports_a_damaged_part(lake: Path) -> None:
    """Its tasks run in ``mapInArrow``, which wraps the work."""

    async def planned() -> tuple[Scan, str]:
        collection = await (await open_location(str(lake))).collection("c")
        (snapshot,) = await collection.snapshots()
        columns = tuple(snapshot.schema.names)
        schema, as_of = snapshot.schema.encoded, snapshot.as_of
        scan = Scan(schema=schema, columns=columns, as_of=as_of, parts=snapshot.parts)
        return scan, collection.store.url

    scan, url = asyncio.run(planned())
    chosen = shard_frame.TaskSelection(scan.columns, None, None)
    work = guarded(shard_frame._reader([msgspec.msgpack.encode([scan])], url, chosen))
    numbers: Iterator[pa.RecordBatch] = iter([pa.record_batch({"id": pa.array([0])})])
    damage(lake)

    check(lambda: list(work(numbers)), CORRUPT)


def test_a_stream_of_changes_reports_a_damaged_part(lake: Path) -> None:
    """A micro-batch that Spark planned before the damage."""
    source = source_of(lake, kind="changes")
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    partitions = list(stream.partitions(start, end))
    damage(lake)

    check(lambda: [list(stream.read(each)) for each in partitions], CORRUPT)


def test_plans_and_streams_report_what_is_gone_or_wrong(lake: Path) -> None:
    """The plan of a read, the start of a stream, and its offsets."""
    contents = reader_of(lake)
    log = source_of(lake, "log", kind="log", start="99").streamReader(LOG_SCHEMA)
    changes_of = source_of(lake, kind="changes")
    stream = changes_of.streamReader(changes_of.schema())
    wrong = {"rendition": "other", "time": 1}

    async def drop() -> None:
        await (await open_location(str(lake))).sources.drop("c")

    check(
        lambda: stream.latestOffset(wrong, ReadAllAvailable()),
        "[TIDELOG_NO_SUCH_COLLECTION] the checkpoint of the stream belongs to another collection",
    )
    stream = changes_of.streamReader(changes_of.schema())  # A new one: the other has opened it.
    asyncio.run(drop())
    gone = "[TIDELOG_NO_SUCH_COLLECTION] no collection named 'c'"
    check(contents.partitions, gone)
    check(log.initialOffset, "[TIDELOG_USAGE_ERROR] start 99 is after the end of the log")
    check(stream.initialOffset, gone)
    check(lambda: stream.latestOffset(wrong, ReadAllAvailable()), gone)
    check(source_of(lake, asofs="1").schema, "[TIDELOG_UNKNOWN_OPTION] unknown option 'asofs'")


def test_a_log_reports_a_damaged_object(lake: Path) -> None:
    """A batch read, and a micro-batch of a stream."""
    reader = reader_of(lake, "log", kind="log")
    partitions = list(reader.partitions())
    stream = source_of(lake, "log", kind="log").streamReader(LOG_SCHEMA)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    batch = list(stream.partitions(start, end))
    paths = [path for path in folder_of(lake, "log").rglob("*") if path.is_file()]
    for path in paths:
        path.write_bytes(path.read_bytes()[:-9] + b"?" * 9)

    check(lambda: read_all(reader, partitions), CORRUPT)
    check(lambda: [list(stream.read(each)) for each in batch], CORRUPT)
