"""The client of Kafka: requests for topics and offsets, and readers of partitions. All block.

Each call ends: with a result, or with an error after about `WAIT_S` without an answer.
Source: the documentation of librdkafka and confluent-kafka; KIP-98 (transactions), KIP-516 (ids).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillWaiting
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tidelog.errors import GoneError, LocationError, PositionCollected, StoreRefused, UsageError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message
    from confluent_kafka.admin import AdminClient

T = TypeVar("T")
Place = tuple[str, int]  # A topic, and the number of a partition.
Config = Mapping[str, str | int | bool]

WAIT_S: Final = 30.0
_STEP_S: Final = 0.05
_WAIT_MS: Final = 5
_CALL_S: Final = 10.0
_ASKS: Final = 10
_PAUSE_S: Final = 0.3
_NO_GROUP: Final = "tidelog"  # A consumer must name a group; it never joins this one.


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The identity of a topic, which a new topic of the same name lacks, and its partitions."""

    id: str
    partitions: tuple[int, ...]


@dataclass(slots=True)
class Troubles:
    """The errors that librdkafka reported beside its answers, such as refused connections."""

    servers: str
    newest: KafkaError | None = None

    def add(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError as Codes

        known = self.newest
        # That all brokers are down follows from the error before, which says more.
        if known is None or error.code() != Codes._ALL_BROKERS_DOWN:
            self.newest = error

    @property
    def is_refusal(self) -> bool:
        """Return True if the brokers refuse the credentials, so waiting does not help."""
        from confluent_kafka import KafkaError as Codes

        refusals = (Codes._AUTHENTICATION, Codes.SASL_AUTHENTICATION_FAILED, Codes._SSL)
        return self.newest is not None and self.newest.code() in refusals

    def error(self, what: str, own: KafkaError | None = None) -> LocationError:
        """Return the error of a request that failed, or that was not answered."""
        found = self.newest if own is None or own.code() in _unanswered() else own
        found = own if found is None else found
        why = f": {_text(found)}" if found is not None else ""
        if self.is_refusal or (found is not None and found.code() in _refused()):
            return StoreRefused(f"the brokers at {self.servers} refused {what}{why}")
        return LocationError(f"the brokers at {self.servers} did not answer {what}{why}")


def _text(error: KafkaError) -> str:
    return " ".join(str(error.str()).split())


def _unanswered() -> tuple[int, ...]:
    from confluent_kafka import KafkaError as Codes

    return (Codes._TIMED_OUT, Codes._TRANSPORT, Codes._ALL_BROKERS_DOWN, Codes.REQUEST_TIMED_OUT)


def _refused() -> tuple[int, ...]:
    from confluent_kafka import KafkaError as Codes

    return (
        Codes.TOPIC_AUTHORIZATION_FAILED,
        Codes.GROUP_AUTHORIZATION_FAILED,
        Codes.CLUSTER_AUTHORIZATION_FAILED,
        Codes._AUTHENTICATION,
        Codes.SASL_AUTHENTICATION_FAILED,
    )


def _is_moving(error: LocationError) -> bool:
    """Return True if a partition is new, or changes its leader: both take a moment."""
    from confluent_kafka import KafkaError as Codes
    from confluent_kafka import KafkaException

    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() in (
        Codes.NOT_LEADER_FOR_PARTITION,
        Codes.LEADER_NOT_AVAILABLE,
        Codes.UNKNOWN_TOPIC_OR_PART,
        Codes.FENCED_LEADER_EPOCH,
        Codes.UNKNOWN_LEADER_EPOCH,
    )


def client_config(servers: str, given: Config) -> dict[str, str | int | bool]:
    """Return the settings of every client of a source."""
    return {
        "bootstrap.servers": servers,
        "client.id": "tidelog",
        "socket.timeout.ms": int(_CALL_S * 1000),
        "log_level": 0,  # Errors reach `Troubles`; the log would go to the standard error.
        **given,
    }


def _made(kind: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
    """Return a client.

    Raises:
        UsageError: librdkafka does not accept a setting.
    """
    from confluent_kafka import KafkaException

    try:
        return kind(config)
    except (KafkaException, ValueError, TypeError) as error:
        raise UsageError(f"the client of Kafka cannot be made with these settings: {error}") from (
            error
        )


def check_installed() -> None:
    """Check that confluent-kafka is installed.

    Raises:
        UsageError: it is not.
    """
    if find_spec("confluent_kafka") is None:
        raise UsageError("sources of Kafka need confluent-kafka: pip install 'tidelog[kafka]'")


class Brokers:
    """Requests for topics and offsets; safe for several threads."""

    def __init__(self, config: Config) -> None:
        from confluent_kafka.admin import AdminClient

        self.troubles = Troubles(str(config["bootstrap.servers"]))
        made = {**config, "error_cb": self.troubles.add}
        self.admin: AdminClient = _made(AdminClient, made)

    def names(self) -> list[str]:
        """Return the names of all topics of the cluster, without those of Kafka itself.

        Raises:
            LocationError: the brokers did not answer, or refused.
        """
        from confluent_kafka import KafkaException

        try:
            found = self.admin.list_topics(timeout=_CALL_S)
        except KafkaException as error:
            raise self.troubles.error("a request for the topics", error.args[0]) from error
        return sorted(name for name in found.topics if not name.startswith("__"))

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Return the topics of these names that exist.

        Raises:
            LocationError: the brokers did not answer, or refused.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        wanted = list(names)
        if not wanted:
            return {}
        asked = self.admin.describe_topics(TopicCollection(wanted), request_timeout=_CALL_S)
        found: dict[str, TopicFacts] = {}
        for name, future in asked.items():
            try:
                topic = self._answer(future, f"a request for the topic {name!r}")
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue
                raise self.troubles.error(
                    f"a request for the topic {name!r}", error.args[0]
                ) from error
            partitions = sorted(int(one.id) for one in topic.partitions)
            found[name] = TopicFacts(str(topic.topic_id), tuple(partitions))
        return found

    def _offsets_now(self, places: Iterable[Place], at: int | str) -> dict[Place, int]:
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka import admin as requests

        specs: Any = requests.OffsetSpec  # type: ignore[attr-defined] # It lacks a declaration.
        named = {"first": specs.earliest, "end": specs.latest}
        spec = named[at]() if isinstance(at, str) else specs.for_timestamp(at)
        wanted = {TopicPartition(*place): spec for place in places}
        if not wanted:
            return {}
        asked = self.admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_CALL_S
        )
        found = {}
        for place, future in asked.items():
            what = f"a request for offsets of {place.topic}/{place.partition}"
            try:
                found[place.topic, place.partition] = int(self._answer(future, what).offset)
            except KafkaException as error:
                raise self.troubles.error(what, error.args[0]) from error
        return found

    def offsets(self, places: Iterable[Place], at: int | str) -> dict[Place, int]:
        """Return the first offset, the end, or the first offset at or after a time, of partitions.

        The end is that for readers of committed transactions. The request is repeated while
        partitions change their leaders.
        Units: ``at`` is "first", "end", or a time in milliseconds.

        Raises:
            LocationError: the brokers did not answer, or refused, or have no leader for long.
        """
        wanted = list(places)
        for _ in range(_ASKS - 1):
            try:
                return self._offsets_now(wanted, at)
            except LocationError as error:
                if not _is_moving(error):
                    raise
                self.admin.poll(_PAUSE_S)
        return self._offsets_now(wanted, at)

    def _answer(self, future: Future[T], what: str) -> T:
        """Return the result of a request; stop waiting if the brokers refuse the credentials."""
        waited = 0.0
        while waited < WAIT_S:
            self.admin.poll(0)  # It reports troubles.
            if self.troubles.is_refusal and not future.done():
                break
            try:
                return future.result(timeout=_STEP_S)
            except StillWaiting:
                waited += _STEP_S
        raise self.troubles.error(what)


@dataclass(slots=True)
class PartitionReader:
    """A consumer that reads ranges of offsets, of committed transactions only.

    It is assigned to a partition only within a range, so an idle reader asks for nothing. The
    messages that it has read beyond the last range, which ended ``at`` a place, are in ``ahead``.
    """

    config: Config
    troubles: Troubles = field(init=False)
    at: tuple[Place, int] | None = None
    ahead: list[Message] = field(default_factory=list)
    _consumer: Consumer = field(init=False)
    _place: Place = ("", 0)
    _next: int = 0
    _limit: int = 0
    _is_done: bool = False
    _is_assigned: bool = False

    def __post_init__(self) -> None:
        from confluent_kafka import Consumer

        self.troubles = Troubles(str(self.config["bootstrap.servers"]))
        made = {
            "group.id": _NO_GROUP,
            **self.config,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 32_768,
            # A request for new messages waits so long, and delays the one for another partition.
            "fetch.wait.max.ms": _WAIT_MS,
            "fetch.queue.backoff.ms": int(_STEP_S * 1000),
            "error_cb": self.troubles.add,
        }
        self._consumer = _made(Consumer, made)

    def begin(self, place: Place, start: int, limit: int) -> None:
        """Begin to read the offsets ``[start, limit)`` of a partition."""
        if self.at != (place, start):
            self.ahead = []
        self.at, self._place, self._next, self._limit = None, place, start, limit
        self._is_done = start >= limit

    def next_batch(self, most: int) -> list[Message]:
        """Return the next messages of the range, at most so many; none at its end.

        Raises:
            PositionCollected: the messages are expired.
            GoneError: the topic no longer exists.
            LocationError: the brokers did not answer, or refused.
        """
        waited = 0.0
        while not self._is_done:
            batch, self.ahead = self.ahead, []
            found = self._within(batch or self._consume(most))
            if found:
                return found
            # An answer without messages of the range also takes time, at most a step.
            waited += _STEP_S
            if waited > WAIT_S or (waited > 1 and self.troubles.is_refusal):
                raise self.troubles.error(f"a read of {self._place[0]}/{self._place[1]}")
        if self._is_assigned:
            self._consumer.unassign()
        self.at, self._is_assigned = (self._place, self._limit), False
        return []

    def _consume(self, most: int) -> list[Message]:
        from confluent_kafka import TopicPartition

        # To pause and resume a consumer instead would race with assignments: it may then get no
        # messages at all.
        if not self._is_assigned:
            self._consumer.assign([TopicPartition(*self._place, self._next)])
            self._is_assigned = True
        # A consumer waits for all that are asked for, so ask for no more than there can be.
        left = max(1, self._limit - self._next)
        return self._consumer.consume(min(most, left), timeout=_STEP_S)

    def _within(self, batch: list[Message]) -> list[Message]:
        """Return the messages of a batch that are before the limit, and keep the others."""
        from confluent_kafka import KafkaError

        found: list[Message] = []
        for index, message in enumerate(batch):
            error = message.error()
            if error is None and _offset(message) < self._limit:
                found.append(message)
            elif error is None:
                self.ahead, self._is_done = batch[index:], True
                break
            elif error.code() == KafkaError._PARTITION_EOF:
                self._is_done = self._is_done or _offset(message) >= self._limit
            else:
                raise self._error(error)
        if found:
            self._next = _offset(found[-1]) + 1
            self._is_done = self._is_done or self._next >= self._limit
        return found

    def _error(self, error: KafkaError) -> Exception:
        from confluent_kafka import KafkaError as Codes

        where = f"{self._place[0]}/{self._place[1]}"
        if error.code() in (Codes._AUTO_OFFSET_RESET, Codes.OFFSET_OUT_OF_RANGE):
            return PositionCollected(f"messages of {where} are no longer there: {_text(error)}")
        if error.code() in (
            Codes.UNKNOWN_TOPIC_OR_PART,
            Codes._UNKNOWN_TOPIC,
            Codes._UNKNOWN_PARTITION,
        ):
            return GoneError(f"the topic partition {where} no longer exists")
        return self.troubles.error(f"a read of {where}", error)

    def commit(self, offsets: Mapping[Place, int]) -> None:
        """Commit offsets to the consumer group of the settings.

        Raises:
            LocationError: the brokers did not answer, or refused.
        """
        from confluent_kafka import KafkaException, TopicPartition

        places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        try:
            self._consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            raise self.troubles.error("a commit of offsets", error.args[0]) from error


def _offset(message: Message) -> int:
    found = message.offset()
    return -1 if found is None else found
