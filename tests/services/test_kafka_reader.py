"""The reader of partitions, on a real broker: it changes between partitions that grow."""

from __future__ import annotations

import random
import threading
import time

import pytest
from confluent_kafka import Producer

from kit.kafka_server import KafkaServer
from tidelog.collection.source.kafka import client
from tidelog.collection.source.kafka.client import Brokers, PartitionReader, client_config

PARTITIONS = 3
READS = 400


def grow(kafka: KafkaServer, until: threading.Event) -> None:
    """Send messages to each partition, one after another."""
    producer = Producer({**kafka.clients, "linger.ms": 0})
    number = 0
    while not until.is_set():
        producer.produce("reader", b"x", partition=number % PARTITIONS)
        producer.flush(5)
        number += 1
        time.sleep(0.005)


def test_each_range_is_read_in_full(kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that goes from one partition to another, and back, never waits in vain."""
    monkeypatch.setattr(client, "WAIT_S", 5.0)
    kafka.create("reader", partitions=PARTITIONS)
    producer = Producer(kafka.clients)
    for number in range(900):
        producer.produce("reader", b"x", partition=number % PARTITIONS)
    producer.flush(30)
    stopped, dice = threading.Event(), random.Random(2)
    config = client_config(kafka.servers, {})
    brokers, reader = Brokers(config), PartitionReader(config)
    reached = dict.fromkeys(range(PARTITIONS), 0)
    sender = threading.Thread(target=grow, args=(kafka, stopped), daemon=True)
    sender.start()
    try:
        for _ in range(READS):
            place = ("reader", dice.randrange(PARTITIONS))
            end = brokers.offsets([place], "end")[place]
            start = reached[place[1]] if dice.random() < 0.6 else dice.randrange(end)
            start = min(start, end - 1)
            limit = end if dice.random() < 0.5 else dice.randrange(start + 1, end + 1)
            reader.begin(place, start, limit)
            found = []
            while batch := reader.next_batch(1000):
                found += [message.offset() for message in batch]
            assert found == list(range(start, limit))
            reached[place[1]] = limit
    finally:
        stopped.set()
        sender.join()
