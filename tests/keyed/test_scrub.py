"""Scrubbing: the scrubber reads all stored objects of a keyed log and reports the damaged ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kit.keyed_engine import keyed_logs, opened_log
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.states.state import KeyedDiff
from tidelog.keyed.values import Retention
from tidelog.machine.language import Decision
from tidelog.store.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def logs(store: MemoryStore) -> KeyedLogs:
    return keyed_logs(store)


@pytest.fixture
async def log(logs: KeyedLogs) -> KeyedLog:
    """Return a log with two segments, a checkpoint of retired records, and loose records."""
    log = await opened_log(logs)
    await log.append([(b"k%d" % n, b"v" * 100) for n in range(50)])
    await log.create_checkpoint("kept")
    await log.seal()
    await log.append([(b"k%d" % n, b"w" * 100) for n in range(30)])
    await log.compact(full=True)
    await log.retire(Retention(segments=1))
    await log.append([(b"loose", b"x")])
    return log


async def test_a_log_that_is_whole_is_clean(log: KeyedLog) -> None:
    """The scrubber also reads checkpoints, and counts each record once per stored copy."""
    found = await log.scrub()

    assert found.is_clean, found.problems
    assert (found.runs, found.records, found.keys) == (2, 80, 80)
    assert found.wal_records == 81
    assert found.bytes > 0


@pytest.mark.parametrize("kind", ["records", "directory", "wal"])
@pytest.mark.parametrize("damage", ["flipped", "gone", "cut"])
async def test_what_is_damaged_is_named(
    store: MemoryStore, logs: KeyedLogs, log: KeyedLog, kind: str, damage: str
) -> None:
    """The scrubber names the object, for each kind of damage, without an earlier read."""
    await log.close()
    key = next(key for key in sorted(store.objects) if _kind(key) == kind)
    data = (await store.get(key)).data
    if damage == "gone":
        await store.delete([key])
    else:
        middle = len(data) // 3
        bad = bytes([data[middle] ^ 0x40])
        changed = data[:middle] + (b"" if damage == "cut" else bad + data[middle + 1 :])
        await store.put(key, changed)

    found = await (await logs.open("log")).scrub()
    assert not found.is_clean
    assert any(key.rpartition("/")[2].partition(".")[0] in one for one in found.problems)


def _kind(key: str) -> str:
    if key.endswith(".keys.parquet"):
        return "directory"
    if "/run/" in key:
        return "records"
    return "wal" if "/epoch/" in key and key.endswith(".parquet") else "other"


async def test_a_window_that_no_run_has_is_told(log: KeyedLog) -> None:
    """The scrubber reports sequences without a run, a state that the test itself commits."""
    run = log.state_handle.state.runs[-1]
    later = replace(run, id="later", lower=run.upper + 5, upper=run.upper + 9, parts=())
    await log.state_handle.machine.commit(
        lambda _: Decision(True, KeyedDiff(added=(later,), compacted=later.upper))
    )

    found = await log.scrub()
    assert any("no run has the sequences" in one for one in found.problems)
