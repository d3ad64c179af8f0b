"""A keyed log over HTTP gives the same answers to the same calls as one in memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kit.clocks import StuckClock
from kit.keyed_history import KeyedHistory
from kit.keyed_model import MemoryKeyed, MemoryLake, table_of
from kit.portal_model import BlockingModel
from kit.served import NAME, RunningServer, served
from tidelog.errors import SequenceRetired, TidelogError
from tidelog.http.client import HttpKeyedLog
from tidelog.keyed.values import DURABLE, Keys, Retention
from tidelog.location import open_location

KEYS = [b"", b"a", b"a\x00", b"ab", b"b", b"\xff", b"\xff\xff", bytes(range(256)), b"k" * 16_384]
STEPS = 60
CLOCK = StuckClock()  # Makes both give the same times.


@pytest.fixture(scope="module", params=["model", "engine"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """A server over the model, and one over the engine."""

    async def opening() -> Any:
        if request.param == "model":
            return MemoryLake(CLOCK)
        folder = tmp_path_factory.mktemp("lake")
        return await open_location(str(folder), create=True, clock=CLOCK)

    with served(opening) as found:
        yield found


class Pair:
    """The same log twice: behind a server, and in memory."""

    def __init__(self, server: RunningServer, name: str, chance: random.Random) -> None:
        self.server, self.chance = server, chance
        server.run(lambda: server.place.keyed.create(name))
        self.history = KeyedHistory()
        self.here = BlockingModel(MemoryKeyed(name, self.history, CLOCK, DURABLE))
        self.http = HttpKeyedLog(server.url, name)
        self.http.next_sequence()
        self.there = server.place.handles[name]

    def check(self, verb: str, *given: Any, **options: Any) -> None:
        """Call a method of both; their results must be equal, errors included."""
        found = [outcome(getattr(log, verb), *given, **options) for log in (self.http, self.here)]
        assert found[0] == found[1], (verb, given, options)

    def key(self) -> bytes:
        return self.chance.choice(KEYS)

    def span(self) -> tuple[int, int | None]:
        upper = self.here.next_sequence() + 3
        start = self.chance.choice([0, 0, self.chance.randrange(upper)])
        limit = self.chance.choice([None, self.chance.randrange(upper)])
        return start, limit

    def step(self) -> None:
        """Run one random client call or maintenance operation."""
        verb = self.chance.choice(
            ["append"] * 4 + ["scan", "scan_prefix", "scan_range", "count", "keys", "segments",
             "poll", "count_approximate", "maintenance"]
        )  # fmt: skip
        getattr(self, f"_{verb}")()

    def _append(self) -> None:
        count = self.chance.choice([1, 1, 3, 20])
        records = [
            (self.key(), self.chance.randbytes(self.chance.randrange(5))) for _ in range(count)
        ]
        durable = self.chance.random() < 0.7
        time = self.chance.choice([None, self.chance.randrange(2**40)])
        verb = self.chance.choice(["append", "try_append"])
        self.check(verb, records, durable=durable, timestamp_us=time)
        if not durable:  # Only the engine decides when it becomes durable.
            self.maintenance("flush")

    def _options(self) -> dict[str, Any]:
        return {
            "rows": self.chance.choice([None, 1, 2, 7]),
            "newest_first": self.chance.random() < 0.3,
        }

    def _scan(self) -> None:
        self.check("scan", self.key(), *self.span(), **self._options())

    def _scan_prefix(self) -> None:
        self.check("scan", Keys.prefix(self.key()[:2]), *self.span(), **self._options())

    def _scan_range(self) -> None:
        first, last = self.key(), self.chance.choice([None, self.key()])
        if last is not None and last < first:
            first, last = last, first
        self.check("scan", Keys.between(first, last), *self.span(), **self._options())

    def _count(self) -> None:
        self.check("count", self.key(), *self.span())

    def _count_approximate(self) -> None:
        asked = (self.key(), *self.span())
        exact, about = (
            outcome(self.here.count, *asked),
            outcome(self.http.count_approximate, *asked),
        )
        if isinstance(exact, tuple):
            assert about == exact
        else:
            assert about.least <= exact <= about.most
            assert about.least <= about.value <= about.most

    def _keys(self) -> None:
        after = self.chance.choice([None, self.key()])
        first = self.chance.randrange(4)
        segments = self.chance.choice([None, (first, None), (first, first + 1), (0, first)])
        self.check("keys", self.key()[:1], after=after, segments=segments)

    def _segments(self) -> None:
        span = self.span()
        here, there = (outcome(log.segments, *span) for log in (self.here, self.http))
        if isinstance(here, tuple):
            assert here == there
            return
        # The engine decides which records are in runs.
        assert [(s.id, s.start, s.limit) for s in here] == [(s.id, s.start, s.limit) for s in there]

    def _poll(self) -> None:
        start = self.chance.randrange(self.here.next_sequence() + 2)
        key, prefix = self.key(), self.key()[:1]
        is_one = self.chance.random() < 0.5
        which = Keys.one(key) if is_one else Keys.prefix(prefix)
        self.check_poll(start, lambda one: one == key if is_one else one.startswith(prefix), which)

    def check_poll(self, start: int, wanted: Callable[[bytes], bool], which: Keys) -> None:
        """Poll; every wanted record before the returned sequence must be in the answer."""
        history, upper = self.history, self.history.durable
        if 0 < start < history.oldest:
            with pytest.raises(SequenceRetired):
                self.http.poll(which, start=start, wait_us=1_000)
            return
        rows = self.chance.choice([1, 3, 1_000])
        table, at = self.http.poll(which, start=start, rows=rows, wait_us=1_000)
        there = table_of(history.records(start, upper, wanted))
        given = [tuple(row.values()) for row in table.to_pylist()]

        assert given == there[: len(given)]
        assert len(given) <= rows
        assert bool(given) == bool(there)
        assert start <= at <= max(start, upper)
        assert not any(start <= one[1] < at for one in there[len(given) :])
        assert not given or at > given[-1][1]

    def _maintenance(self) -> None:
        deed = self.chance.choice(["seal", "compact", "retire", "flush"])
        self.maintenance(deed, **({"retention": Retention(segments=2)} if deed == "retire" else {}))

    def maintenance(self, deed: str, **given: Any) -> None:
        """Run a maintenance operation next to the server, on both logs."""

        async def there() -> None:
            await getattr(self.there, deed)(**given)

        self.server.run(there)
        getattr(self.here, deed)(**given)


def outcome(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Return the comparable result of a call, or the class and outcome of its error."""
    try:
        found = call(*given, **options)
        if hasattr(found, "to_arrow"):
            return found.to_arrow().to_pylist(), found.next_sequence
        if isinstance(found, Iterator):
            return [row for table in found for row in table.to_pylist()]
        if isinstance(found, tuple):
            return found[0].to_pylist(), found[1]
    except TidelogError as error:
        return type(error), error.outcome
    return found


@pytest.mark.parametrize("seed", range(12))
def test_http_is_the_log_itself(server: RunningServer, seed: int) -> None:
    """Random calls in random order give the same results over HTTP and in memory."""
    pair = Pair(server, f"seed{seed}", random.Random(seed))
    with pair.http:
        for _ in range(STEPS):
            pair.step()


def test_pages_are_put_together(server: RunningServer) -> None:
    """A page has a limited number of rows; a scan and a listing return all."""
    server.run(lambda: server.place.keyed.create("pages"))
    with HttpKeyedLog(server.url, "pages") as log:
        log.append([(b"k%d" % (n % 7), b"%d" % n) for n in range(40)])
        numbers = list(range(1, 41))

        for page_rows in (1, 3, 1_000):
            every = log.scan(Keys.all(), page_rows=page_rows)
            assert every.to_arrow()["sequence"].to_pylist() == numbers
            assert every.next_sequence == 41
            back = log.scan(Keys.all(), newest_first=True, page_rows=page_rows)
            assert back.to_arrow()["sequence"].to_pylist() == numbers[::-1]
            some = log.scan(b"k3", rows=4, page_rows=page_rows).to_arrow()
            assert some["value"].to_pylist() == [b"3", b"10", b"17", b"24"]
            keys = [k for table in log.keys(page_rows=page_rows) for k in table["key"].to_pylist()]
            assert keys == [b"k%d" % n for n in range(7)]


def test_a_name_is_escaped(server: RunningServer) -> None:
    """A log name with any characters stays within its path segment."""
    with HttpKeyedLog(server.url) as log:
        following = log.next_sequence()
        for name in (f"{NAME}/append?x", f"{NAME}/append#y", f"../keyed/{NAME}/append?x#y"):
            with HttpKeyedLog(server.url, name) as other, pytest.raises(TidelogError) as found:
                other.append([(b"a", b"1")])
            assert found.value.kind == "http", "no route has such a path"
        assert log.next_sequence() == following
