"""Scenarios T1 to T6: stores and consensus. Most of them are in tests/contract, see README.md."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from kit.places import Addresses
from kit.shards import Place, heard, rows
from tidelog.consensus.port import VersionedRecord
from tidelog.core.ids import SeqNo
from tidelog.errors import CorruptionError
from tidelog.persist.format.schema import DIFF

PROPOSERS = """
import asyncio, sys
from tidelog.core.clock import SystemClock
from tidelog.consensus.kinds import open_consensus, parse_consensus
from tidelog.store.urls import open_store

CLOCK = SystemClock()
STORE = open_store(sys.argv[1], clock=CLOCK, create=True)
PLACE = parse_consensus(sys.argv[2])

async def propose(number, consensus):
    print(number, await consensus.compare_and_set("k", 1, b"%d" % number), flush=True)

async def main():
    made = [open_consensus(PLACE, location=sys.argv[3], store=STORE, clock=CLOCK) for _ in range(5)]
    sys.stdin.readline()
    first = int(sys.argv[4])
    await asyncio.gather(*(propose(n, made[n % 5]) for n in range(first, first + 25)))

asyncio.run(main())
"""


def test_t02_one_of_a_hundred_proposers_in_four_processes_wins(
    shared: tuple[Place, Addresses],
) -> None:
    """Two winners would be two histories of one shard."""
    place, where = shared
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROPOSERS, *where.arguments, str(first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(0, 100, 25)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [line.split() for process in started for line in process.communicate()[0].splitlines()]
    winners = [number for number, landed in told if landed == "True"]
    assert len(told) == 100
    assert len(winners) == 1
    assert asyncio.run(place.consensus().head("k")) == VersionedRecord(
        SeqNo(1), winners[0].encode()
    )


def flipped(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


DAMAGES = {
    "short": lambda data: data[: len(data) // 2],
    "long": lambda data: data + b"\0",
    "empty": lambda data: b"",
    "flipped": flipped,
    "gone": None,
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_t05_bytes_that_are_not_those_written_are_an_error_and_no_rows(
    place: Place, damage: str
) -> None:
    """If one of several parts is damaged, no read returns the rows of the others alone."""
    shard = place.shard()
    for time in range(3):
        table = rows(*[(f"{time} {n}", n, time, 1) for n in range(700)])
        await shard.compare_and_append(table, time, time + 1)
    path = list(shard.state.batches)[1].parts[0].path
    assert path is not None
    change = DAMAGES[damage]
    if change is None:
        await place.store.delete([path])
    else:
        found = await place.store.get(path)
        await place.store.put(path, change(found.data), if_match=found.e_tag)
    reader = place.shard()
    with pytest.raises(CorruptionError):
        await (await reader.snapshot(2)).to_arrow()
    with pytest.raises(CorruptionError):
        await heard(reader.listen(0), 3)
    with pytest.raises(CorruptionError):
        await reader.compact(full=True)
    intact = await (await reader.snapshot(0)).to_arrow()
    assert intact.column(DIFF).to_pylist() == [1] * 700
