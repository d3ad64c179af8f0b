"""A keyed log over HTTP does what one in memory does: the same calls, and the same answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kit.clocks import StuckClock
from kit.keyed_history import KeyedHistory
from kit.keyed_model import MemoryKeyed, MemoryLake
from kit.portal_model import Blocking
from kit.served import NAME, Remembering, Served, served
from tidelog.errors import TidelogError
from tidelog.http_client import HttpKeyed
from tidelog.keyed.values import Retention

KEYS = [b"", b"a", b"a\x00", b"ab", b"b", b"\xff", b"\xff\xff", bytes(range(256)), b"k" * 16_384]
STEPS = 60


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(Remembering(MemoryLake(StuckClock()))) as found:
        yield found


class Pair:
    """The same log twice: behind a server, and here."""

    def __init__(self, server: Served, name: str, chance: random.Random) -> None:
        self.server, self.chance = server, chance
        server.run(lambda: server.place.create_keyed(name))
        self.here = Blocking(MemoryKeyed(name, KeyedHistory(), server.place.clock))
        self.http = HttpKeyed(server.url, name)
        self.http.next_sequence()
        self.there = server.place.handles[name]

    def check(self, verb: str, *given: Any, **options: Any) -> None:
        """Call a verb of both; what comes of it must be the same, errors included."""
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
        """Do one thing that a client does, or that upkeep does beside it."""
        verb = self.chance.choice(
            ["append"] * 4 + ["scan", "scan_prefix", "scan_range", "count", "keys", "segments",
             "poll", "count_approximate", "upkeep"]
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

    def _options(self) -> dict[str, Any]:
        return {
            "rows": self.chance.choice([None, 1, 2, 7]),
            "newest_first": self.chance.random() < 0.3,
        }

    def _scan(self) -> None:
        self.check("scan", self.key(), *self.span(), **self._options())

    def _scan_prefix(self) -> None:
        self.check("scan_prefix", self.key()[:2], *self.span(), **self._options())

    def _scan_range(self) -> None:
        last = self.chance.choice([None, self.key()])
        self.check("scan_range", self.key(), last, *self.span(), **self._options())

    def _count(self) -> None:
        self.check("count", self.key(), *self.span())

    def _count_approximate(self) -> None:
        self.check("count_approximate", self.key(), *self.span())

    def _keys(self) -> None:
        after = self.chance.choice([None, self.key()])
        first = self.chance.randrange(4)
        segments = self.chance.choice([None, (first, None), (first, first + 1), (0, first)])
        self.check("keys", self.key()[:1], after=after, segments=segments)

    def _segments(self) -> None:
        self.check("segments", *self.span())

    def _poll(self) -> None:
        start = self.chance.randrange(self.here.next_sequence() + 2)
        which = self.chance.choice([{"key": self.key()}, {"prefix": self.key()[:1]}, {}])
        self.check("poll", **which, start=start, wait_us=1_000)

    def _upkeep(self) -> None:
        deed = self.chance.choice(["seal", "compact", "retire", "flush"])
        given = {"retention": Retention(segments=2)} if deed == "retire" else {}

        async def there() -> None:
            await getattr(self.there, deed)(**given)

        self.server.run(there)
        getattr(self.here, deed)(**given)


def outcome(call: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Return what a call gives, in a form that can be compared; or its error's class."""
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
def test_http_is_the_log_itself(server: Served, seed: int) -> None:
    """Whatever is called in whatever order."""
    pair = Pair(server, f"seed{seed}", random.Random(seed))
    with pair.http:
        for _ in range(STEPS):
            pair.step()


def test_pages_are_put_together(server: Served) -> None:
    """An answer has no more than so many rows; a scan, and a listing, has all."""
    server.run(lambda: server.place.create_keyed("pages"))
    with HttpKeyed(server.url, "pages") as log:
        log.append([(b"k%d" % (n % 7), b"%d" % n) for n in range(100)])
        numbers = list(range(1, 101))

        for page_rows in (1, 3, 1_000):
            every = log.scan_prefix(b"", page_rows=page_rows)
            assert every.to_arrow()["sequence"].to_pylist() == numbers
            assert every.next_sequence == 101
            back = log.scan_prefix(b"", newest_first=True, page_rows=page_rows)
            assert back.to_arrow()["sequence"].to_pylist() == numbers[::-1]
            some = log.scan(b"k3", rows=4, page_rows=page_rows).to_arrow()
            assert some["value"].to_pylist() == [b"3", b"10", b"17", b"24"]
            keys = [k for table in log.keys(page_rows=page_rows) for k in table["key"].to_pylist()]
            assert keys == [b"k%d" % n for n in range(7)]


def test_a_name_is_escaped(server: Served) -> None:
    """Whatever it has, it stays within its path."""
    with HttpKeyed(server.url, "../log/append?x#y") as log, pytest.raises(TidelogError) as found:
        log.count(b"a")
    assert found.value.kind in ("http", "gone", "usage")
    with HttpKeyed(server.url) as log:
        assert NAME not in log.logs() or log.next_sequence() >= 1
