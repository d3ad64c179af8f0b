"""Kafka on Spark: executors read the messages, and make the same rows as one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from kit.kafka_server import KafkaServer
from kit.sources import ingest, make_source, table_of
from tidelog.collection.source.kafka.messages import KafkaMessages
from tidelog.collection.spec_types import SourceSpec
from tidelog.spark import SparkEngine
from tidelog.spark.plan import TickSettings

CUT = TickSettings(
    small_bytes=0, task_bytes_min=1, task_bytes_max=200_000, range_bytes=1, driver_bytes=0
)
MESSAGES = 2_000


async def test_executors_read_the_same_messages(
    spark: SparkSession, tmp_path: Path, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks read shares of the partitions; tombstones and bad messages are the same, too."""
    kafka.create("on-spark", partitions=3, retention_ms=-1)
    producer = Producer({**kafka.clients, "log_level": 0})
    for n in range(MESSAGES):
        body = None if n % 11 == 0 else b"{" if n % 97 == 1 else json.dumps({"n": n}).encode()
        at = 1_700_000_000_000 + n * 7 % 1_000
        producer.produce("on-spark", body, key=b"k%d" % (n % 60), timestamp=at)
    assert producer.flush(60) == 0
    spec = SourceSpec(
        name="s",
        kind="kafka",
        format="json",
        schema="n int, at timestamptz, key varchar",
        include=("key", "timestamp=at"),
        envelope="upsert",
        key=("key",),
        time_column="at",
        shards=2,
        settings={"servers": kafka.servers, "topic": "on-spark"},
    )
    found = []
    for name in ("local", "spark"):
        location = await make_source(tmp_path / name, spec)
        if name == "spark":  # The driver looks at some messages for their size, and reads no other.
            monkeypatch.setattr(KafkaMessages, "_weigh", _no_weight)
            monkeypatch.setattr(KafkaMessages, "_size_in", _size_of_all)
            monkeypatch.setattr(KafkaMessages, "_reader", _no_reader)
        engine = SparkEngine(spark, location_url=location.url, clock=location.clock, settings=CUT)
        ticks = await ingest(
            location, "s", engine=engine if name == "spark" else None, bytes_max=600_000
        )
        assert sum(tick.rows + tick.bad for tick in ticks) == MESSAGES
        tables = [await table_of(location, one) for one in ("s", "s_errors")]
        found.append([sorted(table.to_pylist(), key=str) for table in tables])
    assert found[0] == found[1]


async def _no_weight(*_: object) -> None:
    """Leave the size of a message as it is assumed."""


async def _size_of_all(*_: object) -> int:
    return 100


async def _no_reader(*_: object) -> None:
    raise AssertionError("the driver reads messages")
