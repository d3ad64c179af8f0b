"""The Kafka broker of the tests: the properties that tests of sources and sinks rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from kit import installs
from kit.certificates import Authority
from kit.installs import CannotInstall, skipped_without
from kit.kafka_server import KafkaServer

WAIT_S = 60.0
DIES = """
import os, pathlib, signal, sys
from kit.kafka_server import KafkaServer
with KafkaServer(pathlib.Path(sys.argv[1])) as server:
    print(server.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def topic_of(request: pytest.FixtureRequest) -> str:
    """Return the name of the test's topic."""
    return str(request.node.name)


def read(kafka: KafkaServer, topic: str, count: int, *, partition: int = 0) -> list[Message]:
    """Return the first ``count`` messages of a partition that a read_committed consumer reads."""
    consumer = Consumer({**kafka.clients, "group.id": topic, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.consume(count - len(found), timeout=0.2)
    consumer.close()
    return found


def until(holds: Callable[[], bool]) -> bool:
    """Wait until ``holds`` returns True; return False if it does not in time."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def is_alive(pid: int) -> bool:
    """Return True if the process exists and is no zombie that waits for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def first_offset(kafka: KafkaServer, topic: str) -> int:
    consumer = Consumer({**kafka.clients, "group.id": "offsets"})
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S)
    consumer.close()
    return int(low)


def test_an_idempotent_producer_writes_each_message_once_in_order(
    kafka: KafkaServer, request: pytest.FixtureRequest
) -> None:
    """A topic has the partitions asked for, and offsets without gaps in each."""
    topic = topic_of(request)
    kafka.create(topic, partitions=2)
    producer = Producer({**kafka.clients, "enable.idempotence": True})
    for number in range(1000):
        producer.produce(topic, f"{number}", key=f"k{number}", partition=number % 2)
    assert producer.flush(WAIT_S) == 0

    read_back = [read(kafka, topic, 500, partition=each) for each in (0, 1)]

    assert set(kafka.admin().list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == {0, 1}
    for partition, messages in enumerate(read_back):
        assert [each.offset() for each in messages] == list(range(500))
        assert [each.value() for each in messages] == [
            f"{number}".encode() for number in range(partition, 1000, 2)
        ]


def test_an_aborted_transaction_is_not_read(
    kafka: KafkaServer, request: pytest.FixtureRequest
) -> None:
    """A read_committed consumer sees committed messages only, although aborted ones come first."""
    topic = topic_of(request)
    kafka.create(topic)
    producer = Producer({**kafka.clients, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    for value, ends in (("aborted", producer.abort_transaction), ("kept", None)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(WAIT_S)
        (ends or producer.commit_transaction)(WAIT_S)

    (message,) = read(kafka, topic, 1)

    assert message.value() == b"kept"
    assert message.offset() == 2, "the aborted message and its marker come first"


def test_a_zombie_producer_is_fenced(kafka: KafkaServer, request: pytest.FixtureRequest) -> None:
    """The older of two producers of one transactional id can commit nothing."""
    topic = topic_of(request)
    kafka.create(topic)
    old, new = (Producer({**kafka.clients, "transactional.id": topic}) for _ in range(2))
    old.init_transactions(WAIT_S)
    old.begin_transaction()
    old.produce(topic, "zombie")
    new.init_transactions(WAIT_S)

    with pytest.raises(KafkaException) as caught:
        old.commit_transaction(WAIT_S)

    assert caught.value.args[0].name() in {"_FENCED", "INVALID_PRODUCER_EPOCH"}


def test_expired_segments_are_deleted_within_seconds(
    kafka: KafkaServer, request: pytest.FixtureRequest
) -> None:
    """A test of expired offsets must not wait for the five minutes of a real broker's default."""
    topic = topic_of(request)
    kafka.create(topic, retention_ms=300, segment_ms=100)
    producer = Producer(kafka.clients)
    producer.produce(topic, "old")
    producer.flush(WAIT_S)

    assert until(lambda: first_offset(kafka, topic) == 1)


def test_compaction_removes_older_rows_of_a_key_within_seconds(
    kafka: KafkaServer, request: pytest.FixtureRequest
) -> None:
    """A compacted topic has gaps in its offsets, which sources must take as they are."""
    topic = topic_of(request)
    kafka.create(topic, cleanup_policy="compact", segment_ms=100)
    producer = Producer(kafka.clients)

    def is_compacted() -> bool:
        # A message later than segment.ms closes the segment, which is compacted afterwards.
        producer.produce(topic, "newest", key="k")
        producer.flush(WAIT_S)
        return bool(read(kafka, topic, 1)[0].offset() != 0)

    assert until(is_compacted)


def test_acknowledged_messages_survive_kill_9(tmp_path: Path) -> None:
    """The broker starts again on its port with its topics; a paused one answers after `resume`."""
    with skipped_without():
        server = KafkaServer(tmp_path, partitions=3)
    with server as kafka:
        kafka.create("t")
        producer = Producer({**kafka.clients, "acks": "all"})
        producer.produce("t", "kept")
        assert producer.flush(WAIT_S) == 0
        cluster = kafka.admin().list_topics(timeout=WAIT_S).cluster_id

        kafka.kill()
        with pytest.raises(KafkaException):
            kafka.admin().list_topics(timeout=0.5)
        kafka.start()

        assert [each.value() for each in read(kafka, "t", 1)] == [b"kept"]
        assert kafka.admin().list_topics(timeout=WAIT_S).cluster_id == cluster
        kafka.pause()
        with pytest.raises(KafkaException):
            kafka.admin().list_topics(timeout=0.5)
        kafka.resume()
        producer.produce("made-by-this", "x")
        assert producer.flush(WAIT_S) == 0
        made = kafka.admin().list_topics("made-by-this", timeout=WAIT_S)
        kafka.stop()

    assert len(made.topics["made-by-this"].partitions) == 3
    assert not (tmp_path / "data").exists()


def test_passwords_and_certificates_are_checked(tmp_path: Path) -> None:
    """Each secure listener accepts the right client, and refuses one with a wrong secret."""
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    authorities = [Authority.make(tmp_path / name) for name in ("right", "wrong")]
    with skipped_without():
        server = KafkaServer(tmp_path / "kafka", sasl=True, authority=authorities[0])
    with server as kafka:
        scram = kafka.sasl_clients | {"sasl.mechanism": "SCRAM-SHA-256"}
        for right in (kafka.sasl_clients, scram, kafka.ssl_clients):
            assert AdminClient(right).list_topics(timeout=WAIT_S).brokers
        other = str(authorities[1].folder / "authority.pem")
        for wrong in (
            kafka.sasl_clients | {"sasl.password": "x"},
            scram | {"sasl.password": "x"},
            kafka.ssl_clients | {"ssl.ca.location": other},
        ):
            with pytest.raises(KafkaException):
                AdminClient(wrong | {"log_level": "0"}).list_topics(timeout=2)


def test_a_broker_ends_with_its_parent(tmp_path: Path) -> None:
    """A test run that is killed with -9 must leave no broker behind."""
    with skipped_without():
        KafkaServer(tmp_path)

    done = subprocess.run(
        [sys.executable, "-c", DIES, str(tmp_path)],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert until(lambda: not is_alive(int(done.stdout)))


@pytest.mark.parametrize(
    ("java", "told"),
    [
        (None, "Kafka is not installed: java is missing"),
        ("11.0.2", 'Kafka is not installed: it needs Java 17, found openjdk version "11.0.2"'),
    ],
)
def test_a_machine_without_java_17_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: str | None, told: str
) -> None:
    """The reason of a skip names the program, although an earlier run installed the jars."""
    if java is not None:
        program = tmp_path / "java"
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{java}\"' >&2\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(CannotInstall) as caught:
        KafkaServer(tmp_path)

    assert str(caught.value) == told


def test_a_machine_without_maven_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason of a skip names Maven, and a later run tries again."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    for _ in range(2):
        with pytest.raises(CannotInstall, match="Kafka is not installed: mvn is missing"):
            installs.installed("x", lambda at: installs.copy_jars(at, "", server="Kafka"))
