"""A small location with every stored form of keyed logs, with the same bytes each time.

This program made tests/golden/keyed_location.zip, which later versions of tidelog must read. Make
it again only if a stored form changes before the first release, or a new form is added:

    python -m kit.golden_keyed tests/golden/keyed_location.zip
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Final
from unittest.mock import patch

import pyarrow as pa

from kit.golden_location import MOMENT_US, GoldenClock, write
from tidelog.errors import LocationError
from tidelog.keyed.format.records import encode_marker
from tidelog.keyed.log import KeyedLog
from tidelog.keyed.logs import KeyedLogs
from tidelog.keyed.maintenance.forks import Forks
from tidelog.keyed.values import Retention, Sealing
from tidelog.location import open_location

LOG: Final = "orders"
FORK: Final = "trial"
UNFINISHED: Final = "never"
KEYS: Final = (b"", b"a", b"a\x00\xff", b"b")


class _Clock(GoldenClock):
    """A clock whose ids differ in their first digits, because some names use only those."""

    def unique(self) -> str:
        return 2 * super().unique()[16:]


class _Died(Exception):
    """The end of a killed process."""


async def append(log: KeyedLog, *values: bytes) -> None:
    """Append a record of each key for each value, and wait until they are durable."""
    for number, value in enumerate(values):
        at_us = MOMENT_US + number
        await log.append([(key, value + key) for key in KEYS], timestamp_us=at_us)


async def make(folder: Path) -> None:
    """Make the location in a folder."""
    location = await open_location(folder, create=True, clock=_Clock())
    logs = KeyedLogs(
        store=location.store,
        consensus=location.consensus,
        clock=location.clock,
        writer="golden",
    )
    settings = Sealing(bytes=10**9, age_us=10**15), Retention(age_us=10**15, segments=9)
    await (await logs.create(LOG, sealing=settings[0], retention=settings[1])).close()
    log = await logs.open(LOG, maintenance=False)
    await append(log, b"0", b"1")
    await log.seal()
    await append(log, b"2")
    await log.compact(full=True)
    await log.seal()
    for value in (b"3", b"4"):
        await append(log, value)
        await log.compact(full=True)
    mark = pa.array([encode_marker("query:golden", 7)], pa.binary())
    await log.wal.append_arrow(mark, timestamp_us=MOMENT_US)
    await log.compact(full=True)
    await log.create_checkpoint("month")
    await log.retire(Retention(segments=2))
    await append(log, b"5")
    fork = await logs.fork(LOG, FORK)
    await append(fork, b"6")
    await fork.compact(full=True)
    await fork.close()
    with patch.object(Forks, "_fork_wal", side_effect=_Died), suppress(_Died):
        await logs.fork(LOG, UNFINISHED)
    stuck = LocationError("the store is away")
    with patch.object(Forks, "_fork_wal", side_effect=stuck), suppress(LocationError):
        await logs.fork(LOG, "void")
    await append(log, b"7")
    await log.close()
    await (await logs.create("gone")).close()
    await logs.drop("gone")


if __name__ == "__main__":
    write(Path(sys.argv[1]), make)
