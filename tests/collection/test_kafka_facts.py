"""Sources of Kafka without a broker: topics that change, stale facts, and headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest
from confluent_kafka import Message

from tidelog.collection.catalog.catalog import SourceInfo
from tidelog.collection.source.kafka import messages
from tidelog.collection.source.kafka.client import Place, TopicFacts
from tidelog.collection.source.kafka.messages import KafkaMessages
from tidelog.collection.source.kind import OpenedWith, RowRange
from tidelog.core.clock import SystemClock
from tidelog.errors import GoneError, LocationError, PositionCollected, SourceRewritten
from tidelog.store.memory import MemoryStore


@dataclass
class Cluster:
    """Topics with one partition each: their ids and ends. ``is_down`` fails all requests."""

    ids: dict[str, str] = field(default_factory=lambda: {"t": "id-1"})
    end: int = 10
    is_down: bool = False
    clients: int = 0
    names: Callable[[], list[str]] = list

    def __call__(self, _config: object) -> Cluster:
        self.clients += 1
        return self

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        if self.is_down:
            raise LocationError("the brokers did not answer")
        return {name: TopicFacts(self.ids[name], (0,)) for name in names if name in self.ids}

    def offsets(self, places: Iterable[Place], at: int | str) -> dict[Place, int]:
        return dict.fromkeys(places, 0 if at == "first" else self.end)


class Reader:
    """A reader of partitions without messages."""

    at: object = None

    def begin(self, *_: object) -> None:
        """Begin to read nothing."""

    def next_batch(self, _most: int) -> list[Message]:
        return []


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster that the kind asks in place of brokers."""
    found = Cluster()
    monkeypatch.setattr(messages, "Brokers", found)
    monkeypatch.setattr(messages, "PartitionReader", lambda _config: Reader())
    return found


def opened(topic: str) -> KafkaMessages:
    """Return a source of a topic or a pattern, which has seen the cluster once."""
    info = SourceInfo(
        id="s",
        name="s",
        rendition="r",
        url="",
        patterns=(),
        format="rows",
        kind="kafka",
        settings={"servers": "nowhere:1", "topic": topic, "from": '{"t/0":0}'},
    )
    opening = OpenedWith(
        info=info, store=MemoryStore(), clock=SystemClock(), open_store=lambda _url: MemoryStore()
    )
    found = KafkaMessages(opening)
    found._is_weighed = True
    asyncio.run(found.head())
    return found


@pytest.fixture
def kind(cluster: Cluster) -> KafkaMessages:
    """A source of the topic ``t``, which has seen the cluster once."""
    return opened("t")


BOUND = RowRange(path="t/0", start=0, limit=10, proof="id-1")


def test_facts_older_than_a_binding_are_asked_again(cluster: Cluster, kind: KafkaMessages) -> None:
    """Another ingester bound messages that came after this ingester's facts."""
    cluster.end = 12
    found = RowRange(path="t/0", start=10, limit=12)
    assert asyncio.run(kind.proof(found)) == "id-1"


def test_a_partition_that_became_shorter_has_lost_messages(
    cluster: Cluster, kind: KafkaMessages
) -> None:
    """Brokers can lose messages that the source has read."""
    cluster.end = 12
    assert asyncio.run(kind.head()) == {"t/0": 12}
    cluster.end = 5
    asyncio.run(kind.head())
    with pytest.raises(SourceRewritten, match=r"ends at 5, .* brokers have lost messages"):
        asyncio.run(kind.proof(BOUND))


@pytest.mark.parametrize("end", [5, 15])
def test_a_topic_created_again_stops_a_running_source(
    cluster: Cluster, kind: KafkaMessages, end: int
) -> None:
    """The new topic may have fewer messages than the source has read, or more."""
    cluster.ids, cluster.end = {"t": "id-2"}, end
    for _ in range(2):
        with pytest.raises(SourceRewritten, match=r"'t' was deleted and created again.* Drop the"):
            asyncio.run(kind.head())


def test_a_topic_deleted_stops_a_running_source(cluster: Cluster, kind: KafkaMessages) -> None:
    """The source does not wait for messages that cannot come."""
    cluster.ids = {}
    with pytest.raises(GoneError, match="the topic 't' no longer exists"):
        asyncio.run(kind.head())


def test_a_topic_created_again_during_a_read_gives_no_rows(
    cluster: Cluster, kind: KafkaMessages
) -> None:
    """A read that began in the old topic may end in the new one."""
    rows = kind.read(BOUND)

    async def all_rows() -> list[pa.Table]:
        return [batch async for batch in rows]

    cluster.ids = {"t": "id-2"}
    with pytest.raises(SourceRewritten, match="was deleted and created again"):
        asyncio.run(all_rows())


def test_a_new_client_is_made_after_an_error(cluster: Cluster, kind: KafkaMessages) -> None:
    """A client remembers a refusal, and the secret may have changed since."""
    assert cluster.clients == 1
    cluster.is_down = True
    with pytest.raises(LocationError):
        asyncio.run(kind.head())
    cluster.is_down = False
    assert asyncio.run(kind.head()) == {"t/0": 10}
    assert cluster.clients == 2


class WithHeaders:
    """A message, as far as its headers go."""

    def __init__(self, found: Callable[[], object]) -> None:
        self.headers = found


def test_a_header_without_text_as_its_key_does_not_stop_the_source() -> None:
    """The client of Kafka then fails to return the headers."""

    def fail() -> object:
        raise SystemError("returned a result with an exception set")

    values = [WithHeaders(fail), WithHeaders(lambda: [("a", b"1")]), WithHeaders(lambda: None)]
    assert messages._values(cast(Any, values), "headers") == [
        [{"key": None, "value": None}],
        [{"key": "a", "value": b"1"}],
        None,
    ]


async def read_all(kind: KafkaMessages, found: RowRange) -> None:
    async for _ in kind.read(found):
        pass


def test_a_deleted_topic_of_a_pattern_does_not_stop_the_others(cluster: Cluster) -> None:
    """Committed messages may go. A range that a tick still needs is reported, for a skip."""
    cluster.ids["t-2"] = "id-2"
    cluster.names = lambda: sorted(cluster.ids)
    kind = opened("^t")
    del cluster.ids["t"]

    assert asyncio.run(kind.head()) == {"t-2/0": 10}
    with pytest.raises(PositionCollected, match="tidelog source skip s t/0"):
        asyncio.run(kind.proof(BOUND))
    with pytest.raises(PositionCollected):
        asyncio.run(read_all(kind, BOUND))


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ([10] * 100_000, 40_000),  # As many as fit.
        ([10] * 100_000 + [1_000_000] * 1_000, 40_000),
        ([1_000_000] * 1_000 + [10] * 100_000, 64),  # Few, whatever their size.
        ([1_000] * 300, 300),
        ([10] * 50, 50),
    ],
)
@pytest.mark.parametrize("assumed", [1, 1_000, 10_000_000])
def test_a_range_has_as_many_messages_as_fit(
    cluster: Cluster,
    kind: KafkaMessages,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    rows: int,
    assumed: int,
) -> None:
    """The size that was found last does not decide, if messages have another size now."""
    cluster.end = len(sizes)

    async def size_in(_path: str, start: int, limit: int) -> int:
        return max(sizes[start], sizes[(start + limit) // 2], sizes[limit - 1])

    monkeypatch.setattr(kind, "_size_in", size_in)
    kind._sizes["t/0"] = assumed

    (found,) = asyncio.run(kind.plan({}, {"t/0": len(sizes)}, bytes_max=400_000))

    assert 0.8 * rows <= found.limit <= rows
