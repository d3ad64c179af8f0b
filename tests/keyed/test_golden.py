"""Keyed logs stored by an earlier version can be read, checked and written.

tests/golden/keyed_location.zip was made by `kit.golden_keyed`. It has sealed and retired segments,
merged and unmerged runs, loose records, a checkpoint, marks of a sink, a fork, a voided and an
unfinished attempt, and a dropped log.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from kit.golden_keyed import FORK, KEYS, LOG, UNFINISHED, make
from kit.golden_location import check_stored_as_then
from tidelog.errors import NoSuchLog, UsageError
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.reader import KeyedReader
from tidelog.keyed.values import Retention, Sealing
from tidelog.location import Location, open_location

ARCHIVE = Path(__file__).resolve().parents[1] / "golden" / "keyed_location.zip"


@pytest.fixture
async def golden(tmp_path: Path) -> Location:
    with zipfile.ZipFile(ARCHIVE) as packed:
        packed.extractall(tmp_path)
    return await open_location(tmp_path)


async def values(log: KeyedLog | KeyedReader, key: bytes) -> list[bytes]:
    """Return the values of a key, without the key at the end of each."""
    found = (await log.scan(key).to_arrow()).column("value").to_pylist()
    return [(one or b"").removesuffix(key) for one in found]


async def test_a_keyed_log_of_then_is_read_now(golden: Location) -> None:
    """The records, checkpoint, settings, segments and sinks of an old log are readable."""
    log = await golden.keyed.open(LOG, maintenance=False)
    kept = await golden.keyed.reader(LOG, checkpoint="month")
    for key in KEYS:
        assert await values(log, key) == [b"2", b"3", b"4", b"5", b"7"]
        assert await values(kept, key) == [b"0", b"1", b"2", b"3", b"4"]
        assert await log.count(key) == 5
    info = await log.describe()
    assert (info.sealing, info.retention) == (
        Sealing(bytes=10**9, age_us=10**15),
        Retention(age_us=10**15, segments=9),
    )
    assert [one.id for one in await log.segments()] == [1, 2]
    assert sorted((one.name.split(".")[0], one.fork) for one in info.checkpoints) == [
        ("fork", UNFINISHED),
        ("fork", FORK),
        ("month", ""),
    ]
    assert {name: one.number for name, one in log.state_handle.state.sinks.items()} == {
        "query:golden": 7
    }


async def test_forks_of_then_go_on(golden: Location) -> None:
    """An old fork reads the shared records; dropping it releases its source."""
    fork = await golden.keyed.open(FORK, maintenance=False)
    assert await values(fork, b"a") == [b"2", b"3", b"4", b"5", b"6"]
    await fork.append([(b"a", b"8a")])
    assert await values(fork, b"a") == [b"2", b"3", b"4", b"5", b"6", b"8"]
    await fork.close()
    with pytest.raises(UsageError, match="forks"):
        await golden.keyed.drop(LOG)
    await golden.keyed.drop(FORK)
    await golden.keyed.drop(LOG)
    for name in (FORK, LOG, "gone"):
        with pytest.raises(NoSuchLog):
            await golden.keyed.open(name)


async def test_it_is_scrubbed_maintained_and_written_on(golden: Location) -> None:
    """The old log can be scrubbed, sealed, compacted, collected and appended to."""
    log = await golden.keyed.open(LOG, maintenance=False)
    assert (await log.scrub()).is_clean
    await log.append([(b"a", b"8a")])
    await log.seal()
    await log.compact(full=True)
    await log.collect(after_us=0)
    assert {one.fork for one in await log.checkpoints()} >= {FORK, ""}
    assert await values(log, b"a") == [b"2", b"3", b"4", b"5", b"7", b"8"]
    assert (await log.scrub()).is_clean
    await log.close()


async def test_what_is_stored_now_is_stored_as_it_was_then(tmp_path: Path) -> None:
    """Stored forms stay equal byte for byte, except Parquet."""
    await check_stored_as_then(tmp_path, ARCHIVE, make)
