"""Messages of Kafka as a source: a path is a partition, ``topic/0``, and an address is an offset.

A head is the end for readers of committed transactions. So each offset before it is decided: it has
one message, or it never has one that is visible (an aborted transaction, a mark of Kafka's, or a
message that compaction removed). A binding names the offsets of a partition, and the id of its
topic: a topic that was deleted and created again has another id.
Shape: rows have ``key`` and ``value`` (binary), ``topic``, ``partition`` (int32), ``offset``
    (int64), ``timestamp`` (UTC, of the producer or the broker) and ``headers`` (a list of keys and
    values).
Source: design page 6, "Raw sources"; docs/guides/kafka.md.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from tidelog.collection.formats.times import parse_time
from tidelog.collection.source.kafka.client import (
    Brokers,
    PartitionReader,
    Place,
    TopicFacts,
    check_installed,
    client_config,
)
from tidelog.collection.source.kind import ADDRESS, Frontier, OpenedWith, RowRange, SourceKind
from tidelog.core.arguments import quoted
from tidelog.errors import GoneError, LocationError, PositionCollected, SourceRewritten, UsageError

if TYPE_CHECKING:
    from confluent_kafka import Message

OLDEST, NEXT = "oldest", "next"
FRESH_US: Final = 1_000_000  # Facts of the brokers are used for so long.
BATCH_BYTES: Final = 16 * 1024 * 1024
BATCH_ROWS: Final = 20_000
IDLE_READERS: Final = 4
SURE_ROWS: Final = 64  # So many messages fit into memory, whatever their size.
_SAMPLE_ROWS: Final = 8
_LOOKS: Final = 4
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "headers": pa.list_(_HEADER),
}
COLUMNS: Final = pa.schema(_TYPES)
# The settings of librdkafka that a source may have: those of the connection.
_OF_CLIENT: Final[Mapping[str, str]] = {
    "security.protocol": "plaintext, ssl, sasl_plaintext or sasl_ssl",
    "sasl.mechanism": "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512",
    "sasl.username": "the name of the user",
    "sasl.password": "env:NAME or file:PATH, where the password is",
    "ssl.ca.location": "the file with the authorities to trust",
    "ssl.certificate.location": "the client's certificate",
    "ssl.key.location": "the file with the client's key",
    "ssl.key.password": "env:NAME or file:PATH, where the password of the key is",
    "ssl.endpoint.identification.algorithm": "https, or none",
    "client.rack": "the rack of the ingester, to read from a near replica",
}


@dataclass(frozen=True, slots=True)
class TopicExtent:
    """The facts about the partitions at one time: topics, first offsets, and ends."""

    read_us: int
    topics: Mapping[str, TopicFacts]
    first: Mapping[Place, int] = field(default_factory=dict)
    end: Mapping[Place, int] = field(default_factory=dict)


class KafkaMessages(SourceKind):
    """The committed messages of one or several topics."""

    name = "kafka"
    body = "value"
    secrets = frozenset({"sasl.password", "ssl.key.password"})
    knows = {  # noqa: RUF012 - a class variable of the port, and no field
        "servers": "the brokers: HOST:PORT, several with commas",
        "topic": "the topics, with commas; ^PATTERN names all topics that match, also later ones",
        "from": "oldest (the default), next (only messages from now on), or a time",
        "group": "a consumer group, to which the committed offsets are reported",
        **_OF_CLIENT,
    }
    row_bytes = 1_000

    def __init__(self, opening: OpenedWith) -> None:
        super().__init__(opening)
        check_installed()
        self.topics = _topics_of(opening.text("topic"))
        self.begin = opening.settings.get("from", OLDEST)
        self.group = opening.settings.get("group")
        self._begins: Mapping[str, int] | None = _decoded(self.begin)
        self._extent: TopicExtent | None = None
        self._brokers: Brokers | None = None
        self._idle: list[PartitionReader] = []
        self._ids: dict[str, str] = {}  # The ids of topics that this process has seen.
        self._committed: dict[Place, int] = {}
        self._is_weighed = False
        self._sizes: dict[str, int] = {}  # The size of a message of each partition, as found last.
        opening.text("servers")

    async def columns(self) -> pa.Schema:
        return COLUMNS

    async def settle(self) -> Mapping[str, str]:
        begins = await self._beginnings()
        return {**self.opening.settings, "from": msgspec.json.encode(begins).decode()}

    async def sample(self) -> pa.Table:
        await self._beginnings()
        return await super().sample()

    async def head(self) -> Frontier:
        extent = await self._facts(anew=True)
        if not self._is_weighed:
            self._is_weighed = True
            await self._weigh(extent)
        return {_path(place): end for place, end in extent.end.items()}

    async def plan(self, start: Frontier, limit: Frontier, *, bytes_max: int) -> Sequence[RowRange]:
        begins = await self._beginnings()
        first = {path: start.get(path, begins.get(path, 0)) for path in limit}
        left = {path: (first[path], end) for path, end in limit.items() if first[path] < end}
        share = max(1, bytes_max // max(1, len(left)))
        return [await self._fitting(path, *left[path], share) for path in sorted(left)]

    async def _fitting(self, path: str, start: int, end: int, share: int) -> RowRange:
        """Return the first messages of a partition, of about ``share`` bytes.

        The size of messages can change at any place, and a range must fit into memory. So look at
        some messages at its start, in its middle and at its end before it is bound.
        """
        extent = await self._facts()
        size = self._sizes.get(path, self.row_bytes)
        limit = min(end, start + max(SURE_ROWS, share // size))
        if start < extent.first.get(_place(path), 0):  # The proof reports that they are expired.
            return RowRange(path=path, start=start, limit=limit)
        known = limit
        for _ in range(_LOOKS):
            rows = limit - start
            if limit == end and rows <= SURE_ROWS:
                break
            size = self._sizes[path] = await self._size_in(path, start, limit)
            fitting = max(SURE_ROWS, share // size)
            known, limit = limit, min(end, start + fitting)
            if 0.8 * rows < limit - start < 1.25 * rows:
                break
        limit = min(limit, known)
        return RowRange(path=path, start=start, limit=limit, size_bytes=(limit - start) * size)

    async def _size_in(self, path: str, start: int, limit: int) -> int:
        """Return the size of a message in a range: the greatest mean of three places in it."""
        found = 1
        for at in (start, (start + limit) // 2, limit - _SAMPLE_ROWS):
            asked = RowRange(path=path, start=at, limit=min(limit, at + _SAMPLE_ROWS))
            tables = [table async for table in self.read(asked)]
            rows = sum(table.num_rows for table in tables)
            found = max(found, sum(table.nbytes for table in tables) // max(1, rows))
        return found

    async def proof(self, found: RowRange) -> str:
        """Return the id of the topic, in which an offset always has the same message."""
        extent, place = await self._facts(), _place(found.path)
        # Another ingester may have seen more messages than these facts have.
        if extent.end.get(place, 0) < found.limit:
            extent = await self._facts(anew=True)
        topic = extent.topics.get(place[0])
        if topic is None:
            raise self._gone(place[0])
        if found.proof and found.proof != topic.id:
            raise _replaced(place[0])
        if extent.end.get(place, 0) < found.limit:
            raise SourceRewritten(
                f"{found.path!r} ends at {extent.end.get(place, 0)}, before the offset "
                f"{found.limit} that the source has read: brokers have lost messages. Drop the "
                "source and create it again"
            )
        first = extent.first.get(place, 0)
        if found.start < first:
            name = self.opening.info.name
            raise PositionCollected(
                f"the messages {found.start} to {min(first, found.limit) - 1} of {found.path!r} "
                f"are expired, before the source {name!r} has ingested them. Continue without "
                f"them: tidelog source skip {name} {found.path}"
            )
        return topic.id

    async def gone(self, start: Frontier) -> Sequence[RowRange]:
        extent, begins = await self._facts(anew=True), await self._beginnings()
        found = []
        for place, first in sorted(extent.first.items()):
            path = _path(place)
            low = start.get(path, begins.get(path, 0))
            if low < first:
                found.append(RowRange(path=path, start=low, limit=first))
        return found

    async def read(self, found: RowRange) -> AsyncIterator[pa.Table]:
        """See `SourceKind`."""
        names = [name for name in _TYPES if self.wanted is None or name in self.wanted]
        yield _rows([], found, names)
        place, clock = _place(found.path), self.opening.clock
        reader = await self._reader(place, found.start)
        await clock.offload(partial(reader.begin, place, found.start, found.limit))
        while True:
            most = max(1, min(BATCH_ROWS, BATCH_BYTES // self.row_bytes))
            batch = await clock.offload(partial(reader.next_batch, most))
            if not batch:
                break
            table = await clock.offload(partial(_rows, batch, found, names))
            self.row_bytes = max(1, table.nbytes // table.num_rows)
            yield table
        await self._check_topic(place[0], found.proof)
        # After an error, the reader is left to the garbage collector, which closes it.
        self._idle = [*self._idle[1 - IDLE_READERS :], reader]

    async def hold(self, taken: Frontier, *, make: bool) -> None:
        """Report the committed offsets to the consumer group, if the source has one."""
        offsets = {_place(path): offset for path, offset in taken.items()}
        new = {p: offset for p, offset in offsets.items() if self._committed.get(p) != offset}
        if self.group is None or not new:
            return
        reader = await self._reader(("", 0), 0)
        await self.opening.clock.offload(partial(reader.commit, new))
        self._committed |= new
        self._idle.append(reader)

    async def _weigh(self, extent: TopicExtent) -> None:
        """Learn the size of a message from the last ones of the longest partition, for the lag."""
        counts = {place: end - extent.first.get(place, 0) for place, end in extent.end.items()}
        place = max(counts, key=counts.__getitem__, default=None)
        if place is None or not counts[place]:
            return
        limit = extent.end[place]
        start = max(extent.first.get(place, 0), limit - _SAMPLE_ROWS)
        async for _ in self.read(RowRange(path=_path(place), start=start, limit=limit)):
            pass

    async def _reader(self, place: Place, start: int) -> PartitionReader:
        """Return a reader that no other read uses; one that is at the place, if there is one."""
        there = [one for one in self._idle if one.at == (place, start)] or self._idle[-1:]
        if there:
            self._idle.remove(there[0])
            return there[0]
        config = await self._config()
        return await self.opening.clock.offload(partial(PartitionReader, config))

    async def _facts(self, *, anew: bool = False) -> TopicExtent:
        now_us = self.opening.clock.now_us()
        if anew or self._extent is None or now_us - self._extent.read_us > FRESH_US:
            config = await self._config()
            extent = await self.opening.clock.offload(lambda: self._ask(config, now_us))
            self._compare(extent.topics)
            self._extent = extent
        return self._extent

    def _compare(self, topics: Mapping[str, TopicFacts]) -> None:
        """Check that the topics that this process has seen before are still there."""
        for name, found in topics.items():
            if self._ids.setdefault(name, found.id) != found.id:
                raise _replaced(name)
        for name in self._ids.keys() - topics.keys():
            if name in self.topics:
                raise self._gone(name)

    def _gone(self, topic: str) -> GoneError:
        """Return the error of a deleted topic; one of a pattern does not stop the others."""
        if topic in self.topics:
            return GoneError(
                f"the topic {topic!r} no longer exists. To ingest other topics, drop the source "
                "and create it again"
            )
        name = self.opening.info.name
        return PositionCollected(
            f"the topic {topic!r} was deleted before the source {name!r} had ingested it. Continue "
            f"without it: tidelog source skip {name} {topic}/0, and so on for each partition"
        )

    async def _check_topic(self, name: str, proof: str) -> None:
        """Check, after a read, that the messages were those of the topic with this id."""
        if not proof:
            return
        brokers = self._brokers = self._brokers or Brokers(await self._config())
        topics = await self.opening.clock.offload(lambda: brokers.describe([name]))
        if name not in topics:
            raise self._gone(name)
        if topics[name].id != proof:
            raise _replaced(name)

    def _ask(self, config: Mapping[str, str | int | bool], now_us: int) -> TopicExtent:
        brokers = self._brokers = self._brokers or Brokers(config)
        try:
            topics = brokers.describe(self._named(brokers))
            places = [(name, one) for name, topic in topics.items() for one in topic.partitions]
            first = brokers.offsets(places, "first")
            return TopicExtent(now_us, topics, first, brokers.offsets(places, "end"))
        except LocationError:
            self._brokers = None  # A new client reads the secrets again.
            raise

    def _named(self, brokers: Brokers) -> list[str]:
        plain = [name for name in self.topics if isinstance(name, str)]
        patterns = [one for one in self.topics if isinstance(one, re.Pattern)]
        if not patterns:
            return plain
        matched = [n for n in brokers.names() if any(one.search(n) for one in patterns)]
        return [*plain, *(name for name in matched if name not in plain)]

    async def _beginnings(self) -> Mapping[str, int]:
        """Return the first offset of each partition that the source reads; 0 if it has none."""
        if self._begins is None:
            extent = await self._facts(anew=True)
            missing = [t for t in self.topics if isinstance(t, str) and t not in extent.topics]
            if missing or not extent.topics:
                name = missing[0] if missing else ", ".join(map(_text, self.topics))
                raise GoneError(
                    f"no topic {name!r} at {self.opening.text('servers')}: create it first, or "
                    "correct settings['topic']"
                )
            found = await self._resolved(extent)
            self._begins = {_path(place): offset for place, offset in found.items()}
        return self._begins

    async def _resolved(self, extent: TopicExtent) -> Mapping[Place, int]:
        if self.begin in (OLDEST, NEXT):
            return extent.first if self.begin == OLDEST else extent.end
        now_us = self.opening.clock.now_us()
        time = parse_time(self.begin, what="settings['from']=", now_us=now_us)
        brokers = self._brokers
        if brokers is None:
            return {}
        found = await self.opening.clock.offload(lambda: brokers.offsets(extent.end, time))
        # After the newest message, Kafka answers -1.
        return {place: at if at >= 0 else extent.end[place] for place, at in found.items()}

    async def _config(self) -> Mapping[str, str | int | bool]:
        opening = self.opening
        given: dict[str, str | int | bool] = {}
        for name in _OF_CLIENT.keys() & opening.settings.keys():
            value = opening.secret(name) if name in self.secrets else opening.settings[name]
            given[name] = value or ""
        if self.group is not None:
            given["group.id"] = self.group
        return client_config(opening.text("servers"), given)


def _topics_of(text: str) -> tuple[str | re.Pattern[str], ...]:
    """Return the topics of a setting.

    Raises:
        UsageError: the setting names no topic, or has a wrong pattern.
    """
    found: list[str | re.Pattern[str]] = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(re.compile(one) if one.startswith("^") else one)
        except re.error as error:
            raise UsageError(
                f"settings['topic']={quoted(one)} is not a pattern: {error}; a pattern has no comma"
            ) from error
    if not found:
        raise UsageError("settings['topic'] names no topic")
    return tuple(found)


def _text(topic: str | re.Pattern[str]) -> str:
    return topic if isinstance(topic, str) else topic.pattern


def _decoded(begin: str) -> Mapping[str, int] | None:
    """Return the offsets at which a stored source begins; None before its creation."""
    return msgspec.json.decode(begin, type=dict[str, int]) if begin.startswith("{") else None


def _replaced(topic: str) -> SourceRewritten:
    return SourceRewritten(
        f"the topic {topic!r} was deleted and created again, so its messages are not those that "
        "the source has read. Drop the source and create it again"
    )


def _path(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def _place(path: str) -> Place:
    topic, _, partition = path.rpartition("/")
    return topic, int(partition)


def _rows(batch: Sequence[Message], found: RowRange, names: Sequence[str]) -> pa.Table:
    """Return messages as rows, with the columns of these names and the addresses."""
    topic, partition = _place(found.path)
    offsets = pa.array([message.offset() for message in batch], pa.int64())
    columns: dict[str, Any] = {}
    for name in names:
        dtype = _TYPES[name]
        if name == "offset":
            columns[name] = offsets
        elif name in ("topic", "partition"):
            value = topic if name == "topic" else partition
            columns[name] = pa.array([value] * len(batch), dtype)
        else:
            columns[name] = pa.array(_values(batch, name), dtype)
    return pa.table({**columns, ADDRESS: offsets})


def _values(batch: Sequence[Message], name: str) -> list[Any]:
    if name == "key":
        return [message.key() for message in batch]
    if name == "value":
        return [message.value() for message in batch]
    if name == "timestamp":
        return [at if kind else None for kind, at in (one.timestamp() for one in batch)]
    return [_headers(message) for message in batch]


def _headers(message: Message) -> list[dict[str, Any]] | None:
    try:
        found = message.headers()
    except (SystemError, UnicodeDecodeError):  # The client cannot return keys that are not text.
        return [{"key": None, "value": None}]
    pairs = found.items() if isinstance(found, dict) else found
    return None if pairs is None else [{"key": key, "value": value} for key, value in pairs]
