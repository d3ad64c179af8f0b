"""Kafka as a source, on a real broker: messages, transactions, expiry, failures and rights."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions

import tidelog
from kit.certificates import Authority
from kit.installs import skipped_without
from kit.kafka_server import KafkaServer
from tidelog.collection.source.kafka import client
from tidelog.collection.spec_types import SourceSpec
from tidelog.errors import (
    GoneError,
    LocationError,
    PositionCollected,
    SourceRewritten,
    StoreRefused,
    UsageError,
)
from tidelog.location import open_location

WAIT_S = 60.0


@pytest.fixture
def topic(kafka: KafkaServer, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with one partition."""
    name = f"t-{abs(hash(request.node.name)) % 10**12}"
    kafka.create(name)
    return name


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[tidelog.Location]:
    """A location on disk."""
    with tidelog.connect(tmp_path / "lake", create=True) as location:
        yield location


@pytest.fixture
def own(tmp_path: Path) -> Iterator[KafkaServer]:
    """A broker that the test may kill."""
    with skipped_without():
        server = KafkaServer(tmp_path / "kafka")
    with server:
        yield server


def source(
    lake: tidelog.Location, kafka: KafkaServer, topic: str, name: str = "s", **asked: Any
) -> None:
    """Create a source of a topic; ``settings`` are added to its broker and topic."""
    settings = {"servers": kafka.servers, "topic": topic, **asked.pop("settings", {})}
    spec = {"name": name, "kind": "kafka", "settings": settings, **asked}
    lake.sources.create(tidelog.SourceSpec(**spec))


def send(kafka: KafkaServer, topic: str, *values: object, **more: Any) -> None:
    """Send messages: bytes or None as they are, and other values as json."""
    producer = Producer(kafka.clients)
    for value in values:
        body = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, body, **more)
    assert producer.flush(WAIT_S) == 0


def contents(lake: tidelog.Location, name: str = "s") -> list[dict[str, Any]]:
    return sorted(lake.collection(name).snapshot().to_arrow().to_pylist(), key=str)


def numbers(lake: tidelog.Location, name: str = "s") -> list[int]:
    return sorted(row["n"] for row in contents(lake, name))


def until(holds: Callable[[], bool]) -> None:
    """Wait until the broker has done its work."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_message_is_one_row_with_all_its_columns(
    lake: tidelog.Location, kafka: KafkaServer, topic: str
) -> None:
    """A second run ingests only the later messages."""
    before_ms = int(time.time() * 1000)
    send(kafka, topic, b"one", key=b"k", headers=[("h", b"1"), ("h", b"2"), ("none", None)])
    send(kafka, topic, None)
    source(lake, kafka, topic)
    assert lake.sources.ingest("s").rows == 2
    send(kafka, topic, b"\xff\x00")
    assert lake.sources.ingest("s").rows == 1

    rows = sorted(contents(lake), key=lambda row: row["offset"])
    times = [int(row.pop("timestamp").timestamp() * 1000) for row in rows]
    assert before_ms <= times[0] <= times[1] <= times[2] <= time.time() * 1000
    place = {"topic": topic, "partition": 0}
    headers = [
        {"key": "h", "value": b"1"},
        {"key": "h", "value": b"2"},
        {"key": "none", "value": None},
    ]
    assert rows == [
        {"key": b"k", "value": b"one", **place, "offset": 0, "headers": headers},
        {"key": None, "value": None, **place, "offset": 1, "headers": None},
        {"key": None, "value": b"\xff\x00", **place, "offset": 2, "headers": None},
    ]


def test_the_newest_message_of_a_key_is_its_row(
    lake: tidelog.Location, kafka: KafkaServer, topic: str
) -> None:
    """A message without a value deletes the row. The time of a row is that of its message."""
    for n in range(20):
        send(kafka, topic, {"n": n} if n % 5 else None, key=f"k{n % 4}".encode())
    source(
        lake,
        kafka,
        topic,
        format="json",
        envelope="upsert",
        key=("key",),
        include=("key", "timestamp=at"),
        time_column="at",
    )
    lake.sources.ingest("s")

    expected = {f"k{n % 4}": n if n % 5 else None for n in range(20)}
    rows = {row["key"]: row["n"] for row in contents(lake)}
    assert rows == {key: n for key, n in expected.items() if n is not None}
    send(kafka, topic, None, key=b"k3")
    lake.sources.ingest("s", final=True)
    assert "k3" not in {row["key"] for row in contents(lake)}
    assert lake.collection("s_errors").snapshot().to_arrow().num_rows == 0


def test_aborted_and_open_transactions_are_not_read(
    lake: tidelog.Location, kafka: KafkaServer, topic: str
) -> None:
    """The source waits for the end of an open transaction, and passes over aborted ones."""
    producer = Producer({**kafka.clients, "transactional.id": topic})
    producer.init_transactions(WAIT_S)

    def transaction(n: int) -> None:
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"n": n}))
        producer.flush(WAIT_S)

    transaction(1)
    producer.abort_transaction(WAIT_S)
    transaction(2)
    producer.commit_transaction(WAIT_S)
    transaction(3)
    producer.abort_transaction(WAIT_S)
    source(lake, kafka, topic, format="json", schema="n int")
    lake.sources.ingest("s")
    assert numbers(lake) == [2]
    assert lake.sources.status("s").lag == {f"{topic}/0": 0}

    transaction(4)
    send(kafka, topic, {"n": 5})
    lake.sources.ingest("s")
    assert numbers(lake) == [2], "4 is not decided, and 5 comes after it"
    producer.commit_transaction(WAIT_S)
    lake.sources.ingest("s")
    assert numbers(lake) == [2, 4, 5]
    transaction(6)
    producer.abort_transaction(WAIT_S)
    assert lake.sources.ingest("s").rows == 0
    assert numbers(lake) == [2, 4, 5]


def test_new_partitions_and_topics_of_a_pattern_are_taken(
    lake: tidelog.Location, kafka: KafkaServer, topic: str
) -> None:
    """Each is read from its first message on."""
    send(kafka, topic, {"n": 1})
    source(lake, kafka, f"^{topic}(-more)?$", format="json", schema="n int")
    lake.sources.ingest("s")
    admin = kafka.admin()
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    kafka.create(f"{topic}-more")
    kafka.create(f"{topic}-other")
    until(lambda: len(kafka.admin().list_topics(topic, timeout=5).topics[topic].partitions) == 3)
    for partition in range(3):
        send(kafka, topic, {"n": 10 + partition}, partition=partition)
    send(kafka, f"{topic}-more", {"n": 20})
    send(kafka, f"{topic}-other", {"n": 30})

    lake.sources.ingest("s")

    assert numbers(lake) == [1, 10, 11, 12, 20]
    reached = lake.sources.status("s").reached
    assert reached == {f"{topic}/0": 2, f"{topic}/1": 1, f"{topic}/2": 1, f"{topic}-more/0": 1}


def test_a_deleted_topic_of_a_pattern_does_not_stop_the_others(
    lake: tidelog.Location, kafka: KafkaServer, topic: str
) -> None:
    """Its committed rows stay. Messages that were not ingested are skipped by the user."""
    kafka.create(f"{topic}-old")
    send(kafka, topic, {"n": 1})
    send(kafka, f"{topic}-old", {"n": 2})
    source(lake, kafka, f"^{topic}", format="json", schema="n int")
    lake.sources.ingest("s")
    kafka.delete(f"{topic}-old")
    until(lambda: f"{topic}-old" not in kafka.admin().list_topics(timeout=5).topics)
    send(kafka, topic, {"n": 3})

    lake.sources.ingest("s")

    assert numbers(lake) == [1, 2, 3]


def expire(kafka: KafkaServer, topic: str, before: int) -> None:
    """Delete the messages of a topic before an offset, as retention does."""
    admin = kafka.admin()
    place = TopicPartition(topic, 0, before)
    admin.delete_records([place])[place].result(60)


def test_expired_messages_stop_the_source_until_they_are_skipped(
    lake: tidelog.Location, kafka: KafkaServer, topic: str
) -> None:
    """The error names them. After the skip, one bad row does."""
    for n in range(10):
        send(kafka, topic, {"n": n})
    source(lake, kafka, topic, format="json", schema="n int")
    send(kafka, topic, {"n": 10})
    expire(kafka, topic, 4)
    time.sleep(client_is_fresh_s())

    with pytest.raises(PositionCollected, match=r"messages 0 to 3 of .* are expired") as stopped:
        lake.sources.ingest("s")
    assert f"tidelog source skip s {topic}/0" in str(stopped.value)
    lake.sources.skip("s", f"{topic}/0")
    lake.sources.ingest("s")

    assert numbers(lake) == list(range(4, 11))
    (bad,) = contents(lake, "s_errors")
    assert (bad["file"], bad["offset"]) == (f"{topic}/0", 0)
    expire(kafka, topic, 11)
    send(kafka, topic, {"n": 11})
    lake.sources.ingest("s")
    assert numbers(lake) == list(range(4, 12)), "committed messages may expire"


def client_is_fresh_s() -> float:
    """Return a wait after which no process uses older facts of the broker."""
    from tidelog.collection.source.kafka.messages import FRESH_US

    return FRESH_US / 1e6 + 0.1


def test_a_new_topic_of_the_same_name_is_another_topic(
    lake: tidelog.Location, kafka: KafkaServer, topic: str
) -> None:
    """Its messages are not taken for those of the old one, also if it is longer."""
    send(kafka, topic, {"n": 1}, {"n": 2})
    source(lake, kafka, topic, format="json", schema="n int")
    lake.sources.ingest("s")
    kafka.delete(topic)
    until(lambda: topic not in kafka.admin().list_topics(timeout=5).topics)
    kafka.create(topic)
    send(kafka, topic, *({"n": 100 + n} for n in range(5)))
    time.sleep(client_is_fresh_s())

    with pytest.raises(SourceRewritten):
        lake.sources.ingest("s")
    assert numbers(lake) == [1, 2]


def test_a_deleted_topic_is_an_error(
    lake: tidelog.Location, kafka: KafkaServer, topic: str
) -> None:
    """The source does not end as if it had read all."""
    send(kafka, topic, {"n": 1})
    source(lake, kafka, topic, format="json", schema="n int")
    lake.sources.ingest("s")
    kafka.delete(topic)
    until(lambda: topic not in kafka.admin().list_topics(timeout=5).topics)

    with pytest.raises(GoneError, match="no longer exists"):
        lake.sources.ingest("s")


def test_a_broker_that_is_killed_loses_no_message(
    tmp_path: Path, own: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile a run fails with the reason, also if the broker only stops to answer."""
    monkeypatch.setattr(client, "WAIT_S", 2.0)
    own.create("t")
    send(own, "t", {"n": 1})
    with tidelog.connect(tmp_path / "lake", create=True) as lake:
        source(lake, own, "t", format="json", schema="n int")
        lake.sources.ingest("s")
        send(own, "t", {"n": 2})
        own.pause()
        began = time.monotonic()
        with pytest.raises(LocationError, match="did not answer"):
            lake.sources.ingest("s")
        assert time.monotonic() - began < 20
        own.resume()
        own.kill()
        with pytest.raises(LocationError, match=f"the brokers at {own.servers} did not answer"):
            lake.sources.ingest("s")
        status = lake.sources.status("s")
        assert status.left_bytes is None
        assert "did not answer" in str(status.trouble)
        own.start()
        monkeypatch.undo()
        lake.sources.ingest("s")
        assert numbers(lake) == [1, 2]


def committed(kafka: KafkaServer, group: str) -> dict[str, int]:
    admin = kafka.admin()
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(60).topic_partitions
    return {f"{one.topic}/{one.partition}": one.offset for one in found}


def test_a_group_gets_offsets_of_committed_messages_only(
    lake: tidelog.Location, kafka: KafkaServer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ingester that dies before its commit leaves the offsets of the group as they were."""
    send(kafka, topic, *({"n": n} for n in range(5)))
    source(lake, kafka, topic, format="json", schema="n int", settings={"group": f"g-{topic}"})
    lake.sources.ingest("s")
    assert committed(kafka, f"g-{topic}") == {f"{topic}/0": 5}

    send(kafka, topic, {"n": 5})

    def die(*_: object) -> None:
        raise RuntimeError("killed before the commit")

    monkeypatch.setattr("tidelog.collection.ingest.ingest.Ingester._commit_of", die)
    with pytest.raises(Exception, match="killed before the commit"):
        lake.sources.ingest("s")
    assert committed(kafka, f"g-{topic}") == {f"{topic}/0": 5}
    monkeypatch.undo()
    lake.sources.ingest("s")
    assert committed(kafka, f"g-{topic}") == {f"{topic}/0": 6}


@pytest.mark.parametrize("begins", ["next", "time"])
def test_a_source_can_begin_later(
    lake: tidelog.Location, kafka: KafkaServer, topic: str, begins: str
) -> None:
    """It begins at the end of the topic, or at the first message of a time."""
    now_ms = int(time.time() * 1000)
    send(kafka, topic, {"n": 1}, timestamp=now_ms - 60_000)
    send(kafka, topic, {"n": 2}, timestamp=now_ms - 30_000)
    where = "next" if begins == "next" else str(now_ms - 45_000)
    source(lake, kafka, topic, format="json", schema="n int", settings={"from": where})
    send(kafka, topic, {"n": 3}, timestamp=now_ms)
    lake.sources.ingest("s")

    assert numbers(lake) == ([3] if begins == "next" else [2, 3])


def test_a_large_message_is_a_row_or_a_bad_row(lake: tidelog.Location, kafka: KafkaServer) -> None:
    """A row has at most 8 MB; a bad row names a larger message, and later ones come in."""
    kafka.create("large", max_message_bytes=30_000_000)
    producer = Producer({**kafka.clients, "message.max.bytes": 30_000_000})
    for size in (5_000_000, 20_000_000, 10):
        producer.produce("large", b"x" * size)
    producer.flush(WAIT_S)
    source(lake, kafka, "large")
    lake.sources.ingest("s")

    rows = lake.collection("s").snapshot().to_arrow()
    assert sorted(len(value or b"") for value in rows.column("value").to_pylist()) == [
        10,
        5_000_000,
    ]
    (bad,) = contents(lake, "s_errors")
    assert (bad["file"], bad["offset"]) == ("large/0", 1)
    assert "8 MB" in bad["reason"]


@pytest.mark.parametrize("sizes", [(100_000, 10), (10, 100_000)])
def test_a_tick_is_small_if_messages_are_large(
    tmp_path: Path, kafka: KafkaServer, topic: str, sizes: tuple[int, int]
) -> None:
    """Small messages before or after them do not hide the size of large ones."""
    send(kafka, topic, *[b"x" * size for size in sizes for _ in range(300)])

    async def planned() -> list[int]:
        location = await open_location(str(tmp_path / "lake"), create=True)
        settings = {"servers": kafka.servers, "topic": topic}
        await location.sources.create(SourceSpec(name="s", kind="kafka", settings=settings))
        limit_bytes, found = 4_000_000, []
        ingester = await location.sources.ingester("s", bytes_max=limit_bytes)
        head = await ingester.source.head()
        while (tick := await ingester.tick(head)) is not None:
            found.append(tick.rows)
            if not tick.left_bytes:
                break
        return found

    rows = asyncio.run(planned())
    assert sum(rows) == 600
    assert len(rows) >= 6, "30 MB in ticks of 4 MB, and at least 64 messages"
    assert max(rows) < 300


def test_rights_and_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong password, or another authority, is an error soon, which names the broker."""
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    authority, other = Authority.make(tmp_path / "right"), Authority.make(tmp_path / "wrong")
    with skipped_without():
        server = KafkaServer(tmp_path / "kafka", sasl=True, authority=authority)
    monkeypatch.setenv("KAFKA_PASSWORD", str(server.sasl_clients["sasl.password"]))
    monkeypatch.setenv("WRONG_PASSWORD", "open sesame")
    with server, tidelog.connect(tmp_path / "lake", create=True) as lake:
        server.create("t")
        send(server, "t", {"n": 1})

        def settings_of(clients: Any, **more: str) -> dict[str, str]:
            settings = {str(name): str(value) for name, value in clients.items()}
            return {"servers": settings.pop("bootstrap.servers"), **settings, **more}

        right = settings_of(server.sasl_clients) | {"sasl.password": "env:KAFKA_PASSWORD"}
        tls = settings_of(server.ssl_clients)
        for name, settings in (("a", right), ("b", tls)):
            source(lake, server, "t", name, format="json", schema="n int", settings=settings)
            lake.sources.ingest(name)
            assert numbers(lake, name) == [1]
        wrong_ca = {"ssl.ca.location": str(other.folder / "authority.pem")}
        for wrong in (right | {"sasl.password": "env:WRONG_PASSWORD"}, tls | wrong_ca):
            began = time.monotonic()
            with pytest.raises(StoreRefused) as refused:
                source(lake, server, "t", "c", settings=wrong)
            assert wrong["servers"] in str(refused.value)
            assert "sesame" not in str(refused.value)
            assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"topic": "no-such-topic"}, GoneError, "no topic 'no-such-topic' at"),
        ({"topic": "^no-such-.*"}, GoneError, "no topic '^no-such-.*' at"),
        ({"topic": "^("}, UsageError, "is not a pattern"),
        ({"topic": " , "}, UsageError, "names no topic"),
        ({"security.protocol": "carrier-pigeon"}, UsageError, "cannot be made with these settings"),
        ({"sasl.password": "open sesame"}, UsageError, "would be stored"),
        ({"acks": "all"}, UsageError, "is not a setting of a source of the kind 'kafka'"),
        ({"from": "yesteryear"}, UsageError, "settings['from']="),
    ],
)
def test_a_wrong_setting_creates_nothing(
    lake: tidelog.Location,
    kafka: KafkaServer,
    topic: str,
    settings: dict[str, str],
    error: type[Exception],
    said: str,
) -> None:
    """The error names the setting."""
    with pytest.raises(error) as refused:
        source(lake, kafka, topic, settings=settings)
    assert said in str(refused.value)
    assert lake.sources.list() == []


def test_a_rendition_reads_the_same_messages_at_the_same_times(
    lake: tidelog.Location, kafka: KafkaServer, topic: str
) -> None:
    """With kept bindings, another decoding has the rows of each time."""
    send(kafka, topic, {"n": 1, "m": 10})
    source(lake, kafka, topic, format="json", schema="n int", keep_bindings=True)
    lake.sources.ingest("s")
    send(kafka, topic, {"n": 2, "m": 20}, {"n": 3, "m": 30})
    lake.sources.ingest("s")
    lake.renditions.create(tidelog.RenditionSpec(name="wide", schema="n int, m int"), of="s")
    lake.sources.ingest("wide")

    upper = lake.collection("s").describe().upper
    assert upper is not None

    check = lake.sources.check("wide")
    assert (check.first, check.rows, list(check.unchecked)) == (None, 3, [])
    lake.renditions.handover("s", to="wide", at=upper)
    lake.sources.ingest("wide")
    assert [(row["n"], row["m"]) for row in contents(lake)] == [(1, 10), (2, 20), (3, 30)]
