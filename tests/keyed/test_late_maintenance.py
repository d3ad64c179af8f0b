"""Overtaken maintenance: other processes seal, retire, drop or collect concurrently."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from kit.keyed_engine import FAST, keyed_logs, rows_of
from tidelog.errors import ContentionError
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.maintenance import compactor
from tidelog.keyed.maintenance.plan import LOOSE_MAX
from tidelog.keyed.states.transition import decide_seal
from tidelog.keyed.values import Keys, Retention
from tidelog.machine.machine import Machine

ONE = Retention(segments=1)


async def _two() -> tuple[KeyedLog, KeyedLog]:
    """Return two handles of a log with five records, as two processes have them."""
    logs = keyed_logs()
    await logs.create("log")
    log = await _handle(logs)
    for number in range(5):
        await log.append([(b"k", b"%d" % number)])
    return log, await _handle(logs)


async def _handle(logs: KeyedLogs) -> KeyedLog:
    return await logs.open("log", batching=FAST, maintenance=False)


def _after_commit(
    monkeypatch: pytest.MonkeyPatch, log: KeyedLog, work: Callable[[], Awaitable[object]]
) -> None:
    """Run ``work`` once, between the handle's next commit and its read of the result."""
    real = Machine.commit

    async def commit(self: Machine[Any, Any], decide: Any) -> Any:
        found = await real(self, decide)
        if self is log.state_handle.machine and found:
            monkeypatch.undo()
            await work()
            await log.refresh()
        return found

    monkeypatch.setattr(Machine, "commit", commit)


async def test_a_segment_that_is_retired_as_soon_as_it_is_sealed_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The seal returns the segment that it made, although another process has retired it."""
    log, other = await _two()

    async def retire() -> None:
        await log.append([(b"k", b"5")])
        await other.seal()
        await other.compact(full=True)
        assert await other.retire(ONE) == 2

    _after_commit(monkeypatch, log, retire)
    sealed = await log.seal()
    assert sealed is not None
    assert (sealed.id, sealed.start, sealed.limit, sealed.is_compacted) == (0, 1, 6, False)
    assert (await log.describe()).oldest == 7
    await log.close()


async def test_a_checkpoint_that_is_dropped_as_soon_as_it_is_made_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call returns the checkpoint that it made, although another process has dropped it."""
    log, other = await _two()
    await log.compact(full=True)
    _after_commit(monkeypatch, log, lambda: other.drop_checkpoint("c"))
    made = await log.create_checkpoint("c")
    assert (made.name, made.oldest, made.next_sequence) == ("c", 1, 6)
    assert await log.checkpoints() == []
    await log.close()


def _slow(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[object]], times: int
) -> list[int]:
    """Run ``work`` after at most ``times`` of the compactor's parts; return the calls."""
    real, done = compactor.__dict__["_store"], list[int]()

    async def store(*given: Any) -> Any:
        part = await real(*given)
        if len(done) < times:
            done.append(len(done))
            await work()
        return part

    monkeypatch.setattr(compactor, "_store", store)
    return done


async def test_whoever_compacts_slowly_is_not_thrown_back_by_each_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Frequent collections by other processes must not delete the parts of a slow compaction."""
    log, other = await _two()

    async def collect() -> None:
        for _ in range(5):
            await other.collect()

    done = _slow(monkeypatch, collect, 100)
    assert await log.compact(full=True) == 1
    assert len(done) == 1
    assert (await log.describe()).compacted == 6
    await log.close()


async def test_collections_delete_unnamed_parts_of_slow_compactors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compactor slower than the delay of collections retries, and finally raises."""
    log, other = await _two()

    async def collect() -> None:
        for _ in range(3):
            await other.collect(after_us=0)

    done = _slow(monkeypatch, collect, 2)
    assert await log.compact(full=True) == 1
    assert len(done) == 2
    assert (await other.scrub()).is_clean
    await log.append([(b"k", b"5")])
    monkeypatch.undo()
    monkeypatch.setattr(compactor, "TRIES", 3)
    done = _slow(monkeypatch, collect, 1_000)
    with pytest.raises(ContentionError, match=r"gave up after 3 tries: .* compact again"):
        await log.compact(full=True)
    assert len(done) == 3
    assert [row[-1] for row in await rows_of(log.scan(b"k"))] == [b"%d" % n for n in range(6)]
    await log.close()


async def test_what_was_sealed_while_it_was_compacted_is_compacted_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run across the end of a segment is written again as two runs."""
    log, other = await _two()

    async def seal() -> None:
        # The sealer had seen only three records.
        assert await other.state_handle.machine.commit(partial(decide_seal, limit=4, at_us=1))

    done = _slow(monkeypatch, seal, 1)
    assert await log.compact(full=True) == 2
    assert len(done) == 1
    assert [(run.lower, run.upper) for run in log.state_handle.state.runs] == [(1, 4), (4, 6)]
    await log.close()


async def test_short_commands_compact_too() -> None:
    """Short commands also compact, or scans would become slow."""
    logs = keyed_logs()
    await logs.create("log")
    most = 0
    for number in range(100):
        log = await logs.open("log", batching=FAST)
        await log.append([(b"k%d" % (number % 3), b"%d" % number)])
        await log.close()
        reader = await logs.reader("log")
        most = max(most, (await reader.describe()).loose_fragments)
    log = await _handle(logs)
    found = await rows_of(log.scan(Keys.all()))
    assert sorted(int(row[-1]) for row in found) == [*range(100)]
    assert most <= LOOSE_MAX + LOOSE_MAX // 2
    await log.close()


async def test_a_handle_without_maintenance_never_compacts() -> None:
    """With `maintenance=False`, a handle never compacts, so that a process can end quickly."""
    logs = keyed_logs()
    await logs.create("log")
    for number in range(40):
        log = await logs.open("log", batching=FAST, maintenance=False)
        await log.append([(b"k", b"%d" % number)])
        await log.close()
    assert (await (await logs.reader("log")).describe()).loose_fragments == 40
