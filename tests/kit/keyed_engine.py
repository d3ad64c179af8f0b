"""Keyed logs of the engine in memory, and random steps on them and on the oracle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import pyarrow as pa

from kit.keyed_history import KeyedHistory
from tidelog.consensus.memory import MemoryConsensus
from tidelog.core.clock import SystemClock
from tidelog.errors import Fenced, NameTaken
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.maintenance import compactor, merge, plan
from tidelog.keyed.port import KeyedReads, KeyedScan
from tidelog.keyed.read import scanning, sources
from tidelog.keyed.values import Keys, Retention, prefix_limit
from tidelog.store.memory import MemoryStore
from tidelog.store.port import Store
from tidelog.wal.append.batching import Batching

KEYS = (b"", b"a", b"a\x00", b"ab", b"b", b"\x00", b"\xff", b"\xff\xff", b"\x01")
PREFIXES = (b"", b"a", b"\xff", b"\x00", b"zz")
FAST = Batching(interval_us=0)
STEP_NAMES = ("append",) * 8 + (
    "compact", "compact", "seal", "retire", "collect", "checkpoint", "drop_checkpoint",
    "reopen", "take_over", "fork", "read_elsewhere",
)  # fmt: skip


@contextmanager
def small_keyed() -> Iterator[None]:
    """Reduce the engine's limits, so that few records reach each of them."""
    with ExitStack() as stack:
        for module, name, value in (
            (plan, "LOOSE_MAX", 4),
            (plan, "FAN_IN", 3),
            (compactor, "PART_ROWS", 6),
            (merge, "RANGE_ROWS", 5),
            (scanning, "CHUNK_ROWS", 3),
            (sources, "ROWS_AT_ONCE", 3),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def keyed_logs(store: Store | None = None) -> KeyedLogs:
    """Return the keyed logs of a store, with consensus in memory."""
    return KeyedLogs(
        store=store or MemoryStore(),
        consensus=MemoryConsensus(),
        clock=SystemClock(),
        writer="test",
    )


async def opened_log(logs: KeyedLogs) -> KeyedLog:
    """Create a log ``log``; return a handle that does not wait for batches or maintain the log."""
    await logs.create("log")
    return await logs.open("log", batching=FAST, maintenance=False)


def waiters_of(log: KeyedLog) -> list[object]:
    """Return the followers of a handle that wait for records."""
    feed = log._feed
    return [*feed._by_range, *(waiter for held in feed._by_key.values() for waiter in held)]


async def until(holds: Callable[[], bool]) -> None:
    """Wait for the work of other tasks."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  The condition sends no event.
            await asyncio.sleep(0.001)


@dataclass
class KeyedGame:
    """Random steps on the engine and on the oracle, whose contents must always be equal."""

    logs: KeyedLogs
    dice: random.Random
    handles: dict[str, KeyedLog] = field(default_factory=dict)
    histories: dict[str, KeyedHistory] = field(default_factory=dict)
    kept: dict[tuple[str, str], KeyedHistory] = field(default_factory=dict)
    time_us: int = 1_000
    number: int = 0
    done: dict[str, int] = field(default_factory=dict)

    async def begin(self) -> None:
        self.histories["log"] = KeyedHistory()
        await self.logs.create("log")
        self.handles["log"] = await self.logs.open("log", batching=FAST)

    async def step(self) -> None:
        """Do one random step."""
        what = self.dice.choice(STEP_NAMES)
        self.done[what] = self.done.get(what, 0) + 1
        await getattr(self, f"_{what}")(self.dice.choice(sorted(self.handles)))

    async def end(self) -> None:
        for handle in self.handles.values():
            await handle.close()

    async def _append(self, name: str) -> None:
        log, history = self.handles[name], self.histories[name]
        count = self.dice.choice((1, 1, 2, 5, 12))
        records = []
        for _ in range(count):
            self.number += 1
            value = f"{name} {self.number}".encode() * self.dice.choice((0, 1, 20))
            records.append((self.dice.choice(KEYS), value))
        self.time_us += self.dice.randrange(-5, 50)
        durable = self.dice.random() < 0.6
        if self.dice.random() < 0.3:
            keys, values = zip(*records, strict=True)
            columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
            table = pa.table(columns, ["key", "value"])
            first = await log.append_arrow(table, durable=durable, timestamp_us=self.time_us)
        else:
            call = log.append if self.dice.random() < 0.7 else log.try_append
            first = await call(records, durable=durable, timestamp_us=self.time_us)
        history.place(records, self.time_us, first)
        if not durable:
            await self.check(name, log)  # These records are still in memory.
            assert await log.flush() == history.next
        history.make_durable()
        assert await log.durable_sequence() == history.next

    async def _compact(self, name: str) -> None:
        await self.handles[name].compact(full=self.dice.random() < 0.5)

    async def _seal(self, name: str) -> None:
        made = await self.handles[name].seal()
        known = self.histories[name].seal(self.time_us)
        assert (made is None) == (known is None)
        if made is not None and known is not None:
            assert (made.id, made.start, made.limit) == (known.id, known.start, known.limit)

    async def _retire(self, name: str) -> None:
        kept = Retention(segments=self.dice.choice((1, 2, 3)))
        expected = self.histories[name].retire(kept, self.time_us)
        assert await self.handles[name].retire(kept) == expected

    async def _collect(self, name: str) -> None:
        await self.handles[name].collect(after_us=0)

    async def _checkpoint(self, name: str) -> None:
        cut = f"c{self.dice.randrange(3)}"
        try:
            made = await self.handles[name].create_checkpoint(cut)
        except NameTaken:
            assert (name, cut) in self.kept
            return
        history = self.histories[name]
        assert (made.oldest, made.next_sequence) == (history.oldest, history.next)
        self.kept[name, cut] = history.fork()

    async def _drop_checkpoint(self, name: str) -> None:
        for of, cut in sorted(self.kept):
            if of == name:
                await self.handles[name].drop_checkpoint(cut)
                del self.kept[of, cut]
                return

    async def _reopen(self, name: str) -> None:
        await self.handles[name].close()
        self.handles[name] = await self.logs.open(name, batching=FAST)

    async def _take_over(self, name: str) -> None:
        """Another process writes: the previous writer can still read, and its appends fail."""
        old, history = self.handles[name], self.histories[name]
        self.handles[name] = await self.logs.open(name, batching=FAST)
        await self._append(name)
        if old._wrote:
            try:
                await old.append([(b"never", b"never")])
            except Fenced:
                pass
            else:
                raise AssertionError("two write at a time")
            await self.check(name, old)
        else:
            await self.check(name, old)
        assert history.next == await self.handles[name].next_sequence()
        await old.close()

    async def _fork(self, name: str) -> None:
        made = f"f{len(self.histories)}"
        if len(self.histories) < 4:
            self.handles[made] = await self.logs.fork(name, made)
            self.histories[made] = self.histories[name].fork()

    async def _read_elsewhere(self, name: str) -> None:
        reader = await self.logs.reader(name, refresh_us=0)
        await self.check(name, reader)
        await reader.close()
        for (of, cut), history in sorted(self.kept.items()):
            if of == name:
                reader = await self.logs.reader(name, checkpoint=cut)
                await self._check(history, reader)
                await reader.close()

    async def check(self, name: str, log: KeyedReads) -> None:
        """Check that a handle shows the contents of the oracle."""
        await self._check(self.histories[name], log)

    async def _check(self, history: KeyedHistory, log: KeyedReads) -> None:
        dice, oldest = self.dice, history.oldest
        start = dice.choice((0, 0, oldest, dice.randrange(oldest, history.next + 2)))
        limit = dice.choice((None, None, dice.randrange(start, history.next + 4)))
        end = history.next if limit is None else min(limit, history.next)
        key = dice.choice(KEYS)
        expected = [
            (one.key, one.sequence, one.timestamp_us, one.value)
            for one in history.records(start, end, lambda one: one == key)
        ]
        scan = log.scan(key, start, limit)
        assert await rows_of(scan) == expected
        assert scan.next_sequence == max(start, end)
        newest = log.scan(key, start, limit, newest_first=True)
        assert await rows_of(newest) == expected[::-1]
        assert await log.count(key, start, limit) == len(expected)
        about = await log.count_approximate(key, start, limit)
        assert about.least <= len(expected) <= about.most
        assert about.least <= about.value <= about.most
        await self._check_pages(log, key, start, limit, expected)
        await self._check_ranges(history, log, start, limit, end)
        await self._check_keys(history, log)
        when = dice.randrange(0, self.time_us + 20)
        late = [one for one in history.records(0, history.next) if one.timestamp_us >= when]
        assert await log.sequence_at(when) == (late[0].sequence if late else history.next)

    async def _check_pages(
        self, log: KeyedReads, key: bytes, start: int, limit: int | None, expected: list[Row]
    ) -> None:
        """Scan by pages from each ``next_sequence``: each record comes once."""
        rows, found, at = self.dice.choice((1, 2, 4)), [], start
        while True:
            page = log.scan(key, at, limit, rows=rows)
            got = await rows_of(page)
            found += got
            assert page.next_sequence >= at
            at = page.next_sequence
            if len(got) < rows:
                break
        assert found == expected, (found, expected)
        few = log.scan(key, start, limit, rows=rows, newest_first=True)
        assert await rows_of(few) == expected[::-1][:rows]

    async def _check_ranges(
        self, history: KeyedHistory, log: KeyedReads, start: int, limit: int | None, end: int
    ) -> None:
        first, last = sorted(self.dice.sample(KEYS, 2))
        prefix = self.dice.choice(PREFIXES)
        rows = self.dice.choice((None, 1, 3))
        newest = self.dice.random() < 0.4
        for scan, (begin, until) in (
            (
                log.scan(Keys.between(first, last), start, limit, rows=rows, newest_first=newest),
                (first, last),
            ),
            (
                log.scan(Keys.prefix(prefix), start, limit, rows=rows, newest_first=newest),
                (prefix, prefix_limit(prefix)),
            ),
        ):
            expected = [
                (one.key, one.sequence, one.timestamp_us, one.value)
                for one in history.records(
                    start,
                    end,
                    lambda one, begin=begin, until=until: (  # type: ignore[misc]
                        one >= begin and (until is None or one < until)
                    ),
                )
            ]
            found = await rows_of(scan)
            order = -1 if newest else 1
            for key in {row[0] for row in found}:
                sequences = [row[1] for row in found if row[0] == key]
                assert sequences == sorted(sequences)[::order], "a key's records are out of order"
            if rows is None:
                assert sorted(found, key=lambda row: row[1]) == expected
            else:
                assert found == expected[::order][:rows]

    async def _check_keys(self, history: KeyedHistory, log: KeyedReads) -> None:
        prefix = self.dice.choice(PREFIXES)
        after = self.dice.choice((None, *KEYS))
        found = [
            tuple(row.values())
            async for page in log.keys(prefix, after=after)
            for row in page.to_pylist()
        ]
        expected = []
        for key in sorted(history.by_key):
            ones = history.records(0, history.next, lambda one, key=key: one == key)  # type: ignore[misc]
            if ones and key.startswith(prefix) and (after is None or key > after):
                expected.append((key, len(ones), ones[0].sequence, ones[-1].sequence))
        assert found == expected, (found, expected)


Row = tuple[bytes, int, int, bytes]


async def rows_of(scan: KeyedScan) -> list[Row]:
    """Return all rows of a scan."""
    return [
        (row["key"], row["sequence"], row["timestamp_us"], row["value"])
        async for table in scan
        for row in table.to_pylist()
    ]
