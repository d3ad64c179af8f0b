"""Kafka as a source, while its ingesters and the broker are killed, and the topic changes."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions

import tidelog
from kit.installs import skipped_without
from kit.kafka_server import KafkaServer
from kit.killed_roles import Roles

MESSAGES = 40_000
KILLS = 20
BROKER_KILLS = 3
PARTITIONS = 6  # From the middle of the messages on; four before.
KEYS = 50
PATIENCE_S = 480


class Sender:
    """A producer in a thread: it sends numbers, and some messages without a value."""

    def __init__(self, kafka: KafkaServer, topic: str, dice: random.Random) -> None:
        self.kafka, self.topic, self.dice = kafka, topic, dice
        self.sent: list[tuple[str, int, int]] = []  # Key, number and partition, once delivered.
        self.fault: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._send()
        except (KafkaException, BufferError, AssertionError) as error:  # The test shows it.
            self.fault = error

    def _send(self) -> None:
        # A message may be sent for a long time, because the broker is down for some of it.
        settings = {
            "enable.idempotence": True,
            "topic.metadata.refresh.interval.ms": 500,
            "delivery.timeout.ms": PATIENCE_S * 1000,
        }
        producer = Producer({**self.kafka.clients, **settings, "log_level": 0})
        for number in range(MESSAGES):
            if number == MESSAGES // 2:
                assert producer.flush(PATIENCE_S) == 0
                self._add_partitions(producer)
            key = f"k{self.dice.randrange(KEYS)}"
            body = json.dumps({"n": number}) if number % 9 else None
            producer.produce(self.topic, body, key=key, on_delivery=self._delivered(key, number))
            producer.poll(0)
            if number % 200 == 199:
                time.sleep(0.1)
        assert producer.flush(PATIENCE_S) == 0

    def _add_partitions(self, producer: Producer) -> None:
        """Add partitions, and wait until the producer knows them; the broker may be down."""
        admin, until = self.kafka.admin(), time.monotonic() + PATIENCE_S
        while True:
            with suppress(KafkaException):
                topic = producer.list_topics(self.topic, timeout=5).topics[self.topic]
                if len(topic.partitions) == PARTITIONS:
                    return
                admin.create_partitions([NewPartitions(self.topic, PARTITIONS)])[self.topic].result(
                    10
                )
            assert time.monotonic() < until
            time.sleep(0.2)

    def _delivered(self, key: str, number: int) -> Any:
        def keep(error: object, message: Message) -> None:
            assert error is None, error
            self.sent.append((key, number, int(message.partition() or 0)))

        return keep


@pytest.mark.parametrize("seed", [28])
def test_each_message_comes_in_once(tmp_path: Path, seed: int) -> None:
    """Two ingesters are killed, and the broker; partitions are added.

    Messages without a value are bad rows. The offsets of the consumer group are never ahead of
    the committed rows.
    """
    dice, url = random.Random(seed), str(tmp_path / "lake")
    with skipped_without():
        kafka = KafkaServer(tmp_path / "kafka")
    with kafka, tidelog.connect(url, create=True) as lake:
        kafka.create("t", partitions=4)
        settings = {"servers": kafka.servers, "topic": "t"}
        rows = tidelog.SourceSpec(
            name="rows",
            kind="kafka",
            format="json",
            schema="n int",
            include=("key", "partition", "offset"),
            settings={**settings, "group": "g"},
        )
        lake.sources.create(rows)
        sender = Sender(kafka, "t", dice)
        sender.thread.start()
        roles = Roles(url, tmp_path, dice, forgives="did not answer")
        follow = ("--follow", "--interval", "0.1", "--max-bytes-per-tick", "100000")
        for name in ("one", "two"):
            roles.start(name, "ingest", "rows", *follow, "--engine", "local")
        broker_dies = sorted(dice.uniform(3, 20) for _ in range(BROKER_KILLS))
        began = time.monotonic()
        kills = 0
        until = began + PATIENCE_S
        while roles.kills < KILLS or kills < BROKER_KILLS or sender.thread.is_alive():
            assert time.monotonic() < until
            assert sender.fault is None, sender.fault
            roles.tend(KILLS)
            if kills < BROKER_KILLS and time.monotonic() > began + broker_dies[kills]:
                kafka.kill()
                kafka.start()
                kills += 1
            with suppress(KafkaException):  # The broker starts, and does not know its groups yet.
                check_group(kafka, lake)
            time.sleep(0.05)
        roles.end()
        lake.sources.ingest("rows")
        assert check_group(kafka, lake) > 0

        assert roles.faults == []
        table = lake.collection("rows").snapshot().to_arrow()
        found = Counter(zip(*(table.column(n).to_pylist() for n in ("key", "n")), strict=True))
        expected = Counter((key, number) for key, number, _ in sender.sent if number % 9)
        assert found == expected
        assert len({one for _, _, one in sender.sent}) == PARTITIONS
        columns = [table.column(name).to_pylist() for name in ("partition", "offset")]
        places = Counter(zip(*columns, strict=True))
        assert max(places.values()) == 1
        errors = lake.collection("rows_errors").snapshot().to_arrow()
        assert errors.num_rows == sum(1 for _, number, _ in sender.sent if not number % 9)


def check_group(kafka: KafkaServer, lake: tidelog.Location) -> int:
    """Check that no offset of the group is ahead of the committed rows; return their sum."""
    reader = Consumer({**kafka.clients, "group.id": "g", "log_level": 0})
    try:
        found = reader.committed(
            [TopicPartition("t", one) for one in range(PARTITIONS)], timeout=30
        )
    finally:
        reader.close()
    committed = lake.sources.status("rows").reached  # Read after the group: it may only be ahead.
    for one in found:
        assert one.offset <= committed.get(f"{one.topic}/{one.partition}", 0)
    return sum(max(one.offset, 0) for one in found)
